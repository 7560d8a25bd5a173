"""The configuration of one experiment as frozen, typed data. Loading is in loading.py."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from fedgsca.support.registry import Registry
from fedgsca.support.text import strip_slash

if TYPE_CHECKING:
    from fedgsca.wire import Extra

Tree = dict[str, Any]
# data.source of a deployment in which every site brings its own images
SITES_SOURCE = "sites"
# model.name of a head on the user's own features, without a network
OWN_FEATURES = "features"
# a shorter run has no evidence heads: they would have nothing to say in time
MIN_EVIDENCE_ROUNDS = 6
DEFAULT_METHOD = "fedgsca-e"
# train.lr: the rate of the model
AUTO_RATE: Literal["auto"] = "auto"


def _check_rate(value: object) -> object:
    """One problem in words, instead of one for each of the two forms."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value == AUTO_RATE or (is_number and 0 < float(value) < math.inf):  # type: ignore[arg-type]
        return value
    raise ValueError("write a positive number or auto")


LearningRate: TypeAlias = Annotated[float | Literal["auto"], BeforeValidator(_check_rate)]
ImageCount: TypeAlias = Annotated[int, Field(gt=0, strict=True)]  # true is no number here
# the settings with a short name, in `Config.load` and as an option of the command line
SHORT_NAMES = {
    "data": "data.source",
    "method": "method",
    "noise": "noise.spec",
    "rounds": "train.rounds",
    "seed": "seed",
    "sites": "data.sites",
    "partition": "data.partition",
    "participation": "federation.participation",
    "labels": "data.labels",
    "model": "model.name",
    "frozen": "model.frozen",
    "features": "data.features",
    "epochs": "train.epochs",
    "lr": "train.lr",
    "device": "train.device",
    "skip_unreadable": "data.skip_unreadable",
    "audit": "audit.enabled",
    "preset": "preset",
    "track": "track",
}


class MethodSchema(Protocol):
    """The part of a method that a configuration needs: its name, options and uploads."""

    name: ClassVar[str]
    uploads: ClassVar[Mapping[str, Extra]]
    takes_loss: ClassVar[bool]
    reads_evidence: ClassVar[bool]
    Options: ClassVar[type[BaseModel]]


METHODS: Registry[type[MethodSchema]] = Registry("fedgsca.methods")
# aggregation rules; their contract is fedgsca.federation.filters.rules.Rule
RULES: Registry[type] = Registry("fedgsca.federation.filters.rules")


