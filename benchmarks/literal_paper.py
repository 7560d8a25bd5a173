"""Why FedGSCA as printed collapses on frozen features: one condition and one resolution at a time.

    python -m benchmarks.literal_paper --out DIR --data ham10000_small deepdrid_small [--seed 1]

Every row is preset `paper` with the named change; rows "all but" leave one resolution out of all.
Scores are those of validation images. --write FILE writes the page. Finished rows are kept in DIR.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.generalisation.sources import share_features, source_name
from fedgsca.config import Config, load_config
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds

INTRODUCTION = """`python -m benchmarks.literal_paper`. Preset `paper` (100 rounds, rate 0.01,
batches of 128, no momentum), a linear head on frozen EfficientNet-Lite0 features, four sites. Macro
F1 and recall of the last five rounds on validation images; how many classes are predicted at all;
share of the labels that are flagged. docs/fedgsca.md draws the conclusions."""
LAST = 5
OURS = {"train.lr": "auto", "train.batch_size": 32, "train.class_balance": 0.25}
# name of a row -> what differs from preset `paper`
CONDITIONS: Mapping[str, Mapping[str, Any]] = {
    "learning rate 0.1 instead of 0.01": {"train.lr": 0.1},
    "batches of 32 instead of 128": {"train.batch_size": 32},
    "momentum 0.9 instead of 0": {"train.momentum": 0.9},
    "300 rounds instead of 100": {"train.rounds": 300},
    "class balance 0.25": {"train.class_balance": 0.25},
    "rate, batches and balance of this package": OURS,
}
RESOLUTIONS: Mapping[str, Mapping[str, Any]] = {
    "warm-up of 5 rounds": {"fedgsca.warmup": 5},
    "only the given label during warm-up": {
        "fedgsca.warmup": 5,
        "fedgsca.credal_after_warmup": True,
    },
    "S fitted to losses of the received model": {"fedgsca.losses_of": "received"},
    "running mean of losses": {"fedgsca.memory": 0.8},
    "class-relative losses": {"fedgsca.class_relative": True},
    "variance floor 0.25": {"fedgsca.var_floor": 0.25},
    "second start and validity test of the fit": {"fedgsca.checked_fit": True},
    "monotone posterior": {"fedgsca.monotone": True},
    "doubtful labels kept": {"fedgsca.doubtful": "keep"},
    "threshold of an unseen class": {"fedgsca.unseen_class": "zeta"},
    "guard against collapse": {"fedgsca.guard": True},
}
# parts of the method left out, to see which one does the damage
PARTS: Mapping[str, Mapping[str, Any]] = {
    "cross-entropy instead of RCL": {"fedgsca.loss": "ce"},
    "no pseudo-labels": {"fedgsca.thresholds": "fixed", "fedgsca.zeta": 1.0},
    "no pseudo-labels, cross-entropy": {
        "fedgsca.thresholds": "fixed",
        "fedgsca.zeta": 1.0,
        "fedgsca.loss": "ce",
    },
}
ALL = {key: value for changes in RESOLUTIONS.values() for key, value in changes.items()}
ROWS: Mapping[str, Mapping[str, Any]] = {
    "FedAvg, the paper's protocol": {"method": "fedavg"},
    "FedAvg, this package's protocol": {"method": "fedavg", **OURS},
    "**literal**": {},
    **CONDITIONS,
    **PARTS,
    **RESOLUTIONS,
    "**all resolutions**": ALL,
    **{
        f"all but: {name}": {key: value for key, value in ALL.items() if key not in changes}
        for name, changes in RESOLUTIONS.items()
    },
    "all resolutions, this package's protocol": {**ALL, **OURS},
}


def make_config(data: Path, changes: Mapping[str, Any], noise: str, seed: int) -> Config:
    """Preset `paper` on frozen features with `changes`."""
    tree = {
        "preset": "paper",
        "seed": seed,
        "data.source": source_name("validation", "ham10000", str(data.resolve())),
        "noise.spec": f"{noise}*",
        "model.frozen": True,
        "train.augment": "none",
        "train.threads": 1,
        "federation.keep_losses": False,
        **changes,
    }
    return load_config(**{key.replace(".", "__"): value for key, value in tree.items()})


def measure(config: Config, folder: Path) -> dict[str, float]:
    """Scores of one row: means of the last rounds."""
    share_features(config)
    run(config, folder)
    records = read_rounds(folder)[-LAST:]
    confusion = np.array(records[-1].confusion)
    sites = [site for record in records for site in record.sites.values()]
    flagged = [site.number("delta") or 0.0 for site in sites]
    return {
        "f1": fmean(record.f1 or 0.0 for record in records),
        "recall": fmean(record.recall or 0.0 for record in records),
        "predicted": int(np.count_nonzero(confusion.sum(axis=0))),
        "classes": len(confusion),
        "flagged": 100 * fmean(flagged),
    }


def measure_rows(data: Path, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """All rows of one data set; finished ones are read."""
    store = options.out / f"{data.name}-{options.noise}-{options.seed}.json"
    rows: dict[str, dict[str, float]] = json.loads(store.read_text()) if store.exists() else {}
    for number, (name, changes) in enumerate(ROWS.items()):
        if name not in rows:
            folder = options.out / f"{data.name}-{number}"
            rows[name] = measure(make_config(data, changes, options.noise, options.seed), folder)
            store.write_text(json.dumps(rows, indent=1))
            print(data.name, name, rows[name], flush=True)
    return rows


def make_table(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    """Markdown: macro F1 and recall, classes that are predicted at all, share of flagged labels."""
    heads = [f"{name}: F1 | recall | classes | flagged" for name in results]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (1 + 4 * len(results)) + "|"]
    for name in ROWS:
        cells = []
        for rows in results.values():
            row = rows[name]
            cells.append(f"{row['f1']:.1f} | {row['recall']:.1f}")
            cells.append(f"{row['predicted']:.0f} of {row['classes']:.0f} | {row['flagged']:.0f} %")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--noise", default="0-S40-P20-C20")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, help="file for the page")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    results = {data.name: measure_rows(data, options) for data in options.data}
    text = "\n".join(make_table(results)) + "\n"
    print(text)
    if options.write:
        head = f"# FedGSCA as printed, on frozen features\n\n{INTRODUCTION}\n\n"
        command = f"Noise {options.noise}, seed {options.seed}, {date.today()}."
        options.write.write_text(f"{head}{command}\n\n{text}")


if __name__ == "__main__":
    main()
