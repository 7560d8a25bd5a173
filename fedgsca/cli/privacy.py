"""`fedgsca privacy METHOD`: how much noise for which promise, before a run."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from fedgsca.cli.methods import find
from fedgsca.cli.options import Json
from fedgsca.errors import ConfigError
from fedgsca.support.console import print_json, print_line

Name = Annotated[str, typer.Argument(metavar="METHOD", help="see `fedgsca methods`")]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="rounds that a site answers")]
Noise = Annotated[
    float | None, typer.Option("--noise", help="privacy.noise: which epsilon does it give?")
]
Epsilon = Annotated[float | None, typer.Option("--epsilon", help="which noise does it need?")]
Delta = Annotated[float, typer.Option("--delta", help="privacy.delta")]


def add(app: typer.Typer) -> None:
    text = "Tell the epsilon of a noise, or the noise for an epsilon."
    app.command("privacy", help=text, rich_help_panel="Understand")(privacy)


def privacy(
    method: Name,
    rounds: Rounds,
    noise: Noise = None,
    epsilon: Epsilon = None,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    from fedgsca.methods.base import load_methods
    from fedgsca.privacy.accountant import epsilon as epsilon_of
    from fedgsca.privacy.accountant import noise_for
    from fedgsca.wire import unprotected

    kind = find(method)
    bare, able = (
        unprotected(kind.uploads),
        [name for name, each in load_methods().items() if not unprotected(each.uploads)],
    )
    if bare:
        raise ConfigError(
            "todo.privacy-1",
            f"{kind.name} cannot run under privacy: it needs {', '.join(bare)} as they are",
            fix=f"take {', '.join(able)}",
        )
    if (
        (noise is None) == (epsilon is None)
        or not 0 < (noise or epsilon or 0.0) < math.inf
        or not 0 < delta < 1
    ):
        raise ConfigError(
            "todo.privacy-2",
            "give --noise or --epsilon, above 0, and a --delta between 0 and 1",
            fix="for example --epsilon 8",
        )
    if noise is None:
        noise = noise_for(epsilon or 0.0, kind.uploads, rounds, delta)
    found = {"method": kind.name, "rounds": rounds, "noise": noise, "delta": delta}
    found["epsilon"] = epsilon_of(noise, kind.uploads, rounds, delta)
    if json:
        print_json(found)
        return
    print_line(
        f"{kind.name}, {rounds} rounds, noise {noise:g}: epsilon {found['epsilon']:.3g} at delta {delta:g}, for a site as a whole"
    )
    print_line(
        "in a configuration: privacy.clip (any), privacy.noise, privacy.delta; see docs/privacy.md",
        "dim",
    )
