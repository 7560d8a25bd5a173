"""The manual is true where a machine can tell.

Links, commands, options, configuration keys, names of functions, the examples of docs/extend.md and
everything between the markers of docs/generate.py are executed or checked.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import click
import numpy as np
import pytest
import typer

from docs.generate import (
    PAGE_BLOCKS,
    SITE_BLOCKS,
    SLOW_BLOCKS,
    STUDY_BLOCKS,
    count_words,
    fill_site_blocks,
    find_page,
    list_pages,
    read_blocks,
    render_commands,
    render_configuration,
    write_block,
)
from fedgsca.cli import app
from fedgsca.config import METHODS, PRESETS, load_config
from fedgsca.data.load import load
from fedgsca.data.reader import READERS
from fedgsca.errors import ConfigError, DataError
from fedgsca.federation.base import ENGINES, find_engine
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds
from fedgsca.methods.base import load_methods
from fedgsca.noise import parse_noise, transition_matrix
from fedgsca.noise.base import KINDS
from tests.toys import toy_config

ROOT = Path(__file__).resolve().parents[2]
# pages of docs/ that only include a file of the root
INCLUDED_PAGES = ("index.md", "contributing.md", "changelog.md")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES += [path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in INCLUDED_PAGES]
PAGES += sorted((ROOT / "docs" / "tutorials").glob("*.md"))
METHOD_NAME = "fedsmall"  # the example in docs/extend.md; not a method of this package


def lines_without_errors(text: str) -> Iterator[str]:
    """Lines of a page, without blocks that show an error on purpose."""
    blocks = re.split(r"^```.*$", text, flags=re.MULTILINE)
    for number, block in enumerate(blocks):
        is_code = number % 2 == 1
        if not is_code or not re.search(r"^Error", block, flags=re.MULTILINE):
            yield from block.splitlines()


def read_links(path: Path) -> list[str]:
    """Targets of the relative links of a page, without anchors."""
    targets = re.findall(r"\]\(([^)\s]+)\)", path.read_text("utf-8"))
    paths = [target.partition("#")[0] for target in targets if "://" not in target]
    return [target for target in paths if target]


# ---- links ----


def test_relative_links_resolve() -> None:
    broken = []
    for path in PAGES:
        broken += [
            (path.name, link) for link in read_links(path) if not (path.parent / link).exists()
        ]
    assert broken == []


def test_every_page_is_linked_from_another_page() -> None:
    linked_pages: set[Path] = set()
    for path in PAGES:
        linked_pages.update((path.parent / link).resolve() for link in read_links(path))
    pages = [path for path in PAGES if path.name != "README.md"]
    assert [path.name for path in pages if path.resolve() not in linked_pages] == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    pages = sorted((ROOT / "docs").rglob("*.md"))
    names = [path.relative_to(ROOT / "docs").as_posix() for path in pages]
    assert [name for name in names if name not in navigation] == []


def test_no_page_names_a_machine() -> None:
    pattern = r"(?<![\w.~])/(?:tmp|home|work|root|mnt)/\S*|localhost|\b\d+\.\d+\.\d+\.\d+\b"
    names = []
    for path in PAGES:
        text = path.read_text("utf-8").replace("127.0.0.1", "")  # every machine calls itself so
        names += [(path.name, name) for name in re.findall(pattern, text)]
    assert names == []


# ---- what the product writes ----


def test_every_block_has_one_page_and_a_command_that_writes_it() -> None:
    names: list[str] = []
    for path in list_pages():
        names += read_blocks(path.read_text("utf-8"))
    assert sorted(names) == sorted({*SITE_BLOCKS, *PAGE_BLOCKS, *STUDY_BLOCKS})


def test_long_blocks_are_filled_on_the_site_only() -> None:
    for name in SITE_BLOCKS:
        assert read_blocks(find_page(name).read_text("utf-8"))[name] == "", name
    page = fill_site_blocks("<!-- begin: errors -->\n<!-- end: errors -->\n")
    assert "### `config.unknown-key`" in page


def compare_blocks(names: Iterable[str]) -> None:
    for name in names:
        text = read_blocks(find_page(name).read_text("utf-8"))[name]
        assert text.strip() == PAGE_BLOCKS[name](), f"run python -m docs.generate {name}"


def test_blocks_of_the_pages_are_what_the_product_prints() -> None:
    compare_blocks(set(PAGE_BLOCKS) - set(SLOW_BLOCKS))


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_BLOCKS)
def test_blocks_that_take_long_are_what_the_product_prints(name: str) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("opacus")
    compare_blocks([name])


def test_a_block_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- begin: x -->\nold\n<!-- end: x -->\nb\n")
    for _ in range(2):
        write_block(page, "x", "new")
        assert page.read_text() == "a\n<!-- begin: x -->\n\nnew\n\n<!-- end: x -->\nb\n"
    with pytest.raises(SystemExit):
        write_block(page, "y", "new")


def test_the_keys_and_commands_on_the_site_are_complete() -> None:
    keys = render_configuration()
    for key in ("train.lr", "privacy.clip", "fedgsca.zeta"):
        assert f"| `{key}` |" in keys
    commands = render_commands()
    for name, command in read_commands().items():
        if not isinstance(command, click.Group):
            assert f"### {name}\n" in commands


def test_the_functions_of_the_equations_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    names = re.findall(r"`((?:selector|pseudo_label|credal|metrics)\.(?!py`|jsonl`)\w+)`", text)
    assert len(names) > 10
    for name in names:
        module, _, function = name.partition(".")
        assert hasattr(importlib.import_module(f"fedgsca.{module}"), function), name


def test_the_manual_is_read_in_two_evenings() -> None:
    assert sum(dict(count_words()).values()) <= 50_000


def test_the_readme_is_short() -> None:
    assert dict(count_words())[ROOT / "README.md"] <= 900
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(re.findall(r"(?<!!)\[[^]]+\]\(", text)) <= 10


# ---- commands ----


@functools.cache
def read_commands() -> dict[str, click.Command]:
    """All commands by what is typed after `fedgsca`."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    commands: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        commands[name] = command
        if isinstance(command, click.Group):
            commands |= {f"{name} {inner}": leaf for inner, leaf in command.commands.items()}
    return commands


