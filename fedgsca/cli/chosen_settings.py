"""The settings that the data decides, said before a run starts, and how long it will take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedgsca.support.console import print_note
from fedgsca.support.text import duration

if TYPE_CHECKING:
    from fedgsca.config import Config, ModelConfig, Tree
    from fedgsca.federation.choose_settings import CompleteConfig

_WORTH_SAYING = 10.0  # seconds; shorter runs are over before the estimate is read


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


def announce(configs: Sequence[Config], jobs: int = 1) -> None:
    """Print what is trained from which weights, and the estimated time of all runs."""
    from fedgsca.federation.choose_settings import describe_model
    from fedgsca.federation.data_source import load_table
    from fedgsca.federation.progress import display
    from fedgsca.federation.time_estimate import estimate_time, measure_speed

    config = configs[0]
    with display(quiet=False):
        table = load_table(config)
    estimates = []
    features = 0.0
    by_model: dict[ModelConfig, list[Config]] = {}
    for experiment in configs:
        by_model.setdefault(experiment.model, []).append(experiment)
    for experiments in by_model.values():
        speed = measure_speed(experiments[0], table)
        for text in describe_model(experiments[0], table.images.shape[1]):
            print_note(text, None)
        model_estimates = [estimate_time(one, table, speed) for one in experiments]
        features += model_estimates[0].features
        estimates += model_estimates
    rounds = sum(estimate.rounds * estimate.per_round for estimate in estimates)
    total = features + rounds / min(jobs, len(configs))
    if total < _WORTH_SAYING:
        return
    if len(configs) > 1:
        print_note(f"estimated time: about {duration(total)} for {len(configs)} runs", None)
    else:
        print_note(estimates[0].describe(), None)
