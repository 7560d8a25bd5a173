"""consortium.toml is written at one place and its kits run at another: no text is a command."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

from fedgsca.config import Config, to_toml
from fedgsca.errors import ConfigError
from fedgsca.hospital.consortium import Consortium, is_host, read_consortium
from fedgsca.hospital.kits import coordinator_files, hospital_files

PLAN: dict[str, Any] = {
    "name": "Polyps (Europe), part 2",
    "contact": "Dr. Åsa Öberg <asa@example.org>, +46 8 123",
    "classes": ["HER2+", "normal tissue"],
    "image_size": 12,
    "coordinator": {"address": "superlink.example.org", "listen": "::", "names": ["fe80::1"]},
    "hospitals": [{"name": "berlin", "data": "/data/Bilder \U0001f600"}],
}


def write_plan(path: Path, **changes: Any) -> Path:
    import tomli_w

    path.write_text(tomli_w.dumps({**PLAN, **changes}))
    return path


def test_ordinary_names_of_any_language_are_accepted(tmp_path: Path) -> None:
    consortium, config = read_consortium(write_plan(tmp_path / "c.toml"))
    files, _ = hospital_files(consortium, config, consortium.hospitals[0], b"")
    assert tomllib.loads(files["site.toml"].data.decode())["data"] == "/data/Bilder \U0001f600"
    assert "HER2+, normal tissue" in files["README.md"].data.decode()


INJECTIONS = (
    "$(id>F)",
    "`id`",
    "a\nExecStartPre=/bin/sh",
    "a\\",
    "%n",
    '"; id; "',
    "x\x1b[2J",
    "a\rb",
)


@pytest.mark.parametrize("text", INJECTIONS)
@pytest.mark.parametrize("key", ["name", "contact", "address", "listen", "names", "hospital"])
def test_no_text_that_a_shell_or_systemd_would_interpret(
    key: str, text: str, tmp_path: Path
) -> None:
    coordinator: dict[str, Any] = dict(PLAN["coordinator"])
    changes: dict[str, Any] = {"coordinator": coordinator}
    if key in ("name", "contact"):
        changes[key] = text
    elif key == "hospital":
        changes["hospitals"] = [{"name": text}]
    elif key == "names":
        coordinator["names"] = [f"fe80::1%{text}"]
    else:
        coordinator[key] = f"fe80::1%{text}"
    with pytest.raises(ConfigError) as caught:
        read_consortium(write_plan(tmp_path / "c.toml", **changes))
    assert caught.value.code == "deploy.invalid-consortium"
    codes = {problem.code for problem in caught.value.problems}
    assert codes <= {
        "deploy.invalid-text",
        "deploy.invalid-address",
        "deploy.invalid-hospital-name",
    }


@pytest.mark.parametrize("classes", [["a\nb", "c"], ["\x1b[31mred", "c"], ["x" * 999, "c"]])
def test_class_names_are_one_printable_line(classes: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_consortium(write_plan(tmp_path / "c.toml", classes=classes))
    assert {problem.code for problem in caught.value.problems} == {"deploy.invalid-text"}


def test_hosts() -> None:
    for good in ("a.example.org", "10.0.0.7", "::1", "fe80::1", "server-1"):
        assert is_host(good)
    for bad in (
        "fe80::1%eth0",
        "fe80::1%$(id)",
        "a b",
        "-a",
        "a..b",
        "a\n",
        "1.2.3",
        "",
        "a" * 300,
    ):
        assert not is_host(bad), bad


@pytest.fixture
def unchecked() -> tuple[Consortium, Config]:
    """A plan that was not checked, to see what the templates do with its texts."""
    hostile = "$(touch pwned)`touch pwned`'; touch pwned #\nExecStart=/bin/touch pwned\n%h\\"
    coordinator = {"address": hostile, "listen": hostile}
    plan = {**PLAN, "name": hostile, "contact": hostile, "coordinator": coordinator}
    return Consortium.model_validate(plan), Config.load(method="fedavg")


def run_script(script: bytes, folder: Path, program: str) -> list[str]:
    """The arguments with which a script of a kit starts `program`."""
    (folder / "env.sh").write_text(f'PATH="{folder}/bin:$PATH"\npython=python3\n')
    (folder / "bin").mkdir()
    arguments = folder / "arguments"
    stub = f"#!/bin/sh\nprintf '%s\\0' \"$@\" > {arguments}\n"
    (folder / "bin" / program).write_text(stub)
    (folder / "bin" / program).chmod(0o755)
    (folder / "script.sh").write_bytes(script)
    subprocess.run(["sh", "script.sh"], cwd=folder, check=True)
    return arguments.read_text().split("\0")


def test_scripts_pass_every_text_on_as_it_is(
    unchecked: tuple[Consortium, Config], tmp_path: Path
) -> None:
    consortium, config = unchecked
    files, _ = hospital_files(consortium, config, consortium.hospitals[0], b"")
    arguments = run_script(files["start.sh"].data, tmp_path, "python3")
    assert arguments[arguments.index("--superlink") + 1] == consortium.server
    assert not list(tmp_path.rglob("pwned"))
    unit = files["fedgsca-berlin.service"].data.decode()
    assert unit.count("\nExecStart=") == 1 and "%h" not in unit.replace("%%", "")


def test_the_coordinators_scripts_do_too(
    unchecked: tuple[Consortium, Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datetime

    from fedgsca.hospital import certificates

    now = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
    monkeypatch.setattr(certificates, "end_of_validity", lambda _: now)
    consortium, config = unchecked
    files = coordinator_files(consortium, config, b"", {})
    arguments = run_script(files["superlink.sh"].data, tmp_path, "python3")
    assert arguments[arguments.index("--listen") + 1] == consortium.coordinator.listen
    script = "FLWR_HOME=. kit=.\ncat >" + files["env.sh"].data.decode().partition("cat >")[2]
    subprocess.run(["sh", "-c", script], cwd=tmp_path, check=True)
    assert not list(tmp_path.rglob("pwned"))
    assert files["fedgsca-superlink.service"].data.decode().count("\nExecStart=") == 1


def test_a_readme_contains_no_html(unchecked: tuple[Consortium, Config]) -> None:
    consortium, config = unchecked
    hostile = consortium.model_copy(update={"contact": "<script>alert(1)</script>"})
    files, _ = hospital_files(hostile, config, hostile.hospitals[0], b"")
    assert b"<script" not in files["README.md"].data
    assert json.loads(files["kit.json"].data)["hospital"] == "berlin"
    assert tomllib.loads(to_toml(config))
