"""The commands of a page, executed in order: in bash, or in copies of a process that has torch.

A process that imports torch, and often more, takes seconds before it does anything. A copy of one
that has imported it has everything else of its own: memory, folder, environment, output, exit code.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.context import ForkServerContext
from pathlib import Path

from tests.deployment import OFFLINE

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
TIMEOUT = 600.0  # seconds, for the longest command of a page
SHELL_SIGNS = frozenset("|&;<>$`*?()\\")


def command_environment() -> dict[str, str]:
    """The environment of a user who has activated the virtual environment of the tests."""
    path = f"{BIN}:{os.environ['PATH']}"
    return {**os.environ, **OFFLINE, "PATH": path, "PYTHONPATH": str(ROOT)}


def run_script(
    script: str,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    timeout: float = TIMEOUT,
) -> str:
    """Run a script with bash; returns its output, or fails with it. Nothing is left running."""
    process = subprocess.Popen(
        ["bash", "-euc", script],
        cwd=folder,
        env=environment or command_environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, output
    return str(output)


def run_script_in_copies(script: str, folder: Path, context: ForkServerContext) -> str:
    """The same for a script of one command a line: `fedgsca ...` runs in a copy of a process.

    `export` changes the environment of the lines below; all other lines are executed by bash.
    """
    environment = command_environment()
    outputs = []
    for line in script.splitlines():
        if line.startswith("export "):
            environment = read_environment(line, folder, environment)
        elif line.startswith("fedgsca "):
            assert not SHELL_SIGNS & set(line), f"this line needs bash: {line}"
            words = shlex.split(line, comments=True)[1:]
            outputs.append(run_in_copy(words, folder, environment, context))
        else:
            outputs.append(run_script(line, folder, environment))
    return "".join(outputs)


def read_environment(line: str, folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment after a line of bash."""
    text = run_script(f"{line}\nenv -0", folder, environment)
    return dict(pair.split("=", 1) for pair in text.split("\0") if pair)


def run_in_copy(
    words: list[str], folder: Path, environment: Mapping[str, str], context: ForkServerContext
) -> str:
    """The output of `fedgsca WORDS`, which must succeed."""
    log = folder.parent / f"{folder.name}.log"  # not in the folder of the page
    arguments = (words, str(folder), dict(environment), str(log))
    process = context.Process(target=execute_words, args=arguments)
    process.start()
    process.join(TIMEOUT)
    if process.is_alive():
        process.kill()
        process.join()
    output = log.read_text("utf-8")
    assert process.exitcode == 0, output
    return output


def execute_words(words: list[str], folder: str, environment: dict[str, str], log: str) -> None:
    """What the process of `fedgsca WORDS` does; output and errors go to the log."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    from fedgsca.cli import execute

    sys.exit(execute(words))
