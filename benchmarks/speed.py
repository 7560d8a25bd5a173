"""Every speed goal as ours / reference: both sides interleaved in one process, medians of ratios.

    python -m benchmarks.speed [--quick] [--only NAME ...] [--json FILE]

Ratios are of CPU time with one thread: what a round takes on a machine that does nothing else,
apart from waiting for the disk. Only ratios are results: seconds on a shared machine vary by a
third. Every row has its goal and the value of 0.2.0; a goal that is missed stays in the table, with
the reason if we know it.
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
from torch import nn

from benchmarks.references import Sites, Tensors, bare_round, published_round
from fedgsca.config import Config, load_config
from fedgsca.engine.local import LocalEngine, SiteRunner, open_runner
from fedgsca.methods.base import ServerState, load_methods
from fedgsca.models.build import build_classifier
from fedgsca.rng import stream
from fedgsca.site import weights_of
from fedgsca.train import to_tensor


@dataclass(frozen=True)
class Measurement:
    """A measured ratio (or seconds where the goal is in seconds), its goal and its history."""

    what: str
    ours: float
    goal: float
    # or "at least"
    better: str = "at most"
    note: str = ""
    # as measured with 0.2.0; empty: not measured then
    previous: str = ""
    # why the goal is missed, if it is known
    reason: str = ""

    @property
    def is_met(self) -> bool:
        return self.ours <= self.goal if self.better == "at most" else self.ours >= self.goal

    def __str__(self) -> str:
        text = f"{self.what} ({self.note})" if self.note else self.what
        goal = f"{self.better} {self.goal:g}"
        line = f"{text:92} {self.ours:9.2f}  {goal:>13}  {self.previous or '-':>9}"
        if self.is_met:
            return line
        return f"{line}  MISSED{': ' if self.reason else ''}{self.reason}"


# why goals are missed that we know we miss
EXTRA_PASS = "one more forward pass over all images until two thirds of the run"
SMALL_PRODUCTS = "four heads learn from and judge every image, beside a small network"
CONVOLUTIONS = "convolutions, the same on both sides, are nearly all of a round"
SECOND_MODEL = "two models that judge each other: three times the operations of a step of FedAvg"
BATCHES = "steps of SGD are half of it, products for the heads and files most of the rest"
GRAPH = "a graph network over all samples, beside a head of one product"


def config_of(
    method: str, *sets: str, data: str = "synthetic", noise: str = "0-S40-P20-C20"
) -> Config:
    """A configuration without evidence heads and audit, with one thread.

    Both cost every method the same; benchmarks/audit_cost.py measures it. Two threads wait for
    each other in a busy loop, which on a busy machine takes most of the time.
    """
    base = ["federation.keep_losses=false", "audit.enabled=false", "evidence.enabled=false"]
    base.append("train.threads=1")
    return load_config(None, [*base, *sets], method=method, data__source=data, noise__spec=noise)


class Rounds:
    """Single rounds of a method on a prepared runner, without evaluation and files."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.runner: SiteRunner = open_runner(config, folder)
        self.engine = LocalEngine(self.runner)
        weights = weights_of(self.runner.model)
        self.state: ServerState = self.runner.method.start(weights, config.seed)

    def step(self) -> None:
        """Run one round."""
        method = self.runner.method
        payload = method.broadcast(self.state, self.state.round)
        replies = (reply.update for reply in self.engine.exchange(payload))
        updates = (update for update in replies if update is not None)
        self.state = method.aggregate(self.state, updates)


