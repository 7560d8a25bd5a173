"""Container files and wheelhouse. There was no container engine: the files are checked by rules.

What is checked: nothing secret can reach an image, nothing runs as root, nothing but the state and
/tmp can be written, and every variable of the compose file is explained in it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fedgsca.cli import execute
from fedgsca.errors import ConfigError, RunFolderError
from tests.unit.test_deploy import PLAN, contents

pytest.importorskip("yaml")
pytest.importorskip("cryptography")

import yaml

from fedgsca.hospital.check_kit import inspect_wheels
from fedgsca.hospital.consortium import read_consortium
from fedgsca.hospital.kits import make_kits
from fedgsca.hospital.wheelhouse import collect_wheels, wheels_problem

INSTRUCTIONS = {"ARG", "FROM", "COPY", "RUN", "ENV", "WORKDIR", "USER", "CMD"}


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Role -> the container files of its kit, as text."""
    folder = tmp_path_factory.mktemp("kits")
    plan = folder / "consortium.toml"
    plan.write_text(PLAN)
    zips = make_kits(*read_consortium(plan), folder / "out")
    coordinator = {}
    for path in (folder / "out" / "coordinator").iterdir():
        if path.is_file():
            coordinator[path.name] = path.read_bytes()
    kits = {"hospital": contents(zips[0]), "coordinator": coordinator}
    texts: dict[str, dict[str, str]] = {}
    for role, files in kits.items():
        texts[role] = {name: data.decode("utf-8", "replace") for name, data in files.items()}
    return texts


def read_instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, argument) of a Containerfile; continued lines are joined."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line]


@pytest.mark.parametrize("role", ["hospital", "coordinator"])
def test_an_image_has_no_root_no_secret_and_pinned_packages(
    kits: dict[str, dict[str, str]], role: str
) -> None:
    instructions = read_instructions(kits[role]["Containerfile"])
    assert {name for name, _ in instructions} == INSTRUCTIONS, "known ones, and no ADD"
    users = [argument for name, argument in instructions if name == "USER"]
    assert users == ["10001:10001"] and instructions[-1][0] == "CMD"
    installs = [argument for name, argument in instructions if "pip install" in argument]
    assert len(installs) == 1
    assert "-c /kit/constraints.txt" in installs[0] and "--require-hashes" in installs[0]
    command = "start.sh" if role == "hospital" else "superlink.sh"
    assert instructions[-1][1] == f'["/kit/{command}"]' and command in kits[role]
    copies = [argument for name, argument in instructions if name == "COPY"]
    assert copies == [". /kit", "--from=build /opt/fedgsca /opt/fedgsca"], "the kit is left behind"
    for name in (".containerignore", ".dockerignore"):
        rules = [line for line in kits[role][name].splitlines() if not line.startswith("#")]
        assert rules[0] == "*", "everything is left out ..."
        assert len(rules) == 4 and rules[1] == "!constraints.txt" and rules[3] == "!wheelhouse"
        assert re.fullmatch(r"!fedgsca-[\w.]+-py3-none-any\.whl", rules[2])
    secrets = [name for name in kits[role] if name.endswith((".key", ".pem", ".toml", ".crt"))]
    assert secrets and not set(secrets) & {rule[1:] for rule in rules}


@pytest.mark.parametrize("role", ["hospital", "coordinator"])
def test_a_container_cannot_write_or_become_more_than_it_must(
    kits: dict[str, dict[str, str]], role: str
) -> None:
    text = kits[role]["compose.yaml"]
    (service,) = yaml.safe_load(text)["services"].values()
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service and "network_mode" not in service
    assert service["user"].startswith("${FEDGSCA_UID:?")
    writable = [v["target"] for v in service["volumes"] if not v.get("read_only")]
    assert writable == ["/state"]
    assert all(volume["type"] == "bind" for volume in service["volumes"])
    ports = service.get("ports", [])
    assert bool(ports) == (role == "coordinator"), "a hospital opens no port"
    head = text.partition("services:")[0]
    for name in set(re.findall(r"\$\{(\w+)", text)):
        assert f"#   {name}=" in head, name
    names = set(re.findall(r"/kit/([\w-]+\.sh)", text))
    assert names <= set(kits[role]), "scripts that it mentions exist"


def test_the_scripts_take_their_folders_from_the_image(kits: dict[str, dict[str, str]]) -> None:
    env = dict(
        pair.split("=", 1)
        for name, argument in read_instructions(kits["hospital"]["Containerfile"])
        if name == "ENV"
        for pair in argument.split()
    )
    assert env["FEDGSCA_CACHE"].startswith("/state/") and env["HOME"] == "/state"
    script = kits["hospital"]["env.sh"]
    for name in ("FEDGSCA_PYTHON", "FEDGSCA_CACHE", "FEDGSCA_FLWR_HOME"):
        assert name in env and f"${{{name}:-" in script
    assert "FEDGSCA_DATABASE" in env
    assert "${FEDGSCA_DATABASE:-" in kits["coordinator"]["superlink.sh"]


# ---- wheelhouse ----


