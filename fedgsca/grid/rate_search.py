"""A search for the learning rate that needs no clean label (docs/evidence.md).

Every candidate is trained with held-out images in a run folder of its own, OUT/cells/<candidate>.
Its score is the expected macro F1 of the last five rounds: what the evidence expects of the model
on images that it was not trained on. The winner is then trained on all images by `fedgsca run`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgsca.config import Config, build, merge
from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.experiment.records import RunResult
from fedgsca.experiment.run_folder import dumps
from fedgsca.experiment.simulation import divide
from fedgsca.grid.runner import (
    GridCell,
    GridObserver,
    Results,
    check_folder,
    drop_checkpoints,
    finished_cells,
    raise_failures,
    run_cells,
)
from fedgsca.metrics import HEADLINE_ROUNDS
from fedgsca.support.files import write_atomic
from fedgsca.support.json_record import Record
from fedgsca.wire import SMALLEST_GROUP

PLAN_FILE = "search.json"
SEARCH_FILE = "tune.json"
# share of the images that the search holds out; the final run trains on all
SEARCH_HOLDOUT = 0.2
# points of expected F1 that another learning rate must be better by: less is chance
MARGIN = 1.0
# evidence is first collected after a quarter of a run at the latest, so fewer always suffice
_MAX_NEEDED_ROUNDS = 100


@dataclass(frozen=True)
class Candidate(Record):
    """One run of the search. `f1` is on the test images, for comparison; it decides nothing."""

    name: str
    method: str
    lr: float
    expected_f1: float
    f1: float


@dataclass(frozen=True)
class RateSearch(Record):
    """tune.json: all candidates, the one that was chosen, and why."""

    candidates: tuple[Candidate, ...]
    method: str
    lr: float
    reason: str


@dataclass(frozen=True)
class SearchPlan(Record):
    """search.json: what to try."""

    methods: tuple[str, ...]
    rates: tuple[float, ...]
    # the configuration that all runs share
    tree: Mapping[str, Any]
    holdout: float = SEARCH_HOLDOUT

    def defaults(self) -> dict[str, float]:
        """The configured learning rate of every method, or that of the model."""
        from fedgsca.models.build import feature_width
        from fedgsca.models.training import resolve_rate

        rates = {}
        for method in self.methods:
            config = build(merge(dict(self.tree), {"method": method}))
            width = config.model.feature_width or feature_width(config.model.name)
            rates[method] = resolve_rate(config, width, config.data.sites)
        return rates

    def cells(self) -> list[GridCell]:
        """One run per method and learning rate; the configured rate is always one of them."""
        cells = []
        for method, default in self.defaults().items():
            for lr in sorted({*self.rates, default}):
                changes = {
                    "method": method,
                    "train": {"lr": lr},
                    "evidence": {"holdout": self.holdout},
                }
                config = build(merge(dict(self.tree), changes))
                _check_scored(config)
                name = f"{method}-lr-{lr:g}"
                cells.append(GridCell(name, method, f"{lr:g}", config.seed, config))
        return cells


def read_search_plan(out: Path) -> SearchPlan | None:
    """The plan of a search's folder; None if the folder is something else."""
    path = out / PLAN_FILE
    if not path.is_file():
        return None
    try:
        return SearchPlan.from_json(json.loads(path.read_bytes()))
    except ValueError as error:
        raise RunFolderError(
            "tune.damaged-plan",
            f"{path} is damaged: {error}",
            fix="delete it and start the search again with its command; finished runs are kept",
        ) from None


def _check_scored(config: Config) -> None:
    rounds = config.evidence.collection_rounds(config.train.rounds)
    minimum = needed_rounds(config)
    if config.privacy is None and rounds and config.train.rounds < minimum:
        raise ConfigError(
            "tune.too-few-rounds",
            f"{config.train.rounds} rounds are too few for a search: the first label is judged in"
            f" round {rounds[0] + 3}, and the score is the mean of {HEADLINE_ROUNDS} rounds after"
            " that",
            fix=f"use at least --rounds {minimum}",
        )
    if config.privacy is None and rounds:
        return
    raise ConfigError(
        "tune.no-evidence",
        "a search without clean labels needs evidence heads, and they are off: they need at least"
        " six rounds and no privacy",
        fix=f"switch them on for the search with at least {needed_rounds(config)} rounds, and keep"
        " privacy for the final run",
    )


