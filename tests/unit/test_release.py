"""What a release must agree on: the version, the paper, and commands that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fedgsca.cli import app
from fedgsca.support.version import __version__

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAPER = "arXiv:2507.10611"


def readme_commands() -> list[list[str]]:
    """The fedgsca commands of the README's code blocks, without comments."""
    commands = []
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
    for block in [text for language, text in fences if not language]:
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["fedgsca"]:
                commands.append(words[1:])
    return commands


def test_the_version_is_the_same_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {__version__}\n" in citation
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+)", changelog, flags=re.MULTILINE)
    assert newest is not None and newest[1] == __version__


def test_the_readme_links_the_paper() -> None:
    assert "https://arxiv.org/abs/2507.10611" in README
    assert PAPER in README
    assert PAPER in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_readme_has_commands() -> None:
    assert len(readme_commands()) >= 10


@pytest.mark.parametrize("words", readme_commands(), ids=" ".join)
def test_commands_of_the_readme_are_parsed(words: list[str]) -> None:
    """Every command and option of the README exists; nothing is run."""
    import typer.main

    command = typer.main.get_command(app)
    arguments = list(words)
    while hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    command.make_context("fedgsca", arguments)