def write_wheel(folder: Path, name: str, version: str, needs: str = "", code: str = "") -> Path:
    """The smallest wheel that pip installs."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    files = {
        f"{name}.py": code or f"value = {version!r}\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record.append(f"{path},sha256={digest.decode()},{len(text)}")
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two versions of a dependency, and a package that needs it for an extra."""
    folder = tmp_path / "store"
    folder.mkdir()
    for version in ("1.0", "2.0"):
        write_wheel(folder, "tinydep", version)
    needs = 'Provides-Extra: more\nRequires-Dist: tinydep ; extra == "more"\n'
    write_wheel(folder, "tinyroot", "0.3", needs)
    (tmp_path / "constraints.txt").write_text("tinydep==1.0\n")
    return folder


def run_pip(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_wheelhouse_installs_without_a_network_and_refuses_changed_files(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "wheelhouse"
    wheel = store / "tinyroot-0.3-py3-none-any.whl"
    words = ["--constraints", str(tmp_path / "constraints.txt"), "--from", str(store)]
    arguments = [str(out), "--wheel", str(wheel), "--extra", "more", *words]
    assert execute(["deploy", "wheelhouse", *arguments]) == 0
    text = capsys.readouterr().out
    assert "2 files" in text and "--require-hashes" in text
    names = sorted(path.name for path in out.iterdir())
    assert names == [
        "SHA256SUMS",
        "requirements.txt",
        "sbom.cdx.json",
        "tinydep-1.0-py3-none-any.whl",
        "tinyroot-0.3-py3-none-any.whl",
    ], "the version of the constraints"
    for line in (out / "SHA256SUMS").read_text().splitlines():
        digest, _, name = line.partition("  ")
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    install = ["install", "--no-index", "--find-links", str(out), "--require-hashes"]
    install += ["-r", str(out / "requirements.txt"), "--target"]
    assert run_pip(*install, str(tmp_path / "good")).returncode == 0
    assert (tmp_path / "good" / "tinydep.py").read_text() == "value = '1.0'\n"
    write_wheel(out, "tinydep", "1.0", code="value = 'evil'\n")
    result = run_pip(*install, str(tmp_path / "bad"))
    assert result.returncode != 0 and "HASH" in result.stderr.upper()
    assert execute(["deploy", "wheelhouse", *arguments]) != 0
    assert "file.already-exists" in capsys.readouterr().err


def test_a_wheelhouse_is_signed_by_the_authority_and_lists_its_packages(
    store: Path, tmp_path: Path
) -> None:
    plan = tmp_path / "consortium.toml"
    plan.write_text(PLAN)
    make_kits(*read_consortium(plan), tmp_path / "kits")
    authority = tmp_path / "kits" / "authority"
    kit = tmp_path / "kits" / "coordinator"  # it has the ca.crt that hospitals have
    out = kit / "wheelhouse"
    options: dict[str, Any] = {"constraints": tmp_path / "constraints.txt", "source": store}
    wheel = store / "tinyroot-0.3-py3-none-any.whl"
    collect_wheels(wheel, out, extras=["more"], authority=authority, **options)
    bill = json.loads((out / "sbom.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert [part["purl"] for part in bill["components"]] == [
        "pkg:pypi/tinydep@1.0",
        "pkg:pypi/tinyroot@0.3",
    ]
    digest = hashlib.sha256((out / "tinydep-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    assert bill["components"][0]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert "signed" in inspect_wheels(kit)
    if shutil.which("openssl"):  # as the README of a kit says
        script = (
            "openssl x509 -in ca.crt -pubkey -noout | openssl dgst -sha384 -verify /dev/stdin"
            " -signature wheelhouse/SHA256SUMS.sig wheelhouse/SHA256SUMS"
            " && cd wheelhouse && sha256sum --check --quiet SHA256SUMS"
        )
        result = subprocess.run(["sh", "-c", script], cwd=kit, capture_output=True, check=True)
        assert b"Verified OK" in result.stdout
    for name, content, problem in (
        ("tinydep-1.0-py3-none-any.whl", b"evil", "tinydep-1.0-py3-none-any.whl is not the file"),
        ("more-1.0-py3-none-any.whl", b"evil", "more-1.0-py3-none-any.whl was not signed"),
        ("SHA256SUMS", b"0  nothing\n", "is not a signature of the consortium's authority"),
        ("SHA256SUMS.sig", None, "SHA256SUMS.sig cannot be read"),
    ):
        copy = tmp_path / f"copy of {name}"
        shutil.copytree(out, copy)
        if content is None:
            (copy / name).unlink()
        else:
            (copy / name).write_bytes(content)
        assert problem in wheels_problem(copy, kit / "ca.crt")
    with pytest.raises(RunFolderError) as error:
        collect_wheels(wheel, tmp_path / "new", authority=tmp_path / "nowhere", **options)
    assert error.value.code == "deploy.authority-missing"


def test_a_wheelhouse_that_cannot_be_complete_is_not_made(store: Path, tmp_path: Path) -> None:
    (store / "tinydep-1.0-py3-none-any.whl").unlink()
    options: dict[str, Any] = {"constraints": tmp_path / "constraints.txt", "extras": ["more"]}
    wheel = store / "tinyroot-0.3-py3-none-any.whl"
    out = tmp_path / "wheelhouse"
    with pytest.raises(ConfigError) as error:
        collect_wheels(wheel, out, source=store, **options)
    assert error.value.code == "deploy.wheels-not-collected" and "tinydep" in error.value.message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["constraints.txt", "store"]
    with pytest.raises(RunFolderError) as missing:
        collect_wheels(tmp_path / "no.whl", out, source=store, **options)
    assert missing.value.code == "deploy.file-not-found"
