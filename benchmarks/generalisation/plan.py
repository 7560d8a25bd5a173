"""Which settings the suite has, and in which order.

A setting is a data set with a kind of sites, a noise, a number of sites and a division. The most
informative ones come first, and one seed of all before the next, so that a suite that is not
finished has a table already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from benchmarks.generalisation.sources import source_name
from fedgsca.config import Config, Tree, build
from fedgsca.noise import parse_noise
from fedgsca.support.text import slug

# parts of the noise in one federation, repeated over its sites
MIXED = "0-S40-P20-C20"
NO_NOISE = "0"
NOISES = (MIXED, "S40", "I30", "A30x3", "P20", "C20", NO_NOISE)
# those of divisions other than four equal sites
FEW_NOISES = (MIXED, "S40", "I30")
ONE_SOURCE, SHIFTED, HABITS, REAL = "one source", "shifted", "shifted, habits", "real sites"
KINDS = (ONE_SOURCE, SHIFTED, HABITS, REAL)
DIVISIONS = ((4, "stratified"), (4, "dirichlet"), (20, "dirichlet"), (50, "dirichlet"))
SEEDS = {"validation": (1, 2, 3), "test": (601, 602, 603)}
GRADES = ("no_dr", "mild", "moderate", "severe", "proliferative")


@dataclass(frozen=True)
class Dataset:
    """A data set of the suite that is available."""

    name: str
    source: str
    # grades from the lowest to the highest
    order: tuple[str, ...] = ()
    has_real_sites: bool = False
    groups: bool = False


@dataclass(frozen=True)
class Setting:
    """Where methods are compared, and with which seed."""

    data: str
    kind: str
    noise: str
    sites: int
    partition: str
    seed: int

    @property
    def name(self) -> str:
        """The name of its file; unique."""
        parts = (self.data, self.kind, self.noise, f"{self.sites}-{self.partition}", self.seed)
        return slug("_".join(map(str, parts)), keep="_.")


def find_datasets(
    part: str,
    *,
    pathmnist: Path | None = None,
    ham: Path | None = None,
    deepdrid: Path | None = None,
    quick: bool = False,
) -> list[Dataset]:
    """The built-in data sets, and those whose files are given."""
    if quick:
        return [Dataset("tiny", source_name(part, "tiny"))]
    datasets = [
        Dataset(name, source_name(part, name)) for name in ("built-in", "built-in-long-tail")
    ]
    if deepdrid is not None:
        source = source_name(part, "deepdrid", str(deepdrid.resolve()))
        datasets.append(Dataset("deepdrid", source, GRADES, has_real_sites=True, groups=True))
    if ham is not None:
        source = source_name(part, "ham10000", str(ham.resolve()))
        datasets.append(Dataset("ham10000", source, groups=True))
    if pathmnist is not None:
        datasets.append(
            Dataset("pathmnist", source_name(part, "pathmnist", str(pathmnist.resolve())))
        )
    return datasets


def plan_settings(datasets: Sequence[Dataset], seeds: Sequence[int]) -> list[Setting]:
    """All settings, the most informative first."""
    settings = []
    for seed, (sites, partition), noise in product(seeds, DIVISIONS, NOISES):
        is_main = (sites, partition) == DIVISIONS[0]
        if not is_main and noise not in FEW_NOISES:
            continue
        for kind, dataset in product(KINDS, datasets):
            if kind == REAL:
                if is_main and dataset.has_real_sites:
                    settings.append(Setting(dataset.name, kind, noise, 0, "column", seed))
            else:
                settings.append(Setting(dataset.name, kind, noise, sites, partition, seed))
    for seed, dataset in product(seeds, datasets):
        if dataset.groups:
            settings.append(Setting(dataset.name, ONE_SOURCE, MIXED, 4, "group", seed))
    return settings


def choose_settings(settings: Sequence[Setting], filters: Sequence[str]) -> list[Setting]:
    """Settings that match every filter, such as "data=ham10000" or "noise=S40,I30"."""
    chosen_settings = list(settings)
    for text in filters:
        key, _, values = text.partition("=")
        names = values.split(",") if key != "kind" else values.split(";")
        chosen_settings = [
            setting for setting in chosen_settings if str(asdict(setting)[key]) in names
        ]
    return chosen_settings


def noise_spec(setting: Setting, dataset: Dataset) -> str:
    """The noise of all sites; with habits, the first and third of four sites have one each."""
    parts = [str(noise) for noise in parse_noise(f"{setting.noise}*", 4)]
    if setting.kind == HABITS:
        parts[0] = "H30" if dataset.order else "U1"
        parts[2] = "U2"
    return "-".join(parts) + "*"


def make_config(
    setting: Setting, dataset: Dataset, rounds: int, method: str, *, is_ceiling: bool = False
) -> Config:
    """A run: every method has the model's rate and the same class balance."""
    data: Tree = {
        "source": dataset.source,
        "partition": setting.partition,
        "shift": "strong" if setting.kind in (SHIFTED, HABITS) else "none",
    }
    if setting.sites:
        data["sites"] = setting.sites
    if dataset.order:
        data["order"] = dataset.order
    return build(
        {
            "method": method,
            "seed": setting.seed,
            "data": data,
            "noise": {"spec": noise_spec(setting, dataset), "oracle": is_ceiling},
            "model": {"frozen": True},
            "train": {"rounds": rounds, "lr": "auto", "threads": 1},
            "federation": {"eval_every": rounds, "keep_losses": False},
        }
    )
