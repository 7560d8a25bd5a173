"""Drawing tissue: nuclei, fibres and glands as concentration maps of the two dyes.

Everything is placed in coordinates of the field of view, [0, 1) x [0, 1), so the same random stream
gives the same scene at 28 or at 128 pixels. The difficulty lies in two continua. Glands have a
grade from normal crypts (0) over crowded, stratified adenoma (0.5) to fused carcinoma (1); fibres
have an order from loose wavy stroma (0) to the parallel bundles of smooth muscle (1). Neighbouring
classes are neighbouring stretches of one continuum, as they are under a microscope.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

Rng = np.random.Generator


@dataclass
class Canvas:
    """Dye concentrations of one field of view; drawing functions paint into them."""

    # (R, R) haematoxylin: nuclei, blue-violet
    haem: np.ndarray
    # (R, R) eosin: cytoplasm and fibres, pink
    eosin: np.ndarray
    # (R, R) pixel centres, fraction of the field of view
    x: np.ndarray
    y: np.ndarray

    @property
    def res(self) -> int:
        """R, the number of pixels along each side."""
        return int(self.haem.shape[0])


@lru_cache(maxsize=8)
def _grid(res: int) -> tuple[np.ndarray, np.ndarray]:
    # single precision throughout: half the time, same picture
    centres = ((np.arange(res) + 0.5) / res).astype(np.float32)
    y, x = np.meshgrid(centres, centres, indexing="ij")
    return x, y


def blank_canvas(res: int) -> Canvas:
    """Empty glass."""
    x, y = _grid(res)
    return Canvas(np.zeros_like(x), np.zeros_like(x), x, y)


@lru_cache(maxsize=64)
def _spline(res: int, cells: int) -> np.ndarray:
    """(res, cells + 3) cubic B-spline weights of each pixel row over a lattice of `cells` cells."""
    position = (np.arange(res) + 0.5) / res * cells
    cell = position.astype(int)
    t = position - cell
    weights = np.zeros((res, cells + 3))
    parts = ((1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3)
    for k, part in enumerate(parts):
        weights[np.arange(res), cell + k] = part / 6
    return weights.astype(np.float32)


def smooth_noise(rng: Rng, res: int, cells: int) -> np.ndarray:
    """(res, res) smooth noise with blobs of about 1 / cells, mean 0, deviation about 1."""
    w = _spline(res, cells)
    lattice = rng.standard_normal((cells + 3, cells + 3), dtype=np.float32)
    # 0.479: the standard deviation after the spline
    return np.asarray(w @ (lattice / np.float32(0.479)) @ w.T)


def ramp(value: np.ndarray, low: float, high: float) -> np.ndarray:
    """0 below low, 1 above high, smooth between; low > high falls instead of rising."""
    t = np.clip((value - low) / (high - low), 0.0, 1.0)
    return t * t * (3 - 2 * t)


def ramp_scalar(value: float, low: float, high: float) -> float:
    """The scalar form of `ramp`, for parameters that follow a grade."""
    return float(ramp(np.asarray(value), low, high))


def sample_at(field: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Values of an (R, R) field at (n, 2) points (x, y), nearest pixel, clamped at the border."""
    res = field.shape[0]
    col, row = np.clip((points * res).astype(int), 0, res - 1).T
    return np.asarray(field[row, col])


def scatter_points(
    rng: Rng,
    spacing: float,
    jitter: float,
    margin: float = 0.1,
    stretch: float = 1.0,
    angle: float = 0.0,
) -> np.ndarray:
    """(n, 2) points of a jittered hexagonal lattice over the field and its margin.

    The lattice is stretched along `angle`.
    """
    reach = 0.75 + margin
    rows = int(np.ceil(reach / (spacing * 0.866)))
    cols = int(np.ceil(reach / (spacing * stretch))) + 1
    row, col = np.mgrid[-rows : rows + 1, -cols : cols + 1].reshape(2, -1)
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

    # (n, 2) positions
    centre: np.ndarray
    # (n,) semi-axes
    major: np.ndarray
    minor: np.ndarray
    # (n,) of the major axis
    angle: np.ndarray
    # (n,) haematoxylin concentration
    stain: np.ndarray
    # (n,) 0 solid .. 1 vesicular: pale inside, dark rim
    pallor: np.ndarray

    @staticmethod
    def draw(
        rng: Rng,
        centre: np.ndarray,
        size: float,
        aspect: float,
        angle: np.ndarray,
        stain: float,
        variation: float = 0.12,
        pallor: float = 0.0,
    ) -> Cells:
        """Random nuclei of semi-minor axis `size`, elongated by `aspect`.

        Each varies by a relative deviation `variation`.
        """
        n = len(centre)
        # clipped, because a single huge nucleus would fill a small field
        spread = np.clip(rng.standard_normal((3, n)), -2, 2)
        minor = size * np.exp(variation * spread[0])
        major = minor * np.maximum(1.0, aspect * np.exp(variation * spread[1]))
        stains = stain * np.exp((0.5 * variation + 0.05) * spread[2])
        pallors = pallor * rng.uniform(0.5, 1.0, n)
        return Cells(centre, major, minor, np.broadcast_to(angle, (n,)), stains, pallors)


