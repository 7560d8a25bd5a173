"""Deployment kits: their contents, the check against a real TLS server, the status of a run."""

from __future__ import annotations

import datetime
import http.server
import io
import json
import re
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import sysconfig
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deployment import reserved_port
from tests.toys import toy_config, toy_folder

pytest.importorskip("cryptography")

import fedgsca
from fedgsca.cli import execute
from fedgsca.config import build, merge
from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.federation.privacy import epsilon
from fedgsca.federation.round_status import StatusObserver, read_deployment_status
from fedgsca.federation.simulation import prepare
from fedgsca.hospital import check_connection as connection
from fedgsca.hospital.certificates import (
    CertifiedKey,
    make_authority,
    make_key_pair,
    make_server,
    read_node_key,
)
from fedgsca.hospital.check_connection import (
    check,
    clock_difference,
)
from fedgsca.hospital.check_kit import (
    check_kit,
    check_site_data,
    check_versions,
    inspect_disk,
    inspect_free_port,
    inspect_key,
    inspect_port,
    inspect_server_files,
    inspect_test_images,
)
from fedgsca.hospital.consortium import read_consortium
from fedgsca.hospital.kits import KEY_FILE, add_hospital, installed_versions, make_kits
from fedgsca.hospital.settings import SiteSettings, read_settings, state_folder

