"""The built-in data set: fields of stained bowel tissue, rendered from a seed, no download.

Six tissues in an order in which neighbours look alike, so that pairflip noise confuses what a tired
reader confuses. They differ by structure, not by colour: every slide has its own stain, shared by
all classes on it, and no slide is in two splits. An image depends on (seed, split, its number)
alone: asking for more images never changes the earlier ones.
"""

from __future__ import annotations

import hashlib

import numpy as np

from fedgsca.data.readers.synthetic.glands import paint_glands
from fedgsca.data.readers.synthetic.tissue import (
    Canvas,
    Cells,
    Rng,
    blank_canvas,
    draw_lymphocytes,
    draw_spindles,
    join_cells,
    paint_cells,
    paint_fibres,
    ramp,
    sample_at,
    scatter_points,
    select_cells,
    smooth_noise,
)
from fedgsca.data.table import SPLITS, ImageTable, check_table
from fedgsca.errors import ConfigError
from fedgsca.rng import stream

CLASSES: tuple[str, ...] = (
    "normal mucosa",
    "adenoma",
    "adenocarcinoma",
    "lymphoid",
    "stroma",
    "muscle",
)

# Plausible misdiagnoses, for CK-asymmetric noise: neighbours on the way from normal to cancer, and
# the two fibrous tissues.
CANDIDATES: dict[str, tuple[str, ...]] = {
    "normal mucosa": ("adenoma", "lymphoid"),
    "adenoma": ("normal mucosa", "adenocarcinoma"),
    "adenocarcinoma": ("adenoma", "stroma"),
    "lymphoid": ("normal mucosa", "adenocarcinoma"),
    "stroma": ("muscle", "adenocarcinoma"),
    "muscle": ("stroma", "normal mucosa"),
}

# The classes of the 24 fields of one slide: the same mix on every slide, so that every prefix is as
# imbalanced as the complete set.
SLIDE = np.repeat(np.arange(len(CLASSES)), (6, 4, 3, 2, 6, 3))

# Mean and deviation of each class on its continuum (tissue.py); the tails of neighbours touch.
GRADE = ((0.14, 0.10), (0.50, 0.08), (0.88, 0.09))  # glands: normal mucosa, adenoma, adenocarcinoma
ORDER = ((0.20, 0.13), (0.85, 0.13))  # fibres: stroma, muscle

# What the highest difficulty does: deviations grow by this factor, and infiltrates are this much
# thinner, so that lymphoid tissue passes into stroma.
HARDEST_SPREAD = 2.5
HARDEST_THINNING = 1.2


def _glandular(rng: Rng, canvas: Canvas, grade: float, zoom: float) -> Cells:
    """A field of glands in their stroma, with the few cells that live between them."""
    across = paint_fibres(rng, canvas, 0.1, zoom)
    canvas.eosin *= 0.85
    nuclei, vacuoles, inside = paint_glands(rng, canvas, grade, zoom)
    _wash_out(canvas, vacuoles)
    stroma = draw_spindles(rng, across, 0.1, rng.uniform(1.5, 3.0), zoom)
    visitors = scatter_points(rng, zoom * 0.11, 0.3)
    visitors = visitors[rng.random(len(visitors)) < rng.uniform(0.1, 0.5)]
    stroma = join_cells(stroma, draw_lymphocytes(rng, visitors, zoom * 0.85))
    return join_cells(nuclei, select_cells(stroma, sample_at(inside, stroma.centre) < 0.1))


def _wash_out(canvas: Canvas, vacuoles: Cells) -> None:
    """Mucin takes almost no dye: vacuoles thin both out, leaving a faint blue."""
    stamp = blank_canvas(canvas.res)
    paint_cells(stamp, vacuoles)
    clear = np.clip(stamp.haem, 0, 1)
    canvas.eosin *= 1 - 0.8 * clear
    canvas.haem[:] = canvas.haem * (1 - clear) + 0.13 * clear


def _lymphoid(rng: Rng, canvas: Canvas, zoom: float, thinning: float = 0.0) -> Cells:
    """A dense infiltrate over stroma, thinner where the density field falls off."""
    across = paint_fibres(rng, canvas, 0.2, zoom)
    density = ramp(smooth_noise(rng, canvas.res, 3) + rng.normal(1.3 - thinning, 0.5), -0.8, 0.6)
    canvas.haem += 0.16 * density
    canvas.eosin *= 1 - 0.35 * density
    centre = scatter_points(rng, zoom * rng.uniform(0.068, 0.085), 0.16)
    centre = centre[rng.random(len(centre)) < sample_at(density, centre) * 0.95]
    stroma = draw_spindles(rng, across, 0.1, 1.0, zoom)
    return join_cells(stroma, draw_lymphocytes(rng, centre, zoom))


def _fibrous(rng: Rng, canvas: Canvas, order: float, zoom: float) -> Cells:
    """Stroma or muscle with its spindle nuclei and a few passing lymphocytes."""
    across = paint_fibres(rng, canvas, order, zoom)
    cells = draw_spindles(rng, across, order, rng.uniform(0.7, 1.5) * (1 + 0.4 * order), zoom)
    visitors = scatter_points(rng, zoom * 0.12, 0.3)
    visitors = visitors[rng.random(len(visitors)) < rng.uniform(0, 0.22) * (1 - order)]
    return join_cells(cells, draw_lymphocytes(rng, visitors, zoom))


