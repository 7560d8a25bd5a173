"""How long until FedGSCA reaches FedAvg's best F1, as a share of the time FedAvg itself needs for it.

    python -m benchmarks.time_to_peak COMPARE_DIR

Reads the cells of a finished comparison. Time is the exchange with the sites (training and selection), without evaluation and files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median

from fedgsca.paper.collect_scores import read_run


def curve(cell: Path) -> list[tuple[float, float]]:
    """(seconds so far, F1) after every round."""
    run = read_run(cell, {})
    return list(zip(run.seconds, run.f1, strict=True))


def main() -> None:
    folder = Path(sys.argv[1])
    compare = json.loads((folder / "compare.json").read_text())
    paths = {
        (cell["method"], cell["noise"], cell["seed"]): folder / cell["path"]
        for cell in compare["cells"]
    }
    shares = []
    for (method, noise, seed), path in sorted(paths.items()):
        if method != "fedgsca":
            continue
        fedavg, ours = curve(paths["fedavg", noise, seed]), curve(path)
        peak = max(f1 for _, f1 in fedavg)
        needed = next(seconds for seconds, f1 in fedavg if f1 == peak)
        reached = next((seconds for seconds, f1 in ours if f1 >= peak), None)
        share = "never" if reached is None else f"{reached / needed:.2f}"
        shares.append(float("inf") if reached is None else reached / needed)
        rounds = [
            next((i + 1 for i, (_, f1) in enumerate(c) if f1 >= peak), None) for c in (fedavg, ours)
        ]
        print(
            f"{noise:14} seed {seed}: FedAvg's best {peak:.1f} in round {rounds[0]}, FedGSCA there in round {rounds[1]}; time ratio {share}"
        )
    print(f"median of ratios {median(shares):.2f} (goal 0.5, the paper 0.54)")


if __name__ == "__main__":
    main()
