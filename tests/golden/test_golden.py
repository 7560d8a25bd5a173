"""A tiny run whose numbers are in the repository: changing one is a decision, not an accident.

Exact: what comes from addressed streams alone (noise, partition, initial weights). Within a
tolerance: what floating point makes of it on another processor. To accept new numbers, run
FEDGSCA_UPDATE_GOLDEN=1 python -m pytest tests/golden, and explain why in the commit.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_lines
from fedgsca.federation.simulation import prepare
from fedgsca.methods.site import weights_of
from fedgsca.models.build import build_classifier
from fedgsca.noise import corrupt, parse_noise
from fedgsca.noise.candidates import by_similarity
from fedgsca.rng import stream, torch_stream
from tests.toys import toy_config, toy_npz

GOLDEN = Path(__file__).with_name("golden.json")
UPDATE = bool(os.environ.get("FEDGSCA_UPDATE_GOLDEN"))
METHODS = ("fedavg", "fedgsca", "fedgsca-e")
POINTS = 6.0  # of macro F1: three or four of the toy's 90 test images


def sha(*arrays: np.ndarray) -> str:
    result = hashlib.sha256()
    for array in arrays:
        kind = {"f": "<f4" if array.dtype == np.float32 else "<f8", "i": "<i8", "u": "u1"}[
            array.dtype.kind
        ]
        result.update(
            repr(array.shape).encode() + np.ascontiguousarray(array, dtype=kind).tobytes()
        )
    return result.hexdigest()[:32]


def streams() -> dict[str, Any]:
    rng = stream(0, "noise", "site-1")
    return {
        "random": rng.random(4).tolist(),
        "integers": rng.integers(0, 1000, 8).tolist(),
        "permutation": stream(1, "partition").permutation(12).tolist(),
        "torch": torch.randint(0, 1000, (8,), generator=torch_stream(0, "init", "head")).tolist(),
    }


def given_labels() -> dict[str, str]:
    """sha256 of 400 labels after each kind of noise."""
    truth = np.arange(400) % 5
    table = {c: ((c + 1) % 5, (c + 3) % 5) for c in range(5)}
    digests = {}
    for spec in ("S40", "P20", "C20", "S10"):
        noise = parse_noise(spec, 1)[0]
        digests[spec] = sha(
            corrupt(truth, noise, num_classes=5, candidates=table, rng=stream(0, "noise", "site-1"))
        )
    return digests


def sites() -> dict[str, str]:
    """Who holds which images with which labels, under two partitions."""
    digests = {}
    for scheme in ("stratified", "dirichlet"):
        experiment = prepare(toy_config("fedavg", data__partition=scheme))
        for name, samples in experiment.sites.items():
            digests[f"{scheme} {name}"] = sha(experiment.rows[name], samples.labels)
    return digests


def initial_weights() -> dict[str, Any]:
    """Uniform draws are the same everywhere.

    Normal ones go through the processor's logarithm, so their sums are stored instead.
    """
    weights = weights_of(build_classifier("cnn", 4, seed=0))
    head = sha(weights["head.weight"], weights["head.bias"])
    sums = {
        name: round(float(np.abs(w).sum(dtype=np.float64)), 3)
        for name, w in weights.items()
        if w.ndim == 4
    }
    return {"head": head, "names": list(weights), "absolute sums": sums}


def candidates() -> dict[str, list[int]]:
    file = np.load(toy_npz())
    labels = file["train_labels"].ravel().astype(np.int64)
    table = by_similarity(file["train_images"], labels, 3)
    return {str(c): list(others) for c, others in table.items()}


def curves(folder: Path) -> dict[str, Any]:
    numbers = {}
    for method in METHODS:
        config = toy_config(
            method,
            frozen=True,
            source=toy_npz(240, 90, 12),
            train__lr=0.01,
            train__rounds=8,
            train__augment="none",
        )
        run(config, folder / method)
        rows = read_lines(folder / method / "metrics.jsonl")
        numbers[method] = {
            "f1": [round(row["f1"], 1) for row in rows],
            "loss": [round(row["loss"], 3) for row in rows],
            "bytes_up": rows[0]["bytes_up"],
            "names": sorted(rows[0]),
        }
    return numbers


@pytest.fixture(scope="module")
def actual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    numbers = {
        "streams": streams(),
        "given labels": given_labels(),
        "sites": sites(),
        "initial weights": initial_weights(),
        "candidates": candidates(),
        "curves": curves(tmp_path_factory.mktemp("golden")),
    }
    if UPDATE:
        GOLDEN.write_text(json.dumps(numbers, indent=1) + "\n")
    return dict(json.loads(json.dumps(numbers)))


@pytest.fixture(scope="module")
def golden(actual: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(GOLDEN.read_text()))


@pytest.mark.parametrize("key", ["streams", "given labels", "sites", "candidates"])
def test_what_comes_from_streams_is_exact(
    key: str, actual: dict[str, Any], golden: dict[str, Any]
) -> None:
    assert actual[key] == golden[key]


def test_initial_weights(actual: dict[str, Any], golden: dict[str, Any]) -> None:
    current, reference = actual["initial weights"], golden["initial weights"]
    assert (current["head"], current["names"]) == (reference["head"], reference["names"])
    assert current["absolute sums"] == pytest.approx(reference["absolute sums"], rel=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_learning_curve(method: str, actual: dict[str, Any], golden: dict[str, Any]) -> None:
    current, reference = actual["curves"][method], golden["curves"][method]
    assert (current["bytes_up"], current["names"]) == (reference["bytes_up"], reference["names"])
    assert current["f1"] == pytest.approx(reference["f1"], abs=POINTS)
    assert current["loss"] == pytest.approx(reference["loss"], rel=0.05)
