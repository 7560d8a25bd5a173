"""What a person sees when a run has ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgsca.support.console import make_table, print_line, print_table
from fedgsca.support.text import duration, number, percent, size_text

if TYPE_CHECKING:
    from fedgsca.experiment.records import RunResult

# metric of a site -> heading; only those that the method reports are shown
_COLUMNS = {
    "noisy_precision": "flags right",
    "noisy_recall": "wrong found",
    "noisy_auroc": "AUROC",
    "pseudo_count": "pseudo-labels",
    "pseudo_accuracy": "of them right",
    "label_accuracy_before": "labels right before",
    "label_accuracy_after": "after",
}


def show_run(out: Path, result: RunResult) -> None:
    """Scores, the sites with what was found of their wrong labels, time and traffic."""
    print_line(
        f"\n{result.method} on {result.data}, noise {result.noise}, seed {result.seed}, {result.rounds} rounds",
        "bold",
    )
    tail = min(5, result.rounds)
    print_line(
        f"macro F1 {result.f1:.1f}   recall {result.recall:.1f}   precision {result.precision:.1f}"
        f"   (mean of the last {tail} rounds)" if tail > 1 else f"macro F1 {result.f1:.1f}"
    )  # fmt: skip
    best, last = result.best, result.last
    print_line(f"best {best.f1:.1f} after round {best.round + 1}, last {last.f1:.1f}")
    setup = json.loads((out / "setup.json").read_bytes())
    _before(setup, result)
    print_table(_sites(out, setup))
    _selector(out)
    seconds, sent = result.seconds, result.bytes_per_round
    guarded = result.guard_events
    if guarded:
        print_line(f"the collapse guard stepped in {guarded} times (once per site and round)", "yellow")
    print_line(f"time    {duration(seconds.total)}, {duration(seconds.per_round)} a round")
    print_line(
        f"sent    {size_text(sent.down)} to the sites and {size_text(sent.up)} back, each round"
    )
    if result.privacy is not None:
        print_line(
            f"privacy epsilon {result.privacy.epsilon:.3g} at delta {result.privacy.delta:g} for each site as a whole;"
        )
        print_line("        in a simulation the noise comes from the public seed and protects nobody")
    print_line(f"folder  {out}")


def _selector(out: Path) -> None:
    from fedgsca.report.run_reader import read_run
    from fedgsca.report.sentences import idle_selector

    idle = idle_selector(read_run(out, with_losses=False))
    if idle:
        print_line(idle, "yellow")


def _before(setup: Mapping[str, Any], result: RunResult) -> None:
    """A run with corrected labels: what was corrected, and the score of the run whose labels they were."""
    review = (setup.get("labels") or {}).get("review") or {}
    before = review.get("before") or {}
    if before.get("f1") is not None:
        from fedgsca.support.text import signed

        change = signed(result.f1 - before["f1"], 1)
        changed = (
            f"{review['counts']['changed']} labels corrected by {', '.join(review['reviewers'])}"
        )
        print_line(
            f"before  macro F1 {before['f1']:.1f} ({before['run']}), now {result.f1:.1f} ({change}); {changed}"
        )


def _sites(out: Path, setup: Mapping[str, Any]) -> Any:
    """One row per site: labels as they are, and what the method made of them in the last round (simulations know the truth)."""
    from fedgsca.experiment.run_folder import read_lines

    lines = read_lines(out / "metrics.jsonl")
    seen: Mapping[str, Mapping[str, Any]] = lines[-1]["sites"] if lines else {}
    columns = [name for name in _COLUMNS if any(name in site for site in seen.values())]
    rows = []
    for name, site in setup["sites"].items():
        wrong = site.get("realised", {}).get("rate")
        found = [_cell(column, seen.get(name, {}).get(column)) for column in columns]
        rows.append([name, site["noise"], str(site["num_samples"]), percent(wrong), *found])
    return make_table(
        ["site", "noise", "images", "labels wrong", *(_COLUMNS[column] for column in columns)],
        rows,
        text_columns=2,
    )


def _cell(column: str, value: float | None) -> str:
    if column == "pseudo_count":
        return number(value, 0)
    return number(value, 3) if column == "noisy_auroc" else percent(value)
