"""Options that several commands share, and how they become a configuration."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import click
import typer
from typer.core import TyperCommand

from fedgsca.support.text import slug

if TYPE_CHECKING:
    from fedgsca.config import Config, Tree

_EXPERIMENT_PANEL = "Experiment"
_CONFIG_PANEL = "Configuration"

Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="synthetic, FILE.npz, FOLDER or kind:PATH (see `fedgsca data list`)",
        rich_help_panel=_EXPERIMENT_PANEL,
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method", help="see `fedgsca methods`; default fedgsca", rich_help_panel=_EXPERIMENT_PANEL
    ),
]
Noise = Annotated[
    str | None,
    typer.Option(
        "--noise",
        help="label noise to inject: S40, or one part per site: 0-S40-P20-C20",
        rich_help_panel=_EXPERIMENT_PANEL,
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option("--rounds", help="communication rounds", rich_help_panel=_EXPERIMENT_PANEL),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed", help="same seed, same bytes; default 0", rich_help_panel=_EXPERIMENT_PANEL
    ),
]
Sites = Annotated[
    int | None,
    typer.Option(
        "--sites", help="number of hospitals; default 4", rich_help_panel=_EXPERIMENT_PANEL
    ),
]
Partition = Annotated[
    str | None,
    typer.Option(
        "--partition",
        help="stratified, dirichlet, missing, group or column; default: the site column, else whole"
        " groups (patients), else stratified",
        rich_help_panel=_EXPERIMENT_PANEL,
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        "--labels",
        help="csv (file,label) of corrected training labels",
        rich_help_panel=_EXPERIMENT_PANEL,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="cnn, resnet18, resnet50, densenet121, vit-b16, efficientnet-lite0, ...;"
        " your own: package.module:function, or features",
        rich_help_panel=_EXPERIMENT_PANEL,
    ),
]
Features = Annotated[
    str | None,
    typer.Option(
        "--features",
        help="npz with your own features of the images (arrays features and files)",
        rich_help_panel=_EXPERIMENT_PANEL,
    ),
]
Frozen = Annotated[
    bool,
    typer.Option(
        "--frozen",
        help="train and send only the head, on features computed once",
        rich_help_panel=_EXPERIMENT_PANEL,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="auto, cpu, cuda, cuda:1 or mps; default auto",
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
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="TOML file", rich_help_panel=_CONFIG_PANEL)
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="section.key=value, repeatable; beats the file",
        metavar="KEY=VALUE",
        rich_help_panel=_CONFIG_PANEL,
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        help="default (our reading of the paper) or paper (literal)",
        rich_help_panel=_CONFIG_PANEL,
    ),
]
AuditLabels = Annotated[
    bool,
    typer.Option(
        "--audit",
        help="train evidence heads beside the method, for `fedgsca audit`; fedgsca-e has them",
        rich_help_panel=_EXPERIMENT_PANEL,
    ),
]
Jobs = Annotated[
    int, typer.Option("--jobs", min=1, help="worker processes; the result does not depend on it")
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="how messages reach the sites: local, flower-sim (Flower's simulation on Ray)"
        " or an engine of a plugin; same result",
    ),
]
Track = Annotated[
    str | None,
    typer.Option(
        "--track",
        help="record the run with tensorboard, mlflow (local files), mlflow:ADDRESS, or several"
        " with commas; the run is the same",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="print errors only")]
Json = Annotated[
    bool, typer.Option("--json", help="print one JSON object on stdout and nothing else")
]


@dataclass(frozen=True)
class ExperimentFlags:
    """The flags that describe an experiment; None or False: not given."""

    data: str | None = None
    method: str | None = None
    noise: str | None = None
    rounds: int | None = None
    seed: int | None = None
    sites: int | None = None
    partition: str | None = None
    labels: str | None = None
    model: str | None = None
    frozen: bool = False
    features: str | None = None
    device: str | None = None
    skip_unreadable: bool = False
    audit: bool = False
    preset: str | None = None
    track: str | None = None

    def overrides(self) -> dict[str, Any]:
        """The flags under the names that load_config takes; those not given are None."""
        return {
            "data__source": self.data and strip_slash(self.data),
            "method": self.method,
            "noise__spec": self.noise,
            "train__rounds": self.rounds,
            "seed": self.seed,
            "data__sites": self.sites,
            "data__partition": self.partition,
            "data__labels": self.labels,
            "model__name": self.model,
            "model__frozen": self.frozen or None,
            "data__features": self.features,
            "train__device": self.device,
            "data__skip_unreadable": self.skip_unreadable or None,
            "audit__enabled": self.audit or None,
            "preset": self.preset,
            "track": self.track,
        }

    def make_config(self, config_file: Path | None, sets: Sequence[str] | None) -> Config:
        """The configuration: the file, then --set, then the flags."""
        from fedgsca.config import load_config
        from fedgsca.noise import parse_noise

        config = load_config(config_file, sets or (), **self.overrides())
        # Report a typo before any data is read. With partition column only the data knows how
        # many sites there are.
        num_sites = config.data.sites
        if config.data.partition == "column":
            num_sites = config.noise.spec.count("-") + 1
        parse_noise(config.noise.spec, num_sites)
        return config

    def make_tree(self, config_file: Path | None, sets: Sequence[str] | None) -> Tree:
        """The same before it is checked, for commands that build several configurations."""
        from fedgsca.config import merge, nest, parse_set, read_toml

        tree = read_toml(config_file) if config_file else {}
        tree = merge(tree, parse_set(sets or ()))
        for key, value in self.overrides().items():
            if value is not None:
                tree = merge(tree, nest(key.split("__"), value))
        return tree


def strip_slash(source: str) -> str:
    """A folder is the same with and without a slash at its end; `/` alone stays."""
    return re.sub(r"(?<=[^/:])/+$", "", source)


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
