"""Runs a comparison and writes its tables.

OUT/compare.json       the numbers of all finished runs, rewritten after each of them
OUT/compare.md, compare.csv, compare.tex, report.html
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedgsca.config import Config, Tree, build
from fedgsca.errors import RunFolderError
from fedgsca.federation.records import RoundRecord, RunResult, finite
from fedgsca.federation.run_folder import dumps, read_rounds, read_setup
from fedgsca.federation.samples import check_weights
from fedgsca.lab.frames import cell_rows, make_frame
from fedgsca.lab.plan import (
    ComparisonPlan,
    check_variation,
    extend,
    parse_models,
    parse_noises,
    read_plan,
    save_plan,
    unique_values,
)
from fedgsca.lab.records import Comparison, ComparisonCell
from fedgsca.lab.report.comparison_columns import (
    class_tables,
    difference_sentences,
    explain_numbers,
    make_tables,
    overview_table,
)
from fedgsca.lab.report.comparison_rows import ComparisonRow, compare_rows, with_differences
from fedgsca.lab.report.run_facts import flagged_labels, grade_kappa, result_notes
from fedgsca.lab.runner import (
    ALL_CELLS,
    GridCell,
    GridObserver,
    Results,
    Shard,
    check_folder,
    finished_cells,
    folder_of,
    raise_failures,
    run_cells,
)
from fedgsca.lab.table import to_csv, to_latex, to_markdown
from fedgsca.lab.time_to_accuracy import with_times
from fedgsca.support.files import write_atomic
from fedgsca.support.text import join_words

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ComparisonResult:
    """A comparison as far as its runs are finished."""

    path: Path
    # the content of compare.json
    comparison: Comparison
    # cell -> reason
    failures: Mapping[str, str]

    @property
    def rows(self) -> list[ComparisonRow]:
        """Mean and standard deviation over seeds per method and noise, with ranks and recovery."""
        return compare_rows(self.comparison)

    def to_frame(self) -> pd.DataFrame:
        """One row per finished run, with its seed. It needs pandas."""
        return make_frame(cell_rows(self.comparison.cells))

    def row(self, method: str, noise: str | None = None) -> ComparisonRow:
        """The row of one method; `noise` may be left out if there is only one."""
        for row in self.rows:
            if row.method == method and noise in (None, row.noise):
                return row
        raise KeyError(f"the comparison has no finished run of {method!r} under {noise!r}")


def compare(
    methods: Sequence[str],
    config: Config,
    *,
    noises: Sequence[str] | None = None,
    models: Sequence[str] = (),
    vary: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | Sequence[int] = 3,
    out: str | Path,
    ceiling: bool = True,
    clean: bool = False,
    title: str = "",
    jobs: int = 1,
    observer: GridObserver | None = None,
) -> ComparisonResult:
    """Train every method under every noise with every seed, and write the tables.

    With `models` and `vary`, also with every network and every combination of settings.

    methods   names such as ["fedavg", "fedgsca"]
    config    the settings of all runs; its method, seed and noise are replaced
    noises    such as ["S40", "0-S40-P20-C20"]; default: the noise of `config`
    models    networks to compare: NAME, NAME+frozen, NAME=WEIGHTS; default: that of `config`
    vary      settings with several values each, such as {"data.sites": [4, 10, 20]}
    seeds     a number of seeds (3: 0, 1, 2) or the seeds themselves
    out       folder for the runs; the same call resumes an interrupted comparison
    ceiling   also train FedAvg without the wrong labels, which recovery needs
    clean     also train FedAvg without noise
    jobs      processes that train the sites of a run

    Raises FedgscaError after the other runs have finished if a run failed.
    """
    out = Path(out)
    plan = ComparisonPlan(
        methods=tuple(dict.fromkeys(methods)),
        noises=parse_noises(noises or [config.noise.spec]),
        seeds=tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds),
        tree=_without_model(config.to_tree()) if models else config.to_tree(),
        ceiling=ceiling,
        clean=clean,
        title=title,
        models=parse_models(",".join(models)) if models else (),
        vary={key: unique_values(key, values) for key, values in (vary or {}).items()},
    )
    check_variation(plan.vary, {})
    result = run_plan(plan, out, observer or GridObserver(), jobs=jobs)
    if result.comparison.cells:
        result = replace(result, comparison=write_tables(out, result.comparison))
    raise_failures(result.failures, len(plan.cells()), out)
    return result


def _without_model(tree: Tree) -> Tree:
    """The tree without the network, and without the training settings that depend on it.

    These are the defaults of every network again, unless they differ from the defaults here.
    """
    defaults = build({key: tree[key] for key in ("method", "model")}).to_tree()["train"]
    changes = {key: value for key, value in tree["train"].items() if value != defaults.get(key)}
    model = {key: tree["model"][key] for key in ("feature_size",) if key in tree["model"]}
    return {**tree, "train": changes, "model": model}


def run_plan(
    plan: ComparisonPlan,
    out: Path,
    observer: GridObserver,
    *,
    jobs: int = 1,
    shard: Shard = ALL_CELLS,
) -> ComparisonResult:
    """Run what the plan requests and is not finished yet.

    The result has these runs and those that the folder had before.
    """
    requested_cells = plan.cells()
    check_folder(requested_cells, out)
    finished_names = finished_cells(requested_cells, out)
    for cell in requested_cells:
        if cell.name not in finished_names:  # a finished run may come from another machine
            check_weights(cell.config)
    joint_plan = extend(plan, out)
    save_plan(joint_plan, out)
    cells = joint_plan.cells()
    results = finished_cells(cells, out)
    known_cells: dict[str, ComparisonCell] = {}

    def save_numbers(cell: GridCell) -> None:
        if joint_plan.publication is not None:  # hundreds of large checkpoints would fill the disk
            shutil.rmtree(folder_of(cell, out) / "checkpoint", ignore_errors=True)
        save_comparison(out, collect(joint_plan, cells, results, out, known_cells))

    part = shard.part(requested_cells)
    failures = run_cells(part, out, observer, results, jobs=jobs, on_result=save_numbers)
    results |= finished_cells(cells, out)  # other machines may have written to the same folder
    return ComparisonResult(out, collect(joint_plan, cells, results, out, known_cells), failures)


def collect(
    plan: ComparisonPlan,
    cells: Iterable[GridCell],
    results: Results,
    out: Path,
    known_cells: dict[str, ComparisonCell] | None = None,
) -> Comparison:
    """The content of compare.json from the finished runs; `known_cells` is for the next call."""
    known_cells = {} if known_cells is None else known_cells
    ceiling: dict[str, dict[str, float]] = {}
    clean: dict[str, float] = {}
    rows = []
    finished_runs = [cell for cell in cells if cell.name in results]
    for cell in finished_runs:
        result = results[cell.name]
        if cell.role == "method":
            if cell.name not in known_cells:
                known_cells[cell.name] = _plan_cell(plan, cell, result, out)
            rows.append(known_cells[cell.name])
        elif cell.role == "ceiling":
            condition = cell.variant.join(cell.noise)
            ceiling.setdefault(condition, {})[str(cell.seed)] = result.f1
        else:
            clean[str(cell.seed)] = result.f1
    data = next((results[cell.name].data for cell in finished_runs), "")
    classes: tuple[str, ...] = ()
    if finished_runs:
        classes = read_setup(folder_of(finished_runs[0], out)).data.classes
    labels = [plan.label_of(row) for row in plan.methods]
    return Comparison(
        title=plan.title or f"{join_words(labels)} on {data}",
        data=data,
        noises=plan.noises,
        methods=plan.methods,
        seeds=plan.seeds,
        cells=tuple(rows),
        ceiling=ceiling,
        clean=clean or None,
        models=plan.models or None,
        vary=plan.vary or None,
        classes=classes or None,
        reference=plan.reference or None,
        publication=plan.publication,
        notes=plan.notes,
    )


def _plan_cell(
    plan: ComparisonPlan, cell: GridCell, result: RunResult, out: Path
) -> ComparisonCell:
    comparison_cell = make_cell(cell.config, result, folder_of(cell, out))
    return replace(
        comparison_cell,
        method=cell.row,
        label=plan.label_of(cell.row),
        noise=cell.noise,
        path=f"cells/{cell.name}",
        model=cell.variant.model,
        settings=cell.variant.settings or None,
    )


def make_cell(config: Config, result: RunResult, folder: Path) -> ComparisonCell:
    """A finished run as one number of a comparison, under the name of its method."""
    rounds: Sequence[RoundRecord] = ()
    if (folder / "metrics.jsonl").is_file():
        rounds = read_rounds(folder)
    distances = [finite(record.stability) for record in rounds]
    known_distances = [value for value in distances if value is not None]
    cell = ComparisonCell(
        method=config.method,
        label="",
        noise=config.noise.spec,
        seed=config.seed,
        path=str(folder),
        f1=result.f1,
        recall=result.recall,
        precision=result.precision,
        best_f1=result.best.f1,
        seconds_per_round=result.seconds.per_round,
        bytes_up=result.bytes_per_round.up,
        bytes_down=result.bytes_per_round.down,
        expected_f1=None if result.unseen is None else result.unseen.last,
        flagged_labels=flagged_labels(rounds, float(config.options.get("noise_level", 0.0))),
        stability=fmean(known_distances) if known_distances else None,
        notes=result_notes(config, rounds),
        class_recall={name: entry.recall for name, entry in result.per_class.items()},
        stopped_f1=_stopped_f1(rounds),
        kappa=grade_kappa(read_setup(folder), result.last.confusion),
    )
    statistics = result.statistics
    if statistics is None:
        return cell
    auroc, area = statistics.auroc, statistics.average_precision
    return replace(
        cell,
        auroc=None if auroc is None else auroc.value,
        average_precision=None if area is None else area.value,
        ece=None if statistics.calibration is None else statistics.calibration.ece,
    )


def _stopped_f1(rounds: Sequence[RoundRecord]) -> float | None:
    """F1 on the test images in the round with the highest F1 on validation images; None: none."""
    scores = []
    for record in rounds:
        if finite(record.val_f1) is not None and record.f1 is not None:
            scores.append((record.val_f1 or 0.0, -record.round, record.f1))
    return max(scores)[2] if scores else None


def save_comparison(out: Path, comparison: Comparison) -> None:
    """Write compare.json."""
    write_atomic(out / "compare.json", dumps(comparison.to_json()))


def read_comparison(out: Path) -> Comparison:
    """Read the compare.json of a folder."""
    path = out / "compare.json"
    try:
        return Comparison.from_json(json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise RunFolderError(
            "grid.damaged-comparison",
            f"{path} cannot be read: {error}",
            fix=f"run `fedgsca resume {out}`, which writes it again from the finished runs",
        ) from None


def write_tables(out: Path, comparison: Comparison) -> Comparison:
    """Write compare.json, and the tables as compare.md, compare.csv and compare.tex.

    Returns the comparison with the differences, and with times where they are measured.
    """
    comparison = with_differences(out, comparison)
    plan = read_plan(out)
    if plan is not None and plan.is_timed:
        comparison = with_times(out, comparison)
    save_comparison(out, comparison)
    tables = make_tables(comparison)
    overview = overview_table(comparison)
    front_tables = [] if overview is None else [overview]
    text = to_markdown([*front_tables, *tables, *class_tables(comparison)])
    lines = [f"# {comparison.title}", "", text, *explain_numbers(comparison), ""]
    lines += [f"- {sentence}" for sentence in difference_sentences(comparison)]
    write_atomic(out / "compare.md", "\n".join(lines).encode() + b"\n")
    write_atomic(out / "compare.csv", to_csv(tables).encode())
    latex = to_latex([*front_tables, *make_tables(comparison, is_brief=True)])
    write_atomic(out / "compare.tex", latex.encode())
    return comparison
