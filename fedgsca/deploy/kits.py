"""The kits: one folder for the coordinator, one zip for each hospital, and the authority's key apart from both.

    OUT/authority/          ca.key and ca.crt; needed again only for a new server certificate
    OUT/coordinator/        SuperLink: certificate, public keys, scripts, the experiment
    OUT/hospitals/NAME.zip  one secret key, what to trust, scripts, the experiment

The authority's key is not encrypted. Whoever encrypts it on the machine that makes it must type the passphrase into that machine, and
keeps it in a script; the folder is made to be carried away instead. Secrets have mode 0600 from their first byte on.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from fedgsca.config import Config, load_config
from fedgsca.deploy.consortium import TEMPLATES, Consortium
from fedgsca.deploy.kit_files import SECRET, File, Files, coordinator_files, hospital_files
from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.support.files import write_atomic


def make_kits(plan: Consortium, config: Config, out: Path) -> list[Path]:
    """Everything, in a folder that does not exist yet: it appears whole. Keys that are there are never replaced."""
    from fedgsca.deploy.certificates import make_authority, make_server

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunFolderError(
            "todo.kits-1",
            f"{out} exists, and keys that are in use are not overwritten",
            fix="add a hospital with --add-hospital NAME, or make new kits in another folder with --out",
        )
    authority = make_authority(f"fedgsca {plan.name}")
    server = make_server(authority, plan.hosts)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(
            tempfile.mkdtemp(prefix=f"{out.name}.", suffix=".tmp", dir=out.parent)
        )  # mode 0700
    except OSError as error:
        raise RunFolderError(
            "todo.kits-2",
            f"cannot write to {out.parent}: {error.strerror}",
            fix="choose another place with --out",
        ) from None
    try:
        keys = {}
        for hospital in plan.hospitals:
            files, keys[hospital.name] = hospital_files(
                plan, config, hospital, authority.certificate
            )
            _write_zip(unfinished / "hospitals" / f"{hospital.name}.zip", hospital.name, files)
        files = coordinator_files(plan, config, server.certificate, keys) | {
            "ca.crt": File(authority.certificate),
            "server.pem": File(server.certificate),
            "server.key": File(server.key, SECRET),
        }
        _write_folder(unfinished / "coordinator", files)
        safe = {"ca.key": File(authority.key, SECRET), "ca.crt": File(authority.certificate)}
        _write_folder(unfinished / "authority", safe)
        os.replace(unfinished, out)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return [out / "hospitals" / f"{hospital.name}.zip" for hospital in plan.hospitals]


def add_hospital(plan: Consortium, config: Config, out: Path, name: str) -> Path:
    """One more kit beside the others, which stay as they are. The coordinator's experiment gets the new name."""
    hospital = next((h for h in plan.hospitals if h.name == name), None)
    if hospital is None:
        raise ConfigError(
            "todo.kits-3",
            f"{name} is not in the file",
            fix=f'add a block [[hospitals]] with name = "{name}", then try again',
        )
    folder, path = out / "coordinator", out / "hospitals" / f"{name}.zip"
    public = folder / "keys" / f"{name}.pub"
    if not (folder / "ca.crt").is_file():
        raise RunFolderError(
            "todo.kits-4",
            f"{out} holds no kits",
            fix="leave --add-hospital out to make them, or correct --out",
        )
    if path.exists() or public.exists():
        raise RunFolderError(
            "todo.kits-5",
            f"{name} has a key already: {path if path.exists() else public}",
            fix=f"for a new key remove {public} and {path} first, and unregister the old key with flwr supernode unregister",
        )
    server = (folder / "server.pem").read_bytes()
    files, made = hospital_files(plan, config, hospital, (folder / "ca.crt").read_bytes())
    _write_zip(path, name, files)
    _write_folder(folder, coordinator_files(plan, config, server, {name: made}))
    return path


def renew_server(plan: Consortium, out: Path) -> Path:
    """A new certificate for the SuperLink, with the names of the file as it is now. Keys of hospitals and the experiment stay."""
    from fedgsca.deploy.certificates import Signed, make_server

    folder, safe = out / "coordinator", out / "authority"
    try:
        authority = Signed((safe / "ca.crt").read_bytes(), (safe / "ca.key").read_bytes())
        known = (folder / "ca.crt").read_bytes()
    except OSError as error:
        raise RunFolderError(
            "todo.kits-6",
            f"{error.filename} cannot be read: {error.strerror}",
            fix="correct --out; if you carried `authority` away, bring it back for this, beside `coordinator`",
        ) from None
    if known != authority.certificate:
        raise RunFolderError(
            "todo.kits-7",
            f"{safe} is not the authority of {folder}",
            fix="bring the right one: its ca.crt is that of the kits",
        )
    try:
        server = make_server(authority, plan.hosts)
    except ValueError as error:
        raise RunFolderError(
            "todo.kits-8",
            f"{safe} is damaged ({error})",
            fix="restore it; without it all kits must be made anew",
        ) from None
    told = coordinator_files(plan, load_config(folder / "experiment.toml"), server.certificate, {})
    made = {"server.key": File(server.key, SECRET), "server.pem": File(server.certificate)}
    _write_folder(folder, told | made)
    return folder / "server.pem"


def _write_folder(folder: Path, files: Files) -> None:
    for name, file in files.items():
        write_atomic(folder / name, file.data, mode=file.mode)
        (folder / name).chmod(file.mode)  # whatever the umask took away


def _write_zip(path: Path, root: str, files: Files) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in files.items():
            entry = zipfile.ZipInfo(f"{root}/{name}", (2000, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100000 | file.mode) << 16  # unzip restores it
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, file.data)
    write_atomic(path, packed.getvalue(), mode=SECRET)


def write_example(path: Path) -> None:
    if path.exists():
        raise RunFolderError(
            "todo.kits-9", f"{path} exists", fix="give another name; nothing is overwritten"
        )
    write_atomic(path, (TEMPLATES / "consortium.toml").read_bytes())
