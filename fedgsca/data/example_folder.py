"""`fedgsca data example`: a folder of artificial images, for trying the commands without data."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from fedgsca.data.readers.synthetic.images import CLASSES, render
from fedgsca.errors import RunFolderError
from fedgsca.noise import corrupt, parse_noise
from fedgsca.rng import stream
from fedgsca.support.files import write_atomic

NUM_TRAIN, NUM_TEST = 240, 80
SIZE = 64  # pixels
NOISE = "S15"  # wrong labels among the training images
LIST = "labels.csv"


def write_example_folder(folder: Path, seed: int = 0) -> int:
    """Write images and labels.csv; returns how many training labels are wrong.

    Another seed is another hospital: other images, other wrong labels.
    """
    from PIL import Image

    if folder.exists():
        raise RunFolderError(
            "data.example-exists",
            f"{folder} exists already",
            fix="choose a folder that does not exist yet",
        )
    table = render(seed=seed, train=NUM_TRAIN, test=NUM_TEST, size=SIZE)
    assert table.groups is not None
    rng = stream(seed, "example folder", "noise")
    noise = parse_noise(NOISE, 1)[0]
    noisy_labels = corrupt(table.labels, noise, num_classes=len(CLASSES), rng=rng)
    labels = np.where(table.split == "train", noisy_labels, table.labels)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["file", "label", "group", "split"])
    for i, image in enumerate(table.images):
        name = f"img/{i:04d}.png"
        content = io.BytesIO()
        Image.fromarray(image).save(content, "PNG")
        (folder / "img").mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.getvalue())
        rows.writerow([name, CLASSES[labels[i]], table.groups[i], table.split[i]])
    write_atomic(folder / LIST, text.getvalue().encode())  # last: a folder with a list is complete
    return int((labels != table.labels).sum())
