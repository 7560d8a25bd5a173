"""Drawing tissue: nuclei, fibres and glands as concentration maps of the two dyes, in coordinates of the field of view.

Everything is placed in [0, 1) x [0, 1), so the same random stream gives the same scene at 28 or at 128 pixels. Two continua
carry the difficulty. `glands` has a grade from normal crypts (0) over crowded, stratified adenoma (0.5) to fused carcinoma (1);
`fibres` has an order from loose wavy stroma (0) to the parallel bundles of smooth muscle (1). Neighbouring classes are
neighbouring stretches of one continuum, as they are under a microscope.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

Rng = np.random.Generator


@dataclass
class Canvas:
    """Dye concentrations of one field of view; drawing functions paint into them."""

    haem: np.ndarray  # (R, R) haematoxylin: nuclei, blue-violet
    eosin: np.ndarray  # (R, R) eosin: cytoplasm and fibres, pink
    x: np.ndarray  # (R, R) pixel centres, fraction of the field of view
    y: np.ndarray

    @property
    def res(self) -> int:
        return int(self.haem.shape[0])


@lru_cache(maxsize=8)
def _grid(res: int) -> tuple[np.ndarray, np.ndarray]:
    centres = ((np.arange(res) + 0.5) / res).astype(
        np.float32
    )  # single precision throughout: half the time, same picture
    y, x = np.meshgrid(centres, centres, indexing="ij")
    return x, y


def blank(res: int) -> Canvas:
    """Empty glass."""
    x, y = _grid(res)
    return Canvas(np.zeros_like(x), np.zeros_like(x), x, y)


@lru_cache(maxsize=64)
def _spline(res: int, cells: int) -> np.ndarray:
    """(res, cells + 3) cubic B-spline weights of every pixel row over a lattice of `cells` cells."""
    position = (np.arange(res) + 0.5) / res * cells
    cell = position.astype(int)
    t = position - cell
    weights = np.zeros((res, cells + 3))
    parts = ((1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3)
    for k, part in enumerate(parts):
        weights[np.arange(res), cell + k] = part / 6
    return weights.astype(np.float32)


def noise(rng: Rng, res: int, cells: int) -> np.ndarray:
    """(res, res) smooth noise with blobs of about 1 / cells, mean 0, deviation about 1."""
    w = _spline(res, cells)
    lattice = rng.standard_normal((cells + 3, cells + 3), dtype=np.float32)
    return np.asarray(
        w @ (lattice / np.float32(0.479)) @ w.T
    )  # 0.479: what the spline leaves of the deviation


def ramp(value: np.ndarray, low: float, high: float) -> np.ndarray:
    """0 below low, 1 above high, smooth between; low > high falls instead of rising."""
    t = np.clip((value - low) / (high - low), 0.0, 1.0)
    return t * t * (3 - 2 * t)


def bump(value: float, low: float, high: float) -> float:
    """The scalar form of `ramp`, for parameters that follow a grade."""
    return float(ramp(np.asarray(value), low, high))


def sample(field: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Values of an (R, R) field at (n, 2) points (x, y), nearest pixel, clamped at the border."""
    res = field.shape[0]
    col, row = np.clip((points * res).astype(int), 0, res - 1).T
    return np.asarray(field[row, col])


def scatter(
    rng: Rng,
    spacing: float,
    jitter: float,
    margin: float = 0.1,
    stretch: float = 1.0,
    angle: float = 0.0,
) -> np.ndarray:
    """(n, 2) points of a jittered hexagonal lattice over the field and its margin; stretched along `angle`."""
    reach = 0.75 + margin
    rows = int(np.ceil(reach / (spacing * 0.866)))
    cols = int(np.ceil(reach / (spacing * stretch))) + 1
    row, col = (g.ravel() for g in np.mgrid[-rows : rows + 1, -cols : cols + 1])
    u = (col + 0.5 * (row % 2)) + rng.uniform(-0.5, 0.5)
    v = row * 0.866 + rng.uniform(-0.5, 0.5)
    u = (u + rng.normal(0, jitter, u.shape)) * spacing * stretch
    v = (v + rng.normal(0, jitter, v.shape)) * spacing
    c, s = np.cos(angle), np.sin(angle)
    points = np.stack([0.5 + c * u - s * v, 0.5 + s * u + c * v], axis=1)
    return points[np.all((points > -margin) & (points < 1 + margin), axis=1)]


