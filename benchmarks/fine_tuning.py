"""Fine-tuning a pretrained network on small data: learning rate, BatchNorm, methods.

    python -m benchmarks.fine_tuning --out DIR --minutes 40
    python -m benchmarks.fine_tuning --out DIR --write benchmarks/studies/fine_tuning.md

EfficientNet-Lite0 from its packaged weights on rendered images. BatchNorm's statistics are averaged
like all weights (the default), also with another momentum; those of each site (`fedbn`); or frozen:
those of the packaged weights, in training as well. Finished rows stay in DIR; no run is started
after `--minutes` of CPU time in all rows.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from unittest.mock import patch

import torch
from torch import nn

from docs.generate import make_table
from fedgsca.config import Config, build
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds
from fedgsca.support.files import write_atomic

NETWORK = "efficientnet-lite0"
AVERAGED, PER_SITE, FROZEN = "averaged", "per site", "frozen"
SLOW = "averaged, momentum 0.01"
CEILING = "ceiling"
EVERY = 3  # rounds between two tests


@dataclass(frozen=True)
class Recipe:
    """How the network is trained."""

    rate: float
    momentum: float = 0.9
    batch_size: int = 16
    statistics: str = AVERAGED

    @property
    def text(self) -> str:
        """As the page says it."""
        return f"lr {self.rate:g}, momentum {self.momentum:g}, batches of {self.batch_size}"


@dataclass(frozen=True)
class Case:
    """One run; the parts `statistics` and `rate` have few images and correct labels."""

    part: str
    method: str
    recipe: Recipe

    @property
    def rounds(self) -> int:
        """Enough to memorise where methods are compared."""
        return LONG if self.part == "methods" else SHORT

    @property
    def stem(self) -> str:
        """The name of its file."""
        recipe = "-".join(str(value) for value in asdict(self.recipe).values())
        return f"{self.part}-{self.method}-{recipe}".replace(" ", "_")


@dataclass(frozen=True)
class Row:
    """A finished run: macro F1 in percent of tested rounds, and CPU seconds."""

    case: Case
    # round, from 1 -> F1
    f1: dict[int, float]
    seconds: float


# rate, momentum, batch size; the first one is the protocol of the paper
RATES = ((0.01, 0.0, 128), (0.003, 0.9, 16), (0.03, 0.9, 16))
METHODS = ("fedavg", CEILING, "fedgsca-e", "fedgsca")
SHORT, LONG = 8, 24  # rounds


def plan(rows: Sequence[Row]) -> Iterator[Case]:
    """The runs in their order; later ones have the best recipe of the first ones."""
    for statistics in (AVERAGED, SLOW, FROZEN, PER_SITE):
        yield Case("statistics", "fedavg", Recipe(0.01, statistics=statistics))
    best = best_recipe(rows, "statistics")
    for rate, momentum, batch_size in RATES:
        recipe = replace(best, rate=rate, momentum=momentum, batch_size=batch_size)
        yield Case("rate", "fedavg", recipe)
    best = best_recipe(rows, "rate", "statistics")
    # statistics of each site are a method of their own (FedBN); a comparison has averaged ones
    for method in METHODS:
        yield Case("methods", method, replace(best, statistics=AVERAGED))


def best_recipe(rows: Sequence[Row], *parts: str) -> Recipe:
    """The recipe with the highest last F1 among finished runs of these parts."""
    finished = [row for row in rows if row.case.part in parts]
    return max(finished, key=lambda row: row.f1[max(row.f1)]).case.recipe


def make_config(case: Case) -> Config:
    """A comparison has S40 at four sites; the ceiling trains on the correct labels alone."""
    is_comparison = case.part == "methods"
    num_images, num_sites, noise = (300, 4, "S40") if is_comparison else (160, 2, "0")
    recipe = case.recipe
    method = "fedavg" if case.method == CEILING else case.method
    if recipe.statistics == PER_SITE:
        method = "fedbn"
    return build(
        {
            "method": method,
            "seed": 1,
            "data": {
                "source": "synthetic",
                "train": num_images,
                "test": 120,
                "image_size": 64,
                "sites": num_sites,
            },
            "noise": {"spec": noise, "oracle": case.method == CEILING},
            "model": {"name": NETWORK},
            "train": {
                "rounds": case.rounds,
                "lr": recipe.rate,
                "momentum": recipe.momentum,
                "batch_size": recipe.batch_size,
                "class_balance": 0.25,
                "threads": 1,
            },
            "federation": {"eval_every": EVERY, "keep_losses": False},
        }
    )


@contextmanager
def batch_norm(statistics: str) -> Iterator[None]:
    """Inside the block, BatchNorm treats its statistics in another way than the network says."""

    def keep_statistics(layer: nn.BatchNorm2d, mode: bool = True) -> nn.BatchNorm2d:
        layer.training = False
        return layer

    def follow_slowly(layer: nn.BatchNorm2d, mode: bool = True) -> nn.BatchNorm2d:
        layer.momentum = 0.01  # as the package of the network has it
        layer.training = mode
        return layer

    replacements = {FROZEN: keep_statistics, SLOW: follow_slowly}
    if statistics not in replacements:
        yield
        return
    with patch.object(nn.BatchNorm2d, "train", replacements[statistics]):
        yield


def measure(case: Case) -> Row:
    """Train, and read the scores."""
    start = time.process_time()
    config = make_config(case)
    with tempfile.TemporaryDirectory(prefix="fine-tuning-") as scratch:
        with batch_norm(case.recipe.statistics):
            run(config, Path(scratch) / "run")
        rounds = read_rounds(Path(scratch) / "run")
    f1 = {record.round + 1: record.f1 for record in rounds if record.f1 is not None}
    return Row(case, f1, time.process_time() - start)


def read_rows(folder: Path) -> list[Row]:
    """The finished rows of a folder."""
    rows = []
    for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime):
        tree = json.loads(path.read_text())
        recipe = Recipe(**tree["case"].pop("recipe"))
        f1 = {int(number): score for number, score in tree["f1"].items()}
        rows.append(Row(Case(recipe=recipe, **tree["case"]), f1, tree["seconds"]))
    return rows


def study(folder: Path, minutes: float) -> None:
    """Run what is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        rows = read_rows(folder)
        done = {row.case for row in rows}
        case = next((case for case in plan(rows) if case not in done), None)
        if case is None or sum(row.seconds for row in rows) > 60 * minutes:
            return
        row = measure(case)
        write_atomic(folder / f"{row.case.stem}.json", json.dumps(asdict(row)).encode())
        print(row, flush=True)


