"""The options that a command has from the schema of the configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from fedgsca.cli.options import Settings, experiment_options
from fedgsca.config import SHORT_NAMES

Command = Callable[..., None]


def call(command: Command, *arguments: str) -> None:
    """Run a command as the only one of an app."""
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, arguments)
    if result.exit_code:
        raise AssertionError(result.output) from result.exception


def test_a_list_is_kept_apart_from_a_single_value() -> None:
    calls: list[Settings] = []

    @experiment_options(lists=("sites", "partition", "model"))
    def command(settings: Settings) -> None:
        calls.append(settings)

    call(command, "--sites", "3,8", "--partition", "dirichlet", "--model", "1", "--rounds", "7")
    (settings,) = calls
    assert settings.lists == {"sites": "3,8"}
    assert settings.tree["data"] == {"partition": "dirichlet"}
    assert settings.tree["model"] == {"name": "1"}  # a name stays a word
    assert settings.load().train.rounds == 7
    call(command, "--sites", "8")
    assert calls[1].lists == {} and calls[1].load().data.sites == 8


def test_an_own_parameter_replaces_an_option() -> None:
    calls: list[list[str] | None] = []
    names: list[set[str]] = []

    @experiment_options(without=("seed",))
    def command(
        settings: Settings, noise: Annotated[list[str] | None, typer.Option("--noise")] = None
    ) -> None:
        names.append(set(settings.options))
        calls.append(noise)

    call(command, "--noise", "S20", "--noise", "S40")
    assert calls == [["S20", "S40"]]
    assert names == [set(SHORT_NAMES) - {"seed", "noise"}]


@pytest.mark.parametrize("text", ["0.05", "auto"])
def test_a_number_or_a_word(text: str) -> None:
    calls: list[Settings] = []

    @experiment_options("lr")
    def command(settings: Settings) -> None:
        calls.append(settings)

    call(command, "--lr", text)
    assert str(calls[0].load().train.lr) == text
