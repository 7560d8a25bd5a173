"""consortium.toml: who takes part, where the coordinator is, and the agreed experiment."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from fedgsca.config import (
    OWN_FEATURES,
    SITES_SOURCE,
    Config,
    ImageCount,
    Section,
    Tree,
    build,
    merge,
    read_toml,
    validation_problems,
)
from fedgsca.errors import ConfigError, ConfigProblem
from fedgsca.support.text import one_line, plural, printable

TEMPLATES = Path(__file__).with_name("templates")
# The name of a file, of a systemd unit and of a Flower node.
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
# Punctuation in the name of a consortium and in a contact, beside letters, digits and spaces:
# nothing that a shell, systemd or TOML would interpret.
_NAME_MARKS = frozenset(" .,:;()&'/_+-#")
_CONTACT_MARKS = _NAME_MARKS | frozenset("@<>?!=~")
_MAX_TEXT = 200  # characters
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
_HOSPITAL_KEY = re.compile(r"hospitals\.(?P<position>\d+)(?P<dot>\.?)")
# Keys of the experiment that follow from the other parts of the file.
_DERIVED_KEYS = (
    ("data", "classes"),
    ("data", "image_size"),
    ("data", "sites"),
    ("data", "source"),
    ("federation", "sites"),
)


class Coordinator(Section):
    """Where the coordinator's SuperLink listens."""

    address: str = Field(description="the name or IP address that the hospitals call")
    port: int = Field(8000, ge=1, le=65535)
    listen: str = Field("0.0.0.0", description="the coordinator's own network address to listen on")
    control_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="for commands, only on the coordinator's own machine; default: the next port",
    )
    names: tuple[str, ...] = Field(
        (), description="further names and addresses for the certificate"
    )


class Hospital(Section):
    """A hospital that takes part."""

    name: str
    data: str | None = Field(
        None, description="where its images probably are; site.toml may say otherwise"
    )
    max_images: ImageCount | None = Field(
        None, description="the number of training images that was agreed on; more are refused"
    )


class Consortium(Section):
    """The file. `experiment` holds the remaining settings, under the keys of a configuration."""

    name: str = Field(min_length=1)
    contact: str = Field(min_length=1, description="whom a hospital calls; printed in each README")
    coordinator: Coordinator
    hospitals: tuple[Hospital, ...] = Field(min_length=1)
    classes: tuple[str, ...] = Field(min_length=2)
    image_size: int | None = Field(
        default=None, ge=8, le=1024, description="pixels; only experiments on features have none"
    )
    experiment: dict[str, Any] = Field(default_factory=dict)

    @property
    def control_port(self) -> int:
        """The port of loopback for commands."""
        coordinator = self.coordinator
        neighbour = coordinator.port + (1 if coordinator.port < 65535 else -1)
        return coordinator.control_port or neighbour

    @property
    def local(self) -> str:
        """The address on which the coordinator's own machine reaches the hospitals' port."""
        listen = self.coordinator.listen
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen, listen)

    @property
    def hosts(self) -> tuple[str, ...]:
        """All names and addresses of the server's certificate."""
        coordinator = self.coordinator
        hosts = (coordinator.address, *coordinator.names, self.local, "localhost", "127.0.0.1")
        return tuple(dict.fromkeys(hosts))

    @property
    def server(self) -> str:
        """host:port that the hospitals call; an IPv6 address is put in brackets."""
        host = self.coordinator.address
        return f"{f'[{host}]' if ':' in host else host}:{self.coordinator.port}"


