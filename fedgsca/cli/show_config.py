"""`fedgsca config`: the resolved configuration, or how it differs from a preset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedgsca.cli.options import Json, Settings, experiment_options
from fedgsca.support.console import (
    console,
    make_table,
    print_json,
    print_line,
    print_note,
    print_table,
    print_warning,
)
from fedgsca.support.text import DASH

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.table import Table

    from fedgsca.config import Config, Difference

_COMMENT_COLUMN = 34
PAPER_IMAGE_SIZE = 224  # pixels

Diff = Annotated[
    str | None,
    typer.Option("--diff", metavar="PRESET", help="show only what differs from this preset"),
]


def add(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        "config",
        help="Print the configuration as TOML, every key explained, or what differs from a preset.",
        rich_help_panel="Understand",
    )(show_config)


@experiment_options()
def show_config(settings: Settings, diff: Diff = None, as_json: Json = False) -> None:
    """`fedgsca config`."""
    from fedgsca.cli.chosen_settings import complete_config
    from fedgsca.config import to_toml

    config = complete_config(settings.load(), quiet=as_json)
    if diff is not None:
        _show_differences(config, diff, as_json=as_json)
    elif as_json:
        print_json(config.to_tree())
    else:
        typer.echo(_with_descriptions(to_toml(config), config), nl=False)


def _with_descriptions(text: str, config: Config) -> str:
    """The TOML with the description of every key as a comment behind it."""
    from fedgsca.config import METHODS, Config

    section: list[str] = []
    lines = []
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]").split(".")
        key, sign, _ = line.partition(" = ")
        comment = ""
        if sign and key.isidentifier():
            model: type[BaseModel] = Config
            path = [*section, key]
            if section and section[0] == config.method:
                model = METHODS.load()[config.method].Options
                path = path[1:]
            comment = _describe_key(model, path)
        lines.append(f"{line:<{_COMMENT_COLUMN}}# {comment}" if comment else line)
    return "\n".join(lines) + "\n"


def _describe_key(model: type[BaseModel], path: list[str]) -> str:
    """The description of a key; empty if there is none."""
    from fedgsca.config.loading import section_model

    for part in path[:-1]:
        section = section_model(model, part)
        if section is None:
            return ""
        model = section
    field = model.model_fields.get(path[-1])
    return "" if field is None else field.description or ""


def _show_differences(config: Config, preset: str, *, as_json: bool) -> None:
    changes = compare_with_preset(config, preset)
    if as_json:
        print_json([{"key": key, "here": value, preset: base} for key, value, base in changes])
    elif changes:
        print_table(_difference_table(changes, "here", preset))
    else:
        print_line(f"the same as preset {preset}")


def compare_with_preset(config: Config, preset: str) -> list[Difference]:
    """What differs from the unchanged preset for the same data, noise, model and method."""
    from fedgsca.config import build, differences

    tree = config.to_tree()
    base = {name: tree[name] for name in ("seed", "method", "data", "noise")}
    base["model"] = {}
    for name in ("name", "weights", "frozen", "feature_size"):
        if name in tree["model"]:
            base["model"][name] = tree["model"][name]
    changes = differences(config, build({**base, "preset": preset}))
    return [change for change in changes if change[0] != "preset"]


def _difference_table(changes: list[Difference], name: str, other_name: str) -> Table:
    rows = [[key, _value_text(value), _value_text(base)] for key, value, base in changes]
    return make_table(["key", name, other_name], rows, text_columns=3)


def _value_text(value: object) -> str:
    if value is None:
        return DASH
    return str(value).lower() if isinstance(value, bool) else str(value)


def explain_preset(config: Config) -> None:
    """Show on stderr what a preset other than the default changes.

    The literal equations of the paper are known to collapse, so preset paper gets a warning.
    """
    if config.preset == "default":
        return
    changes = compare_with_preset(config, "default")
    table = _difference_table(changes, f"preset {config.preset}", "default")
    console(stderr=True).print(table)
    changes_method = any(key.startswith(f"{config.method}.") for key, _, _ in changes)
    if changes_method:
        print_warning(
            f"preset {config.preset} takes the equations literally: no warm-up, no variance floor, "
            "no monotone posterior, no test of the fits, no guard. Networks trained from scratch "
            "perform badly with it. The documentation of the method explains why."
        )
    for part in missing_protocol(config):
        print_note(f"not the paper's protocol: {part}")


def missing_protocol(config: Config) -> list[str]:
    """The parts of the paper's protocol that differ in this run, with what to set, in words."""
    parts = []
    if config.model.name != "resnet50" or config.model.frozen:
        model = f"frozen {config.model.name}" if config.model.frozen else config.model.name
        parts.append(f"the network is {model}, the paper's is ResNet-50 (--preset paper-full)")
    if config.data.image_size != PAPER_IMAGE_SIZE:
        size = config.data.image_size or "as in the source"
        parts.append(f"the image size is {size}, the paper's is 224 pixels (--preset paper-full)")
    if config.model.weights is None:
        parts.append(
            "the initial weights are random, the paper's are LVM-Med's "
            "(--set model.weights=lvmmed_resnet.torch)"
        )
    return parts
