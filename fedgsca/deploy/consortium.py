"""consortium.toml: who takes part, where the coordinator is, and the experiment that all agree on."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from fedgsca.config import SITES_SOURCE, Config, Section, Tree, build, describe, merge, read_toml
from fedgsca.errors import ConfigError

TEMPLATES = Path(__file__).with_name("templates")
_NAME = re.compile(
    r"[a-z0-9][a-z0-9-]{0,39}"
)  # a file, a systemd unit and a Flower node are called so
_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
_RESERVED = {
    ("data", "source"),
    ("data", "sites"),
    ("data", "classes"),
    ("data", "image_size"),
    ("federation", "sites"),
}
_FIX = (
    "correct the keys above; `fedgsca deploy init --example FILE` writes an example with comments"
)


class Coordinator(Section):
    address: str = Field(description="the name or IP address that the hospitals call")
    port: int = Field(8000, ge=1, le=65535)
    listen: str = Field("0.0.0.0", description="the coordinator's own network address to listen on")
    names: tuple[str, ...] = Field(
        (), description="further names and addresses for the certificate"
    )


class Hospital(Section):
    name: str
    data: str | None = Field(
        None, description="where its images probably are; it may say otherwise in site.toml"
    )


class Consortium(Section):
    """The file as it is written. Whatever else an experiment needs is in `experiment`, under the keys of a configuration."""

    name: str = Field(min_length=1)
    contact: str = Field(min_length=1, description="whom a hospital calls; stands in each README")
    coordinator: Coordinator
    hospitals: tuple[Hospital, ...] = Field(min_length=1)
    classes: tuple[str, ...] = Field(min_length=2)
    image_size: int = Field(ge=8, le=1024)
    experiment: dict[str, Any] = Field(default_factory=dict)

    @property
    def local(self) -> str:
        """Where the SuperLink's own programs find it: they take the address on which it listens."""
        listen = self.coordinator.listen
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen, listen)

    @property
    def hosts(self) -> tuple[str, ...]:
        """All names of the server's certificate."""
        return tuple(
            dict.fromkeys(
                (
                    self.coordinator.address,
                    *self.coordinator.names,
                    self.local,
                    "localhost",
                    "127.0.0.1",
                )
            )
        )

    def at(self, host: str) -> str:
        return (
            f"[{host}]:{self.coordinator.port}"
            if ":" in host
            else f"{host}:{self.coordinator.port}"
        )


def read_plan(path: Path) -> tuple[Consortium, Config]:
    """The consortium and the configuration of its experiment. All problems of the file are told at once."""
    tree = read_toml(path)
    problems: list[str] = []
    plan: Consortium | None = None
    try:
        plan = Consortium.model_validate(tree)
    except ValidationError as error:
        problems += describe(error, Consortium)
    problems += _names(tree)
    experiment = tree.get("experiment", {})
    reserved = [
        f"{section}.{key}"
        for section, key in sorted(_RESERVED)
        if isinstance(experiment, dict)
        and isinstance(experiment.get(section), dict)
        and key in experiment[section]
    ]
    problems += [
        f"experiment.{key}: follows from the rest of the file; leave it out" for key in reserved
    ]
    if isinstance(experiment, dict) and "noise" in experiment:
        problems.append("experiment.noise: noise is for simulations; leave it out")
    config: Config | None = None
    try:
        config = build(_experiment(tree))
    except ConfigError as error:
        problems += [f"experiment.{line.strip()}" for line in error.message.splitlines()[1:]]
    if problems or plan is None or config is None:
        count = f"{len(problems)} problem{'s' * (len(problems) > 1)}"
        raise ConfigError(
            "todo.consortium-1",
            f"{path}: {count} in the file:\n  " + "\n  ".join(problems),
            fix=_FIX,
        )
    return plan, config


def _experiment(tree: Tree) -> Tree:
    """The configuration's tree: own images at each site, the file's classes and names. Lists that are broken are left out."""
    given = tree.get("experiment", {})
    hospitals = tree.get("hospitals", [])
    names = (
        [str(h["name"]) for h in hospitals if isinstance(h, dict) and "name" in h]
        if isinstance(hospitals, list)
        else []
    )
    fixed: Tree = {"data": {"source": SITES_SOURCE}, "federation": {}}
    if names:
        fixed["data"]["sites"], fixed["federation"]["sites"] = len(names), names
    classes, size = tree.get("classes"), tree.get("image_size")
    if isinstance(classes, list) and len(classes) > 1 and all(isinstance(c, str) for c in classes):
        fixed["data"]["classes"] = classes
    if isinstance(size, int) and 8 <= size <= 1024:
        fixed["data"]["image_size"] = size
    return merge(given if isinstance(given, dict) else {}, fixed)


def _names(tree: Tree) -> list[str]:
    """What the types cannot say: names that make good file names, nobody twice, addresses that a certificate can hold."""
    problems: list[str] = []
    hospitals = tree.get("hospitals", [])
    rows = hospitals if isinstance(hospitals, list) else []
    names = [str(row["name"]) for row in rows if isinstance(row, dict) and "name" in row]
    problems += [f"hospitals: {bad_name(name)}" for name in names if bad_name(name)]
    problems += [
        f"hospitals: {name!r} is there twice"
        for name in sorted({n for n in names if names.count(n) > 1})
    ]
    classes = tree.get("classes", [])
    known = [str(c) for c in classes] if isinstance(classes, list) else []
    problems += [
        f"classes: {name!r} is there twice"
        for name in sorted({c for c in known if known.count(c) > 1})
    ]
    coordinator = tree.get("coordinator", {})
    if isinstance(coordinator, dict):
        further = coordinator.get("names", [])
        hosts = [
            coordinator.get("address", "ok"),
            coordinator.get("listen", "::"),
            *(further if isinstance(further, list) else []),
        ]
        problems += [
            f"coordinator: {host!r} is neither a host name nor an IP address"
            for host in hosts
            if not is_host(str(host))
        ]
    return problems


def bad_name(name: str) -> str | None:
    return (
        None
        if _NAME.fullmatch(name)
        else f"{name!r} is not made of small letters, digits and hyphens, 40 at most"
    )


def is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return bool(_HOST.fullmatch(text)) and not re.fullmatch(r"[\d.]+", text)
    return True