@dataclass
class Cells:
    """Nuclei to draw, one row each."""

    at: np.ndarray  # (n, 2) centres
    major: np.ndarray  # semi-axes
    minor: np.ndarray
    angle: np.ndarray  # of the major axis
    dark: np.ndarray  # haematoxylin concentration
    open: np.ndarray  # 0 solid .. 1 vesicular: pale inside, dark rim

    @staticmethod
    def make(
        rng: Rng,
        at: np.ndarray,
        size: float,
        aspect: float,
        angle: np.ndarray,
        dark: float,
        vary: float = 0.12,
        open: float = 0.0,
    ) -> Cells:
        """Nuclei of semi-minor axis `size`, elongated by `aspect`, each varied by a relative deviation `vary`."""
        n = len(at)
        spread = np.clip(
            rng.standard_normal((3, n)), -2, 2
        )  # no monsters: a single huge nucleus would fill a small field
        minor = size * np.exp(vary * spread[0])
        major = minor * np.maximum(1.0, aspect * np.exp(vary * spread[1]))
        depth = dark * np.exp((0.5 * vary + 0.05) * spread[2])
        return Cells(
            at, major, minor, np.broadcast_to(angle, (n,)), depth, open * rng.uniform(0.5, 1.0, n)
        )


def paint(canvas: Canvas, cells: Cells) -> None:
    """Stamp nuclei onto the canvas; the darker of two overlapping nuclei wins."""
    res = canvas.res
    border = int(np.ceil(cells.major.max(initial=0.0) * res)) + 2
    cells = keep(cells, np.all(np.abs(cells.at - 0.5) < 0.5 + (border - 1) / res, axis=1))
    side = res + 4 * border  # wide enough for every window; the border is cut off again at the end
    haem, shade = np.zeros(side * side, np.float32), np.zeros(side * side, np.float32)
    order = np.argsort(cells.major)
    for start in range(
        0, len(order), 64
    ):  # nuclei of similar size share a window, and a group fits into the cache
        where, stain, cover = _stamps(keep(cells, order[start : start + 64]), res, side, 2 * border)
        np.maximum.at(haem, where, stain)
        np.maximum.at(shade, where, cover)
    view = slice(2 * border, 2 * border + res)
    haem, shade = haem.reshape(side, side)[view, view], shade.reshape(side, side)[view, view]
    canvas.haem[:] = canvas.haem * (1 - shade) + haem
    canvas.eosin *= 1 - 0.55 * shade


