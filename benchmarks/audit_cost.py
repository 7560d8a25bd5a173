"""What evidence for the audit adds to a round of a site, in CPU time.

    python -m benchmarks.audit_cost [--repeat 5]

The same round of one site with and without evidence, alternating, one thread; the median of the
ratios.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

from fedgsca.config import load_config
from fedgsca.engine.local import SiteRunner, open_runner
from fedgsca.site import weights_of

CASES = {
    "FedAvg, small CNN": ("fedavg", ("model.name=cnn",)),
    "FedGSCA, small CNN": ("fedgsca", ("model.name=cnn",)),
    "FedAvg, frozen features": ("fedavg", ("model.frozen=true",)),
    "FedGSCA, frozen features": ("fedgsca", ("model.frozen=true",)),
}
COMMON = (
    "data.train=800",
    "data.test=60",
    "data.sites=2",
    "train.threads=1",
    "train.rounds=20",
)


def make_runner(folder: Path, method: str, sets: tuple[str, ...], *, enabled: bool) -> SiteRunner:
    config = load_config(None, [*COMMON, *sets], method=method, audit__enabled=enabled)
    return open_runner(config, folder / str(enabled))


def round_seconds(runner: SiteRunner, round_index: int) -> float:
    """CPU seconds of one round of a site."""
    state = runner.method.start(weights_of(runner.model), runner.experiment.config.seed)
    payload = runner.method.broadcast(state, round_index)
    start = time.process_time()
    runner.run_round("site-1", payload)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    for name, (method, sets) in CASES.items():
        with_evidence = []
        without = []
        with tempfile.TemporaryDirectory() as folder:
            runner = make_runner(Path(folder), method, sets, enabled=True)
            plain_runner = make_runner(Path(folder), method, sets, enabled=False)
            # the first call warms up
            round_seconds(runner, 4)
            round_seconds(plain_runner, 4)
            for i in range(repeat):
                with_evidence.append(round_seconds(runner, 5 + i))
                without.append(round_seconds(plain_runner, 5 + i))
        ratio = median(a / b for a, b in zip(with_evidence, without, strict=True))
        print(
            f"{name}: {1000 * median(with_evidence):.0f} ms with evidence, "
            f"{1000 * median(without):.0f} ms without: x {ratio:.2f}"
        )


if __name__ == "__main__":
    main()
