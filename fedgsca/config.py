"""Configuration: frozen data, read from TOML and --set, checked as a whole, written back with every default filled in."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedgsca.errors import ConfigError
from fedgsca.presets import PRESETS, recommended

Tree = dict[str, Any]


class Section(BaseModel):
    """A table of the configuration: immutable, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataConfig(Section):
    source: str = Field(
        "synthetic", description="built-in name, .npz file, folder with labels.csv, reader:ROOT; 'sites': each site has its own"
    )
    classes: tuple[str, ...] | None = Field(None, min_length=2, description="source 'sites': the class names, in their order")
    image_size: int | None = Field(None, ge=8, le=1024, description="pixels; default: the source's own size")
    labels: str | None = Field(None, description="csv (file,label) that replaces the given training labels")
    sites: int = Field(4, ge=1, le=10_000)
    partition: Literal["stratified", "dirichlet", "group", "column"] = "stratified"
    alpha: float = Field(0.5, gt=0, description="Dirichlet concentration: small = skewed")
    train: int | None = Field(
        None, ge=2, description="number of training images: rendered (synthetic) or drawn (other sources)"
    )
    test: int | None = Field(None, ge=1, description="number of test images, likewise")
    skip_unreadable: bool = Field(False, description="leave out images that cannot be decoded instead of stopping")
    split: str | None = Field(None, description="kvasir: fedgp, frame, video, official-0, official-1; odir: published, patient")
    label: str | None = Field(
        None, description="kvasir: clean, symm-0.2, ...; odir: patient, eye; chaoyang: drawn, released, majority"
    )
    splits: str | None = Field(None, description="folder of the lists of kvasir and chaoyang, if it is not in ROOT")


class NoiseConfig(Section):
    spec: str = Field("0", description="one for all sites (S40) or one each (0-S40-P20-C20)")
    candidates: str = Field(
        "auto",
        description="CK-asymmetric candidates: auto, features (auto by frozen features instead of images), or a TOML file",
    )
    matrix: str | None = Field(
        None, description="csv with a transition matrix (rows: true class), or chaoyang (built in); for sites with noise M"
    )
    given: str | None = Field(None, description="csv (file,label) of given labels; the labels of the source are then the truth")
    oracle: bool = Field(
        False, description="simulations: leave the wrong labels out; the ceiling of any method, which no method can know"
    )


class ModelConfig(Section):
    name: str = "cnn"
    weights: str | None = Field(None, description="local file; 'packaged' = ImageNet weights inside the [weights] extra")
    frozen: bool = Field(False, description="train and send only the head; features are computed once per site")
    feature_size: int = Field(96, ge=16, description="frozen mode: pixels at which the backbone sees the image")


