"""The built-in data set: fields of stained bowel tissue, rendered from a seed, no download.

Six tissues in an order in which neighbours look alike, so that pairflip noise confuses what a tired
reader confuses. They differ by structure, not by colour: every slide has its own stain, shared by
all classes on it, and no slide is in two splits. An image depends on (seed, split, its number)
alone: asking for more images never changes the earlier ones.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

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
    ramp_scalar,
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


# ---- glands ----


@dataclass(frozen=True)
class GlandStyle:
    """What a grade does to the glands of a field."""

    spacing: float  # between gland centres, across the long axis
    stretch: float  # long over short axis
    fill: float  # gland radius over half the spacing
    jitter: float  # irregularity of placement
    warp: float  # irregularity of outline
    wall: float  # thickness of the epithelium
    goblets: float  # share of mucin vacuoles in the wall
    layers: float  # 0: one basal row of nuclei, 1: nuclei at every height
    nucleus: float  # semi-minor axis
    aspect: float  # nuclear elongation, across the wall
    chaos: float  # spread of nuclear angle and size
    pallor: float  # vesicular chromatin


def draw_style(rng: Rng, grade: float, zoom: float) -> GlandStyle:
    """The mean style at a grade with the variation between fields."""
    adenoma = ramp_scalar(grade, 0.2, 0.5)  # rises first and stays
    cancer = ramp_scalar(grade, 0.5, 0.9)
    return GlandStyle(
        spacing=zoom * (0.42 - 0.06 * adenoma + 0.04 * cancer) * rng.uniform(0.88, 1.12),
        stretch=1.0 + rng.uniform(0.0, 0.55) + 0.45 * adenoma * (1 - cancer),
        fill=0.80 + 0.14 * adenoma + 0.10 * cancer,
        jitter=0.05 + 0.03 * adenoma + 0.09 * cancer,
        warp=0.012 + 0.010 * adenoma + 0.038 * cancer,
        wall=zoom * (0.115 + 0.015 * adenoma + 0.02 * cancer),
        goblets=max(0.0, 0.85 - 0.75 * adenoma - 0.1 * cancer),
        layers=0.08 + 0.42 * adenoma + 0.5 * cancer,
        nucleus=zoom * (0.021 + 0.001 * adenoma + 0.011 * cancer),
        aspect=1.35 + 0.85 * adenoma - 0.8 * cancer,
        chaos=0.12 + 0.06 * adenoma + 0.14 * cancer,
        pallor=0.1 + 0.1 * adenoma + 0.6 * cancer,
    )


def _ellipse_angles(stretch: float, place: np.ndarray) -> np.ndarray:
    """Angles at these fractions of the circumference of an ellipse with axes stretch : 1."""
    t = np.linspace(0, 2 * np.pi, 65)
    steps = np.hypot(stretch * np.diff(np.cos(t)), np.diff(np.sin(t)))
    length = np.concatenate([[0.0], np.cumsum(steps)])
    return np.asarray(np.interp(place, length / length[-1], t))


@dataclass(frozen=True)
class _Glands:
    """The outlines of all glands of a field: ellipses."""

    centre: np.ndarray  # (K, 2)
    long: np.ndarray  # (K,) semi-axes
    short: np.ndarray
    angle: np.ndarray


def _nearest_gland(g: _Glands, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For every point the number of the nearest gland, and the elliptic radius in it.

    Returns (radius, gland); a radius of 1 is the outline.
    """
    smallest = np.full(x.shape, np.inf, dtype=np.float32)
    nearest = np.zeros(x.shape, dtype=np.intp)
    # one gland at a time stays in the processor's cache
    for k, (cx, cy) in enumerate(g.centre.tolist()):
        c = float(np.cos(g.angle[k]))
        s = float(np.sin(g.angle[k]))
        long = float(g.long[k])
        short = float(g.short[k])
        dx = x - cx
        dy = y - cy
        u = dx * (c / long) + dy * (s / long)
        v = dy * (c / short) - dx * (s / short)
        square = u * u + v * v
        nearest[square < smallest] = k
        np.minimum(smallest, square, out=smallest)
    return np.sqrt(smallest), nearest


@dataclass(frozen=True)
class _Wall:
    """Places along the walls of all glands."""

    owner: np.ndarray  # (n,) the gland
    t: np.ndarray  # (n,) angle in the gland's own frame
    outward: np.ndarray  # (n,) direction of the outline's normal

    def points(self, g: _Glands, depth: np.ndarray | float) -> np.ndarray:
        """(n, 2) points this far below the outline."""
        k = self.owner
        u = np.cos(self.t) * np.maximum(g.long[k] - depth, 0.02)
        v = np.sin(self.t) * np.maximum(g.short[k] - depth, 0.02)
        c = np.cos(g.angle[k])
        s = np.sin(g.angle[k])
        return np.asarray(g.centre[k] + np.stack([c * u - s * v, s * u + c * v], axis=1))


def _place_along(rng: Rng, g: _Glands, stretch: float, gap: float, wobble: float) -> _Wall:
    """Places about `gap` apart along every outline."""
    # Ramanujan's circumference of an ellipse
    girth = np.pi * g.short * (3 * (stretch + 1) - np.sqrt((3 * stretch + 1) * (stretch + 3)))
    count = np.maximum(4, np.rint(girth / gap)).astype(int)
    owner = np.repeat(np.arange(len(count)), count)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    start = rng.random(len(count))[owner]
    place = (number + start + rng.normal(0, wobble, len(owner))) / count[owner]
    t = _ellipse_angles(stretch, place % 1.0)
    return _Wall(owner, t, np.arctan2(np.sin(t) * stretch, np.cos(t)) + g.angle[owner])


