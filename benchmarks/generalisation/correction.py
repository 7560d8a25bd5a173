"""F1 before and after a reviewer corrects the first tenth of the audit's list, in all and by class.

The reviewer of this study is perfect: it replaces a wrong label by the true one, and confirms a
correct one. Before and after have the same images, sites and seeds; FedAvg and FedGSCA are trained
again from the start. Afterwards FedGSCA knows which labels were checked, and what they were before;
"unmarked" is what it reaches with the same labels if nobody tells it. FedAvg makes no use of this.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.generalisation.measure import true_labels
from benchmarks.generalisation.plan import (
    BASELINE,
    FROZEN,
    FULL,
    MIXED,
    OURS,
    QUICK,
    SEEDS,
    Cell,
    Dataset,
    Setting,
    Size,
    cell_config,
    default_lr,
    find_datasets,
)
from benchmarks.generalisation.sources import share_features
from fedgsca.config import Config, build, merge
from fedgsca.federation.label_evidence import read_evidence
from fedgsca.federation.records import RunResult
from fedgsca.federation.rounds import run
from fedgsca.federation.simulation import Experiment, prepare
from fedgsca.lab.report.run_facts import method_title
from fedgsca.lab.table import Table, to_markdown
from fedgsca.labels.build_audit import first_tenth
from fedgsca.labels.score import rank_labels
from fedgsca.support.files import write_atomic

METHODS = (BASELINE, OURS)


@dataclass(frozen=True)
class ClassScores:
    """F1 in percent: in all (mean of the last five rounds) and by class (last round)."""

    f1: float
    per_class: Mapping[str, float]


@dataclass(frozen=True)
class Correction:
    """One seed. Shares are of all training labels."""

    setting: Setting
    seed: int
    wrong_share: float
    wrong_share_after: float
    support: Mapping[str, int]
    before: Mapping[str, ClassScores]
    # FedGSCA with corrected labels and without knowing which ones were checked
    unmarked: ClassScores
    after: Mapping[str, ClassScores]


def correct_first_tenth(
    orders: Mapping[str, np.ndarray],
    given: Mapping[str, np.ndarray],
    truth: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Site -> (n,) labels, of which the first tenth of the list (`orders`, rows) are true.

    Also site -> (n,) bool: those of the first tenth.
    """
    labels = {}
    marks = {}
    for name, order in orders.items():
        site_labels = given[name].copy()
        rows = order[: first_tenth(len(order))]
        site_labels[rows] = truth[name][rows]
        labels[name] = site_labels
        marks[name] = np.zeros(len(site_labels), bool)
        marks[name][rows] = True
    return labels, marks


def write_labels(
    experiment: Experiment,
    labels: Mapping[str, np.ndarray],
    marks: Mapping[str, np.ndarray],
    path: Path,
) -> None:
    """A csv for noise.given, like that of `fedgsca apply`."""
    table = experiment.table
    lines = ["file,label,checked,original"]
    for name, rows in experiment.rows.items():
        given = experiment.sites[name].labels
        for i, row in enumerate(rows.tolist()):
            cells = [table.ids[row], table.classes[labels[name][i]], "", ""]
            if marks[name][i]:
                cells[2:] = ["1", table.classes[given[i]]]
            lines.append(",".join(cells))
    write_atomic(path, "\n".join(lines).encode() + b"\n")


def measure_correction(
    setting: Setting, dataset: Dataset, size: Size, seed: int, scratch: Path
) -> Correction:
    """Train, audit, correct, train again."""
    lr = default_lr(setting.model)
    configs = {}
    for method in METHODS:
        configs[method] = cell_config(Cell(setting, method, lr, seed), dataset, size)
    share_features(configs[OURS])
    experiment = prepare(configs[OURS])
    before = {method: _scores(_run(configs[method], scratch / method)) for method in METHODS}
    result = _run(configs[OURS], scratch / OURS)
    given = {name: samples.labels for name, samples in experiment.sites.items()}
    truth = true_labels(experiment)
    orders = {}
    for name in given:
        orders[name] = rank_labels(read_evidence(scratch / OURS, name), given[name]).order
    labels, marks = correct_first_tenth(orders, given, truth)
    no_marks = {name: np.zeros_like(mask) for name, mask in marks.items()}
    write_labels(experiment, labels, no_marks, scratch / "unmarked.csv")
    write_labels(experiment, labels, marks, scratch / "labels.csv")
    unmarked = _train_again(configs[OURS], scratch / "unmarked.csv", scratch / "unmarked")
    after = {}
    for method in METHODS:
        folder = scratch / f"{method}-after"
        after[method] = _train_again(configs[method], scratch / "labels.csv", folder)
    support = {name: score.support for name, score in result.per_class.items()}
    return Correction(
        setting,
        seed,
        _wrong_share(given, truth),
        _wrong_share(labels, truth),
        support,
        before,
        unmarked,
        after,
    )


