"""What a person sees when a run has ended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from fedgsca.support.console import print_line
from fedgsca.support.text import NBSP, duration, natural_key, number, percent, plural, size_text

if TYPE_CHECKING:
    from fedgsca.config import Config
    from fedgsca.federation.records import RunResult, Setup
    from fedgsca.lab.table import Table

# sites that are listed one by one
MAX_ROWS = 24
# metric of a site -> heading; only those that the method reports are shown
_COLUMNS = {
    "noisy_precision": "noisy ones wrong",
    "noisy_recall": "wrong found",
    "noisy_auroc": "AUROC",
    "pseudo_count": "pseudo-labels",
    "pseudo_accuracy": "of them correct",
    "label_accuracy_before": "labels correct before",
    "label_accuracy_after": "after",
}


def show_run(
    out: Path, config: Config, result: RunResult, command_seconds: float | None = None
) -> None:
    """Scores, the sites with the quality of their label decisions, time and traffic.

    `command_seconds` is how long the command has taken, in seconds; None: it did not train.
    """
    print_line(
        f"\n{result.method} on {result.data}, noise {result.noise}, seed {result.seed},"
        f" {plural(result.rounds, 'round')}",
        "bold",
    )
    _show_scores(result)
    from fedgsca.federation.run_folder import read_setup
    from fedgsca.lab.report.run_facts import grade_kappa
    from fedgsca.lab.table import print_tables

    setup = read_setup(out)
    kappa = grade_kappa(setup, result.last.confusion)
    if kappa is not None:
        print_line(f"quadratic kappa {kappa:.2f} in the last round: the classes are grades")
    _show_previous_run(out, setup)
    print_tables([_site_table(out, setup)])
    _show_selection(out, config)
    _show_events(out)
    _show_distant_sites(out)
    show_participation(out)
    seconds = result.seconds
    print_line(f"time    {_time_text(seconds.total, seconds.per_round, command_seconds)}")
    down = size_text(result.bytes_per_round.down)
    up = size_text(result.bytes_per_round.up)
    print_line(f"sent    {down} to the sites and {up} back, each round")
    if result.privacy is not None:
        budget = f"epsilon {result.privacy.epsilon:.3g} at delta {result.privacy.delta:g}"
        print_line(f"privacy {budget} for each site as a whole;")
        print_line("        in a simulation the noise comes from the public seed: no protection")
    print_line(f"folder  {out}")


def _time_text(rounds: float, per_round: float, command_seconds: float | None) -> str:
    """The time that passed, with the part of it that is not rounds: reading images, features."""
    pace = f"{duration(per_round)} a round"
    if command_seconds is None:
        return f"{duration(rounds)}, {pace}"
    if command_seconds < rounds:  # an interrupted run that was continued
        return f"{duration(command_seconds)} now, {duration(rounds)} for all rounds, {pace}"
    return f"{duration(command_seconds)}: {duration(rounds)} for the rounds, {pace}"


def _show_scores(result: RunResult) -> None:
    num_last = min(5, result.rounds)
    scores = f"macro F1 {result.f1:.1f}"
    if num_last > 1:
        scores += (
            f"   recall {result.recall:.1f}   precision {result.precision:.1f}"
            f"   (mean of the last {num_last} rounds)"
        )
    print_line(scores)
    best = result.best
    print_line(f"best {best.f1:.1f} after round {best.round + 1}, last {result.last.f1:.1f}")
    _show_statistics(result)
    if result.unseen is not None:
        print_line(
            f"expected F1 {result.unseen.last:.1f} in the last rounds, from held-out images without"
            f" a true label; best until round {result.unseen.round + 1}"
            f" ({result.unseen.expected_f1:.1f})"
        )


def _show_statistics(result: RunResult) -> None:
    """The last round's model with its interval; runs of older versions have none."""
    from fedgsca.lab.report.number_text import bounds_text

    statistics = result.statistics
    if statistics is None:
        return
    parts = [f"last round's F1 {statistics.f1.value:.1f}"]
    if statistics.f1.low is not None:
        parts[0] += f" (95 % interval {bounds_text(statistics.f1)}, by {statistics.unit})"
    if statistics.auroc is not None:
        parts.append(f"AUROC {statistics.auroc.value:.1f}")
    if statistics.average_precision is not None:
        parts.append(f"average precision {statistics.average_precision.value:.1f}")
    if statistics.calibration is not None:
        parts.append(f"calibration error {statistics.calibration.ece:.1f}")
    print_line("   ".join(parts).replace(NBSP, " "))


def _show_selection(out: Path, config: Config) -> None:
    """What touched the result, and the share of labels that were not trained on as given."""
    from fedgsca.lab.report.run_facts import result_notes, unused_labels
    from fedgsca.lab.report.run_page import idle_selector
    from fedgsca.lab.report.run_reader import read_run

    run = read_run(out, with_losses=False)
    notes = result_notes(config, run.metrics)
    print_line(f"notes   {'; '.join(notes)}")
    text = idle_selector(run)
    if text:
        print_line(text, "yellow")
    share = unused_labels(run.metrics, run.settings.noise_level)
    if share is not None:
        print_line(
            f"labels  {percent(share)} not trained on as given; list them: fedgsca audit {out}"
        )


