"""A wheelhouse: every package of an installation as a file, for machines without internet.

pip collects the wheels, in the versions of constraints.txt, for the Python and the system on which
the command runs. requirements.txt in the folder pins each of them with the sha256 of its file:

    pip install --no-index --find-links WHEELHOUSE --require-hashes -r WHEELHOUSE/requirements.txt

installs them anywhere with the same Python and system, and refuses a file that was changed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.support.files import PUBLIC, sha256_file, write_atomic
from fedgsca.support.text import one_line

REQUIREMENTS = "requirements.txt"
CHECKSUMS = "SHA256SUMS"
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


def collect_wheels(
    wheel: Path,
    out: Path,
    *,
    constraints: Path,
    extras: Sequence[str] = (),
    source: Path | None = None,
) -> list[Wheel]:
    """Collect a wheel and all that it needs in a new folder, which appears complete or not at all.

    `source` is a folder of wheels to take them from instead of the package index: then nothing is
    downloaded.
    """
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
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        place = tempfile.mkdtemp(prefix=f"{out.name}.", suffix=".tmp", dir=out.parent)
    except OSError as error:
        raise RunFolderError(
            "file.cannot-write",
            f"{out.parent} cannot be written to: {error.strerror}",
            fix="choose another folder",
        ) from None
    temporary = Path(place)
    try:
        requirement = str(wheel.resolve()) + (f"[{','.join(extras)}]" if extras else "")
        _download(requirement, temporary, constraints, source)
        wheels = list_wheels(temporary)
        write_atomic(temporary / REQUIREMENTS, _render_requirements(wheels), mode=PUBLIC)
        lines = [f"{file.sha256}  {file.file}\n" for file in wheels]
        write_atomic(temporary / CHECKSUMS, "".join(lines).encode(), mode=PUBLIC)
        temporary.chmod(0o755)
        temporary.rename(out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
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
        wheels.append(Wheel(name, version, path.name, digest, path.stat().st_size))
    return wheels


def _render_requirements(wheels: Sequence[Wheel]) -> bytes:
    lines = []
    for wheel in wheels:
        lines.append(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    return "".join(lines).encode()
