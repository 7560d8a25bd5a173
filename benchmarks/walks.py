"""How many functions and files of the package one command calls.

    python -m benchmarks.walks                       # run, its rounds, audit and compare
    PYTHONPATH=../old python benchmarks/walks.py     # another checkout

A function counts once, however often it is called, if its code is in the package's folder.
Comprehensions, lambdas and module bodies do not count.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType

import fedgsca
from fedgsca.cli import execute

PACKAGE = str(Path(fedgsca.__file__).parent)
SMALL = ["--data", "synthetic", "--frozen", "--noise", "S40", "--rounds", "6"]
SMALL += ["--set", "data.train=160", "--set", "data.test=40"]
LOOP = "run_round"  # the function that is one round of the loop


class Walk:
    """Functions that were called, before and since the first round."""

    def __init__(self) -> None:
        self.before: set[CodeType] = set()
        self.rounds: set[CodeType] = set()
        self.has_started = False

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """A profile function for `sys.setprofile`."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE) or code.co_name[0] == "<":
            return
        if is_importing(frame):
            return
        if code.co_name == LOOP and "rounds" in code.co_filename:
            self.has_started = True
        (self.rounds if self.has_started else self.before).add(code)

    def follow(self, arguments: list[str]) -> None:
        """Run a command of the command line."""
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        try:
            execute(arguments)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def is_importing(frame: FrameType) -> bool:
    """Whether a module of the package is being imported: decorators are no steps of a command."""
    caller = frame.f_back
    while caller is not None:
        code = caller.f_code
        if code.co_name == "<module>" and code.co_filename.startswith(PACKAGE):
            return True
        caller = caller.f_back
    return False


def describe(name: str, codes: set[CodeType]) -> str:
    files = {code.co_filename for code in codes}
    return f"{name:28} {len(codes):5} functions {len(files):5} files"


def main() -> None:
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder, "run"))
        walk = Walk()
        walk.follow(
            ["run", "--data", "synthetic", "--frozen", "--noise", "S40", *SMALL, "--out", run]
        )
        lines.append(describe("run until the loop starts", walk.before))
        lines.append(describe("rounds and the end of a run", walk.rounds))
        walk = Walk()
        walk.follow(["audit", run])
        lines.append(describe("audit", walk.before | walk.rounds))
        walk = Walk()
        out = str(Path(folder, "comparison"))
        methods = ["--methods", "fedavg,fedgsca"]
        walk.follow(
            [
                "compare",
                "--data",
                "synthetic",
                "--frozen",
                "--noise",
                "S40",
                *methods,
                *SMALL,
                "--seeds",
                "1",
                "--out",
                out,
            ]
        )
        lines.append(describe("compare, 3 cells", walk.before | walk.rounds))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
