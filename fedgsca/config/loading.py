"""Reading a configuration: TOML, then --set, then flags; all problems are reported together."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, get_args

from pydantic import BaseModel, ValidationError

from fedgsca.config.presets import PRESETS, recommend
from fedgsca.config.schema import (
    DEFAULT_METHOD,
    METHODS,
    OWN_FEATURES,
    RULES,
    SHORT_NAMES,
    SITES_SOURCE,
    Config,
    MethodSchema,
    Tree,
)
from fedgsca.errors import ConfigError, ConfigProblem
from fedgsca.support.text import did_you_mean, one_line, plural, printable, suggest

# how TOML spells None, which it does not have
_NONE = "none"
_MAX_VALUE = 200  # characters of a wrong value in a message
_MAX_SITES = 20  # names of sites in a message
_VALIDATOR_PREFIX = "Value error, "  # pydantic puts it before the messages of our own validators


class Difference(NamedTuple):
    """A key with different values in two configurations; None: it is not set."""

    key: str
    value: Any
    reference_value: Any


# ---- trees: nested dictionaries, as TOML has them ----


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """Nested dictionaries as one; where both have a value, `over` wins."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            result[key] = merge(below, value)
        else:
            result[key] = value
    return result


def nest(keys: Sequence[str], value: Any) -> Tree:
    """["train", "lr"], 0.1 -> {"train": {"lr": 0.1}}."""
    for key in reversed(keys):
        value = {key: value}
    return dict(value)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Tree:
    """Nested dictionaries as one, with dotted keys."""
    rows: Tree = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            rows |= flatten(value, f"{prefix}{key}.")
        else:
            rows[prefix + key] = value
    return rows


def unflatten(rows: Mapping[str, Any]) -> Tree:
    """The inverse of `flatten`: {"data.sites": 10} -> {"data": {"sites": 10}}."""
    tree: Tree = {}
    for key, value in rows.items():
        tree = merge(tree, nest(key.split("."), value))
    return tree


# ---- sources ----


def parse_set(items: Sequence[str]) -> Tree:
    """--set a.b=value, with values in TOML syntax; a bare word is a string."""
    tree: Tree = {}
    for item in items:
        key, sign, text = item.partition("=")
        if not sign or not key.strip():
            raise ConfigError(
                "config.invalid-set",
                f"--set {item!r} does not have the form section.key=value",
                fix="write for example --set train.lr=0.01",
            )
        try:
            value: Any = tomllib.loads(f"v = {text}")["v"]
        except (tomllib.TOMLDecodeError, RecursionError):
            value = text
        tree = merge(tree, nest(key.strip().split("."), value))
    return tree


