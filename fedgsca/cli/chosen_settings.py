"""The settings that the data decides, said before a run starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedgsca.support.console import print_note

if TYPE_CHECKING:
    from fedgsca.config import Config, Tree
    from fedgsca.federation.choose_settings import CompleteConfig


def complete_config(config: Config, *, quiet: bool) -> Config:
    """The experiment with what the data decides; the choices are printed with their reasons."""
    return _complete(config, (), quiet=quiet).config


def complete_tree(tree: Tree, noises: tuple[str, ...] = (), *, quiet: bool) -> Tree:
    """The same for the common settings of several experiments, which differ in their noise."""
    from fedgsca.config import build, merge

    return merge(_complete(build(tree), noises, quiet=quiet).choices, tree)


def _complete(config: Config, noises: tuple[str, ...], *, quiet: bool) -> CompleteConfig:
    from fedgsca.federation.choose_settings import complete
    from fedgsca.federation.progress import display

    with display(quiet=quiet):
        result = complete(config, noises)
    for reason in () if quiet else result.reasons:
        print_note(reason, None)
    return result


def check_sites(configs: Sequence[Config], *, quiet: bool) -> None:
    """Report a number of sites that the data does not allow, before the first run starts."""
    from fedgsca.federation.progress import display
    from fedgsca.federation.simulation import check_divisions

    with display(quiet=quiet):
        check_divisions(configs)


def announce(configs: Sequence[Config]) -> None:
    """Print what is trained from which weights."""
    from fedgsca.federation.choose_settings import describe_model
    from fedgsca.federation.data_source import load_table
    from fedgsca.federation.progress import display

    with display(quiet=False):
        table = load_table(configs[0])
    for config in {config.model: config for config in reversed(configs)}.values():
        for text in describe_model(config, table.images.shape[1]):
            print_note(text, None)
