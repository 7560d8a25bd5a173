"""A run folder as the report sees it. Tolerant: whatever an unfinished, older or damaged run lacks is simply absent."""

from __future__ import annotations

import contextlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.errors import RunFolderError
from fedgsca.experiment.run_folder import read_lines

Tree = Mapping[str, Any]
LAST = 5  # rounds in the headline's mean


@dataclass(frozen=True)
class Losses:
    """The newest selection of one site: losses as the selector saw them, and what it made of them."""

    losses: np.ndarray  # (n,)
    clean: np.ndarray  # (n,) bool
    selector: np.ndarray  # (6,) means, variances, weights
    cut: float  # probability of "clean" below which a label is flagged
    wrong: np.ndarray | None  # (n,) bool, simulations only
    round: int


@dataclass(frozen=True)
class Run:
    """All that a report needs of one run."""

    path: Path
    config: Tree
    config_text: str
    setup: Tree
    metrics: Sequence[Tree]
    timing: Sequence[Tree]
    result: Tree | None  # None: the run is not finished
    losses: Mapping[str, Losses] = field(default_factory=dict)

    @property
    def method(self) -> str:
        return str(
            self.config.get("method") or (self.result or {}).get("method") or "unknown method"
        )

    @property
    def planned(self) -> int:
        """Rounds asked for."""
        return int(
            self.config.get("train", {}).get("rounds")
            or (self.result or {}).get("rounds")
            or len(self.metrics)
        )

    @property
    def evaluated(self) -> list[Tree]:
        """Lines of rounds in which the global model was tested."""
        return [line for line in self.metrics if number(line.get("f1")) is not None]

    @property
    def sites(self) -> list[str]:
        """All sites, in the order of the setup, then any that only the log knows."""
        seen = (name for line in self.metrics for name in line.get("sites", {}))
        return list(dict.fromkeys([*self.setup.get("sites", {}), *sorted(seen)]))

    @property
    def classes(self) -> list[str]:
        """Class names; without a setup, numbers."""
        named = [str(name) for name in self.setup.get("data", {}).get("classes", [])]
        size = next((len(line["confusion"]) for line in self.evaluated if line.get("confusion")), 0)
        return named if len(named) >= size else [f"class {i}" for i in range(size)]

    @property
    def selecting_from(self) -> int | None:
        """The first round in which a site divided its labels; None: no round, or a method that does not."""
        return next(
            (
                int(line["round"])
                for line in self.metrics
                if any(map(selects, line.get("sites", {}).values()))
            ),
            None,
        )

    def series(self, site: str, key: str) -> tuple[list[int], list[float]]:
        """Rounds, from 1, and values of one number of one site, while it selects."""
        points = [
            (int(line["round"]) + 1, value)
            for line in self.metrics
            if selects(line.get("sites", {}).get(site, {}))
            and (value := number(line["sites"][site].get(key))) is not None
        ]
        return [x for x, _ in points], [y for _, y in points]

    def realised(self, site: str) -> Tree | None:
        """What the noise did to a site's labels, where it is known."""
        found = self.setup.get("sites", {}).get(site, {}).get("realised")
        return (
            found if isinstance(found, Mapping) and number(found.get("rate")) is not None else None
        )

    @property
    def last_selection(self) -> Mapping[str, Tree]:
        """Per site, the log of the last round in which it selected."""
        newest: dict[str, Tree] = {}
        for line in self.metrics:
            newest |= {name: site for name, site in line.get("sites", {}).items() if selects(site)}
        return {name: newest[name] for name in self.sites if name in newest}


def selects(site: Tree) -> bool:
    """Did the site divide its labels into clean and suspect this round? During warm-up all thresholds are zero."""
    return (
        any(site.get("thresholds") or ())
        or number(site.get("noisy_precision")) is not None
        or bool(site.get("delta"))
    )


def number(value: Any) -> float | None:
    """A finite number, or None."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def read_run(path: Path, *, with_losses: bool = True) -> Run:
    if not (path / "config.toml").is_file() and not (path / "metrics.jsonl").is_file():
        raise RunFolderError(
            "todo.run-reader-1",
            f"{path} is neither a run nor a comparison",
            fix="give a folder that `fedgsca run` or `compare` made",
        )
    text = _text(path / "config.toml")
    config: Tree = {}
    with contextlib.suppress(tomllib.TOMLDecodeError):
        config = tomllib.loads(text)
    metrics = [
        line
        for line in read_lines(path / "metrics.jsonl")
        if isinstance(line, dict) and "round" in line
    ]
    timing = [
        line
        for line in read_lines(path / "timing.jsonl")
        if isinstance(line, dict) and "round" in line
    ]
    setup, result = read_json(path / "setup.json") or {}, read_json(path / "result.json")
    return Run(
        path,
        config,
        text,
        setup,
        metrics,
        timing,
        result,
        _losses(path / "losses") if with_losses else {},
    )


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object; None if the file is missing or damaged."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _losses(folder: Path) -> dict[str, Losses]:
    found = {}
    for path in sorted(folder.glob("*.npz")):
        # a file cut short by a crash, or of another version, costs a histogram and nothing else
        with contextlib.suppress(Exception), np.load(path, allow_pickle=False) as kept:
            found[path.stem] = Losses(
                np.asarray(kept["losses"], dtype=np.float64),
                np.asarray(kept["clean"], dtype=bool),
                np.asarray(kept["selector"], dtype=np.float64),
                float(kept["cut"]),
                np.asarray(kept["wrong"], dtype=bool) if "wrong" in kept else None,
                int(kept["round"]),
            )
    return found
