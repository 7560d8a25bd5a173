"""The hospital's ledger: nothing leaves that nobody allowed or that is not written down."""

from __future__ import annotations

import datetime
import json
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsca.cli import execute
from fedgsca.errors import RunFolderError
from fedgsca.federation.base import Reply
from fedgsca.hospital.ledger import NO_AGREEMENT, Gate, Ledger
from fedgsca.hospital.messages import EncodedMessage, encode, encode_reply
from fedgsca.hospital.settings import SiteSettings, read_settings
from fedgsca.wire import Update

EXPERIMENT = "e" * 64
TERMS = {
    "version": "0",
    "config": {},
    "fingerprint": EXPERIMENT,
    "classes": "",
    "backbone": "",
}
WEIGHTS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(2, np.float32)}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(f'name = "berlin"\nstate = "{tmp_path}/state"\ndata = "{tmp_path}"\n')
    return path


@pytest.fixture
def ledger(site: Path) -> Ledger:
    return Ledger(read_settings(site))


def request(kind: Any = "train", round_index: int = 4) -> bytes:
    return encode(kind, {"round": round_index, "terms": TERMS}, {}, {}).to_bytes()


def answer(error: str | None = None) -> bytes:
    update = None
    if error is None:
        update = Update("berlin", 120, WEIGHTS, {"selector": np.zeros(6)})
    return encode_reply("train", 4, Reply("berlin", update, error)).to_bytes()


def error_of(reply: bytes) -> str:
    return str(EncodedMessage.from_bytes(reply).header["error"])


def test_without_an_agreement_the_worker_is_not_even_asked(site: Path, ledger: Ledger) -> None:
    def ask(_: bytes) -> bytes:
        raise AssertionError("asked")

    assert error_of(Gate(site, ask).ask(request())) == NO_AGREEMENT
    ledger.append("agreed", "f" * 64, "Dr. A", until="9999-01-01")  # another experiment
    assert error_of(Gate(site, ask).ask(request())) == NO_AGREEMENT
    ledger.append("agreed", EXPERIMENT, "Dr. A", until="2020-01-01")  # over
    assert error_of(Gate(site, ask).ask(request())) == NO_AGREEMENT
    ledger.append("agreed", EXPERIMENT, "Dr. A", until="9999-01-01")
    ledger.append("ended", EXPERIMENT, "Dr. B")
    assert error_of(Gate(site, ask).ask(request())) == NO_AGREEMENT


def test_what_leaves_is_written_down_before_it_leaves(site: Path, ledger: Ledger) -> None:
    ledger.append("agreed", EXPERIMENT, "Dr. A, head of pathology", until="9999-01-01")
    reply = Gate(site, lambda _: answer()).ask(request())
    assert reply == answer()
    entry = ledger.entries()[-1]
    assert (entry.event, entry.kind, entry.round, entry.experiment) == (
        "sent",
        "train",
        5,
        EXPERIMENT,
    )
    assert entry.person == "Dr. A, head of pathology"
    assert entry.fields == ("120 images", "weights: 8 numbers", "selector [6]")
    import hashlib

    assert entry.sha256 == hashlib.sha256(reply).hexdigest() and entry.bytes == len(reply)
    assert ledger.path.stat().st_mode & 0o777 == 0o600
    Gate(site, lambda _: answer("its images are gone")).ask(request())  # a refusal has no numbers
    assert len(ledger.entries()) == 2


