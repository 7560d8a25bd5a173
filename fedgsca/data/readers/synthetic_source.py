"""The built-in data set as a source: rendered once per seed and size, then read from the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.data.cache import Extra, cached_rows
from fedgsca.data.reader import READERS, Reader, ReaderOptions
from fedgsca.data.table import ImageTable


def read_synthetic(location: str, options: ReaderOptions) -> ImageTable:
    """The rendered images; `location` is the source's name and holds nothing to read."""
    from fedgsca.data.readers.synthetic import images as synthetic

    parameters = _parameters(options, synthetic.render.__kwdefaults__ or {})

    def render_rows(extra: Extra) -> list[np.ndarray]:
        table = synthetic.render(**parameters)
        extra["classes"] = list(table.classes)
        extra["labels"] = table.labels.tolist()
        extra["fingerprint"] = table.fingerprint
        extra["split"] = table.split.tolist()
        extra["ids"] = table.ids.tolist()
        extra["groups"] = None if table.groups is None else table.groups.tolist()
        extra["notes"] = list(table.notes)
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
        classes=tuple(extra["classes"]),
        split=np.array(extra["split"]),
        ids=np.array(extra["ids"]),
        fingerprint=extra["fingerprint"],
        groups=None if extra["groups"] is None else np.array(extra["groups"]),
        notes=(*extra["notes"], *entry.notes),
    )


def _parameters(options: ReaderOptions, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `render`."""
    settings = {
        "seed": options.seed,
        "train": options.train,
        "test": options.test,
        "size": options.image_size,
        "difficulty": options.difficulty,
    }
    return {**defaults, **{name: value for name, value in settings.items() if value is not None}}


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
