"""Options that several commands share, and how they become a configuration."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgsca.engine.base import load_engines

if TYPE_CHECKING:
    from fedgsca.config import Config, Tree

_WHAT, _HOW = "Experiment", "Configuration"

Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="synthetic, FILE.npz, FOLDER or kind:PATH (see `fedgsca data list`)",
        rich_help_panel=_WHAT,
    ),
]
Method = Annotated[
    str | None,
    typer.Option("--method", help="see `fedgsca methods`; default fedgsca", rich_help_panel=_WHAT),
]
Noise = Annotated[
    str | None,
    typer.Option(
        "--noise",
        help="label noise to inject: S40, or one part per site: 0-S40-P20-C20",
        rich_help_panel=_WHAT,
    ),
]
Rounds = Annotated[
    int | None, typer.Option("--rounds", help="communication rounds", rich_help_panel=_WHAT)
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="same seed, same bytes; default 0", rich_help_panel=_WHAT),
]
Sites = Annotated[
    int | None,
    typer.Option("--sites", help="number of hospitals; default 4", rich_help_panel=_WHAT),
]
Partition = Annotated[
    str | None,
    typer.Option(
        "--partition", help="stratified, dirichlet, group or column", rich_help_panel=_WHAT
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        "--labels", help="csv (file,label) of corrected training labels", rich_help_panel=_WHAT
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", help="cnn, resnet18, resnet50, efficientnet-lite0, ...", rich_help_panel=_WHAT
    ),
]
Frozen = Annotated[
    bool,
    typer.Option(
        "--frozen",
        help="train and send only the head, on features computed once",
        rich_help_panel=_WHAT,
    ),
]
SkipUnreadable = Annotated[
    bool,
    typer.Option(
        "--skip-unreadable", help="leave out images that cannot be decoded", rich_help_panel=_WHAT
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="TOML file", rich_help_panel=_HOW)
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="section.key=value, repeatable; beats the file",
        metavar="KEY=VALUE",
        rich_help_panel=_HOW,
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        help="default (our reading of the paper) or paper (literal)",
        rich_help_panel=_HOW,
    ),
]
Jobs = Annotated[
    int, typer.Option("--jobs", min=1, help="worker processes; the result does not depend on it")
]
Carrier = Annotated[
    str,
    typer.Option(
        "--engine",
        help="; ".join(f"{kind.name}: {kind.description}" for kind in load_engines().values()),
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="print errors only")]
Json = Annotated[
    bool, typer.Option("--json", help="print one JSON object on stdout and nothing else")
]


def flags(
    *,
    data: str | None = None,
    method: str | None = None,
    noise: str | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    sites: int | None = None,
    partition: str | None = None,
    labels: str | None = None,
    model: str | None = None,
    frozen: bool = False,
    skip_unreadable: bool = False,
    preset: str | None = None,
) -> dict[str, Any]:
    """Flags under the names of the configuration they set; those not given are None."""
    return {
        "data__source": data and _one_spelling(data),
        "method": method,
        "noise__spec": noise,
        "train__rounds": rounds,
        "seed": seed,
        "data__sites": sites,
        "data__partition": partition,
        "data__labels": labels,
        "model__name": model,
        "model__frozen": frozen or None,
        "data__skip_unreadable": skip_unreadable or None,
        "preset": preset,
    }


def _one_spelling(source: str) -> str:
    """A folder is the same with and without a slash at its end; `/` alone is one."""
    return re.sub(r"(?<=[^/:])/+$", "", source)


def make_config(file: Path | None, sets: Sequence[str] | None, **given: Any) -> Config:
    """File, then --set, then flags."""
    from fedgsca.config import load_config
    from fedgsca.noise import parse_noise

    made = load_config(file, sets or (), **flags(**given))
    # a typo is told before any data is read; with partition column only the data knows how many sites there are
    parse_noise(
        made.noise.spec,
        made.noise.spec.count("-") + 1 if made.data.partition == "column" else made.data.sites,
    )
    return made


def make_tree(file: Path | None, sets: Sequence[str] | None, **given: Any) -> Tree:
    """The same before it is checked, for commands that build several configurations from it."""
    from fedgsca.config import merge, parse_set, read_toml

    tree = merge(read_toml(file) if file else {}, parse_set(sets or ()))
    for key, value in flags(**given).items():
        if value is not None:
            for part in reversed(key.split("__")):
                value = {part: value}
            tree = merge(tree, value)
    return tree


def short(source: str) -> str:
    """A source as part of a folder name: data/pathmnist_small.npz -> pathmnist_small, chaoyang:/mnt/x -> chaoyang-x."""
    kind, _, rest = source.rpartition(":")
    stem = (
        Path(rest).stem
        if rest.lower().endswith(".npz")
        else Path(rest).expanduser().resolve().name
        if rest != "synthetic"
        else rest
    )
    return slug("-".join(part for part in (kind, stem) if part))


def slug(text: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", text).strip("-") or "x"