class TrainConfig(Section):
    rounds: int = Field(40, ge=1)
    epochs: int = Field(1, ge=1)
    batch_size: int = Field(32, ge=2)
    lr: float = Field(0.02, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(1e-6, ge=0)
    lr_steps: tuple[float, ...] = Field(
        (0.7, 0.9), description="fractions of the rounds after which lr is multiplied by lr_decay"
    )
    lr_decay: float = Field(0.1, gt=0, le=1)
    augment: Literal["none", "flips", "dihedral", "rotate"] = "dihedral"
    threads: int = Field(2, ge=1, description="torch threads per site; part of the experiment because it changes the bytes")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")

    def lr_at(self, round: int) -> float:
        """Learning rate of a zero-based round: steps are counted over communication rounds."""
        passed = sum(round >= int(step * self.rounds) for step in self.lr_steps)
        return float(self.lr * self.lr_decay**passed)


class FederationConfig(Section):
    quorum: float = Field(0.5, ge=0, le=1, description="fraction of sites whose updates a round needs")
    deadline: float | None = Field(
        None, gt=0, description="deployment: seconds after which a round goes on without the sites that are late; default 3600"
    )
    sites: tuple[str, ...] | None = Field(None, min_length=1, description="source 'sites': the names of all sites")
    test: str | None = Field(
        None, description="source 'sites': the coordinator's own test images; none: each site tests on its own"
    )
    eval_every: int = Field(1, ge=1, description="evaluate the global model every n rounds (and in the last five)")
    keep_losses: bool = Field(True, description="simulations: keep per-sample losses for the report's histograms")


class AuditConfig(Section):
    enabled: bool = Field(True, description="each site keeps evidence about its own labels, for `fedgsca audit`")
    first: int = Field(3, ge=0, description="first round of the evidence, from 0: earlier models know too little")
    last: int = Field(
        20, ge=1, description="the evidence ends before this round: later models may know the wrong labels by heart"
    )

    def window(self, rounds: int) -> range:
        """Rounds that give evidence. A run too short for the window uses its second half."""
        return range(min(self.first, rounds // 2), min(self.last, rounds)) if self.enabled else range(0)


class PrivacyConfig(Section):
    clip: float = Field(gt=0, description="largest L2 norm of the change that a site sends in a round")
    noise: float = Field(0.0, ge=0, description="std of the Gaussian noise, as a multiple of clip; 0: clipping only")
    delta: float = Field(1e-5, gt=0, lt=1, description="the delta for which epsilon is reported")


class Config(Section):
    """One experiment. Everything that changes the resulting bytes is in here, and nothing else."""

    seed: int = Field(0, ge=0)
    preset: str = "default"
    method: str = "fedgsca"
    data: DataConfig = DataConfig()  # type: ignore[call-arg]
    noise: NoiseConfig = NoiseConfig()  # type: ignore[call-arg]
    model: ModelConfig = ModelConfig()  # type: ignore[call-arg]
    train: TrainConfig = TrainConfig()  # type: ignore[call-arg]
    federation: FederationConfig = FederationConfig()  # type: ignore[call-arg]
    audit: AuditConfig = AuditConfig()  # type: ignore[call-arg]
    privacy: PrivacyConfig | None = Field(None, description="clipping and noise on what leaves a site (docs/privacy.md)")
    options: dict[str, Any] = Field(default_factory=dict, description="the method's own options, all filled in")

    def to_tree(self) -> Tree:
        """As written to config.toml: None left out or spelled "none", the method's options under the method's name."""
        tree: Tree = json.loads(self.model_dump_json(exclude_none=True, exclude={"options"}))
        return {**tree, self.method: _spell_none(self.options)} if self.options else tree

    def fingerprint(self) -> str:
        """Names the experiment. Two runs with the same fingerprint end in the same bytes on the same machine."""
        return hashlib.sha256(json.dumps(self.to_tree(), sort_keys=True).encode()).hexdigest()


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """Nested dictionaries, the second wins."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def _spell_none(tree: Mapping[str, Any]) -> Tree:
    """TOML has no null: an option that was switched off is written as "none"."""
    return {key: _spell_none(v) if isinstance(v, Mapping) else "none" if v is None else v for key, v in tree.items()}


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
            raise ConfigError(f"--set {item!r} is not of the form section.key=value", fix="for example --set train.lr=0.01")
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
        raise ConfigError(f"configuration file {path} does not exist", fix="check the path given to --config") from None
    except OSError as error:
        raise ConfigError(
            f"configuration file {path} cannot be read: {error.strerror}", fix="give a readable TOML file"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", fix="correct the line named above") from None


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
                f"{name}: unknown key" + (f"; did you mean {near[0]}?" if near else f"; valid keys: {', '.join(valid)}")
            )
        else:
            lines.append(f"{name}: {item['msg']} (got {item['input']!r})")
    return lines


def _fields(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for part in path:
        kind = model.model_fields[part].annotation if part in model.model_fields else None
        kind = next((arg for arg in get_args(kind) if arg is not type(None)), kind)  # an optional section is one, too
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return []
        model = kind
    return list(model.model_fields)


def build(tree: Mapping[str, Any]) -> Config:
    """Check a complete tree: every problem is collected, then reported together."""
    from fedgsca.methods.base import REGISTRY, load_all

    load_all()
    tree = dict(tree)
    problems: list[str] = []
    method = str(tree.get("method", "fedgsca")).lower()
    preset = str(tree.get("preset", "default"))
    if preset not in PRESETS:
        problems.append(f"preset: {preset!r} is not known; choose one of: {', '.join(PRESETS)}")
    sections = {
        name: tree.pop(name) for name in list(tree) if name in REGISTRY
    }  # those of other methods are allowed, and unused
    for name in [name for name, section in sections.items() if not isinstance(section, Mapping)]:
        problems.append(f"{name}: is a section; set its keys, for example --set {name}.KEY=VALUE (got {sections.pop(name)!r})")
    if tree.pop("options", None) is not None:
        problems.append(f"options: unknown key; a method's options stand under its name, for example {method}.KEY")
    base = merge(recommended(tree), PRESETS.get(preset, {}))
    options = merge(base.pop(method, {}), sections.get(method, {}))
    base = {key: value for key, value in base.items() if key not in REGISTRY}
    if method not in REGISTRY:
        near = get_close_matches(method, list(REGISTRY), n=1, cutoff=0.4)
        problems.append(f"method: {method!r} is not known" + (f"; did you mean {near[0]}?" if near else ""))
    else:
        kind = REGISTRY[method].Options
        try:
            options = _filled(kind.model_validate(_read_none(options, kind)))
        except ValidationError as error:
            problems += describe(error, kind, method)
    try:
        # json mode: TOML has no tuples, and a tree read back from config.toml must check like the first one
        config = Config.model_validate({**_read_none(merge(base, tree), Config), "method": method, "options": options})
        problems += _unprotectable(config)
    except ValidationError as error:
        problems += describe(error, Config)
    if problems:
        raise ConfigError(
            f"{len(problems)} problem{'s' * (len(problems) > 1)} in the configuration:\n  " + "\n  ".join(problems),
            fix="correct the keys above; `fedgsca methods NAME` lists a method's options",
        )
    return config


def _unprotectable(config: Config) -> list[str]:
    """Why this experiment cannot run under `privacy`: it would protect the weights and leave other numbers bare."""
    from fedgsca.experiment import OWN
    from fedgsca.methods.base import REGISTRY
    from fedgsca.privacy import unprotected

    if config.privacy is None:
        return []
    bare = unprotected(REGISTRY[config.method].uploads) if config.method in REGISTRY else []
    found = [f"privacy: {config.method} needs numbers of each site that cannot be protected: {', '.join(bare)}"] if bare else []
    if config.privacy.noise > 0 and config.data.source == OWN and config.federation.test is None:
        found.append("privacy: federation.test is not set, and no site tells exact counts of its own test images")
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
        rows |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return rows


def differences(config: Config, other: Config) -> list[tuple[str, Any, Any]]:
    """Keys whose values differ, for 'what does preset paper change' and for 'this folder belongs to another experiment'."""
    mine, theirs = flat(config.to_tree()), flat(other.to_tree())
    return [(key, mine.get(key), theirs.get(key)) for key in sorted(mine | theirs) if mine.get(key) != theirs.get(key)]
