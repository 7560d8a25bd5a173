"""The paper's experiments: comparisons with the numbers that it prints beside ours.

An experiment is data: rows (a method, or a variant of FedGSCA) x noises x seeds on one data set.
Its printed numbers are in paper_numbers.json, under the same names of rows, noises and scores. It
runs at one of two scales:

paper   the paper's data, ResNet-50 with LVM-Med weights, 224 px, 100 rounds, 5 seeds
mini    the same rows and noises on any data: a linear head on frozen features, fewer rounds,
        3 seeds
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from fedgsca.config import PRESETS, Tree, flatten, merge
from fedgsca.errors import ConfigError
from fedgsca.lab.plan import PAPER_METHOD, ComparisonPlan, default_methods
from fedgsca.lab.records import PrintedNumbers
from fedgsca.methods.base import load_methods, paper_methods

# noise of a data set whose labels are as people gave them
REAL = "real"


@dataclass(frozen=True)
class PaperDataset:
    """A data set of the paper."""

    title: str
    sites: int
    # settings that suit its kind of noise
    tree: Tree = field(default_factory=dict)


# real noise: FedCorr's and FedFixer's authors use these values for it
_CHAOYANG: Tree = {
    "fedcorr": {"relabel_ratio": 0.8, "confidence": 0.9},
    "fedfixer": {"confidence": 1.0},
}
DATASETS = {
    "kvasir": PaperDataset("Kvasir-Capsule", 4),
    "odir": PaperDataset("OIA-ODIR", 4),
    "chaoyang": PaperDataset("Chaoyang", 3, _CHAOYANG),
}


@dataclass(frozen=True)
class PaperExperiment:
    """One table or figure of the paper."""

    name: str
    title: str
    dataset: str
    noises: tuple[str, ...]
    # row -> (label, options of FedGSCA); empty: methods
    variants: Mapping[str, tuple[str, Tree]] = field(default_factory=dict)
    # methods in addition to variants; with neither, those of the paper and the default method
    methods: tuple[str, ...] = ()
    # the row that the others are compared with; empty: FedAvg
    reference: str = ""
    is_timed: bool = False
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows in the order of the table."""
        if self.variants or self.methods:
            return (*self.methods, *self.variants)
        return tuple(dict.fromkeys((*paper_methods(), *default_methods())))


_RATES = ("0-S10-S10-S20", "0-S20-S20-S40", "0-P10-P10-P20", "0-P20-P20-P40")
_TYPES = ("0-S10-P10-C10", "S10-S20-P10-P20", "0-S40-P20-C20")
_MIXED_NOISE = ("0-S10-P10-C10",)

_NO_RCL: Tree = {"loss": "ce"}
_NO_ATP: Tree = {**_NO_RCL, "thresholds": "fixed", "zeta": 0.7}
_NO_GSS: Tree = {**_NO_ATP, "scope": "own"}
_PARTS: Mapping[str, tuple[str, Tree]] = {
    "full": ("FedGSCA", {}),
    "no-rcl": ("without RCL", _NO_RCL),
    "no-rcl-atp": ("without RCL, ATP (fixed 0.7)", _NO_ATP),
    "no-rcl-atp-gss": ("without RCL, ATP, GSS (CSS only)", _NO_GSS),
}
_SETTINGS: Mapping[str, tuple[str, Tree]] = {
    "zeta-0.7": ("ζ₀ = 0.7", {"zeta": 0.7}),
    "zeta-0.8": ("ζ₀ = 0.8", {}),
    "zeta-0.9": ("ζ₀ = 0.9", {"zeta": 0.9}),
    "beta-constant": ("β constant 0.75", {"beta_schedule": "constant"}),
    "beta-linear": ("β linear 0.75 → 0.55", {"beta_schedule": "linear"}),
    "beta-0.65": ("β cosine 0.75 → 0.65", {"beta_end": 0.65}),
    "beta-0.55": ("β cosine 0.75 → 0.55", {}),
    "beta-0.45": ("β cosine 0.75 → 0.45", {"beta_end": 0.45}),
    "beta-0.35": ("β cosine 0.75 → 0.35", {"beta_end": 0.35}),
}

