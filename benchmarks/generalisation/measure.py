"""One setting and seed: F1 of three runs, and three audits of every site against the truth."""

from __future__ import annotations

import hashlib
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fedgsca
from benchmarks.generalisation.plan import Dataset, Setting, make_config
from benchmarks.generalisation.sources import share_features
from benchmarks.rivals import label_quality
from fedgsca.evidence import (
    SiteEvidence,
    judge_alone,
    layer_normalise,
    number_contents,
)
from fedgsca.federation.label_evidence import read_evidence
from fedgsca.federation.rounds import run
from fedgsca.federation.simulation import Experiment, prepare
from fedgsca.labels.build_audit import first_tenth, precision_at
from fedgsca.labels.score import count_errors, rank_labels
from fedgsca.labels.second_opinion import out_of_sample_probs
from fedgsca.labels.wrong_count import fit_models
from fedgsca.methods.site import Samples
from fedgsca.metrics import auroc

BASELINE, OURS, CEILING = "fedavg", "fedgsca-e", "ceiling"


@dataclass(frozen=True)
class Ranking:
    """A list of a site's labels; the first two are None at a site without wrong labels."""

    auroc: float | None
    # in the first tenth of the list
    precision: float | None
    # estimated number of wrong labels with its interval; None: the ranking does not count
    count: float | None = None
    low: float | None = None
    high: float | None = None
    can_tell: bool = False


@dataclass(frozen=True)
class SiteResult:
    """What was found at one site."""

    site: str
    noise: str
    labels: int
    wrong: int
    # "run": the audit of the run; "alone": the site's own evidence; "cleanlab"
    rankings: dict[str, Ranking]


@dataclass(frozen=True)
class Result:
    """A finished setting."""

    setting: Setting
    # fedavg, fedgsca-e, ceiling -> macro F1 in percent, mean of the last five rounds
    f1: dict[str, float]
    sites: tuple[SiteResult, ...]
    seconds: float
    # digest of the package's source
    version: str
    rate: float
    balance: float
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As it is stored."""
        return asdict(self)

    @staticmethod
    def from_json(tree: dict[str, Any]) -> Result:
        """The inverse of `to_json`."""
        sites = []
        for site in tree["sites"]:
            rankings = {name: Ranking(**ranking) for name, ranking in site["rankings"].items()}
            sites.append(SiteResult(**{**site, "rankings": rankings}))
        parts = {
            "setting": Setting(**tree["setting"]),
            "sites": tuple(sites),
            "warnings": tuple(tree["warnings"]),
        }
        return Result(**{**tree, **parts})


def package_version() -> str:
    """A digest of the package's source files, to notice tables of several versions."""
    folder = Path(fedgsca.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def measure_setting(setting: Setting, dataset: Dataset, rounds: int) -> Result:
    """All three methods with the same rate and balance, and the audits of every site."""
    start = time.perf_counter()
    config = make_config(setting, dataset, rounds, OURS)
    share_features(config)
    experiment = prepare(config)
    f1 = {}
    with tempfile.TemporaryDirectory(prefix="generalisation-") as scratch:
        outcome = run(config, Path(scratch) / OURS, experiment=experiment)
        assert outcome is not None  # the run is not stopped early
        f1[OURS] = outcome.f1
        sites = tuple(measure_site(experiment, Path(scratch) / OURS, n) for n in experiment.names)
        for name in (BASELINE, CEILING):
            if name == CEILING and not any(site.wrong for site in sites):
                continue
            plain = make_config(setting, dataset, rounds, BASELINE, is_ceiling=name == CEILING)
            outcome = run(plain, Path(scratch) / name)
            assert outcome is not None
            f1[name] = outcome.f1
    train = experiment.train
    return Result(
        setting=setting,
        f1=f1,
        sites=sites,
        seconds=time.perf_counter() - start,
        version=package_version(),
        rate=float(train.lr),
        balance=float(train.class_balance),
        warnings=experiment.warnings,
    )


def measure_site(experiment: Experiment, run_folder: Path, name: str) -> SiteResult:
    """The audit of the run, the site alone, and cleanlab, on the same features and labels."""
    samples = experiment.sites[name]
    wrong = samples.labels != experiment.table.labels[experiment.rows[name]]
    rankings = {"run": judge(read_evidence(run_folder, name), samples.labels, wrong)}
    rankings["alone"] = judge(evidence_alone(samples), samples.labels, wrong)
    if wrong.any() and len(np.unique(samples.labels)) > 1:
        features = layer_normalise(np.asarray(samples.inputs, np.float32))
        probs = out_of_sample_probs(features, samples.labels, samples.num_classes)
        order = np.argsort(label_quality(probs, samples.labels), kind="stable")
        rankings["cleanlab"] = Ranking(*score_order(order, wrong))
    noise = str(experiment.noise[name])
    return SiteResult(name, noise, len(wrong), int(wrong.sum()), rankings)


def evidence_alone(samples: Samples) -> SiteEvidence:
    """What `fedgsca audit-folder` knows: the site alone."""
    features = layer_normalise(np.asarray(samples.inputs, dtype=np.float64))
    contents = [row.tobytes() for row in features]
    if samples.groups is not None:
        contents = [str(group).encode() for group in samples.groups]
    groups = number_contents(contents)
    judgement = judge_alone(features, samples.labels, groups, samples.num_classes)
    return SiteEvidence.of(judgement)


def judge(evidence: SiteEvidence, given: np.ndarray, wrong: np.ndarray) -> Ranking:
    """Ranking and count from evidence; given (n,), wrong (n,) bool."""
    errors = count_errors(fit_models(evidence, given), len(given))
    scores = score_order(rank_labels(evidence, given).order, wrong)
    counts = (float(errors.count), float(errors.low), float(errors.high))
    return Ranking(*scores, *counts, bool(errors.can_tell))


def score_order(order: np.ndarray, wrong: np.ndarray) -> tuple[float | None, float | None]:
    """AUROC and precision in the first tenth of rows (n,), the most suspicious first."""
    if not wrong.any():
        return None, None
    scores = np.empty(len(order))
    scores[order] = -np.arange(len(order), dtype=np.float64)
    return auroc(scores, wrong), precision_at(order, wrong, first_tenth(len(wrong)))
