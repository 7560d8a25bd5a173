"""Read a run folder for a report.

Reading is tolerant: whatever an unfinished, older or damaged run lacks is simply absent. The files
and their fields are documented in fedgsca.federation.records.
"""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.config import flatten
from fedgsca.errors import RunFolderError
from fedgsca.federation.records import (
    RealisedSiteNoise,
    RoundRecord,
    RunResult,
    Setup,
    SiteRecord,
    TimingRecord,
    comparable_rounds,
    finite,
)
from fedgsca.federation.run_folder import read_rounds, read_timing
from fedgsca.support.text import natural_key


@dataclass(frozen=True)
class SiteLosses:
    """The newest selection of one site: the losses that the selector saw, and its decisions."""

    # (n,)
    losses: np.ndarray
    # (n,) bool
    clean: np.ndarray
    # (6,) means, variances, weights
    selector: np.ndarray
    # the probability of "clean" below which a label is taken as noisy
    cut: float
    # (n,) bool, simulations only
    wrong: np.ndarray | None
    round: int

    @property
    def noisy(self) -> np.ndarray:
        """(n,) bool: the labels that are taken as noisy."""
        return ~self.clean


@dataclass(frozen=True)
class RunSettings:
    """config.toml as far as a report mentions it. Empty values where the file has none."""

    text: str = ""
    # section.key -> value
    values: Mapping[str, Any] = field(default_factory=dict)

    def get_text(self, key: str, default: str = "") -> str:
        """A value as text."""
        return str(self.values.get(key, default))

    @property
    def method(self) -> str:
        """The name of the method; empty if the file does not say."""
        return self.get_text("method")

    @property
    def rounds(self) -> int:
        """Rounds to run; 0 if the file does not say."""
        return int(finite(self.values.get("train.rounds")) or 0)

    @property
    def source(self) -> str:
        """Where the images come from."""
        return self.get_text("data.source")

    @property
    def noise(self) -> str:
        """The noise specification, such as 0-S40."""
        return self.get_text("noise.spec", "0")

    @property
    def sections(self) -> frozenset[str]:
        """Names of the sections of the file."""
        return frozenset(key.split(".")[0] for key in self.values if "." in key)

    @property
    def noise_level(self) -> float:
        """The estimated share of wrong labels below which a site keeps all of them (Eq. 13)."""
        return finite(self.method_option("noise_level")) or 0.0

    def method_option(self, key: str) -> Any:
        """An option of the method of the run; None if it has no such option."""
        return self.values.get(f"{self.method}.{key}")