def _train_again(config: Config, labels: Path, folder: Path) -> ClassScores:
    changes = {"noise": {"spec": "0", "given": str(labels)}}
    return _scores(_run(build(merge(config.to_tree(), changes)), folder))


def _run(config: Config, folder: Path) -> RunResult:
    result = run(config, folder)
    assert result is not None  # the run is not stopped early
    return result


def _scores(result: RunResult) -> ClassScores:
    return ClassScores(result.f1, {name: score.f1 for name, score in result.per_class.items()})


def _wrong_share(labels: Mapping[str, np.ndarray], truth: Mapping[str, np.ndarray]) -> float:
    wrong = sum(int((labels[name] != truth[name]).sum()) for name in truth)
    return wrong / sum(len(site_labels) for site_labels in truth.values())


def correction_table(corrections: Sequence[Correction]) -> Table:
    """Means over the seeds: a line for the macro F1 and one for every class."""
    base, ours = method_title(BASELINE), method_title(OURS)
    head = ["noise", "class", "images", f"{base} before", "after", f"{ours} before"]
    rows = []
    for setting in dict.fromkeys(item.setting for item in corrections):
        items = [item for item in corrections if item.setting == setting]
        wrong = 100 * float(np.mean([item.wrong_share for item in items]))
        wrong_after = 100 * float(np.mean([item.wrong_share_after for item in items]))
        note = f"macro F1 ({wrong:.1f} % of the labels wrong, then {wrong_after:.1f} %)"
        support = items[0].support
        values = _means([_pick(item, None) for item in items])
        rows.append([setting.noise, note, str(sum(support.values())), *values])
        for name, count in support.items():
            values = _means([_pick(item, name) for item in items])
            rows.append([setting.noise, name, str(count), *values])
    return Table("Correction", [*head, "unmarked", "after"], rows, words=(1,))


def _pick(item: Correction, name: str | None) -> list[float]:
    """F1 by the columns of the table; of a class, or (None) in all."""
    columns = (
        item.before[BASELINE],
        item.after[BASELINE],
        item.before[OURS],
        item.unmarked,
        item.after[OURS],
    )
    values = []
    for scores in columns:
        values.append(scores.f1 if name is None else scores.per_class[name])
    return values


def _means(rows: Sequence[Sequence[float]]) -> list[str]:
    return [f"{value:.1f}" for value in np.mean(rows, axis=0)]


def run_correction(options: argparse.Namespace) -> None:
    """The study "correct": finished seeds are read."""
    datasets = find_datasets(options.part, pathmnist=None, ham=options.ham, quick=options.quick)
    size = QUICK if options.quick else FULL
    seeds = SEEDS[options.part][: size.core_seeds]
    folder = options.out / options.part / "correct"
    dataset = datasets[-1]
    corrections = []
    for noise in size.few_noises if options.quick else (MIXED, "S40"):
        for seed in seeds:
            setting = Setting(dataset.name, FROZEN, noise, "stratified")
            path = folder / f"{setting.name}_s{seed}.json"
            if not path.exists():
                scratch = Path(tempfile.mkdtemp(prefix="correction-"))
                item = measure_correction(setting, dataset, size, seed, scratch)
                shutil.rmtree(scratch)
                write_atomic(path, json.dumps(asdict(item), indent=1).encode())
            corrections.append(read_correction(path))
            print(f"{path.stem} finished", flush=True)
    text = to_markdown([correction_table(corrections)]) + "\n"
    write_atomic(folder / "table.md", text.encode())
    print(text)


def read_correction(path: Path) -> Correction:
    """A finished seed."""
    tree = json.loads(path.read_bytes())
    tree["setting"] = Setting(**tree["setting"])
    tree["unmarked"] = ClassScores(**tree["unmarked"])
    for key in ("before", "after"):
        tree[key] = {method: ClassScores(**scores) for method, scores in tree[key].items()}
    return Correction(**tree)
