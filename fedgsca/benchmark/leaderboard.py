"""The leaderboard: one static page from submission files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedgsca.benchmark.check_submission import check_submission
from fedgsca.benchmark.protocol import PROTOCOLS, Protocol
from fedgsca.benchmark.submission import Submission, read_submission
from fedgsca.errors import RunFolderError
from fedgsca.report.elements import (
    BulletList,
    Collapsible,
    Page,
    PageSection,
    PageTable,
    TableCell,
)
from fedgsca.report.html_page import render_page
from fedgsca.report.number_text import score_number, seconds_text
from fedgsca.support.files import write_atomic
from fedgsca.support.markdown import markdown_table
from fedgsca.support.text import join_words, plural, size_text


def find_submissions(paths: Sequence[Path]) -> list[Submission]:
    """The submissions in files and folders; files of other kinds in a folder are left out."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            for name in PROTOCOLS:
                files += sorted(path.glob(f"{name}-v*.json"))
        else:
            files.append(path)
    if not files:
        raise RunFolderError(
            "benchmark.no-submissions",
            "there are no submission files",
            fix="give files, or folders with files, that `fedgsca benchmark NAME` has written",
        )
    return [read_submission(file) for file in files]


def write_leaderboard(submissions: Sequence[Submission], path: Path) -> list[str]:
    """Write the page, as Markdown if its name ends in .md and as HTML otherwise.

    Returns the submissions that were left out, with the reason.
    """
    valid: list[Submission] = []
    rejections = []
    for submission in submissions:
        problems = check_submission(submission).problems
        if problems:
            rejections.append(f"{submission.protocol.name} {submission.method}: {problems[0]}")
        else:
            valid.append(submission)
    render = markdown_tables if path.suffix == ".md" else _render_html
    text = render(valid)
    write_atomic(path, text.encode())
    return rejections


def markdown_tables(submissions: Sequence[Submission]) -> str:
    """One Markdown table per protocol, best first."""
    lines = []
    for protocol in PROTOCOLS.values():
        group = [item for item in submissions if item.protocol.name == protocol.name]
        if not group:
            continue
        header = ["method", "macro F1", "per seed", "setting", "validation F1", "sent/round"]
        rows = [score_cells(item) for item in sorted(group, key=lambda item: -item.f1)]
        lines += [f"### {protocol.label}", "", *markdown_table(header, rows, text_columns=1)]
    return "\n".join(lines)


def score_cells(submission: Submission) -> list[str]:
    """The row of a submission in a Markdown table."""
    validation = max(trial.val_f1 for trial in submission.validation)
    return [
        submission.title,
        f"{submission.f1:.1f} ± {submission.f1_std:.1f}",
        ", ".join(f"{test_run.f1:.1f}" for test_run in submission.runs),
        _setting_text(submission.chosen_setting),
        f"{validation:.1f}",
        size_text(fmean(test_run.bytes_up for test_run in submission.runs)),
    ]


def _render_html(submissions: Sequence[Submission]) -> str:
    return render_page(build_leaderboard(submissions))


def build_leaderboard(submissions: Sequence[Submission]) -> Page:
    """The page of valid submissions, one section per protocol."""
    sections = []
    for protocol in PROTOCOLS.values():
        group = [item for item in submissions if item.protocol.name == protocol.name]
        if group:
            sections.append(_section(protocol, group))
    names = join_words([protocol.label for protocol in PROTOCOLS.values()])
    return Page(
        title="Leaderboard: federated learning with wrong labels",
        subtitle=f"{plural(len(submissions), 'submission')} to {names}",
        lead=[
            "Macro F1 on clean test images, mean over three seeds of the last five rounds. Every "
            "method had the same number of validation runs to choose its setting.",
            "A difference smaller than the spread over the seeds is not a difference.",
        ],
        tiles=[],
        sections=sections,
        footer="Built by fedgsca benchmark page from submission files that passed fedgsca "
        "benchmark check.",
    )


def _section(protocol: Protocol, submissions: Sequence[Submission]) -> PageSection:
    ranking = sorted(submissions, key=lambda submission: -submission.f1)
    best = ranking[0].f1
    rows = []
    for place, submission in enumerate(ranking, start=1):
        rows.append(_row(place, submission, best))
    seed_names = [f"seed {seed}" for seed in protocol.seeds]
    table = PageTable(
        caption="",
        head=["method", "macro F1", "±", *seed_names],
        rows=rows,
        bars=[1],
        note="± is the standard deviation over the seeds.",
    )
    facts = BulletList(
        [
            f"Data: {protocol.data}.",
            f"Four sites, noise {protocol.noise}, {protocol.tree['train']['rounds']} rounds, "
            f"frozen {protocol.tree['model']['name']} features, linear head.",
            f"Seeds {join_words(list(map(str, protocol.seeds)))}; "
            f"{plural(len(protocol.candidates), 'validation run')} per method on seed "
            f"{protocol.tuning_seed}.",
            f"Digest of the protocol: {protocol.digest()[:16]}.",
        ]
    )
    return PageSection(
        id=protocol.name,
        title=f"{protocol.label}: {protocol.title}",
        intro="",
        blocks=[table, facts, _details(ranking), _validation_runs(ranking)],
    )


def _row(place: int, submission: Submission, best: float) -> list[str | TableCell]:
    score = TableCell(
        score_number(submission.f1),
        bar=submission.f1 / best if best else 0.0,
        mark="best" if place == 1 else "",
    )
    seeds = [score_number(test_run.f1) for test_run in submission.runs]
    return [submission.title, score, score_number(submission.f1_std), *seeds]


def _setting_text(setting: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in setting.items())


def _details(ranking: Sequence[Submission]) -> Collapsible:
    rows = []
    for submission in ranking:
        runs = submission.runs
        rows.append(
            [
                submission.title,
                score_number(fmean(test_run.recall for test_run in runs)),
                score_number(fmean(test_run.precision for test_run in runs)),
                _setting_text(submission.chosen_setting),
                seconds_text(fmean(test_run.seconds_per_round for test_run in runs)),
                size_text(fmean(test_run.bytes_up for test_run in runs)),
            ]
        )
    table = PageTable(
        caption="",
        head=["method", "recall", "precision", "setting", "s/round", "sent/round"],
        rows=rows,
        note="Seconds depend on the machine and its load. Sent: by all sites together.",
    )
    return Collapsible("Recall, precision, settings and cost", [table])


def _validation_runs(ranking: Sequence[Submission]) -> Collapsible:
    rows = []
    for submission in ranking:
        for trial in submission.validation:
            choice = "chosen" if trial.setting == submission.chosen_setting else ""
            setting = _setting_text(trial.setting)
            rows.append([submission.title, setting, score_number(trial.val_f1), choice])
    table = PageTable(caption="", head=["method", "setting", "validation F1", ""], rows=rows)
    return Collapsible("All validation runs", [table])
