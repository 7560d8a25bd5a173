"""Four honest sites of very different sizes that also differ in what they have.

Made from any source with a training and a test split: the largest site has 68 % of the training
images; the second 30 %, with other colours and more of the later classes; the two small ones 1.2 %
and 0.8 %, the last with less contrast and mostly one class. Of the test images, 30 % have the
colours of the second site.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image

from fedgsca.config import build
from fedgsca.data.table import ImageTable
from fedgsca.federation.simulation import divide
from fedgsca.rng import stream

SHARES = (0.68, 0.30, 0.012, 0.008)
_SIDE = 96
_COLOURS = np.array([1.0, 0.85, 0.75])


def make_lopsided(source: str, folder: Path, seed: int = 0) -> None:
    """Write images and labels.csv with a `site` column; nothing if the folder is there."""
    if (folder / "labels.csv").exists():
        return
    data = {"source": source, "train": 1200, "test": 400} if source == "synthetic" else {}
    table = divide(build({"seed": seed, "data": {"source": source, **data}})).table
    is_training = table.split == "train"
    rng = stream(seed, "lopsided sites")
    sites = np.zeros(len(table.labels), dtype=np.int64)
    sites[is_training] = _assign(table.labels[is_training], table.num_classes, rng)
    has_colours = np.where(is_training, sites == 1, rng.random(len(sites)) < SHARES[1])
    is_flat = is_training & (sites == 3)
    (folder / "img").mkdir(parents=True)
    lines = [("file", "label", "split", "site")]
    for i, (site, split) in enumerate(zip(sites, table.split, strict=True)):
        name = f"img/{i}.png"
        _look(table, i, bool(has_colours[i]), bool(is_flat[i])).save(folder / name)
        lines.append((name, table.classes[table.labels[i]], str(split), f"site-{site + 1}"))
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)


def _assign(labels: np.ndarray, num_classes: int, rng: np.random.Generator) -> np.ndarray:
    """(n,) sites; the smaller ones draw first, and prefer the later classes."""
    sites = np.zeros(len(labels), dtype=np.int64)
    for site in (3, 2, 1):
        free = np.flatnonzero(sites == 0)
        weights = np.where(labels[free] >= num_classes // 2, 4.0, 1.0)
        if site == 3:
            weights = np.where(labels[free] == num_classes - 1, 20.0, 1.0)
        count = round(SHARES[site] * len(labels))
        sites[rng.choice(free, count, replace=False, p=weights / weights.sum())] = site
    return sites


def _look(table: ImageTable, row: int, has_colours: bool, is_flat: bool) -> Image.Image:
    image = Image.fromarray(np.asarray(table.images[row])).convert("RGB").resize((_SIDE, _SIDE))
    value = np.asarray(image, dtype=np.float64) / 255.0
    if has_colours:
        value = value**0.6 * _COLOURS
    if is_flat:
        value = 0.5 + 0.5 * (value - 0.5)
    return Image.fromarray(np.asarray(255.0 * value, dtype=np.uint8))
