"""The parts of the manual that the product writes, between `<!-- begin: NAME -->` and its end.

    python -m docs.generate          # rewrite the blocks that are kept in the pages
    python -m docs.generate wire     # only this one
    python -m docs.generate demo runs/demo/compare.md    # what a study has written
    python -m docs.generate --words  # words by hand, for each page

Blocks of SITE_BLOCKS are empty in the repository, and filled when the site is built (hooks.py).
Blocks of PAGE_BLOCKS are kept in the pages; a test compares them with what is printed here. Blocks
of STUDY_BLOCKS are written by the command of their study, through `write_block`.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from docs.error_codes import render_errors

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "fedgsca"
BLOCK = re.compile(
    r"^<!-- begin: (?P<name>[a-z-]+) -->\n(?P<text>.*?)^<!-- end: (?P=name) -->$",
    re.MULTILINE | re.DOTALL,
)


def list_pages() -> list[Path]:
    """The pages of the manual: those of the root, which people look for there, and docs/."""
    roots = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return roots + sorted((ROOT / "docs").rglob("*.md"))


# ---- what the product says ----


def ask(*words: str) -> Any:
    """What `fedgsca WORDS --json` prints."""
    command = [sys.executable, "-m", "fedgsca", *words, "--json"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {result.stdout}{result.stderr}")
    return json.loads(result.stdout)


def make_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(_cell(value) for value in line)} |" for line in lines)


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


# ---- blocks that the site has ----


def render_commands() -> str:
    """Every command with its arguments and options, by the groups of `fedgsca --help`."""
    import click
    import typer

    from fedgsca.cli import app

    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    panels: dict[str, list[str]] = {}
    for name in group.list_commands(click.Context(group)):
        command = group.commands[name]
        panel = str(getattr(command, "rich_help_panel", None) or "Other commands")
        lines = panels.setdefault(panel, [])
        if isinstance(command, click.Group):
            for inner, leaf in command.commands.items():
                lines += _describe_command(f"{name} {inner}", leaf)
        else:
            lines += _describe_command(name, command)
    parts = [f"## {panel}\n\n" + "\n".join(lines) for panel, lines in panels.items()]
    return "\n\n".join(parts)


def _describe_command(name: str, command: Any) -> list[str]:
    rows = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            label = str(parameter.metavar or parameter.name).upper()
        else:
            label = ", ".join([*parameter.opts, *parameter.secondary_opts])
            if not parameter.is_flag:
                label += f" {parameter.metavar or parameter.type.name.upper()}"
        rows.append([f"`{label}`", _escape(parameter.help or ""), _default(parameter)])
    lines = [f"### {name}", "", _escape(command.help or "")]
    if rows:
        lines += ["", make_table(["option", "meaning", "default"], rows)]
    return [*lines, ""]


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or callable(value) or value in ((), [], False) or "UNSET" in repr(value):
        return ""
    return f"`{value}`"


def _escape(text: str) -> str:
    """Text of the command line for Markdown: no markup of the terminal, angle brackets as text."""
    plain = re.sub(r"\[/?(bold|dim|italic)\]", "", " ".join(text.split()))
    return plain.replace("<", "&lt;")


def render_configuration() -> str:
    """Every key with type, default and meaning: those of an experiment, then of every method."""
    from fedgsca.cli.config import list_options, value_text
    from fedgsca.config import Config
    from fedgsca.config.schema import PrivacyConfig
    from fedgsca.methods.base import load_methods

    tables: dict[str, list[list[str]]] = {}
    for option in [*list_options(Config), *list_options(PrivacyConfig, "privacy.")]:
        section, _, _ = option.key.rpartition(".")
        row = [f"`{option.key}`", option.type_name, value_text(option.default), option.description]
        if option.key not in ("options", "privacy"):
            tables.setdefault(section or "top of the file", []).append(row)
    titles = {name: f"{method.card.title} (`[{name}]`)" for name, method in load_methods().items()}
    for name, method in load_methods().items():
        for option in list_options(method.Options):
            key = f"{name}.{option.key}"
            row = [f"`{key}`", option.type_name, value_text(option.default), option.description]
            tables.setdefault(name, []).append(row)
    parts = []
    for section, rows in tables.items():
        title = titles.get(section, f"`[{section}]`" if section in Config.model_fields else section)
        table = make_table(["key", "type", "default", "meaning"], rows)
        parts.append(f"## {title[0].upper()}{title[1:]}\n\n{table}")
    return "\n\n".join(parts)


def render_uploads() -> str:
    """What every method declares, beside the weights."""
    from fedgsca.methods.base import load_methods

    rows = []
    for method in load_methods().values():
        directions = (("to the coordinator", method.uploads), ("to the sites", method.downloads))
        for direction, extras in directions:
            for name, extra in extras.items():
                shape = " x ".join(str(part) for part in extra.shape) or "1"
                when = "in some rounds" if extra.optional else "every round"
                what = _escape(extra.description)
                rows.append([method.card.title, direction, f"`{name}`", shape, when, what])
    return make_table(["method", "direction", "name", "numbers", "sent", "meaning"], rows)


def render_licences() -> str:
    """The packages that pyproject.toml names, with the pinned version and the licence."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = {"core": project["dependencies"], **project["optional-dependencies"]}
    rows = []
    for group, requirements in groups.items():
        if group not in ("dev", "docs"):
            rows += [[group, *_describe_package(line)] for line in requirements]
    return make_table(["extra", "package", "version", "licence"], rows)


