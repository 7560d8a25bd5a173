"""Every speed goal as ours / reference: both sides interleaved in one process, medians of ratios.

    python -m benchmarks.speed [--quick] [--only NAME ...] [--out FILE.json] [--docs FILE.md]
    python -m benchmarks.speed --from FILE.json --docs docs/performance.md

With --only, the other benchmarks in FILE.json are kept, so that it can be filled step by step.
--docs writes the table between the two markers of a page, --from without measuring anything.

Ratios are of CPU time with one thread: what a round takes on a machine that does nothing else,
apart from waiting for the disk. All cases together should take less than ten minutes on such a
machine: they are as small as the ratios allow. Only ratios are results: seconds on a shared machine
vary by a third. Every row has its goal and the value of 0.2.0; a goal that is missed stays in the
table, with the reason if we know it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.references import Sites, Tensors, bare_round, published_round
from fedgsca.config import Config, ModelConfig, load_config
from fedgsca.federation.local import LocalEngine, SiteRunner, open_runner
from fedgsca.methods.base import ServerState, load_methods
from fedgsca.methods.site import weights_of
from fedgsca.methods.train import to_tensor
from fedgsca.models.build import build_classifier
from fedgsca.rng import stream


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
CONVOLUTIONS = "convolutions, the same on both sides, are nearly all of a round"
SECOND_MODEL = "two models that judge each other in every batch"
BATCHES = "steps of SGD with the credal loss are two fifths of it, evidence heads a sixth"
GRAPH = "a graph network over all samples, beside a head of one product"


def config_of(
    method: str, *sets: str, data: str = "synthetic", noise: str = "0-S40-P20-C20"
) -> Config:
    """A configuration without evidence heads and audit, with one thread.

    Both cost every method the same. Two threads wait for each other in a busy loop, which on a
    busy machine takes most of the time.
    """
    base = ["federation.keep_losses=false", "audit.enabled=false"]
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
    cases = {"small CNN, 28 px, 4 x 128": ("model.name=cnn", "data.train=512", 28)}
    if not quick:
        cases["ResNet-18, 64 px, 4 x 16"] = ("model.name=resnet18", "data.train=64", 64)
    for title, (model, size, pixels) in cases.items():
        sets = (model, size, f"data.image_size={pixels}", "train.batch_size=32", "data.test=40")
        config = config_of("fedavg", "train.augment=none", *sets)
        ours = Rounds(config, folder / title)
        sites = dict(ours.runner.experiment.sites)
        num_classes = ours.runner.experiment.table.num_classes
        bare_model = build_classifier(config.model.name, num_classes, seed=0)
        reference = _bare_loop(bare_model, sites, config)
        value = ratio(ours.step, reference, 3)
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


# as measured with 0.2.0 on two to four times as many images (docs/results.md)
PREVIOUS = {
    "FedAvg round / bare loop, small CNN, 28 px, 4 x 128": "1.02",
    "FedAvg round / bare loop, ResNet-18, 64 px, 4 x 16": "1.01",
    "FedAvg round / published-style loop, both with rotation, small CNN, 28 px, 4 x 128": "0.61",
    "FedAvg round / published-style loop, both with rotation, ResNet-18, 64 px, 4 x 16": "0.92",
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
    noise: str = "0-S40-P20-C20"
    is_quick: bool = False


SELECTION_CASES = {
    "fedgsca_cnn": SelectionCase(
        "small CNN, 32 px, 4 x 200",
        ("model.name=cnn", "data.train=800", "data.image_size=32"),
        warm_rounds=4,
        repeats=5,
        previous=("1.29", "1.30"),
        is_quick=True,
    ),
    "fedgsca_resnet18": SelectionCase(
        "ResNet-18, 64 px, 4 x 32",
        ("model.name=resnet18", "data.train=128", "data.image_size=64", "train.batch_size=16"),
        warm_rounds=4,
        repeats=3,
        previous=("1.24", "1.17"),
    ),
    "fedgsca_resnet50": SelectionCase(
        "ResNet-50, 224 px, 2 x 4",
        (
            "model.name=resnet50",
            "data.train=8",
            "data.sites=2",
            "data.image_size=224",
            "train.batch_size=4",
        ),
        warm_rounds=0,
        repeats=3,
        previous=("", "1.35"),
        noise="S40",
    ),
}


def fedgsca_over_fedavg(name: str, folder: Path, quick: bool) -> Iterator[Measurement]:
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
    case = SELECTION_CASES[name]
    if quick and not case.is_quick:
        return
    sets = (*common, *case.sets)
    fedavg = Rounds(config_of("fedavg", *sets, noise=case.noise), folder / case.title)
    config = config_of("fedgsca-e", *sets, noise=case.noise)
    yield from _compare_rounds(case, Rounds(config, folder / f"{case.title}-e"), fedavg)


def _compare_rounds(case: SelectionCase, fedgsca: Rounds, fedavg: Rounds) -> Iterator[Measurement]:
    """Rounds of the warm-up, then those in which FedGSCA-E selects."""
    selecting, warming = case.previous
    name = f"FedGSCA-E round / FedAvg round, {case.title}"
    reason = EXTRA_PASS
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
    from fedgsca.federation.rounds import run
    from fedgsca.federation.simulation import prepare

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
        title = load_methods()[method].card.title
        what = f"{title} run / FedAvg run, frozen, 4 x 1,000, {num_rounds} rounds"
        value = median(ratios)
        yield Measurement(what, value, goal, "at most", "with files and audit", previous, reason)
        if method == "fedgsca":
            what = f"FedGSCA run, frozen, 4 x 1,000, {num_rounds} rounds, CPU seconds"
            seconds_goal = 3.0 * num_rounds / 60
            yield Measurement(what, median(times), seconds_goal, reason=BATCHES)


@dataclass(frozen=True)
class Pictures:
    """Files whose features are computed, at the sizes that `fedgsca run` chooses for them."""

    width: int
    height: int
    # pixels after decoding, and at the input of the network
    size: int
    # a folder has costs of its own, which few small pictures would have to bear
    batches: int


NETWORK = "efficientnet-lite0"
PICTURES = (Pictures(96, 96, 96, 8), Pictures(600, 450, 224, 1))


def feature_pass(folder: Path, quick: bool) -> Iterator[Measurement]:
    """Computing frozen features against bare forward passes on tensors that are in memory.

    CPU time, which is what decoding and passes share: both can use all cores. One thread, because
    the waiting of two would count as CPU time.
    """
    from unittest.mock import patch

    from fedgsca.models.features import VARIABLE

    single = patch.dict(os.environ, {VARIABLE: "1"})  # the time of other processes is not seen
    with patch("fedgsca.models.features.THREADS", 1), single:
        for pictures in PICTURES:
            yield from _feature_rows(folder / f"pictures-{pictures.width}", pictures, quick)
    yield from feature_workers()


def _feature_rows(folder: Path, pictures: Pictures, quick: bool) -> Iterator[Measurement]:
    from fedgsca.data.load import load
    from fedgsca.models.build import build_frozen, feature_width
    from fedgsca.models.features import BATCH, FeaturePass, extract

    model = ModelConfig(name=NETWORK, frozen=True, feature_size=pictures.size)
    count = BATCH * (1 if quick else pictures.batches)
    feature_pass = FeaturePass(build_frozen(model, seed=0), model)
    features = np.empty((count, feature_width(model)), np.float32)
    caches = (folder / f"cache-{number}" for number in range(100))
    root = folder / "files"
    write_pictures(root, count, pictures.width, pictures.height)

    def decode() -> np.ndarray:
        return load(str(root), image_size=pictures.size, cache_dir=next(caches)).images

    def compute(images: np.ndarray) -> None:
        extract(feature_pass.backbone, model, images, features)

    images = decode()
    # the same batches as in the extraction
    batches = [feature_pass.prepare(images[i : i + BATCH]) for i in range(0, count, BATCH)]
    reference = partial(_pass_forward, feature_pass.backbone, batches)
    title = f"{pictures.width} x {pictures.height} px"
    for source, function in {
        f"decoded {title} images": lambda: compute(images),
        f"a folder of {title} jpg files": lambda: compute(decode()),
    }.items():
        value = 1.0 / ratio(function, reference, 3)
        what = f"frozen features of {source}: speed / bare forward passes"
        yield Measurement(what, value, 0.9, "at least", f"{NETWORK}, {pictures.size} px")


def _pass_forward(backbone: nn.Module, batches: Sequence[Tensor]) -> None:
    with torch.inference_mode():
        for batch in batches:
            backbone(batch)


def write_pictures(root: Path, count: int, width: int, height: int) -> None:
    """Jpg files of smooth coloured noise with some grain, in two folders of classes."""
    from PIL import Image

    rng = stream(0, "pictures", width)
    for index in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (15, 20, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.int16)
        pixels = np.clip(smooth + rng.integers(-12, 13, smooth.shape), 0, 255).astype(np.uint8)
        path = root / f"class-{index % 2}" / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, quality=90)


def feature_workers(batches: int = 40) -> Iterator[Measurement]:
    """The duration with worker processes; on machines with at least four cores, two per worker."""
    from fedgsca.models.build import build_frozen, feature_width
    from fedgsca.models.features import BATCH, THREADS, VARIABLE, count_cores, extract

    num_workers = count_cores() // THREADS
    if num_workers < 2:
        return
    model = ModelConfig(name=NETWORK, frozen=True)
    backbone = build_frozen(model, seed=0)
    num_images = batches * BATCH * num_workers
    shape = (num_images, model.feature_size, model.feature_size, 3)
    images = stream(0, "feature workers").integers(0, 256, shape, dtype=np.uint8)
    features = np.empty((num_images, feature_width(model)), np.float32)
    seconds = {}
    for workers in (1, num_workers):
        os.environ[VARIABLE] = str(workers)
        seconds[workers] = seconds_of(lambda: extract(backbone, model, images, features))
    del os.environ[VARIABLE]
    what = f"frozen features with {num_workers} worker processes / with one process, duration"
    yield Measurement(what, seconds[num_workers] / seconds[1], 1.25 / num_workers)


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
        "small CNN, 32 px, 4 x 100": (
            8,
            ("model.name=cnn", "data.train=400", "data.image_size=32"),
        ),
        "frozen EfficientNet-Lite0, 4 x 400": (20, ("model.frozen=true", "data.train=1600")),
    }
    if not quick:
        cases["ResNet-18, 64 px, 4 x 16"] = (
            4,
            ("model.name=resnet18", "data.train=64", "data.image_size=64"),
        )
    common = ("data.test=40", "train.batch_size=32")
    for title, (rounds, sets) in cases.items():
        sets = (*sets, *common, f"train.rounds={rounds}")
        for name, (goal, options) in GOALS.items():
            place = folder / f"{title}-{name}"
            ours = Rounds(config_of(name, *sets, *options), place / "ours")
            fedavg = Rounds(config_of("fedavg", *sets), place / "fedavg")
            value = _run_ratio(ours, fedavg, rounds)
            what = f"{load_methods()[name].card.title} run / FedAvg run, {title}"
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
    sets = ("model.name=efficientnet-lite0", "data.train=128", "data.test=40", "data.image_size=96")
    frozen = Rounds(config_of("fedavg", "model.frozen=true", *sets), folder / "frozen")
    full = Rounds(config_of("fedavg", "train.batch_size=32", *sets), folder / "full")
    what = "full round / frozen-backbone round, EfficientNet-Lite0, 96 px, 4 x 32"
    value = 1 / ratio(frozen.step, full.step, 3)
    yield Measurement(what, value, 200, "at least", previous="515")


SITES_CODE = """
import resource, sys, time
from pathlib import Path
from benchmarks.speed import Rounds, config_of