def read_toml(path: Path) -> Tree:
    """The contents of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            "config.file-not-found",
            f"the configuration file {path} does not exist",
            fix="check the path given to --config",
        ) from None
    except OSError as error:
        raise ConfigError(
            "config.unreadable-file",
            f"the configuration file {path} cannot be read: {error.strerror}",
            fix="give a readable TOML file",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            "config.invalid-toml",
            f"{path} is not valid TOML: {error}",
            fix="correct the line named above",
        ) from None
    except (RecursionError, ValueError) as error:  # deep nesting; a path with a NUL character
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigError(
            "config.invalid-toml",
            f"{one_line(str(path))} cannot be read as TOML: {reason}",
            fix="give a TOML file as `fedgsca config` prints it",
        ) from None


def collect(
    file: Path | str | None = None,
    sets: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> Tree:
    """What a user has given: a TOML file, then --set items, then settings; the later one wins.

    A setting is a short name (rounds), a key (train__rounds, train.rounds) or an entire section
    (train={"rounds": 3}); None means not given.
    """
    tree = {} if file is None else read_toml(Path(file))
    tree = merge(tree, parse_set(sets))
    for key, value in (settings or {}).items():
        if value is not None:
            plain_value = str(value) if isinstance(value, Path) else value
            tree = merge(tree, nest(_key_path(key, value), plain_value))
    return tree


def _key_path(key: str, value: object) -> list[str]:
    """The path of a setting: rounds, train__rounds or train.rounds -> ["train", "rounds"]."""
    dotted_key = key.replace("__", ".")
    if isinstance(value, Mapping):
        return dotted_key.split(".")
    return SHORT_NAMES.get(key, dotted_key).split(".")


def load_config(
    file: Path | str | None = None, sets: Sequence[str] = (), **settings: Any
) -> Config:
    """A checked configuration from a file, then --set items, then settings (see `collect`)."""
    return build(collect(file, sets, settings))


# ---- checking ----


def build(tree: Mapping[str, Any]) -> Config:
    """Check a complete tree: every problem is collected, then all are reported together."""
    methods = METHODS.load()
    tree = dict(tree)
    problems = _text_problems(tree)
    _raise_problems(problems)  # such texts can be neither stored nor shown
    preset = str(tree.get("preset", "default"))
    default_method = PRESETS.get(preset, {}).get("method", DEFAULT_METHOD)
    name = str(tree.get("method", default_method)).lower()
    if preset not in PRESETS:
        choices = ", ".join(PRESETS)
        message = f"preset: unknown preset {preset!r}; use one of: {choices}"
        problems.append(ConfigProblem("config.unknown-preset", message))
    sections, section_problems = _take_method_sections(tree, methods, name)
    problems += section_problems
    recommendation = recommend(tree)
    base = merge(recommendation, PRESETS.get(preset, {}))
    options = merge(base.pop(name, {}), sections.get(name, {}))
    base = {key: value for key, value in base.items() if key not in methods}
    method = methods.get(name)
    if method is None:
        message = f"method: unknown method {name!r}; {_hint(name, sorted(methods))}"
        problems.append(ConfigProblem("config.unknown-method", message))
    else:
        try:
            options = _restore_none(options, method.Options)
            options = _dump_options(method.Options.model_validate(options))
        except ValidationError as error:
            problems += validation_problems(error, method.Options, name)
    settings = _restore_none(merge(base, tree), Config)
    try:
        config = Config.model_validate({**settings, "method": name, "options": options})
        if method is not None:
            problems += _contradictions(config, method)
    except ValidationError as error:
        problems += validation_problems(error, Config)
    _raise_problems(problems)
    # how the network is trained stays open: the data may choose another network (`fill`)
    given_keys = tree.get("train", {})
    config.train.model_fields_set.difference_update(
        set(recommendation.get("train", {})) - set(given_keys)
    )
    return config


def fill(config: Config, tree: Mapping[str, Any]) -> Config:
    """The configuration with values for keys of its sections that nobody has set.

    The values are our own, so they are not checked again.
    """
    sections = {}
    for name, values in tree.items():
        section = getattr(config, name)
        open_keys = set(values) - section.model_fields_set
        sections[name] = section.model_copy(update={key: values[key] for key in open_keys})
    return config.model_copy(update=sections)


def _raise_problems(problems: list[ConfigProblem]) -> None:
    if problems:
        raise ConfigError(
            "config.invalid",
            f"{plural(len(problems), 'problem')} in the configuration:",
            fix="correct the keys above; `fedgsca methods NAME` lists the options of a method",
            problems=problems,
        )


def _text_problems(tree: Mapping[str, Any]) -> list[ConfigProblem]:
    """Half characters: a name that is not UTF-8 gets them from the command line."""
    problems: list[ConfigProblem] = []
    try:
        values = flatten(tree)
    except RecursionError:  # the checks that follow explain it
        return problems
    for key, value in values.items():
        if isinstance(value, str) and value != value.encode(errors="replace").decode():
            message = f"{printable(key)}: {printable(value)!r} has characters that are not Unicode"
            problems.append(ConfigProblem("config.invalid-text", message))
    return problems


def _take_method_sections(
    tree: Tree, methods: Mapping[str, type[MethodSchema]], method: str
) -> tuple[Tree, list[ConfigProblem]]:
    """Remove the sections of methods from the tree. Those of other methods are allowed, unused."""
    sections = {name: tree.pop(name) for name in list(tree) if name in methods}
    problems = []
    for name, section in list(sections.items()):
        if not isinstance(section, Mapping):
            del sections[name]
            message = (
                f"{name}: this is a section (got {section!r}); "
                f"set its keys, for example --set {name}.KEY=VALUE"
            )
            problems.append(ConfigProblem("config.not-a-section", message))
    if tree.pop("options", None) is not None:
        message = f"options: unknown key; write a method's options as {method}.KEY"
        problems.append(ConfigProblem("config.unknown-key", message))
    return sections, problems


def validation_problems(
    error: ValidationError, model: type[BaseModel], prefix: str = ""
) -> list[ConfigProblem]:
    """pydantic's errors as problems, unknown keys with the nearest valid name."""
    problems = []
    for item in error.errors():
        path = [str(part) for part in item["loc"]]
        name = ".".join([prefix, *path] if prefix else path)
        if item["type"] == "extra_forbidden":
            message = f"{name}: unknown key; {_hint(path[-1], _section_keys(model, path[:-1]))}"
            problems.append(ConfigProblem("config.unknown-key", message))
        else:
            reason = item["msg"].removeprefix(_VALIDATOR_PREFIX)
            message = f"{name}: {reason} (got {_shorten(item['input'])})"
            problems.append(ConfigProblem("config.invalid-value", message))
    return problems


