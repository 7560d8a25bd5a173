"""Time, memory and disk of simulations with many sites, and how they grow.

    python -m benchmarks.many_sites --out DIR [--sites 100 300 1000] [--methods fedavg fedgsca]

Every run is a process of its own: the small CNN on 16-pixel images of coloured noise, 12 training
images per site, six rounds, one thread. Times are CPU times, so that other work on the machine
matters less. The exponent of a quantity is its slope between the smallest and the largest number
of sites on logarithmic axes: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from fedgsca.rng import stream

CLASSES = 4
SIDE = 16
IMAGES_PER_SITE = 12
ROUNDS = 6
# getrusage counts bytes on macOS and kilobytes elsewhere
RSS_UNIT = 1e6 if sys.platform == "darwin" else 1e3
QUANTITIES = {
    "round": "CPU seconds per round",
    "memory": "peak memory, MB",
    "start": "CPU seconds before the first round",
    "line": "kB per line of metrics.jsonl",
    "disk": "run folder, MB",
    "files": "files in the run folder",
    "report_seconds": "CPU seconds of the report",
    "report_size": "size of the report, MB",
}


def make_data(path: Path, num_sites: int) -> Path:
    """Images whose colour tells the class, IMAGES_PER_SITE for every site."""
    if path.exists():
        return path
    arrays = {}
    for split, count in (("train", num_sites * IMAGES_PER_SITE), ("test", 200)):
        labels = np.arange(count) % CLASSES
        images = stream(0, "many sites", split).normal(110, 40, (count, SIDE, SIDE, 3))
        images[..., 0] += 20 * labels[:, None, None]
        arrays[f"{split}_images"] = np.clip(images, 0, 255).astype(np.uint8)
        arrays[f"{split}_labels"] = labels[:, None].astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def measure_run(data: Path, out: Path, sites: int, method: str, participation: float) -> None:
    """Run an experiment in this process and print what it took, as one JSON object."""
    from fedgsca.config import load_config
    from fedgsca.federation.base import RunObserver
    from fedgsca.federation.records import RoundRecord
    from fedgsca.federation.rounds import run
    from fedgsca.federation.simulation import Experiment
    from fedgsca.lab.report.html_page import write_report

    class Clock(RunObserver):
        times: list[float] = []  # noqa: RUF012

        def on_start(self, experiment: Experiment, first_round: int) -> None:
            self.times.append(time.process_time())

        def on_round_done(self, record: RoundRecord, seconds: float) -> None:
            self.times.append(time.process_time())

    config = load_config(
        method=method,
        data__source=str(data),
        data__sites=sites,
        noise__spec="S40",
        model__name="cnn",
        train__rounds=ROUNDS,
        train__threads=1,
        train__device="cpu",
        federation__participation=participation,
    )
    start = time.process_time()
    run(config, out, observer=Clock())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / RSS_UNIT
    report_start = time.process_time()
    report = write_report(out)
    report_seconds = time.process_time() - report_start
    files = [path for path in out.rglob("*") if path.is_file()]
    log_size = (out / "metrics.jsonl").stat().st_size
    row = {
        "sites": sites,
        "method": method,
        "participation": participation,
        "start": Clock.times[0] - start,
        "round": float(np.median(np.diff(Clock.times))),
        "memory": memory,
        "line": log_size / ROUNDS / 1e3,
        "disk": sum(path.stat().st_size for path in files) / 1e6,
        "files": len(files),
        "report_seconds": report_seconds,
        "report_size": report.stat().st_size / 1e6,
    }
    print(json.dumps(row))


def print_rows(rows: list[dict[str, float]]) -> None:
    """A table of all runs, and the exponents over the runs with all sites."""
    for name, title in QUANTITIES.items():
        values = "  ".join(f"{row[name]:10.4g}" for row in rows)
        exponent = ""
        full = [row for row in rows if row["participation"] == 1.0]
        if len(full) > 1 and full[0][name] > 0:
            growth = math.log(full[-1][name] / full[0][name])
            exponent = f"{growth / math.log(full[-1]['sites'] / full[0]['sites']):.2f}"
        print(f"{title:36}{values}  {exponent}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sites", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fedgsca"])
    parser.add_argument("--one", nargs=3, metavar=("METHOD", "SITES", "PARTICIPATION"))
    options = parser.parse_args()
    if options.one:
        method, sites, participation = options.one
        data = options.out / f"data-{sites}.npz"
        folder = options.out / f"{method}-{sites}-{participation}"
        measure_run(data, folder, int(sites), method, float(participation))
        return
    for method in options.methods:
        rows = []
        cells = [(sites, 1.0) for sites in options.sites] + [(options.sites[-1], 0.1)]
        for sites, participation in cells:
            make_data(options.out / f"data-{sites}.npz", sites)
            command = [sys.executable, "-m", "benchmarks.many_sites", "--out", str(options.out)]
            command += ["--one", method, str(sites), str(participation)]
            result = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append(json.loads(result.stdout.splitlines()[-1]))
        titles = "  ".join(f"{sites} x {share:g}".rjust(10) for sites, share in cells)
        print(f"{method:36}{titles}  exponent")
        print_rows(rows)


if __name__ == "__main__":
    main()