sets = ["data.train=2000", "data.test=40", "data.image_size=28", "train.batch_size=5"]
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
    for _ in range(2):
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
from fedgsca.federation.local import open_runner
from fedgsca.methods.train import batches

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
    **{name: partial(fedgsca_over_fedavg, name) for name in SELECTION_CASES},
    "methods_over_fedavg": methods_over_fedavg,
    "frozen_runs": frozen_runs,
    "feature_pass": feature_pass,
    "frozen_over_full": frozen_over_full,
    "sites_scaling": sites_scaling,
}


# ---- results ----

BEGIN, END = "<!-- make bench: begin -->", "<!-- make bench: end -->"


@dataclass(frozen=True)
class BenchmarkResult:
    """The rows of one benchmark, and what it took to measure them."""

    name: str
    rows: tuple[Measurement, ...]
    seconds: float
    # of this process and of those that it started
    cpu_seconds: float


Results = dict[str, BenchmarkResult]


def read_results(path: Path) -> Results:
    """The results of a file; none if it does not exist."""
    if not path.exists():
        return {}
    results = {}
    for tree in json.loads(path.read_text())["benchmarks"]:
        rows = tuple(Measurement(**row) for row in tree["rows"])
        results[tree["name"]] = BenchmarkResult(**{**tree, "rows": rows})
    return results


