"""The tutorials, executed: every command of a `sh` block, in order, in an empty folder.

Blocks with a title are files that the reader saves; `console` blocks need a person and are only
shown. The tests use fewer rounds and seeds than the page, and smaller images. `make test` has the
hospital's tutorial, `make slow` all of them, with a real deployment.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedgsca.labels.audit_table import read_audit
from fedgsca.labels.decisions import Decisions
from tests.commands import BIN, ROOT, run_script, run_script_in_copies
from tests.deployment import free_port

pytest.importorskip("efficientnet_lite_pytorch")

TUTORIALS = ROOT / "docs" / "tutorials"
FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
Execute = Callable[[str, Path], str]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    # the file that the reader saves; empty for others
    title: str
    content: str


def read_blocks(name: str) -> list[Block]:
    text = (TUTORIALS / f"{name}.md").read_text("utf-8")
    return [Block(*match) for match in FENCE.findall(text)]


def shorten(script: str) -> str:
    """The same commands with one round, one seed and small images.

    Most of the time of a short run is the network's pass over the images of `data example`.
    """
    script = re.sub(r"--rounds \d+", "--rounds 1", script)
    script = re.sub(r"--seeds \d+", "--seeds 1", script)
    # all commands alike, so that the features of the images are computed once
    return re.sub(
        r"^(fedgsca (run|compare|noise) .*)$",
        r"\1 --set data.image_size=32 --set model.feature_size=32",
        script,
        flags=re.MULTILINE,
    )


@pytest.fixture(
    params=[
        pytest.param("copies", id="copies of one process"),
        pytest.param("processes", id="processes", marks=pytest.mark.slow),
    ]
)
def execute(request: pytest.FixtureRequest) -> Execute:
    """Runs a script and returns its output; `make slow` starts every command as a user does."""
    if request.param == "processes":
        return run_script
    context = request.getfixturevalue("fork_server")
    return lambda script, folder: run_script_in_copies(script, folder, context)


def shorten_audit(script: str) -> str:
    """The same commands, with the network's pass at the size of the images, which is 64 pixels."""
    return re.sub(
        r"^(fedgsca audit-folder .*)$", r"\1 --set model.feature_size=64", script, flags=re.M
    )


def save_files(blocks: list[Block], folder: Path) -> None:
    for block in blocks:
        if block.title:
            (folder / block.title).write_text(block.content, "utf-8")


def shell_script(blocks: list[Block]) -> str:
    return "\n".join(block.content for block in blocks if block.language == "sh")


def test_every_block_of_commands_is_executed_or_needs_a_person() -> None:
    """A command in a block of another kind would escape these tests."""
    for path in sorted(TUTORIALS.glob("*.md")):
        for block in read_blocks(path.stem):
            has_command = re.search(r"^(\$ )?fedgsca ", block.content, re.MULTILINE)
            if block.language not in ("sh", "console"):
                assert not has_command, path.name
            elif block.language == "console":
                assert all(line.startswith("$ ") for line in block.content.splitlines())


@pytest.mark.slow
def test_the_researcher_compares_methods(tmp_path: Path) -> None:
    output = run_script(shorten(shell_script(read_blocks("researcher"))), tmp_path)
    assert "ready to train on" in output
    for name in ("compare", "networks"):
        assert (tmp_path / "runs" / name / "report.html").is_file()
    assert "S40 with cnn" in (tmp_path / "runs/networks/compare.md").read_text()


def test_the_hospital_audits_its_labels(execute: Execute, tmp_path: Path) -> None:
    blocks = read_blocks("hospital")
    review = [block.language for block in blocks].index("console")
    execute(shorten_audit(shell_script(blocks[:review])), tmp_path)
    audit = read_audit(tmp_path / "audits/mine/audit/site-1")
    assert (audit.path / "gallery.html").is_file()
    decisions = Decisions(audit.path, audit.classes)  # in place of the person at the review page
    suspects = [suspect for suspect in audit.window(0, 20) if suspect.given != suspect.suggestion]
    for suspect in suspects:
        decisions.record(suspect, suspect.suggestion, reviewer="YOU")
    execute(shorten_audit(shell_script(blocks[review:])), tmp_path)
    second = read_audit(tmp_path / "audits/second/audit/site-1")
    before = audit.header.summary.estimated_wrong.count
    assert second.header.summary.estimated_wrong.count < before


@pytest.mark.slow
def test_the_developer_adds_a_method(tmp_path: Path) -> None:
    blocks = read_blocks("developer")
    save_files(blocks, tmp_path)
    output = run_script(shorten(shell_script(blocks)), tmp_path)
    assert "FedTrim" in output
    assert "FedTrim" in (tmp_path / "runs/compare/compare.md").read_text()
    ruff = shutil.which("ruff", path=str(BIN))
    if ruff is not None:
        # in the repository, where ruff knows which imports are our own
        options = ["--config", "pyproject.toml", "--no-cache", str(tmp_path / "fedtrim.py")]
        for command in ("check", "format --check"):
            subprocess.run([ruff, *command.split(), *options], cwd=ROOT, check=True)


@pytest.mark.slow
def test_the_coordinator_plans(tmp_path: Path) -> None:
    """Up to the start of the first server, in processes of their own."""
    blocks = read_blocks("coordinator")
    save_files(blocks, tmp_path)
    script = shell_script(blocks)
    run_script(shorten(script[: script.index("export FEDGSCA_PYTHON")]), tmp_path)
    names = {path.name for path in (tmp_path / "kits/hospitals").glob("*.zip")}
    assert names == {"berlin.zip", "lyon.zip"}


def test_the_hospital_part_two_is_what_the_coordinator_executes() -> None:
    script = shell_script(read_blocks("coordinator"))
    part_two = [block for block in read_blocks("hospital") if block.language == "console"][-1]
    for line in part_two.content.splitlines():
        command = line.removeprefix("$ ").partition("#")[0].split()[0]
        assert command in script, line


@pytest.fixture
def free_folder(tmp_path: Path) -> Iterator[Path]:
    """Whatever happens, processes that were started with this folder as FLWR_HOME are ended."""
    yield tmp_path
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"FLWR_HOME={tmp_path}/".encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGKILL)
        except OSError:
            continue


@pytest.mark.slow
def test_the_coordinator_starts_and_watches(free_folder: Path) -> None:
    pytest.importorskip("flwr")
    blocks = read_blocks("coordinator")
    save_files(blocks, free_folder)
    ports = f"{free_port()}\ncontrol_port = {free_port()}"
    plan = free_folder / "consortium.toml"
    plan.write_text(plan.read_text().replace("8123", ports).replace("rounds = 12", "rounds = 6"))
    output = run_script(shorten(shell_script(blocks)), free_folder, timeout=1500)
    assert "Rehearsal has agreed until 2099-12-31" in output
    assert "finished" in output and "received model" in output
    for name in ("berlin", "lyon"):
        (folder,) = (free_folder / name / "state").glob("*/model")
        assert (folder / "export" / "MODEL_CARD.md").is_file()
    assert (free_folder / "kits/coordinator/run/report.html").is_file()
    assert list((free_folder / "berlin/state").glob("*/audit/berlin/gallery.html"))
