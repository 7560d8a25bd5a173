"""Progress for a person: bars on a terminal, a line now and then in a pipe, nothing on request. Always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from fedgsca.support.console import console, note
from fedgsca.support.text import duration

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from fedgsca.engine.local import Reply
    from fedgsca.engine.rounds import RunObserver
    from fedgsca.experiment.simulation import Experiment

_WIDE = 110  # columns from which there is room for a longer bar and the best score
_EVERY = 5.0  # seconds between lines in a pipe


class Display(Protocol):
    """One per command; gives out a observer for every run."""

    def watch(self, label: str) -> RunObserver: ...
    def done(self, label: str, text: str) -> None: ...
    def tell(self, text: str, style: str | None = None) -> None: ...


@contextmanager
def display(*, quiet: bool, runs: int = 1) -> Iterator[Display]:
    """`runs`: how many are still to do; with more than one a second bar counts them."""
    if quiet:
        yield Nothing()
    elif sys.stderr.isatty():
        with _progress() as bars:
            yield Bars(bars, runs)
    else:
        yield Lines(runs)


class Pace:
    """How far a run is, in rounds, and how long the rest will take at the speed seen so far in this session."""

    def __init__(self) -> None:
        self.rounds, self.sites, self.first = 0, 0, 0
        self.round, self.heard, self.best = 0, 0, 0.0
        self.f1: float | None = None
        self.started = time.monotonic()

    def start(self, experiment: Experiment, first: int) -> None:
        self.rounds, self.sites, self.first = (
            experiment.config.train.rounds,
            len(experiment.names),
            first,
        )
        self.round, self.heard, self.started = first, 0, time.monotonic()

    def hear(self) -> None:
        self.heard += 1

    def end_round(self, line: dict[str, Any]) -> None:
        self.round, self.heard = line["round"] + 1, 0
        if "f1" in line:
            self.f1 = float(line["f1"])
            self.best = max(self.best, self.f1)

    @property
    def position(self) -> float:
        return min(self.rounds, self.round + self.heard / max(self.sites, 1))

    @property
    def left(self) -> float | None:
        done = self.position - self.first
        return (
            (time.monotonic() - self.started) / done * (self.rounds - self.position)
            if done > 0
            else None
        )

    def score(self, *, with_best: bool = True) -> str:
        best = f" (best {self.best:.1f})" if with_best else ""
        return "" if self.f1 is None else f"F1 {self.f1:.1f}{best}"


class Watching:
    """The engine's observer: keeps the pace and warns; how it is drawn is left to the subclass's draw()."""

    def __init__(self, label: str, seen: set[str]) -> None:
        self.label, self.seen, self.pace = label, seen, Pace()

    def on_start(self, experiment: Experiment, first: int) -> None:
        self.pace.start(experiment, first)
        for warning in experiment.warnings:
            if (
                warning not in self.seen
            ):  # the cells of a comparison share their data and its peculiarities
                self.seen.add(warning)
                self.on_message(warning)
        if first:
            self.on_message(f"going on after round {first} of {self.pace.rounds}")
        self.draw(False)

    def on_site_done(self, round: int, reply: Reply) -> None:
        self.pace.hear()
        self.draw(False)

    def on_round_done(self, line: dict[str, Any], seconds: float) -> None:
        self.pace.end_round(line)
        self.draw(True)

    def on_message(self, message: str) -> None:
        note(message, "dim")

    def draw(self, whole_round: bool) -> None: ...


class Lines:
    """For a pipe or a log file."""

    def __init__(self, runs: int) -> None:
        self.runs, self.count, self.last, self.seen = runs, 0, -_EVERY, set[str]()

    def watch(self, label: str) -> RunObserver:
        self.count += 1
        return LineObserver(f"[{self.count}/{self.runs}] {label}: " if self.runs > 1 else "", self)

    def done(self, label: str, text: str) -> None:
        self.last = time.monotonic()
        if self.runs > 1:
            note(f"[{self.count}/{self.runs}] {label}: {text}", None)

    def tell(self, text: str, style: str | None = None) -> None:
        note(text, style)


class LineObserver(Watching):
    def __init__(self, prefix: str, lines: Lines) -> None:
        super().__init__(prefix, lines.seen)
        self.lines = lines

    def draw(self, whole_round: bool) -> None:
        pace, now = self.pace, time.monotonic()
        last = pace.round == pace.rounds and self.lines.runs <= 1  # in a comparison done() says it
        if whole_round and (now - self.lines.last >= _EVERY or last):
            self.lines.last = now
            rest = f"  {duration(pace.left)} left" if pace.left else ""
            note(f"{self.label}round {pace.round}/{pace.rounds}  {pace.score()}{rest}", None)


class Bars:
    """For a terminal: one bar for the run, above it one for the runs of a comparison."""

    def __init__(self, bars: Progress, runs: int) -> None:
        self.bars, self.runs, self.finished, self.begun = bars, runs, 0, time.monotonic()
        self.wide = bars.console.width >= _WIDE
        self.seen: set[str] = set()
        self.all = (
            bars.add_task("all runs", total=runs, where=f"0/{runs}", score="", left="")
            if runs > 1
            else None
        )
        self.one = bars.add_task("", total=None, where="", score="", left="", visible=False)

    def watch(self, label: str) -> RunObserver:
        self.bars.reset(
            self.one,
            total=None,
            description=label,
            where="reading data",
            score="",
            left="",
            visible=True,
        )
        return BarObserver(label, self)

    def done(self, label: str, text: str) -> None:
        self.finished += 1
        if self.all is not None:
            self.bars.console.print(f"{label}  {text}")
            self.update_all(0.0)

    def tell(self, text: str, style: str | None = None) -> None:
        self.bars.console.print(text, style=style, soft_wrap=True)

    def update_all(self, fraction: float) -> None:
        if self.all is None:
            return
        done = self.finished + fraction
        left = (time.monotonic() - self.begun) / done * (self.runs - done) if done > 0.02 else None
        text = f"{duration(left)} left" if left else ""
        self.bars.update(self.all, completed=done, where=f"{self.finished}/{self.runs}", left=text)


class BarObserver(Watching):
    def __init__(self, label: str, bars: Bars) -> None:
        super().__init__(label, bars.seen)
        self.bars = bars

    def on_message(self, message: str) -> None:
        self.bars.tell(message, "dim")

    def draw(self, whole_round: bool) -> None:
        pace = self.pace
        heard = pace.sites if pace.round == pace.rounds else pace.heard
        where = f"round {min(pace.round + 1, pace.rounds)}/{pace.rounds}  site {heard}/{pace.sites}"
        left = f"{duration(pace.left)} left" if pace.left else ""
        task: TaskID = self.bars.one
        self.bars.bars.update(
            task,
            completed=pace.position,
            total=pace.rounds,
            where=where,
            score=pace.score(with_best=self.bars.wide),
            left=left,
        )
        self.bars.update_all(pace.position / pace.rounds)


class Nothing:
    """--quiet."""

    def watch(self, label: str) -> RunObserver:
        from fedgsca.engine.rounds import SilentObserver

        return SilentObserver()

    def done(self, label: str, text: str) -> None: ...
    def tell(self, text: str, style: str | None = None) -> None: ...


def _progress() -> Progress:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    err = console(stderr=True)
    return Progress(
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=28 if err.width >= _WIDE else 10),
        TextColumn("{task.fields[where]}", markup=False),
        TextColumn("{task.fields[score]}", style="cyan", markup=False),
        TextColumn("{task.fields[left]}", style="dim", markup=False),
        console=err,
        transient=True,
    )
