"""`fedgsca config`: the configuration, or how it differs from a preset. `fedgsca methods`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgsca.cli.options import Json, Settings, experiment_options
from fedgsca.errors import ConfigError
from fedgsca.support.console import (
    console,
    make_table,
    print_json,
    print_line,
    print_note,
    print_table,
    print_warning,
)
from fedgsca.support.text import DASH, did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo
    from rich.table import Table

    from fedgsca.config import Config, Difference
    from fedgsca.methods.base import Method


_COMMENT_COLUMN = 34
PAPER_IMAGE_SIZE = 224  # pixels

Diff = Annotated[
    str | None,
    typer.Option("--diff", metavar="PRESET", help="show only what differs from this preset"),
]


@experiment_options()
def show_config(settings: Settings, diff: Diff = None, as_json: Json = False) -> None:
    """Print the configuration as TOML, every key explained, or what differs from a preset."""
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
    """The TOML with the description of every key as a comment behind it.

    Keys without a value are comments at the end of their section.
    """
    from fedgsca.config import METHODS, Config
    from fedgsca.config.schema import PrivacyConfig

    method = METHODS.load()[config.method]
    options = [*list_options(Config), *list_options(PrivacyConfig, "privacy.")]
    options += list_options(method.Options, f"{config.method}.")
    descriptions = {option.key: option.description for option in options}
    sections: dict[str, list[str]] = {"": []}
    section = ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
            sections[section] = []
        key, sign, _ = line.partition(" = ")
        comment = descriptions.pop(f"{section}.{key}".lstrip("."), "") if sign else ""
        if line:
            sections[section].append(_with_comment(line, comment))
    for name, comment in descriptions.items():
        section, _, key = name.rpartition(".")
        if name not in ("options", "privacy"):
            lines = sections.setdefault(section, [_with_comment(f"# [{section}]", "")])
            lines.append(_with_comment(f"# {key} =", comment))
    return "\n\n".join("\n".join(lines) for lines in sections.values()) + "\n"


def _with_comment(line: str, comment: str) -> str:
    return f"{line:<{_COMMENT_COLUMN}}# {comment}" if comment else line


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
    rows = []
    for key, *values in changes:
        rows.append([key, *(DASH if value is None else value_text(value) for value in values)])
    return make_table(["key", name, other_name], rows, text_columns=3)


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


# ---- methods ----


Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="show this method's options")]
_OR_NONE = " | none"
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


@dataclass(frozen=True)
class MethodOption:
    """One option of a method, for people."""

    key: str
    type_name: str
    default: Any
    description: str

    def to_json(self) -> dict[str, Any]:
        """The option as `--json` prints it."""
        return {
            "key": self.key,
            "type": self.type_name,
            "default": self.default,
            "what": self.description,
        }


def methods(name: Name = None, as_json: Json = False) -> None:
    """List the methods, or the options of one."""
    if name is None:
        _show_methods(as_json=as_json)
    else:
        _show_options(find_method(name), as_json=as_json)


def _show_methods(*, as_json: bool) -> None:
    from fedgsca.methods.base import load_methods

    head = ["name", "title", "paper"]
    rows = [[name, item.card.title, item.card.paper] for name, item in load_methods().items()]
    if as_json:
        print_json({"methods": [dict(zip(head, row, strict=True)) for row in rows]})
        return
    print_table(make_table(["method", *head[1:]], rows, text_columns=3))
    print_line(
        "`fedgsca methods NAME` lists a method's options, `fedgsca wire NAME` what it sends.", "dim"
    )


def _show_options(method: type[Method], *, as_json: bool) -> None:
    options = list(list_options(method.Options, f"{method.name}."))
    if as_json:
        records = [option.to_json() for option in options]
        print_json({"name": method.name, "paper": method.card.paper, "options": records})
        return
    print_line(f"{method.name}: {method.card.paper}", "bold")
    if not options:
        print_line("no options of its own")
        return
    rows = []
    for option in options:
        default = value_text(option.default)
        rows.append([option.key, option.type_name, default, option.description])
    print_table(make_table(["option", "type", "default", "what"], rows, text_columns=4))
    example = f"{options[0].key}={value_text(options[0].default)}"
    print_line(
        f"set with --set {example}, or in the [{method.name}] table of a TOML file",
        "dim",
    )


def find_method(name: str) -> type[Method]:
    """A method by name, in any case; the nearest one is suggested."""
    from fedgsca.methods.base import load_methods

    available = load_methods()
    if name.lower() not in available:
        raise ConfigError(
            "config.unknown-method",
            f"unknown method {name!r}",
            fix=f"{did_you_mean(name, available)}use one of: {', '.join(sorted(available))}",
        )
    return available[name.lower()]


def list_options(model: type[BaseModel], prefix: str = "") -> Iterator[MethodOption]:
    """The options of a method, those of nested tables with dotted names."""
    from pydantic import BaseModel

    for key, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from list_options(kind, f"{prefix}{key}.")
        else:
            default = field.get_default(call_default_factory=True)
            yield MethodOption(prefix + key, _field_type(field), default, field.description or "")


def _field_type(field: FieldInfo) -> str:
    """The type of an option with its bounds: float ≥ 0, ≤ 1 | none."""
    text = type_text(field.annotation)
    bounds = []
    for rule in field.metadata:
        for name, sign in _BOUNDS.items():
            if hasattr(rule, name):
                bounds.append(f"{sign} {getattr(rule, name):g}")
    if not bounds:
        return text
    ending = _OR_NONE if text.endswith(_OR_NONE) else ""
    return f"{text.removesuffix(_OR_NONE)} {', '.join(bounds)}{ending}"


def type_text(kind: Any) -> str:
    """A type as a person writes it: literals as their values, None as 'none'."""
    from typing import Literal, get_args, get_origin

    if kind is type(None):
        return "none"
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return " | ".join(str(value) for value in arguments)
    if arguments and get_origin(kind) not in (tuple, list, dict):
        return " | ".join(type_text(part) for part in arguments)
    if arguments:
        return str(kind)
    names = {bool: "true | false", str: "text"}
    if kind in names:
        return names[kind]
    return str(getattr(kind, "__name__", kind))


def value_text(value: object) -> str:
    """A value as it is written after --set."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
