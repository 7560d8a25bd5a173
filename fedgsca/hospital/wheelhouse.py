"""A wheelhouse: every package of an installation as a file, for machines without internet.

pip collects the wheels, in the versions of constraints.txt, for the Python and the system on which
the command runs. requirements.txt in the folder pins each of them with the sha256 of its file:

    pip install --no-index --find-links WHEELHOUSE --require-hashes -r WHEELHOUSE/requirements.txt

installs them anywhere with the same Python and system, and refuses a file that was changed.
sbom.cdx.json lists the packages with licences and checksums (CycloneDX 1.5). With the authority of
a consortium, SHA256SUMS.sig is its signature of all checksums: a hospital has ca.crt to verify it,
with openssl before it installs anything, and with check.sh.
"""

from __future__ import annotations

import email
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.hospital.certificates import is_signed_by, sign_as_authority
from fedgsca.support.files import PUBLIC, new_folder, sha256_file, write_atomic
from fedgsca.support.text import one_line

REQUIREMENTS = "requirements.txt"
CHECKSUMS = "SHA256SUMS"
SIGNATURE = f"{CHECKSUMS}.sig"
BILL = "sbom.cdx.json"
_SECONDS = 3600
_SHOWN_LINES = 4  # of pip's reasons in an error


@dataclass(frozen=True)
class Wheel:
    """One file of a wheelhouse."""

    name: str
    version: str
    file: str
    sha256: str
    size: int
    licence: str


def collect_wheels(
    wheel: Path,
    out: Path,
    *,
    constraints: Path,
    extras: Sequence[str] = (),
    source: Path | None = None,
    authority: Path | None = None,
) -> list[Wheel]:
    """Collect a wheel and all that it needs in a new folder, which appears complete or not at all.

    `source` is a folder of wheels to take them from instead of the package index: then nothing is
    downloaded. `authority` is the folder of a consortium's authority, which signs the checksums.
    """
    key = None if authority is None else _read_authority(authority)
    for path, option in ((wheel, "--wheel"), (constraints, "--constraints")):
        if not path.is_file():
            raise RunFolderError(
                "deploy.file-not-found",
                f"{path} does not exist",
                fix=f"correct {option}; both files are in a checkout of this version, after"
                " `pip wheel --no-deps -w . .`",
            )
    if out.exists():
        raise RunFolderError(
            "file.already-exists",
            f"{out} already exists and is not overwritten",
            fix="choose another folder",
        )
    requirement = str(wheel.resolve()) + (f"[{','.join(extras)}]" if extras else "")
    with new_folder(out) as folder:
        _download(requirement, folder, constraints, source)
        wheels = list_wheels(folder)
        write_atomic(folder / REQUIREMENTS, _render_requirements(wheels), mode=PUBLIC)
        write_atomic(folder / BILL, _render_bill(wheels), mode=PUBLIC)
        sums = {file.file: file.sha256 for file in wheels}
        sums |= {name: sha256_file(folder / name) for name in (REQUIREMENTS, BILL)}
        lines = "".join(f"{digest}  {name}\n" for name, digest in sums.items()).encode()
        write_atomic(folder / CHECKSUMS, lines, mode=PUBLIC)
        if key is not None:
            write_atomic(folder / SIGNATURE, sign_as_authority(key, lines), mode=PUBLIC)
        folder.chmod(0o755)
    return wheels


def _download(requirement: str, folder: Path, constraints: Path, source: Path | None) -> None:
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    command += ["--only-binary", ":all:", "--constraint", str(constraints)]
    command += ["--dest", str(folder)]
    if source is not None:
        command += ["--no-index", "--find-links", str(source)]
    command.append(requirement)
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise _failed("pip did not end within an hour") from None
    if result.returncode != 0:
        raise _failed(_find_reason(result.stdout, result.stderr))


