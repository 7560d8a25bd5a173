"""`fedgsca config`: the experiment that given flags describe, every default filled in; and how it differs from a preset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgsca.cli.options import (
    ConfigFile,
    Data,
    Frozen,
    Json,
    Labels,
    Method,
    Model,
    Noise,
    Partition,
    Preset,
    Rounds,
    Seed,
    Sets,
    Sites,
    SkipUnreadable,
    make_config,
)
from fedgsca.support.console import (
    console,
    make_table,
    print_json,
    print_line,
    print_table,
    print_warning,
)

if TYPE_CHECKING:
    from fedgsca.config import Config

Diff = Annotated[
    str | None,
    typer.Option("--diff", metavar="PRESET", help="show only what differs from this preset"),
]


def add(app: typer.Typer) -> None:
    app.command(
        "config",
        help="Print the resolved configuration as TOML, or its difference to a preset.",
        rich_help_panel="Understand",
    )(config)


def config(
    data: Data = None,
    method: Method = None,
    noise: Noise = None,
    rounds: Rounds = None,
    seed: Seed = None,
    sites: Sites = None,
    partition: Partition = None,
    labels: Labels = None,
    model: Model = None,
    frozen: Frozen = False,
    skip_unreadable: SkipUnreadable = False,
    config: ConfigFile = None,
    sets: Sets = None,
    preset: Preset = None,
    diff: Diff = None,
    json: Json = False,
) -> None:
    from fedgsca.config import to_toml

    made = make_config(
        config, sets, data=data, method=method, noise=noise, rounds=rounds, seed=seed, sites=sites, partition=partition,
        labels=labels, model=model, frozen=frozen, skip_unreadable=skip_unreadable, preset=preset,
    )  # fmt: skip
    if diff is None:
        if json:
            print_json(made.to_tree())
        else:
            typer.echo(to_toml(made), nl=False)
        return
    changed = against_preset(made, diff)
    if json:
        print_json([{"key": key, "here": mine, diff: theirs} for key, mine, theirs in changed])
    elif changed:
        print_table(_table(changed, "here", diff))
    else:
        print_line(f"the same as preset {diff}")


def against_preset(config: Config, preset: str) -> list[tuple[str, Any, Any]]:
    """What differs from the pure preset for the same data, noise, model and method."""
    from fedgsca.config import build, differences

    kept = config.to_tree()
    frame = {name: kept[name] for name in ("seed", "method", "data", "noise")}
    model = {
        "model": {
            name: kept["model"][name]
            for name in ("name", "weights", "frozen", "feature_size")
            if name in kept["model"]
        }
    }
    return [
        row
        for row in differences(config, build({**frame, **model, "preset": preset}))
        if row[0] != "preset"
    ]


def _table(changed: list[tuple[str, Any, Any]], mine: str, theirs: str) -> Any:
    return make_table(
        ["key", mine, theirs], [[key, _value(a), _value(b)] for key, a, b in changed], text_columns=3
    )


def _value(value: Any) -> str:
    return "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def explain_preset(config: Config) -> None:
    """Whoever leaves the default preset is told what that changes, and that the literal equations are known to collapse."""
    if config.preset == "default":
        return
    changed = against_preset(config, "default")
    console(stderr=True).print(_table(changed, f"preset {config.preset}", "default"))
    if config.preset == "paper" and any(
        key.startswith(f"{config.method}.") for key, _, _ in changed
    ):
        print_warning(
            "preset paper takes the equations literally: no warm-up, no variance floor, no monotone posterior, no guard. "
            "Networks from scratch do badly with it; docs/fedgsca.md says why."
        )