def paint_cells(canvas: Canvas, cells: Cells) -> None:
    """Stamp nuclei onto the canvas; the darker of two overlapping nuclei wins."""
    res = canvas.res
    border = int(np.ceil(cells.major.max(initial=0.0) * res)) + 2
    is_visible = np.all(np.abs(cells.centre - 0.5) < 0.5 + (border - 1) / res, axis=1)
    cells = select_cells(cells, is_visible)
    side = res + 4 * border  # wide enough for every window; the border is cut off again at the end
    haem = np.zeros(side * side, np.float32)
    shade = np.zeros(side * side, np.float32)
    order = np.argsort(cells.major)
    # nuclei of similar size share a window, and 64 of them fit into the processor's cache
    for start in range(0, len(order), 64):
        batch = select_cells(cells, order[start : start + 64])
        position, stain, cover = _stamp_cells(batch, res, side, 2 * border)
        np.maximum.at(haem, position, stain)
        np.maximum.at(shade, position, cover)
    view = slice(2 * border, 2 * border + res)
    haem = haem.reshape(side, side)[view, view]
    shade = shade.reshape(side, side)[view, view]
    canvas.haem[:] = canvas.haem * (1 - shade) + haem
    canvas.eosin *= 1 - 0.55 * shade


def _stamp_cells(
    cells: Cells, res: int, side: int, border: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Flat positions in the bordered picture that these nuclei touch, and stain and cover there."""
    reach = int(np.ceil(cells.major.max() * res)) + 1
    step = np.arange(-reach, reach + 1, dtype=np.int32)
    pixel = np.floor(cells.centre * res).astype(np.int32)  # (n, 2) column and row of the centre
    offset = (step + 0.5 + (pixel - cells.centre * res)[:, :, None]) / res  # (n, 2, P)
    dx = offset[:, 0].astype(np.float32)
    dy = offset[:, 1].astype(np.float32)
    c = _column(np.cos(cells.angle))
    s = _column(np.sin(cells.angle))
    major = _column(cells.major)
    minor = _column(cells.minor)
    # (n, P, P) in the frame of the ellipse, 1 on its edge
    u = (c / major * dx)[:, None, :] + (s / major * dy)[:, :, None]
    v = (-s / minor * dx)[:, None, :] + (c / minor * dy)[:, :, None]
    square = u * u + v * v
    # an edge one pixel wide
    cover = np.minimum((1 - np.sqrt(square)) * (res * minor)[..., None] + 0.5, 1)
    pallor = (0.55 * _column(cells.pallor))[..., None]
    stain = cover * _column(cells.stain)[..., None] * (1 - pallor * np.maximum(1.15 - square, 0))
    centre = (pixel[:, 1] + border) * side + pixel[:, 0] + border
    flat = centre[:, None, None] + (step[:, None] * side + step)
    hit = cover > 0
    return flat[hit], stain[hit], cover[hit]


def _column(values: np.ndarray) -> np.ndarray:
    """(n, 1) in single precision."""
    return values.astype(np.float32)[:, None]


def _sample_lattice(rng: Rng, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Smooth noise in [0, 1] at lattice coordinates (u, v), for stretched and bent textures."""
    size = 64  # lattice wraps; coordinates stay far below it
    lattice = rng.random(size * size, dtype=np.float32)
    floor_u = np.floor(u)
    floor_v = np.floor(v)
    fu = u - floor_u
    fv = v - floor_v
    fu = fu * fu * (3 - 2 * fu)
    fv = fv * fv * (3 - 2 * fv)
    iu = floor_u.astype(np.int32) & (size - 1)
    iv = floor_v.astype(np.int32) & (size - 1)
    ju = (iu + 1 & (size - 1)) * size
    jv = iv + 1 & (size - 1)
    iu = iu * size
    low = lattice[iu + iv]
    high = lattice[ju + iv]
    low = low + fv * (lattice[iu + jv] - low)
    high = high + fv * (lattice[ju + jv] - high)
    return np.asarray(low + fu * (high - low))


def paint_fibres(rng: Rng, canvas: Canvas, order: float, zoom: float = 1.0) -> np.ndarray:
    """Paint fibres; returns the (R, R) coordinate across them, constant along each fibre.

    order 0: loose collagen, thick waves, open clefts. order 1: smooth muscle, straight tight
    bundles.
    """
    angle = rng.uniform(0, np.pi)
    # Python floats, so that arrays stay in single precision
    c = float(np.cos(angle))
    s = float(np.sin(angle))
    u = c * (canvas.x - 0.5) + s * (canvas.y - 0.5)
    v = c * (canvas.y - 0.5) - s * (canvas.x - 0.5)
    wave = (0.085 - 0.065 * order) * rng.uniform(0.7, 1.3)
    v = v + wave * smooth_noise(rng, canvas.res, 3) + 0.3 * wave * smooth_noise(rng, canvas.res, 6)
    spacing = zoom * (0.085 - 0.025 * order) * rng.uniform(0.85, 1.15)
    along = (5.0 - 3.2 * order) / zoom
    coarse = _sample_lattice(rng, u * along + 20, v / spacing + 20)
    fine = _sample_lattice(rng, u * along * 1.7 + 20, v / spacing * 2.1 + 20)
    texture = 0.65 * coarse + 0.35 * fine
    clefts = ramp(texture, 0.42 - 0.06 * order, 0.22 - 0.04 * order)
    amount = (0.55 + 0.25 * order) + (0.75 - 0.2 * order) * (texture - 0.5)
    canvas.eosin[:] = amount * (1 - (0.85 - 0.35 * order) * clefts)
    canvas.haem[:] = 0.06 + 0.05 * texture
    return np.asarray(v)


def fibre_direction(across: np.ndarray, points: np.ndarray) -> np.ndarray:
    """(n,) angle of the fibres at these points.

    It is at right angles to the gradient of `across`, the (R, R) coordinate across the fibres.
    """
    res = across.shape[0]
    col, row = np.clip((points * res).astype(int), 1, res - 2).T
    dx = across[row, col - 1] - across[row, col + 1]
    dy = across[row + 1, col] - across[row - 1, col]
    return np.asarray(np.arctan2(dx, dy))


def draw_spindles(
    rng: Rng, across: np.ndarray, order: float, density: float, zoom: float = 1.0
) -> Cells:
    """Nuclei of fibroblasts (thin, stray) or muscle cells (cigars along the bundle)."""
    centre = scatter_points(rng, zoom * (0.19 - 0.02 * order) / np.sqrt(density), 0.28)
    centre = centre[rng.random(len(centre)) < 0.8]
    angle = fibre_direction(across, centre) + rng.normal(0, 0.28 - 0.2 * order, len(centre))
    size = zoom * (0.017 + 0.004 * order)
    return Cells.draw(rng, centre, size, 2.9 + 0.6 * order, angle, 1.15, variation=0.2)


def draw_lymphocytes(rng: Rng, centre: np.ndarray, zoom: float = 1.0) -> Cells:
    """Small, round, dark nuclei at these points."""
    angle = rng.uniform(0, np.pi, len(centre))
    return Cells.draw(rng, centre, zoom * 0.03, 1.1, angle, 1.6, variation=0.12)


def join_cells(*groups: Cells) -> Cells:
    """All cells in one list."""
    columns = []
    for field in fields(Cells):
        columns.append(np.concatenate([getattr(group, field.name) for group in groups]))
    return Cells(*columns)


def select_cells(cells: Cells, mask: np.ndarray) -> Cells:
    """The cells where the mask is true, or those with these numbers."""
    return Cells(*(getattr(cells, field.name)[mask] for field in fields(Cells)))