def _find_reason(output: str, errors: str) -> str:
    """What pip says about the failure, without its advice: which package, and who asked for it."""
    lines = []
    for line in errors.splitlines():
        if line.startswith("ERROR:") and "ResolutionImpossible" not in line:
            lines.append(line.removeprefix("ERROR:").strip())
    for line in output.splitlines():
        if " depends on " in line or "The user requested" in line:
            lines.append(line.strip())
    return one_line("; ".join(lines[:_SHOWN_LINES]) or "it gave no reason", 500)


def _failed(reason: str) -> ConfigError:
    return ConfigError(
        "deploy.wheels-not-collected",
        f"pip could not collect all packages: {reason}",
        fix="run this on a machine with a package index, with the Python and system of the"
        " hospitals; packages without a wheel can be built with `pip wheel` and given with --from",
    )


def list_wheels(folder: Path) -> list[Wheel]:
    """The wheels in a folder, by name."""
    wheels = []
    for path in sorted(folder.glob("*.whl")):
        name, version = path.name.split("-")[:2]
        digest = sha256_file(path)
        size = path.stat().st_size
        wheels.append(Wheel(name, version, path.name, digest, size, _read_licence(path)))
    return wheels


def _read_licence(path: Path) -> str:
    """What the wheel's metadata says; empty if nothing."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            metadata = email.message_from_bytes(archive.read(names[0]))
    except (OSError, zipfile.BadZipFile, IndexError):
        return ""
    text = metadata["License-Expression"] or metadata["License"] or ""
    if not text or len(text.splitlines()) > 1:  # some have the whole licence there
        classifiers = metadata.get_all("Classifier", [])
        ends = [str(c).rpartition("::")[2] for c in classifiers if str(c).startswith("License")]
        text = "; ".join(end.strip() for end in ends)
    return one_line(str(text), 200)


def _render_bill(wheels: Sequence[Wheel]) -> bytes:
    """CycloneDX 1.5; the same wheels give the same bytes."""
    components = []
    for wheel in wheels:
        name = re.sub(r"[-_.]+", "-", wheel.name).lower()
        component: dict[str, object] = {
            "type": "library",
            "bom-ref": wheel.file,
            "name": name,
            "version": wheel.version,
            "purl": f"pkg:pypi/{name}@{wheel.version}",
            "hashes": [{"alg": "SHA-256", "content": wheel.sha256}],
        }
        if wheel.licence:
            component["licenses"] = [{"license": {"name": wheel.licence}}]
        components.append(component)
    tree = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "fedgsca wheelhouse"}},
        "components": components,
    }
    return json.dumps(tree, indent=1).encode() + b"\n"


def _read_authority(folder: Path) -> bytes:
    try:
        return (folder / "ca.key").read_bytes()
    except OSError as error:
        raise RunFolderError(
            "deploy.authority-missing",
            f"{error.filename} cannot be read: {error.strerror}",
            fix="give the folder `authority` of `fedgsca deploy init` with --sign",
        ) from None


def wheels_problem(folder: Path, authority: Path) -> str:
    """Why the files of a wheelhouse are not what the authority (ca.crt) has signed, or empty."""
    try:
        lines = (folder / CHECKSUMS).read_bytes()
        signature = (folder / SIGNATURE).read_bytes()
        if not is_signed_by(authority.read_bytes(), lines, signature):
            return f"{SIGNATURE} is not a signature of the consortium's authority"
        names = set()
        for line in lines.decode().splitlines():
            digest, _, name = line.partition("  ")
            names.add(name)
            if sha256_file(folder / name) != digest:
                return f"{name} is not the file that was signed"
    except OSError as error:
        return f"{Path(error.filename).name} cannot be read: {error.strerror}"
    surplus = sorted({path.name for path in folder.glob("*.whl")} - names)
    return f"{surplus[0]} was not signed" if surplus else ""


def _render_requirements(wheels: Sequence[Wheel]) -> bytes:
    lines = []
    for wheel in wheels:
        lines.append(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    return "".join(lines).encode()
