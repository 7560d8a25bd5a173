"""Nobody waits for what is not needed: no heavy imports, and a first line before those needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedgsca.support.lazy_torch import F, inference_mode, no_grad, torch
from tests.toys import toy_npz

# Commands that train nothing, in one process. Each line of the output: the command, and whether
# torch was imported after it.
LIGHT = """
import contextlib, io, sys
from fedgsca.cli import execute
for line in {commands!r}:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        execute(line.split())
    print(line, "torch" in sys.modules, sep="|")
"""

LIGHT_COMMANDS = (
    "--version",
    "methods",
    "methods fedgsca",
    "config",
    "config --diff paper",
    "data list",
    "benchmark list",
    "run --method fedsgca",
    "run --noise Q20",
    "run --data nowhere.npz",
    "resume nowhere",
    "report nowhere",
    "review nowhere",
    "wire fedsgca",
)

# Commands that need torch, in one process. Its import is stopped, and each line of the output is a
# command and the number of characters that it had printed until then.
STOP_AT_TORCH = """
import contextlib, io, sys

class StopAtTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise SystemExit("torch")

sys.meta_path.insert(0, StopAtTorch())
from fedgsca.cli import execute
for line in {commands!r}:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            reason = execute(line.split())
        except SystemExit as stop:
            reason = stop.code
    print(line, reason, len(text.getvalue().strip()), sep="|")
"""

HEAVY_COMMANDS = (
    "run --data DATA --rounds 1 --out a",
    "compare --data DATA --rounds 1 --seeds 1 --out b",
    "noise S40 --data DATA",
    "wire fedavg --data DATA",
    "demo --out d",
    "run --data DATA --rounds 1 --out a --quiet",
    "noise S40 --data DATA --json",
)


def run_program(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_commands_that_train_nothing_do_not_import_torch(tmp_path: Path) -> None:
    """A method that imports torch at its top makes all of them two seconds slower.

    Use fedgsca/support/lazy_torch.py there.
    """
    result = run_program(LIGHT.format(commands=LIGHT_COMMANDS), tmp_path)
    assert result.returncode == 0, result.stderr
    answers = dict(line.split("|") for line in result.stdout.splitlines())
    assert answers == dict.fromkeys(LIGHT_COMMANDS, "False")


def test_the_first_line_comes_before_torch(tmp_path: Path) -> None:
    """Nobody looks at an empty screen meanwhile, unless the command is asked to be quiet."""
    commands = [command.replace("DATA", str(toy_npz())) for command in HEAVY_COMMANDS]
    result = run_program(STOP_AT_TORCH.format(commands=commands), tmp_path)
    assert result.returncode == 0, result.stderr
    for line in result.stdout.splitlines():
        command, reason, num_characters = line.split("|")
        assert reason == "torch", line
        is_quiet = "--quiet" in command or "--json" in command
        assert (num_characters == "0") == is_quiet, line
    assert len(result.stdout.splitlines()) == len(commands)


# ---- the stand-in for torch ----


def test_the_stand_in_has_the_names_of_torch() -> None:
    import torch as genuine

    assert torch.zeros is genuine.zeros
    assert F.relu is genuine.nn.functional.relu
    with pytest.raises(AttributeError, match="nonsense"):
        _ = torch.nonsense  # type: ignore[attr-defined]
    assert "torch" in repr(torch)


def test_the_two_decorators_do_what_those_of_torch_do() -> None:
    weight = torch.ones(3, requires_grad=True)

    @no_grad
    def double(x: torch.Tensor, *, factor: float = 2.0) -> torch.Tensor:
        """The docstring stays."""
        return x * factor

    @inference_mode
    def triple(x: torch.Tensor) -> torch.Tensor:
        return x * 3.0

    assert not double(weight, factor=4.0).requires_grad and (weight * 2.0).requires_grad
    assert triple(weight).is_inference()
    assert double.__doc__ == "The docstring stays." and double.__name__ == "double"


def test_files_and_folders_are_synchronised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests do not wait for the disk (conftest.py), so this one checks that runs do."""
    from fedgsca.support.files import write_atomic

    paths: list[str] = []

    def record(descriptor: int) -> None:
        paths.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(os, "fsync", record)
    write_atomic(tmp_path / "file.txt", b"content")
    assert len(paths) == 2
    assert paths[0].startswith(str(tmp_path / "file.txt")) and paths[0].endswith(".tmp")
    assert paths[1] == str(tmp_path)
