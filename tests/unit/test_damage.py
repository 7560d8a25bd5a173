"""Damaged and missing files of a run give a clear error, never another model or a traceback."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fedgsca.errors import RunFolderError
from fedgsca.federation import checkpoint
from fedgsca.federation.label_evidence import read_evidence, read_header
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_result
from fedgsca.lab.report.run_reader import read_run
from fedgsca.lab.report.run_record import event_section
from fedgsca.labels.decisions import Decision, Decisions
from fedgsca.wire import read_metadata
from tests.toys import outcome, toy_config

Damage = Callable[[Path], None]
CONFIG = toy_config("fedgsca", frozen=True, audit__enabled=True)
STOP = 4


@pytest.fixture(scope="module")
def half_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("half") / "run"
    assert run(CONFIG, folder, stop_after=STOP) is None
    return folder


@pytest.fixture
def folder(half_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(half_run, tmp_path / "run"))


def newest(folder: Path, kind: str) -> Path:
    return max((folder / kind / "site-2").glob("round-*"))


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def zero_tail(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-64] + bytes(64))


def zero_all(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def use_older_version(path: Path) -> None:
    versions = sorted(path.parent.glob("round-*"))
    if len(versions) < 2:
        pytest.skip("the method has written one version only")
    shutil.copy(versions[-2], path)


DAMAGES = [flip_last_byte, zero_tail, zero_all, use_older_version, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_stops_at_damaged_memory(folder: Path, damage: Damage) -> None:
    path = newest(folder, "store")
    damage(path)
    with pytest.raises(RunFolderError) as error:
        run(CONFIG, folder)
    assert error.value.code in ("site.damaged-memory", "site.missing-memory")
    assert str(path) in error.value.message and error.value.fix


@pytest.mark.parametrize("kind", ["store", "evidence"])
def test_the_checkpoint_knows_the_memory_of_a_site(folder: Path, kind: str) -> None:
    shutil.rmtree(folder / kind / "site-2")
    with pytest.raises(RunFolderError) as error:
        run(CONFIG, folder)
    assert error.value.code == "site.missing-memory"


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_audit_stops_at_damaged_evidence(folder: Path, damage: Damage) -> None:
    damage(newest(folder, "evidence"))
    with pytest.raises(RunFolderError) as error:
        read_evidence(folder, "site-2")
    assert error.value.code in ("site.damaged-memory", "site.missing-memory")


def test_a_changed_header_of_the_evidence_is_an_error(folder: Path) -> None:
    path = folder / "evidence" / "site-2" / "site.json"
    path.write_text(path.read_text().replace("class 1", "class 7"))
    with pytest.raises(RunFolderError) as error:
        read_header(folder, "site-2")
    assert error.value.code == "audit.damaged-evidence" and str(path) in error.value.message


def remove_line(lines: list[bytes]) -> list[bytes]:
    return lines[:1] + lines[2:]


def change_number(lines: list[bytes]) -> list[bytes]:
    tree = json.loads(lines[1])
    return [lines[0], json.dumps({**tree, "f1": 0.99}, sort_keys=True).encode(), *lines[2:]]


LOG_DAMAGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "a missing line": remove_line,
    "a changed number": change_number,
    "a foreign object": lambda lines: [lines[0], b'{"epoch": 3}', *lines[2:]],
    "a foreign list": lambda lines: [lines[0], b"[1]", *lines[2:]],
    "a doubled line": lambda lines: [lines[0], *lines],
    "no line": lambda lines: [],
    "garbage": lambda lines: [b"\xff\0{", *lines[1:]],
}


@pytest.mark.parametrize("damage", LOG_DAMAGES)
def test_the_log_below_the_checkpoint_must_be_complete(folder: Path, damage: str) -> None:
    path = folder / "metrics.jsonl"
    lines = LOG_DAMAGES[damage](path.read_bytes().split(b"\n"))
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(RunFolderError) as error:
        run(CONFIG, folder)
    assert error.value.code == "run.damaged-log" and str(path) in error.value.message


def test_lines_beyond_the_checkpoint_are_still_removed(folder: Path, tmp_path: Path) -> None:
    with open(folder / "metrics.jsonl", "ab") as log:
        log.write(b'{"round": 4, "f1": 1.0}\n[]\n{"half a li')
    run(CONFIG, folder)
    run(CONFIG, tmp_path / "reference")
    assert outcome(folder) == outcome(tmp_path / "reference")


def test_a_checkpoint_names_its_companions(folder: Path) -> None:
    path = max((folder / "checkpoint").iterdir())
    newest = checkpoint.read_latest(folder / "checkpoint", CONFIG.fingerprint())
    assert newest is not None
    companions = newest.companions
    assert read_metadata(path.read_bytes())["companions"] == companions
    memory = companions["memory"]
    assert isinstance(memory, dict) and memory["store/site-2"] == STOP - 1


# ---- decisions ----

GOOD = Decision("anna", 1, "a.png", "h", "cat", "keep", None)
ODD_VALUES: dict[str, object] = {
    "request": ["x"],
    "given": 3,
    "label": {"a": 1},
    "time": 5,
    "reviewer": None,
    "row": True,
    "seconds": "long",
    "reason": [],
    "action": ["keep"],
}


@pytest.mark.parametrize("key", ODD_VALUES)
def test_an_odd_line_is_skipped_and_later_ones_are_read(key: str, tmp_path: Path) -> None:
    decisions = Decisions(tmp_path)
    decisions.add(GOOD)
    line = json.loads((tmp_path / "decisions.jsonl").read_text())
    with open(tmp_path / "decisions.jsonl", "a") as handle:
        handle.write(json.dumps({**line, key: ODD_VALUES[key]}) + "\n")
        handle.write("[" * 100_000 + "\n")
        handle.write(json.dumps({**line, "row": 2}) + "\n")
    for reader in (decisions, Decisions(tmp_path)):
        reader.refresh()
        assert set(reader.by_reviewer("anna")) == {1, 2} and reader.damaged_lines == 2


# ---- the result and the report ----

RESULT = {"method": "fedavg", "f1": 50.0, "rounds": 3}


@pytest.mark.parametrize(
    "text", ["[]", "{}", '"x"', "[[]]", '{"f1": NaN}', '{"a":' * 50_000, '{"method": "fedavg"}']
)
def test_a_damaged_result_is_no_result(text: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(RunFolderError) as error:
        read_result(tmp_path)
    assert error.value.code == "run.damaged-file"


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    """Whoever opens it would wait for ever."""
    os.mkfifo(tmp_path / "result.json")
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(RunFolderError, match="not a regular file"):
        read_result(tmp_path)
    assert read_run(tmp_path).result is None


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("metrics.jsonl", "", "has 0 of its 3 rounds"),
        ("result.json", "[]", "result.json cannot be read"),
        ("result.json", '{"a":' * 50_000, "result.json cannot be read"),
        ("setup.json", "{", "setup.json cannot be read"),
        ("config.toml", "", "config.toml cannot be read"),
    ],
)
def test_a_report_says_which_files_are_damaged(
    name: str, content: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text("[train]\nrounds = 3\n")
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    lines = [json.dumps({"round": i}) for i in range(3)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert event_section(read_run(tmp_path)) is None
    (tmp_path / name).write_text(content)
    section = event_section(read_run(tmp_path))
    assert section is not None and words in str(section.blocks[0])
