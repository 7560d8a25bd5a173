"""Plots of the global sample selector at work: what it sees at each site, what it finds, how often it is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedgsca.report.plot_style import (
    CLEAN,
    GRID,
    INK,
    MUTED,
    NOISY,
    PAPER,
    SHADE,
    SMALL,
    canvas,
    colour,
    dash,
    round_axis,
    shorten,
    styled,
    svg,
)
from fedgsca.report.run_reader import Losses, Run
from fedgsca.selector import Selector, clean_probability


@styled
def loss_histogram(site: str, seen: Losses, title: str, *, monotone: bool) -> str:
    """A site's losses, coloured by truth (or by decision where the truth is unknown), two Gaussians, threshold."""
    figure, axes = canvas(490, 250, left=40)
    x = seen.losses[np.isfinite(seen.losses)]
    bad = (~seen.clean if seen.wrong is None else seen.wrong)[np.isfinite(seen.losses)]
    edges = np.linspace(min(0.0, float(x.min())), max(float(x.max()), 0.5), 37)
    width = edges[1] - edges[0]
    good_count = np.histogram(x[~bad], edges)[0]
    count = np.histogram(x, edges)[0]
    axes.stairs(good_count, edges, fill=True, color=CLEAN, alpha=0.5, lw=0)
    axes.stairs(count, edges, baseline=good_count, fill=True, color=NOISY, alpha=0.6, lw=0)
    if np.isfinite(seen.selector).all():
        grid = np.linspace(edges[0] - width, edges[-1] + width, 160)
        curves = [_bell(grid, seen.selector[i::2], x.size * width) for i in (0, 1)]
        for curve, shade in zip(curves, (CLEAN, NOISY), strict=True):
            axes.plot(grid, curve, color=shade)
        # the spike near zero would press everything else to the ground: cut it, and say how high it is
        top = max(1.2 * max(curve.max() for curve in curves), float(np.sort(count)[-3]))
        axes.set_ylim(0, top)
        tall = np.flatnonzero(count > 0.9 * top)
        if count.max() > 1.04 * top:
            where = (edges[tall[-1] + 1] + 0.3 * width, 0.97 * top)
            axes.annotate(f"↑ {count.max()}", where, va="top", color=MUTED, fontsize=SMALL)
        for cut in cuts(
            seen.selector, seen.cut, float(grid[0]), float(grid[-1]), monotone=monotone
        ):
            axes.axvline(cut, color=INK, lw=1.6, ls=(0, (4, 2.5)))
    axes.set_xlim(edges[0] - width, edges[-1] + width)
    axes.locator_params(axis="y", nbins=5, integer=True)
    axes.set_xlabel("Loss against the given label")
    axes.set_title(title)
    return svg(figure, f"losses-{site}")


def _bell(x: np.ndarray, component: np.ndarray, scale: float) -> np.ndarray:
    """One weighted Gaussian (mean, variance, weight) at the scale of the histogram (Eq. 1)."""
    mean, var, weight = component
    return np.asarray(
        scale * weight * np.exp(-((x - mean) ** 2) / (2 * var)) / np.sqrt(2 * np.pi * var)
    )


def cuts(
    selector: np.ndarray, cut: float, low: float, high: float, *, monotone: bool
) -> list[float]:
    """Losses at which the probability of "clean" crosses the cut (Eq. 7); one if it is monotone, up to two if not."""
    grid = np.linspace(low, high, 2001)
    fitted = Selector(
        (selector[0], selector[1]), (selector[2], selector[3]), (selector[4], selector[5])
    )
    keep = clean_probability(grid, fitted, monotone=monotone) >= cut
    return [float(grid[i]) for i in np.flatnonzero(keep[1:] != keep[:-1]) + 1]


@styled
def noise_over_rounds(run: Run, site: str, top: float) -> str:
    """Share of labels that a site's selector flags, round by round, over the share that is wrong; `top` in percent."""
    figure, axes = canvas(250, 190, left=42, right=8, top=40)
    rounds, found = run.series(site, "delta")
    said = f"found {100 * found[-1]:.0f} %"
    truth = run.realised(site)
    if truth is not None:
        axes.axhline(100 * float(truth["rate"]), color=NOISY, lw=2, ls=(0, (4, 2.5)))
        said += f", present {100 * float(truth['rate']):.0f} %"
    if run.selecting_from:
        axes.axvspan(-run.planned, run.selecting_from + 0.5, color=SHADE, lw=0)
    axes.plot(
        rounds,
        [100 * value for value in found],
        color=CLEAN,
        marker="o" if len(rounds) < 12 else None,
        ms=4.5,
    )
    axes.set_ylim(-0.03 * top, top)
    axes.yaxis.set_major_formatter("{x:.0f} %")
    axes.locator_params(axis="y", nbins=4)
    round_axis(axes, run.planned, ticks=5)
    axes.set_title(shorten(site, 27), pad=22)
    axes.annotate(
        said,
        (0, 1),
        (0, 7),
        xycoords="axes fraction",
        textcoords="offset points",
        color=MUTED,
        fontsize=SMALL,
    )
    return svg(figure, f"noise-{site}")


@styled
def noise_dumbbells(rows: Sequence[tuple[str, float | None, float]]) -> str:
    """Many sites: (name, share wrong if known, share flagged), one line each, the gap between the two dots is the error."""
    figure, axes = canvas(1000, 70 + 20 * len(rows), left=210, right=30, bottom=40, top=10)
    places = np.arange(len(rows))[::-1]
    for y, (_, present, found) in zip(places, rows, strict=True):
        if present is not None:
            axes.plot([100 * present, 100 * found], [y, y], color=MUTED, lw=2)
            axes.plot(100 * present, y, "o", ms=8, mfc=PAPER, mec=NOISY, mew=2)
        axes.plot(100 * found, y, "o", ms=8, color=CLEAN)
    axes.set_yticks(places, [shorten(name, 30) for name, _, _ in rows])
    axes.set_ylim(-0.8, len(rows) - 0.2)
    axes.xaxis.set_major_formatter("{x:.0f} %")
    axes.set_xlabel("Share of the site's labels")
    return svg(figure, "noise-all")


@styled
def quality_over_rounds(run: Run, key: str, title: str, sites: Sequence[str]) -> str:
    """One number of the selector's or the pseudo-labels' quality: a line per site, and their mean if they are many."""
    figure, axes = canvas(250, 190, left=30, right=8)
    named = len(sites) <= 8
    means: dict[int, list[float]] = {}
    for i, site in enumerate(sites):
        rounds, values = run.series(site, key)
        style: dict[str, Any] = (
            {"color": colour(i), "ls": dash(i), "lw": 2} if named else {"color": GRID, "lw": 1}
        )
        axes.plot(rounds, values, marker="o" if len(rounds) == 1 else None, **style)
        for at, value in zip(rounds, values, strict=True):
            means.setdefault(at, []).append(value)
    if not named:
        axes.plot(list(means), [float(np.mean(values)) for values in means.values()], color=INK)
    axes.set_ylim(-0.03, 1.03)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "", "0.5", "", "1"])
    round_axis(axes, run.planned, ticks=5)
    axes.set_title(title)
    return svg(figure, f"quality-{key}")