def _show_events(out: Path) -> None:
    """How often something unusual happened that the method declares."""
    from fedgsca.lab.report.run_facts import event_rounds, method_events
    from fedgsca.lab.report.run_reader import read_run

    run = read_run(out, with_losses=False)
    for event, clause in method_events(run).items():
        count = sum(len(rounds) for rounds in event_rounds(run, event).values())
        if count:
            print_line(f"{clause} {plural(count, 'time')} (once per site and round)", "yellow")


def _show_distant_sites(out: Path) -> None:
    """Once more, for the message may have passed by during a long run."""
    from fedgsca.federation.filters.distance import DISTANT_TEXT
    from fedgsca.lab.report.run_facts import distant_rounds
    from fedgsca.lab.report.run_reader import read_run

    for site in sorted(distant_rounds(read_run(out, with_losses=False))):
        print_line(f"far     {site}: {DISTANT_TEXT}", "yellow")


def show_participation(out: Path) -> None:
    """Sites whose updates were left out, and sites that never contributed; usually nothing."""
    from fedgsca.lab.report.run_page import absence_sentence, refusal_subject
    from fedgsca.lab.report.run_reader import read_run

    run = read_run(out, with_losses=False)
    subject = refusal_subject(run)
    if subject:
        print_line(f"left out {subject}; the reasons: fedgsca report {out}", "yellow")
    text = absence_sentence(run)
    if text:
        print_line(text, "yellow")


def _show_previous_run(out: Path, setup: Setup) -> None:
    """For a run on corrected labels: the corrections, and their effect if there is a clear one."""
    from fedgsca.lab.report.previous_run import read_difference
    from fedgsca.lab.statistic import describe

    review = setup.labels.review if setup.labels else None
    previous = review.previous_run if review else None
    if review is None or previous is None or math.isnan(previous.f1):
        return
    num_changed = (review.counts or {}).get("changed", 0)
    reviewers = ", ".join(review.reviewers or ())
    print_line(f"labels  {plural(num_changed, 'label')} corrected by {reviewers}")
    difference = read_difference(out)
    if difference is not None:
        print_line(f"effect  {describe(difference, 'this run', difference.reference)}")


def _site_table(out: Path, setup: Setup) -> Table:
    """One row per site: its labels, and the method's decisions about them in the last round.

    Only simulations know the truth that these decisions are compared with.
    """
    from fedgsca.lab.report.run_facts import unused_shares
    from fedgsca.lab.report.run_reader import read_run
    from fedgsca.lab.table import Table

    run = read_run(out, with_losses=False)
    sites = run.metrics[-1].sites if run.metrics else {}
    shares = unused_shares(run.metrics, run.settings.noise_level)
    columns = []
    for name in _COLUMNS:
        if any(name in site.values for site in sites.values()):
            columns.append(name)
    if len(setup.sites) > MAX_ROWS:
        return _noise_table(setup, shares)
    rows = []
    for name, site in sorted(setup.sites.items(), key=lambda item: natural_key(item[0])):
        wrong_share = site.realised_noise.rate if site.realised_noise else None
        cells = [name, site.noise or "", str(site.num_samples), percent(wrong_share)]
        if shares:
            cells.append(percent(shares.get(name)))
        for column in columns:
            value = sites[name].number(column) if name in sites else None
            cells.append(_metric_text(column, value))
        rows.append(cells)
    head = ["site", "noise", "images", "labels wrong"]
    if shares:
        head.append("labels not trained on as given")
    return Table("", [*head, *(_COLUMNS[name] for name in columns)], rows, words=(1,))


def _noise_table(setup: Setup, shares: Mapping[str, float]) -> Table:
    """The same for many sites: one row per kind of noise; the report has all sites."""
    from fedgsca.lab.table import Table

    groups: dict[str, list[str]] = {}
    for name, site in setup.sites.items():
        groups.setdefault(site.noise or "", []).append(name)
    rows = []
    for noise, names in groups.items():
        members = [setup.sites[name] for name in names]
        rates = [one.realised_noise.rate or 0.0 for one in members if one.realised_noise]
        sizes = [one.num_samples or 0 for one in members]
        own_shares = [shares[name] for name in names if name in shares]
        cells = [noise, str(len(names)), f"{min(sizes)} to {max(sizes)}"]
        cells += [percent(fmean(values) if values else None) for values in (rates, own_shares)]
        rows.append(cells)
    head = ["noise", "sites", "images each", "labels wrong", "not trained on as given"]
    return Table("", head, rows, note=f"{len(setup.sites)} sites; the report has one row for each")


def _metric_text(column: str, value: float | None) -> str:
    if column == "pseudo_count":
        return number(value, 0)
    if column == "noisy_auroc":
        return number(value, 3)
    return percent(value)