def _describe_package(requirement: str) -> tuple[str, str, str]:
    name = re.split(r"[\[<>=~!; ]", requirement)[0]
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return name, "not installed here", ""
    fields = {key: metadata[key] for key in metadata}
    classifiers = metadata.get_all("Classifier") or []
    licences = [line.rpartition(":: ")[2] for line in classifiers if line.startswith("License ::")]
    licence = fields.get("License-Expression") or ", ".join(licences) or fields.get("License", "")
    return name, fields["Version"], licence.partition("\n")[0]


# ---- blocks that pages keep ----


def render_tree() -> str:
    """The first line of every module and package of the first level."""
    rows = []
    for path in [*sorted(PACKAGE.glob("*.py")), *sorted(PACKAGE.glob("*/__init__.py"))]:
        is_package = path.name == "__init__.py" and path.parent != PACKAGE
        name = f"{path.parent.name}/" if is_package else path.name
        text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        rows.append([f"`{name}`", text.partition("\n")[0]])
    return make_table(["in fedgsca/", "content"], rows)


def render_sources() -> str:
    """`fedgsca data list`."""
    rows = [[f"`{source['form']}`", source["what"]] for source in ask("data", "list")["sources"]]
    return make_table(["`--data`", "what it is"], rows)


def render_noise_kinds() -> str:
    """Letter, name and meaning of every kind of noise that a specification can request."""
    from fedgsca.noise.base import load_kinds

    rows = []
    for letter, kind in sorted(load_kinds().items()):
        if not kind.is_recorded:
            part = "0" if kind.is_clean else letter
            rows.append([f"`{part}`", kind.title, kind.description])
    return make_table(["letter", "kind", "meaning"], rows)


def render_networks() -> str:
    """Width, parameters and size of every network, and the width of its frozen features."""
    import torch

    from fedgsca.models.build import MODELS

    rows = []
    for name, spec in MODELS.items():
        if spec.width:
            with torch.device("meta"):
                backbone = spec.make()
            parameters = sum(value.numel() for value in backbone.parameters())
            state = sum(value.numel() for value in backbone.state_dict().values())
            size = 4 * (state + 10 * (spec.width + 1)) / 1e6
            frozen = f"{spec.width + sum(spec.stages.values()):,}"
            cells = [f"`{name}`", f"{spec.width:,}", f"{parameters:,}", f"{size:.1f} MB", frozen]
            rows.append(cells)
    header = ["`--model`", "features", "parameters", "sent for 10 classes", "features if frozen"]
    return make_table(header, rows)


def render_wire() -> str:
    """What `fedgsca wire` measures for the default method on frozen features."""
    method = ask("config")["method"]
    answer = ask("wire", method, "--frozen")
    leaves = answer["leaves"]
    rows = []
    for extra in leaves["extras"]:
        size = " x ".join(str(length) for length in extra["shape"]) or "1"
        count = "not in this round" if extra["bytes"] is None else f"{extra['bytes']:,}"
        rows.append([f"`{extra['name']}`", size, count, extra["privacy"], extra["what"]])
    weights = sum(part["numbers"] for part in leaves["weights"])
    rows.append(["weights", f"{weights:,}", f"{leaves['weights_bytes']:,}", "noised", "the model"])
    kilobytes = f"{leaves['message_bytes'] / 1000:.1f} KB"
    back = f"{answer['arrives']['message_bytes'] / 1000:.1f} KB"
    table = make_table(["array", "numbers", "bytes", "under `privacy`", "meaning"], rows)
    caption = (
        f"`fedgsca wire {method} --frozen`, {answer['classes']} classes, {answer['model']}: one"
        f" site sends {kilobytes} and receives {back} in a round, names and header included."
    )
    return f"{caption}\n\n{table}"


