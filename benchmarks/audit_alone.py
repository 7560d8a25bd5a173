"""What a hospital finds alone: `fedgsca audit-folder` against its rivals, on the same features.

    python -m benchmarks.audit_alone --data synthetic pathmnist_small.npz ham10000_small \
        deepdrid_small --seeds 701 702 703 --out alone.json \
        --write benchmarks/studies/audit_rivals.md

The training images of each source are divided among 4 or 16 sites and given wrong labels. The first
site is then audited as if it were alone: by `judge_alone` of evidence.py, and by the rankings of
benchmarks/rivals.py. Finished settings are read from the file.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rivals import RIVALS
from fedgsca.config import load_config
from fedgsca.evidence import SiteEvidence, judge_alone, layer_normalise
from fedgsca.federation.result_summary import describe_machine
from fedgsca.federation.simulation import Experiment, prepare
from fedgsca.labels.build_audit import measure_ranking
from fedgsca.labels.score import count_errors, rank_labels
from fedgsca.labels.wrong_count import fit_models
from fedgsca.rng import stream
from fedgsca.support.files import write_atomic

NOISES = ("S40", "S20", "P20", "C20", "I30", "A30x3")
SITES = (4, 16)
OURS = "fedgsca"
# of one site
Row = dict[str, Any]
Results = dict[str, Row]


# ---- sites ----


def open_sites(source: str, noise: str, num_sites: int, seed: int) -> Experiment:
    """All sites of a source."""
    return prepare(
        load_config(
            data__source=source,
            data__sites=num_sites,
            data__partition="stratified",
            model__name="efficientnet-lite0",
            model__frozen=True,
            noise__spec=noise,
            seed=seed,
        )
    )


# ---- one site ----


def measure_site(
    features: np.ndarray,
    given: np.ndarray,
    wrong: np.ndarray,
    num_classes: int,
    seed: int,
) -> Row:
    """Quality of all rankings at one site, and of the count."""
    copies = np.unique(features, axis=0, return_inverse=True)[1]
    normal_features = layer_normalise(features.astype(np.float64))
    evidence = SiteEvidence.of(judge_alone(normal_features, given, copies, num_classes))
    errors = count_errors(fit_models(evidence, given), len(given))
    orders = {OURS: rank_labels(evidence, given).order}
    # equal suspicions in an order of chance, not in that of the file
    shuffle = stream(seed, "ties").permutation(len(given))
    for name, rank in RIVALS.items():
        suspicion = rank(features, given, num_classes, seed)
        orders[name] = shuffle[np.argsort(-suspicion[shuffle], kind="stable")]
    quality = {}
    for name, order in orders.items():
        truth = measure_ranking(order, wrong)
        quality[name] = [truth.auroc, truth.precision_at["10%"], truth.precision_at["errors"]]
    return {
        "labels": len(given),
        "wrong": int(wrong.sum()),
        "count": errors.count,
        "can_tell": errors.can_tell,
        "holds": bool(errors.low <= wrong.sum() <= errors.high),
        "quality": quality,
    }


def measure_setting(source: str, noise: str, num_sites: int, seed: int) -> Row:
    """The first site of a setting."""
    experiment = open_sites(source, noise, num_sites, seed)
    name = experiment.names[0]
    site = experiment.sites[name]
    wrong = site.labels != experiment.truth[name]
    features = np.asarray(site.inputs, dtype=np.float32)
    return measure_site(features, site.labels, wrong, site.num_classes, seed)


def collect(options: argparse.Namespace) -> Results:
    """All settings by name, `source noise sites seed`; finished ones are read from the file."""
    results: Results = {}
    if options.out.exists():
        results = json.loads(options.out.read_text())
    for seed in options.seeds:
        for source in options.data:
            for noise in options.noise:
                for num_sites in options.sites:
                    name = f"{Path(source).stem} {noise} {num_sites} {seed}"
                    if name not in results:
                        results[name] = measure_setting(source, noise, num_sites, seed)
                        write_atomic(options.out, json.dumps(results, indent=1).encode())
                        print(name, flush=True)
    return results


# ---- the page ----

INTRODUCTION = """Every site is judged as if it were alone, on frozen EfficientNet-Lite0 features at
96 pixels. Cells: AUROC / precision in the first tenth of the list / precision in the first as many
labels as are wrong, means over sites. `fedgsca` is `fedgsca audit-folder`; the others are those of
[rivals.py](../rivals.py), and `repeated-cv` is the regression behind `fedgsca`,
without transition matrix and posterior. No ranking knows which images are of one patient. On five
pairs of classes the ranks by `aled` correlate with those by its authors' package with 0.93 to 1."""


