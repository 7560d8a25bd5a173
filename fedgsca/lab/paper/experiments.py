"""The paper's experiments as data: rows (a method, or a variant of FedGSCA) x noises x seeds.

Each is a comparison on one data set (fedgsca/lab/plan.py) with the paper's numbers beside it. They
are in numbers.json, under the same names of rows, noises and scores. plans.py makes the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# as in fedgsca.config, whose import would slow down the start of the command line
Tree = dict[str, Any]
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
        from fedgsca.lab.plan import default_methods
        from fedgsca.methods.base import paper_methods

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