def render_budget() -> str:
    """What noise costs in epsilon, by `fedgsca privacy`."""
    rows = []
    for method in ("fedavg", "fedgsca"):
        for epsilon in (100, 10, 1):
            answer = ask("privacy", method, "--rounds", "30", "--epsilon", str(epsilon))
            noise = f"{answer['noise']:.3g}"
            rows.append([f"`{method}`", 30, epsilon, noise, f"{answer['epsilon']:.3g}"])
    return make_table(["method", "rounds", "epsilon wanted", "`privacy.noise`", "epsilon"], rows)


def render_first_run() -> str:
    """What the program of the README prints."""
    text = (ROOT / "README.md").read_text("utf-8")
    program = text.partition("```python\n")[2].partition("```")[0]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", program]
        output = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=True
        ).stdout
    return f"```\n{output}```"


SITE_BLOCKS: dict[str, Callable[[], str]] = {
    "errors": render_errors,
    "commands": render_commands,
    "configuration": render_configuration,
    "uploads": render_uploads,
    "licences": render_licences,
}
PAGE_BLOCKS: dict[str, Callable[[], str]] = {
    "tree": render_tree,
    "sources": render_sources,
    "noise-kinds": render_noise_kinds,
    "networks": render_networks,
    "wire": render_wire,
    "budget": render_budget,
    "first-run": render_first_run,
}
# those that train, or need an extra: compared by `make slow`
SLOW_BLOCKS = ("networks", "wire", "budget", "first-run")
# name -> the command that writes it
STUDY_BLOCKS = {
    "results": "python -m benchmarks.results",
    "privacy-built-in": "python -m benchmarks.privacy",
    "privacy-pathmnist": "python -m benchmarks.privacy",
    "demo": "fedgsca demo",
    "mini": "fedgsca table NAME --scale mini",
    "protocols": "python -m benchmarks.protocols page",
}


# ---- pages ----


def read_blocks(text: str) -> dict[str, str]:
    """Name -> content of the blocks of a page."""
    return {match["name"]: match["text"].strip("\n") for match in BLOCK.finditer(text)}


def fill(text: str, name: str, content: str) -> str:
    """A page with another content of a block."""

    def replace(match: re.Match[str]) -> str:
        if match["name"] != name:
            return match[0]
        return f"<!-- begin: {name} -->\n\n{content}\n\n<!-- end: {name} -->"

    return BLOCK.sub(replace, text)


def write_block(path: Path, name: str, content: str) -> None:
    """Replace a block in a file; the file must have it."""
    text = path.read_text("utf-8")
    if name not in read_blocks(text):
        raise SystemExit(f"{path} has no lines '<!-- begin: {name} -->' and '<!-- end: {name} -->'")
    path.write_text(fill(text, name, content), "utf-8")


def fill_site_blocks(text: str) -> str:
    """A page as the site shows it."""
    for name in read_blocks(text):
        if name in SITE_BLOCKS:
            text = fill(text, name, SITE_BLOCKS[name]())
    return text


def find_page(name: str) -> Path:
    """The page that has a block."""
    (page,) = [path for path in list_pages() if name in read_blocks(path.read_text("utf-8"))]
    return page


def count_words() -> Iterator[tuple[Path, int]]:
    """Every page with its words by hand; the changelog is not part of the manual."""
    for path in list_pages():
        if path.name.upper() != "CHANGELOG.MD":
            yield path, len(BLOCK.sub("", path.read_text("utf-8")).split())


def main(words: Sequence[str]) -> None:
    """Rewrite blocks, or count words."""
    if "--words" in words:
        counts = dict(count_words())
        for path, count in counts.items():
            print(f"{count:7,}  {path.relative_to(ROOT)}")
        print(f"{sum(counts.values()):7,}  all")
        return
    if len(words) == 2 and words[0] in STUDY_BLOCKS:
        lines = Path(words[1]).read_text("utf-8").splitlines()
        content = "\n".join(line for line in lines if not line.startswith("# ")).strip()
        write_block(find_page(words[0]), words[0], content)
        return
    for name in words or PAGE_BLOCKS:
        write_block(find_page(name), name, PAGE_BLOCKS[name]())


if __name__ == "__main__":
    main(sys.argv[1:])
