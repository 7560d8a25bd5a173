"""The documentation is true where a machine can tell: links, commands, configuration keys, and the example of a ninth method."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest
import typer
from toys import toy_config

from fedgsca.cli import app
from fedgsca.config import METHODS, load_config
from fedgsca.errors import ConfigError
from fedgsca.methods.base import load_methods

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    path
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").glob("*.md")),
    )
    if path.exists()
]
METHOD_FILE = "fedsmall"  # the example in CONTRIBUTING.md; not a method of this package

page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)


def lines(text: str) -> Iterator[str]:
    """Lines of a page, without blocks that show an error on purpose."""
    blocks = re.split(r"^```.*$", text, flags=re.MULTILINE)
    for number, block in enumerate(blocks):
        if number % 2 == 0 or not re.search(r"^Error:", block, flags=re.MULTILINE):
            yield from block.splitlines()


def example() -> str:
    """The complete method file in CONTRIBUTING.md."""
    blocks = re.findall(
        r"^```python\n(.*?)^```",
        (ROOT / "CONTRIBUTING.md").read_text("utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    (found,) = [block for block in blocks if "@register" in block]
    return str(found)


# ---- links ----


@page
def test_relative_links_resolve(path: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", path.read_text("utf-8"))
    broken = [
        t
        for t in targets
        if "://" not in t
        and not t.startswith("#")
        and not (path.parent / t.partition("#")[0]).exists()
    ]
    assert not broken


def test_every_page_is_reached_from_another() -> None:
    linked = {
        (p.parent / t).resolve()
        for p in PAGES
        for t in re.findall(r"\]\(([^)\s#]+)\)", p.read_text("utf-8"))
        if "://" not in t
    }
    assert [p.name for p in PAGES if p.name != "README.md" and p.resolve() not in linked] == []


@page
def test_nothing_of_a_machine_is_told(path: Path) -> None:
    assert not re.findall(
        r"(?<![\w.~])/(?:tmp|home|work|root|mnt)/\S*|localhost|\b\d+\.\d+\.\d+\.\d+\b",
        path.read_text("utf-8"),
    )


# ---- commands ----


@functools.cache
def commands() -> dict[str, click.Command]:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        found[name] = command
        if isinstance(command, click.Group):
            found |= {f"{name} {inner}": leaf for inner, leaf in command.commands.items()}
    return found


def mentions(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(command, options) of every `fedgsca ...` in code, whether in a block or between backticks."""
    text, code = path.read_text("utf-8"), []
    for block in re.split(r"^```.*$", text, flags=re.MULTILINE)[1::2]:
        typed = re.findall(
            r"^\$ (fedgsca .*)", block, flags=re.MULTILINE
        )  # the other lines are what was answered
        code += typed or re.findall(r"^fedgsca .*", block, flags=re.MULTILINE)
    code += re.findall(r"`(fedgsca [^`]+)`", text)
    for words in (re.sub(r"\s#\s.*", "", piece).split()[1:] for piece in code):
        if words and re.fullmatch(r"[a-z]+", words[0]):
            known = commands()
            nested = " ".join(words[:2])
            name = nested if nested in known else words[0]
            yield name, [word for word in words if word.startswith("--")]


@page
def test_commands_and_their_options_exist(path: Path) -> None:
    known = commands()
    for name, options in mentions(path):
        assert name in known, f"{path.name}: fedgsca {name}"
        valid = {
            flag
            for parameter in known[name].params
            for flag in (*parameter.opts, *parameter.secondary_opts)
        } | {"--help"}
        assert set(options) <= valid, f"{path.name}: fedgsca {name}"


def test_every_command_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "commands.md").read_text("utf-8")
    leaves = [name for name, command in commands().items() if not isinstance(command, click.Group)]
    assert [name for name in leaves if f"fedgsca {name}" not in text] == []


# ---- configuration ----


@pytest.fixture
def ninth(tmp_path: Path) -> Iterator[ModuleType]:
    """The example, imported from the page, registered for the duration of a test."""
    load_methods()
    file = tmp_path / f"{METHOD_FILE}.py"
    file.write_text(example(), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(METHOD_FILE, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    METHODS.unregister(METHOD_FILE)


def valid(item: str) -> str | None:
    """Why --set `item` is refused, or None. A value in capitals (FILE, LR) is a placeholder: only its key counts."""
    section, value = item.split(".")[0], item.partition("=")[2]
    try:
        load_config(sets=[item], method=section if section in METHODS.load() else None)
    except ConfigError as error:
        return None if value.isupper() and "unknown key" not in error.message else error.message
    return None


@page
def test_configuration_keys_exist_and_take_the_values_shown(path: Path, ninth: ModuleType) -> None:
    text = re.sub(r"--set\s+", "--set ", "\n".join(lines(path.read_text("utf-8"))))
    items = [item.rstrip("`.,;:)") for item in re.findall(r"--set ([a-z][\w.]+=[^\s`]+)", text)]
    assert {item: why for item in items if (why := valid(item))} == {}


def test_a_wrong_key_would_be_noticed() -> None:
    load_methods()
    assert valid("train.lrr=1") and valid("train.lr=fast") and valid("fedgsca.zetta=LR")
    assert valid("train.lr=LR") is None and valid("fedgsca.selector.clip=none") is None


def test_the_options_named_in_the_method_pages_exist() -> None:
    """Switches stand in the tables as `section.key` or `key`: every dotted one must be an option of FedGSCA or of the configuration."""
    text = (ROOT / "docs" / "fedgsca.md").read_text("utf-8")
    for key in re.findall(r"`((?:selector|guard|train)\.\w+)`", text):
        owner = "" if key.startswith("train.") else "fedgsca."
        why = valid(f"{owner}{key}=KEY")
        assert why is None, why


# ---- the ninth method ----


def test_the_example_registers_and_runs_a_round(ninth: ModuleType, tmp_path: Path) -> None:
    from fedgsca.engine.rounds import run
    from fedgsca.experiment.run_folder import read_lines

    assert set(METHODS.load()) - {
        path.stem for path in (ROOT / "fedgsca" / "methods").glob("*.py")
    } == {METHOD_FILE}
    result = run(toy_config(METHOD_FILE, frozen=True, train__rounds=2), tmp_path / "run")
    assert result["method"] == METHOD_FILE
    first, second = (
        line["sites"]["site-1"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")
    )
    assert first["kept"] == first["num_samples"] > second["kept"] > 0, (
        "all samples in the warm-up, fewer after it"
    )
    assert not any(line["refused"] for line in read_lines(tmp_path / "run" / "metrics.jsonl"))


def test_the_example_keeps_the_smallest_losses_of_every_class(ninth: ModuleType) -> None:
    import numpy as np

    kept = ninth.small(np.array([3.0, 1.0, 2.0, 9.0, 8.0]), np.array([0, 0, 0, 1, 1]), 0.5)
    assert kept.tolist() == [False, True, True, False, True]
