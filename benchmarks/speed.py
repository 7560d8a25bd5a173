"""`make runner`: every speed goal as ours / reference, both sides interleaved in one process, medians of ratios.

    python -m benchmarks.speed [--quick] [--only NAME ...] [--json FILE]

Only ratios are printed as results: seconds on a shared machine vary by a third. A goal that is missed stays in the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.references import bare_round, published_round
from fedgsca.config import Config, load_config
from fedgsca.engine.local import LocalEngine, SiteRunner, open_runner
from fedgsca.methods.base import ServerState, load_methods
from fedgsca.models import build_classifier
from fedgsca.site import weights_of
from fedgsca.train import to_tensor


@dataclass(frozen=True)
class Row:
    what: str
    ours: float  # the measured ratio (or seconds where the goal is in seconds)
    goal: float
    better: str = "at most"  # or "at least"
    note: str = ""

    @property
    def met(self) -> bool:
        return self.ours <= self.goal if self.better == "at most" else self.ours >= self.goal


def config_of(
    method: str, *sets: str, data: str = "synthetic", noise: str = "0-S40-P20-C20"
) -> Config:
    """Without the audit's evidence pass, which costs every method the same and is measured by benchmarks/audit_cost.py."""
    off = ["federation.keep_losses=false", "audit.enabled=false"]
    return load_config(None, [*off, *sets], method=method, data__source=data, noise__spec=noise)


