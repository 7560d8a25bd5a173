"""At which size a frozen backbone should see the images: macro F1 and cost, by feature_size.

    python -m benchmarks.feature_size --data ham10000_small --sizes 96 160 224
    python -m benchmarks.feature_size --data synthetic:224 --sizes 96 160 224

`synthetic:224` renders the built-in tissue at 224 pixels. FedAvg, 4 sites, no noise, frozen
EfficientNet-Lite0; F1 is the mean of the last five rounds on the test images, over the seeds. The
cost is CPU time per image, so that other programs on the machine do not count. docs/models.md has
results.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedgsca.config import Config, load_config
from fedgsca.data.readers.synthetic.images import CLASSES, render
from fedgsca.federation.data_source import load_table
from fedgsca.federation.rounds import run
from fedgsca.models.build import build_frozen, feature_width
from fedgsca.models.features import extract

ROUNDS = 40
PROBE = 32  # images whose cost is measured
SYNTHETIC = "synthetic:"
FAST_FOLDER = Path("/dev/shm")  # without waiting for a disk, where there is one


def write_synthetic(size: int, train: int, test: int, folder: Path) -> Path:
    """A MedMNIST-style file of the built-in tissue, rendered at `size` pixels."""
    table = render(seed=0, train=train, test=test, size=size)
    is_train = np.asarray(table.split) == "train"
    path = folder / f"tissue-{size}.npz"
    arrays: dict[str, np.ndarray] = {}
    for split, rows in (("train", is_train), ("test", ~is_train)):
        arrays[f"{split}_images"] = np.asarray(table.images)[rows]
        arrays[f"{split}_labels"] = np.asarray(table.labels)[rows, None]
    np.savez(path, **arrays)  # type: ignore[arg-type]
    assert int(table.labels.max()) < len(CLASSES)
    return path


def make_config(source: str, size: int, seed: int, train: int, test: int) -> Config:
    """FedAvg on the features of images of `size` pixels."""
    return load_config(
        method="fedavg",
        data__source=source,
        data__sites=4,
        data__train=train,
        data__test=test,
        model__name="efficientnet-lite0",
        model__frozen=True,
        model__feature_size=size,
        train__rounds=ROUNDS,
        audit__enabled=False,
        seed=seed,
    )


def cost_per_image(config: Config) -> float:
    """CPU milliseconds per image, resizing included."""
    images = np.asarray(load_table(config).images[:PROBE])
    backbone = build_frozen(config.model, seed=0)
    out = np.empty((len(images), feature_width(config.model)), np.float32)
    extract(backbone, config.model, images[:1], out[:1])  # sets up the libraries
    start = time.process_time()
    extract(backbone, config.model, images, out)
    return 1000 * (time.process_time() - start) / len(images)


def measure(
    source: str, size: int, seeds: Sequence[int], train: int, test: int, folder: Path
) -> dict[str, object]:
    """One row of the table."""
    scores = []
    for seed in seeds:
        result = run(make_config(source, size, seed, train, test), folder / f"{size}-{seed}")
        assert result is not None
        scores.append(result.f1)
    config = make_config(source, size, seeds[0], train, test)
    return {"size": size, "f1": scores, "milliseconds": cost_per_image(config)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="any source, or synthetic:PIXELS")
    parser.add_argument("--sizes", type=int, nargs="+", default=[96, 160, 224])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--train", type=int, default=500)
    parser.add_argument("--test", type=int, default=300)
    options = parser.parse_args()
    place = FAST_FOLDER if FAST_FOLDER.is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as name:
        folder = Path(name)
        os.environ.setdefault("FEDGSCA_CACHE", str(folder / "cache"))
        source = options.data
        if source.startswith(SYNTHETIC):
            pixels = int(source.removeprefix(SYNTHETIC))
            source = str(write_synthetic(pixels, options.train, options.test, folder))
        for size in options.sizes:
            row = measure(source, size, options.seeds, options.train, options.test, folder)
            print(json.dumps({"data": options.data, **row}), flush=True)


if __name__ == "__main__":
    main()
