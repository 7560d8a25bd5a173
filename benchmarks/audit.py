"""How well the audit finds wrong labels, against cleanlab run inside each site. The study behind docs/audit.md.

    python -m benchmarks.audit choose  --out DIR [--data FILE.npz]    windows and scores, on seeds 100 and 101
    python -m benchmarks.audit report  --out DIR [--data FILE.npz]    the chosen ones against cleanlab, on seeds 0, 1 and 2
    python -m benchmarks.audit correct --out DIR [--data FILE.npz]    FedAvg before and after the first tenth is corrected, likewise

Built-in images (the demo's recipe) and, with --data, a MedMNIST-style file; frozen EfficientNet-Lite0 features, four sites. Stop it at
any time: finished runs are kept in DIR. Sites without wrong labels have no precision and are left out of it.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks.audit_record import Cell, Record, records
from benchmarks.audit_scores import SCORES, WINDOWS, evidence
from fedgsca.config import AuditConfig, build, merge
from fedgsca.engine.rounds import run
from fedgsca.experiment.simulation import divide
from fedgsca.label_audit import score
from fedgsca.label_audit.cleanlab_scores import label_quality, out_of_sample_probs
from fedgsca.label_audit.ranking_quality import first_tenth, precision_at
from fedgsca.metrics import auroc
from fedgsca.support.files import write_atomic

NOISES, METHODS = ("0-S40-P20-C20", "S40", "P20"), ("fedavg", "fedgsca")
CHOOSE, REPORT = (100, 101), (0, 1, 2)
RANKINGS = (
    "self_confidence",
    "normalized_margin",
    "confidence_weighted_entropy",
)  # cleanlab's; the first is its default
WINDOW = AuditConfig().window(10**6)  # type: ignore[call-arg]


def cells(data: list[str], seeds: Iterable[int], methods: Iterable[str] = METHODS) -> list[Cell]:
    return [
        Cell(d, noise, m, seed) for d in data for noise in NOISES for m in methods for seed in seeds
    ]


def found(scores: np.ndarray, wrong: np.ndarray) -> tuple[float, float]:
    """Precision in the first tenth in percent, and AUROC; the site has wrong labels."""
    order = np.argsort(-scores, kind="stable")
    return 100 * (precision_at(order, wrong, first_tenth(len(wrong))) or 0.0), auroc(scores, wrong) or 0.0


def cleanlab_scores(
    cell: Cell, site: str, record: Record, out: Path, how: str = RANKINGS[0]
) -> np.ndarray:
    """What cleanlab says without a federation; the same for every method, so computed once."""
    path = out / "cleanlab" / f"{Path(cell.data).stem}_{cell.noise}_{cell.seed}_{site}.npy"
    if not path.exists():
        packed = io.BytesIO()
        np.save(packed, out_of_sample_probs(record.features, record.given, record.probs.shape[2]))
        write_atomic(path, packed.getvalue())
    return -label_quality(np.load(path), record.given, how)


def choose(data: list[str], out: Path) -> None:
    """Mean over noisy sites of both data sets: precision in the first tenth / AUROC."""
    for method in METHODS:
        kept = [
            r
            for cell in cells(data, CHOOSE, [method])
            for r in records(cell, out).values()
            if r.wrong.any()
        ]
        print(f"\n{method}, {len(kept)} noisy sites\n| rounds | " + " | ".join(SCORES) + " |")
        print("|---" * (len(SCORES) + 1) + "|")
        for first, last in WINDOWS:
            row = []
            seen = [evidence(record, first, last) for record in kept]
            for rule in SCORES.values():
                pairs = [found(rule(e, r.given), r.wrong) for e, r in zip(seen, kept, strict=True)]
                means = (
                    np.mean(pairs, axis=0)
                    if all(
                        np.isfinite(rule(e, r.given)).all() for e, r in zip(seen, kept, strict=True)
                    )
                    else None
                )
                row.append("–" if means is None else f"{means[0]:.1f} / {means[1]:.3f}")
            print(f"| {first} to {last - 1} | " + " | ".join(row) + " |")


def report(data: list[str], out: Path) -> None:
    print(
        "| data | noise | method | precision | cleanlab | ratio | AUROC | cleanlab | sites worse | wrong, true | estimated | in interval |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for method in METHODS:
        total: list[tuple[float, float, float, float]] = []
        for d in data:
            for noise in NOISES:
                rows = [row for seed in REPORT for row in _sites(Cell(d, noise, method, seed), out)]
                total += [row[:4] for row in rows if row[4]]
                _line(Path(d).stem, noise, method, rows)
        ours, theirs = np.mean([row[0] for row in total]), np.mean([row[2] for row in total])
        print(f"{method}: {ours:.1f} against {theirs:.1f}, ratio {ours / theirs:.2f}; worse at "
              f"{sum(row[0] < row[2] for row in total)} of {len(total)} sites\n")  # fmt: skip
    for how in RANKINGS:
        noisy = [
            (c, name, r)
            for c in cells(data, REPORT, METHODS[:1])
            for name, r in records(c, out).items()
            if r.wrong.any()
        ]
        mean = np.mean(
            [found(cleanlab_scores(c, name, r, out, how), r.wrong) for c, name, r in noisy], axis=0
        )
        print(f"cleanlab ranked by {how}: precision {mean[0]:.1f}, AUROC {mean[1]:.3f}")


Row = tuple[float, float, float, float, bool, float, float, bool]


def _sites(cell: Cell, out: Path) -> list[Row]:
    """Per site: precision and AUROC, cleanlab's, whether it has errors, true and estimated share, whether the interval holds it."""
    rows: list[Row] = []
    for name, record in records(cell, out).items():
        seen = evidence(record, WINDOW.start, WINDOW.stop)
        guess = score.estimate_errors(seen, record.given, score.rank_labels(seen, record.given).suspicion)
        n, wrong = len(record.given), int(record.wrong.sum())
        nothing = (float("nan"), float("nan"))
        ours = found(score.relative_losses(seen, record.given), record.wrong) if wrong else nothing
        theirs = found(cleanlab_scores(cell, name, record, out), record.wrong) if wrong else nothing
        rows.append(
            (
                *ours,
                *theirs,
                wrong > 0,
                wrong / n,
                guess.count / n,
                guess.low <= wrong <= guess.high,
            )
        )
    return rows