def list_rows(results: Results) -> list[Row]:
    """The sites with the setting that each belongs to."""
    rows = []
    for name, row in results.items():
        data, noise, num_sites, _ = name.split()
        rows.append({**row, "data": data, "noise": noise, "sites": f"one of {num_sites}"})
    return rows


def mean_quality(rows: Sequence[Row], name: str) -> np.ndarray:
    """(3,): AUROC and both precisions of a ranking."""
    return np.asarray(np.mean([row["quality"][name] for row in rows], axis=0))


def format_quality(values: np.ndarray) -> str:
    return " / ".join(f"{value:.3f}" for value in values)


def table_by(rows: Sequence[Row], key: Callable[[Row], str]) -> list[str]:
    """Markdown: one column per value of `key`, one row per ranking."""
    values = list(dict.fromkeys(key(row) for row in rows))
    lines = [f"| | {' | '.join(values)} |", "|---" * (1 + len(values)) + "|"]
    for name in rows[0]["quality"]:
        cells = []
        for value in values:
            part = [row for row in rows if key(row) == value]
            cells.append(format_quality(mean_quality(part, name)))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def table_of_rankings(rows: Sequence[Row]) -> list[str]:
    """Markdown: means, and how often and how far the ranking is ahead of ours."""
    lines = [
        "| | mean over sites | ours is better in AUROC, in precision (sites) | largest lead over"
        " ours in one data set and noise: AUROC, precision | our precision / its |",
        "|---|---|---|---|---|",
    ]
    cells: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        cells.setdefault((row["data"], row["noise"]), []).append(row)
    ours = mean_quality(rows, OURS)
    for name in rows[0]["quality"]:
        mean = mean_quality(rows, name)
        text = f"| {name} | {format_quality(mean)} |"
        if name == OURS:
            lines.append(f"{text} | | | |")
            continue
        gaps = np.array([_gap(row, name) for row in rows])
        wins = f"{int((gaps[:, 0] > 0).sum())}, {int((gaps[:, 1] > 0).sum())} of {len(rows)}"
        leads = [mean_quality(part, name) - mean_quality(part, OURS) for part in cells.values()]
        worst = np.max(leads, axis=0)
        ratio = ours[1] / mean[1]
        lines.append(f"{text} {wins} | {worst[0]:+.3f}, {worst[1]:+.3f} | {ratio:.2f} |")
    return lines


def _gap(row: Row, name: str) -> np.ndarray:
    return np.asarray(np.subtract(row["quality"][OURS], row["quality"][name]))


def describe_count(rows: Sequence[Row]) -> str:
    """What the estimated number of wrong labels is worth."""
    clear = [row for row in rows if row["can_tell"]]
    held = sum(row["holds"] for row in clear)
    close = sum(abs(row["count"] - row["wrong"]) <= 0.05 * row["labels"] for row in clear)
    return (
        f"The count gives a number at {len(clear)} of {len(rows)} sites; its interval holds at"
        f" {held}, and the number is within 5 points at {close}."
    )


def write_page(results: Results, options: argparse.Namespace) -> str:
    """The study as Markdown."""
    rows = list_rows(results)
    rivals = [name for name in rows[0]["quality"] if name != OURS]
    best = max(rivals, key=lambda name: float(mean_quality(rows, name)[1]))
    best_auroc = max(rivals, key=lambda name: float(mean_quality(rows, name)[0]))
    seeds = ", ".join(map(str, options.seeds))
    sections = [
        "# Rivals of the audit at a hospital alone",
        f"`python -m benchmarks.audit_alone`, seeds {seeds}, {len(rows)} sites, {date.today()}."
        f" {describe_machine()}.",
        INTRODUCTION,
        f"Best rival by precision in the first tenth: **{best}**; by AUROC: **{best_auroc}**.",
        "\n".join(table_of_rankings(rows)),
        describe_count(rows),
        "## By noise",
        "\n".join(table_by(rows, lambda row: str(row["noise"]))),
        "## By data",
        "\n".join(table_by(rows, lambda row: str(row["data"]))),
        "## By number of sites that share the images",
        "\n".join(table_by(rows, lambda row: str(row["sites"]))),
    ]
    return "\n\n".join(sections) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file of the measurements")
    parser.add_argument("--data", nargs="+", required=True, help="sources; synthetic is built in")
    parser.add_argument("--noise", nargs="+", default=list(NOISES))
    parser.add_argument("--sites", type=int, nargs="+", default=list(SITES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--write", type=Path, help="file for the page")
    options = parser.parse_args(arguments)
    # of cleanlab's regressions, which stop after 200 steps
    warnings.filterwarnings("ignore", message="lbfgs failed to converge")
    page = write_page(collect(options), options)
    print(page)
    if options.write:
        options.write.write_text(page)


if __name__ == "__main__":
    main()