PLAN = """
name = "Test"
contact = "nobody"
classes = ["class 0", "class 1", "class 2"]
image_size = 12
coordinator = { address = "superlink.example.org", names = ["10.0.0.7"] }
hospitals = [{ name = "berlin" }, { name = "lyon", data = "/data/x" }]
[experiment]
method = "fedavg"
[experiment.train]
rounds = 2
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "consortium.toml"
    path.write_text(PLAN)
    return path


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


# ---- the plan ----


def test_the_example_is_a_valid_plan(tmp_path: Path) -> None:
    assert execute(["deploy", "init", "--example", str(tmp_path / "c.toml")]) == 0
    plan, config = read_consortium(tmp_path / "c.toml")
    assert (
        config.federation.sites == tuple(h.name for h in plan.hospitals)
        and config.data.source == "sites"
    )
    assert config.data.sites == len(plan.hospitals)
    assert (
        execute(["deploy", "init", "--example", str(tmp_path / "c.toml")])
        == RunFolderError.exit_code
    )


def test_all_problems_of_a_plan_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        'name = "x"\nclasses = ["a", "a"]\nimage_size = 4\n'
        'hospitals = [{name = "B C"}, {name = "d"}, {name = "d"}]\n'
        'coordinator = {address = "not a host", prt = 1}\n'
        "[experiment.train]\nround = 3\n"
        '[experiment.data]\nsource = "x"\n'
    )
    with pytest.raises(ConfigError) as caught:
        read_consortium(path)
    assert caught.value.code == "deploy.invalid-consortium"
    problems = {(problem.code, problem.message.split(":")[0]) for problem in caught.value.problems}
    assert {
        ("deploy.duplicate-name", "classes"),
        ("deploy.duplicate-name", "hospitals"),
        ("deploy.invalid-hospital-name", "hospitals"),
        ("deploy.invalid-address", "coordinator"),
        ("deploy.derived-key", "experiment.data.source"),
    } <= problems
    places = {place for _, place in problems}
    assert {"contact", "image_size", "coordinator.prt", "experiment.train.round"} <= places


AGREED = PLAN.replace('{ name = "berlin" }', '{ name = "berlin", max_images = 1000 }')


def test_agreed_numbers_of_images_are_part_of_the_experiment(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(AGREED)
    _, config = read_consortium(path)
    assert config.aggregation.max_images == {"berlin": 1000}
    assert config.aggregation.agreed_images("berlin") == 1000
    assert config.aggregation.agreed_images("lyon") is None
    path.write_text(PLAN + "[experiment.aggregation]\nmax_images = 500\n")
    _, config = read_consortium(path)
    assert config.aggregation.agreed_images("lyon") == 500, "one number for all"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (AGREED.replace("1000", "0"), "hospitals.berlin.max_images"),
        (AGREED.replace("1000", '"many"'), "hospitals.berlin.max_images"),
        (AGREED.replace("1000", "true"), "hospitals.berlin.max_images"),
        (
            AGREED + "[experiment.aggregation]\nmax_images = 500\n",
            "experiment.aggregation.max_images",
        ),
        (
            PLAN + "[experiment.aggregation.max_images]\nparis = 700\n",
            "experiment.aggregation.max_images",
        ),
    ],
)
def test_a_wrong_agreement_is_reported(text: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_consortium(path)
    assert [problem.message.split(":")[0] for problem in caught.value.problems] == [place]


def test_an_agreement_with_an_unknown_hospital_names_the_valid_ones(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(PLAN + "[experiment.aggregation.max_images]\nparis = 700\n")
    command = ["deploy", "init", str(path), "--out", str(tmp_path / "kits")]
    assert execute(command) == ConfigError.exit_code
    output = " ".join(capfd.readouterr().err.split())
    assert "'paris'" in output and "berlin, lyon" in output and "Fix:" in output
    assert not (tmp_path / "kits").exists()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            '{ name = "berlin", max_image = 5000 }',
            "hospitals.berlin.max_image: unknown key; did you mean max_images?",
        ),
        (
            '{ name = "berlin", colour = 1 }',
            "hospitals.berlin.colour: unknown key; use one of: name, data, max_images",
        ),
        (
            "{ colour = 1 }",
            "hospitals, entry 1, colour: unknown key; use one of: name, data, max_images",
        ),
    ],
)
def test_a_wrong_key_of_a_hospital_is_named_with_the_valid_ones(
    entry: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(PLAN.replace('{ name = "berlin" }', entry))
    with pytest.raises(ConfigError) as caught:
        read_consortium(path)
    assert message in [problem.message for problem in caught.value.problems]


@pytest.mark.parametrize("plan_text", ["", PLAN])
def test_a_key_that_looks_like_the_position_of_a_hospital_is_reported(
    plan_text: str, tmp_path: Path
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f'"hospitals.99" = 1\n{plan_text}')
    with pytest.raises(ConfigError) as caught:
        read_consortium(path)
    assert any(problem.message.startswith("hospitals.99:") for problem in caught.value.problems)


def test_kits_name_the_agreed_numbers(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(AGREED)
    made = make_kits(*read_consortium(path), tmp_path / "kits")
    pages = {kit.stem: contents(kit)["README.md"].decode() for kit in made}
    assert "at most 1,000 training images of your hospital" in pages["berlin"]
    assert "training images of your hospital" not in pages["lyon"]
    page = (tmp_path / "kits" / "coordinator" / "README.md").read_text()
    assert "berlin (at most 1,000 images), lyon." in page


def test_the_check_of_a_site_compares_its_images_with_the_agreement(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    site = SiteSettings(
        name="berlin", state=str(tmp_path / "state"), data=str(toy_folder("one_class"))
    )
    states = []
    for number in ("1000", "3"):
        path.write_text(AGREED.replace("1000", number))
        _, config = read_consortium(path)
        for finding in check_site_data(config, site):
            if finding.topic == "images agreed":
                states.append((finding.state, bool(finding.fix)))
    assert states == [("ok", False), ("FAIL", True)]


def test_the_status_shows_the_agreed_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = toy_config("fedavg", aggregation__max_images={"site-1": 1234})
    (tmp_path / "config.toml").touch()
    StatusObserver(tmp_path).on_start(prepare(config), 0)
    assert execute(["deploy", "status", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "images agreed" in output and "1,234" in output
    status = read_deployment_status(tmp_path)
    assert [row.max_images for row in status.sites] == [1234, None, None, None]


# ---- the kits ----


def test_a_kit_holds_one_hospitals_secret_and_no_other(plan: Path, tmp_path: Path) -> None:
    made = make_kits(*read_consortium(plan), tmp_path / "kits")
    kits = {path.stem: contents(path) for path in made}
    secrets = {name: kit[KEY_FILE] for name, kit in kits.items()}
    authority = (tmp_path / "kits/authority/ca.key").read_bytes()
    server = (tmp_path / "kits/coordinator/server.key").read_bytes()
    for name, kit in kits.items():
        foreign = [
            authority,
            server,
            *(secret for other, secret in secrets.items() if other != name),
        ]
        assert not any(secret.strip() in data for secret in foreign for data in kit.values())
        assert sorted(file for file, data in kit.items() if b"PRIVATE KEY" in data) == [
            KEY_FILE,
        ]
        assert read_node_key(kit[KEY_FILE]).fits(
            (tmp_path / f"kits/coordinator/keys/{name}.pub").read_bytes()
        )
        assert (
            b"RestartSec=75" in kit[f"fedgsca-{name}.service"]
            and b"superlink.example.org:8000" in kit["start.sh"]
        )
        assert len(kit["README.md"].splitlines()) < 105
    coordinator = [path for path in (tmp_path / "kits/coordinator").rglob("*") if path.is_file()]
    assert [path.name for path in coordinator if b"PRIVATE KEY" in path.read_bytes()] == [
        "server.key"
    ]


def test_secrets_are_readable_by_their_owner_only(plan: Path, tmp_path: Path) -> None:
    made = make_kits(*read_consortium(plan), tmp_path / "kits")
    for path in (
        *made,
        tmp_path / "kits/authority/ca.key",
        tmp_path / "kits/coordinator/server.key",
    ):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    with zipfile.ZipFile(made[0]) as archive:
        modes = {
            entry.filename.partition("/")[2]: entry.external_attr >> 16 & 0o777
            for entry in archive.infolist()
        }
    assert modes[KEY_FILE] == 0o600 and modes["start.sh"] == 0o755


def test_existing_keys_are_never_overwritten(plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "kits"
    make_kits(*read_consortium(plan), out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(RunFolderError) as caught:
        make_kits(*read_consortium(plan), out)
    assert caught.value.code == "deploy.kits-exist"
    with pytest.raises(RunFolderError) as caught:
        add_hospital(*read_consortium(plan), out, "lyon")
    assert caught.value.code == "deploy.key-exists"
    with pytest.raises(ConfigError) as refusal:
        add_hospital(*read_consortium(plan), out, "turin")
    assert refusal.value.code == "deploy.unknown-hospital"
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    plan.write_text(PLAN.replace('{ name = "berlin" }', '{ name = "berlin" }, { name = "turin" }'))
    new = contents(add_hospital(*read_consortium(plan), out, "turin"))
    assert new["ca.crt"] == (out / "authority/ca.crt").read_bytes()
    assert "turin" in (out / "coordinator/experiment.toml").read_text()
    keys = [p for p in before if p.suffix in (".zip", ".key", ".pem", ".crt", ".pub")]
    assert all(path.read_bytes() == before[path] for path in keys)


def test_the_settings_of_a_kit_are_what_a_site_reads(plan: Path, tmp_path: Path) -> None:
    consortium, config = read_consortium(plan)
    kit = contents(make_kits(consortium, config, tmp_path / "kits")[1])
    (tmp_path / "site.toml").write_bytes(kit["site.toml"])
    settings = read_settings(tmp_path / "site.toml")
    assert (settings.name, settings.data) == ("lyon", "/data/x")
    assert (
        f"fedgsca review {state_folder(settings, config.fingerprint())}/audit/lyon "
        in kit["README.md"].decode()
    )


def test_a_kit_installs_the_wheel_that_comes_with_it(plan: Path, tmp_path: Path) -> None:
    hospital = contents(make_kits(*read_consortium(plan), tmp_path / "kits")[0])[
        "README.md"
    ].decode()
    for readme in (hospital, (tmp_path / "kits/coordinator/README.md").read_text()):
        wheel = f"./fedgsca-{fedgsca.__version__}-py3-none-any.whl"
        assert f"pip install -c constraints.txt '{wheel}[flower" in readme
        assert readme.index("sudo chown") < readme.index("-m venv"), (
            "the folder in /opt belongs to root before"
        )
    (finding,) = (
        f
        for f in check_versions({**installed_versions(), "fedgsca": "0.0"}, "")
        if f.state == "FAIL"
    )
    assert finding.fix is not None and "wheel" in finding.fix


def test_under_privacy_the_coordinator_installs_and_checks_the_accountant(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opacus")
    privacy = "[experiment.privacy]\nclip = 0.1\nnoise = 4.0\n"
    federation = f'[experiment.federation]\ntest = "{toy_folder("one_class")}"\n'
    plan.write_text(PLAN + privacy + federation)
    zips = make_kits(*read_consortium(plan), tmp_path / "kits")
    kit = tmp_path / "kits" / "coordinator"
    assert "whl[flower,privacy]'" in (kit / "README.md").read_text()
    with zipfile.ZipFile(zips[0]) as archive:
        readme = archive.read("berlin/README.md").decode()
    assert "whl[flower,review]'" in readme
    assert "clipped and noised before they leave" in readme
    budget = f"epsilon {epsilon(4.0, {}, 2, 1e-5):.3g} at delta 1e-05 after 2 rounds"
    assert states(kit)["privacy"] == ("ok", f"{budget}, for a site as a whole")
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    assert states(kit)["privacy"] == ("FAIL", "the privacy accountant is not installed")


# ---- the scripts ----


def unpacked(plan: Path, folder: Path) -> Path:
    """The kit of berlin as `unzip` leaves it, except for the modes."""
    with zipfile.ZipFile(make_kits(*read_consortium(plan), folder / "kits")[0]) as archive:
        archive.extractall(folder)
    return folder / "berlin"


def probe(kit: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """What env.sh finds: the interpreter, and the first folder of the path."""
    script = 'set -eu; kit=$1; . "$kit/env.sh"; echo "$python"; echo "${PATH%%:*}"'
    return subprocess.run(
        ["sh", "-c", script, "sh", str(kit)], env=env, capture_output=True, text=True, check=False
    )


def test_scripts_find_the_python_that_has_fedgsca(plan: Path, tmp_path: Path) -> None:
    kit, here = (
        unpacked(plan, tmp_path),
        {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(fedgsca.__file__).parents[1])},
    )
    scripts = sysconfig.get_path("scripts")
    assert probe(kit, **here, FEDGSCA_PYTHON=sys.executable).stdout.splitlines() == [
        sys.executable,
        scripts,
    ]
    own = kit / ".venv/bin/python"
    own.parent.mkdir(parents=True)
    own.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    own.chmod(0o755)
    assert probe(kit, **here).stdout.splitlines() == [str(own), scripts]
    for name in ("python3", "python"):  # a machine with one of them, and no environment in the kit
        folder = tmp_path / f"only-{name}"
        folder.mkdir()
        for tool in ("sh", "mkdir"):
            (folder / tool).symlink_to(str(shutil.which(tool)))
        own.rename(folder / name)
        assert probe(kit, **{**here, "PATH": str(folder)}).stdout.splitlines() == [
            str(folder / name),
            scripts,
        ]
        own = folder / name


def test_a_python_without_fedgsca_is_reported_with_a_fix(plan: Path, tmp_path: Path) -> None:
    kit, other = unpacked(plan, tmp_path), tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # no installed packages
    other.chmod(0o755)
    for env in ({"FEDGSCA_PYTHON": str(other)}, {"FEDGSCA_PYTHON": "/nowhere/python"}):
        process = probe(kit, PATH="/usr/bin:/bin", **env)
        assert process.returncode == 1
        assert "no fedgsca" in process.stderr
        assert "Fix: " in process.stderr


# ---- the check ----


class Answer(http.server.BaseHTTPRequestHandler):
    status, shift = 401, 0.0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def date_time_string(self, timestamp: float | None = None) -> str:
        import time

        return super().date_time_string((timestamp or time.time()) + self.shift)

    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def serving(
    folder: Path, signed: CertifiedKey, *, status: int = 401, shift: float = 0.0
) -> Iterator[int]:
    """A TLS server that answers like a SuperLink; yields its port."""
    file = folder / "served.pem"
    file.write_bytes(signed.certificate + signed.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)

    class Quiet(http.server.ThreadingHTTPServer):
        def handle_error(
            self, request: object, client_address: object
        ) -> None: ...  # clients that distrust us hang up

    server = Quiet(
        ("127.0.0.1", 0), type("Configured", (Answer,), {"status": status, "shift": shift})
    )
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def checked(folder: Path, trusted: CertifiedKey, port: int) -> dict[str, tuple[str, str]]:
    (folder / "ca.crt").write_bytes(trusted.certificate)
    key = read_node_key(make_key_pair()[0]).public
    results = list(connection.check_connection("127.0.0.1", port, folder / "ca.crt", key))
    assert all(result.fix for result in results if not result.ok)
    return {result.topic: (result.state, result.text) for result in results}


def test_a_good_server_passes_and_shows_whether_the_key_is_registered(tmp_path: Path) -> None:
    authority = make_authority("ours")
    signed = make_server(authority, ["127.0.0.1"])
    with serving(tmp_path, signed) as port:
        results = checked(tmp_path, authority, port)
    assert list(results) == ["address", "port", "certificate", "clock", "key registered"]
    assert {state for state, _ in results.values()} == {"ok"}
    with serving(tmp_path, signed, status=412, shift=-30) as port:
        results = checked(tmp_path, authority, port)
    assert (
        results["key registered"][0] == "FAIL"
        and results["clock"][0] == "FAIL"
        and "ahead of" in results["clock"][1]
    )
    with serving(tmp_path, signed, status=500) as port:
        assert checked(tmp_path, authority, port)["key registered"][0] == "unknown"


def test_a_slow_answer_is_no_difference_of_the_clocks() -> None:
    assert clock_difference(100.0, 130.0, 100.0) == 0.0
    assert clock_difference(100.0, 130.0, 115.0) == 0.0
    assert clock_difference(100.0, 130.0, 90.0) == 10.0, "ahead, whenever the server answered"
    assert clock_difference(100.0, 130.0, 190.0) == -60.0


def test_each_kind_of_wrong_certificate_is_named(tmp_path: Path) -> None:
    authority, long_ago = make_authority("ours"), datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    cases = {
        "not signed by this consortium": make_server(make_authority("theirs"), ["127.0.0.1"]),
        "it is not for 127.0.0.1, but for: other.example.org": make_server(
            authority, ["other.example.org"]
        ),
        "expired": make_server(authority, ["127.0.0.1"], days=9, now=long_ago),
        "9 days left": make_server(authority, ["127.0.0.1"], days=10),
    }
    for phrase, signed in cases.items():
        with serving(tmp_path, signed) as port:
            results = checked(tmp_path, authority, port)
        state, text = results["certificate"]
        assert state == "FAIL" and phrase in text, text
        assert "clock" not in results


def test_a_closed_port_is_reported(tmp_path: Path) -> None:
    with reserved_port() as port:  # nobody listens there
        assert checked(tmp_path, make_authority("ours"), port)["port"][0] == "FAIL"


def test_a_key_that_others_can_read_or_that_is_none_fails(tmp_path: Path) -> None:
    path = tmp_path / KEY_FILE
    assert check("key", inspect_key, path).state == "FAIL"
    path.write_bytes(make_key_pair()[0])
    path.chmod(0o644)
    assert "mode 644" in check("key", inspect_key, path).text
    path.chmod(0o600)
    assert check("key", inspect_key, path).state == "ok"
    (tmp_path / f"{KEY_FILE}.pub").write_bytes(make_key_pair()[1])
    assert "does not belong to" in check("key", inspect_key, path).text
    path.write_text("something else")
    assert "not a private key" in check("key", inspect_key, path).text


def test_versions_data_classes_and_disk(plan: Path, tmp_path: Path) -> None:
    assert {finding.state for finding in check_versions(installed_versions(), "")} == {"ok"}
    assert [
        f.topic
        for f in check_versions({**installed_versions(), "flwr": "1.0"}, "")
        if f.state == "FAIL"
    ] == ["version of flwr"]
    _, config = read_consortium(plan)
    site = SiteSettings(
        name="berlin", state=str(tmp_path / "state"), data=str(toy_folder("one_class"))
    )
    assert {finding.topic: finding.state for finding in check_site_data(config, site)}[
        "classes"
    ] == "ok"
    other = config.model_copy(
        update={"data": config.data.model_copy(update={"classes": ("class 0", "class 1")})}
    )
    states = {finding.topic: finding.state for finding in check_site_data(other, site)}
    assert states["data"] == "ok" and states["classes"] == "FAIL"
    gone = {
        f.topic: f
        for f in check_site_data(config, site.model_copy(update={"data": str(tmp_path / "gone")}))
    }
    assert gone["data"].state == "FAIL" and gone["data"].fix and "classes" not in gone
    assert (
        check("disk", inspect_disk, tmp_path, 10**18).state == "FAIL"
        and check("disk", inspect_disk, tmp_path / "new", 1).state == "ok"
    )


def test_the_command_prints_findings_and_fails(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan.write_text(
        PLAN.replace("superlink.example.org", "127.0.0.1").replace("address", "port = 1, address")
    )
    made = make_kits(*read_consortium(plan), tmp_path / "kits")
    with zipfile.ZipFile(io.BytesIO(made[0].read_bytes())) as archive:
        archive.extractall(tmp_path)
    assert execute(["deploy", "check", str(tmp_path / "berlin"), "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    state_of = {finding["what"]: finding["state"] for finding in findings}
    assert state_of["port"] == state_of["data"] == "FAIL"
    assert state_of["version of fedgsca"] == state_of["site.toml"] == "ok"
    assert execute(["deploy", "check", str(tmp_path)]) == ConfigError.exit_code


# ---- the coordinator ----


@pytest.fixture
def coordinator(plan: Path, tmp_path: Path) -> Iterator[Path]:
    with reserved_port() as port:
        plan.write_text(PLAN.replace("address", f'listen = "127.0.0.1", port = {port}, address'))
        make_kits(*read_consortium(plan), tmp_path / "kits")
        yield tmp_path / "kits" / "coordinator"


def states(kit: Path) -> dict[str, tuple[str, str]]:
    results = list(check_kit(kit))
    assert all(result.fix for result in results if not result.ok)
    return {result.topic: (result.state, result.text) for result in results}


def test_a_good_coordinator_passes(coordinator: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["deploy", "check", str(coordinator)]) == 0
    shown = capsys.readouterr().out
    assert (
        "ready to start" in shown
        and "is free; no SuperLink is running yet" in shown
        and "hospitals' keys: berlin, lyon" in shown
    )
    assert "superlink.example.org, 10.0.0.7, 127.0.0.1" in shown


def test_each_fault_of_a_certificate_is_reported_with_the_command_that_renews_it(
    coordinator: Path,
) -> None:
    authority, hosts = (
        coordinator.parent / "authority",
        read_consortium(coordinator.parents[1] / "consortium.toml")[0].hosts,
    )
    ours = CertifiedKey((authority / "ca.crt").read_bytes(), (authority / "ca.key").read_bytes())
    cases = {
        "9 days left": make_server(ours, hosts, days=10),
        "it is not for 10.0.0.7": make_server(ours, [host for host in hosts if host != "10.0.0.7"]),
        "not signed by the authority": make_server(make_authority("theirs"), hosts),
        "not valid yet": make_server(
            ours, hosts, now=datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)
        ),
        "does not belong to": CertifiedKey(
            make_server(ours, hosts).certificate, make_server(ours, hosts).key
        ),
        "cannot be used": CertifiedKey(b"something", b"else"),
    }
    for phrase, signed in cases.items():
        (coordinator / "server.pem").write_bytes(signed.certificate)
        (coordinator / "server.key").write_bytes(signed.key)
        result = check("certificate", inspect_server_files, coordinator, list(hosts))
        assert result.state == "FAIL" and phrase in result.text and result.fix, result
    signed = make_server(ours, ["2001:DB8:0::1"])
    (coordinator / "server.pem").write_bytes(signed.certificate)
    (coordinator / "server.key").write_bytes(signed.key)
    assert (
        check("certificate", inspect_server_files, coordinator, ["2001:DB8:0::1"]).state == "ok"
    ), "another way to write 2001:db8::1"
    spaced = coordinator.rename(coordinator.with_name("a kit"))
    (spaced / "server.key").chmod(0o640)
    assert (
        check("certificate", inspect_server_files, spaced, ["2001:db8::1"]).fix
        == f"chmod 600 '{spaced}/server.key'"
    )
    (spaced / "server.pem").unlink()
    assert (
        check("certificate", inspect_server_files, spaced, list(hosts)).text
        == "server.pem cannot be read: No such file or directory"
    )


def test_a_renewed_certificate_has_the_names_of_the_file_and_the_old_authority(
    coordinator: Path, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kits, before = coordinator.parent, (coordinator / "server.pem").read_bytes()
    keys = {path: path.read_bytes() for path in kits.rglob("*.zip")}
    experiment = (coordinator / "experiment.toml").read_bytes()
    plan.write_text(
        plan.read_text().replace('"10.0.0.7"', '"10.0.0.8"').replace("rounds = 2", "rounds = 3")
    )
    assert execute(["deploy", "init", str(plan), "--renew-server", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["certificate"] == str(coordinator / "server.pem")
    assert (coordinator / "server.pem").read_bytes() != before and "10.0.0.8" in states(
        coordinator
    )["certificate"][1]
    assert {state for state, _ in states(coordinator).values()} == {"ok"}
    assert (coordinator / "experiment.toml").read_bytes() == experiment
    assert {path: path.read_bytes() for path in kits.rglob("*.zip")} == keys
    plan.write_text(re.sub(r"port = \d+", "port = 18443", plan.read_text()))
    assert execute(["deploy", "init", str(plan), "--renew-server", "--json"]) == 0
    assert all("18443" in (coordinator / name).read_text() for name in ("kit.json", "superlink.sh"))
    assert stat.S_IMODE((coordinator / "server.key").stat().st_mode) == 0o600
    (kits / "authority" / "ca.key").rename(kits / "ca.key")
    assert execute(["deploy", "init", str(plan), "--renew-server"]) == RunFolderError.exit_code


def test_keys_port_and_test_images_of_the_coordinator(
    coordinator: Path, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "TIMEOUT", 0.3)  # the server below never answers
    keys, number = coordinator / "keys", json.loads((coordinator / "kit.json").read_text())["port"]
    (keys / "lyon.pub").rename(keys / "stranger.pub")
    with socket.create_server(("127.0.0.1", number)):
        results = states(coordinator)
    assert results["hospitals' keys"] == ("FAIL", "lyon has no key")
    assert results["further keys"][0] == "unknown"
    assert results["port"][0] == "FAIL"
    assert f"{number} is in use" in results["port"][1]
    (keys / "lyon.pub").write_bytes((keys / "berlin.pub").read_bytes() + b" a comment")
    (keys / "stranger.pub").write_text("ssh-rsa nonsense")
    text = states(coordinator)["hospitals' keys"][1]
    assert "berlin and lyon have the same key" in text
    assert "the key of stranger is not of type" in text
    tested = {"federation": {"test": str(toy_folder("one_class"))}}
    _, config = read_consortium(plan)
    assert (
        check("test images", inspect_test_images, build(merge(config.to_tree(), tested))).state
        == "ok"
    )
    assert (
        check(
            "test images",
            inspect_test_images,
            build(merge(config.to_tree(), {"federation": {"test": str(tmp_path / "gone")}})),
        ).state
        == "FAIL"
    )
    assert (
        check("port", inspect_free_port, "203.0.113.1", number).text
        == "this machine does not have the address 203.0.113.1"
    )


def test_a_superlink_of_this_consortium_may_listen(coordinator: Path, tmp_path: Path) -> None:
    signed = CertifiedKey(
        (coordinator / "server.pem").read_bytes(), (coordinator / "server.key").read_bytes()
    )
    with serving(tmp_path, signed) as number:
        assert (
            check(
                "port", inspect_port, "127.0.0.1", "127.0.0.1", number, coordinator / "ca.crt"
            ).text
            == f"the SuperLink is listening on {number}"
        )


# ---- the run ----


def test_the_status_shows_which_sites_are_awaited_and_since_when(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = {
        "b": {"state": "awaited: update", "since": "2026-01-01T00:00:00Z"},
        "a": {"state": "answered", "since": "2026-01-01T00:00:50Z"},
    }
    fields = {
        "state": "running",
        "round": 3,
        "rounds": 9,
        "f1": 61.5,
        "sites": sites,
        "messages": ["hello"],
        "at": "2026-01-01T00:00:50Z",
    }
    (tmp_path / "status.json").write_text(json.dumps(fields))
    status = read_deployment_status(
        tmp_path, datetime.datetime(2026, 1, 1, 0, 1, tzinfo=datetime.UTC)
    )
    assert (
        status.awaited_sites == ("b",)
        and [row.seconds for row in status.sites] == [10, 60]
        and status.silent == 10
    )
    assert execute(["deploy", "status", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "round 3 of 9 done, last F1 61.5" in shown and "awaited: update" in shown
    (tmp_path / "status.json").write_text(json.dumps({**fields, "state": "finished"}))
    assert [row.state for row in read_deployment_status(tmp_path).sites] == [
        "answered",
        "done",
    ] and read_deployment_status(tmp_path).awaited_sites == ()
    (tmp_path / "status.json").write_text('{"sites": 3}')
    assert (
        execute(["deploy", "status", str(tmp_path)])
        == execute(["deploy", "status", str(tmp_path / "x")])
        == 7
    )