def _stamps(
    cells: Cells, res: int, side: int, border: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Flat positions in the bordered picture that these nuclei touch, with the stain and the cover they bring."""
    reach = int(np.ceil(cells.major.max() * res)) + 1
    step = np.arange(-reach, reach + 1, dtype=np.int32)
    pixel = np.floor(cells.at * res).astype(np.int32)  # (n, 2) column and row of the centre
    offset = (step + 0.5 + (pixel - cells.at * res)[:, :, None]) / res  # (n, 2, P)
    dx, dy = offset[:, 0].astype(np.float32), offset[:, 1].astype(np.float32)
    columns = (
        np.cos(cells.angle),
        np.sin(cells.angle),
        cells.major,
        cells.minor,
        cells.dark,
        cells.open,
    )
    c, s, major, minor, dark, pale = (column.astype(np.float32)[:, None] for column in columns)
    u = (c / major * dx)[:, None, :] + (s / major * dy)[
        :, :, None
    ]  # (n, P, P) in the frame of the ellipse, 1 on its edge
    v = (-s / minor * dx)[:, None, :] + (c / minor * dy)[:, :, None]
    square = u * u + v * v
    cover = np.minimum(
        (1 - np.sqrt(square)) * (res * minor)[..., None] + 0.5, 1
    )  # an edge one pixel wide
    stain = cover * dark[..., None] * (1 - (0.55 * pale)[..., None] * np.maximum(1.15 - square, 0))
    centre = (pixel[:, 1] + border) * side + pixel[:, 0] + border
    flat = centre[:, None, None] + (step[:, None] * side + step)
    hit = cover > 0
    return flat[hit], stain[hit], cover[hit]


def _lookup(rng: Rng, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Smooth noise in [0, 1] at lattice coordinates (u, v): how a stretched, bent texture is sampled."""
    size = 64  # lattice wraps; coordinates stay far below it
    lattice = rng.random(size * size, dtype=np.float32)
    floor_u, floor_v = np.floor(u), np.floor(v)
    fu, fv = u - floor_u, v - floor_v
    fu, fv = fu * fu * (3 - 2 * fu), fv * fv * (3 - 2 * fv)
    iu, iv = floor_u.astype(np.int32) & (size - 1), floor_v.astype(np.int32) & (size - 1)
    ju, jv = (iu + 1 & (size - 1)) * size, iv + 1 & (size - 1)
    iu = iu * size
    low, high = lattice[iu + iv], lattice[ju + iv]
    low = low + fv * (lattice[iu + jv] - low)
    high = high + fv * (lattice[ju + jv] - high)
    return np.asarray(low + fu * (high - low))


def fibres(rng: Rng, canvas: Canvas, order: float, zoom: float = 1.0) -> np.ndarray:
    """Lay down fibres; returns the (R, R) coordinate across them, which is constant along each fibre.

    order 0: loose collagen, thick waves, open clefts. order 1: smooth muscle, straight tight bundles.
    """
    angle = rng.uniform(0, np.pi)
    c, s = (
        float(np.cos(angle)),
        float(np.sin(angle)),
    )  # python floats keep arrays in single precision
    u = c * (canvas.x - 0.5) + s * (canvas.y - 0.5)
    v = c * (canvas.y - 0.5) - s * (canvas.x - 0.5)
    wave = (0.085 - 0.065 * order) * rng.uniform(0.7, 1.3)
    v = v + wave * noise(rng, canvas.res, 3) + 0.3 * wave * noise(rng, canvas.res, 6)
    spacing = zoom * (0.085 - 0.025 * order) * rng.uniform(0.85, 1.15)
    along = (5.0 - 3.2 * order) / zoom
    coarse = _lookup(rng, u * along + 20, v / spacing + 20)
    fine = _lookup(rng, u * along * 1.7 + 20, v / spacing * 2.1 + 20)
    texture = 0.65 * coarse + 0.35 * fine
    clefts = ramp(texture, 0.42 - 0.06 * order, 0.22 - 0.04 * order)
    amount = (0.55 + 0.25 * order) + (0.75 - 0.2 * order) * (texture - 0.5)
    canvas.eosin[:] = amount * (1 - (0.85 - 0.35 * order) * clefts)
    canvas.haem[:] = 0.06 + 0.05 * texture
    return np.asarray(v)


def along(across: np.ndarray, points: np.ndarray) -> np.ndarray:
    """(n,) direction of the fibres at these points: at right angles to the gradient of the coordinate across them."""
    res = across.shape[0]
    col, row = np.clip((points * res).astype(int), 1, res - 2).T
    return np.asarray(
        np.arctan2(
            across[row, col - 1] - across[row, col + 1], across[row + 1, col] - across[row - 1, col]
        )
    )


def spindles(
    rng: Rng, across: np.ndarray, order: float, density: float, zoom: float = 1.0
) -> Cells:
    """Nuclei of fibroblasts (thin, stray) or muscle cells (cigars along the bundle)."""
    at = scatter(rng, zoom * (0.19 - 0.02 * order) / np.sqrt(density), 0.28)
    at = at[rng.random(len(at)) < 0.8]
    angle = along(across, at) + rng.normal(0, 0.28 - 0.2 * order, len(at))
    return Cells.make(
        rng, at, zoom * (0.017 + 0.004 * order), 2.9 + 0.6 * order, angle, 1.15, vary=0.2
    )


def lymphocytes(rng: Rng, at: np.ndarray, zoom: float = 1.0) -> Cells:
    """Small, round, dark."""
    return Cells.make(rng, at, zoom * 0.03, 1.1, rng.uniform(0, np.pi, len(at)), 1.6, vary=0.12)


def join(*groups: Cells) -> Cells:
    """All cells in one list."""
    names = ("at", "major", "minor", "angle", "dark", "open")
    return Cells(*(np.concatenate([getattr(g, name) for g in groups]) for name in names))


def keep(cells: Cells, mask: np.ndarray) -> Cells:
    """The cells where the mask is true, or those with these numbers."""
    return Cells(
        cells.at[mask],
        cells.major[mask],
        cells.minor[mask],
        cells.angle[mask],
        cells.dark[mask],
        cells.open[mask],
    )
