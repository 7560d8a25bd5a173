"""How soon a model is good: seconds until FedAvg's best F1, and until 95 % of the ceiling.

The ceiling is FedAvg without the wrong labels, the mean of its last rounds; without wrong labels
FedAvg is its own. Time is that of complete rounds from the first one on: warm-up, evidence heads,
selection and aggregation included; evaluation, files and frozen features left out. It is CPU time
where the sites were trained in one process, because that differs little on a busy machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from fedgsca.config import Tree, merge
from fedgsca.errors import ConfigError
from fedgsca.federation.run_folder import read_rounds, read_timing
from fedgsca.lab.plan import is_clean
from fedgsca.lab.records import Comparison
from fedgsca.lab.report.comparison_rows import BASELINE
from fedgsca.lab.runner import damaged_run

SHARE = 0.95
CPU, WALL = "CPU seconds", "seconds"


@dataclass(frozen=True)
class Curve:
    """Macro F1 after every round, and the seconds of all rounds until then."""

    f1: Sequence[float]
    seconds: Sequence[float]

    def reach(self, target: float) -> float | None:
        """The seconds until the first round whose F1 is at least `target`; None: never."""
        for score, seconds in zip(self.f1, self.seconds, strict=True):
            if score >= target:
                return seconds
        return None


def with_times(out: Path, comparison: Comparison) -> Comparison:
    """The comparison with the times of all runs whose FedAvg and ceiling are finished."""
    clock = _choose_clock([out / cell.path for cell in comparison.cells])
    # (condition, seed) -> FedAvg
    baselines = {
        (cell.condition, cell.seed): cell for cell in comparison.cells if cell.method == BASELINE
    }
    cells = []
    for run in comparison.cells:
        baseline = baselines.get((run.condition, run.seed))
        ceiling = comparison.ceiling.get(run.condition, {}).get(str(run.seed))
        if baseline is not None and is_clean(run.noise):
            ceiling = baseline.f1
        if baseline is not None and ceiling is not None:
            curve = read_curve(out / run.path, clock)
            best = max(read_curve(out / baseline.path, clock).f1)
            goal = curve.reach(SHARE * ceiling)
            run = replace(run, seconds_to_best=curve.reach(best), seconds_to_goal=goal)
        cells.append(run)
    note = (
        f"Times are {clock} of complete rounds until FedAvg's best F1 and until 95 % of the ceiling"
        " of the same seed, medians over the seeds that get there."
    )
    notes = tuple(dict.fromkeys((*comparison.notes, note)))
    return replace(comparison, cells=tuple(cells), notes=notes)


def read_curve(folder: Path, clock: str) -> Curve:
    """The curve of a finished run. Raises RunFolderError if a round has no score or no time."""
    timing = {}
    for line in read_timing(folder):  # of a round that was repeated, the last one counts
        value = line.cpu if clock == CPU else line.exchange
        if value is not None:
            timing[line.round] = value
    f1 = []
    seconds = []
    for record in read_rounds(folder):
        if record.f1 is None or record.round not in timing:
            raise damaged_run(folder, f"{folder} is damaged: a round has no F1 or no time")
        f1.append(record.f1)
        seconds.append(timing[record.round])
    return Curve(f1, list(accumulate(seconds)))


def _choose_clock(folders: Sequence[Path]) -> str:
    """CPU seconds if all runs have them: not those of several processes."""
    for folder in folders:
        if any(line.cpu is None for line in read_timing(folder)):
            return WALL
    return CPU


def timed_tree(tree: Tree) -> Tree:
    """The settings of all runs: every round is scored, one thread unless the user says otherwise.

    Several threads wait for each other in a busy loop, which would count as CPU time.
    """
    # below the user's settings: a section that is no table is reported with all other problems
    tree = merge({"train": {"threads": 1}, "federation": {"eval_every": 1}}, tree)
    federation = tree["federation"]
    eval_every = federation["eval_every"] if isinstance(federation, Mapping) else 1
    if eval_every != 1:
        raise ConfigError(
            "grid.rounds-without-a-score",
            f"the time to an F1 needs the score of every round, got federation.eval_every ="
            f" {eval_every}",
            fix="leave federation.eval_every out",
        )
    return tree