def seconds_of(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def cpu_seconds_of(function: Callable[[], object]) -> float:
    """The CPU time of this process; other programs on the machine matter little."""
    start = time.process_time()
    function()
    return time.process_time() - start


def ratio(ours: Callable[[], None], reference: Callable[[], None], repeats: int) -> float:
    """Median over repeats of CPU time(ours) / CPU time(reference).

    Each pair is measured back to back, in alternating order.
    """
    # warm caches and allocators
    ours()
    reference()
    ratios = []
    for repeat in range(repeats):
        if repeat % 2 == 0:
            our_seconds = cpu_seconds_of(ours)
            ratios.append(our_seconds / cpu_seconds_of(reference))
        else:
            reference_seconds = cpu_seconds_of(reference)
            ratios.append(cpu_seconds_of(ours) / reference_seconds)
    return median(ratios)


def fedavg_over_bare(folder: Path, quick: bool) -> Iterator[Measurement]:
    """A FedAvg round against a bare loop and against a loop in the style of published code."""
    cases = {"small CNN, 28 px, 4 x 250": ("model.name=cnn", "data.train=1000", 28)}
    if not quick:
        cases["ResNet-18, 64 px, 4 x 32"] = ("model.name=resnet18", "data.train=128", 64)
    for title, (model, size, pixels) in cases.items():
        sets = (model, size, f"data.image_size={pixels}", "train.batch_size=32", "data.test=40")
        config = config_of("fedavg", "train.augment=none", *sets)
        ours = Rounds(config, folder / title)
        sites = dict(ours.runner.experiment.sites)
        num_classes = ours.runner.experiment.table.num_classes
        bare_model = build_classifier(config.model.name, num_classes, seed=0)
        reference = _bare_loop(bare_model, sites, config)
        value = ratio(ours.step, reference, 3 if quick else 5)
        name = f"FedAvg round / bare loop, {title}"
        yield Measurement(name, value, 1.05, previous=PREVIOUS.get(name, ""))
        plain = build_classifier(config.model.name, num_classes, seed=0)
        plain = plain.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        reference = _published_loop(plain, sites, config)
        for augment, name in (
            ("rotate", "FedAvg round / published-style loop, both with rotation"),
            (
                "dihedral",
                "FedAvg round (our default: flips, quarter turns) / published-style loop",
            ),
        ):
            config = config_of("fedavg", f"train.augment={augment}", *sets)
            ours = Rounds(config, folder / f"{title}-{augment}")
            value = ratio(ours.step, reference, 3)
            name = f"{name}, {title}"
            previous = PREVIOUS.get(name, "")
            yield Measurement(name, value, 0.7, previous=previous, reason=CONVOLUTIONS)


# as measured with 0.2.0 on twice as many images (docs/results.md)
PREVIOUS = {
    "FedAvg round / bare loop, small CNN, 28 px, 4 x 250": "1.02",
    "FedAvg round / bare loop, ResNet-18, 64 px, 4 x 32": "1.01",
    "FedAvg round / published-style loop, both with rotation, small CNN, 28 px, 4 x 250": "0.61",
    "FedAvg round / published-style loop, both with rotation, ResNet-18, 64 px, 4 x 32": "0.92",
}


def _bare_loop(model: nn.Module, sites: Sites, config: Config) -> Callable[[], None]:
    cpu = torch.device("cpu")
    tensors: Tensors = {}
    for name, samples in sites.items():
        inputs = to_tensor(samples, np.arange(len(samples)), cpu)
        tensors[name] = (inputs, torch.from_numpy(samples.labels))
    return lambda: bare_round(model, sites, tensors, config.train)


def _published_loop(model: nn.Module, sites: Sites, config: Config) -> Callable[[], None]:
    return lambda: published_round(model, sites, config.train)


@dataclass(frozen=True)
class SelectionCase:
    """A network on which rounds of FedGSCA and FedAvg are compared."""

    title: str
    sets: tuple[str, ...]
    # rounds until the selector works; 0: too few samples to select from
    warm_rounds: int
    repeats: int
    # selecting and in the warm-up, with 0.2.0
    previous: tuple[str, str]


SELECTION_CASES = (
    SelectionCase(
        "small CNN, 32 px, 4 x 200",
        ("model.name=cnn", "data.train=800", "data.image_size=32"),
        warm_rounds=4,
        repeats=5,
        previous=("1.29", "1.30"),
    ),
    SelectionCase(
        "ResNet-18, 64 px, 4 x 48",
        ("model.name=resnet18", "data.train=192", "data.image_size=64", "train.batch_size=16"),
        warm_rounds=4,
        repeats=3,
        previous=("1.24", "1.17"),
    ),
    SelectionCase(
        "ResNet-50, 224 px, 4 x 4",
        ("model.name=resnet50", "data.train=16", "data.image_size=224", "train.batch_size=4"),
        warm_rounds=0,
        repeats=3,
        previous=("", "1.35"),
    ),
)


def fedgsca_over_fedavg(folder: Path, quick: bool) -> Iterator[Measurement]:
    """A FedGSCA round, evidence heads and audit included, against FedAvg and nothing else.

    In the last third of a run, which is not measured here, the heads are not trained and nothing
    but the training pass is needed.
    """
    common = (
        "data.test=40",
        "train.batch_size=32",
        # the first selection in round 6
        "evidence.first=3",
    )
    for case in SELECTION_CASES[:1] if quick else SELECTION_CASES:
        sets = (*common, *case.sets)
        fedavg = Rounds(config_of("fedavg", *sets), folder / case.title)
        for passes in ("two", "one"):
            options = (f"fedgsca.passes={passes}", "audit.enabled=true", "evidence.enabled=true")
            place = folder / f"{case.title}-{passes}"
            fedgsca = Rounds(config_of("fedgsca", *sets, *options), place)
            yield from _compare_rounds(case, fedgsca, fedavg, passes)


def _compare_rounds(
    case: SelectionCase, fedgsca: Rounds, fedavg: Rounds, passes: str
) -> Iterator[Measurement]:
    """Rounds of the warm-up, then those in which FedGSCA selects."""
    # 0.2.0 had two passes
    selecting, warming = case.previous if passes == "two" else ("", "")
    name = f"FedGSCA round / FedAvg round, {case.title}, passes = {passes}"
    reason = EXTRA_PASS if passes == "two" else SMALL_PRODUCTS
    value = ratio(fedgsca.step, fedavg.step, 3 if case.warm_rounds else case.repeats)
    yield Measurement(name, value, 1.05, "at most", "warm-up", warming, reason)
    if not case.warm_rounds:
        return
    for _ in range(case.warm_rounds):
        fedgsca.step()
    value = ratio(fedgsca.step, fedavg.step, case.repeats)
    yield Measurement(name, value, 1.05, "at most", "selecting", selecting, reason)


# method -> goal, previous value and reason, for complete frozen runs
FROZEN_GOALS = {
    "fedgsca": (1.5, "2.1-4", ""),
    "fedfixer": (2.0, "4.06", SECOND_MODEL),
    "fedgp": (3.0, "8.57", GRAPH),
}


def frozen_runs(folder: Path, quick: bool) -> Iterator[Measurement]:
    """Complete runs on frozen features, with all files and the audit's evidence on both sides."""
    from fedgsca.engine.rounds import run
    from fedgsca.experiment.simulation import prepare

    num_rounds = 12 if quick else 60
    sets = ("model.frozen=true", "data.train=4000", "data.test=800", f"train.rounds={num_rounds}")

    def time_run(method: str, repeat: int) -> float:
        config = load_config(
            None, [*sets], method=method, data__source="synthetic", noise__spec="0-S40-P20-C20"
        )
        experiment = prepare(config)  # features are cached from the first run on
        place = folder / f"frozen-{method}-{repeat}"
        return cpu_seconds_of(lambda: run(config, place, experiment=experiment))

    time_run("fedavg", -1)  # computes the features
    for method, (goal, previous, reason) in FROZEN_GOALS.items():
        times = []
        ratios = []
        for repeat in range(3 if method == "fedgsca" else 1):
            seconds = time_run(method, repeat)
            times.append(seconds)
            ratios.append(seconds / time_run("fedavg", repeat * 10 + len(method)))
        title = load_methods()[method].title
        what = f"{title} run / FedAvg run, frozen, 4 x 1,000, {num_rounds} rounds"
        value = median(ratios)
        yield Measurement(what, value, goal, "at most", "with files and audit", previous, reason)
        if method == "fedgsca":
            what = f"FedGSCA run, frozen, 4 x 1,000, {num_rounds} rounds, CPU seconds"
            seconds_goal = 3.0 * num_rounds / 60
            yield Measurement(what, median(times), seconds_goal, reason=BATCHES)


def feature_pass(folder: Path, quick: bool) -> Iterator[Measurement]:
    """Computing frozen features against bare forward passes on tensors that are in memory."""
    from fedgsca.models.build import build_backbone, spec_of
    from fedgsca.models.features import THREADS, extract

    name, size, count = "efficientnet-lite0", 96, 128 if quick else 512
    backbone = build_backbone(name, seed=0).to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    images = stream(0, "feature pass").integers(0, 256, (count, 64, 64, 3), dtype=np.uint8)
    features = np.empty((count, spec_of(name).width), np.float32)
    x = torch.zeros((64, 3, size, size)).contiguous(memory_format=torch.channels_last)

    def compute_features() -> None:
        extract(backbone, spec_of(name), images, size, features)

    def pass_forward() -> None:
        num_threads = torch.get_num_threads()
        torch.set_num_threads(THREADS)
        with torch.inference_mode():
            for _ in range(count // 64):
                backbone(x)
        torch.set_num_threads(num_threads)

    value = 1.0 / ratio(compute_features, pass_forward, 3)
    what = "frozen features: images per second / bare forward passes"
    yield Measurement(what, value, 0.9, "at least", f"{name}, {size} px")


# goal of a method, and options that bring every stage into a run of a few rounds
GOALS: dict[str, tuple[float, tuple[str, ...]]] = {
    "fedrobust": (1.3, ()),
    "fednoro": (1.4, ("fednoro.warmup=2",)),
    "fedcorr": (1.5, ("fedcorr.stage1=0.2",)),
    "fedgp": (1.8, ()),
    "fedfixer": (2.6, ("fedfixer.warmup=2",)),
}


# with 0.2.0: small CNN, frozen features, ResNet-18; the networks with two to three times the images
PREVIOUS_RUNS = {
    "fedrobust": ("1.10", "2.50", "1.08"),
    "fednoro": ("1.09", "1.22", "1.12"),
    "fedcorr": ("1.06", "1.68", "1.14"),
    "fedgp": ("1.50", "8.57", "1.32"),
    "fedfixer": ("1.98", "4.06", "2.08"),
}


def methods_over_fedavg(folder: Path, quick: bool) -> Iterator[Measurement]:
    """The cost of a complete run with all stages, against FedAvg.

    The sum over the rounds; a round of FedAvg follows each round of the method.
    """
    cases = {
        "small CNN, 32 px, 4 x 200": (
            8,
            ("model.name=cnn", "data.train=800", "data.image_size=32"),
        ),
        "frozen EfficientNet-Lite0, 4 x 400": (20, ("model.frozen=true", "data.train=1600")),
    }
    if not quick:
        cases["ResNet-18, 64 px, 4 x 32"] = (
            6,
            ("model.name=resnet18", "data.train=128", "data.image_size=64"),
        )
    common = ("data.test=40", "train.batch_size=32")
    for title, (rounds, sets) in cases.items():
        sets = (*sets, *common, f"train.rounds={rounds}")
        for name, (goal, options) in GOALS.items():
            place = folder / f"{title}-{name}"
            ours = Rounds(config_of(name, *sets, *options), place / "ours")
            fedavg = Rounds(config_of("fedavg", *sets), place / "fedavg")
            value = _run_ratio(ours, fedavg, rounds)
            what = f"{load_methods()[name].title} run / FedAvg run, {title}"
            previous = PREVIOUS_RUNS[name][list(cases).index(title)]
            yield Measurement(what, value, goal, note=f"{rounds} rounds", previous=previous)


def _run_ratio(ours: Rounds, reference: Rounds, rounds: int) -> float:
    our_seconds = 0.0
    reference_seconds = 0.0
    for _ in range(rounds):
        our_seconds += cpu_seconds_of(ours.step)
        reference_seconds += cpu_seconds_of(reference.step)
    return our_seconds / reference_seconds


def frozen_over_full(folder: Path, quick: bool) -> Iterator[Measurement]:
    """How much faster a round is if only a linear head is trained."""
    sets = ("model.name=efficientnet-lite0", "data.train=256", "data.test=40", "data.image_size=96")
    frozen = Rounds(config_of("fedavg", "model.frozen=true", *sets), folder / "frozen")
    full = Rounds(config_of("fedavg", "train.batch_size=32", *sets), folder / "full")
    what = "full round / frozen-backbone round, EfficientNet-Lite0, 96 px, 4 x 64"
    value = 1 / ratio(frozen.step, full.step, 3)
    yield Measurement(what, value, 200, "at least", previous="515")


SITES_CODE = """
import resource, sys, time
from pathlib import Path
from benchmarks.speed import Rounds, config_of

sets = ["data.train=4000", "data.test=40", "data.image_size=28", "train.batch_size=10"]
config = config_of("fedavg", f"data.sites={sys.argv[1]}", *sets, noise="0")
rounds = Rounds(config, Path(sys.argv[2]))
rounds.step()
start = time.process_time()
rounds.step()
rounds.step()
seconds = (time.process_time() - start) / 2
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def run_code(code: str, *arguments: str) -> list[str]:
    """Run Python code in a new process; returns the words that it prints."""
    command = [sys.executable, "-c", code, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return process.stdout.split()


def sites_scaling(folder: Path, quick: bool) -> Iterator[Measurement]:
    """The same data over 4, 40 and 400 sites: time of a round and peak memory of a new process."""
    counts = (4, 40) if quick else (4, 40, 400)
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    memory: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(2 if quick else 3):
        for count in counts:
            words = run_code(SITES_CODE, str(count), str(folder / f"sites{count}"))
            seconds[count].append(float(words[-2]))
            memory[count].append(float(words[-1]))
    for count in counts[1:]:
        ratios = [b / a for a, b in zip(seconds[4], seconds[count], strict=True)]
        what = f"round with {count} sites / with 4 sites, same data"
        yield Measurement(what, median(ratios), 1.3, previous="1.16" if count == 400 else "1.03")
        growth = median(memory[count]) / median(memory[4])
        previous = "1.00" if count == 400 else "0.99"
        what = f"peak memory with {count} sites / with 4 sites"
        yield Measurement(what, growth, 1.1, previous=previous)


FIRST_BATCH_CODE = """
import time
start = time.perf_counter()
import sys
from pathlib import Path
from fedgsca.config import load_config
from fedgsca.engine.local import open_runner
from fedgsca.train import batches

config = load_config(method="fedavg", noise__spec="0-S40-P20-C20")
runner = open_runner(config, Path(sys.argv[1]))
next(batches(runner.site("site-1"), 0))
print(time.perf_counter() - start)
"""


def start_up(folder: Path, quick: bool) -> Iterator[Measurement]:
    """Seconds of `fedgsca --help`, of `import fedgsca`, and until the first batch."""
    help_command = [sys.executable, "-m", "fedgsca", "--help"]
    times = []
    for _ in range(5):
        times.append(seconds_of(lambda: subprocess.run(help_command, stdout=subprocess.DEVNULL)))
    yield Measurement("fedgsca --help, seconds", median(times), 0.3, previous="0.24")
    code = "import time; t = time.perf_counter(); import fedgsca; print(time.perf_counter() - t)"
    times = [float(run_code(code)[-1]) for _ in range(5)]
    yield Measurement("import fedgsca, seconds", median(times), 0.1)
    run_code(FIRST_BATCH_CODE, str(folder / "first"))  # fills the cache of rendered images
    times = [float(run_code(FIRST_BATCH_CODE, str(folder / "first"))[-1]) for _ in range(3)]
    what = "from command to first batch, seconds (images cached)"
    yield Measurement(what, median(times), 5.0, previous="1.9")


Benchmark = Callable[[Path, bool], Iterator[Measurement]]
BENCHMARKS: dict[str, Benchmark] = {
    "start_up": start_up,
    "fedavg_over_bare": fedavg_over_bare,
    "fedgsca_over_fedavg": fedgsca_over_fedavg,
    "methods_over_fedavg": methods_over_fedavg,
    "frozen_runs": frozen_runs,
    "feature_pass": feature_pass,
    "frozen_over_full": frozen_over_full,
    "sites_scaling": sites_scaling,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small cases only, about two minutes")
    parser.add_argument("--only", nargs="*", choices=list(BENCHMARKS), help="some benchmarks")
    parser.add_argument("--json", type=Path, help="also write the measurements here")
    options = parser.parse_args()
    measurements = []
    torch.set_num_threads(1)
    cores = os.cpu_count()
    start = time.perf_counter()
    print(f"{cores} cores, torch {torch.__version__}; ", end="")
    print("ratios of CPU time are medians of interleaved pairs\n")
    print(f"{'what':92} {'measured':>9}  {'goal':>13}  {'0.2.0':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only or BENCHMARKS:
            for measurement in BENCHMARKS[name](Path(folder), options.quick):
                measurements.append(measurement)
                print(measurement, flush=True)
    minutes = (time.perf_counter() - start) / 60
    times = os.times()
    cpu_minutes = (sum(times[:4])) / 60  # of this process and of those that it started
    num_missed = sum(not measurement.is_met for measurement in measurements)
    print(f"\n{len(measurements)} goals, {num_missed} missed; ", end="")
    print(f"{minutes:.1f} minutes, {cpu_minutes:.1f} of CPU time")
    if options.json:
        rows = [asdict(measurement) for measurement in measurements]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