def write_results(path: Path, results: Results) -> None:
    """All results, in the order of BENCHMARKS."""
    trees = [asdict(results[name]) for name in BENCHMARKS if name in results]
    tree = {"cores": os.cpu_count(), "torch": torch.__version__, "benchmarks": trees}
    path.write_text(json.dumps(tree, indent=1) + "\n")


def describe_total(results: Results) -> str:
    """ "31 goals, 9 missed; 7.5 minutes, 7.1 of CPU time"."""
    rows = [row for result in results.values() for row in result.rows]
    num_missed = sum(not row.is_met for row in rows)
    minutes = sum(result.seconds for result in results.values()) / 60
    cpu_minutes = sum(result.cpu_seconds for result in results.values()) / 60
    text = f"{len(rows)} goals, {num_missed} missed; "
    return text + f"{minutes:.1f} minutes, {cpu_minutes:.1f} of CPU time"


def results_to_markdown(results: Results) -> str:
    """The table of a page of the documentation."""
    from fedgsca.support.markdown import markdown_table

    cells = []
    for name in BENCHMARKS:
        for row in results[name].rows if name in results else ():
            what = f"{row.what} ({row.note})" if row.note else row.what
            reason = "" if row.is_met else f"missed{': ' if row.reason else ''}{row.reason}"
            cells.append(
                [what, f"{row.ours:.2f}", f"{row.better} {row.goal:g}", row.previous, reason]
            )
    lines = markdown_table(["what", "measured", "goal", "0.2.0", ""], cells)
    missing = [name for name in BENCHMARKS if name not in results]
    if missing:
        lines.append(f"Not measured: {', '.join(missing)}.")
    return "\n".join([*lines, describe_total(results) + "."])