class Rounds:
    """Runs single rounds of a method on a prepared runner, without evaluation and files, to compare like with like."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.runner: SiteRunner = open_runner(config, folder)
        self.engine = LocalEngine(self.runner)
        self.state: ServerState = self.runner.method.start(
            weights_of(self.runner.model), config.seed
        )

    def step(self) -> None:
        method = self.runner.method
        payload = method.broadcast(self.state, self.state.round)
        replies = (reply.update for reply in self.engine.exchange(payload))
        self.state = method.aggregate(
            self.state, (update for update in replies if update is not None)
        )


def ratio(ours: Callable[[], None], reference: Callable[[], None], repeats: int) -> float:
    """Median over repeats of time(ours) / time(reference), each pair measured back to back, order alternating."""
    ours(), reference()  # warm caches and allocators
    found = []
    for repeat in range(repeats):
        first, second = (ours, reference) if repeat % 2 == 0 else (reference, ours)
        started = time.perf_counter()
        first()
        middle = time.perf_counter()
        second()
        a, b = middle - started, time.perf_counter() - middle
        found.append(a / b if repeat % 2 == 0 else b / a)
    return median(found)


def fedavg_over_bare(folder: Path, quick: bool) -> Iterator[Row]:
    cases = {
        "small CNN, 28 px, 4 x 500": (
            "model.name=cnn",
            "data.train=2000",
            "data.image_size=28",
            "train.batch_size=32",
        )
    }
    if not quick:
        cases["ResNet-18, 64 px, 4 x 64"] = (
            "model.name=resnet18",
            "data.train=256",
            "data.image_size=64",
            "train.batch_size=32",
        )
    for title, sets in cases.items():
        config = config_of("fedavg", "data.test=40", "train.augment=none", *sets)
        ours = Rounds(config, folder / title)
        sites = dict(ours.runner.experiment.sites)
        cpu = torch.device("cpu")
        tensors = {
            n: (to_tensor(s, np.arange(len(s)), cpu), torch.from_numpy(s.labels))
            for n, s in sites.items()
        }
        bare_model = build_classifier(
            config.model.name, ours.runner.experiment.table.num_classes, seed=0
        )
        found = ratio(
            ours.step,
            lambda m=bare_model, s=sites, t=tensors, h=config.train: bare_round(m, s, t, h),
            3 if quick else 7,
        )
        yield Row(f"FedAvg round / bare loop, {title}", found, 1.05)
        augmented = Rounds(
            config_of("fedavg", "data.test=40", "train.augment=rotate", *sets),
            folder / (title + "-rotate"),
        )
        plain = build_classifier(
            config.model.name, ours.runner.experiment.table.num_classes, seed=0
        )
        plain = plain.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        found = ratio(
            augmented.step,
            lambda m=plain, s=sites, h=config.train: published_round(m, s, h),
            3 if quick else 5,
        )
        yield Row(f"FedAvg round / published-style loop, both with rotation, {title}", found, 0.7)
        dihedral = Rounds(
            config_of("fedavg", "data.test=40", "train.augment=dihedral", *sets),
            folder / (title + "-dihedral"),
        )
        found = ratio(
            dihedral.step,
            lambda m=plain, s=sites, h=config.train: published_round(m, s, h),
            3 if quick else 5,
        )
        yield Row(
            f"FedAvg round (our default: flips, quarter turns) / published-style loop, {title}",
            found,
            0.7,
        )


def fedgsca_over_fedavg(folder: Path, quick: bool) -> Iterator[Row]:
    cases = {
        "small CNN, 32 px, 4 x 400": ("model.name=cnn", "data.train=1600", 8, 9),
        "ResNet-18, 64 px, 4 x 96": ("model.name=resnet18", "data.train=384", 6, 5),
        "ResNet-50, 224 px, 4 x 12": ("model.name=resnet50", "data.train=48", 0, 3),
    }
    sizes = {
        "small CNN": "data.image_size=32",
        "ResNet-18": "data.image_size=64",
        "ResNet-50": "data.image_size=224",
    }
    for title, (name, train, warm, repeats) in cases.items():
        if quick and not title.startswith("small"):
            continue
        sets = [
            name,
            train,
            sizes[title.split(",")[0]],
            "data.test=40",
            "train.batch_size=32",
            "fedgsca.warmup=1",
            "fedgsca.wait_for_health=false",
        ]
        avg, gsca = (
            Rounds(config_of("fedavg", *sets), folder / title),
            Rounds(config_of("fedgsca", *sets), folder / (title + "g")),
        )
        if warm:  # else too few samples to select from; the other row is the dearer one anyway
            for _ in range(warm):
                gsca.step()  # past the warm-up: the selector works
            found = ratio(gsca.step, avg.step, 3 if quick else repeats)
            yield Row(f"FedGSCA round / FedAvg round, {title}", found, 1.20, note="selecting")
        everything = Rounds(
            config_of("fedgsca", *sets, "fedgsca.warmup=1000"), folder / (title + "w")
        )
        found = ratio(everything.step, avg.step, 3 if quick else repeats)
        yield Row(
            f"FedGSCA round / FedAvg round, {title}",
            found,
            1.20,
            note="warm-up: trains on all samples",
        )


# goals of the method, options that bring every stage into a run of a few rounds
COSTS: dict[str, tuple[float, tuple[str, ...]]] = {
    "fedrobust": (1.3, ()),
    "fednoro": (1.4, ("fednoro.warmup=2",)),
    "fedcorr": (1.5, ("fedcorr.stage1=0.2",)),
    "fedgp": (1.8, ()),
    "fedfixer": (2.6, ("fedfixer.warmup=2",)),
}


def methods_over_fedavg(folder: Path, quick: bool) -> Iterator[Row]:
    """What a whole run costs, all stages included: the sum over the rounds, a round of FedAvg after each round of the method."""
    cases = {
        "small CNN, 32 px, 4 x 400": (
            10,
            ("model.name=cnn", "data.train=1600", "data.image_size=32"),
        ),
        "frozen EfficientNet-Lite0, 4 x 400": (20, ("model.frozen=true", "data.train=1600")),
    }
    if not quick:
        cases["ResNet-18, 64 px, 4 x 96"] = (
            6,
            ("model.name=resnet18", "data.train=384", "data.image_size=64"),
        )
    for title, (rounds, sets) in cases.items():
        shared = (
            *sets,
            "data.test=40",
            "train.batch_size=32",
            f"train.rounds={rounds}",
            "train.threads=1",
        )
        for name, (goal, own) in COSTS.items():
            found = []
            for repeat in range(1 if "ResNet" in title else 3):
                ours = Rounds(config_of(name, *shared, *own), folder / f"{title}-{name}-{repeat}")
                plain = Rounds(
                    config_of("fedavg", *shared), folder / f"{title}-{name}-{repeat}-avg"
                )
                found.append(_whole_run(ours, plain, rounds))
            label = load_methods()[name].__name__
            yield Row(
                f"{label} run / FedAvg run, {title}", median(found), goal, note=f"{rounds} rounds"
            )


def _whole_run(ours: Rounds, reference: Rounds, rounds: int) -> float:
    spent = {ours: 0.0, reference: 0.0}
    for _ in range(rounds):
        for side in spent:
            started = time.perf_counter()
            side.step()
            spent[side] += time.perf_counter() - started
    return spent[ours] / spent[reference]


def frozen_over_full(folder: Path, quick: bool) -> Iterator[Row]:
    sets = ("data.train=256", "data.test=40", "data.image_size=96")
    frozen = Rounds(
        config_of("fedavg", "model.frozen=true", "model.name=efficientnet-lite0", *sets),
        folder / "frozen",
    )
    full = Rounds(
        config_of("fedavg", "model.name=efficientnet-lite0", "train.batch_size=32", *sets),
        folder / "full",
    )
    yield Row(
        "full round / frozen-backbone round, EfficientNet-Lite0, 96 px, 4 x 64",
        1 / ratio(frozen.step, full.step, 3),
        200,
        "at least",
    )


def sites_scaling(folder: Path, quick: bool) -> Iterator[Row]:
    """The same data over 4, 40 and 400 sites: seconds of a round and peak memory of a fresh process each."""
    counts = (4, 40) if quick else (4, 40, 400)
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    memory: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(2 if quick else 3):
        for count in counts:
            code = (
                "import sys,time,resource,pathlib;from benchmarks.speed import *;"
                f"r=Rounds(config_of('fedavg','data.sites={count}','data.train=4000','data.test=40','data.image_size=28','train.batch_size=10',"
                f"noise='0'),pathlib.Path({str(folder / f'sites{count}')!r}));r.step();t=time.perf_counter();r.step();r.step();"
                "print((time.perf_counter()-t)/2, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
            )
            out = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True
            ).stdout.split()
            seconds[count].append(float(out[-2]))
            memory[count].append(float(out[-1]))
    for count in counts[1:]:
        yield Row(
            f"round with {count} sites / with 4 sites, same data",
            median(b / a for a, b in zip(seconds[4], seconds[count], strict=True)),
            1.3,
        )
        yield Row(
            f"peak memory with {count} sites / with 4 sites",
            median(memory[count]) / median(memory[4]),
            1.1,
        )


def start_up(folder: Path, quick: bool) -> Iterator[Row]:
    command = [sys.executable, "-m", "fedgsca"]
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([*command, "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - started)
    yield Row("fedgsca --help, seconds", median(times), 0.5)
    code = (
        "import time;t=time.perf_counter();import sys;from fedgsca.config import load_config;from fedgsca.engine.local import open_runner;"
        "import fedgsca.train as T,pathlib,fedgsca.methods.fedavg as A\n"
        "def first(*a,**k):\n print(time.perf_counter()-t);raise SystemExit\n"
        "c=load_config(method='fedavg',noise__spec='0-S40-P20-C20');"
        f"b=open_runner(c,pathlib.Path({str(folder / 'first')!r}));s=b.site('site-1');next(T.batches(s,0));first()"
    )
    subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True
    )  # fills the cache of rendered images
    times = [
        float(
            subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True
            ).stdout
        )
        for _ in range(3)
    ]
    yield Row("from command to first batch, seconds (images cached)", median(times), 5.0)


BENCHES = {
    f.__name__: f
    for f in (
        start_up,
        fedavg_over_bare,
        fedgsca_over_fedavg,
        methods_over_fedavg,
        frozen_over_full,
        sites_scaling,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small cases only, about two minutes")
    parser.add_argument("--only", nargs="*", choices=list(BENCHES), help="some of the benches")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    options = parser.parse_args()
    rows: list[Row] = []
    print(
        f"{os.cpu_count()} cores, torch {torch.__version__}; ratios are medians of interleaved pairs\n"
    )
    print(f"{'what':92} {'measured':>9}  {'goal':>14}")
    with tempfile.TemporaryDirectory() as folder:
        for name, runner in BENCHES.items():
            if options.only and name not in options.only:
                continue
            for row in runner(Path(folder), options.quick):
                rows.append(row)
                text = row.what + (f" ({row.note})" if row.note else "")
                print(
                    f"{text:92} {row.ours:9.2f}  {row.better:>8} {row.goal:<5g} {'' if row.met else 'MISSED'}",
                    flush=True,
                )
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