def test_what_cannot_be_written_down_does_not_leave(
    site: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.append("agreed", EXPERIMENT, "Dr. A", until="9999-01-01")

    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedgsca.hospital.ledger.os.write", fail)
    reply = EncodedMessage.from_bytes(Gate(site, lambda _: answer()).ask(request()))
    assert "cannot write to its disk" in str(reply.header["error"])
    assert not reply.weights


def test_a_rehearsal_without_data_needs_no_agreement(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(f'name = "berlin"\nstate = "{tmp_path}/state"\n')
    assert Gate(path, lambda _: answer()).ask(request()) == answer()
    assert "rehearsal" in Ledger(read_settings(path)).entries()[0].person


def test_an_agreement_holds_until_the_end_of_its_last_day(ledger: Ledger) -> None:
    ledger.append("agreed", EXPERIMENT, "Dr. A", until="2027-06-30")
    assert ledger.agreement(EXPERIMENT, datetime.date(2027, 6, 30)) is not None
    assert ledger.agreement(EXPERIMENT, datetime.date(2027, 7, 1)) is None


@pytest.mark.parametrize("change", ["edit", "remove", "insert", "swap", "recompute"])
def test_every_change_of_an_entry_is_noticed(ledger: Ledger, change: str) -> None:
    for number in range(4):
        ledger.append("sent", EXPERIMENT, "Dr. A", bytes=100 + number)
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    if change == "edit":
        lines[1] = lines[1].replace(b"101", b"7")
    elif change == "remove":
        del lines[1]
    elif change == "insert":
        lines.insert(1, lines[1])
    elif change == "swap":
        lines[1], lines[2] = lines[2], lines[1]
    else:  # with a digest of its own
        from dataclasses import replace

        entry = replace(ledger.entries()[1], bytes=7).with_digest()
        lines[1] = json.dumps(entry.to_json(), sort_keys=True).encode() + b"\n"
    ledger.path.write_bytes(b"".join(lines))
    with pytest.raises(RunFolderError) as info:
        ledger.entries()
    assert info.value.code == "site.ledger-broken"


def test_a_changed_ledger_stops_everything(site: Path, ledger: Ledger) -> None:
    ledger.append("agreed", EXPERIMENT, "Dr. A", until="9999-01-01")
    ledger.path.write_bytes(ledger.path.read_bytes().replace(b"Dr. A", b"Dr. B"))
    reply = Gate(site, lambda _: answer()).ask(request())
    assert not EncodedMessage.from_bytes(reply).weights and "damaged" in error_of(reply)
    with pytest.raises(RunFolderError):
        ledger.append("agreed", EXPERIMENT, "Dr. C", until="9999-01-01")


def test_an_entry_cut_short_by_a_power_cut_is_replaced(ledger: Ledger) -> None:
    ledger.append("agreed", EXPERIMENT, "Dr. A", until="9999-01-01")
    content = ledger.path.read_bytes()
    ledger.path.write_bytes(content + b'{"number": 2, "time"')
    assert len(ledger.entries()) == 1
    ledger.append("ended", EXPERIMENT, "Dr. A")
    assert [entry.event for entry in ledger.entries()] == ["agreed", "ended"]
    assert ledger.path.read_bytes().startswith(content)


def append_some(state: str) -> None:
    ledger = Ledger(SiteSettings(name="a", state=state))
    for _ in range(20):
        ledger.append("sent", EXPERIMENT, "Dr. A")


def test_two_processes_write_one_chain(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=append_some, args=(str(tmp_path),)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert len(Ledger(SiteSettings(name="a", state=str(tmp_path))).entries()) == 40


# ---- the commands ----


@pytest.fixture
def kit(site: Path) -> Path:
    (site.parent / "experiment.toml").write_text(
        '[data]\nsource = "sites"\nclasses = ["a", "b"]\nimage_size = 16\nsites = 2\n'
        '[federation]\nsites = ["berlin", "lyon"]\n'
    )
    return site.parent


def test_a_person_agrees_reads_the_ledger_and_ends(
    kit: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    person = ["--person", "Dr. A, head of pathology"]
    assert execute(["deploy", "agree", str(kit), *person, "--until", "9999-12-31", "--yes"]) == 0
    output = capsys.readouterr().out
    for text in ("fedgsca", "lyon", "weights", "neither clipped nor noised"):
        assert text in output
    assert ledger.entries()[0].until == "9999-12-31"
    assert execute(["deploy", "ledger", str(kit)]) == 0
    output = capsys.readouterr().out
    digest = ledger.entries()[0].digest
    assert "Dr. A" in output and digest in output and "1 entry" in output
    assert execute(["deploy", "agree", str(kit), *person, "--end"]) == 0
    assert execute(["deploy", "ledger", str(kit), "--expect", digest]) == 0
    ledger.path.unlink()
    capsys.readouterr()
    assert execute(["deploy", "ledger", str(kit), "--expect", digest]) == 3
    assert "deploy.ledger-cut" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--until", "9999-12-31"], "deploy.incomplete-agreement"),
        (["--person", "A"], "deploy.incomplete-agreement"),
        (["--person", "A", "--until", "2020-01-01"], "deploy.invalid-date"),
        (["--person", "A", "--until", "soon"], "deploy.invalid-date"),
    ],
)
def test_an_agreement_names_a_person_and_a_day(
    kit: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str], options: list[str], code: str
) -> None:
    assert execute(["deploy", "agree", str(kit), "--yes", *options]) == 2
    assert code in capsys.readouterr().err and not ledger.path.exists()