def needed_rounds(config: Config) -> int:
    """The fewest rounds with a score.

    The evidence of the first collection scores the model two rounds later, and the score is the
    mean of HEADLINE_ROUNDS rounds in a row.
    """
    for rounds in range(1, _MAX_NEEDED_ROUNDS):
        collection = config.evidence.collection_rounds(rounds)
        if collection and rounds >= collection[0] + 2 + HEADLINE_ROUNDS:
            return rounds
    return _MAX_NEEDED_ROUNDS


def check_holdout(config: Config) -> None:
    """Refuse a search in which no site holds out enough images, before anything is trained."""
    sizes = [len(rows) for rows in divide(config).rows.values()]
    share = config.evidence.holdout
    if share * max(sizes, default=0) >= SMALLEST_GROUP:
        return
    needed_images = math.ceil(SMALLEST_GROUP / share) if share > 0 else 0
    larger = f"give a site at least {needed_images} images (fewer sites), or " if share > 0 else ""
    raise ConfigError(
        "tune.small-holdout",
        f"the largest of {len(sizes)} sites has {max(sizes, default=0)} training images, and"
        f" --holdout {share:g} of them are fewer than the {SMALLEST_GROUP} that a score needs",
        fix=f"{larger}use a larger --holdout, up to 0.5",
    )


def search_rates(
    plan: SearchPlan, out: Path, observer: GridObserver, *, jobs: int = 1
) -> RateSearch:
    """Run what is not finished yet, choose, and write tune.json."""
    cells = plan.cells()
    check_folder(cells, out, marker=PLAN_FILE, kind="search")
    write_atomic(out / PLAN_FILE, dumps(plan.to_json()))
    results = finished_cells(cells, out)
    if len(results) < len(cells):
        check_holdout(cells[0].config)
    failures = run_cells(
        cells,
        out,
        observer,
        results,
        jobs=jobs,
        on_result=lambda cell: drop_checkpoints(cell, out),
    )
    raise_failures(failures, len(cells), out)
    search = choose_candidate(read_candidates(cells, results), plan.defaults())
    write_atomic(out / SEARCH_FILE, dumps(search.to_json()))
    return search


def read_candidates(cells: Sequence[GridCell], results: Results) -> list[Candidate]:
    """The scores of all runs."""
    candidates = []
    for cell in cells:
        result = results[cell.name]
        score = _score_of(result, cell.name)
        candidates.append(
            Candidate(cell.name, cell.config.method, cell.config.train.rate, score, result.f1)
        )
    return candidates


def _score_of(result: RunResult, name: str) -> float:
    if result.unseen is None:
        raise ConfigError(
            "tune.no-score",
            f"{name} has no score: in some of its last rounds no site had {SMALLEST_GROUP}"
            " held-out images with evidence about them",
            fix="use more rounds, fewer sites or a larger --holdout",
        )
    return result.unseen.last


def choose_candidate(candidates: Sequence[Candidate], defaults: dict[str, float]) -> RateSearch:
    """For each method its best rate, then the best method; the first method wins a tie.

    A rate replaces the configured one only if it is better by more than MARGIN. Between methods the
    higher score wins. The score leans towards methods that select by the same evidence, by two or
    three points, so a plain method that is ahead of them is ahead indeed.
    """
    winners = []
    for method, lr in defaults.items():
        own_candidates = [candidate for candidate in candidates if candidate.method == method]
        winners.append(_best_rate(own_candidates, lr))
    winner = max(winners, key=lambda candidate: candidate.expected_f1)
    reason = _describe_choice(winner, candidates, defaults[winner.method])
    return RateSearch(tuple(candidates), winner.method, winner.lr, reason)


def _best_rate(candidates: Sequence[Candidate], default: float) -> Candidate:
    best = max(candidates, key=lambda candidate: candidate.expected_f1)
    default_candidate = next(candidate for candidate in candidates if candidate.lr == default)
    return best if best.expected_f1 > default_candidate.expected_f1 + MARGIN else default_candidate


def _describe_choice(winner: Candidate, candidates: Sequence[Candidate], default: float) -> str:
    rivals = [item for item in candidates if item is not winner]
    if not rivals:
        return "it is the only candidate"
    rival = max(rivals, key=lambda item: item.expected_f1)
    text = (
        f"expected F1 {winner.expected_f1:.1f}; the best other candidate, {rival.name}, "
        f"has {rival.expected_f1:.1f}"
    )
    if winner.lr == default and rival.expected_f1 > winner.expected_f1:
        text += f": less than {MARGIN:g} more, so the configured learning rate stays"
    return text