def read_consortium(path: Path) -> tuple[Consortium, Config]:
    """The consortium and the configuration of its experiment. All problems are reported at once."""
    tree = read_toml(path)
    problems: list[ConfigProblem] = []
    consortium: Consortium | None = None
    try:
        consortium = Consortium.model_validate(tree)
    except ValidationError as error:
        for problem in validation_problems(error, Consortium):
            problems.append(ConfigProblem(problem.code, _name_hospital(problem.message, tree)))
    problems += _check_names(tree)
    problems += _check_places(tree)
    problems += _check_experiment(tree.get("experiment", {}))
    problems += _check_agreement(tree)
    config: Config | None = None
    try:
        config = build(_experiment_tree(tree))
    except ConfigError as error:
        for problem in error.problems:
            problems.append(ConfigProblem(problem.code, f"experiment.{problem.message}"))
    if consortium is not None and config is not None:
        problems += _check_inputs(consortium, config)
        if consortium.control_port == consortium.coordinator.port:
            message = "coordinator.control_port: must differ from the hospitals' port"
            problems.append(ConfigProblem("deploy.invalid-address", message))
    if problems or consortium is None or config is None:
        raise ConfigError(
            "deploy.invalid-consortium",
            f"{path} has {plural(len(problems), 'problem')}:",
            fix="correct the keys above;"
            " `fedgsca deploy init --example FILE` writes an example with comments",
            problems=problems,
        )
    return consortium, config


def _name_hospital(message: str, tree: Tree) -> str:
    """hospitals.1.data: ... -> hospitals.lyon.data: ...; people do not count from 0."""
    match = _HOSPITAL_KEY.match(message)
    entries = tree.get("hospitals")
    if match is None or not isinstance(entries, list):
        return message
    position = int(match["position"])
    if position >= len(entries):  # a key of the file that merely looks like a position
        return message
    ending = message[match.end() :]
    entry = entries[position]
    name = entry.get("name") if isinstance(entry, dict) else None
    if isinstance(name, str) and _NAME.fullmatch(name):
        return f"hospitals.{name}{match['dot']}{ending}"
    comma = ", " if match["dot"] else ""
    return f"hospitals, entry {position + 1}{comma}{ending}"


def _check_inputs(consortium: Consortium, config: Config) -> list[ConfigProblem]:
    """What every hospital must bring in the same form: images of one size, or features."""
    problems = []
    if config.model.name == OWN_FEATURES:
        if config.model.feature_width is None:
            message = (
                "experiment.model.feature_width: set it to the numbers per image, on which all"
                " hospitals agree"
            )
            problems.append(ConfigProblem("deploy.missing-key", message))
    elif consortium.image_size is None:
        message = "image_size: set it to the pixels to which every hospital resizes its images"
        problems.append(ConfigProblem("deploy.missing-key", message))
    return problems


def _check_experiment(experiment: object) -> list[ConfigProblem]:
    """Keys that do not belong into the experiment."""
    if not isinstance(experiment, dict):
        return []
    problems = []
    for section, key in _DERIVED_KEYS:
        values = experiment.get(section)
        if isinstance(values, dict) and key in values:
            message = f"experiment.{section}.{key}: derived from other keys of this file; remove it"
            problems.append(ConfigProblem("deploy.derived-key", message))
    if "noise" in experiment:
        message = "experiment.noise: noise is for simulations; remove it"
        problems.append(ConfigProblem("deploy.noise-in-deployment", message))
    return problems


def _check_agreement(tree: Tree) -> list[ConfigProblem]:
    """The agreed numbers of images are in one place only."""
    experiment = tree.get("experiment")
    aggregation = experiment.get("aggregation") if isinstance(experiment, dict) else None
    if not isinstance(aggregation, dict) or "max_images" not in aggregation:
        return []
    if not _agreed_images(tree):
        return []
    message = (
        "experiment.aggregation.max_images: hospitals have a max_images of their own; remove one of"
        " the two"
    )
    return [ConfigProblem("deploy.derived-key", message)]


def _experiment_tree(tree: Tree) -> Tree:
    """The configuration's tree: own images at each site, the file's classes and names.

    Lists that are not valid are left out; they are reported elsewhere.
    """
    experiment = tree.get("experiment", {})
    if not isinstance(experiment, dict):
        experiment = {}
    data: Tree = {"source": SITES_SOURCE}
    federation: Tree = {}
    names = _hospital_names(tree)
    if names:
        data["sites"] = len(names)
        federation["sites"] = names
    classes = _list_of(tree, "classes")
    if len(classes) > 1 and all(isinstance(name, str) for name in classes):
        data["classes"] = classes
    size = tree.get("image_size")
    if isinstance(size, int) and 8 <= size <= 1024:
        data["image_size"] = size
    derived_tree: Tree = {"data": data, "federation": federation}
    agreed_images = _agreed_images(tree)
    if agreed_images:
        derived_tree["aggregation"] = {"max_images": agreed_images}
    return merge(experiment, derived_tree)