def _line(data: str, noise: str, method: str, rows: list[Row]) -> None:
    noisy = np.array([row[:4] for row in rows if row[4]])
    mean = noisy.mean(axis=0)
    worse = int(np.sum(noisy[:, 0] < noisy[:, 2]))
    for kind in (True, False):
        part = np.array([row[5:] for row in rows if row[4] is kind])
        if len(part) == 0:
            continue
        first = (f"{mean[0]:.1f} | {mean[2]:.1f} | {mean[0] / mean[2]:.2f} | {mean[1]:.3f} | {mean[3]:.3f} | {worse} of {len(noisy)}"
                 if kind else "– | – | – | – | – | –")  # fmt: skip
        where = noise if kind else f"{noise}, clean sites"
        print(f"| {data} | {where} | {method} | {first} | {100 * part[:, 0].mean():.1f} % | {100 * part[:, 1].mean():.1f} % | "
              f"{int(part[:, 2].sum())} of {len(part)} |")  # fmt: skip


def correct(data: list[str], out: Path) -> None:
    """A person looks at the first tenth of every site's list and never errs; then FedAvg is trained again."""
    print(
        "| data | noise | ranked during | labels wrong | after | F1 before | F1 after |\n|---|---|---|---|---|---|---|"
    )
    for d in data:
        for noise in NOISES:
            for method in METHODS:
                rows = np.array([_corrected(Cell(d, noise, method, seed), out) for seed in REPORT])
                wrong, left, before, after = rows.mean(axis=0)
                print(
                    f"| {Path(d).stem} | {noise} | {method} | {wrong:.1f} % | {left:.1f} % | {before:.1f} | {after:.1f} |",
                    flush=True,
                )


def _corrected(cell: Cell, out: Path) -> tuple[float, float, float, float]:
    """Share of wrong labels and F1 of FedAvg, before and after; in percent."""
    division, kept = divide(cell.config()), records(cell, out)
    labels = division.table.labels.copy()
    before = labels.copy()
    for name, rows in division.rows.items():
        given = division.given[name].copy()
        before[rows] = given
        order = score.rank_labels(evidence(kept[name], WINDOW.start, WINDOW.stop), given).order[
            : first_tenth(len(given))
        ]
        given[order] = division.table.labels[rows[order]]
        labels[rows] = given
    train = division.table.rows("train")
    shares = [
        100 * float(np.mean(side[train] != division.table.labels[train]))
        for side in (before, labels)
    ]
    sheet = out / "corrected" / f"{cell.name}.csv"
    lines = [f"{division.table.ids[row]},{division.table.classes[labels[row]]}" for row in train]
    write_atomic(sheet, "\n".join(["file,label", *lines]).encode() + b"\n")
    fedavg = Cell(cell.data, cell.noise, "fedavg", cell.seed)
    again = build(
        merge(
            fedavg.config().to_tree(),
            {"noise": {"spec": "0", "given": str(sheet)}, "audit": {"enabled": False}},
        )
    )
    scores = [run(config, out / "runs" / name)["f1"] for config, name in
              ((fedavg.config(), fedavg.name), (again, f"{cell.name}_corrected"))]  # fmt: skip
    return shares[0], shares[1], scores[0], scores[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["choose", "report", "correct"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="MedMNIST-style .npz")
    options = parser.parse_args()
    data = ["synthetic", *([str(options.data.resolve())] if options.data else [])]
    {"choose": choose, "report": report, "correct": correct}[options.part](data, options.out)


if __name__ == "__main__":
    main()
