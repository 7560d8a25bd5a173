"""From `--track`, the configuration or an earlier session to the trackers of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from fedgsca.config import Config
from fedgsca.lab.plan import ComparisonPlan
from fedgsca.lab.runner import GridObserver
from fedgsca.lab.tracking.base import TrackTarget, parse_targets, require_packages
from fedgsca.lab.tracking.observers import (
    TRACK_FILE,
    TrackingGridObserver,
    TrackingObserver,
    experiment_name,
)


def find_targets(track: str | None, config: Config, folder: Path) -> tuple[TrackTarget, ...]:
    """What to track with: the option, else the configuration, else as in the earlier session.

    A tracker that is not installed is an error here, before anything runs.
    """
    text = track or config.track or _read_earlier(folder)
    targets = parse_targets(text)
    require_packages(targets)
    return targets


def _read_earlier(folder: Path) -> str | None:
    try:
        tree = json.loads((folder / TRACK_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    track = tree.get("track") if isinstance(tree, dict) else None
    return track if isinstance(track, str) else None


def track_run(
    warn: Callable[[str], None], folder: Path, config: Config, targets: tuple[TrackTarget, ...]
) -> TrackingObserver | None:
    """The observer of a run that writes to trackers; None if there are none."""
    if not targets:
        return None
    name = folder.resolve().name
    return TrackingObserver(warn, folder, config, targets, name=name, store=folder.parent)


def track_comparison(
    inner: GridObserver,
    out: Path,
    plan: ComparisonPlan,
    targets: tuple[TrackTarget, ...],
    warn: Callable[[str], None],
) -> TrackingGridObserver | None:
    """The observer of a comparison that writes to trackers; None if there are none."""
    if not targets:
        return None
    experiment = experiment_name(plan.cells()[0].config)
    return TrackingGridObserver(
        inner, out, targets, warn, experiment=experiment, settings=_plan_settings(plan)
    )


def _plan_settings(plan: ComparisonPlan) -> dict[str, str]:
    keys = ("methods", "noises", "seeds", "ceiling", "clean")
    return {key: str(getattr(plan, key)) for key in keys}
