"""The configuration of one experiment as frozen, typed data. Loading and checking are in loading.py."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from fedgsca.support.registry import Registry
from fedgsca.wire import Extra

Tree = dict[str, Any]
SITES_SOURCE = "sites"  # data.source of a deployment in which every site brings its own images


class MethodSchema(Protocol):
    """The part of a method that a configuration needs: its name, its options, and what it uploads."""

    name: ClassVar[str]
    uploads: ClassVar[Mapping[str, Extra]]
    Options: ClassVar[type[BaseModel]]


METHODS: Registry[type[MethodSchema]] = Registry("fedgsca.methods")


class Section(BaseModel):
    """A table of the configuration: immutable, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataConfig(Section):
    source: str = Field(
        "synthetic",
        description="built-in name, .npz file, folder with labels.csv, reader:ROOT; 'sites': each site has its own",
    )
    classes: tuple[str, ...] | None = Field(
        None, min_length=2, description="source 'sites': the class names, in their order"
    )
    image_size: int | None = Field(
        None, ge=8, le=1024, description="pixels; default: the source's own size"
    )
    labels: str | None = Field(
        None, description="csv (file,label) that replaces the given training labels"
    )
    sites: int = Field(4, ge=1, le=10_000)
    partition: Literal["stratified", "dirichlet", "group", "column"] = "stratified"
    alpha: float = Field(0.5, gt=0, description="Dirichlet concentration: small = skewed")
    train: int | None = Field(
        None,
        ge=2,
        description="number of training images: rendered (synthetic) or drawn (other sources)",
    )
    test: int | None = Field(None, ge=1, description="number of test images, likewise")
    skip_unreadable: bool = Field(
        False, description="leave out images that cannot be decoded instead of stopping"
    )
    split: str | None = Field(
        None,
        description="kvasir: fedgp, frame, video, official-0, official-1; odir: published, patient",
    )
    label: str | None = Field(
        None,
        description="kvasir: clean, symm-0.2, ...; odir: patient, eye; chaoyang: drawn, released, majority",
    )
    splits: str | None = Field(
        None, description="folder of the lists of kvasir and chaoyang, if it is not in ROOT"
    )


class NoiseConfig(Section):
    spec: str = Field("0", description="one for all sites (S40) or one each (0-S40-P20-C20)")
    candidates: str = Field(
        "auto",
        description="CK-asymmetric candidates: auto, features (auto by frozen features instead of images), or a TOML file",
    )
    matrix: str | None = Field(
        None,
        description="csv with a transition matrix (rows: true class), or chaoyang (built in); for sites with noise M",
    )
    given: str | None = Field(
        None,
        description="csv (file,label) of given labels; the labels of the source are then the truth",
    )
    oracle: bool = Field(
        False,
        description="simulations: leave the wrong labels out; the ceiling of any method, which no method can know",
    )


class ModelConfig(Section):
    name: str = "cnn"
    weights: str | None = Field(
        None, description="local file; 'packaged' = ImageNet weights inside the [weights] extra"
    )
    frozen: bool = Field(
        False, description="train and send only the head; features are computed once per site"
    )
    feature_size: int = Field(
        96, ge=16, description="frozen mode: pixels at which the backbone sees the image"
    )


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
    threads: int = Field(
        2,
        ge=1,
        description="torch threads per site; part of the experiment because it changes the bytes",
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")

    def lr_at(self, round: int) -> float:
        """Learning rate of a zero-based round: steps are counted over communication rounds."""
        passed = sum(round >= int(step * self.rounds) for step in self.lr_steps)
        return float(self.lr * self.lr_decay**passed)


class FederationConfig(Section):
    quorum: float = Field(
        0.5, ge=0, le=1, description="fraction of sites whose updates a round needs"
    )
    deadline: float | None = Field(
        None,
        gt=0,
        description="deployment: seconds after which a round goes on without the sites that are late; default 3600",
    )
    sites: tuple[str, ...] | None = Field(
        None, min_length=1, description="source 'sites': the names of all sites"
    )
    test: str | None = Field(
        None,
        description="source 'sites': the coordinator's own test images; none: each site tests on its own",
    )
    eval_every: int = Field(
        1, ge=1, description="evaluate the global model every n rounds (and in the last five)"
    )
    keep_losses: bool = Field(
        True, description="simulations: keep per-sample losses for the report's histograms"
    )


class AuditConfig(Section):
    enabled: bool = Field(
        True, description="each site keeps evidence about its own labels, for `fedgsca audit`"
    )
    first: int = Field(
        3, ge=0, description="first round of the evidence, from 0: earlier models know too little"
    )
    last: int = Field(
        20,
        ge=1,
        description="the evidence ends before this round: later models may know the wrong labels by heart",
    )

    def window(self, rounds: int) -> range:
        """Rounds that give evidence. A run too short for the window uses its second half."""
        return (
            range(min(self.first, rounds // 2), min(self.last, rounds))
            if self.enabled
            else range(0)
        )


class PrivacyConfig(Section):
    clip: float = Field(
        gt=0, description="largest L2 norm of the change that a site sends in a round"
    )
    noise: float = Field(
        0.0, ge=0, description="std of the Gaussian noise, as a multiple of clip; 0: clipping only"
    )
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
    privacy: PrivacyConfig | None = Field(
        None, description="clipping and noise on what leaves a site (docs/privacy.md)"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="the method's own options, all filled in"
    )

    def to_tree(self) -> Tree:
        """As written to config.toml: None left out or spelled "none", the method's options under the method's name."""
        tree: Tree = json.loads(self.model_dump_json(exclude_none=True, exclude={"options"}))
        return {**tree, self.method: _spell_none(self.options)} if self.options else tree

    def fingerprint(self) -> str:
        """Names the experiment. Two runs with the same fingerprint end in the same bytes on the same machine."""
        return hashlib.sha256(json.dumps(self.to_tree(), sort_keys=True).encode()).hexdigest()


def _spell_none(tree: Mapping[str, Any]) -> Tree:
    """TOML has no null: an option that was switched off is written as "none"."""
    return {
        key: _spell_none(v) if isinstance(v, Mapping) else "none" if v is None else v
        for key, v in tree.items()
    }
