"""Glands on one continuum of grades: normal crypts (0), crowded adenoma (0.5), fused adenocarcinoma (1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgsca.data.readers.synthetic.tissue import (
    Canvas,
    Cells,
    Rng,
    bump,
    keep,
    noise,
    ramp,
    sample,
    scatter,
)


@dataclass(frozen=True)
class Habit:
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
    open: float  # vesicular chromatin


def habit(rng: Rng, grade: float, zoom: float) -> Habit:
    """The mean behaviour at a grade with the variation between fields."""
    adenoma = bump(grade, 0.2, 0.5)  # rises first and stays
    cancer = bump(grade, 0.5, 0.9)
    return Habit(
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
        open=0.1 + 0.1 * adenoma + 0.6 * cancer,
    )


def _ring(stretch: float, place: np.ndarray) -> np.ndarray:
    """Angles that stand at these fractions of an ellipse's circumference; its axes are stretch : 1."""
    t = np.linspace(0, 2 * np.pi, 65)
    length = np.concatenate(
        [[0.0], np.cumsum(np.hypot(stretch * np.diff(np.cos(t)), np.diff(np.sin(t))))]
    )
    return np.asarray(np.interp(place, length / length[-1], t))


@dataclass(frozen=True)
class _Gland:
    centre: np.ndarray  # (K, 2)
    long: np.ndarray  # (K,) semi-axes
    short: np.ndarray
    angle: np.ndarray


