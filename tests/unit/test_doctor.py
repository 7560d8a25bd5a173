"""`fedgsca doctor`: what is missing for which command, and a bundle without patient data."""

from __future__ import annotations

import getpass
import json
import platform
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from fedgsca.cli import execute
from fedgsca.hospital.bug_report import CONTENTS, HIDDEN, hide_texts, known_words
from fedgsca.support import installation
from fedgsca.support.installation import FOR_DEVELOPERS, USES, inspect_installation

SECRETS = (
    "Mustermann",
    "Erika",
    "Klinikum-Nord",
    "Befund-Melanom",
    "1958-03-14",
    "anna-pathologin",
)


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


def plant_run(folder: Path) -> Path:
    """A run folder with names of patients wherever somebody could write one."""
    run = folder / "Mustermann_Erika"
    (run / "noise").mkdir(parents=True)
    (run / "config.toml").write_text(
        """
method = "fedavg"
seed = 3
Mustermann = "Erika"
[data]
source = "/daten/Klinikum-Nord/Mustermann"
classes = ["Befund-Melanom", "normal"]
labels = "Erika.csv"
image_size = 64
[federation]
sites = ["Klinikum-Nord"]
[model]
weights = "/home/Mustermann/w.safetensors"
["Befund-Melanom"]
rounds = 1
"""
    )
    line = {"round": 0, "f1": 0.5, "sites": {"Klinikum-Nord": {"n": 1}}, "note": "Erika"}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\nMustermann 1958-03-14\n")
    (run / "noise" / "Klinikum-Nord.csv").write_text("file,label\nMustermann.png,Befund-Melanom\n")
    (run / "decisions.jsonl").write_text('{"reviewer": "anna-pathologin"}\n')
    (run / "Erika.Mustermann").write_text("1958-03-14")
    (run / "result.json").write_text('{"patient": "Erika Mustermann"}')
    return run


def test_the_bundle_contains_no_text_that_a_person_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDGSCA_CACHE", str(tmp_path / "Mustermann-cache"))
    monkeypatch.setenv("PATIENT", "Mustermann")
    bundle = tmp_path / "report.zip"
    run = plant_run(tmp_path)
    assert execute(["doctor", str(run), "--bundle", str(bundle)]) == 0
    text = capsys.readouterr().out
    with zipfile.ZipFile(bundle) as archive:
        names = archive.namelist()
        content = b"\n".join(archive.read(name) for name in names).decode()
        tree = json.loads(archive.read("run.json"))
    assert set(names) == set(CONTENTS), "all that it contains is documented"
    assert all(name in text for name in names)
    private = (*SECRETS, str(tmp_path), platform.node(), f"/{getpass.getuser()}/", "erika")
    for word in private:
        assert word.lower() not in content.lower(), word
    settings = tree["settings"]
    assert settings["method"] == "fedavg" and settings["data"]["image_size"] == 64
    assert settings["data"]["source"] == HIDDEN and settings["data"]["classes"] == "(2 entries)"
    assert tree["rounds"] == [{"round": 0, "f1": 0.5}, {"damaged": 1}]
    assert tree["files"] == {".csv": 1, ".json": 1, ".jsonl": 2, ".toml": 1, "other": 1}
    assert execute(["doctor", "--bundle", str(bundle)]) != 0, "nothing is overwritten"
    assert "file.already-exists" in capsys.readouterr().err


def test_a_damaged_run_gives_a_bundle_too(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text("Mustermann = ")
    bundle = tmp_path / "report.zip"
    assert execute(["doctor", str(run), "--bundle", str(bundle)]) == 0
    with zipfile.ZipFile(bundle) as archive:
        settings = json.loads(archive.read("run.json"))["settings"]
    assert settings == {"error": "config.invalid-toml"}
    assert execute(["doctor", str(tmp_path / "no"), "--bundle", str(tmp_path / "b.zip")]) != 0
    assert execute(["doctor", str(run)]) != 0


def test_words_and_numbers_stay_and_everything_else_is_hidden() -> None:
    tree = {"seed": 1, "method": "fedgsca", "x": {"y": "z"}, "sites": ["a", 1], "rounds": [1, 2]}
    assert hide_texts(tree, known_words()) == {
        "seed": 1,
        "method": "fedgsca",
        "(key 3)": {"(key 1)": HIDDEN},
        "sites": "(2 entries)",
        "rounds": [1, 2],
    }
