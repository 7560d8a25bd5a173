"""The paper's experiments as data: rows (a method, or a variant of FedGSCA) x columns x seeds.

A column is a data set with its noise. The scale (scales.py) decides which data, network and number
of rounds a column is run with. The paper's numbers are in numbers.json, under the same names of
rows, columns and metrics.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# as in fedgsca.config, whose import would slow down the start of the command line
Tree = dict[str, Any]
SEEDS = 5
# noise of a data set whose labels are as people gave them
REAL = "real"
SCORES = ("f1", "recall", "precision")


@dataclass(frozen=True)
class PaperDataset:
    """A data set of the paper."""

    title: str
    sites: int
    # training images at all sites together, for estimates of the cost
    num_train: int
    # settings that suit its kind of noise
    tree: Tree = field(default_factory=dict)


# real noise: FedCorr's and FedFixer's authors use these values for it
_CHAOYANG: Tree = {
    "fedcorr": {"relabel_ratio": 0.8, "confidence": 0.9},
    "fedfixer": {"confidence": 1.0},
}
DATASETS = {
    "kvasir": PaperDataset("Kvasir-Capsule", 4, 10_133),
    "odir": PaperDataset("OIA-ODIR", 4, 7_000),
    "chaoyang": PaperDataset("Chaoyang", 3, 4_021, _CHAOYANG),
}


@dataclass(frozen=True)
class GridColumn:
    """A data set of the paper under one noise."""

    key: str
    dataset: str
    noise: str


@dataclass(frozen=True)
class Variant:
    """What is run for a row.

    Rows may share a variant: the paper prints its default setting in several places.
    """

    key: str
    method: str
    tree: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class GridRow:
    """A row of the table."""

    key: str
    variant: Variant
    # empty: the method's title
    variant_label: str = ""
    # the columns it is run in; None means all
    columns: tuple[str, ...] | None = None

    @property
    def label(self) -> str:
        """The name of the row in tables and figures."""
        from fedgsca.methods.base import load_methods

        return self.variant_label or load_methods()[self.variant.method].card.title


@dataclass(frozen=True)
class Grid:
    """One experiment of the paper."""

    name: str
    title: str
    columns: tuple[GridColumn, ...]
    # the rows that the paper prescribes; empty: the methods of the paper, and those of plugins
    prescribed_rows: tuple[GridRow, ...]
    # the row that the others are tested against
    reference: str
    metrics: tuple[str, ...] = SCORES
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[GridRow, ...]:
        """The rows in the order of the table, without methods of this package that came later."""
        if self.prescribed_rows:
            return self.prescribed_rows
        from fedgsca.methods.base import Card, load_methods

        names = []
        for name, method in load_methods().items():
            if method.card.in_paper or method.card.order >= Card.order:
                names.append(name)
        return tuple(map(method_row, names))

    @property
    def all_rows(self) -> tuple[GridRow, ...]:
        """The rows, and every other method that `--methods` can add to a comparison."""
        if self.prescribed_rows:
            return self.prescribed_rows
        from fedgsca.methods.base import load_methods

        return tuple(map(method_row, load_methods()))

    def includes(self, row: GridRow, column: GridColumn) -> bool:
        """Whether the row is run in the column."""
        return row.columns is None or column.key in row.columns

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets of the columns, each once."""
        return tuple(dict.fromkeys(column.dataset for column in self.columns))

    @property
    def dataset_titles(self) -> tuple[str, ...]:
        """The data sets as the paper calls them."""
        return tuple(DATASETS[name].title for name in self.datasets)

    def variants(self, column: GridColumn) -> tuple[Variant, ...]:
        """What is run in a column, each variant once."""
        variants = {}
        for row in self.rows:
            if self.includes(row, column):
                variants[row.variant.key] = row.variant
        return tuple(variants.values())

    @property
    def size(self) -> int:
        """Runs per seed."""
        return sum(len(self.variants(column)) for column in self.columns)


DEFAULT_VARIANT = Variant("fedgsca", "fedgsca")


def method_row(name: str) -> GridRow:
    """The row of a method with its default options."""
    return GridRow(name, Variant(name, name))


def _fedgsca_row(
    key: str, label: str, tree: Tree, columns: tuple[str, ...] | None = None
) -> GridRow:
    """A variant of FedGSCA; the name of its folder says so."""
    variant = Variant(f"fedgsca-{key}", "fedgsca", {"fedgsca": tree}) if tree else DEFAULT_VARIANT
    return GridRow(key, variant, label, columns)


def _comparison(name: str, title: str, dataset: str, *noises: str) -> Grid:
    columns = tuple(GridColumn(noise, dataset, noise) for noise in noises)
    return Grid(name, f"{DATASETS[dataset].title}, {title}", columns, (), "fedgsca")


