"""Reading a configuration: TOML, then --set, then flags; checked as a whole, all problems reported together."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from fedgsca.config.presets import PRESETS, recommended
from fedgsca.config.schema import METHODS, SITES_SOURCE, Config, Tree
from fedgsca.errors import ConfigError
from fedgsca.wire import unprotected


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """Nested dictionaries, the second wins."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = (
            merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
        )
    return result


def _read_none(tree: Mapping[str, Any], model: type[BaseModel]) -> Tree:
    """The way back: "none" means None in fields that may be None, and stays a word in all others."""
    rows: Tree = {}
    for key, value in tree.items():
        kind = model.model_fields[key].annotation if key in model.model_fields else None
        if isinstance(value, Mapping) and isinstance(kind, type) and issubclass(kind, BaseModel):
            rows[key] = _read_none(value, kind)
        else:
            rows[key] = None if value == "none" and type(None) in get_args(kind) else value
    return rows


def _filled(options: BaseModel) -> Tree:
    """Every option with its value; None only where the default is something else, so that it is not taken for the default."""
    plain, rows = options.model_dump(mode="json"), {}
    for name, info in type(options).model_fields.items():
        value = getattr(options, name)
        if isinstance(value, BaseModel):
            rows[name] = _filled(value)
        elif value is not None or info.default is not None:
            rows[name] = plain[name]
    return rows


def parse_set(items: Sequence[str]) -> Tree:
    """--set a.b=value, values in TOML syntax; a bare word is a string."""
    tree: Tree = {}
    for item in items:
        key, sign, text = item.partition("=")
        if not sign or not key.strip():
            raise ConfigError(
                "todo.loading-1",
                f"--set {item!r} is not of the form section.key=value",
                fix="for example --set train.lr=0.01",
            )
        try:
            value: Any = tomllib.loads(f"v = {text}")["v"]
        except tomllib.TOMLDecodeError:
            value = text
        for part in reversed(key.strip().split(".")):
            value = {part: value}
        tree = merge(tree, value)
    return tree


def read_toml(path: Path) -> Tree:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            "todo.loading-2",
            f"configuration file {path} does not exist",
            fix="check the path given to --config",
        ) from None
    except OSError as error:
        raise ConfigError(
            "todo.loading-3",
            f"configuration file {path} cannot be read: {error.strerror}",
            fix="give a readable TOML file",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            "todo.loading-4",
            f"{path} is not valid TOML: {error}",
            fix="correct the line named above",
        ) from None


def describe(error: ValidationError, model: type[BaseModel], prefix: str = "") -> list[str]:
    """pydantic's findings in our words, unknown keys with the nearest valid name."""
    lines = []
    for item in error.errors():
        path = [str(part) for part in item["loc"]]
        name = ".".join(([prefix] if prefix else []) + path)
        if item["type"] == "extra_forbidden":
            valid = _fields(model, path[:-1])
            near = get_close_matches(path[-1], valid, n=1, cutoff=0.4)
            lines.append(
                f"{name}: unknown key"
                + (f"; did you mean {near[0]}?" if near else f"; valid keys: {', '.join(valid)}")
            )
        else:
            lines.append(f"{name}: {item['msg']} (got {item['input']!r})")
    return lines


def _fields(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for part in path:
        kind = model.model_fields[part].annotation if part in model.model_fields else None
        kind = next(
            (arg for arg in get_args(kind) if arg is not type(None)), kind
        )  # an optional section is one, too
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return []
        model = kind
    return list(model.model_fields)


def build(tree: Mapping[str, Any]) -> Config:
    """Check a complete tree: every problem is collected, then reported together."""
    methods = METHODS.load()
    tree = dict(tree)
    problems: list[str] = []
    method = str(tree.get("method", "fedgsca")).lower()
    preset = str(tree.get("preset", "default"))
    if preset not in PRESETS:
        problems.append(f"preset: {preset!r} is not known; choose one of: {', '.join(PRESETS)}")
    sections = {
        name: tree.pop(name) for name in list(tree) if name in methods
    }  # those of other methods are allowed, and unused
    for name in [name for name, section in sections.items() if not isinstance(section, Mapping)]:
        problems.append(
            f"{name}: is a section; set its keys, for example --set {name}.KEY=VALUE (got {sections.pop(name)!r})"
        )
    if tree.pop("options", None) is not None:
        problems.append(
            f"options: unknown key; a method's options stand under its name, for example {method}.KEY"
        )
    base = merge(recommended(tree), PRESETS.get(preset, {}))
    options = merge(base.pop(method, {}), sections.get(method, {}))
    base = {key: value for key, value in base.items() if key not in methods}
    if method not in methods:
        near = get_close_matches(method, list(methods), n=1, cutoff=0.4)
        problems.append(
            f"method: {method!r} is not known" + (f"; did you mean {near[0]}?" if near else "")
        )
    else:
        kind = methods[method].Options
        try:
            options = _filled(kind.model_validate(_read_none(options, kind)))
        except ValidationError as error:
            problems += describe(error, kind, method)
    try:
        # json mode: TOML has no tuples, and a tree read back from config.toml must check like the first one
        config = Config.model_validate(
            {**_read_none(merge(base, tree), Config), "method": method, "options": options}
        )
        problems += _unprotectable(config)
    except ValidationError as error:
        problems += describe(error, Config)
    if problems:
        raise ConfigError(
            "todo.loading-5",
            f"{len(problems)} problem{'s' * (len(problems) > 1)} in the configuration:\n  "
            + "\n  ".join(problems),
            fix="correct the keys above; `fedgsca methods NAME` lists a method's options",
        )
    return config


def _unprotectable(config: Config) -> list[str]:
    """Why this experiment cannot run under `privacy`: it would protect the weights and leave other numbers bare."""
    methods = METHODS.load()
    if config.privacy is None:
        return []
    bare = unprotected(methods[config.method].uploads) if config.method in methods else []
    found = (
        [
            f"privacy: {config.method} needs numbers of each site that cannot be protected: {', '.join(bare)}"
        ]
        if bare
        else []
    )
    if (
        config.privacy.noise > 0
        and config.data.source == SITES_SOURCE
        and config.federation.test is None
    ):
        found.append(
            "privacy: federation.test is not set, and no site tells exact counts of its own test images"
        )
    return found


def load_config(file: Path | None = None, sets: Sequence[str] = (), **overrides: Any) -> Config:
    """File, then --set, then explicit flags (None = not given)."""
    tree = read_toml(file) if file else {}
    tree = merge(tree, parse_set(sets))
    for key, value in overrides.items():
        if value is not None:
            for part in reversed(key.split("__")):
                value = {part: value}
            tree = merge(tree, value)
    return build(tree)


def to_toml(config: Config) -> str:
    import tomli_w

    return tomli_w.dumps(config.to_tree())


def flat(tree: Mapping[str, Any], prefix: str = "") -> Tree:
    """Nested tables as one, with dotted keys."""
    rows: Tree = {}
    for key, value in tree.items():
        rows |= (
            flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
        )
    return rows


def differences(config: Config, other: Config) -> list[tuple[str, Any, Any]]:
    """Keys whose values differ, for 'what does preset paper change' and for 'this folder belongs to another experiment'."""
    mine, theirs = flat(config.to_tree()), flat(other.to_tree())
    return [
        (key, mine.get(key), theirs.get(key))
        for key in sorted(mine | theirs)
        if mine.get(key) != theirs.get(key)
    ]