def _shorten(value: object) -> str:
    try:
        return one_line(repr(value), _MAX_VALUE)
    except RecursionError:
        return "a deeply nested value"


def _hint(word: str, names: Sequence[str]) -> str:
    """The nearest valid name, or all of them."""
    nearest = suggest(word, names)
    return f"did you mean {nearest}?" if nearest else f"use one of: {', '.join(names)}"


def _section_keys(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for part in path:
        if part.isdigit():  # the position in a list of sections, which all have the same keys
            continue
        section = section_model(model, part)
        if section is None:
            return []
        model = section
    return list(model.model_fields)


def section_model(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """The model of a section, also of an optional one; None if the key is not a section."""
    if key not in model.model_fields:
        return None
    annotation = model.model_fields[key].annotation
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _contradictions(config: Config, method: type[MethodSchema]) -> Iterator[ConfigProblem]:
    """Values that are right one by one and do not fit together."""
    federation = config.federation
    rules = RULES.load()
    if config.aggregation.rule not in rules:
        name = config.aggregation.rule
        message = f"aggregation.rule: unknown rule {name!r}; {_hint(name, sorted(rules))}"
        yield ConfigProblem("config.unknown-rule", message)
    if federation.sites is not None:  # elsewhere only the data knows the sites
        problem = unknown_agreement(config, federation.sites)
        if problem is not None:
            yield ConfigProblem("config.unknown-site", problem)
    if config.train.loss != "ce" and not method.takes_loss:
        names = [name for name, schema in METHODS.load().items() if schema.takes_loss]
        yield ConfigProblem(
            "config.loss-not-used",
            f"train.loss: {config.method} has a loss of its own and cannot use"
            f" {config.train.loss}; methods that can: {', '.join(sorted(names))}",
        )
    if federation.sites_per_round is not None and federation.participation < 1:
        yield ConfigProblem(
            "config.two-participations",
            "federation: participation and sites_per_round both say how many sites a round asks; "
            "set one of them",
        )
    if federation.simulated_lateness > 0 and config.data.source == SITES_SOURCE:
        yield ConfigProblem(
            "config.lateness-not-simulated",
            "federation.simulated_lateness: the sites of a deployment are late by themselves; "
            "remove the key",
        )
    yield from _privacy_contradictions(config, method)
    yield from _feature_contradictions(config)


def _privacy_contradictions(config: Config, method: type[MethodSchema]) -> Iterator[ConfigProblem]:
    """Why this experiment cannot run under `privacy`: some numbers would leave unprotected."""
    if config.privacy is None:
        return
    from fedgsca.wire import unprotected  # with numpy, which no help text needs

    if method.reads_evidence:
        yield ConfigProblem(
            "config.privacy-without-evidence",
            f"privacy: {config.method} selects by evidence heads, which are off under privacy; "
            "use method=fedgsca",
        )
    extras = unprotected(method.uploads)
    if extras:
        yield ConfigProblem(
            "config.privacy-unprotected",
            f"privacy: {config.method} needs numbers of each site that cannot be protected: "
            f"{', '.join(extras)}",
        )
    at_the_sites = config.data.source == SITES_SOURCE and config.federation.test is None
    if config.privacy.noise > 0 and at_the_sites:
        yield ConfigProblem(
            "config.privacy-needs-test",
            "privacy: federation.test is not set, "
            "and sites do not send exact counts of their own test images",
        )


def _feature_contradictions(config: Config) -> Iterator[ConfigProblem]:
    """Keys that contradict each other about the user's own features."""
    model, file = config.model, config.data.features
    if model.name != OWN_FEATURES:
        values = {"data.features": file, "model.feature_width": model.feature_width}
        for key, value in values.items():
            if value is not None:
                message = f"{key}: only model.name={OWN_FEATURES} uses it; remove one of the two"
                yield ConfigProblem("config.features-not-used", message)
        return
    if not model.frozen or model.weights is not None:
        yield ConfigProblem(
            "config.features-without-network",
            f"model: {OWN_FEATURES} trains a head on the features of a file; "
            "remove model.frozen=false and model.weights",
        )
    if file is not None and config.data.source == SITES_SOURCE:
        message = "data.features: each site has its own file; remove the key"
        yield ConfigProblem("config.features-at-sites", message)


def unknown_agreement(config: Config, names: Sequence[str]) -> str | None:
    """What is wrong if `aggregation.max_images` names a site that does not take part."""
    table = config.aggregation.max_images
    unknown_sites = sorted(set(table) - set(names)) if isinstance(table, dict) else []
    if not unknown_sites:
        return None
    site = unknown_sites[0]
    valid_names = ", ".join(names[:_MAX_SITES])
    if len(names) > _MAX_SITES:
        valid_names += f" and {len(names) - _MAX_SITES} more"
    return (
        f"aggregation.max_images: the site {one_line(site)!r} does not take part; "
        f"{did_you_mean(site, names)}use the names of the sites: {valid_names}"
    )


# ---- None, which TOML does not have ----


def _restore_none(tree: Mapping[str, Any], model: type[BaseModel]) -> Tree:
    """A tree in which "none" is None for keys that may be None, and a word for all others."""
    rows: Tree = {}
    for key, value in tree.items():
        info = model.model_fields.get(key)
        annotation = None if info is None else info.annotation
        if isinstance(value, Mapping) and _is_model(annotation):
            rows[key] = _restore_none(value, annotation)
        elif value == _NONE and type(None) in get_args(annotation):
            rows[key] = None
        else:
            rows[key] = value
    return rows


def _is_model(annotation: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _dump_options(options: BaseModel) -> Tree:
    """Every option with its value; None only where the default is something else.

    So a missing None is never taken for the default.
    """
    plain = options.model_dump(mode="json")
    rows: Tree = {}
    for name, info in type(options).model_fields.items():
        value = getattr(options, name)
        if isinstance(value, BaseModel):
            rows[name] = _dump_options(value)
        elif value is not None or info.default is not None:
            rows[name] = plain[name]
    return rows


# ---- writing and comparing ----


def to_toml(config: Config) -> str:
    """The configuration as config.toml contains it, with every default."""
    import tomli_w

    return tomli_w.dumps(config.to_tree())


def differences(config: Config, reference: Config) -> list[Difference]:
    """Keys whose values differ, sorted."""
    values = flatten(config.to_tree())
    reference_values = flatten(reference.to_tree())
    rows = []
    for key in sorted(values | reference_values):
        if values.get(key) != reference_values.get(key):
            rows.append(Difference(key, values.get(key), reference_values.get(key)))
    return rows
