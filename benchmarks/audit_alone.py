"""What a hospital finds alone: `fedgsca audit-folder` against cleanlab, on the same features.

    python -m benchmarks.audit_alone --data pathmnist_small.npz ham10000_small --seeds 0 \
        --out alone.json

The training images of each source are divided among four sites and given wrong labels. Every site
is then audited as if it were alone: by the evidence heads of labels/local_evidence.py, and by
cleanlab's ranking of a cross-validated logistic regression. Finished sites are read from the file.
docs/audit.md has results.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.config import load_config
from fedgsca.evidence import assign_folds, layer_normalise
from fedgsca.federation.simulation import Experiment, prepare
from fedgsca.labels.build_audit import measure_ranking
from fedgsca.labels.local_evidence import NUM_FOLDS, LocalLabels, collect_local_evidence
from fedgsca.labels.score import count_errors, rank_labels
from fedgsca.labels.second_opinion import label_quality, out_of_sample_probs
from fedgsca.labels.wrong_count import fit_models
from fedgsca.support.files import write_atomic

PARTITIONS = ("stratified", "dirichlet")


def measure_site(experiment: Experiment, name: str, seed: int) -> dict[str, Any]:
    """Quality of both rankings at one site, and of the count."""
    samples = experiment.sites[name]
    given = samples.labels
    wrong = given != experiment.truth[name]
    features = np.asarray(samples.inputs, dtype=np.float32)
    folds = assign_folds(seed, name, [vector.tobytes() for vector in features], NUM_FOLDS)
    labels = LocalLabels(features, given, folds, samples.num_classes)
    judgement = collect_local_evidence(labels, seed)
    ranking = rank_labels(judgement, given)
    errors = count_errors(fit_models(judgement, given), len(given))
    probs = out_of_sample_probs(layer_normalise(features), given, samples.num_classes)
    cleanlab_order = np.argsort(label_quality(probs, given), kind="stable")
    row: dict[str, Any] = {
        "labels": len(given),
        "wrong": int(wrong.sum()),
        "count": errors.count,
        "can_tell": errors.can_tell,
        "holds": bool(errors.low <= wrong.sum() <= errors.high),
    }
    if wrong.any():
        for key, order in (("heads", ranking.order), ("cleanlab", cleanlab_order)):
            quality = measure_ranking(order, wrong)
            row[key] = {"auroc": quality.auroc, "precision": quality.precision_at["10%"]}
    return row


def collect(
    sources: Sequence[Path], noises: Sequence[str], seeds: Sequence[int], out: Path
) -> dict[str, dict[str, Any]]:
    """All sites by name; finished ones are read from `out`."""
    results: dict[str, dict[str, Any]] = {}
    if out.exists():
        results = json.loads(out.read_text())
    for source in sources:
        for noise in noises:
            for partition in PARTITIONS:
                for seed in seeds:
                    setting = f"{source.stem} {noise} {partition} {seed}"
                    _collect_setting(source, noise, partition, seed, setting, results, out)
    return results


def _collect_setting(
    source: Path,
    noise: str,
    partition: str,
    seed: int,
    setting: str,
    results: dict[str, dict[str, Any]],
    out: Path,
) -> None:
    if f"{setting} site-4" in results:
        return
    config = load_config(
        data__source=str(source),
        data__sites=4,
        data__partition=partition,
        model__name="efficientnet-lite0",
        model__frozen=True,
        noise__spec=noise,
        seed=seed,
    )
    experiment = prepare(config)
    for name in experiment.names:
        results[f"{setting} {name}"] = measure_site(experiment, name, seed)
        print(f"{setting} {name}", json.dumps(results[f"{setting} {name}"]), flush=True)
    write_atomic(out, json.dumps(results, indent=1).encode())


def print_summary(results: dict[str, dict[str, Any]]) -> None:
    """One row per source and noise: means over the noisy sites of all partitions and seeds."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for name, row in results.items():
        source, noise, *_ = name.split()
        groups.setdefault(f"{source} | {noise}", []).append(row)
    print("| data | noise | noisy sites | alone | cleanlab | worse than cleanlab |")
    for group, rows in groups.items():
        noisy_sites = [row for row in rows if "heads" in row]
        cells = []
        for key in ("heads", "cleanlab"):
            auroc = np.mean([row[key]["auroc"] for row in noisy_sites])
            precision = np.mean([row[key]["precision"] for row in noisy_sites])
            cells.append(f"{auroc:.3f} / {precision:.3f}")
        num_worse = [0, 0]
        for row in noisy_sites:
            num_worse[0] += row["heads"]["auroc"] < row["cleanlab"]["auroc"]
            num_worse[1] += row["heads"]["precision"] < row["cleanlab"]["precision"]
        worse = f"{num_worse[0]} / {num_worse[1]}"
        print(f"| {group} | {len(noisy_sites)} | {cells[0]} | {cells[1]} | {worse} |")
    num_close = sum(
        abs(row["count"] - row["wrong"]) <= 0.05 * row["labels"] for row in _with_number(results)
    )
    num_held = sum(row["holds"] for row in _with_number(results))
    total = len(_with_number(results))
    print(f"a number at {total} of {len(results)} sites: within 5 points at {num_close},")
    print(f"interval holds at {num_held}")


def _with_number(results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The sites at which the audit gives a number."""
    return [row for row in results.values() if row["can_tell"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--noise", nargs="+", default=["0-S40-P20-C20", "S40", "P20"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()
    print_summary(collect(arguments.data, arguments.noise, arguments.seeds, arguments.out))


if __name__ == "__main__":
    main()