class Section(BaseModel):
    """A table of the configuration: immutable, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataConfig(Section):
    """The images and how they are divided among sites."""

    source: str = Field(
        default="synthetic",
        description="synthetic, FILE.npz, FOLDER with labels.csv, or kind:PATH (see `fedgsca data "
        "list`); 'sites': each site has its own",
    )
    classes: tuple[str, ...] | None = Field(
        default=None, min_length=2, description="source 'sites': the class names, in their order"
    )
    order: tuple[str, ...] | None = Field(
        default=None,
        min_length=2,
        description="grades from the lowest to the highest, where classes have an order; classes "
        "that are no grade are left out",
    )
    image_size: int | None = Field(
        default=None, ge=8, le=1024, description="pixels; default: the source's own size"
    )
    labels: str | None = Field(
        default=None, description="csv (file,label) that replaces the given training labels"
    )
    features: str | None = Field(
        default=None,
        description="npz with your own features of the images (model features); default: "
        "features.npz in the image folder",
    )
    sites: int = Field(
        default=4, ge=1, le=10_000, description="number of sites among which the images are divided"
    )
    partition: Literal["stratified", "dirichlet", "missing", "group", "column"] = Field(
        default="stratified",
        description="how: equal class shares, skewed class shares, some classes missing at each "
        "site, entire groups (patients), or a site column of the source; where the source has one "
        "of the last two, it is the default",
    )
    alpha: float = Field(
        default=0.5, gt=0, description="partition dirichlet: concentration; small values are skewed"
    )
    missing: int | None = Field(
        default=None,
        ge=1,
        description="partition missing: number of classes that each site lacks; none: a third",
    )
    shift: str = Field(
        default="none",
        description="simulations: each site's own appearance: none, mild, strong, or changes such "
        "as contrast+jpeg; one part for all sites or one each (none-contrast)",
    )
    train: int | None = Field(
        default=None,
        ge=2,
        description="number of training images: rendered (synthetic) or drawn (other sources)",
    )
    test: int | None = Field(
        default=None, ge=1, description="number of test images: rendered or drawn, like data.train"
    )
    long_tail: float | None = Field(
        default=None,
        ge=1,
        description="draw training images so that the most frequent class has this many times the "
        "images of the rarest; for simulations",
    )
    difficulty: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="synthetic: how much neighbouring classes overlap; 0 (default) to 1",
    )
    val: float | None = Field(
        default=None,
        gt=0,
        lt=0.5,
        description="share of the training images (entire groups) that become validation images, "
        "the same for every seed; for a source without any",
    )
    test_share: float = Field(
        default=0.2,
        ge=0,
        lt=1,
        description="share of the images that is set aside for testing where the source has no "
        "split column; 0: none, for `fedgsca audit-folder`",
    )
    skip_unreadable: bool = Field(
        default=False, description="leave out images that cannot be decoded instead of stopping"
    )
    split: str | None = Field(
        default=None,
        description="kvasir: fedgp, frame, video; odir: published, patient",
    )
    label: str | None = Field(
        default=None,
        description="kvasir: clean, symm-0.2, ...; odir: patient, eye; "
        "chaoyang: drawn, pathologist, released, majority",
    )
    splits: str | None = Field(
        default=None, description="folder of the lists of kvasir and chaoyang, if it is not in ROOT"
    )

    @field_validator("source")
    @classmethod
    def _strip_slash(cls, value: str) -> str:
        return strip_slash(value)


class NoiseConfig(Section):
    """Wrong labels, for simulations."""

    spec: str = Field(
        default="0", description="one part for all sites (S40) or one each (0-S40-P20-C20)"
    )
    candidates: str = Field(
        default="auto",
        description="CK-asymmetric candidates: auto, features (auto by frozen features instead of "
        "images), or a TOML file",
    )
    matrix: str | None = Field(
        default=None,
        description="csv with a transition matrix (rows: true class), or chaoyang (built in); "
        "for sites with noise M",
    )
    annotators: str | None = Field(
        default=None,
        description="csv with a transition matrix per annotator, one below the other, or chaoyang "
        "(built in); for sites with noise A or V",
    )
    open_set: str | None = Field(
        default=None,
        description="data source with images of none of the classes, for sites with noise O; "
        "default: textures made from the site's own images",
    )
    given: str | None = Field(
        default=None,
        description="csv (file,label) of given labels; the labels of the source are then the truth",
    )
    oracle: bool = Field(
        default=False,
        description="simulations: leave the wrong labels out; the ceiling of any method, "
        "which no method can know",
    )


class ModelConfig(Section):
    """The network and its initial weights."""

    name: str = Field(
        default="cnn",
        description="network: cnn, resnet18, resnet50, densenet121, vit-b16, efficientnet-lite0, "
        "...; your own: package.module:function; features: none, your own features",
    )
    weights: str | None = Field(
        default=None,
        description="local file; 'packaged' = ImageNet weights inside the [weights] extra",
    )
    frozen: bool = Field(
        default=False,
        description="train and send only the head; features are computed once per site",
    )
    features: Literal["stages", "last"] = Field(
        default="stages",
        description="frozen mode: the averages of every stage of the backbone, or only those of "
        "its last layer",
    )
    feature_size: int = Field(
        default=96,
        ge=16,
        description="frozen mode: image size in pixels at the input of the backbone",
    )
    feature_width: int | None = Field(
        default=None,
        ge=1,
        description="model features: numbers per image; a deployment needs it, elsewhere the data "
        "says it",
    )


class TrainConfig(Section):
    """Local training, the same at every site."""

    rounds: int = Field(default=40, ge=1, description="number of communication rounds")
    epochs: int = Field(default=1, ge=1, description="local epochs per round")
    steps: int | None = Field(
        default=None, ge=1, description="steps of a local epoch at most; none: a whole pass"
    )
    batch_size: int = Field(default=32, ge=2, description="images per step of SGD")
    optimiser: Literal["sgd", "adamw"] = Field(
        default="sgd", description="local steps: sgd with momentum, or adamw; restarted every round"
    )
    clip: float | None = Field(
        default=None, gt=0, description="largest norm of the gradient of a step; none: not clipped"
    )
    lr: LearningRate = Field(
        default=AUTO_RATE,
        description="learning rate of the first round; auto: the rate of the model, the same for "
        "every method (fedgsca/models/training.py)",
    )
    momentum: float = Field(
        default=0.9, ge=0, lt=1, description="momentum of SGD, restarted every round"
    )
    weight_decay: float = Field(default=1e-6, ge=0, description="weight decay of SGD")
    schedule: str = Field(
        default="steps",
        pattern=r"^(steps|cosine|constant)(\+warmup[0-9]{1,4})?$",
        description="learning rate over the rounds: steps (lr_steps, lr_decay), cosine to zero or"
        " constant; +warmup5 rises for five rounds before, as in cosine+warmup5",
    )
    lr_steps: tuple[float, ...] = Field(
        default=(0.7, 0.9),
        description="fractions of the rounds after which lr is multiplied by lr_decay",
    )
    lr_decay: float = Field(
        default=0.1, gt=0, le=1, description="factor on the learning rate at each of lr_steps"
    )
    class_balance: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="how often samples of rare classes are shown: in proportion to (1 / share of "
        "the class)^class_balance, by the labels that a site trains on; 0: every sample once",
    )
    augment: Literal["none", "flips", "dihedral", "rotate", "strong"] = Field(
        default="dihedral",
        description="random changes of training images: none, mirror images, mirror images and "
        "quarter turns, also any rotation, or also another scale, brightness and contrast",
    )
    loss: Literal["ce", "smooth", "sce", "gce", "elr"] = Field(
        default="ce",
        description="loss of a given label, for methods that use cross-entropy: cross-entropy, "
        "with label smoothing, symmetric or generalised, or early-learning regularisation",
    )
    smoothing: float = Field(
        default=0.1, ge=0, lt=1, description="loss smooth: weight of the uniform distribution"
    )
    sce_alpha: float = Field(
        default=0.1, ge=0, description="loss sce: weight of the cross-entropy (CIFAR-10: 0.1)"
    )
    sce_beta: float = Field(
        default=1.0, ge=0, description="loss sce: weight of the reverse cross-entropy (CIFAR-10: 1)"
    )
    gce_q: float = Field(
        default=0.7, gt=0, le=1, description="loss gce: q; near 0 is cross-entropy, 1 is robust"
    )
    elr_memory: float = Field(
        default=0.7, ge=0, lt=1, description="loss elr: weight of the past in a sample's target"
    )
    elr_strength: float = Field(
        default=3.0, ge=0, description="loss elr: lambda, weight of the regularisation"
    )
    threads: int = Field(
        default=2,
        ge=1,
        description="torch threads per site; part of the experiment because it changes the bytes",
    )
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, mps")
    compile: bool = Field(
        default=False,
        description="compile the network with torch.compile: minutes at the start, then faster "
        "steps on many GPUs; part of the experiment because it changes the bytes",
    )

    def lr_at(self, round: int) -> float:
        """Learning rate of a zero-based round: steps are counted over communication rounds."""
        return self.rate * self.decay_at(round)

    def decay_at(self, round: int) -> float:
        """The factor of a zero-based round on the configured learning rate."""
        kind, _, warmup = self.schedule.partition("+warmup")
        num_warmup = int(warmup or 0)
        if round < num_warmup:
            return (round + 1) / (num_warmup + 1)
        if kind == "cosine":
            progress = (round - num_warmup) / max(1, self.rounds - num_warmup)
            return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
        if kind == "constant":
            return 1.0
        num_steps = sum(round >= int(step * self.rounds) for step in self.lr_steps)
        return float(self.lr_decay**num_steps)

    @property
    def rate(self) -> float:
        """`lr` as a number. A site trains with settings in which "auto" is resolved."""
        assert not isinstance(self.lr, str), "models.training.resolve_rate replaces auto"
        return self.lr


class FederationConfig(Section):
    """Rounds, deadlines and evaluation."""

    quorum: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="fraction of the sites asked whose updates a round needs",
    )
    participation: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="fraction of the sites that a round asks, drawn anew in every round; 1: all",
    )
    sites_per_round: int | None = Field(
        default=None, ge=1, description="the same as a number of sites; it replaces participation"
    )
    staleness: int = Field(
        default=0,
        ge=0,
        le=20,
        description="rounds by which an update may be late and still count, with a smaller weight; "
        "0: a late update is dropped",
    )
    simulated_lateness: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="simulations: probability that an update is a round late, and once more for "
        "each further round",
    )
    timeout_factor: float = Field(
        default=5.0,
        ge=0,
        description="deployment: wait for a site this many times as long as it usually needs, at "
        "least a minute and at most the deadline; 0: always until the deadline",
    )
    deadline: float | None = Field(
        default=None,
        gt=0,
        description="deployment: seconds after which a round continues without the sites that are "
        "late; default 3600",
    )
    patience: float | None = Field(
        default=None,
        ge=0,
        description="deployment: hours for which a round without a quorum is tried again; "
        "default 24",
    )
    sites: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="source 'sites': the names of all sites"
    )
    test: str | None = Field(
        default=None,
        description="source 'sites': the coordinator's own test images; "
        "none: each site tests on its own",
    )
    eval_every: int = Field(
        default=1,
        ge=1,
        description="evaluate the global model every n rounds (and in the last five)",
    )
    keep_losses: bool = Field(
        default=True, description="simulations: keep per-sample losses for the report's histograms"
    )

    @property
    def is_partial(self) -> bool:
        """Whether rounds may ask only some of the sites."""
        return self.participation < 1 or self.sites_per_round is not None

    def num_asked(self, num_sites: int) -> int:
        """How many of `num_sites` sites a round asks."""
        if self.sites_per_round is not None:
            return min(self.sites_per_round, num_sites)
        return max(1, int(self.participation * num_sites + 0.5))


class AuditConfig(Section):
    """Evidence about labels, for `fedgsca audit`."""

    enabled: bool = Field(
        default=False,
        description="train evidence heads beside a method that does not read them, so that "
        "`fedgsca audit` can judge the labels of its run; always on for fedgsca-e, off under "
        "privacy",
    )


class EvidenceConfig(Section):
    """Evidence about labels, by judges that have not seen them (see audit.enabled)."""

    backbone: str | None = Field(
        default=None,
        description="while a network is trained: the frozen network with packaged weights whose "
        "features the heads see, computed once; none: the features of the network in training. "
        "efficientnet-lite0 where it is installed",
    )

    first: int = Field(
        default=9,
        ge=1,
        description="round, from 0, in which evidence about the labels is first computed; the "
        "round after a quarter of a shorter run",
    )
    every: int = Field(
        default=5,
        ge=2,
        description="rounds between two renewals of it, until two thirds of the run",
    )
    holdout: float = Field(
        default=0.0,
        ge=0,
        le=0.5,
        description="share of each site's images that no model trains on; they score the model "
        "without a true label (0.2 serves `compare --vary`)",
    )

    def renewal_rounds(self, rounds: int) -> range:
        """Rounds in which the sites compute their evidence; empty for very short runs."""
        first = min(self.first, rounds // 4 + 1)
        if rounds < MIN_EVIDENCE_ROUNDS:
            return range(0)
        return range(first, max(first + 1, 2 * rounds // 3), self.every)


class PrivacyConfig(Section):
    """Differential privacy of what leaves a site."""

    clip: float = Field(
        gt=0, description="largest L2 norm of the change that a site sends in a round"
    )
    noise: float = Field(
        default=0.0,
        ge=0,
        description="std of the Gaussian noise, as a multiple of clip; 0: clipping only",
    )
    delta: float = Field(
        default=1e-5, gt=0, lt=1, description="the delta for which epsilon is reported"
    )


class AggregationConfig(Section):
    """How the coordinator combines the updates of the sites."""

    rule: str = Field(
        default="mean",
        description="how models are combined: mean (the method's own), or a robust rule that lying "
        "sites cannot move far",
    )
    server: Literal["mean", "momentum", "adam"] = Field(
        default="mean",
        description="the next model: what the method averages, or a step of the server towards it"
        " (momentum: FedAvgM, adam: FedAdam)",
    )
    server_rate: float = Field(
        default=0.01, gt=0, description="learning rate of the server's steps (momentum: about 1)"
    )
    liars: float = Field(
        default=0.25,
        ge=0,
        description="robust rules: how many may lie; below 1 a share of the agreed images, 1 or "
        "more a number of sites",
    )
    max_images: ImageCount | dict[str, ImageCount] | None = Field(
        default=None,
        description="the number of training images that was agreed on beforehand, and that a site "
        "may claim at most: one number for every site, or a table of sites",
    )

    @field_validator("max_images", mode="before")
    @classmethod
    def _check_images(cls, value: object) -> object:
        """One problem in words, instead of one for each of the two forms."""
        numbers = value.values() if isinstance(value, Mapping) else [value]
        for number in numbers:
            if number is not None and (type(number) is not int or number < 1):
                raise ValueError("write a number of images, 1 or more, or a table of sites")
        return value

    def agreed_images(self, site: str) -> int | None:
        """How many images a site may claim at most; None: nothing was agreed on."""
        if isinstance(self.max_images, dict):
            return self.max_images.get(site)
        return self.max_images


class Config(Section):
    """One experiment. Everything that changes the resulting bytes is in here.

    `track` changes none of them, so it is not part of the experiment: `to_tree` leaves it out.
    """

    seed: int = Field(default=0, ge=0, description="seed of every random stream")
    preset: str = Field(
        default="default",
        description="default (our reading), paper (literal) or paper-full (and its network)",
    )
    method: str = Field(default=DEFAULT_METHOD, description="see `fedgsca methods`")
    data: DataConfig = Field(
        default=DataConfig(),
        description="the images and how they are divided among sites",
    )
    noise: NoiseConfig = Field(
        default=NoiseConfig(),
        description="wrong labels, for simulations",
    )
    model: ModelConfig = Field(
        default=ModelConfig(),
        description="the network and its initial weights",
    )
    train: TrainConfig = Field(
        default=TrainConfig(),
        description="local training, the same at every site",
    )
    federation: FederationConfig = Field(
        default=FederationConfig(),
        description="rounds, deadlines and evaluation",
    )
    audit: AuditConfig = Field(
        default=AuditConfig(),
        description="evidence about labels, for `fedgsca audit`",
    )
    evidence: EvidenceConfig = Field(
        default=EvidenceConfig(),
        description="a slow second opinion about labels",
    )
    privacy: PrivacyConfig | None = Field(
        default=None, description="clipping and noise on what leaves a site"
    )
    aggregation: AggregationConfig = Field(
        default=AggregationConfig(),
        description="protection against sites that send wrong updates",
    )
    track: str | None = Field(
        default=None,
        description="record the run with tensorboard, mlflow, wandb (offline), or several with "
        "commas; mlflow:ADDRESS for a server; not part of the experiment",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="the method's own options, all filled in"
    )

    @classmethod
    def load(
        cls,
        file: Path | str | None = None,
        /,
        *,
        set: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Config:
        """A checked configuration from a TOML file and settings; settings win.

            Config.load(data="pathmnist.npz", method="fedgsca", noise="0-S40-P20-C20", rounds=60)
            Config.load("config.toml", seed=1, set={"train.momentum": 0.5})

        Settings are the short names of SHORT_NAMES, keys with double underscores
        (train__batch_size=64), or entire sections (train={"batch_size": 64}); None means not given.
        `set` has dotted keys, as --set on the command line. All problems are reported at once.
        """
        from fedgsca.config.loading import build, collect

        return build(collect(file, settings={**settings, **(set or {})}))

    def to_tree(self) -> Tree:
        """As written to config.toml, with the method's options under the method's name.

        None is left out, or spelled "none" where the default is something else.
        """
        from fedgsca.config.presets import recommend

        tree: Tree = json.loads(
            self.model_dump_json(exclude_none=True, exclude={"options", "track"})
        )
        for section, defaults in recommend(tree).items():
            for key, default in defaults.items():
                if default is not None and getattr(getattr(self, section), key) is None:
                    tree[section][key] = "none"
        if self.options:
            tree[self.method] = _spell_none(self.options)
        return tree

    def fingerprint(self) -> str:
        """The identity of the experiment: equal ones give equal bytes on the same machine."""
        return hashlib.sha256(json.dumps(self.to_tree(), sort_keys=True).encode()).hexdigest()


def _spell_none(tree: Mapping[str, Any]) -> Tree:
    """A tree for TOML, which has no null: an option that was switched off is "none"."""
    rows: Tree = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            rows[key] = _spell_none(value)
        else:
            rows[key] = "none" if value is None else value
    return rows