def write_docs(path: Path, results: Results) -> None:
    """Put the table between the markers of a page."""
    text = path.read_text("utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit(f"{path} needs one line {BEGIN} and one line {END}; the table goes between them")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    content = f"{before}{BEGIN}\n\n{results_to_markdown(results)}\n\n{END}{after}"
    path.write_text(content, "utf-8")


def total_cpu() -> float:
    """CPU seconds of this process and of those that it has started and that have ended."""
    return sum(os.times()[:4])


def measure(name: str, folder: Path, quick: bool) -> BenchmarkResult:
    """Run one benchmark and print its rows as they come."""
    start = time.perf_counter()
    start_cpu = total_cpu()
    rows = []
    for row in BENCHMARKS[name](folder, quick):
        rows.append(row)
        print(row, flush=True)
    seconds = time.perf_counter() - start
    return BenchmarkResult(name, tuple(rows), seconds, total_cpu() - start_cpu)


def main() -> None:
    """Measure what is asked for; print, store and document it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small cases only, about two minutes")
    parser.add_argument("--only", nargs="*", choices=list(BENCHMARKS), help="some benchmarks")
    parser.add_argument("--out", type=Path, help="also write the results to this json file")
    parser.add_argument("--docs", type=Path, help="also write the table into this page")
    parser.add_argument("--from", dest="source", type=Path, help="measure nothing, read this file")
    options = parser.parse_args()
    if options.source is not None:
        results = read_results(options.source)
        if not results:
            parser.error(f"there are no results in {options.source}")
        print(results_to_markdown(results))
    else:
        names = options.only or list(BENCHMARKS)
        # a complete run begins with an empty file
        results = read_results(options.out) if options.out and options.only else {}
        results |= measure_all(names, options.quick, options.out, results)
    if options.docs:
        write_docs(options.docs, results)


def measure_all(
    names: Sequence[str], quick: bool, out: Path | None, earlier_results: Results
) -> Results:
    """Run benchmarks one after the other; `out` is written after each, with the earlier ones."""
    torch.set_num_threads(1)
    print(f"{os.cpu_count()} cores, torch {torch.__version__}; ", end="")
    print("ratios of CPU time are medians of interleaved pairs\n")
    print(f"{'what':92} {'measured':>9}  {'goal':>13}  {'0.2.0':>9}")
    results: Results = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for position, name in enumerate(names, start=1):
            print(f"[{position}/{len(names)}] {name} ...", file=sys.stderr, flush=True)
            results[name] = measure(name, Path(folder), quick)
            took = f"{results[name].seconds:.0f} s, {results[name].cpu_seconds:.0f} s of CPU time"
            elapsed = sum(result.seconds for result in results.values())
            line = f"[{position}/{len(names)}] {name}: {took}; {elapsed / 60:.1f} minutes so far"
            print(line, file=sys.stderr, flush=True)
            if out is not None:
                write_results(out, earlier_results | results)
    print(f"\n{describe_total(results)}")
    return results


if __name__ == "__main__":
    main()
