"""How long FedGSCA takes to reach FedAvg's best F1, as a share of the time that FedAvg needs.

    python -m benchmarks.time_to_peak COMPARE_DIR

Reads the runs of a finished comparison. Time is the exchange with the sites (training and
selection), without evaluation and files.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from fedgsca.paper.collect_scores import FinishedRun, read_run

from fedgsca.experiment.records import RunResult
from fedgsca.grid.comparison import read_comparison


@dataclass(frozen=True)
class Peak:
    """The first round, from 1, in which a run reaches an F1, and the seconds until then."""

    round: int
    seconds: float


def read_curves(folder: Path) -> FinishedRun:
    result = RunResult.from_json(json.loads((folder / "result.json").read_bytes()))
    return read_run(folder, result)


def first_peak(f1: Sequence[float], seconds: Sequence[float], peak: float) -> Peak | None:
    for i, (score, time) in enumerate(zip(f1, seconds, strict=True)):
        if score >= peak:
            return Peak(i + 1, time)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    paths = {}
    for cell in read_comparison(folder).cells:
        paths[cell.method, cell.noise, cell.seed] = folder / cell.path
    ratios = []
    for (method, noise, seed), path in sorted(paths.items()):
        if method != "fedgsca":
            continue
        fedavg = read_curves(paths["fedavg", noise, seed])
        fedgsca = read_curves(path)
        best = max(fedavg.f1)
        fedavg_peak = first_peak(fedavg.f1, fedavg.seconds, best)
        fedgsca_peak = first_peak(fedgsca.f1, fedgsca.seconds, best)
        assert fedavg_peak is not None  # it is FedAvg's own best
        text = f"{noise:14} seed {seed}: FedAvg's best {best:.1f} in round {fedavg_peak.round}"
        if fedgsca_peak is None:
            ratios.append(math.inf)
            print(f"{text}, never reached by FedGSCA")
            continue
        ratios.append(fedgsca_peak.seconds / fedavg_peak.seconds)
        print(
            f"{text}, reached by FedGSCA in round {fedgsca_peak.round}; time ratio {ratios[-1]:.2f}"
        )
    if not ratios:
        parser.error(f"{folder} has no finished run of FedGSCA")
    print(f"median of ratios {median(ratios):.2f} (goal 0.5, the paper 0.54)")


if __name__ == "__main__":
    main()
