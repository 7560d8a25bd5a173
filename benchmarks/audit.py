"""How well the audit finds wrong labels, against cleanlab inside each site. For docs/audit.md.

    python -m benchmarks.audit PART --out DIR [--data FILE.npz]

    choose    windows and scores, on seeds 100 and 101
    report    the chosen ones against cleanlab, on seeds 0, 1 and 2
    correct   FedAvg before and after the first tenth of the list is corrected, on the same seeds

Built-in images (the demo's recipe) and, with --data, a MedMNIST-style file; frozen
EfficientNet-Lite0 features, four sites. Finished runs are stored in DIR; an interrupted study is
resumed by the same command. Sites without wrong labels have no precision and are left out of it.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.audit_record import SiteOutputs, StudyRun, read_outputs
from benchmarks.audit_scores import SCORES, WINDOWS, ScoreFunction, window_evidence
from fedgsca.config import AuditConfig, Config, build, merge
from fedgsca.engine.label_evidence import Evidence
from fedgsca.engine.rounds import run
from fedgsca.experiment.simulation import divide
from fedgsca.label_audit.build_audit import first_tenth, precision_at
from fedgsca.label_audit.score import estimate_errors, rank_labels, relative_losses
from fedgsca.label_audit.second_opinion import label_quality, out_of_sample_probs
from fedgsca.metrics import auroc
from fedgsca.support.files import write_atomic

NOISES = ("0-S40-P20-C20", "S40", "P20")
METHODS = ("fedavg", "fedgsca")
CHOOSE_SEEDS = (100, 101)
REPORT_SEEDS = (0, 1, 2)
# cleanlab's; the first is its default
CLEANLAB_RANKINGS = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")
WINDOW = AuditConfig().window(10**6)  # type: ignore[call-arg]


def study_runs(data: Sequence[str], seeds: Sequence[int], method: str) -> list[StudyRun]:
    """All runs of one method."""
    return [StudyRun(d, noise, method, seed) for d, noise, seed in product(data, NOISES, seeds)]


@dataclass(frozen=True)
class Quality:
    """Precision in the first tenth of a ranking, in percent, and AUROC."""

    precision: float
    auroc: float


def ranking_quality(scores: np.ndarray, wrong: np.ndarray) -> Quality:
    """The quality of a ranking by scores, (n,), at a site that has wrong labels."""
    order = np.argsort(-scores, kind="stable")
    precision = precision_at(order, wrong, first_tenth(len(wrong))) or 0.0
    return Quality(100 * precision, auroc(scores, wrong) or 0.0)


def mean_quality(qualities: Sequence[Quality]) -> Quality:
    precision = np.mean([quality.precision for quality in qualities])
    return Quality(float(precision), float(np.mean([quality.auroc for quality in qualities])))


def cleanlab_scores(
    study_run: StudyRun,
    site: str,
    outputs: SiteOutputs,
    out: Path,
    ranking: str = CLEANLAB_RANKINGS[0],
) -> np.ndarray:
    """Cleanlab's scores without a federation; the same for every method, so computed once."""
    stem = Path(study_run.data).stem
    path = out / "cleanlab" / f"{stem}_{study_run.noise}_{study_run.seed}_{site}.npy"
    if not path.exists():
        num_classes = outputs.probs.shape[2]
        buffer = io.BytesIO()
        np.save(buffer, out_of_sample_probs(outputs.features, outputs.given, num_classes))
        write_atomic(path, buffer.getvalue())
    return -label_quality(np.load(path), outputs.given, ranking)


# ---- choose ----


def choose(data: Sequence[str], out: Path) -> None:
    """Mean over the noisy sites of both data sets: precision in the first tenth / AUROC."""
    for method in METHODS:
        noisy_sites: list[SiteOutputs] = []
        for study_run in study_runs(data, CHOOSE_SEEDS, method):
            sites = read_outputs(study_run, out).values()
            noisy_sites += [outputs for outputs in sites if outputs.wrong.any()]
        print(f"\n{method}, {len(noisy_sites)} noisy sites")
        print("| rounds | " + " | ".join(SCORES) + " |")
        print("|---" * (len(SCORES) + 1) + "|")
        for first, last in WINDOWS:
            evidence = [window_evidence(outputs, first, last) for outputs in noisy_sites]
            cells = [_score_text(score, noisy_sites, evidence) for score in SCORES.values()]
            print(f"| {first} to {last - 1} | " + " | ".join(cells) + " |")


