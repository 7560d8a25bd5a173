"""`fedgsca methods`: what can be run, and with which options."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgsca.cli.options import Json
from fedgsca.errors import ConfigError
from fedgsca.support.console import make_table, print_json, print_line, print_table

if TYPE_CHECKING:
    from pydantic import BaseModel

    from fedgsca.methods.base import Method

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="show this method's options")]
_NONE = " | none"
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def add(app: typer.Typer) -> None:
    app.command(
        "methods", help="List the methods, or the options of one.", rich_help_panel="Understand"
    )(methods)


def methods(name: Name = None, json: Json = False) -> None:
    from fedgsca.methods.base import load_methods

    known = load_methods()
    if name is None:
        rows = [{"name": key, "paper": known[key].paper} for key in sorted(known)]
        if json:
            print_json({"methods": rows})
        else:
            print_table(make_table(["method", "paper"], [[row["name"], row["paper"]] for row in rows], text_columns=2))
            print_line(
                "`fedgsca methods NAME` lists a method's options; `fedgsca wire NAME` what it sends.",
                "dim",
            )
        return
    method = find(name)
    options = [{**row, "key": f"{method.name}.{row['key']}"} for row in describe(method.Options)]
    if json:
        print_json({"name": method.name, "paper": method.paper, "options": options})
        return
    print_line(f"{method.name}: {method.paper}", "bold")
    if not options:
        print_line("no options of its own")
        return
    print_table(
        make_table(
            ["option", "type", "default", "what"],
            [[row["key"], row["type"], _plain(row["default"]), row["what"]] for row in options],
            text_columns=4,
        )
    )
    print_line(
        f"set with --set {options[0]['key']}={_plain(options[0]['default'])}, or in the [{method.name}] table of a TOML file",
        "dim",
    )


def find(name: str) -> type[Method]:
    """A method by name; the nearest one is suggested."""
    from fedgsca.methods.base import load_methods

    known = load_methods()
    if name.lower() in known:
        return known[name.lower()]
    near = get_close_matches(name.lower(), list(known), n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(
        "todo.methods-1",
        f"method {name!r} is not known",
        fix=f"{hint}known are: {', '.join(sorted(known))}",
    )


def describe(model: type[BaseModel], prefix: str = "") -> Iterator[dict[str, Any]]:
    """Options as rows, those of nested tables with dotted names."""
    from pydantic import BaseModel

    for key, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from describe(kind, f"{prefix}{key}.")
        else:
            bounds = [
                f"{sign} {getattr(rule, name):g}"
                for rule in field.metadata
                for name, sign in _BOUNDS.items()
                if hasattr(rule, name)
            ]
            text = type_text(kind)
            if bounds:
                text = f"{text.removesuffix(_NONE)} {', '.join(bounds)}{_NONE if text.endswith(_NONE) else ''}"
            yield {
                "key": prefix + key,
                "type": text,
                "default": field.get_default(call_default_factory=True),
                "what": field.description or "",
            }


def type_text(kind: Any) -> str:
    """A type as a person writes it: literals as their values, None as 'none'."""
    from typing import Literal, get_args, get_origin

    if kind is type(None):
        return "none"
    if get_origin(kind) is Literal:
        return " | ".join(str(value) for value in get_args(kind))
    if get_args(kind) and get_origin(kind) not in (tuple, list, dict):
        return " | ".join(type_text(part) for part in get_args(kind))
    return {bool: "true | false", str: "text"}.get(
        kind, getattr(kind, "__name__", str(kind)) if not get_args(kind) else str(kind)
    )


def _plain(value: Any) -> str:
    return (
        "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