def _nearest(g: _Gland, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Elliptic radius (1 is the outline) of every point in the gland that it is nearest to, and the number of that gland."""
    best, which = np.full(x.shape, np.inf, dtype=np.float32), np.zeros(x.shape, dtype=np.intp)
    for k, (cx, cy) in enumerate(
        g.centre.tolist()
    ):  # one gland at a time stays in the processor's cache
        c, s, long, short = (
            float(np.cos(g.angle[k])),
            float(np.sin(g.angle[k])),
            float(g.long[k]),
            float(g.short[k]),
        )
        dx, dy = x - cx, y - cy
        u, v = dx * (c / long) + dy * (s / long), dy * (c / short) - dx * (s / short)
        square = u * u + v * v
        which[square < best] = k
        np.minimum(best, square, out=best)
    return np.sqrt(best), which


@dataclass(frozen=True)
class _Wall:
    """Places along the walls of all glands."""

    owner: np.ndarray  # (n,) the gland
    t: np.ndarray  # (n,) angle in the gland's own frame
    outward: np.ndarray  # (n,) direction of the outline's normal

    def at(self, g: _Gland, depth: np.ndarray | float) -> np.ndarray:
        """(n, 2) points this far below the outline."""
        k = self.owner
        u, v = (
            np.cos(self.t) * np.maximum(g.long[k] - depth, 0.02),
            np.sin(self.t) * np.maximum(g.short[k] - depth, 0.02),
        )
        c, s = np.cos(g.angle[k]), np.sin(g.angle[k])
        return np.asarray(g.centre[k] + np.stack([c * u - s * v, s * u + c * v], axis=1))


def _along(rng: Rng, g: _Gland, stretch: float, gap: float, wobble: float) -> _Wall:
    """Places about `gap` apart along every outline."""
    girth = (
        np.pi * g.short * (3 * (stretch + 1) - np.sqrt((3 * stretch + 1) * (stretch + 3)))
    )  # Ramanujan
    count = np.maximum(4, np.rint(girth / gap)).astype(int)
    owner = np.repeat(np.arange(len(count)), count)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    place = (number + rng.random(len(count))[owner] + rng.normal(0, wobble, len(owner))) / count[
        owner
    ]
    t = _ring(stretch, place % 1.0)
    return _Wall(owner, t, np.arctan2(np.sin(t) * stretch, np.cos(t)) + g.angle[owner])


def _wall_cells(
    rng: Rng, g: _Gland, h: Habit
) -> tuple[tuple[Cells, np.ndarray], tuple[Cells, np.ndarray]]:
    """Nuclei and goblet vacuoles of all walls before the outline is bent, each with the gland it belongs to."""
    wall = _along(rng, g, h.stretch, h.nucleus * 2.75 / (1 + 1.3 * h.layers), h.chaos)
    n = len(wall.t)
    basal = h.nucleus * h.aspect * 1.05
    depth = basal + (h.wall - basal) * h.layers * rng.random(n)
    angle = wall.outward + rng.normal(0, 1.4 * h.chaos, n)
    nuclei = Cells.make(
        rng, wall.at(g, depth), h.nucleus, h.aspect, angle, 1.25, vary=h.chaos, open=h.open
    )
    cups = _along(rng, g, h.stretch, 0.115, 0.1)
    chosen = rng.random(len(cups.t)) < h.goblets
    vacuoles = Cells.make(rng, cups.at(g, 0.66 * h.wall), 0.27 * h.wall, 1.3, cups.outward, 1.0)
    return (nuclei, wall.owner), (keep(vacuoles, chosen), cups.owner[chosen])


def glands(
    rng: Rng, canvas: Canvas, grade: float, zoom: float = 1.0
) -> tuple[Cells, Cells, np.ndarray]:
    """Paint lumina and walls over the stroma already there.

    Returns the nuclei, the mucin vacuoles and the (R, R) share of gland, so that the caller can keep stromal cells outside.
    """
    h = habit(rng, grade, zoom)
    axis = rng.uniform(0, np.pi)
    centre = scatter(rng, h.spacing, h.jitter, margin=0.25, stretch=h.stretch, angle=axis)
    centre = centre[
        np.all(np.abs(centre - 0.5) < 0.5 + 0.5 * h.spacing * h.stretch, axis=1)
    ]  # those that can be seen
    n = len(centre)
    short = 0.5 * h.spacing * h.fill * np.exp(rng.normal(0, 0.05 + 0.6 * h.jitter, n))
    g = _Gland(centre, short * h.stretch, short, axis + rng.normal(0, 0.08 + 1.5 * h.jitter, n))
    # the outline is bent by moving the coordinates, not the glands: cheap, and neighbours bend together
    bend_x, bend_y = (h.warp * noise(rng, canvas.res, 6) for _ in range(2))
    radius, nearest = _nearest(g, canvas.x + bend_x, canvas.y + bend_y)
    height = (1 - radius) * g.short.astype(np.float32)[
        nearest
    ]  # inwards from the outline, in fields of view

    soft = 1.0 / canvas.res
    inside = ramp(height, -soft, soft)
    lumen_at = h.wall * (1 + 0.16 * noise(rng, canvas.res, 7))
    lumen = ramp(height - lumen_at, -1.5 * soft, 1.5 * soft) * inside
    membrane = np.exp(-(((height + 0.006) / 0.012) ** 2))
    adenoma, cancer = bump(grade, 0.2, 0.5), bump(grade, 0.5, 0.9)
    grain = noise(rng, canvas.res, 16)
    wall_e = 0.42 + 0.06 * cancer + 0.05 * grain
    wall_h = 0.16 + 0.17 * adenoma - 0.05 * cancer + 0.03 * grain
    canvas.eosin[:] = canvas.eosin * (1 - inside) + wall_e * inside + 0.22 * membrane * (1 - cancer)
    canvas.haem[:] = canvas.haem * (1 - inside) + wall_h * inside
    debris = 0.04 + 0.22 * cancer * ramp(noise(rng, canvas.res, 9), 0.2, 1.2)
    canvas.eosin[:] = canvas.eosin * (1 - lumen) + debris * lumen
    canvas.haem[:] = canvas.haem * (1 - lumen) + (0.02 + 0.5 * debris) * lumen

    kept = []
    for cells, owner in _wall_cells(rng, g, h):
        seen = np.all(np.abs(cells.at - 0.5) < 0.6, axis=1)
        cells, owner = keep(cells, seen), owner[seen]
        home = (
            _nearest(g, *cells.at.astype(np.float32).T)[1] == owner
        )  # where glands meet, the nearer one wins
        cells.at = cells.at - np.stack([sample(bend_x, cells.at), sample(bend_y, cells.at)], axis=1)
        kept.append(keep(cells, home))
    return kept[0], kept[1], inside
