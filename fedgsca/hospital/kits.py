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
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from fedgsca.config import Config, load_config
from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.hospital.consortium import TEMPLATES, Consortium, Hospital
from fedgsca.hospital.kit_files import (
    SECRET_MODE,
    KitFile,
    KitFiles,
    coordinator_files,
    hospital_files,
)
from fedgsca.support.files import write_atomic


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
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # mode 0700
        temporary = Path(tempfile.mkdtemp(prefix=f"{out.name}.", suffix=".tmp", dir=out.parent))
    except OSError as error:
        raise RunFolderError(
            "file.cannot-write",
            f"{out.parent} cannot be written to: {error.strerror}",
            fix="choose another folder with --out",
        ) from None
    try:
        _write_kits(consortium, config, temporary)
        os.replace(temporary, out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
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
        "server.key": KitFile(server.key, SECRET_MODE),
    }
    other_files = coordinator_files(consortium, config, server.certificate, public_keys)
    _write_folder(folder / "coordinator", other_files | certificates)
    _write_folder(
        folder / "authority",
        {
            "ca.key": KitFile(authority.key, SECRET_MODE),
            "ca.crt": KitFile(authority.certificate),
        },
    )


def add_hospital(consortium: Consortium, config: Config, out: Path, name: str) -> Path:
    """Make one more kit; the others stay as they are. Returns its zip file.

    The coordinator's experiment gets the new name.
    """
    hospital = _find_hospital(consortium, name)
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


def _find_hospital(consortium: Consortium, name: str) -> Hospital:
    for hospital in consortium.hospitals:
        if hospital.name == name:
            return hospital
    raise ConfigError(
        "deploy.unknown-hospital",
        f"the consortium has no hospital {name}",
        fix=f'add a block [[hospitals]] with name = "{name}" to the file, then try again',
    )


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
        "server.key": KitFile(server.key, SECRET_MODE),
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
    write_atomic(path, content.getvalue(), mode=SECRET_MODE)


def write_example(path: Path) -> None:
    """Write consortium.toml as an example with comments."""
    if path.exists():
        raise RunFolderError(
            "file.already-exists",
            f"{path} exists already and is not overwritten",
            fix="choose another file name",
        )
    write_atomic(path, (TEMPLATES / "consortium.toml").read_bytes())
