"""Progress for a person, always on stderr: bars on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedgsca.federation.base import RunObserver
from fedgsca.support.console import console, listen, print_note
from fedgsca.support.text import count, duration

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from fedgsca.federation.base import Reply
    from fedgsca.federation.records import RoundRecord
    from fedgsca.federation.simulation import Experiment

_WIDE = 110  # columns from which there is room for a longer bar and the best score
_LINE_INTERVAL = 5.0  # seconds between lines in a pipe
_FIRST_ACTIVITY_LINE = 10.0  # seconds of decoding or the like before a pipe hears of it
_ACTIVITY_INTERVAL = 60.0  # seconds between its lines
_MIN_SHARE = 0.02  # of a grid, before the remaining time is estimated


class Display:
    """One per command; it makes an observer for every run. This one shows nothing: --quiet."""

    def __init__(self, runs: int = 1) -> None:
        """`runs` is how many are still to do."""
        self.runs = runs
        # shared by runs on the same data, so that each warning is shown once
        self.shown_warnings: set[str] = set()

    def observe(self, label: str) -> RunObserver:
        """The observer of the next run."""
        return RunObserver()

    def draw(self, pace: PaceObserver, *, is_round_end: bool) -> None:
        """Show how far the run is."""

    def finish_run(self, label: str, text: str) -> None:
        """A run of several is finished; `text` is its result."""

    def print(self, text: str, style: str | None = None) -> None:
        """Print a line, above the bars if there are any."""


@contextmanager
def display(*, quiet: bool, runs: int = 1) -> Iterator[Display]:
    """The display that fits the terminal; with more than one run, a second bar counts them."""
    if quiet:
        yield Display(runs)
    elif sys.stderr.isatty():
        with _progress_bars() as bars:
            shown_bars = BarDisplay(bars, runs)
            with listen(shown_bars):
                yield shown_bars
    else:
        lines = LineDisplay(runs)
        with listen(lines):
            yield lines


class PaceObserver(RunObserver):
    """Progress of a run in rounds, and the remaining time at the speed of this session."""

    def __init__(self, label: str, display: Display) -> None:
        self.label = label
        self.display = display
        self.rounds = 0
        self.sites = 0
        self.first_round = 0
        self.round = 0
        self.replies = 0  # in the current round
        self.best = 0.0
        self.f1: float | None = None
        self.start_time = time.monotonic()

    def on_start(self, experiment: Experiment, first_round: int) -> None:
        """Show warnings about the data, and where a resumed run continues."""
        self.rounds = experiment.config.train.rounds
        self.sites = len(experiment.names)
        self.first_round = self.round = first_round
        self.start_time = time.monotonic()
        for warning in experiment.warnings:
            if warning not in self.display.shown_warnings:
                self.display.shown_warnings.add(warning)
                self.on_message(warning)
        if first_round:
            self.on_message(f"continuing after round {first_round} of {self.rounds}")
        self.display.draw(self, is_round_end=False)

    def on_history(self, rounds: Sequence[RoundRecord]) -> None:
        """The best score may be that of an earlier session."""
        for record in rounds:
            self._note_score(record)

    def on_site_done(self, round_index: int, reply: Reply) -> None:
        """Count the site."""
        self.replies += 1
        self.display.draw(self, is_round_end=False)

    def on_round_done(self, record: RoundRecord, seconds: float) -> None:
        """Show the score; the next round begins."""
        self.round = record.round + 1
        self.replies = 0
        self._note_score(record)
        self.display.draw(self, is_round_end=True)

    def on_message(self, message: str) -> None:
        """Print it."""
        self.display.print(message, "dim")

    def _note_score(self, record: RoundRecord) -> None:
        if record.f1 is not None:
            self.f1 = float(record.f1)
            self.best = max(self.best, self.f1)

    @property
    def position(self) -> float:
        """Rounds so far, with the fraction of the current one."""
        return min(self.rounds, self.round + self.replies / max(self.sites, 1))

    @property
    def remaining_text(self) -> str:
        """The remaining time, or an empty text as long as it is unknown."""
        progress = self.position - self.first_round
        if progress <= 0:
            return ""
        seconds = time.monotonic() - self.start_time
        return _remaining_text(seconds / progress * (self.rounds - self.position))

    def score_text(self, *, with_best: bool = True) -> str:
        """The newest F1 and the best one; empty before the first test."""
        if self.f1 is None:
            return ""
        best = f" (best {self.best:.1f})" if with_best else ""
        return f"F1 {self.f1:.1f}{best}"


def _remaining_text(seconds: float) -> str:
    return f"{duration(seconds)} left" if seconds else ""


def _place(position: int, total: int) -> str:
    return f"{count(position)} of {count(total)}"


class LineDisplay(Display):
    """For a pipe or a log file: a line at the end of a round, if the last line is not recent."""

    def __init__(self, runs: int = 1) -> None:
        super().__init__(runs)
        self.count = 0
        self.last_line = -_LINE_INTERVAL
        # the time of the next line about the current activity, in seconds after its start
        self.next_activity_line = _FIRST_ACTIVITY_LINE

    def observe(self, label: str) -> RunObserver:
        """The observer of the next run."""
        self.count += 1
        return PaceObserver(self._prefix(label), self)

    def draw(self, pace: PaceObserver, *, is_round_end: bool) -> None:
        """Print a line now and then, and after the last round of a single run."""
        time_now = time.monotonic()
        is_due = time_now - self.last_line >= _LINE_INTERVAL
        is_last = pace.round == pace.rounds and self.runs <= 1
        if not is_round_end or not (is_due or is_last):
            return
        self.last_line = time_now
        parts = [f"{pace.label}round {pace.round}/{pace.rounds}", pace.score_text()]
        if pace.remaining_text:
            parts.append(pace.remaining_text)
        print_note("  ".join(parts), None)

    def finish_run(self, label: str, text: str) -> None:
        """Print the result of a run of several."""
        self.last_line = time.monotonic()
        if self.runs > 1:
            print_note(f"{self._prefix(label)}{text}", None)

    def print(self, text: str, style: str | None = None) -> None:
        """Print a line."""
        print_note(text, style)

    def on_activity(self, phase: str, position: int, total: int, seconds: float) -> None:
        """Print a line after ten seconds, then one a minute, and one at the end."""
        if position == 0:
            self.next_activity_line = _FIRST_ACTIVITY_LINE
            return
        is_long = seconds >= _FIRST_ACTIVITY_LINE
        if position == total and is_long:
            print_note(f"{phase}: {_place(position, total)}, took {duration(seconds)}", None)
        elif seconds >= self.next_activity_line:
            self.next_activity_line = seconds + _ACTIVITY_INTERVAL
            remaining = _remaining_text(seconds / position * (total - position))
            print_note(f"{phase}: {_place(position, total)}, {remaining}", None)

    def _prefix(self, label: str) -> str:
        return f"[{self.count}/{self.runs}] {label}: " if self.runs > 1 else ""


class BarDisplay(Display):
    """For a terminal: one bar for the run, above it one for the runs of a comparison."""

    def __init__(self, bars: Progress, runs: int) -> None:
        super().__init__(runs)
        self.bars = bars
        self.runs_done = 0
        self.start_time = time.monotonic()
        self.total_bar: TaskID | None = None
        if runs > 1:
            self.total_bar = bars.add_task(
                "all runs", total=runs, place=f"0/{runs}", score="", remaining=""
            )
        self.run_bar = bars.add_task(
            "", total=None, place="", score="", remaining="", visible=False
        )

    def observe(self, label: str) -> RunObserver:
        """The observer of the next run."""
        self.bars.reset(self.run_bar, total=None, description=label)
        self.bars.update(self.run_bar, place="reading data", score="", remaining="", visible=True)
        return PaceObserver(label, self)

    def draw(self, pace: PaceObserver, *, is_round_end: bool) -> None:
        """Redraw both bars."""
        replies = pace.sites if pace.round == pace.rounds else pace.replies
        round_number = min(pace.round + 1, pace.rounds)
        self.bars.update(
            self.run_bar,
            completed=pace.position,
            total=pace.rounds,
            place=f"round {round_number}/{pace.rounds}  site {replies}/{pace.sites}",
            score=pace.score_text(with_best=self.bars.console.width >= _WIDE),
            remaining=pace.remaining_text,
        )
        self._update_total(pace.position / pace.rounds)

    def finish_run(self, label: str, text: str) -> None:
        """Print the result of a run of several."""
        self.runs_done += 1
        if self.total_bar is not None:
            self.bars.console.print(f"{label}  {text}")
            self._update_total(0.0)

    def print(self, text: str, style: str | None = None) -> None:
        """Print a line above the bars."""
        self.bars.console.print(text, style=style, soft_wrap=True)

    def on_activity(self, phase: str, position: int, total: int, seconds: float) -> None:
        """Show decoding and the like in the bar of the run, until the first round."""
        remaining = ""
        if position and seconds > 1:
            remaining = _remaining_text(seconds / position * (total - position))
        self.bars.update(
            self.run_bar,
            completed=position,
            total=total,
            place=f"{phase} {_place(position, total)}",
            score="",
            remaining=remaining,
            visible=True,
        )

    def _update_total(self, fraction: float) -> None:
        """Redraw the upper bar; `fraction` of the current run is finished."""
        if self.total_bar is None:
            return
        position = self.runs_done + fraction
        remaining = ""
        if position > _MIN_SHARE:
            seconds = time.monotonic() - self.start_time
            remaining = _remaining_text(seconds / position * (self.runs - position))
        place = f"{self.runs_done}/{self.runs}"
        self.bars.update(self.total_bar, completed=position, place=place, remaining=remaining)


def _progress_bars() -> Progress:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    stderr = console(stderr=True)
    return Progress(
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=28 if stderr.width >= _WIDE else 10),
        TextColumn("{task.fields[place]}", markup=False),
        TextColumn("{task.fields[score]}", style="cyan", markup=False),
        TextColumn("{task.fields[remaining]}", style="dim", markup=False),
        console=stderr,
        transient=True,
    )