_EXPERIMENTS = (
    PaperExperiment("kvasir-symmetric", "extreme symmetric noise", "kvasir", ("S40", "S50")),
    PaperExperiment(
        "kvasir-pairflip-ck",
        "pairflip and CK-asymmetric noise",
        "kvasir",
        ("P10", "P20", "C10", "C20"),
    ),
    PaperExperiment("kvasir-rates", "sites with different noise rates", "kvasir", _RATES),
    PaperExperiment("kvasir-types", "sites with different noise types", "kvasir", _TYPES),
    PaperExperiment("odir-rates", "sites with different noise rates", "odir", _RATES),
    PaperExperiment("odir-types", "sites with different noise types", "odir", _TYPES),
    PaperExperiment("chaoyang", "labels as the pathologists gave them", "chaoyang", (REAL,)),
    PaperExperiment("ablation", "FedGSCA without its parts", "kvasir", _MIXED_NOISE, _PARTS),
    PaperExperiment("ablation-chaoyang", "FedGSCA without its parts", "chaoyang", (REAL,), _PARTS),
    PaperExperiment(
        "noise-levels",
        "RCL against UCL",
        "kvasir",
        ("S10", "S20", "S40", "S50"),
        {"full": ("RCL", {}), "ucl": ("UCL", {"loss": "ucl"})},
        notes=("The noise levels are ours: the paper's text does not name those of its figure.",),
    ),
    PaperExperiment(
        "sensitivity",
        "hyper-parameters of FedGSCA",
        "odir",
        _MIXED_NOISE,
        _SETTINGS,
        reference="zeta-0.8",
        notes=("ζ₀ = 0.8 and β cosine 0.75 → 0.55 are the same settings, FedGSCA's default.",),
    ),
    PaperExperiment(
        "stability",
        "distance of the sites' models from the one they received",
        "kvasir",
        _MIXED_NOISE,
        {"css": ("FedGSCA (CSS)", {"scope": "own"})},
        methods=("fedavg", "fedgp", "fedgsca"),
        notes=(
            "Stability: mean squared distance of the sites' trained models from the model they "
            "received, over trainable weights and all rounds; small is stable. FedGP trains "
            "another head, so its distance counts other weights.",
            "CSS: every site selects by its own selector, all else as in FedGSCA.",
        ),
    ),
    PaperExperiment(
        "efficiency",
        "time to FedAvg's best F1",
        "kvasir",
        ("0-S40-P20-C20",),
        methods=("fedavg", "fedgsca"),
        is_timed=True,
    ),
)
EXPERIMENTS = {experiment.name: experiment for experiment in _EXPERIMENTS}


# ---- from an experiment to a comparison ----

Scale = Literal["paper", "mini"]
PAPER_ROUNDS = 100
MINI_ROUNDS = 50
SEEDS_OF: Mapping[str, int] = MappingProxyType({"paper": 5, "mini": 3})
# the protocol of the preset, with our default of class balance
PAPER: Tree = {key: dict(PRESETS["paper-full"][key]) for key in ("data", "model", "train")}
del PAPER["train"]["class_balance"]
# replaces the pathologists' matrix if there are not four classes: the same mean rate, between
# look-alikes
SUBSTITUTE_NOISE = "C11"
# settings that an experiment decides
_FIXED_KEYS = ("method", "seed", "data.source", "data.sites", "noise.spec", "noise.matrix")


