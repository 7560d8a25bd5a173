"""Options that several commands share.

The options that describe an experiment come from the schema of the configuration: a command has
them by `@experiment_options`, and receives what was given as `Settings`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import click
import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from fedgsca.config import SHORT_NAMES, Config, Tree, build, collect, merge, parse_set
from fedgsca.config.loading import section_model
from fedgsca.support.text import slug
from fedgsca.support.text import strip_slash as strip_slash

ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="TOML file", rich_help_panel="Configuration")
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="any other setting as section.key=value, repeatable; beats the file; `fedgsca config`"
        " prints every key",
        metavar="KEY=VALUE",
        rich_help_panel="Configuration",
    ),
]
Jobs = Annotated[
    int, typer.Option("--jobs", min=1, help="worker processes; the result does not depend on it")
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="how messages reach the sites: local or an engine of a plugin; same result",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="print errors only")]
Json = Annotated[
    bool, typer.Option("--json", help="print one JSON object on stdout and nothing else")
]
Command = Callable[..., None]
# where nobody gives a value, the data decides (federation/choose_settings.py)
DECIDED_BY_DATA = ("partition", "model", "frozen")


@dataclass(frozen=True)
class Settings:
    """What a user has given on the command line: a file, then --set items, then options."""

    file: Path | None = None
    sets: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)  # short name -> value; None: not given
    # short name -> "4,10,20", for options that take several values; one value is in `options`
    lists: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """The value of an option by its short name; None if it was not given."""
        return self.options.get(name)

    def with_options(self, **options: Any) -> Settings:
        """The same with other values of some options, by short name or key (data__sites)."""
        return replace(self, options={**self.options, **options})

    def split_lists(self, names: Collection[str]) -> Settings:
        """The same with the texts of some options as lists or as values of their type."""
        texts = {name: text for name in names if (text := self.get(name)) is not None}
        lists = {name: text for name, text in texts.items() if "," in text}
        values: dict[str, Any] = dict.fromkeys(lists)
        for name in texts.keys() - lists.keys():
            values[name] = _parse_value(name, texts[name])
        return replace(self.with_options(**values), lists=lists)

    @functools.cached_property
    def tree(self) -> Tree:
        """All of it as one tree, not checked yet, for commands that build several experiments."""
        return collect(self.file, self.sets, self.options)

    def load(self, **changes: Any) -> Config:
        """The checked configuration; `changes` are settings that win, as for `Config.load`."""
        return build(merge(self.tree, collect(settings=changes)))


def experiment_options(
    *names: str, without: Collection[str] = (), lists: Collection[str] = ()
) -> Callable[[Callable[..., None]], Command]:
    """Give a command the options of an experiment, `--config` and `--set`.

        @experiment_options(without=("method", "seed"), lists=("sites",))
        def compare(settings: Settings, noise: Noises = None, seeds: Seeds = "3") -> None: ...

    The first parameter of the command receives the `Settings`; the options stand in its place.
    Name, type and help text come from the schema. `names` are short names of settings
    (fedgsca.config.SHORT_NAMES); default: all but `without`. An own parameter of the command with
    the name of an option replaces it. Options in `lists` also take a list, `--sites 4,10,20`.
    """

    def decorate(command: Callable[..., None]) -> Command:
        own_parameters = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        own_names = {parameter.name for parameter in own_parameters}
        short_names = [
            name for name in names or SHORT_NAMES if name not in own_names | set(without)
        ]
        parameters = [schema_option(name, takes_list=name in lists) for name in short_names]
        parameters += [_parameter("config_file", ConfigFile), _parameter("sets", Sets)]
        parameters = sorted(
            [*own_parameters, *parameters], key=lambda one: one.default is not one.empty
        )

        @functools.wraps(command)
        def wrapped_command(**values: Any) -> None:
            options = {name: values.pop(name) for name in short_names}
            file, sets = values.pop("config_file"), tuple(values.pop("sets") or ())
            settings = Settings(file, sets, options)
            command(settings.split_lists(lists), **values)

        wrapped_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped_command.__annotations__ = {one.name: one.annotation for one in parameters}
        return wrapped_command

    return decorate


def schema_option(name: str, *, takes_list: bool = False) -> inspect.Parameter:
    """The option of a setting with a short name: `--frozen` for model.frozen."""
    info = find_field(SHORT_NAMES[name])
    types = _value_types(info.annotation)
    text = info.description or ""
    if all(isinstance(one, str) for one in types):
        text = f"{', '.join(types)}; {text}"
    if takes_list:
        text += "; several with commas are compared"
    default = "by the data" if name in DECIDED_BY_DATA else info.default
    if isinstance(default, str | int | float) and not isinstance(default, bool):
        text += f" [dim]\\[{default}][/dim]"
    # such as lr, a number or "auto"
    is_number_or_word = float in types and len(types) > 1
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        help=text,
        show_default=False,
        rich_help_panel="Experiment",
        parser=_parse_number if is_number_or_word and not takes_list else None,
        metavar="NUMBER" if is_number_or_word else None,
    )
    python_type = types[0] if len(types) == 1 and types[0] in (bool, int, float) else str
    return _parameter(name, Annotated[(str if takes_list else python_type) | None, option])


def find_field(key: str) -> FieldInfo:
    """The field of the schema behind a key such as "train.rounds"."""
    model: Any = Config
    *sections, last = key.split(".")
    for section in sections:
        model = section_model(model, section)
    return cast("FieldInfo", model.model_fields[last])


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=None, annotation=annotation)


def _value_types(annotation: Any) -> list[Any]:
    """The types of a setting but None, and the words of a Literal: float | None -> [float]."""
    types = [one for one in get_args(annotation) or [annotation] if one is not type(None)]
    return types if len(types) > 1 or not get_args(types[0]) else _value_types(types[0])


def _parse_value(name: str, text: str) -> Any:
    """The value of an option that also takes lists; a name such as "1" stays a word."""
    if _value_types(find_field(SHORT_NAMES[name]).annotation) == [str]:
        return text
    return parse_set([f"value={text}"])["value"]


def _parse_number(text: str) -> Any:
    """A number, or the word as it is."""
    try:
        return float(text)
    except ValueError:
        return text


class NoiseHelpCommand(TyperCommand):
    """A command whose help lists the kinds of noise, plugins included; loaded only for the help."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The help, with what the parts of a noise specification mean."""
        from fedgsca.noise import explain_specification

        for parameter in self.params:
            if parameter.name in ("noise", "spec"):
                help_text = f"label noise: S40 for every site, or {explain_specification()}"
                cast("typer.core.TyperOption", parameter).help = help_text
        super().format_help(ctx, formatter)


def source_slug(source: str) -> str:
    """A data source as part of a folder name.

    data/pathmnist_small.npz -> pathmnist_small, chaoyang:/mnt/x -> chaoyang-x.
    """
    kind, _, location = source.rpartition(":")
    if location == "synthetic":
        stem = location
    elif location.lower().endswith(".npz"):
        stem = Path(location).stem
    else:
        stem = Path(location).expanduser().resolve().name
    return slug("-".join(part for part in (kind, stem) if part))


# ---- for commands that do not use experiment_options ----

_EXPERIMENT_PANEL = "Experiment"

Features = Annotated[
    str | None,
    typer.Option(
        "--features",
        help="npz with your own features of the images (arrays features and files)",
        rich_help_panel=_EXPERIMENT_PANEL,
    ),
]
SkipUnreadable = Annotated[
    bool,
    typer.Option(
        "--skip-unreadable",
        help="leave out images that cannot be decoded",
        rich_help_panel=_EXPERIMENT_PANEL,
    ),
]
Track = Annotated[
    str | None,
    typer.Option(
        "--track",
        help="record the run with tensorboard, mlflow, mlflow:ADDRESS, wandb (offline), or several"
        " with commas; the run is the same",
    ),
]
