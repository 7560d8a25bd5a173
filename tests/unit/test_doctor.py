"""`fedgsca doctor`: what is missing for which command."""

from __future__ import annotations

import json
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from fedgsca.cli import execute
from fedgsca.support import installation
from fedgsca.support.installation import FOR_DEVELOPERS, USES, inspect_installation


def test_every_extra_that_is_explained_exists() -> None:
    tree = tomllib.loads(Path("pyproject.toml").read_text())
    extras = set(tree["project"]["optional-dependencies"])
    assert set(USES) - {installation.CORE} <= extras and set(FOR_DEVELOPERS) <= extras


def test_every_extra_of_the_package_is_listed() -> None:
    extras = metadata.metadata("fedgsca").get_all("Provides-Extra") or []
    names = [state.extra for state in inspect_installation()]
    assert names[0] == installation.CORE and len(set(names)) == len(names)
    assert set(extras) - set(FOR_DEVELOPERS) <= set(names)


def test_a_missing_or_old_package_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["numpy>=1.26", 'starlette>=1,<2; extra == "review"', 'uvicorn>=0.3; extra == "review"']

    def own_requires(name: str) -> list[str]:
        return lines if name == "fedgsca" else []

    def own_version(name: str) -> str:
        versions = {"numpy": "2.4.6", "starlette": "0.40.0"}
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(installation, "requires", own_requires)
    monkeypatch.setattr(installation, "version", own_version)
    states = {state.extra: state for state in inspect_installation()}
    assert states[installation.CORE].problems == []
    assert states["review"].problems == [
        "starlette 0.40.0 is installed, starlette<2,>=1 is needed",
        "uvicorn is not installed",
    ]
    assert execute(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "review, reviewers [review]: starlette 0.40.0" in text
    assert "pip install 'fedgsca[review]'" in text
    lines[0] = "numpy>=99"
    assert execute(["doctor", "--json"]) == 1, "what every command needs is not complete"
    assert json.loads(capsys.readouterr().out)["extras"][0]["problems"]
