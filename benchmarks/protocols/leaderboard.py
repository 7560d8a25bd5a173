"""The leaderboard: one table per protocol from submission files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.protocols.check_submission import check_submission
from benchmarks.protocols.protocol import PROTOCOLS
from benchmarks.protocols.submission import Submission, read_submission
from fedgsca.errors import RunFolderError
from fedgsca.lab.table import Cell, Table, to_csv, to_markdown
from fedgsca.support.files import write_atomic
from fedgsca.support.text import plural, size_text


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
            fix="give files, or folders with files, that a protocol has written",
        )
    return [read_submission(file) for file in files]


def write_leaderboard(submissions: Sequence[Submission], path: Path) -> list[str]:
    """Write the page as Markdown, or as csv if its name ends in .csv.

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
    tables = make_tables(valid)
    text = to_csv(tables) if path.suffix == ".csv" else to_markdown(tables)
    write_atomic(path, text.encode())
    return rejections


def make_tables(submissions: Sequence[Submission]) -> list[Table]:
    """One table per protocol, best first."""
    tables = []
    for protocol in PROTOCOLS.values():
        group = [item for item in submissions if item.protocol.name == protocol.name]
        if not group:
            continue
        rows = [_row(item) for item in sorted(group, key=lambda item: -item.f1)]
        head = ["method", "macro F1", "per seed", "setting", "validation F1", "sent/round"]
        note = (
            f"{protocol.title}. Noise {protocol.noise}, {plural(len(protocol.seeds), 'seed')}, "
            f"{protocol.tree['train']['rounds']} rounds; the setting is the best of "
            f"{plural(len(protocol.candidates), 'validation run')}. Digest of the protocol: "
            f"{protocol.digest()[:16]}."
        )
        tables.append(Table(protocol.label, head, rows, note=note))
    return tables


def _row(submission: Submission) -> list[str | Cell]:
    validation = max(trial.val_f1 for trial in submission.validation)
    setting = ", ".join(f"{key} {value}" for key, value in submission.chosen_setting.items())
    return [
        submission.title,
        f"{submission.f1:.1f} ± {submission.f1_std:.1f}",
        ", ".join(f"{test_run.f1:.1f}" for test_run in submission.runs),
        setting,
        f"{validation:.1f}",
        size_text(fmean(test_run.bytes_up for test_run in submission.runs)),
    ]