def _field(rng: Rng, label: int, res: int, difficulty: float) -> Canvas:
    """Dye concentrations of one field of a class."""
    canvas = blank_canvas(res)
    spread = 1 + (HARDEST_SPREAD - 1) * difficulty
    zoom = rng.uniform(0.88, 1.14)
    if label < 3:
        mean, deviation = GRADE[label]
        cells = _glandular(rng, canvas, float(rng.normal(mean, spread * deviation)), zoom)
    elif label == 3:
        cells = _lymphoid(rng, canvas, zoom, HARDEST_THINNING * difficulty)
    else:
        mean, deviation = ORDER[label - 4]
        order = float(np.clip(rng.normal(mean, spread * deviation), 0, 1))
        cells = _fibrous(rng, canvas, order, zoom)
    paint_cells(canvas, cells)
    canvas.haem *= 1 + 0.10 * smooth_noise(rng, res, 20)  # chromatin grain
    canvas.eosin *= 1 + 0.08 * smooth_noise(rng, res, 12)
    return canvas


def _stain(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """A slide's stain: (2, 3) optical density per unit of dye, (3,) colour of the bare glass."""
    haem = np.array([0.62, 0.70, 0.32]) + rng.normal(0, (0.05, 0.035, 0.04))
    eosin = np.array([0.13, 0.83, 0.42]) + rng.normal(0, (0.035, 0.03, 0.07))
    dyes = np.stack([haem / np.linalg.norm(haem), eosin / np.linalg.norm(eosin)])
    strength = np.exp(rng.normal(0, (0.13, 0.17))) * (1.05, 0.72)
    glass = np.clip(rng.normal((0.955, 0.945, 0.955), 0.012), 0.88, 0.99)
    return dyes * strength[:, None], glass


def _develop(
    canvas: Canvas, stain: tuple[np.ndarray, np.ndarray], rng: Rng, size: int
) -> np.ndarray:
    """Concentrations to (size, size, 3) uint8.

    Beer-Lambert mixing, area averaging, uneven light and sensor noise.
    """
    dyes, glass = stain
    amounts = np.stack([np.maximum(canvas.haem, 0), np.maximum(canvas.eosin, 0)], axis=-1)
    density = amounts @ dyes.astype(np.float32)
    light = np.exp(-float(np.exp(rng.normal(0, 0.07))) * density)
    step = canvas.res // size
    light = light.reshape(size, step, size, step, 3).mean(axis=(1, 3)) * glass
    light = light + 0.012 * rng.standard_normal(light.shape, dtype=np.float32)
    return np.asarray(np.rint(np.clip(light, 0, 1) * 255).astype(np.uint8))


def _labels(seed: int, split: str, count: int) -> np.ndarray:
    """Class of every image: each slide has the same mix in its own order."""
    slides = -(-count // len(SLIDE))
    order = [stream(seed, "synthetic", split, "slide", s).permutation(SLIDE) for s in range(slides)]
    return np.concatenate([*order, np.empty(0, dtype=np.int64)])[:count].astype(np.int64)


def render(
    *,
    seed: int = 0,
    train: int = 2400,
    test: int = 800,
    val: int = 0,
    size: int = 32,
    difficulty: float = 0.0,
) -> ImageTable:
    """The data set with this many images per split, `size` pixels square.

    `difficulty` between 0 and 1 lets neighbouring classes overlap: normal mucosa, adenoma and
    adenocarcinoma; stroma and muscle; lymphoid tissue and stroma.
    """
    if not 16 <= size <= 256:
        raise ConfigError(
            "data.synthetic-size",
            f"the size of synthetic images must be between 16 and 256 pixels, got {size}",
            fix="choose another size (28 to 128 look best)",
        )
    counts = {"train": train, "val": val, "test": test}
    split = np.repeat(SPLITS, list(counts.values()))
    numbers = np.concatenate([np.arange(count) for count in counts.values()])
    labels = np.concatenate([_labels(seed, name, count) for name, count in counts.items()])
    ids = []
    groups = []
    for name, i in zip(split.tolist(), numbers.tolist(), strict=True):
        ids.append(f"{name}/{i}")
        groups.append(f"{name}-slide-{i // len(SLIDE):03d}")
    stains = {slide: _stain(stream(seed, "synthetic", "stain", slide)) for slide in set(groups)}
    images = np.empty((len(labels), size, size, 3), dtype=np.uint8)
    for row, slide in enumerate(groups):
        rng = stream(seed, "synthetic", str(split[row]), int(numbers[row]))
        canvas = _field(rng, int(labels[row]), 2 * size, difficulty)
        images[row] = _develop(canvas, stains[slide], rng, size)
    return check_table(
        ImageTable(
            name="synthetic",
            images=images,
            labels=labels,
            classes=CLASSES,
            split=split,
            ids=np.array(ids),
            fingerprint=_fingerprint(images, labels, split),
            groups=np.array(groups),
        )
    )


def _fingerprint(images: np.ndarray, labels: np.ndarray, split: np.ndarray) -> str:
    """Of its own, not table.fingerprint: the names of published results contain it."""
    digest = hashlib.sha256(repr((images.shape, CLASSES, split.tolist())).encode())
    digest.update(labels.astype("<i8").tobytes())
    digest.update(images.tobytes())
    return digest.hexdigest()