def _score_text(
    score: ScoreFunction, sites: Sequence[SiteOutputs], evidence: Sequence[Evidence]
) -> str:
    qualities = []
    for outputs, site_evidence in zip(sites, evidence, strict=True):
        scores = score(site_evidence, outputs.given)
        if not np.isfinite(scores).all():
            return "–"
        qualities.append(ranking_quality(scores, outputs.wrong))
    mean = mean_quality(qualities)
    return f"{mean.precision:.1f} / {mean.auroc:.3f}"


# ---- report ----


@dataclass(frozen=True)
class SiteReport:
    """One site of one run. A site without wrong labels has no ranking quality."""

    ours: Quality | None
    cleanlab: Quality | None
    # shares of all labels
    wrong: float
    estimate: float
    is_in_interval: bool


HEAD = (
    "| data | noise | method | precision | cleanlab | ratio | AUROC | cleanlab | sites worse "
    "| wrong, true | estimated | in interval |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def report(data: Sequence[str], out: Path) -> None:
    """Our ranking and estimate against cleanlab's, per data set and noise."""
    print(HEAD)
    for method in METHODS:
        all_reports: list[SiteReport] = []
        for d, noise in product(data, NOISES):
            reports: list[SiteReport] = []
            for seed in REPORT_SEEDS:
                reports += _site_reports(StudyRun(d, noise, method, seed), out)
            all_reports += reports
            _print_lines(Path(d).stem, noise, method, reports)
        ours, cleanlab, num_worse, count = _summary(all_reports)
        ratio = ours.precision / cleanlab.precision
        print(
            f"{method}: {ours.precision:.1f} against {cleanlab.precision:.1f}, ratio {ratio:.2f}; "
            f"worse at {num_worse} of {count} sites\n"
        )
    for ranking in CLEANLAB_RANKINGS:
        qualities = []
        for study_run in study_runs(data, REPORT_SEEDS, METHODS[0]):
            for site, outputs in read_outputs(study_run, out).items():
                if outputs.wrong.any():
                    scores = cleanlab_scores(study_run, site, outputs, out, ranking)
                    qualities.append(ranking_quality(scores, outputs.wrong))
        mean = mean_quality(qualities)
        print(
            f"cleanlab ranked by {ranking}: precision {mean.precision:.1f}, AUROC {mean.auroc:.3f}"
        )


def _site_reports(study_run: StudyRun, out: Path) -> list[SiteReport]:
    reports = []
    for name, outputs in read_outputs(study_run, out).items():
        evidence = window_evidence(outputs, WINDOW.start, WINDOW.stop)
        suspicion = rank_labels(evidence, outputs.given).suspicion
        estimate = estimate_errors(evidence, outputs.given, suspicion)
        num_labels = len(outputs.given)
        num_wrong = int(outputs.wrong.sum())
        ours = None
        cleanlab = None
        if num_wrong:
            ours = ranking_quality(relative_losses(evidence, outputs.given), outputs.wrong)
            scores = cleanlab_scores(study_run, name, outputs, out)
            cleanlab = ranking_quality(scores, outputs.wrong)
        site_report = SiteReport(
            ours,
            cleanlab,
            num_wrong / num_labels,
            estimate.count / num_labels,
            estimate.low <= num_wrong <= estimate.high,
        )
        reports.append(site_report)
    return reports


def _summary(reports: Sequence[SiteReport]) -> tuple[Quality, Quality, int, int]:
    """Our mean quality and cleanlab's, sites where ours is worse, and sites with wrong labels."""
    ours = [site.ours for site in reports if site.ours is not None]
    cleanlab = [site.cleanlab for site in reports if site.cleanlab is not None]
    pairs = zip(ours, cleanlab, strict=True)
    num_worse = sum(a.precision < b.precision for a, b in pairs)
    return mean_quality(ours), mean_quality(cleanlab), num_worse, len(ours)


def _print_lines(data: str, noise: str, method: str, reports: Sequence[SiteReport]) -> None:
    """A line for the sites with wrong labels, and one for those without."""
    ours, cleanlab, num_worse, count = _summary(reports)
    numbers = (
        f"{ours.precision:.1f} | {cleanlab.precision:.1f} "
        f"| {ours.precision / cleanlab.precision:.2f} | {ours.auroc:.3f} | {cleanlab.auroc:.3f} "
        f"| {num_worse} of {count}"
    )
    noisy_sites = [site for site in reports if site.ours is not None]
    clean_sites = [site for site in reports if site.ours is None]
    print(f"| {data} | {noise} | {method} | {numbers} | {_estimates(noisy_sites)} |")
    if clean_sites:
        dashes = " | ".join("–" * 6)
        place = f"{noise}, clean sites"
        print(f"| {data} | {place} | {method} | {dashes} | {_estimates(clean_sites)} |")


def _estimates(sites: Sequence[SiteReport]) -> str:
    wrong = np.mean([site.wrong for site in sites])
    estimate = np.mean([site.estimate for site in sites])
    hits = sum(site.is_in_interval for site in sites)
    return f"{100 * wrong:.1f} % | {100 * estimate:.1f} % | {hits} of {len(sites)}"


# ---- correct ----


def correct(data: Sequence[str], out: Path) -> None:
    """A perfect reviewer corrects the first tenth of every list; then FedAvg is trained again."""
    print("| data | noise | ranked during | labels wrong | after | F1 before | F1 after |")
    print("|---|---|---|---|---|---|---|")
    for d, noise, method in product(data, NOISES, METHODS):
        rows = [_correct_run(StudyRun(d, noise, method, seed), out) for seed in REPORT_SEEDS]
        wrong, still_wrong, before, after = np.mean(rows, axis=0)
        line = f"| {Path(d).stem} | {noise} | {method} | {wrong:.1f} % | {still_wrong:.1f} % "
        print(f"{line}| {before:.1f} | {after:.1f} |", flush=True)


def _correct_run(study_run: StudyRun, out: Path) -> tuple[float, float, float, float]:
    """Share of wrong labels before and after, F1 of FedAvg before and after; all in percent."""
    division = divide(study_run.config())
    outputs = read_outputs(study_run, out)
    truth = division.table.labels
    given_labels = truth.copy()
    new_labels = truth.copy()
    for name, rows in division.rows.items():
        given = division.given[name].copy()
        given_labels[rows] = given
        evidence = window_evidence(outputs[name], WINDOW.start, WINDOW.stop)
        order = rank_labels(evidence, given).order[: first_tenth(len(given))]
        given[order] = truth[rows[order]]
        new_labels[rows] = given
    train = division.table.rows("train")
    wrong = 100 * float(np.mean(given_labels[train] != truth[train]))
    still_wrong = 100 * float(np.mean(new_labels[train] != truth[train]))
    lines = ["file,label"]
    for row in train:
        lines.append(f"{division.table.ids[row]},{division.table.classes[new_labels[row]]}")
    labels_file = out / "corrected" / f"{study_run.name}.csv"
    write_atomic(labels_file, "\n".join(lines).encode() + b"\n")
    fedavg = StudyRun(study_run.data, study_run.noise, "fedavg", study_run.seed)
    noise = {"spec": "0", "given": str(labels_file)}
    changes = {"noise": noise, "audit": {"enabled": False}}
    second_config = build(merge(fedavg.config().to_tree(), changes))
    before = _run_f1(fedavg.config(), out / "runs" / fedavg.name)
    after = _run_f1(second_config, out / "runs" / f"{study_run.name}_corrected")
    return wrong, still_wrong, before, after


def _run_f1(config: Config, folder: Path) -> float:
    result = run(config, folder)
    assert result is not None  # the run is not stopped early
    return result.f1


PARTS = {"choose": choose, "report": report, "correct": correct}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="MedMNIST-style .npz")
    options = parser.parse_args()
    data = ["synthetic"]
    if options.data:
        data.append(str(options.data.resolve()))
    PARTS[options.part](data, options.out)


if __name__ == "__main__":
    main()
