"""`fedgsca privacy METHOD`: how much noise for which guarantee, before a run."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from fedgsca.cli.methods import find_method
from fedgsca.cli.options import Json
from fedgsca.errors import ConfigError
from fedgsca.support.console import print_json, print_line
from fedgsca.support.text import plural

Name = Annotated[str, typer.Argument(metavar="METHOD", help="see `fedgsca methods`")]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="rounds that a site answers")]
NoiseLevel = Annotated[
    float | None, typer.Option("--noise", help="privacy.noise: which epsilon does it give?")
]
Epsilon = Annotated[float | None, typer.Option("--epsilon", help="which noise does it need?")]
Delta = Annotated[float, typer.Option("--delta", help="privacy.delta")]


def add(app: typer.Typer) -> None:
    """Add the command of this module."""
    text = "Compute the epsilon of a noise level, or the noise level for an epsilon."
    app.command("privacy", help=text, rich_help_panel="Understand")(privacy)


def privacy(
    method: Name,
    rounds: Rounds,
    noise: NoiseLevel = None,
    epsilon: Epsilon = None,
    delta: Delta = 1e-5,
    as_json: Json = False,
) -> None:
    """`fedgsca privacy`."""
    from fedgsca.privacy.accountant import epsilon as epsilon_of
    from fedgsca.privacy.accountant import noise_for

    kind = find_method(method)
    _check_protectable(kind.name)
    _check_numbers(noise, epsilon, delta)
    if noise is None:
        noise = noise_for(epsilon or 0.0, kind.uploads, rounds, delta)
    spent_epsilon = epsilon_of(noise, kind.uploads, rounds, delta)
    if as_json:
        guarantee = {"method": kind.name, "rounds": rounds, "noise": noise, "delta": delta}
        print_json({**guarantee, "epsilon": spent_epsilon})
        return
    print_line(
        f"{kind.name}, {plural(rounds, 'round')}, noise {noise:g}: epsilon {spent_epsilon:.3g}"
        f" at delta {delta:g}, for a site as a whole"
    )
    print_line(
        "in a configuration: privacy.clip (any), privacy.noise, privacy.delta",
        "dim",
    )


def _check_protectable(name: str) -> None:
    """Refuse a method that sends numbers which cannot be protected."""
    from fedgsca.methods.base import load_methods
    from fedgsca.wire import unprotected

    unprotected_extras = {}
    for other_name, method in load_methods().items():
        unprotected_extras[other_name] = unprotected(method.uploads)
    if unprotected_extras[name]:
        protectable = [key for key, extras in unprotected_extras.items() if not extras]
        raise ConfigError(
            "privacy.method-cannot-be-protected",
            f"{name} cannot run under privacy: it needs {', '.join(unprotected_extras[name])}"
            " without noise",
            fix=f"use one of: {', '.join(protectable)}",
        )


def _check_numbers(noise: float | None, epsilon: float | None, delta: float) -> None:
    has_one = (noise is None) != (epsilon is None)
    if not has_one or not 0 < (noise or epsilon or 0.0) < math.inf or not 0 < delta < 1:
        raise ConfigError(
            "privacy.invalid-budget",
            "privacy needs either --noise or --epsilon, above 0, and a --delta between 0 and 1",
            fix="for example, use --epsilon 8",
        )