def _draw_wall_cells(
    rng: Rng, g: _Glands, style: GlandStyle
) -> tuple[tuple[Cells, np.ndarray], tuple[Cells, np.ndarray]]:
    """Nuclei and goblet vacuoles of all walls, each with the numbers of their glands.

    The outline is not bent yet.
    """
    gap = style.nucleus * 2.75 / (1 + 1.3 * style.layers)
    wall = _place_along(rng, g, style.stretch, gap, style.chaos)
    n = len(wall.t)
    basal = style.nucleus * style.aspect * 1.05
    depth = basal + (style.wall - basal) * style.layers * rng.random(n)
    nuclei = Cells.draw(
        rng,
        centre=wall.points(g, depth),
        size=style.nucleus,
        aspect=style.aspect,
        angle=wall.outward + rng.normal(0, 1.4 * style.chaos, n),
        stain=1.25,
        variation=style.chaos,
        pallor=style.pallor,
    )
    cups = _place_along(rng, g, style.stretch, 0.115, 0.1)
    is_goblet = rng.random(len(cups.t)) < style.goblets
    centre = cups.points(g, 0.66 * style.wall)
    vacuoles = Cells.draw(rng, centre, 0.27 * style.wall, 1.3, cups.outward, 1.0)
    return (nuclei, wall.owner), (select_cells(vacuoles, is_goblet), cups.owner[is_goblet])


def _place_glands(rng: Rng, style: GlandStyle) -> _Glands:
    """Random positions and axes."""
    axis = rng.uniform(0, np.pi)
    centre = scatter_points(
        rng, style.spacing, style.jitter, margin=0.25, stretch=style.stretch, angle=axis
    )
    limit = 0.5 + 0.5 * style.spacing * style.stretch
    centre = centre[np.all(np.abs(centre - 0.5) < limit, axis=1)]  # those that can be seen
    n = len(centre)
    variation = np.exp(rng.normal(0, 0.05 + 0.6 * style.jitter, n))
    short = 0.5 * style.spacing * style.fill * variation
    angle = axis + rng.normal(0, 0.08 + 1.5 * style.jitter, n)
    return _Glands(centre, short * style.stretch, short, angle)


def paint_glands(
    rng: Rng, canvas: Canvas, grade: float, zoom: float = 1.0
) -> tuple[Cells, Cells, np.ndarray]:
    """Paint lumina and walls over the stroma.

    Returns the nuclei, the mucin vacuoles and the (R, R) share of gland, so that the caller can
    put stromal cells outside.
    """
    style = draw_style(rng, grade, zoom)
    g = _place_glands(rng, style)
    # the outline is bent by moving coordinates, not glands: cheap, and neighbours bend together
    bend_x = style.warp * smooth_noise(rng, canvas.res, 6)
    bend_y = style.warp * smooth_noise(rng, canvas.res, 6)
    radius, nearest = _nearest_gland(g, canvas.x + bend_x, canvas.y + bend_y)
    # inwards from the outline, in fields of view
    height = (1 - radius) * g.short.astype(np.float32)[nearest]

    soft = 1.0 / canvas.res
    inside = ramp(height, -soft, soft)
    lumen_height = style.wall * (1 + 0.16 * smooth_noise(rng, canvas.res, 7))
    lumen = ramp(height - lumen_height, -1.5 * soft, 1.5 * soft) * inside
    membrane = np.exp(-(((height + 0.006) / 0.012) ** 2))
    adenoma = ramp_scalar(grade, 0.2, 0.5)
    cancer = ramp_scalar(grade, 0.5, 0.9)
    grain = smooth_noise(rng, canvas.res, 16)
    wall_e = 0.42 + 0.06 * cancer + 0.05 * grain
    wall_h = 0.16 + 0.17 * adenoma - 0.05 * cancer + 0.03 * grain
    canvas.eosin[:] = canvas.eosin * (1 - inside) + wall_e * inside + 0.22 * membrane * (1 - cancer)
    canvas.haem[:] = canvas.haem * (1 - inside) + wall_h * inside
    debris = 0.04 + 0.22 * cancer * ramp(smooth_noise(rng, canvas.res, 9), 0.2, 1.2)
    canvas.eosin[:] = canvas.eosin * (1 - lumen) + debris * lumen
    canvas.haem[:] = canvas.haem * (1 - lumen) + (0.02 + 0.5 * debris) * lumen

    visible_cells = []
    for cells, owner in _draw_wall_cells(rng, g, style):
        is_visible = np.all(np.abs(cells.centre - 0.5) < 0.6, axis=1)
        cells = select_cells(cells, is_visible)
        # where glands meet, the nearer one wins
        gland = _nearest_gland(g, *cells.centre.astype(np.float32).T)[1]
        is_home = gland == owner[is_visible]
        bend = np.stack([sample_at(bend_x, cells.centre), sample_at(bend_y, cells.centre)], axis=1)
        cells.centre = cells.centre - bend
        visible_cells.append(select_cells(cells, is_home))
    nuclei, vacuoles = visible_cells
    return nuclei, vacuoles, inside
