"""The coordinator under `flwr run`: progress as lines in the log, and a report at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedgsca.engine.flower import FlowerServerApp, server_app
from fedgsca.engine.progress import LineDisplay
from fedgsca.report.html_page import write_report

if TYPE_CHECKING:
    from fedgsca.config import Config
    from fedgsca.engine.base import RunObserver


def coordinator_app() -> FlowerServerApp:
    """The ServerApp that the app folder names (flower_app.py)."""
    return server_app(_make_observer, on_finish=write_report)


def _make_observer(config: Config) -> RunObserver:
    return LineDisplay(runs=1).observe(f"{config.method} over Flower")