def read_mentions(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(command, options) of every `fedgsca ...` in a code block or between backticks."""
    text = path.read_text("utf-8")
    mentions = re.findall(r"`(fedgsca [^`]+)`", text)
    for block in re.split(r"^```.*$", text, flags=re.MULTILINE)[1::2]:
        # in a block with a prompt, the other lines are output
        prompts = re.findall(r"^\$ (fedgsca .*)", block, flags=re.MULTILINE)
        mentions += prompts or re.findall(r"^fedgsca .*", block, flags=re.MULTILINE)
    for mention in mentions:
        words = re.sub(r"\s#\s.*", "", mention).split()[1:]
        if words and re.fullmatch(r"[a-z]+", words[0]):
            nested = " ".join(words[:2])
            name = nested if nested in read_commands() else words[0]
            yield name, [word for word in words if word.startswith("--")]


def test_commands_and_their_options_exist() -> None:
    for path in PAGES:
        for name, options in read_mentions(path):
            assert name in read_commands(), f"{path.name}: fedgsca {name}"
            flags = {"--help"}
            for parameter in read_commands()[name].params:
                flags.update(parameter.opts, parameter.secondary_opts)
            assert set(options) <= flags, f"{path.name}: fedgsca {name}"


# ---- the examples of docs/extend.md ----


def read_example(marker: str) -> str:
    """The complete file in docs/extend.md that contains the marker."""
    text = (ROOT / "docs" / "extend.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    (example,) = [block for block in blocks if marker in block]
    return str(example)


def import_example(marker: str, folder: Path) -> ModuleType:
    """The example as a module, so that it registers itself."""
    file = folder / "example.py"
    file.write_text(read_example(marker), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("example", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_examples_pass_our_own_lint(tmp_path: Path) -> None:
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent))
    if ruff is None:
        pytest.skip("ruff is not installed")
    markers = ("@register\n", "@register_kind", "READERS.register", "@register_engine")
    for number, marker in enumerate(markers):
        (tmp_path / f"example_{number}.py").write_text(read_example(marker), encoding="utf-8")
    options = ["--config", str(ROOT / "pyproject.toml"), "--no-cache", str(tmp_path)]
    for command in (["check"], ["format", "--check", "--diff"]):
        result = subprocess.run([ruff, *command, *options], capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture
def example_method(tmp_path: Path) -> Iterator[ModuleType]:
    load_methods()
    yield import_example("@register\n", tmp_path)
    METHODS.unregister(METHOD_NAME)


def test_the_example_method_runs(example_method: ModuleType, tmp_path: Path) -> None:
    config = toy_config(METHOD_NAME, frozen=True, train__rounds=2)
    result = run(config, tmp_path / "run")
    assert result is not None
    assert result.method == METHOD_NAME
    warmup, selection = read_rounds(tmp_path / "run")
    assert warmup.refusals == selection.refusals == {}
    before, after = warmup.sites["site-1"], selection.sites["site-1"]
    assert before.number("count") == before.num_samples, "all samples in the warm-up"
    assert 0 < (after.number("count") or 0) < before.num_samples, "fewer after it"


def test_the_example_method_selects_small_losses(example_method: ModuleType) -> None:
    losses = np.array([3.0, 1.0, 2.0, 9.0, 8.0])
    selection = example_method.small_losses(losses, np.array([0, 0, 0, 1, 1]), 0.5)
    assert selection.tolist() == [False, True, True, False, True]


def test_the_example_noise_moves_labels_to_neighbours(tmp_path: Path) -> None:
    import_example("@register_kind", tmp_path)
    try:
        (noise,) = parse_noise("N20", sites=1)
        assert str(noise) == "N20"
        expected = [[0.8, 0.2, 0.0], [0.1, 0.8, 0.1], [0.0, 0.2, 0.8]]
        assert np.allclose(transition_matrix(noise, 3), expected)
        config = toy_config("fedavg", frozen=True, train__rounds=1, noise__spec="N40")
        assert run(config, tmp_path / "run") is not None
    finally:
        KINDS.unregister("N")


def test_the_example_reader_reads_a_list(tmp_path: Path) -> None:
    from PIL import Image

    import_example("READERS.register", tmp_path)
    root = tmp_path / "images"
    root.mkdir()
    lines = []
    for number in range(20):
        name = f"{number}.png"
        Image.new("RGB", (16, 16), (10 * number, 0, 0)).save(root / name)
        lines.append(f"{('benign', 'malignant')[number % 2]} {name}")
    (root / "images.txt").write_text("\n".join(lines), encoding="utf-8")
    try:
        table = load(f"textlist:{root}", cache_dir=tmp_path / "cache")
        assert table.classes == ("benign", "malignant")
        assert len(table) == 20
        (root / "images.txt").write_text("\n".join([*lines, "benign"]), encoding="utf-8")
        with pytest.raises(DataError) as caught:
            load(f"textlist:{root}", cache_dir=tmp_path / "cache")
        assert caught.value.code == "data.no-path"
    finally:
        READERS.unregister("textlist")


def test_the_example_engine_gives_the_same_model(tmp_path: Path) -> None:
    import_example("@register_engine", tmp_path)
    config = toy_config("fedgsca", frozen=True, train__rounds=3)
    try:
        find_engine("reverse").run(config, tmp_path / "reverse")
        find_engine("local").run(config, tmp_path / "local")
    finally:
        ENGINES.unregister("reverse")
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "reverse" / name).read_bytes() == (
            tmp_path / "local" / name
        ).read_bytes()


# ---- configuration ----


def why_refused(item: str) -> str | None:
    """The codes with which --set `item` is refused, or None.

    A value in capitals (FILE, LR) is a placeholder: only its key counts.
    """
    section, value = item.split(".")[0], item.partition("=")[2]
    method = section if section in METHODS.load() else None
    if section == "train":
        method = "fedavg"  # the loss of a label can be set only where a method has none of its own
    try:
        load_config(sets=[item], method=method)
    except ConfigError as error:
        codes = [problem.code for problem in error.problems]
        if value.isupper() and "config.unknown-key" not in codes:
            return None
        return ", ".join(codes)
    return None


def test_configuration_keys_exist_and_take_the_values_shown(example_method: ModuleType) -> None:
    refusals = {}
    for path in PAGES:
        text = "\n".join(lines_without_errors(path.read_text("utf-8")))
        text = re.sub(r"--set\s+", "--set ", text)
        for item in re.findall(r"--set ([a-z][\w.]+=[^\s`]+)", text):
            reason = why_refused(item.rstrip("`.,;:)"))
            if reason:
                refusals[path.name, item] = reason
    assert refusals == {}


def test_a_wrong_key_would_be_noticed() -> None:
    load_methods()
    for item in ("train.lrr=1", "train.lr=fast", "fedgsca.zetta=LR"):
        assert why_refused(item)
    for item in ("train.lr=LR", "data.image_size=none"):
        assert why_refused(item) is None


def test_the_page_of_fedgsca_lists_what_preset_paper_switches_off() -> None:
    text = (ROOT / "docs" / "fedgsca.md").read_text("utf-8")
    named_options = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert named_options == set(PRESETS["paper"]["fedgsca"])
    for key in re.findall(r"`(train\.\w+)`", text):
        assert why_refused(f"{key}=KEY") is None
