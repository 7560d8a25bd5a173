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
