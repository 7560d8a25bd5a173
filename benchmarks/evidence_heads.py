"""What evidence heads bring: macro F1 of FedGSCA and FedAvg, and the audit with and without them.

    python -m benchmarks.evidence_heads --out DIR --data pathmnist_small.npz ham10000_small \
        --noise 0-S40-P20-C20 S40 --seeds 0 1

Frozen features, 4 sites, 60 rounds. F1 is the mean of the last five rounds on *validation* images:
those of the source or, where it has none, a quarter of the groups (patients, lesions) of every
class, which are then not trained on. Test scores are not looked at. docs/evidence.md has results.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.config import Config, load_config
from fedgsca.engine.label_evidence import Evidence, read_evidence
from fedgsca.engine.rounds import run
from fedgsca.experiment.run_folder import read_rounds
from fedgsca.experiment.simulation import prepare
from fedgsca.label_audit.ranking_quality import measure_ranking
from fedgsca.label_audit.score import count_errors, rank_labels
from fedgsca.rng import stream

# name -> settings
VARIANTS: dict[str, dict[str, Any]] = {
    "FedAvg 0.005": {"method": "fedavg", "train__lr": 0.005},
    "FedAvg 0.05": {"method": "fedavg", "train__lr": 0.05},
    "FedGSCA 0.05, no heads": {"method": "fedgsca", "train__lr": 0.05, "evidence__enabled": False},
    "FedGSCA 0.005": {"method": "fedgsca", "train__lr": 0.005},
    "FedGSCA 0.05": {"method": "fedgsca", "train__lr": 0.05},
}
VALIDATION_SHARE = 0.25


def with_validation(source: Path, out: Path) -> Path:
    """A folder with labels.csv whose training part has validation groups; other sources as is."""
    if not (source / "labels.csv").exists():
        return source
    with (source / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    if any(row["split"] == "val" for row in rows):
        return source
    folder = out / f"{source.name}-validation"
    folder.mkdir(parents=True, exist_ok=True)
    groups: dict[str, set[str]] = {}
    for row in rows:
        if row["split"] == "train":
            groups.setdefault(row["label"], set()).add(row["group"])
    chosen_groups: set[str] = set()
    for label, names in sorted(groups.items()):
        order = stream(0, "validation", label).permutation(sorted(names))
        chosen_groups.update(order[: round(VALIDATION_SHARE * len(order))])
    for row in rows:
        if row["split"] == "train" and row["group"] in chosen_groups:
            row["split"] = "val"
    for entry in source.iterdir():
        copy = folder / entry.name
        if entry.name == "labels.csv" or copy.exists():
            continue
        # a link would lead out of the folder, which the reader refuses
        if entry.is_dir():
            shutil.copytree(entry, copy)
        else:
            shutil.copy2(entry, copy)
    with (folder / "labels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


def audit_quality(evidence: Evidence, given: np.ndarray, wrong: np.ndarray) -> dict[str, Any]:
    """Quality of the ranking and of the count at one site; shares of the labels."""
    ranking = rank_labels(evidence, given)
    truth = measure_ranking(ranking.order, wrong)
    errors = count_errors(evidence, given, ranking)
    n = len(given)
    return {
        "auroc": truth.auroc,
        "precision": truth.precision_at["10%"],
        "share": errors.count / n,
        "holds": bool(errors.low <= wrong.sum() <= errors.high),
        "can_tell": errors.can_tell,
    }


def measure(config: Config, folder: Path) -> dict[str, Any]:
    """One run: validation F1, and the audit of every site with and without heads."""
    run(config, folder)
    scores = [record.val_f1 for record in read_rounds(folder)[-5:]]
    audits: list[dict[str, Any]] = []
    experiment = prepare(config)
    for name, truth in experiment.truth.items():
        given = experiment.sites[name].labels
        wrong = given != truth
        evidence = read_evidence(folder, name)
        site: dict[str, Any] = {"wrong": float(wrong.mean())}
        site["model"] = audit_quality(replace(evidence, judgement=None), given, wrong)
        if evidence.judgement is not None:
            site["heads"] = audit_quality(evidence, given, wrong)
        audits.append(site)
    return {"f1": float(np.mean([score for score in scores if score is not None])), "sites": audits}


def collect(
    out: Path, sources: Sequence[Path], noises: Sequence[str], seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """All runs; finished ones are read from the folder."""
    results = []
    for source in sources:
        data = with_validation(source, out)
        for noise in noises:
            for seed in seeds:
                for variant, settings in VARIANTS.items():
                    name = f"{source.stem}-{noise}-{seed}-{variant}".replace(" ", "_")
                    config = load_config(
                        data__source=str(data),
                        model__frozen=True,
                        data__sites=4,
                        train__rounds=60,
                        noise__spec=noise,
                        seed=seed,
                        **settings,
                    )
                    row = {"data": source.stem, "noise": noise, "variant": variant}
                    results.append({**row, **measure(config, out / name)})
                    print(name, round(results[-1]["f1"], 1), flush=True)
    return results


def print_summary(results: Sequence[dict[str, Any]]) -> None:
    """Means over the seeds."""
    settings = sorted({(row["data"], row["noise"]) for row in results})
    for data, noise in settings:
        rows = [row for row in results if (row["data"], row["noise"]) == (data, noise)]
        for variant in VARIANTS:
            scores = [row["f1"] for row in rows if row["variant"] == variant]
            print(f"{data:20} {noise:14} {variant:24} F1 {np.mean(scores):.1f}")
        sites: list[dict[str, Any]] = []
        for row in rows:
            if row["variant"] == "FedGSCA 0.05":
                sites += row["sites"]
        for kind in ("model", "heads"):
            noisy_sites = [site for site in sites if site[kind]["auroc"] is not None]
            auroc = np.mean([site[kind]["auroc"] for site in noisy_sites])
            precision = np.mean([site[kind]["precision"] for site in noisy_sites])
            gaps = [abs(site[kind]["share"] - site["wrong"]) for site in sites]
            holds = sum(site[kind]["holds"] for site in sites)
            print(
                f"{data:20} {noise:14} audit by {kind:6} AUROC {auroc:.3f} precision"
                f" {precision:.3f} error of the count {np.mean(gaps):.3f} interval holds {holds} of"
                f" {len(sites)}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--noise", nargs="+", default=["0-S40-P20-C20", "S40"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = collect(arguments.out, arguments.data, arguments.noise, arguments.seeds)
    (arguments.out / "results.json").write_text(json.dumps(results, indent=1))
    print_summary(results)


if __name__ == "__main__":
    main()
