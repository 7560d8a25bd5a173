"""Open-set noise: images of none of the classes take the place of some images of a site.

Every image of a site with noise O is replaced with the site's rate as probability, independently.
The image that takes its place keeps its label, so the given labels follow the class distribution
of the site; its true label is NO_CLASS. It comes from another data source (`noise.open_set`) or is
a texture: the pixels of a random training image of the site in random order, averaged over 3 x 3
neighbours, all in integers. Random streams are addressed by the site's name.

The new images are appended to the table, so that rows of the source stay as they are; the rows of
the sites point to them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedgsca.checked_labels import NO_ORIGINAL, mark_checked
from fedgsca.config import Config
from fedgsca.data.cache import Extra, cached_rows
from fedgsca.data.load import load
from fedgsca.data.table import ImageTable, fingerprint, images_digest
from fedgsca.errors import ConfigError
from fedgsca.noise import NO_CLASS, SiteNoise
from fedgsca.rng import stream

_VERSION = "open-set-1"
_BLOCK = 256  # images

Rows = dict[str, np.ndarray]  # site -> table rows


@dataclass(frozen=True)
class _Replacement:
    """The images of no class at one site."""

    site: str
    # (m,) positions among the site's images
    positions: np.ndarray
    # (m,) rows of the foreign source or, for textures, of the site's table
    origins: np.ndarray


def replace_images(
    config: Config, table: ImageTable, rows: Rows, noise: Mapping[str, SiteNoise]
) -> tuple[ImageTable, Rows, tuple[str, ...]]:
    """The table and the rows of all sites with images of no class, and notes for the run.

    Without open-set noise, everything is returned as it was.
    """
    names = [name for name in rows if noise[name].replaces_images]
    if not names:
        return table, rows, ()
    if table.features is not None:
        raise ConfigError(
            "noise.open-set-needs-network",
            "open-set noise replaces images, and there are no features of the new ones",
            fix="use a network instead of your own features, or other noise",
        )
    foreign, notes = _read_foreign(config, table)
    plan = []
    for name in names:
        plan.append(_draw_replacement(config.seed, name, rows[name], noise[name].rate, foreign))
    large_table = _append_images(config.seed, table, foreign, plan)
    new_rows = dict(rows)
    start = len(table)
    for part in plan:
        site_rows = rows[part.site].copy()
        site_rows[part.positions] = np.arange(start, start + len(part.positions))
        new_rows[part.site] = site_rows
        start += len(part.positions)
    return large_table, new_rows, notes


def _read_foreign(config: Config, table: ImageTable) -> tuple[ImageTable | None, tuple[str, ...]]:
    """The source of foreign images in the size of the table; None: textures are made."""
    source = config.noise.open_set
    if source is None:
        return None, ("images of no class (noise O): textures made from the site's own images",)
    foreign = load(
        source,
        image_size=table.images.shape[1],
        test_fraction=0.0,
        skip_unreadable=config.data.skip_unreadable,
        need_test=False,
    )
    if foreign.images.shape[1:] != table.images.shape[1:]:
        raise ConfigError(
            "noise.open-set-shape",
            f"the images of {source} are {foreign.images.shape[1:3]} pixels, and those of "
            f"{table.name} are {table.images.shape[1:3]}",
            fix="set data.image_size, so that both are square",
        )
    notes = [f"images of no class (noise O): from {foreign.name}"]
    common_classes = sorted(set(foreign.classes) & set(table.classes))
    if common_classes:
        notes.append(
            f"{foreign.name} (noise.open_set) also has a class named {common_classes[0]!r}, so "
            "its images may belong to a class of the experiment"
        )
    return foreign, tuple(notes)


def _draw_replacement(
    seed: int, site: str, rows: np.ndarray, rate: float, foreign: ImageTable | None
) -> _Replacement:
    """Which images of a site (table rows, (n,)) are replaced, and by what."""
    rng = stream(seed, "noise", site, "open-set")
    positions = np.flatnonzero(rng.random(len(rows)) < rate)
    if foreign is None:
        return _Replacement(site, positions, rng.choice(rows, len(positions)))
    if len(positions) > len(foreign):
        raise ConfigError(
            "noise.open-set-too-small",
            f"{site} needs {len(positions)} images of no class, and {foreign.name} has "
            f"{len(foreign)}",
            fix="name a larger source in noise.open_set, or lower the rate",
        )
    return _Replacement(site, positions, rng.permutation(len(foreign))[: len(positions)])


def _append_images(
    seed: int, table: ImageTable, foreign: ImageTable | None, plan: list[_Replacement]
) -> ImageTable:
    """The table with the foreign images at its end, kept in the cache."""
    digest = table.image_digest or images_digest(table.images)
    identity = hashlib.sha256(f"{_VERSION}|{table.images.shape}|{digest}".encode())
    if foreign is not None:
        identity.update((foreign.image_digest or images_digest(foreign.images)).encode())
    for part in plan:
        identity.update(f"|{seed}|{part.site}|".encode())
        identity.update(part.origins.astype("<i8").tobytes())

    def read_rows(extra: Extra) -> Iterator[np.ndarray]:
        for start in range(0, len(table), _BLOCK):
            yield np.asarray(table.images[start : start + _BLOCK])
        for part in plan:
            for number, row in enumerate(part.origins):
                yield _make_image(seed, table, foreign, part.site, number, row)[None]

    names: list[str] = []
    for part in plan:
        names += [f"open-set/{part.site}/{number}" for number in range(len(part.origins))]
    count = len(table) + len(names)
    shape = table.images.shape[1:]
    entry = cached_rows(identity.hexdigest(), shape, np.uint8, read_rows, count)
    no_class = np.full(len(names), NO_CLASS)
    labels = np.concatenate([table.labels, no_class])
    split = np.concatenate([table.split, np.full(len(names), "train")])
    # nobody has checked a label of an image of no class
    checked = None
    if table.checked is not None:
        mask = np.concatenate([table.checked.mask, np.zeros(len(names), bool)])
        original = np.concatenate([table.checked.original, np.full(len(names), NO_ORIGINAL)])
        checked = mark_checked(mask, original)
    return replace(
        table,
        images=entry.array,
        labels=labels,
        split=split,
        ids=np.concatenate([table.ids, np.array(names, dtype=str)]),
        # every foreign image is a group of its own, and no hospital of the source has it
        groups=None if table.groups is None else np.concatenate([table.groups, names]),
        site=None if table.site is None else np.concatenate([table.site, [""] * len(names)]),
        replaced_labels=_extend(table.replaced_labels, no_class),
        checked=checked,
        fingerprint=fingerprint(
            entry.array, labels, table.classes, split, digest=entry.digest, checked=checked
        ),
        image_digest=entry.digest,
        source_table=table,
    )


def _extend(labels: np.ndarray | None, extra_labels: np.ndarray) -> np.ndarray | None:
    return None if labels is None else np.concatenate([labels, extra_labels])


def _make_image(
    seed: int, table: ImageTable, foreign: ImageTable | None, site: str, number: int, row: int
) -> np.ndarray:
    """(H, W, 3) uint8: the foreign image of this row, or a texture from this row of the table."""
    if foreign is not None:
        return np.asarray(foreign.images[row])
    rng = stream(seed, "noise", site, "open-set", number)
    return make_texture(np.asarray(table.images[row]), rng)


def make_texture(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(H, W, 3) uint8: the pixels of an image in random order, averaged over 3 x 3 neighbours.

    It has the colours of the image and none of its shapes. Neighbours continue at the other side.
    """
    height, width, _ = image.shape
    pixels = rng.permutation(image.reshape(-1, 3)).reshape(image.shape).astype(np.uint16)
    rows = [np.roll(pixels, shift, axis=0) for shift in range(min(3, height))]
    sum_of_rows = np.sum(rows, axis=0, dtype=np.uint16)
    columns = [np.roll(sum_of_rows, shift, axis=1) for shift in range(min(3, width))]
    total = np.sum(columns, axis=0, dtype=np.uint16)
    return np.asarray(total // (len(rows) * len(columns)), dtype=np.uint8)
