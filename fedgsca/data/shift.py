"""An appearance of its own for every simulated site: cameras, scanners, stains and software differ.

`data.shift` has one part per site, joined by "-", like a noise specification; a single part is for
every site, and "none-contrast*" repeats its parts:

    none            the images as they are
    mild, strong    about half of the changes below, drawn for the site
    contrast        one change at full strength; contrast+jpeg are two

The look of a site has the address (seed, "shift", site): another site changes nothing. Test and
validation images come from the patients of the federation: each is shown as the site would show it
that has its class, drawn in proportion to the sites' images of this class; a group stays together,
and an image whose site is known (a site column) has the look of that site.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from PIL import Image, ImageFilter

from fedgsca.data.cache import Extra, cached_rows
from fedgsca.data.table import ImageTable, images_digest, with_fingerprint
from fedgsca.errors import ConfigError
from fedgsca.rng import stream
from fedgsca.support.text import did_you_mean, one_line

# in the order in which light, optics, sensor and software change an image
CHANGES = ("stain", "colour", "vignette", "blur", "resolution", "gamma", "contrast", "jpeg")
STRENGTHS = {"none": 0.0, "mild": 0.5, "strong": 1.0}
# widths of the blur and of the neighbourhood of a local mean, as parts of the image's height
_BLUR = 1.6 / 96
_NEIGHBOURHOOD = 1 / 16
# differences to the local mean are multiplied by it, as is usual for fundus photographs
_GAIN = 4.0
_VERSION = "shift-1"
_BLOCK = 128  # images

Parts = Mapping[str, np.ndarray]  # site -> rows of the table


@dataclass(frozen=True)
class Look:
    """How one site shows its images; the defaults change nothing."""

    # of optical densities: row = channel that absorbs, column = channel in which it is seen
    stain: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)
    # factor of every channel
    colour: tuple[float, ...] = (1.0, 1.0, 1.0)
    # 0 to 1: how dark the corners are
    vignette: float = 0.0
    # standard deviation as a part of the image's height
    blur: float = 0.0
    # the images have so many times the pixels along a side that the site's device resolves
    resolution: float = 1.0
    gamma: float = 1.0
    # 0 to 1: share of the image from which the local mean has been subtracted
    contrast: float = 0.0
    # quality of the compression; 100: none
    jpeg: int = 100


NO_CHANGE = Look()


def parse_shift(spec: str, sites: int) -> list[str]:
    """One part per site from "none-strong", from "strong" for all, or repeated from "none-jpeg*".

    ConfigError for anything else.
    """
    text = spec.strip()
    is_repeated = text.endswith("*")
    parts = [part.strip().lower() for part in text.removesuffix("*").split("-")]
    for part in parts:
        for name in [part] if part in STRENGTHS else part.split("+"):
            if name not in CHANGES and part not in STRENGTHS:
                raise ConfigError(
                    "data.unknown-shift",
                    f"data.shift is {one_line(spec)!r}, and there is no change named {name!r}",
                    fix=f"{did_you_mean(name, (*STRENGTHS, *CHANGES))}use one of: "
                    f"{', '.join(STRENGTHS)}, or changes joined by '+': {', '.join(CHANGES)}",
                )
    if is_repeated or len(parts) == 1:
        return [parts[k % len(parts)] for k in range(sites)]
    if len(parts) != sites:
        raise ConfigError(
            "data.wrong-number-of-shifts",
            f"data.shift {one_line(spec)!r} has {len(parts)} parts for {sites} site(s)",
            fix=f"repeat the parts with {one_line(spec)}*, or write one part for all sites",
        )
    return parts


def draw_look(seed: int, site: str, part: str) -> Look:
    """The look of a site under its part of the specification.

    Everything is drawn in any case, so that a site's mild look is its strong one at half strength.
    """
    rng = stream(seed, "shift", site)
    is_present = dict(zip(CHANGES, (rng.random(len(CHANGES)) < 0.5).tolist(), strict=True))
    strength = STRENGTHS.get(part, 1.0)
    if part not in STRENGTHS:
        is_present = {name: name in part.split("+") for name in CHANGES}
    # how far each change goes, of what is possible
    extents = strength * rng.uniform(0.5, 1.0, len(CHANGES))
    amounts = dict(zip(CHANGES, extents.tolist(), strict=True))
    stain = np.eye(3) + 0.3 * amounts["stain"] * rng.uniform(-1.0, 1.0, (3, 3))
    cast = rng.normal(size=3)
    cast -= cast.mean()
    cast *= 0.35 * amounts["colour"] / np.abs(cast).max()
    direction = 1.0 if rng.random() < 0.5 else -1.0
    look = Look(
        stain=tuple(np.round(stain, 4).ravel().tolist()),
        colour=tuple(np.round(np.exp(cast), 4).tolist()),
        vignette=round(0.7 * amounts["vignette"], 4),
        blur=round(_BLUR * amounts["blur"], 5),
        resolution=round(1.0 + 2.0 * amounts["resolution"], 4),
        gamma=round(float(np.exp(0.6 * amounts["gamma"] * direction)), 4),
        contrast=strength,
        jpeg=round(100 - 85 * amounts["jpeg"]),
    )
    absent = {name: getattr(NO_CHANGE, name) for name in CHANGES if not is_present[name]}
    return NO_CHANGE if strength == 0 else replace(look, **absent)


# ---- one image ----


def apply_look(pixels: np.ndarray, look: Look) -> np.ndarray:
    """(H, W, 3) uint8 as the site shows it; the same array if nothing changes."""
    if look == NO_CHANGE:
        return pixels
    image = Image.fromarray(_change_light(pixels, look))
    height, width = pixels.shape[:2]
    if look.blur:
        image = image.filter(ImageFilter.GaussianBlur(look.blur * height))
    if look.resolution > 1:
        small = (max(4, round(width / look.resolution)), max(4, round(height / look.resolution)))
        image = image.resize(small, Image.Resampling.BOX)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    if look.gamma != 1:
        curve = np.rint(255 * (np.arange(256) / 255) ** look.gamma).astype(int).tolist()
        image = image.point(curve * 3)
    if look.contrast:
        image = _subtract_local_mean(image, look.contrast)
    if look.jpeg < 100:
        image = _compress(image, look.jpeg)
    return np.asarray(image)


def _change_light(pixels: np.ndarray, look: Look) -> np.ndarray:
    """Stain, colour cast and vignette, in this order: (H, W, 3) uint8 -> the same."""
    names = ("stain", "colour", "vignette")
    if all(getattr(look, name) == getattr(NO_CHANGE, name) for name in names):
        return pixels
    light = np.maximum(pixels, 1).astype(np.float32) / np.float32(255)
    if look.stain != NO_CHANGE.stain:
        matrix = np.array(look.stain, np.float32).reshape(3, 3)
        # light is exp(-density); what a dye absorbs adds up
        light = np.exp(np.log(light) @ matrix)
    light = light * np.array(look.colour, np.float32)
    if look.vignette:
        light = light * _corner_shadow(*pixels.shape[:2], look.vignette)
    return np.asarray(np.rint(255 * np.clip(light, 0, 1)), np.uint8)


@lru_cache(maxsize=64)
def _corner_shadow(height: int, width: int, darkness: float) -> np.ndarray:
    """(H, W, 1) float32: 1 in the middle, 1 - darkness in the corners."""
    rows = np.linspace(-1, 1, height, dtype=np.float32)[:, None]
    columns = np.linspace(-1, 1, width, dtype=np.float32)[None, :]
    distances = (rows**2 + columns**2) / 2
    return np.asarray(1 - np.float32(darkness) * distances[..., None])


def _subtract_local_mean(image: Image.Image, share: float) -> Image.Image:
    """Grey plus the enlarged difference to the mean of the neighbourhood, in this share."""
    original = np.asarray(image, np.float32)
    local_mean = image.filter(ImageFilter.GaussianBlur(_NEIGHBOURHOOD * image.height))
    difference = 128 + _GAIN * (original - np.asarray(local_mean, np.float32))
    mixture = (1 - share) * original + share * np.clip(difference, 0, 255)
    return Image.fromarray(np.rint(mixture).astype(np.uint8))


def _compress(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


# ---- a table ----


def shift_images(
    table: ImageTable, parts: Parts, spec: str, seed: int, *, labels: np.ndarray | None = None
) -> ImageTable:
    """The table with the images as the sites show them, kept in the cache.

    `parts` are the training rows of every site; by `labels`, (n,), by default those of the table,
    test images are drawn. With "none" the table itself is returned.
    """
    choices = dict(zip(parts, parse_shift(spec, len(parts)), strict=True))
    looks = [NO_CHANGE, *(draw_look(seed, site, part) for site, part in choices.items())]
    if all(look == NO_CHANGE for look in looks):
        return table
    if table.features is not None or not table.has_images:
        raise ConfigError(
            "data.shift-needs-images",
            f"data.shift changes images, and {table.name} has features of its own",
            fix="use a network instead of your own features, or --set data.shift=none",
        )
    labels = table.labels if labels is None else labels
    numbers = 1 + _site_numbers(table, labels, parts, seed)  # -1, at no site, is the first look
    digest = table.image_digest or images_digest(table.images)
    identity = hashlib.sha256(f"{_VERSION}|{table.images.shape}|{digest}|{looks}".encode())
    identity.update(numbers.astype("<i8").tobytes())

    def read_rows(extra: Extra) -> Iterator[np.ndarray]:
        for start in range(0, len(table), _BLOCK):
            block = np.asarray(table.images[start : start + _BLOCK])
            pairs = zip(block, numbers[start : start + _BLOCK], strict=True)
            yield np.stack([apply_look(pixels, looks[number]) for pixels, number in pairs])

    shape = table.images.shape[1:]
    entry = cached_rows(identity.hexdigest(), shape, np.uint8, read_rows, len(table))
    return with_fingerprint(table, images=entry.array, image_digest=entry.digest)


def _site_numbers(table: ImageTable, labels: np.ndarray, parts: Parts, seed: int) -> np.ndarray:
    """(n,) int64: the site whose look each image has, -1 for one that is at no site."""
    numbers = np.full(len(table), -1, np.int64)
    # counts (sites, C): a test image is drawn from the sites that see its class
    counts = np.zeros((len(parts), table.num_classes))
    for number, rows in enumerate(parts.values()):
        numbers[rows] = number
        counts[number] = np.bincount(labels[rows], minlength=table.num_classes)
    counts[:, counts.sum(axis=0) == 0] = 1
    thresholds = np.cumsum(counts / counts.sum(axis=0), axis=0)
    evaluation_rows = np.flatnonzero(table.split != "train")
    draws = stream(seed, "shift", "test images").random(len(evaluation_rows))
    names = {name: number for number, name in enumerate(parts)}
    group_numbers: dict[str, int] = {}
    for row, draw in zip(evaluation_rows.tolist(), draws.tolist(), strict=True):
        number = int(np.sum(draw >= thresholds[:-1, labels[row]]))
        if table.groups is not None:
            number = group_numbers.setdefault(str(table.groups[row]), number)
        if table.site is not None:
            number = names.get(str(table.site[row]), number)
        numbers[row] = number
    return numbers
