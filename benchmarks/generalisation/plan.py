"""Which runs the suite has, and in which order.

A setting is a data set with a network, a noise and a partition. A cell is one run: a setting with a
method, a learning rate and a seed. The most informative cells come first, so that a suite that is
not finished has a table already: the first seed before the others, FedAvg, FedGSCA and the ceiling
before the other learning rates and the other methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal

from benchmarks.generalisation.sources import source_name
from fedgsca.config import Config, Tree, build, merge
from fedgsca.methods.base import load_methods
from fedgsca.support.text import slug

MIXED = "0-S40-P20-C20"
NO_NOISE = "0"
NOISES = (MIXED, "S40", "P20", "C20", NO_NOISE)
PARTITIONS = ("stratified", "dirichlet", "group")
FROZEN = "frozen"
CNN = "cnn"
BASELINE = "fedavg"
OURS = "fedgsca-e"
# FedAvg without the wrong labels
CEILING = "ceiling"
# no training: cross-validated regressions inside each site, for the audit
CLEANLAB = "cleanlab"
# the rate of the model ("auto"), or a number
Rate = float | Literal["auto"]
# the middle one is the default
LEARNING_RATES: Mapping[str, tuple[Rate, ...]] = {FROZEN: (0.005, "auto", 0.5), CNN: ("auto",)}
SEEDS: Mapping[str, tuple[int, ...]] = {"validation": (1, 2, 3), "test": (601, 602, 603)}


def default_lr(model: str) -> Rate:
    """The learning rate that the package chooses for this network."""
    rates = LEARNING_RATES[model]
    return rates[len(rates) // 2]


def rate_text(rate: Rate) -> str:
    """As in tables and names of files."""
    return rate if isinstance(rate, str) else f"{rate:g}"


@dataclass(frozen=True)
class Dataset:
    """A data set of the suite that is available."""

    name: str
    source: str
    has_groups: bool
    # pixels for the small CNN; None: as they are
    cnn_pixels: int | None = None


@dataclass(frozen=True)
class Setting:
    """Where methods are compared."""

    data: str
    model: str
    noise: str
    partition: str

    @property
    def is_noisy(self) -> bool:
        return self.noise != NO_NOISE

    @property
    def name(self) -> str:
        return f"{self.data}_{self.model}_{self.noise}_{self.partition}"


@dataclass(frozen=True)
class Cell:
    """One run."""

    setting: Setting
    method: str
    lr: Rate
    seed: int

    @property
    def name(self) -> str:
        """The name of its file; unique."""
        return slug(
            f"{self.setting.name}_{self.method}_{rate_text(self.lr)}_s{self.seed}", keep="_."
        )

    def to_fields(self) -> dict[str, str]:
        """What `--only` compares with."""
        return {
            "name": self.name,
            "data": self.setting.data,
            "model": self.setting.model,
            "noise": self.setting.noise,
            "partition": self.setting.partition,
            "method": self.method,
            "lr": rate_text(self.lr),
            "seed": str(self.seed),
        }


@dataclass(frozen=True)
class Size:
    """How large the suite is."""

    rounds: Mapping[str, int] = field(default_factory=lambda: {FROZEN: 60, CNN: 20})
    noises: tuple[str, ...] = NOISES
    # of the partition by group, of other learning rates, of other methods on skewed sites
    few_noises: tuple[str, ...] = (MIXED, "S40")
    # the small CNN is slow: it has few settings and no ceiling
    cnn_noises: tuple[str, ...] = (MIXED, "S40")
    cnn_data: tuple[str, ...] = ("ham10000", "pathmnist-long-tail", "built-in-long-tail")
    # how many of the seeds
    core_seeds: int = 3
    cnn_seeds: int = 1
    rival_seeds: int = 1
    cleanlab_seeds: int = 2
    lr_seeds: int = 1
    methods: tuple[str, ...] = ()
    sites: int = 4

    def rivals(self) -> tuple[str, ...]:
        """Methods other than FedAvg and FedGSCA."""
        names = self.methods or tuple(load_methods())
        return tuple(name for name in names if name not in (BASELINE, OURS))


FULL = Size()
QUICK = Size(
    rounds={FROZEN: 8, CNN: 6},
    noises=(MIXED, NO_NOISE),
    few_noises=(MIXED,),
    cnn_noises=(MIXED,),
    cnn_data=("tiny-long-tail",),
    core_seeds=1,
    cleanlab_seeds=1,
    methods=(BASELINE, "fedprox", OURS),
)


def find_datasets(
    part: str, *, pathmnist: Path | None, ham: Path | None, quick: bool = False
) -> list[Dataset]:
    """The data sets whose files are given."""
    if quick:
        names = ["tiny", "tiny-long-tail"]
        return [Dataset(name, source_name(part, name), True) for name in names]
    datasets = []
    for name in ("built-in", "built-in-long-tail"):
        datasets.append(Dataset(name, source_name(part, name), True))
    if pathmnist is not None:
        for name in ("pathmnist", "pathmnist-long-tail"):
            source = source_name(part, name, str(pathmnist.resolve()))
            datasets.append(Dataset(name, source, False))
    if ham is not None:
        datasets.append(
            Dataset("ham10000", source_name(part, "ham10000", str(ham.resolve())), True, 32)
        )
    return datasets


def list_settings(datasets: Sequence[Dataset], size: Size) -> list[Setting]:
    """All settings."""
    settings = []
    for dataset, partition in product(datasets, PARTITIONS):
        if partition == "group" and not dataset.has_groups:
            continue
        noises = size.few_noises if partition == "group" else size.noises
        settings += [Setting(dataset.name, FROZEN, noise, partition) for noise in noises]
        if partition == "stratified" and dataset.name in size.cnn_data:
            settings += [Setting(dataset.name, CNN, noise, partition) for noise in size.cnn_noises]
    return settings


def plan_cells(datasets: Sequence[Dataset], size: Size, seeds: Sequence[int]) -> list[Cell]:
    """All cells, the most informative first."""
    order: list[tuple[tuple[int, ...], Cell]] = []
    settings = list_settings(datasets, size)
    names = [dataset.name for dataset in datasets]
    for setting in settings:
        place = (
            PARTITIONS.index(setting.partition),
            size.noises.index(setting.noise),
            names.index(setting.data),
        )
        for stage, cell in _setting_cells(setting, size, seeds):
            order.append(((min(seeds.index(cell.seed), 1), stage, cell.seed, *place), cell))
    return [cell for _, cell in sorted(order, key=lambda item: item[0])]


def _setting_cells(setting: Setting, size: Size, seeds: Sequence[int]) -> list[tuple[int, Cell]]:
    """The cells of a setting, each with its stage."""
    is_frozen = setting.model == FROZEN
    usual = default_lr(setting.model)
    core_seeds = seeds[: size.core_seeds if is_frozen else size.cnn_seeds]
    cells = []
    methods = [BASELINE, OURS]
    if setting.is_noisy and is_frozen:
        methods.append(CEILING)
    for method, seed in product(methods, core_seeds):
        cells.append((0 if is_frozen else 3, Cell(setting, method, usual, seed)))
    if not is_frozen:
        return cells
    for lr, seed in product(LEARNING_RATES[setting.model], core_seeds):
        if lr != usual:
            cells.append((1, Cell(setting, BASELINE, lr, seed)))
            has_few_noises = setting.noise in (*size.few_noises, NO_NOISE)
            is_short = setting.partition == "stratified" and has_few_noises
            if is_short and seed in seeds[: size.lr_seeds]:
                cells.append((4, Cell(setting, OURS, lr, seed)))
    if setting.is_noisy:
        for seed in seeds[: size.cleanlab_seeds]:
            cells.append((2, Cell(setting, CLEANLAB, usual, seed)))
    has_rivals = setting.partition == "stratified" or setting.noise in size.few_noises
    if has_rivals and setting.partition != "group":
        for method, seed in product(size.rivals(), seeds[: size.rival_seeds]):
            cells.append((5, Cell(setting, method, usual, seed)))
    return cells


def filter_cells(cells: Sequence[Cell], filters: Sequence[str]) -> list[Cell]:
    """Cells that match every filter, such as "data=ham10000" or "method=fedavg,fedgsca"."""
    chosen_cells = list(cells)
    for text in filters:
        key, _, values = text.partition("=")
        names = values.split(",")
        chosen_cells = [cell for cell in chosen_cells if cell.to_fields()[key] in names]
    return chosen_cells


def cell_config(
    cell: Cell, dataset: Dataset, size: Size, settings: Mapping[str, object] | None = None
) -> Config:
    """The configuration of a run; `settings` are further ones of FedGSCA, for studies."""
    setting = cell.setting
    is_ours = cell.method == OURS
    rounds = size.rounds[setting.model]
    tree: Tree = {
        "method": BASELINE if cell.method in (CEILING, CLEANLAB) else cell.method,
        "seed": cell.seed,
        "data": {"source": dataset.source, "sites": size.sites, "partition": setting.partition},
        "noise": {"spec": f"{setting.noise}*", "oracle": cell.method == CEILING},
        "model": {"frozen": True} if setting.model == FROZEN else {"name": "cnn"},
        "train": {"rounds": rounds, "lr": cell.lr, "threads": 1},
        "federation": {"eval_every": rounds, "keep_losses": False},
    }
    if setting.model == CNN and dataset.cnn_pixels is not None:
        tree["data"]["image_size"] = dataset.cnn_pixels
    if is_ours:
        for key, value in (settings or {}).items():
            tree = merge(tree, _nest(key.split("."), value))
    return build(tree)


def _nest(path: Sequence[str], value: object) -> Tree:
    return {path[0]: _nest(path[1:], value) if len(path) > 1 else value}