_RATES = ("0-S10-S10-S20", "0-S20-S20-S40", "0-P10-P10-P20", "0-P20-P20-P40")
_TYPES = ("0-S10-P10-C10", "S10-S20-P10-P20", "0-S40-P20-C20")
# of Figure 4; its axis is not in the paper's text, so these are the rates of its tables
_LEVELS = ("S10", "S20", "S40", "S50")
_LEVEL_COLUMNS = tuple(GridColumn(f"kvasir {level}", "kvasir", level) for level in _LEVELS)

_NO_RCL: Tree = {"loss": "ce"}
_NO_ATP: Tree = {**_NO_RCL, "thresholds": "fixed", "zeta": 0.7}
_NO_GSS: Tree = {**_NO_ATP, "scope": "own"}
_PARTS = ("kvasir 0-S10-P10-C10", "chaoyang real")

_ABLATION = Grid(
    "ablation",
    "FedGSCA without its parts",
    (
        GridColumn(_PARTS[0], "kvasir", "0-S10-P10-C10"),
        GridColumn(_PARTS[1], "chaoyang", REAL),
        *_LEVEL_COLUMNS,
    ),
    (
        _fedgsca_row("full", "FedGSCA", {}),
        _fedgsca_row("no-rcl", "without RCL", _NO_RCL, _PARTS),
        _fedgsca_row("no-rcl-atp", "without RCL, ATP (fixed 0.7)", _NO_ATP, _PARTS),
        _fedgsca_row("no-rcl-atp-gss", "without RCL, ATP, GSS (CSS only)", _NO_GSS, _PARTS),
        _fedgsca_row(
            "ucl",
            "UCL instead of RCL",
            {"loss": "ucl"},
            tuple(column.key for column in _LEVEL_COLUMNS),
        ),
    ),
    "full",
    notes=(
        "The noise levels of RCL against UCL are ours: the paper's text does not name those of its "
        "Figure 4.",
    ),
)
_SENSITIVITY = Grid(
    "sensitivity",
    "OIA-ODIR, hyper-parameters of FedGSCA",
    (GridColumn("0-S10-P10-C10", "odir", "0-S10-P10-C10"),),
    (
        _fedgsca_row("zeta-0.7", "ζ₀ = 0.7", {"zeta": 0.7}),
        _fedgsca_row("zeta-0.8", "ζ₀ = 0.8", {}),
        _fedgsca_row("zeta-0.9", "ζ₀ = 0.9", {"zeta": 0.9}),
        _fedgsca_row("beta-constant", "β constant 0.75", {"beta_schedule": "constant"}),
        _fedgsca_row("beta-linear", "β linear 0.75 → 0.55", {"beta_schedule": "linear"}),
        _fedgsca_row("beta-0.65", "β cosine 0.75 → 0.65", {"beta_end": 0.65}),
        _fedgsca_row("beta-0.55", "β cosine 0.75 → 0.55", {}),
        _fedgsca_row("beta-0.45", "β cosine 0.75 → 0.45", {"beta_end": 0.45}),
        _fedgsca_row("beta-0.35", "β cosine 0.75 → 0.35", {"beta_end": 0.35}),
    ),
    "zeta-0.8",
    notes=("ζ₀ = 0.8 and β cosine 0.75 → 0.55 are the same run, FedGSCA's default.",),
)
_STABILITY = Grid(
    "stability",
    "Kvasir-Capsule, distance of the sites' models from the one they received",
    (GridColumn("0-S10-P10-C10", "kvasir", "0-S10-P10-C10"),),
    (
        method_row("fedavg"),
        method_row("fedgp"),
        _fedgsca_row("css", "FedGSCA (CSS)", {"scope": "own"}),
        method_row("fedgsca"),
    ),
    "fedgsca",
    ("stability", "stability_late", "f1"),
    (
        "stability: mean squared distance of the sites' trained models from the model they "
        "received, over trainable weights; the mean over all rounds, and (late) over the last "
        "fifth. Small is stable.",
        "FedGP trains another head (64 projected features), so its distance counts other weights "
        "than that of the others.",
        "CSS: every site selects by its own selector, all else as in FedGSCA.",
    ),
)
_EFFICIENCY = Grid(
    "efficiency",
    "Kvasir-Capsule, time to FedAvg's best F1",
    (GridColumn("0-S40-P20-C20", "kvasir", "0-S40-P20-C20"),),
    (method_row("fedavg"), method_row("fedgsca")),
    "fedavg",
    ("seconds_per_round", "peak_f1", "minutes_to_peak", "f1"),
    (
        "minutes_to_peak: until a method first reaches the best F1 of FedAvg's run with the same "
        "seed. Seconds of a round are those of the exchange with the sites (training and "
        "selection), the median over the run: run both methods on the same idle machine.",
    ),
)

_COMPARISONS = (
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
)
_STUDIES = (_ABLATION, _SENSITIVITY, _STABILITY, _EFFICIENCY)
GRIDS = {grid.name: grid for grid in (*_COMPARISONS, *_STUDIES)}
# those that compare methods: `fedgsca table NAME`; the others are commands of their own
TABLES = tuple(grid.name for grid in _COMPARISONS)
