"""What a hospital finds alone: `fedgsca audit-folder` against its rivals, on the same features.

    python -m benchmarks.audit_alone --data synthetic pathmnist_small.npz ham10000_small \
        deepdrid_small --seeds 701 702 703 --out alone.json --write benchmarks/studies

The training images of each source are divided among 4 or 16 sites and given wrong labels. Four of
the sites are then audited as if each were alone: by labels/local_evidence.py, and by the rankings
of benchmarks/rivals.py. Finished settings are read from the file.

Noise is one of the kinds of the package, or `reader30`: labels of a reader who has learnt from
other images and errs on those that are hard, 30 % on average. Frozen features decide what is hard.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rivals import RIVALS
from fedgsca.config import load_config
from fedgsca.evidence import assign_folds, layer_normalise
from fedgsca.federation.simulation import Experiment, prepare
from fedgsca.labels.build_audit import measure_ranking
from fedgsca.labels.local_evidence import NUM_FOLDS, LocalLabels, collect_local_evidence
from fedgsca.labels.score import count_errors, rank_labels
from fedgsca.labels.second_opinion import out_of_sample_probs
from fedgsca.labels.wrong_count import fit_models
from fedgsca.noise.kinds.instance import scale_to_mean
from fedgsca.rng import stream
from fedgsca.support.files import write_atomic

NOISES = ("S40", "S20", "P20", "C20", "I30", "reader30", "A30x3")
READER = "reader"
SITES = (4, 16)
MEASURED_SITES = 4
OURS = "fedgsca"
Results = dict[str, dict[str, Any]]


# ---- sites ----


def draw_site_labels(
    probs: np.ndarray, labels: np.ndarray, rate: float, rng: np.random.Generator
) -> np.ndarray:
    """(n,): labels of a reader with opinions (n, C) who is wrong in `rate` of them on average.

    An image's probability of a wrong label is proportional to 1 - p_i(true), and the wrong label is
    drawn in proportion to p_i.
    """
    rows = np.arange(len(labels))
    rivals = np.maximum(probs, 1e-9)
    rivals[rows, labels] = 0.0
    doubts = rivals.sum(axis=1)
    rates = scale_to_mean(doubts, rate)
    chances = rivals * (rates / doubts)[:, None]
    chances[rows, labels] = 1.0 - rates
    given = (rng.random(len(labels))[:, None] >= chances.cumsum(axis=1)).sum(axis=1)
    return np.asarray(np.minimum(given, probs.shape[1] - 1))


def read_images(
    features: np.ndarray, labels: np.ndarray, num_classes: int, size: int = 100
) -> np.ndarray:
    """(n, C): a reader's opinions, by logistic regressions on other images with their true labels.

    The reader sees `size` random directions of the features (n, D): another view than the rankings.
    """
    rng = stream(0, "reader")
    view = features @ rng.standard_normal((features.shape[1], size)).astype(np.float32)
    view = (view - view.mean(axis=0)) / np.maximum(view.std(axis=0), 1e-12)
    return out_of_sample_probs(view, labels, num_classes)


def open_sites(source: str, noise: str, num_sites: int, seed: int) -> Experiment:
    """All sites of a source; with a reader, their labels are true so far."""
    is_reader = noise.startswith(READER)
    return prepare(
        load_config(
            data__source=source,
            data__sites=num_sites,
            data__partition="stratified",
            model__name="efficientnet-lite0",
            model__frozen=True,
            noise__spec="0" if is_reader else noise,
            seed=seed,
        )
    )


def give_reader_labels(
    experiment: Experiment, rate: float, seed: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Given and true labels of every site."""
    names = experiment.names
    sites = [experiment.sites[name] for name in names]
    features = np.concatenate([np.asarray(site.inputs, dtype=np.float32) for site in sites])
    labels = np.concatenate([site.labels for site in sites])
    probs = read_images(features, labels, sites[0].num_classes)
    given = draw_site_labels(probs, labels, rate, stream(seed, "reader", "labels"))
    ends = np.cumsum([len(site.labels) for site in sites])[:-1]
    return (
        dict(zip(names, np.split(given, ends), strict=True)),
        dict(zip(names, np.split(labels, ends), strict=True)),
    )


# ---- one site ----


def measure_site(
    features: np.ndarray,
    given: np.ndarray,
    wrong: np.ndarray,
    num_classes: int,
    groups: np.ndarray | None,
    seed: int,
) -> dict[str, Any]:
    """Quality of all rankings at one site, and of the count."""
    contents = [vector.tobytes() for vector in features]
    if groups is not None:
        contents = [str(group).encode() for group in groups]
    folds = assign_folds(seed, "alone", contents, NUM_FOLDS)
    judgement = collect_local_evidence(LocalLabels(features, given, folds, num_classes), seed)
    errors = count_errors(fit_models(judgement, given), len(given))
    orders = {OURS: rank_labels(judgement, given).order}
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


def collect_setting(source: str, noise: str, num_sites: int, seed: int) -> list[dict[str, Any]]:
    """The measured sites of one setting; those without a wrong label are left out."""
    experiment = open_sites(source, noise, num_sites, seed)
    given = {name: site.labels for name, site in experiment.sites.items()}
    truth = dict(experiment.truth)
    if noise.startswith(READER):
        rate = float(noise.removeprefix(READER)) / 100
        given, truth = give_reader_labels(experiment, rate, seed)
    rows = []
    for name in experiment.names[:MEASURED_SITES]:
        site = experiment.sites[name]
        wrong = given[name] != truth[name]
        if wrong.any():
            features = np.asarray(site.inputs, dtype=np.float32)
            args = (features, given[name], wrong, site.num_classes, site.groups, seed)
            rows.append(measure_site(*args))
    return rows


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
                        rows = collect_setting(source, noise, num_sites, seed)
                        results[name] = {"rows": rows}
                        write_atomic(options.out, json.dumps(results, indent=1).encode())
                        print(name, flush=True)
    return results
