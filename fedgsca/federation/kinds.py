"""The built-in values of `--engine`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedgsca.federation.base import RunObserver, register_engine

if TYPE_CHECKING:
    from pathlib import Path

    from fedgsca.config import Config
    from fedgsca.federation.records import RunResult


@register_engine("local", "all sites on this machine, in --jobs processes")
def run_local(
    config: Config, out: Path, *, jobs: int = 1, observer: RunObserver | None = None
) -> RunResult | None:
    """Run or continue the experiment without any network."""
    from fedgsca.federation.rounds import run

    return run(config, out, jobs=jobs, observer=observer)


@register_engine("flower-sim", "Flower's simulation on Ray, with the same result")
def run_flower_simulation(
    config: Config, out: Path, *, jobs: int = 1, observer: RunObserver | None = None
) -> RunResult | None:
    """Run or continue the experiment as a Flower simulation; needs the extra `flower-sim`."""
    from fedgsca.hospital.messages import require_flower

    require_flower()
    from fedgsca.hospital.flower_simulation import simulate

    return simulate(config, out, jobs=jobs, observer=observer)
