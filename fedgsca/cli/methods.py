"""`fedgsca methods`: the available methods, and the options of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgsca.cli.options import Json
from fedgsca.errors import ConfigError
from fedgsca.support.console import make_table, print_json, print_line, print_table
from fedgsca.support.text import did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    from fedgsca.methods.base import Method

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


def add(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        "methods", help="List the methods, or the options of one.", rich_help_panel="Understand"
    )(methods)


def methods(name: Name = None, as_json: Json = False) -> None:
    """`fedgsca methods`."""
    if name is None:
        _show_methods(as_json=as_json)
    else:
        _show_options(find_method(name), as_json=as_json)


def _show_methods(*, as_json: bool) -> None:
    from fedgsca.methods.base import load_methods

    available = load_methods()
    if as_json:
        records = []
        for name, method in available.items():
            records.append({"name": name, "title": method.card.title, "paper": method.card.paper})
        print_json({"methods": records})
        return
    rows = [[name, method.card.title, method.card.paper] for name, method in available.items()]
    print_table(make_table(["method", "title", "paper"], rows, text_columns=3))
    print_line(
        "`fedgsca methods NAME` lists a method's options, `fedgsca wire NAME` what it sends.", "dim"
    )


def _show_options(method: type[Method], *, as_json: bool) -> None:
    options = []
    for option in list_options(method.Options):
        options.append(replace(option, key=f"{method.name}.{option.key}"))
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
