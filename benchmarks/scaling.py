"""How the cost of a round grows: samples, classes, parameters and sites, each with its exponent.

    python -m benchmarks.scaling --out DIR [--only samples classes ...] [--largest 1e5]

Every cell is a process of its own that runs complete rounds of FedGSCA on made features, evidence
heads included: no images, one site, one thread, features in a memory map. `parameters` are rounds
of FedAvg. `sites` are complete runs of benchmarks.many_sites in which 40 sites are asked in a
round. Times are CPU seconds of one round, so that other work on the machine matters less. The
exponent is the slope between the last two cells on logarithmic axes: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.many_sites import RSS_UNIT, make_data
from fedgsca.rng import stream

ROUNDS = 6
ASKED_SITES = 40


@dataclass(frozen=True)
class Cell:
    """The size of one measurement."""

    samples: int
    width: int
    classes: int
    method: str = "fedgsca"


# what grows -> (size, cell)
SCALES: dict[str, list[tuple[int, Cell]]] = {
    "samples": [(n, Cell(n, 128, 9)) for n in (1_000, 10_000, 100_000, 1_000_000)],
    "classes": [(c, Cell(2_000, 128, c)) for c in (2, 10, 100, 1_000)],
    "parameters": [
        (100 * width, Cell(256, width, 100, "fedavg")) for width in (10**3, 10**4, 10**5, 10**6)
    ],
}
SITES = (40, 400, 4_000, 10_000)


def make_features(path: Path, cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Normal vectors around a centre of their class, memory-mapped, and labels, a fifth wrong."""
    rng = stream(0, "scaling", cell.samples, cell.width, cell.classes)
    labels = rng.integers(0, cell.classes, cell.samples)
    features = np.lib.format.open_memmap(
        path, mode="w+", dtype=np.float32, shape=(cell.samples, cell.width)
    )
    centres = rng.normal(size=(cell.classes, cell.width)).astype(np.float32)
    for start in range(0, cell.samples, 10_000):
        stop = min(start + 10_000, cell.samples)
        noise = rng.standard_normal((stop - start, cell.width), dtype=np.float32)
        features[start:stop] = centres[labels[start:stop]] * 0.3 + noise
    features.flush()
    is_wrong = rng.random(cell.samples) < 0.2
    given = np.where(is_wrong, rng.integers(0, cell.classes, cell.samples), labels)
    return np.load(path, mmap_mode="r"), given


def measure_cell(cell: Cell, folder: Path) -> dict[str, float]:
    """CPU seconds of a round and what it adds to the memory of the process, MB."""
    import torch

    from fedgsca.config import load_config
    from fedgsca.methods.base import compose_method
    from fedgsca.methods.site import RowView, Samples, Site, weights_of
    from fedgsca.methods.site_store import Store
    from fedgsca.models.build import build_head_only
    from fedgsca.models.device import prepare_device
    from fedgsca.models.training import resolve_rate

    sets = [f"train.rounds={ROUNDS}", "train.threads=1", "model.frozen=true"]
    config = load_config(None, sets, method=cell.method, noise__spec="S20")
    prepare_device(config.train)
    features, given = make_features(folder / "features.npy", cell)
    inputs: np.ndarray = RowView(features, np.arange(cell.samples))  # type: ignore[assignment]
    samples = Samples(inputs, given, cell.classes)
    model = build_head_only(cell.width, cell.classes, seed=0)
    method = compose_method(config)
    state = method.start(weights_of(model), config.seed)
    memory_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / RSS_UNIT
    start = time.process_time()
    for round_index in range(ROUNDS):
        site = Site(
            "site-1",
            samples,
            config.train.model_copy(update={"lr": resolve_rate(config, cell.width, 4)}),
            config.seed,
            model,
            torch.device("cpu"),
            Store(folder / "store"),
        )
        payload = method.broadcast(state, round_index)
        state = method.aggregate(state, [method.local_update(payload, site)])
    seconds = (time.process_time() - start) / ROUNDS
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / RSS_UNIT
    return {"round": seconds, "memory": memory - memory_before}


def run_cell(scale: str, size: int, out: Path) -> dict[str, float]:
    """Measure one cell in a new process."""
    if scale == "sites":
        make_data(out / f"data-{size}.npz", size)
        participation = min(1.0, ASKED_SITES / size)
        command = ["benchmarks.many_sites", "--out", str(out)]
        command += ["--one", "fedgsca", str(size), str(participation)]
    else:
        command = ["benchmarks.scaling", "--out", str(out), "--one", scale, str(size)]
    process = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=True
    )
    return dict(json.loads(process.stdout.splitlines()[-1]))


def slope(sizes: list[int], values: list[float]) -> str:
    """The exponent between the last two cells; empty if there is none."""
    if len(values) < 2 or min(values[-2:]) <= 0:
        return ""
    growth = math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2])
    return f"{growth:.2f}"


def print_scale(scale: str, rows: dict[int, dict[str, float]]) -> None:
    """A small table of one scale in Markdown."""
    sizes = list(rows)
    print(f"| {scale} | " + " | ".join(f"{size:,}" for size in sizes) + " | exponent |")
    print("|---" * (len(sizes) + 2) + "|")
    for name, title in (("round", "CPU seconds of a round"), ("memory", "memory, MB")):
        values = [row[name] for row in rows.values()]
        texts = " | ".join(f"{value:.3g}" for value in values)
        print(f"| {title} | {texts} | {slope(sizes, values)} |")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder for the made data")
    names = [*SCALES, "sites"]
    parser.add_argument("--only", nargs="*", choices=names, help="some of the scales")
    parser.add_argument("--largest", type=float, default=math.inf, help="leave out larger sizes")
    parser.add_argument("--one", nargs=2, metavar=("SCALE", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        scale, size = options.one
        folder = options.out / f"{scale}-{size}"
        folder.mkdir(parents=True, exist_ok=True)
        print(json.dumps(measure_cell(dict(SCALES[scale])[int(size)], folder)))
        return
    for scale in options.only or names:
        sizes = SITES if scale == "sites" else tuple(size for size, _ in SCALES[scale])
        rows = {}
        for size in sizes:
            if size <= options.largest:
                rows[size] = run_cell(scale, size, options.out)
        print_scale(scale, rows)


if __name__ == "__main__":
    main()
