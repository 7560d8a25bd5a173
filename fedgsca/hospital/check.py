"""The result of a check, and the checks that hospitals and the coordinator share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedgsca.config import Config
from fedgsca.errors import ConfigError
from fedgsca.hospital.kit_files import installed_versions
from fedgsca.support.text import plural, size_text

RESERVE = 1_000_000_000  # bytes for the method's memory, Flower's files and logs

CheckState = Literal["ok", "FAIL", "unknown", "skipped"]


@dataclass(frozen=True)
class CheckResult:
    """One line of `fedgsca deploy check`. A result that is not ok has a fix."""

    topic: str
    state: CheckState
    text: str
    fix: str = ""

    @property
    def ok(self) -> bool:
        """Whether the check passed."""
        return self.state == "ok"

    def to_json(self) -> dict[str, str]:
        """The result as `--json` prints it."""
        return {"what": self.topic, "state": self.state, "text": self.text, "fix": self.fix}


def passed(topic: str, text: str) -> CheckResult:
    """The check succeeded; `text` says what was found."""
    return CheckResult(topic, "ok", text)


def failed(topic: str, text: str, fix: str) -> CheckResult:
    """The training would not work like this."""
    return CheckResult(topic, "FAIL", text, fix)


def undetermined(topic: str, text: str, fix: str) -> CheckResult:
    """The check could not be made; `fix` says how a person can make it."""
    return CheckResult(topic, "unknown", text, fix)


def skipped(topic: str, text: str, fix: str) -> CheckResult:
    """The check needs another one to pass first; `fix` says which."""
    return CheckResult(topic, "skipped", text, fix)


def check_versions(
    versions: Mapping[str, str], owner: str = "the coordinator has"
) -> Iterator[CheckResult]:
    """Whether this machine has the versions of the kit; `owner` is part of the message."""
    own_versions = installed_versions()
    for name in ("fedgsca", "flwr", "torch"):
        version = versions.get(name)
        if own_versions[name] == version:
            yield passed(f"version of {name}", own_versions[name])
            continue
        fix = f"pip install '{name}=={version}'"
        if name == "fedgsca":
            fix = "repeat step 1 of README.md, with the wheel of the kit"
        text = f"{own_versions[name] or 'not installed'}; {owner} {version}"
        yield failed(f"version of {name}", text, fix)


def check_experiment(config: Config, fingerprint: str) -> CheckResult:
    """Whether experiment.toml is the one that the kit was made with."""
    if config.fingerprint() == fingerprint:
        rounds = plural(config.train.rounds, "round")
        return passed("experiment", f"{config.method}, {rounds}, as agreed")
    return failed(
        "experiment",
        "experiment.toml is not the one that this kit was made with",
        "take the file out of the kit again, or ask for a new kit",
    )


def check_processor(config: Config) -> CheckResult:
    """Which processor the training would use."""
    import torch

    from fedgsca.models.device import prepare_device

    try:
        device = prepare_device(config.train)
    except ConfigError as error:
        return failed("processor", error.message, error.fix)
    name = f"{os.cpu_count()} cores, no GPU is used"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return passed("processor", f"{device.type}: {name}")


def check_disk(topic: str, folder: Path, num_bytes: int) -> CheckResult:
    """Whether the folder, which need not exist yet, can be written to and has enough space."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not os.access(place, os.W_OK) or not place.is_dir():
        return failed(
            topic,
            f"this user cannot write to {folder}",
            f"create it and give it to this user, or choose another folder ({place} is closed)",
        )
    free = shutil.disk_usage(place).free
    text = f"{folder}: {size_text(free)} free, {size_text(num_bytes)} needed"
    if free < num_bytes:
        return failed(topic, text, f"free some space under {place}, or choose another disk")
    return passed(topic, text)
