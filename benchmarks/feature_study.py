"""Which frozen features explain labels best: networks, stages, their weights, flips, size.

    python -m benchmarks.feature_study --data pathmnist_small.npz ham10000_small --out study.json
    python -m benchmarks.feature_study --out study.json             # only print the table

Every choice is judged on validation images, a quarter of the training images where a source has
none; test images are not read. A linear head is trained on 1,000 images as runs train it (the rate
of `head_rate`, 60 epochs): with 30 % of the labels wrong, and with right ones. `AUROC` is how well
four cross-fitted heads with few epochs tell wrong labels from right ones, and `explained` the share
of the entropy of given labels that they explain, which needs no true label. Means of three seeds.
The cost is CPU time per image, resizing included. Finished rows are kept, so it can be interrupted.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.generalisation.sources import cut_validation
from docs.generate import make_table
from fedgsca import metrics
from fedgsca.config import ModelConfig
from fedgsca.data.load import load
from fedgsca.evidence import softmax
from fedgsca.metrics import auroc, confusion
from fedgsca.models.build import build_frozen, feature_width, spec_of
from fedgsca.models.features import extract
from fedgsca.models.weights import packaged_weights
from fedgsca.rng import stream

SEEDS = (1, 2, 3)
LIMIT = 1000
WRONG = 0.3
EPOCHS, AUDIT_EPOCHS = 60, 15
LITE, PAIR = "efficientnet-lite0", "efficientnet-lite0-resnet50"


@dataclass(frozen=True)
class Images:
    """The images of a data set that the study may see."""

    # (n, H, W, 3) uint8 and (n,)
    images: np.ndarray
    labels: np.ndarray
    # (n,) bool: validation images
    is_val: np.ndarray
    num_classes: int


@dataclass(frozen=True)
class Row:
    """One choice on one data set; F1, AUROC and share in percent."""

    data: str
    choice: str
    width: int
    f1_wrong: float
    f1_right: float
    auroc: float
    explained: float
    milliseconds: float


@functools.lru_cache(maxsize=1)
def read_images(source: str) -> Images:
    """Validation images and at most LIMIT training images."""
    table = load(source, train=1300, test=2) if source == "synthetic" else load(source)
    split = cut_validation(table)
    train = np.flatnonzero(split == "train")
    train = np.sort(stream(0, "feature study").permutation(train)[:LIMIT])
    val = np.flatnonzero(split == "val")
    rows = np.concatenate([train, val])
    is_val = np.arange(len(rows)) >= len(train)
    return Images(np.asarray(table.images[rows]), table.labels[rows], is_val, table.num_classes)


@functools.lru_cache(maxsize=2)
def compute(
    source: str, name: str, features: str, size: int = 96, *, is_mirrored: bool = False
) -> np.ndarray:
    """(n, D): frozen features as runs compute them."""
    images = read_images(source).images
    if is_mirrored:
        images = np.ascontiguousarray(images[:, :, ::-1])
    model = ModelConfig.model_validate(
        {"name": name, "frozen": True, "features": features, "feature_size": size}
    )
    out = np.empty((len(images), feature_width(model)), np.float32)
    extract(build_frozen(model, seed=0, weights=packaged_weights(name)), model, images, out)
    return out


def weigh_by_width(features: np.ndarray) -> np.ndarray:
    """Stages with a weight in proportion to the numbers that they have."""
    spec = spec_of(LITE)
    ends = np.cumsum([*spec.stages.values()])
    parts = [part / part.std(axis=1, keepdims=True) for part in np.split(features, ends, axis=1)]
    return np.concatenate(parts, axis=1)


def project(features: np.ndarray, width: int = 512) -> np.ndarray:
    """A fixed random projection, which makes messages short."""
    matrix = stream(0, "projection").standard_normal((features.shape[1], width))
    projection = features @ matrix.astype(np.float32)
    return np.asarray(projection / projection.std(axis=1, keepdims=True))


def average_flips(source: str) -> np.ndarray:
    """The mean over an image and its mirror image."""
    mirror = compute(source, LITE, "stages", is_mirrored=True)
    mean = 0.5 * (compute(source, LITE, "stages") + mirror)
    return np.asarray(mean / mean.std(axis=1, keepdims=True))


CHOICES: dict[str, Callable[[str], np.ndarray]] = {
    "EfficientNet-Lite0, last layer": lambda source: compute(source, LITE, "last"),
    "EfficientNet-Lite0, all stages (default)": lambda source: compute(source, LITE, "stages"),
    "the same, weight by width": lambda source: weigh_by_width(compute(source, LITE, "stages")),
    "the same, projected to 512": lambda source: project(compute(source, LITE, "stages")),
    "the same, flips averaged": average_flips,
    "the same at 224 px": lambda source: compute(source, LITE, "stages", 224),
    "ResNet-50, all stages": lambda source: compute(source, "resnet50", "stages"),
    "both networks, all stages": lambda source: compute(source, PAIR, "stages"),
}


def train_head(
    features: np.ndarray, labels: np.ndarray, num_classes: int, epochs: int, seed: int
) -> np.ndarray:
    """(D, C): softmax regression by SGD with the steps of a run over `epochs` rounds."""
    width = features.shape[1]
    rate = min(10.0 * 32 * 4 / (width * EPOCHS), 64.0 / width)
    weight = np.zeros((width, num_classes), np.float32)
    rng = stream(seed, "head")
    for epoch in range(epochs):
        # as train.lr_steps: smaller steps at the end of a run
        step = rate * 0.1 ** sum(epoch >= share * EPOCHS for share in (0.7, 0.9))
        order = rng.permutation(len(labels))
        for start in range(0, len(order), 32):
            rows = order[start : start + 32]
            gap = softmax(features[rows] @ weight)
            gap[np.arange(len(rows)), labels[rows]] -= 1.0
            weight -= step / len(rows) * (features[rows].T @ gap)
    return weight


def explain(probs: np.ndarray, given: np.ndarray) -> float:
    """Share of the entropy of given labels (n,) that probabilities (n, C) explain."""
    shares = (np.bincount(given, minlength=probs.shape[1]) + 1.0) / (len(given) + probs.shape[1])
    rows = np.arange(len(given))
    best = -np.inf
    for power in (0.7, 1.0, 1.4, 2.0, 3.0, 4.0):
        opinion = softmax(power * np.log(np.maximum(probs, 1e-12)))[rows, given]
        for wrong in (0.0, 0.1, 0.2, 0.3, 0.4):
            best = max(best, float(np.log((1 - wrong) * opinion + wrong * shares[given]).mean()))
    return 1.0 - best / float(np.log(shares[given]).mean())


def measure(images: Images, features: np.ndarray, seed: int) -> tuple[float, float, float, float]:
    """F1 with wrong and with right labels, AUROC, share explained; in percent."""
    train, val = features[~images.is_val], features[images.is_val]
    labels, num_classes = images.labels[~images.is_val], images.num_classes
    rng = stream(seed, "wrong labels")
    is_wrong = rng.random(len(labels)) < WRONG
    given = np.where(
        is_wrong, (labels + rng.integers(1, num_classes, len(labels))) % num_classes, labels
    )
    scores: list[float] = []
    for targets in (given, labels):
        predictions = (val @ train_head(train, targets, num_classes, EPOCHS, seed)).argmax(axis=1)
        matrix = confusion(images.labels[images.is_val], predictions, num_classes)
        scores.append(metrics.scores(matrix).f1)
    folds = rng.integers(0, 4, len(labels))
    probs = np.empty((len(labels), num_classes))
    for fold in range(4):
        mask = folds == fold
        weight = train_head(train[~mask], given[~mask], num_classes, AUDIT_EPOCHS, seed)
        probs[mask] = softmax(train[mask] @ weight)
    doubt = 1.0 - probs[np.arange(len(given)), given]
    return scores[0], scores[1], 100 * (auroc(doubt, is_wrong) or 0.0), 100 * explain(probs, given)


def study(source: str, choice: str) -> Row:
    """One row of the table."""
    images = read_images(source)
    start = time.process_time()
    compute.cache_clear()  # for the cost
    features = CHOICES[choice](source)
    milliseconds = 1000 * (time.process_time() - start) / len(features)
    numbers = np.mean([measure(images, features, seed) for seed in SEEDS], axis=0)
    f1_wrong, f1_right, area, share = (float(number) for number in numbers)
    name = Path(source).name.partition(".")[0]
    return Row(name, choice, features.shape[1], f1_wrong, f1_right, area, share, milliseconds)


def render(rows: list[Row]) -> str:
    """The table, in Markdown."""
    header = ["data", "features", "width", "F1, 30 % wrong", "F1, right", "AUROC", "explained"]
    lines = []
    for row in rows:
        numbers = (row.f1_wrong, row.f1_right, row.auroc, row.explained)
        lines.append([row.data, row.choice, f"{row.width:,}", *(f"{x:.1f}" for x in numbers)])
        lines[-1].append(f"{row.milliseconds:.0f}")
    return make_table([*header, "ms"], lines)


def main() -> None:
    """Measure what is missing, and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="*", default=[], help="sources")
    parser.add_argument("--choices", nargs="*", default=list(CHOICES), choices=list(CHOICES))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = []
    if options.out.exists():
        rows = [Row(**tree) for tree in json.loads(options.out.read_text())]
    for source in options.data:
        for choice in options.choices:
            name = Path(source).name.partition(".")[0]
            if any((row.data, row.choice) == (name, choice) for row in rows):
                continue
            rows.append(study(source, choice))
            options.out.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    print(render(rows))


if __name__ == "__main__":
    main()