@dataclass(frozen=True)
class LoadedRun:
    """A run as a report needs it."""

    path: Path
    settings: RunSettings
    setup: Setup
    metrics: Sequence[RoundRecord]
    timing: Sequence[TimingRecord]
    # None: the run is not finished
    result: RunResult | None
    losses: Mapping[str, SiteLosses] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """The name of the method, as in the configuration."""
        if self.settings.method:
            return self.settings.method
        if self.result is not None and self.result.method:
            return self.result.method
        return "unknown method"

    @property
    def num_rounds(self) -> int:
        """Rounds that were planned."""
        if self.settings.rounds:
            return self.settings.rounds
        if self.result is not None and self.result.rounds:
            return self.result.rounds
        return len(self.metrics)

    @property
    def damage(self) -> list[str]:
        """What is missing in the folder although it must be there, in sentences."""
        sentences = []
        for name in ("config.toml", "setup.json", "result.json"):
            path = self.path / name
            content = _read_settings(path).values if name == "config.toml" else read_json(path)
            if path.exists() and not content:
                sentences.append(f"{name} cannot be read: this report lacks what it contains.")
        missing_rounds = self.num_rounds - len(self.metrics)
        if self.result is not None and missing_rounds > 0:
            sentences.append(
                f"The run is finished, but metrics.jsonl has {len(self.metrics)} of its"
                f" {self.num_rounds} rounds: the others are missing in this report."
            )
        return sentences

    @property
    def data_name(self) -> str:
        """The name of the data set; the source in the configuration if there is none."""
        if self.setup.data.name:
            return self.setup.data.name
        if self.result is not None and self.result.data:
            return self.result.data
        return self.settings.source

    @property
    def test_rounds(self) -> list[RoundRecord]:
        """The rounds in which the global model was tested, on the images of the last of them."""
        return comparable_rounds(
            [record for record in self.metrics if finite(record.f1) is not None]
        )

    @property
    def num_other_tests(self) -> int:
        """Rounds that were tested on the images of other sites: their scores are not shown."""
        num_tested = sum(finite(record.f1) is not None for record in self.metrics)
        return num_tested - len(self.test_rounds)

    @property
    def sites(self) -> list[str]:
        """All sites of the setup and of the log, by the numbers in their names."""
        names = set(self.setup.sites)
        for record in self.metrics:
            names.update(record.sites)
        return sorted(names, key=natural_key)

    @property
    def classes(self) -> list[str]:
        """Class names; numbers if the setup has too few."""
        names = list(self.setup.data.classes)
        sizes = [len(record.confusion) for record in self.test_rounds if record.confusion]
        size = sizes[0] if sizes else 0
        if len(names) >= size:
            return names
        return [f"class {i}" for i in range(size)]

    @property
    def selection_start(self) -> int | None:
        """The first round in which a site selected labels; None if no site did."""
        for record in self.metrics:
            if any(is_selecting(site) for site in record.sites.values()):
                return record.round
        return None

    @property
    def last_selection(self) -> dict[str, SiteRecord]:
        """Every site in the last round in which it selected labels."""
        newest: dict[str, SiteRecord] = {}
        for record in self.metrics:
            for name, site in record.sites.items():
                if is_selecting(site):
                    newest[name] = site
        return {name: newest[name] for name in self.sites if name in newest}

    def realised_noise(self, site: str) -> RealisedSiteNoise | None:
        """What the noise did to the labels of a site; None if it is not known."""
        setup = self.setup.sites.get(site)
        noise = None if setup is None else setup.realised_noise
        if noise is None or finite(noise.rate) is None:
            return None
        return noise

    def noise_rate(self, site: str) -> float | None:
        """The share of wrong labels of a site; None if it is not known."""
        noise = self.realised_noise(site)
        return None if noise is None else noise.rate


def is_selecting(site: SiteRecord) -> bool:
    """Whether a site divided its labels into clean and noisy ones.

    During warm-up all thresholds are zero.
    """
    return (
        any(site.numbers("thresholds"))
        or site.number("noisy_precision") is not None
        or bool(site.number("delta"))
    )


def read_run(path: Path, *, with_losses: bool = True) -> LoadedRun:
    """A run folder, finished or not; with the losses of the newest selection by default."""
    if not (path / "config.toml").is_file() and not (path / "metrics.jsonl").is_file():
        raise RunFolderError(
            "run.not-a-run-folder",
            f"{path} is not the folder of a run or of a comparison",
            fix="give a folder that `fedgsca run` or `fedgsca compare` has written",
        )
    result = read_json(path / "result.json")
    return LoadedRun(
        path=path,
        settings=_read_settings(path / "config.toml"),
        setup=Setup.from_json(read_json(path / "setup.json")),
        metrics=read_rounds(path),
        timing=read_timing(path),
        result=None if result is None else RunResult.from_json(result),
        losses=_read_losses(path / "losses") if with_losses else {},
    )


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object; None if the file is missing or damaged."""
    if not path.is_file():  # a pipe or a device would be read for ever
        return None
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _read_settings(path: Path) -> RunSettings:
    """A damaged file has no values."""
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        return RunSettings(text, flatten(tomllib.loads(text)))
    except (OSError, ValueError):
        return RunSettings(text)


def _read_losses(folder: Path) -> dict[str, SiteLosses]:
    losses = {}
    for path in sorted(folder.glob("*.npz")):
        # a file that a crash cut short, or of another version, costs a histogram and nothing else
        with contextlib.suppress(Exception):
            losses[path.stem] = _read_site_losses(path)
    return losses


def _read_site_losses(path: Path) -> SiteLosses:
    with np.load(path, allow_pickle=False) as arrays:
        wrong = None
        if "wrong" in arrays:
            wrong = np.asarray(arrays["wrong"], dtype=bool)
        return SiteLosses(
            losses=np.asarray(arrays["losses"], dtype=np.float64),
            clean=np.asarray(arrays["clean"], dtype=bool),
            selector=np.asarray(arrays["selector"], dtype=np.float64),
            cut=float(arrays["cut"]),
            wrong=wrong,
            round=int(arrays["round"]),
        )