# ---- the page ----

INTRODUCTION = """Written by `python -m benchmarks.fine_tuning`; do not edit. EfficientNet-Lite0
from its packaged weights, all layers trained, 64 px, class balance 0.25, one seed; F1 is macro F1
in percent on 120 images after the round. Statistics and rates: 160 rendered images with correct
labels at two sites. Methods: 300 images at four sites, S40; the ceiling trains on the correct
labels alone."""
TITLES = {
    "statistics": "BatchNorm's statistics",
    "rate": "Learning rate, with the best statistics",
    "methods": "Methods, with the best rate and averaged statistics",
}


def make_page(rows: Sequence[Row]) -> str:
    """Markdown of all finished runs."""
    minutes = sum(row.seconds for row in rows) / 60
    lines = ["# Fine-tuning", "", INTRODUCTION, "", f"{date.today()}; {minutes:.0f} CPU minutes."]
    for part, title in TITLES.items():
        finished = [row for row in rows if row.case.part == part]
        rounds = sorted({number for row in finished for number in row.f1})
        lines += ["", f"## {title}", ""]
        table = []
        for row in finished:
            scores = [f"{row.f1[number]:.1f}" if number in row.f1 else "" for number in rounds]
            recipe = row.case.recipe
            table.append([row.case.method, recipe.text, recipe.statistics, *scores])
        header = ["method", "steps", "statistics", *(f"round {number}" for number in rounds)]
        lines.append(make_table(header, table) if table else "Not measured.")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of finished runs")
    parser.add_argument("--minutes", type=float, default=0.0, help="of CPU time, in all")
    parser.add_argument("--write", type=Path, metavar="FILE.md", help="write the page here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    study(options.out, options.minutes)
    page = make_page(read_rows(options.out))
    print(page)
    if options.write:
        write_atomic(options.write, page.encode())


if __name__ == "__main__":
    main()
