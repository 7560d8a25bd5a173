"""What is installed, and what is missing for which command. Nothing is imported or changed.

The requirements are read from the metadata of the installed package, so that they are those of
pyproject.toml.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from typing import TYPE_CHECKING

from fedgsca.support.json_record import Record
from fedgsca.support.version import __version__

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PACKAGE = "fedgsca"
CORE = ""  # the name of the requirements that every command needs
# extra -> what needs it
USES: Mapping[str, str] = {
    CORE: "run, compare, audit, apply, predict, report and most other commands",
    "weights": "--frozen, audit-folder, demo on frozen features",
    "dicom": "DICOM files",
    "onnx": "export --format onnx",
    "odir": "the xlsx lists of ODIR",
    "review": "review, reviewers",
    "cleanlab": "benchmarks that compare the audit with cleanlab",
    "privacy": "privacy budgets",
    "flower": "deploy",
    "monai": "the networks densenet121 and vit-b16",
    "tensorboard": "--track tensorboard",
    "mlflow": "--track mlflow",
    "wandb": "--track wandb",
}
FOR_DEVELOPERS = ("docs", "dev")


@dataclass(frozen=True)
class PackageState(Record):
    """One required package."""

    name: str
    # what pyproject.toml asks for, such as ">=1,<2"
    requirement: str
    # "": not installed
    version: str
    is_usable: bool


@dataclass(frozen=True)
class ExtraState(Record):
    """The packages of one extra, or of the core."""

    extra: str
    purpose: str
    packages: tuple[PackageState, ...]

    @property
    def problems(self) -> list[str]:
        """The packages that are missing or have another version, in words."""
        texts = []
        for package in self.packages:
            if not package.version:
                texts.append(f"{package.name} is not installed")
            elif not package.is_usable:
                wish = f"{package.name}{package.requirement}"
                texts.append(f"{package.name} {package.version} is installed, {wish} is needed")
        return texts

    @property
    def fix(self) -> str:
        """The command that installs what is missing."""
        name = PACKAGE if self.extra == CORE else f"{PACKAGE}[{self.extra}]"
        return f"pip install '{name}'"


@dataclass(frozen=True)
class MachineFacts(Record):
    """The machine, without its name, its user and its paths."""

    version: str
    python: str
    system: str
    release: str
    machine: str
    cores: int
    has_unix_sockets: bool


def describe_machine() -> MachineFacts:
    """The facts about this machine that matter for a bug report."""
    return MachineFacts(
        version=__version__,
        python=platform.python_version(),
        system=platform.system(),
        release=platform.release(),
        machine=platform.machine(),
        cores=os.cpu_count() or 0,
        has_unix_sockets=hasattr(socket, "AF_UNIX") and sys.platform != "win32",
    )


def inspect_installation() -> list[ExtraState]:
    """Every extra with the state of its packages, the core first."""
    from packaging.requirements import Requirement

    try:
        names = metadata(PACKAGE).get_all("Provides-Extra") or []
        requirements = [Requirement(line) for line in requires(PACKAGE) or []]
    except PackageNotFoundError:  # it runs from a copy of its source only
        names, requirements = [], []
    states = []
    for extra in dict.fromkeys([*USES, *(name for name in names if name not in FOR_DEVELOPERS)]):
        packages = _inspect_packages(requirements, extra)
        purpose = USES.get(extra, f"what the extra {extra} is for")
        states.append(ExtraState(extra, purpose, tuple(packages)))
    return states


def _inspect_packages(requirements: Iterable[Requirement], extra: str) -> list[PackageState]:
    """The packages of an extra, and what their own extras need: flwr[simulation] needs ray."""
    from packaging.requirements import Requirement

    states = []
    for requirement in requirements:
        if not _belongs_to(requirement, extra):
            continue
        installed_version = _version_of(requirement.name)
        is_usable = bool(installed_version) and requirement.specifier.contains(
            installed_version, prereleases=True
        )
        specifier = str(requirement.specifier)
        states.append(PackageState(requirement.name, specifier, installed_version, is_usable))
        for name in requirement.extras if installed_version else ():
            own_requirements = [Requirement(line) for line in requires(requirement.name) or []]
            states += _inspect_packages(own_requirements, name)
    return states


def _belongs_to(requirement: Requirement, extra: str) -> bool:
    """Whether an extra needs it, and not the package without extras (the extra CORE)."""
    marker = requirement.marker
    is_core = marker is None or marker.evaluate({"extra": CORE})
    if extra == CORE or is_core or marker is None:
        return extra == CORE and is_core
    return marker.evaluate({"extra": extra})


def _version_of(name: str) -> str:
    try:
        return version(name).partition("+")[0]  # CPU and GPU builds of torch count as one
    except PackageNotFoundError:
        return ""
