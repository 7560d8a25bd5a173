"""Run the cells of the suite that are not finished, and write the page."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.generalisation.measure import measure_cell, measure_cleanlab
from benchmarks.generalisation.plan import (
    CLEANLAB,
    CNN,
    FROZEN,
    OURS,
    Cell,
    Dataset,
    Size,
)
from benchmarks.generalisation.results import CellResult, ResultFolder
from benchmarks.generalisation.tables import CleanlabScores, make_page, to_markdown, to_tree
from fedgsca.errors import FedgscaError
from fedgsca.methods.base import load_methods
from fedgsca.support.files import write_atomic

# seconds of a run where none is finished yet, measured on one core
USUAL_SECONDS: Mapping[tuple[str, str], float] = {
    (FROZEN, "fedavg"): 3.0,
    (FROZEN, "ceiling"): 3.0,
    (FROZEN, OURS): 8.0,
    (FROZEN, CLEANLAB): 10.0,
}
OTHER_SECONDS: Mapping[str, float] = {FROZEN: 6.0, CNN: 40.0}
# seconds between two versions of the page
PAGE_EVERY = 60.0


@dataclass
class Suite:
    """The cells of one part of the suite, and where their results are."""

    part: str
    cells: Sequence[Cell]
    datasets: Sequence[Dataset]
    size: Size
    out: Path
    # further settings of FedGSCA
    settings: Mapping[str, object] = field(default_factory=dict)
    say: Callable[[str], None] = lambda text: print(text, flush=True)

    def __post_init__(self) -> None:
        self.folder = ResultFolder(self.out / self.part)
        # cell -> reason, of this call
        self.failures: dict[str, str] = {}

    def is_finished(self, cell: Cell) -> bool:
        """Whether the result of a cell is on disk."""
        if cell.method == CLEANLAB:
            return self.folder.read_cleanlab(cell.setting, cell.seed) is not None
        return self.folder.read(cell) is not None

    def run(self, chosen_cells: Sequence[Cell], minutes: float | None = None) -> None:
        """Run those of the chosen cells that are not finished, for at most so many minutes."""
        pending_cells = [cell for cell in chosen_cells if not self.is_finished(cell)]
        seconds = self.usual_seconds()
        estimate = sum(_expected(seconds, cell) for cell in pending_cells)
        self.say(
            f"{len(chosen_cells) - len(pending_cells)} of {len(chosen_cells)} runs are finished, "
            f"the others need about {estimate / 60:.0f} minutes"
        )
        start = page_time = time.monotonic()
        # expected and true seconds of the runs so far
        expected = true_seconds = 0.0
        with tempfile.TemporaryDirectory(prefix="generalisation-") as scratch:
            for number, cell in enumerate(pending_cells, 1):
                if minutes is not None and time.monotonic() - start > 60 * minutes:
                    self.say(f"stopped after {minutes:g} minutes; the same command continues")
                    break
                try:
                    text, cell_seconds = self.run_cell(cell, Path(scratch))
                except FedgscaError as error:
                    # shown on the page; the next call tries it again
                    self.failures[cell.name] = f"[{error.code}] {error.message}"
                    self.say(f"{cell.name} failed: {self.failures[cell.name]}")
                    continue
                expected += _expected(seconds, cell)
                true_seconds += cell_seconds
                remaining = (estimate - expected) * true_seconds / expected / 60
                text = f"[{number}/{len(pending_cells)}] {text}, {cell_seconds:.1f} s"
                self.say(f"{text}; {remaining:.0f} min left")
                if time.monotonic() - page_time > PAGE_EVERY:
                    self.write_page()
                    page_time = time.monotonic()
        self.write_page()

    def run_cell(self, cell: Cell, scratch: Path) -> tuple[str, float]:
        """Run a cell and store its result; a description and the seconds that it took."""
        dataset = next(item for item in self.datasets if item.name == cell.setting.data)
        start = time.perf_counter()
        if cell.method == CLEANLAB:
            scores = measure_cleanlab(cell, dataset, self.size)
            self.folder.write_cleanlab(cell.setting, cell.seed, scores)
            return cell.name, time.perf_counter() - start
        result = measure_cell(cell, dataset, self.size, scratch, self.settings)
        self.folder.write(result)
        return f"{cell.name}: F1 {result.f1:.1f}", result.seconds

    def results(self) -> list[CellResult]:
        """All finished runs of the plan."""
        return self.folder.read_all([cell for cell in self.cells if cell.method != CLEANLAB])

    def usual_seconds(self) -> dict[tuple[str, str], float]:
        """Seconds by network and method: those of finished runs, or else the usual ones."""
        seconds = dict(USUAL_SECONDS)
        times: dict[tuple[str, str], list[float]] = {}
        for result in self.results():
            key = (result.cell.setting.model, result.cell.method)
            times.setdefault(key, []).append(result.seconds)
        seconds |= {key: float(np.mean(values)) for key, values in times.items()}
        return seconds

    def cleanlab(self) -> CleanlabScores:
        """Cleanlab's rankings as far as they are finished."""
        rankings = {}
        for cell in self.cells:
            if cell.method == CLEANLAB:
                scores = self.folder.read_cleanlab(cell.setting, cell.seed)
                if scores is not None:
                    rankings[cell.setting, cell.seed] = scores
        return rankings

    def write_page(self) -> str:
        """Write table.md and summary.json and return the text."""
        methods = self.size.methods or tuple(load_methods())
        planned = sum(cell.method != CLEANLAB for cell in self.cells)
        page = make_page(self.part, self.results(), self.cleanlab(), methods, planned)
        text = to_markdown(page)
        for name, reason in self.failures.items():
            text += f"\nThe run {name} failed: {reason}\n"
        write_atomic(self.folder.path / "table.md", text.encode())
        tree = json.dumps(to_tree(page), indent=1)
        write_atomic(self.folder.path / "summary.json", tree.encode())
        return text


def _expected(seconds: Mapping[tuple[str, str], float], cell: Cell) -> float:
    model = cell.setting.model
    return seconds.get((model, cell.method), OTHER_SECONDS[model])
