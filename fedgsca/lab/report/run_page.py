"""The page of one run. Its sections are the modules of fedgsca/lab/report/run_sections."""

from __future__ import annotations

from statistics import median

from fedgsca.federation.round_status import read_status
from fedgsca.lab.report.elements import Page, Tile
from fedgsca.lab.report.number_text import bounds_text, percent_text, score_number, seconds_text
from fedgsca.lab.report.page_sections import RUN_SECTIONS, build_sections
from fedgsca.lab.report.run_facts import (
    best_round,
    headline_scores,
    method_title,
    round_seconds,
    unused_labels,
    uses_site_data,
    wrong_share,
)
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.lab.report.sentences import absence_note, describe_run
from fedgsca.metrics import HEADLINE_ROUNDS
from fedgsca.support.text import NBSP, duration, one_line, plural


def build_run_page(run: LoadedRun) -> Page:
    """The page of a run, finished or not."""
    title = method_title(run.method)
    if run.data_name:
        title += f" on {run.data_name}"
    banner = ""
    if run.result is None:
        banner = f"Unfinished: {len(run.metrics)} of {run.num_rounds} rounds{_state_text(run)}"
    return Page(
        title=title,
        subtitle=_subtitle(run),
        lead=describe_run(run),
        tiles=_tiles(run),
        sections=build_sections(RUN_SECTIONS, run),
        banner=banner,
        footer=f"fedgsca {run.setup.version} · {run.path.resolve().name}",
    )


def _state_text(run: LoadedRun) -> str:
    """What the run says about itself at this moment, and how long it will take."""
    text = ""
    status = read_status(run.path)
    if status is not None and status.state:
        text = f"; {one_line(status.state, 200)}"
    remaining_rounds = run.num_rounds - len(run.metrics)
    if run.timing and remaining_rounds > 0:
        seconds = median(record.total for record in run.timing[-HEADLINE_ROUNDS:])
        text += f"; about {duration(remaining_rounds * seconds)} left at this pace"
    return text


def _subtitle(run: LoadedRun) -> str:
    settings = run.settings
    labels = "labels of the sites" if uses_site_data(run) else f"noise {settings.noise}"
    parts = [
        plural(len(run.sites), "site"),
        labels,
        plural(run.num_rounds, "round"),
        f"seed {settings.get_text('seed', '0')}",
    ]
    model = settings.get_text("model.name")
    if model:
        frozen = ", frozen backbone" if settings.values.get("model.frozen") else ""
        parts.append(f"{model}{frozen}")
    return " · ".join(parts)


def _tiles(run: LoadedRun) -> list[Tile]:
    return [*_score_tiles(run), *_label_tiles(run), *_time_tiles(run)]


def _score_tiles(run: LoadedRun) -> list[Tile]:
    tiles = []
    scores = headline_scores(run)
    if scores.f1 is not None:
        note = "one round"
        if scores.num_rounds > 1:
            note = f"mean of the last {scores.num_rounds} rounds"
        tiles.append(Tile("Macro F1", score_number(scores.f1), "%", note, strong=True))
    best = best_round(run)
    if best is not None:
        last = run.test_rounds[-1]
        note = f"round {best.round + 1}; last round {score_number(last.f1)}"
        tiles.append(Tile("Best round", score_number(best.f1), "%", note))
        note = f"precision {score_number(scores.precision)} %"
        tiles.append(Tile("Recall", score_number(scores.recall), "%", note))
    statistics = None if run.result is None else run.result.statistics
    if statistics is not None and statistics.auroc is not None:
        interval = statistics.auroc
        note = "" if interval.low is None else f"95 % interval {bounds_text(interval)}"
        tiles.append(Tile("AUROC", score_number(interval.value), "%", note))
    return tiles


def _label_tiles(run: LoadedRun) -> list[Tile]:
    wrong = wrong_share(run)
    share = unused_labels(run.metrics, run.settings.noise_level)
    if share is not None:
        note = "in the last round" if wrong is None else f"{percent_text(wrong)} are wrong"
        return [Tile("Labels not trained on as given", f"{100 * share:.0f}", "%", note)]
    if wrong:
        return [Tile("Wrong labels", f"{100 * wrong:.0f}", "%", "of the training labels")]
    return []


def _time_tiles(run: LoadedRun) -> list[Tile]:
    if not run.timing:
        return []
    per_round = median(round_seconds(run))
    amount, unit = seconds_text(per_round).split(NBSP)
    return [Tile("Time per round", amount, unit, absence_note(run))]
