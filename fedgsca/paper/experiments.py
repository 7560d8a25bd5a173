"""The paper's experiments as data: rows (a method, or a variant of FedGSCA) x columns (a data set with its noise) x seeds.

Which data, network and number of rounds stand behind a column is the scale's business (scale.py); the paper's numbers are in
numbers.json under the same names of rows, columns and metrics.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Tree = dict[str, Any]  # as in config.py, whose import would cost the command line its quick start
SEEDS = 5
REAL = "real"  # noise of a data set whose labels are as people gave them
SCORES = ("f1", "recall", "precision")


@dataclass(frozen=True)
class Dataset:
    """A data set of the paper. `tree`: settings that go with its kind of noise."""

    title: str
    sites: int
    train: int  # images at all sites together, for estimates of the cost
    tree: Tree = field(default_factory=dict)


DATASETS = {
    "kvasir": Dataset("Kvasir-Capsule", 4, 10_133),
    "odir": Dataset("OIA-ODIR", 4, 7_000),
    # real noise: FedCorr's and FedFixer's authors use these values for it
    "chaoyang": Dataset(
        "Chaoyang",
        3,
        4_021,
        {"fedcorr": {"relabel_ratio": 0.8, "confidence": 0.9}, "fedfixer": {"confidence": 1.0}},
    ),
}


@dataclass(frozen=True)
class Column:
    key: str
    dataset: str
    noise: str


@dataclass(frozen=True)
class Variant:
    """What is run for a row. Rows may share a variant: the paper prints its default setting in several places."""

    key: str
    method: str
    tree: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    """A row of the table. `columns`: those it is run in; None means all."""

    key: str
    label: str
    variant: Variant
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Grid:
    """One experiment of the paper."""

    name: str
    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    reference: str  # the row that the others are tested against
    metrics: tuple[str, ...] = SCORES
    notes: tuple[str, ...] = ()

    def runs(self, line: Line, column: Column) -> bool:
        return line.columns is None or column.key in line.columns

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(column.dataset for column in self.columns))

    @property
    def dataset_titles(self) -> tuple[str, ...]:
        return tuple(DATASETS[name].title for name in self.datasets)

    def variants(self, column: Column) -> tuple[Variant, ...]:
        """What is run in a column, each once."""
        return tuple(
            {
                line.variant.key: line.variant for line in self.lines if self.runs(line, column)
            }.values()
        )

    @property
    def size(self) -> int:
        """Cells per seed."""
        return sum(len(self.variants(column)) for column in self.columns)


METHODS = {
    "fedavg": "FedAvg", "fedprox": "FedProx", "fedrobust": "FedRobust", "fedcorr": "FedCorr",
    "fedgp": "FedGP", "fedfixer": "FedFixer", "fednoro": "FedNoRo", "fedgsca": "FedGSCA",
}  # fmt: skip
OURS = Variant("fedgsca", "fedgsca")


def _method(name: str) -> Line:
    return Line(name, METHODS[name], Variant(name, name))


def _ours(key: str, label: str, tree: Tree, columns: tuple[str, ...] | None = None) -> Line:
    """A variant of FedGSCA; its folder says whose variant it is."""
    return Line(
        key,
        label,
        Variant(f"fedgsca-{key}", "fedgsca", {"fedgsca": tree}) if tree else OURS,
        columns,
    )


def _comparison(name: str, title: str, dataset: str, *noises: str) -> Grid:
    columns = tuple(Column(noise, dataset, noise) for noise in noises)
    return Grid(
        name,
        f"{DATASETS[dataset].title}, {title}",
        columns,
        tuple(_method(key) for key in METHODS),
        "fedgsca",
    )


_RATES = ("0-S10-S10-S20", "0-S20-S20-S40", "0-P10-P10-P20", "0-P20-P20-P40")
_TYPES = ("0-S10-P10-C10", "S10-S20-P10-P20", "0-S40-P20-C20")
_LEVELS = (
    "S10",
    "S20",
    "S40",
    "S50",
)  # of Figure 4; its axis is not in the paper's text, so these are the rates of its tables

_NO_RCL: Tree = {"loss": "ce"}
_NO_ATP: Tree = {**_NO_RCL, "thresholds": "fixed", "zeta": 0.7}
_NO_GSS: Tree = {**_NO_ATP, "selector": {"scope": "own"}}
_PARTS = ("kvasir 0-S10-P10-C10", "chaoyang real")

_ABLATION = Grid(
    "ablation",
    "FedGSCA without its parts",
    (
        Column(_PARTS[0], "kvasir", "0-S10-P10-C10"),
        Column(_PARTS[1], "chaoyang", REAL),
        *(Column(f"kvasir {level}", "kvasir", level) for level in _LEVELS),
    ),
    (
        _ours("full", "FedGSCA", {}),
        _ours("no-rcl", "without RCL", _NO_RCL, _PARTS),
        _ours("no-rcl-atp", "without RCL, ATP (fixed 0.7)", _NO_ATP, _PARTS),
        _ours("no-rcl-atp-gss", "without RCL, ATP, GSS (CSS only)", _NO_GSS, _PARTS),
        _ours(
            "ucl",
            "UCL instead of RCL",
            {"loss": "ucl"},
            tuple(f"kvasir {level}" for level in _LEVELS),
        ),
    ),
    "full",
    notes=(
        "The noise levels of RCL against UCL are ours: the paper's text does not name those of its Figure 4.",
    ),
)
_SENSITIVITY = Grid(
    "sensitivity",
    "OIA-ODIR, hyper-parameters of FedGSCA",
    (Column("0-S10-P10-C10", "odir", "0-S10-P10-C10"),),
    (
        _ours("zeta-0.7", "ζ₀ = 0.7", {"zeta": 0.7}),
        _ours("zeta-0.8", "ζ₀ = 0.8", {}),
        _ours("zeta-0.9", "ζ₀ = 0.9", {"zeta": 0.9}),
        _ours("beta-constant", "β constant 0.75", {"beta_schedule": "constant"}),
        _ours("beta-linear", "β linear 0.75 → 0.55", {"beta_schedule": "linear"}),
        _ours("beta-0.65", "β cosine 0.75 → 0.65", {"beta_end": 0.65}),
        _ours("beta-0.55", "β cosine 0.75 → 0.55", {}),
        _ours("beta-0.45", "β cosine 0.75 → 0.45", {"beta_end": 0.45}),
        _ours("beta-0.35", "β cosine 0.75 → 0.35", {"beta_end": 0.35}),
    ),
    "zeta-0.8",
    notes=("ζ₀ = 0.8 and β cosine 0.75 → 0.55 are the same run, FedGSCA's default.",),
)
_STABILITY = Grid(
    "stability",
    "Kvasir-Capsule, distance of the sites' models from the one they received",
    (Column("0-S10-P10-C10", "kvasir", "0-S10-P10-C10"),),
    (
        _method("fedavg"),
        _method("fedgp"),
        _ours("css", "FedGSCA (CSS)", {"selector": {"scope": "own"}}),
        _method("fedgsca"),
    ),
    "fedgsca",
    ("stability", "stability_late", "f1"),
    (
        "stability: mean squared distance of the sites' trained models from the model they received, over trainable weights; "
        "the mean over all rounds, and (late) over the last fifth. Small is stable.",
        "FedGP trains another head (64 projected features), so its distance counts other weights than that of the others.",
        "CSS: every site selects by its own selector, all else as in FedGSCA.",
    ),
)
_EFFICIENCY = Grid(
    "efficiency",
    "Kvasir-Capsule, time to FedAvg's best F1",
    (Column("0-S40-P20-C20", "kvasir", "0-S40-P20-C20"),),
    (_method("fedavg"), _method("fedgsca")),
    "fedavg",
    ("seconds_per_round", "peak_f1", "minutes_to_peak", "f1"),
    (
        "minutes_to_peak: until a method first reaches the best F1 of FedAvg's run with the same seed. Seconds of a round are those of the "
        "exchange with the sites (training and selection), the median over the run: run both methods on the same idle machine.",
    ),
)

GRIDS = {
    grid.name: grid
    for grid in (
        _comparison("kvasir-symmetric", "extreme symmetric noise", "kvasir", "S40", "S50"),
        _comparison(
            "kvasir-pairflip-ck",
            "pairflip and CK-asymmetric noise",
            "kvasir",
            "P10",
            "P20",
            "C10",
            "C20",
        ),
        _comparison("kvasir-rates", "sites with different noise rates", "kvasir", *_RATES),
        _comparison("kvasir-types", "sites with different noise types", "kvasir", *_TYPES),
        _comparison("odir-rates", "sites with different noise rates", "odir", *_RATES),
        _comparison("odir-types", "sites with different noise types", "odir", *_TYPES),
        _comparison("chaoyang", "labels as the pathologists gave them", "chaoyang", REAL),
        _ABLATION,
        _SENSITIVITY,
        _STABILITY,
        _EFFICIENCY,
    )
}
TABLES = tuple(name for name in GRIDS if name.startswith(("kvasir", "odir", "chaoyang")))
