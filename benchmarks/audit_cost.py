"""What evidence adds to a round of a site, in CPU time.

    python -m benchmarks.audit_cost [--repeat 5]

The same round of one site with and without evidence, in turns, one thread; the median of the ratios.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from fedgsca.config import load_config
from fedgsca.engine.local import SiteRunner, open_runner
from fedgsca.site import weights_of

CASES: dict[str, dict[str, Any]] = {
    "FedAvg, small CNN": {"method": "fedavg", "model__name": "cnn"},
    "FedGSCA, small CNN": {"method": "fedgsca", "model__name": "cnn"},
    "FedAvg, frozen features": {"method": "fedavg", "model__frozen": True},
    "FedGSCA, frozen features": {"method": "fedgsca", "model__frozen": True},
}


def runner(folder: Path, enabled: bool, case: dict[str, Any]) -> SiteRunner:
    config = load_config(
        data__train=800,
        data__test=60,
        data__sites=2,
        train__threads=1,
        train__rounds=20,
        audit__enabled=enabled,
        **case,
    )
    return open_runner(config, folder / str(enabled))


def seconds(made: SiteRunner, round: int) -> float:
    payload = made.method.broadcast(made.method.start(weights_of(made.model), seed=0), round)
    began = time.process_time()
    made.run_round("site-1", payload)
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            on, off = runner(Path(folder), True, case), runner(Path(folder), False, case)
            seconds(on, 4), seconds(off, 4)  # the first call warms up
            pairs = [(seconds(on, 5 + i), seconds(off, 5 + i)) for i in range(repeat)]
        a, b = median(p[0] for p in pairs), median(p[1] for p in pairs)
        print(
            f"{name}: {1000 * a:.0f} ms with evidence, {1000 * b:.0f} ms without: x {median(x / y for x, y in pairs):.2f}"
        )


if __name__ == "__main__":
    main()
