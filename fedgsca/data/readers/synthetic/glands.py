"""Glands on one continuum of grades: normal crypts (0), adenoma (0.5), adenocarcinoma (1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgsca.data.readers.synthetic.tissue import (
    Canvas,
    Cells,
    Rng,
    ramp,
    ramp_scalar,
    sample_at,
    scatter_points,
    select_cells,
    smooth_noise,
)


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