@cache
def read_numbers() -> dict[str, Any]:
    """numbers.json: the publication, and its experiments."""
    text = Path(__file__).with_name("paper_numbers.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def printed_numbers(name: str) -> PrintedNumbers | None:
    """The paper's numbers of one experiment; None where it prints a figure without numbers."""
    experiment = read_numbers()["experiments"].get(name)
    if experiment is None:
        return None
    source = f"{experiment['where']}: {experiment['caption']}"
    return PrintedNumbers.from_json({"source": source, "rows": experiment["rows"]})


def make_plan(
    experiment: PaperExperiment,
    scale: Scale,
    source: str | None,
    *,
    rows: tuple[str, ...] = (),
    noises: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (),
    tree: Tree | None = None,
    ceiling: bool = True,
) -> ComparisonPlan:
    """The comparison of an experiment, or of some of its rows, noises and seeds."""
    tree = tree or {}
    check_settings(tree)
    dataset = DATASETS[experiment.dataset]
    source = choose_source(experiment.dataset, source, scale)
    if scale == "paper" and "weights" not in tree.get("model", {}):
        raise ConfigError(
            "table.weights-required",
            "the paper's network starts from LVM-Med ResNet-50 weights, and no file is given",
            fix="add --set model.weights=lvmmed_resnet.torch, or --set model.weights=none to start"
            " from random weights",
        )
    is_own = source.startswith(f"{experiment.dataset}:")
    numbers = printed_numbers(experiment.name)
    chosen_noises = _choose("--noise", noises, experiment.noises)
    noise_tree: Tree = {}
    if REAL in chosen_noises:
        noise, noise_tree = real_noise(is_own, source, tree)
        chosen_noises = (noise,)
        if numbers is not None:  # under the name of the noise that is run
            columns = {row: {noise: noises[REAL]} for row, noises in numbers.rows.items()}
            numbers = PrintedNumbers(numbers.source, columns)
    run_tree = merge(merge(base_tree(scale, tree), dataset.tree), tree)
    run_tree = merge(run_tree, {"data": {"source": source, "sites": dataset.sites}, **noise_tree})
    available = (*experiment.rows, *(() if experiment.variants else load_methods()))
    return ComparisonPlan(
        methods=_choose("--methods", rows or experiment.rows, available),
        noises=chosen_noises,
        seeds=seeds or tuple(range(SEEDS_OF[scale])),
        tree=run_tree,
        ceiling=ceiling,
        title=f"{dataset.title}, {experiment.title}",
        method_settings={
            row: {"method": PAPER_METHOD, PAPER_METHOD: options}
            for row, (_, options) in experiment.variants.items()
        },
        labels={row: label for row, (label, _) in experiment.variants.items()},
        reference=experiment.reference,
        is_timed=experiment.is_timed,
        publication=numbers,
        notes=make_notes(experiment, scale, source, run_tree),
    )


def _choose(flag: str, names: tuple[str, ...], available: tuple[str, ...]) -> tuple[str, ...]:
    """The names, in any case; all that are available if there are none."""
    names_by_key = {name.lower(): name for name in available}
    invalid = [name for name in names if name.lower() not in names_by_key]
    if invalid:
        raise ConfigError(
            "table.unknown-part",
            f"{flag}: this experiment does not have {', '.join(map(repr, invalid))}",
            fix=f"use one or more of: {', '.join(names_by_key.values())}",
        )
    return tuple(names_by_key[name.lower()] for name in names) or tuple(names_by_key.values())


def check_settings(tree: Mapping[str, Any]) -> None:
    """Refuse settings that the experiment decides: they would change it under its name."""
    for key in flatten(dict(tree)):
        if key in _FIXED_KEYS:
            raise ConfigError(
                "table.fixed-setting",
                f"the experiment varies or fixes {key}, so it cannot be set",
                fix=f"leave {key} out, or use `fedgsca compare`",
            )


def choose_source(dataset: str, source: str | None, scale: Scale) -> str:
    """The source of the images; at mini scale any source will do."""
    if scale == "paper" and not (source or "").startswith(f"{dataset}:"):
        raise ConfigError(
            "table.missing-dataset",
            f"this experiment needs the {DATASETS[dataset].title} images",
            fix=f"add --data {dataset}:ROOT, or run the small version on any data with "
            "--scale mini --data FILE.npz",
        )
    if source is None:
        raise ConfigError(
            "table.missing-data",
            "an experiment at mini scale needs data",
            fix="add --data FILE.npz, --data FOLDER or --data synthetic",
        )
    return source


def base_tree(scale: Scale, user_tree: Tree) -> Tree:
    """Settings of all runs, which the user's settings override."""
    if scale == "paper":
        return PAPER
    rounds = int(user_tree.get("train", {}).get("rounds", MINI_ROUNDS))
    user_model = user_tree.get("model", {})
    tree: Tree = {"train": {"rounds": rounds, "threads": 1}}
    if user_model.get("frozen", "name" not in user_model):
        tree |= {"model": {"frozen": True}, "noise": {"candidates": "features"}}
    return merge(tree, warmups(rounds, str(user_tree.get("preset", "default"))))


def warmups(rounds: int, preset: str = "default") -> Tree:
    """Settings of methods whose warm-up counts rounds: the same share of fewer rounds than 100.

    A warm-up that the preset decides is left to the preset.
    """
    tree: Tree = {}
    for name, method in load_methods().items():
        info = method.Options.model_fields.get("warmup")
        is_open = "warmup" not in PRESETS.get(preset, {}).get(name, {})
        if info is not None and type(info.default) is int and is_open:
            tree[name] = {"warmup": ceil(info.default * min(rounds / PAPER_ROUNDS, 1))}
    return tree


def real_noise(is_own: bool, source: str, tree: Tree) -> tuple[str, Tree]:
    """Noise and settings for labels as people gave them; a substitute on other data."""
    if is_own:
        return "0", {}
    from fedgsca.data.load import load

    keys = ("image_size", "skip_unreadable", "split", "label", "splits")
    options = {key: value for key, value in tree.get("data", {}).items() if key in keys}
    if load(source, **options).num_classes == 4:
        return "M", {"noise": {"matrix": "chaoyang"}}
    return SUBSTITUTE_NOISE, {}


def make_notes(
    experiment: PaperExperiment, scale: Scale, source: str, tree: Tree
) -> tuple[str, ...]:
    """What a reader of the table must know: source of the printed numbers, scale, substitutes."""
    notes = []
    numbers = printed_numbers(experiment.name)
    if numbers is not None:
        notes.append(f"Printed: {numbers.source} (Ye et al., arXiv:2507.10611, five seeds).")
    if scale == "mini":
        rounds = tree["train"]["rounds"]
        notes.append(
            f"Mini scale: {source} instead of {DATASETS[experiment.dataset].title}, {rounds} "
            "rounds. Numbers are not comparable with printed ones; the order of methods may be. "
            "Warm-ups that count rounds are shortened in proportion."
        )
    if scale == "paper" and tree["model"]["weights"] in (None, "none"):
        notes.append("The network started from random weights, the paper's from LVM-Med.")
    if REAL in experiment.noises and not source.startswith(f"{experiment.dataset}:"):
        notes.append("Real wrong labels are replaced by injected ones of the same mean rate.")
    return (*notes, *experiment.notes)