def _agreed_images(tree: Tree) -> dict[str, int]:
    """name -> `max_images` of the hospitals that have one; wrong values are reported elsewhere."""
    limits = {}
    for entry in _hospitals(tree):
        limit = entry.get("max_images")
        if type(limit) is int and limit > 0 and "name" in entry:
            limits[str(entry["name"])] = limit
    return limits


def _hospital_names(tree: Tree) -> list[str]:
    return [str(entry["name"]) for entry in _hospitals(tree) if "name" in entry]


def _check_names(tree: Tree) -> list[ConfigProblem]:
    """What the types cannot express: valid file names, no duplicates, valid addresses."""
    problems = []
    hospitals = _hospital_names(tree)
    classes = [str(name) for name in _list_of(tree, "classes")]
    for name in hospitals:
        if not _NAME.fullmatch(name):
            message = (
                f"hospitals: the name {name!r} must consist of at most 40 small letters, digits"
                " and hyphens"
            )
            problems.append(ConfigProblem("deploy.invalid-hospital-name", message))
    for key, names in (("hospitals", hospitals), ("classes", classes)):
        for name in sorted({name for name in names if names.count(name) > 1}):
            problems.append(ConfigProblem("deploy.duplicate-name", f"{key}: duplicate {name!r}"))
    for key, marks in (("name", _NAME_MARKS), ("contact", _CONTACT_MARKS)):
        text = str(tree.get(key, ""))
        if len(text) > _MAX_TEXT or not all(_is_letter(mark) or mark in marks for mark in text):
            message = (
                f"{key}: {text[:_MAX_TEXT]!r} must consist of at most {_MAX_TEXT} letters, digits,"
                f" spaces and {''.join(sorted(marks - {' '}))}"
            )
            problems.append(ConfigProblem("deploy.invalid-text", message))
    for name in classes:
        if not name or name != one_line(name, _MAX_TEXT):
            message = (
                f"classes: {name[:_MAX_TEXT]!r} must be one line of at most {_MAX_TEXT} printable"
                " characters, without spaces at the ends"
            )
            problems.append(ConfigProblem("deploy.invalid-text", message))
    return problems


def _check_places(tree: Tree) -> list[ConfigProblem]:
    """Folders that can be shown, and addresses that are some."""
    problems = []
    for hospital in _hospitals(tree):
        path = str(hospital.get("data", ""))
        if path != printable(path, keep=""):
            message = (
                f"hospitals: the folder {path[:_MAX_TEXT]!r} contains characters that cannot be"
                " shown"
            )
            problems.append(ConfigProblem("deploy.invalid-text", message))
    coordinator = tree.get("coordinator")
    if not isinstance(coordinator, dict):
        return problems
    hosts = [coordinator[key] for key in ("address", "listen") if key in coordinator]
    for host in [*hosts, *_list_of(coordinator, "names")]:
        if not is_host(str(host)):
            message = f"coordinator: {host!r} is neither a host name nor an IP address"
            problems.append(ConfigProblem("deploy.invalid-address", message))
    return problems


def _is_letter(mark: str) -> bool:
    """A letter or digit of any language, or an accent."""
    return mark.isalnum() or unicodedata.category(mark) in ("Mn", "Mc")


def _list_of(tree: Tree, key: str) -> list[Any]:
    value = tree.get(key)
    return value if isinstance(value, list) else []


def _hospitals(tree: Tree) -> list[Tree]:
    return [entry for entry in _list_of(tree, "hospitals") if isinstance(entry, dict)]


def is_host(text: str) -> bool:
    """Whether the text is an IP address or a host name.

    An IPv6 zone ("fe80::1%eth0") is neither: it is valid on one machine only, and any text at all
    may follow the percent sign.
    """
    if "%" in text:
        return False
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return bool(_HOST.fullmatch(text)) and not re.fullmatch(r"[\d.]+", text)
    return True
