"""The built-in data set as a source: rendered once per seed and size, then read from the cache."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.data.cache import Extra, cached_rows
from fedgsca.data.reader import READERS, Reader, ReaderOptions
from fedgsca.data.readers.synthetic import images
from fedgsca.data.table import ImageTable
from fedgsca.data.table_import import LABELS_FILE
from fedgsca.errors import RunFolderError
from fedgsca.noise import corrupt, parse_noise
from fedgsca.rng import stream
from fedgsca.support.csv_table import render_csv
from fedgsca.support.files import write_atomic


def read_synthetic(location: str, options: ReaderOptions) -> ImageTable:
    """The rendered images; `location` is the source's name and holds nothing to read."""
    settings = {
        "seed": options.seed,
        "train": options.train,
        "test": options.test,
        "size": options.image_size,
        "difficulty": options.difficulty,
    }
    defaults = images.render.__kwdefaults__ or {}
    chosen_settings = {name: value for name, value in settings.items() if value is not None}
    parameters: dict[str, Any] = {**defaults, **chosen_settings}

    def render_rows(extra: Extra) -> list[np.ndarray]:
        table = images.render(**parameters)
        extra["fingerprint"] = table.fingerprint
        for name in ("labels", "split", "ids", "groups"):
            extra[name] = getattr(table, name).tolist()
        return [table.images]

    entry = cached_rows(
        f"synthetic {_renderer_version()} {sorted(parameters.items())}",
        (parameters["size"], parameters["size"], 3),
        np.uint8,
        render_rows,
        parameters["train"] + parameters["test"] + parameters["val"],
        options.cache_dir,
    )
    extra = entry.extra
    return ImageTable(
        name="synthetic",
        images=entry.array,
        labels=np.array(extra["labels"], np.int64),
        classes=images.CLASSES,
        split=np.array(extra["split"]),
        ids=np.array(extra["ids"]),
        fingerprint=extra["fingerprint"],
        groups=np.array(extra["groups"]),
        notes=entry.notes,
    )


def _renderer_version() -> str:
    """A digest of the renderer's source files: after a change to them, images are drawn again."""
    folder = Path(__file__).with_name("synthetic")
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.read_bytes())
    digest.update(np.__version__.encode())
    return digest.hexdigest()


READERS.register(
    "synthetic",
    Reader(
        form="synthetic",
        summary="built-in stained tissue, rendered from the seed",
        read=read_synthetic,
        has_difficulty=True,
        order=10,
    ),
)


# ---- a folder of rendered images, for trying the commands without data ----


NUM_TRAIN, NUM_TEST = 240, 80
SIZE = 64  # pixels
NOISE = "S15"  # wrong labels among the training images


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
    table = images.render(seed=seed, train=NUM_TRAIN, test=NUM_TEST, size=SIZE)
    assert table.groups is not None
    rng = stream(seed, "example folder", "noise")
    noise = parse_noise(NOISE, 1)[0]
    noisy_labels = corrupt(table.labels, noise, num_classes=table.num_classes, rng=rng)
    labels = np.where(table.split == "train", noisy_labels, table.labels)
    lines = [["file", "label", "group", "split"]]
    for i, image in enumerate(table.images):
        name = f"img/{i:04d}.png"
        content = io.BytesIO()
        Image.fromarray(image).save(content, "PNG")
        write_atomic(folder / name, content.getvalue())
        lines.append([name, table.classes[labels[i]], table.groups[i], table.split[i]])
    # last: a folder with a list is complete
    write_atomic(folder / LABELS_FILE, render_csv(lines).encode())
    return int((labels != table.labels).sum())
