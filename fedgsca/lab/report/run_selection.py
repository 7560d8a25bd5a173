"""What the selector sees (Eq. 1-7), how much noise it estimates, and how often it is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedgsca.lab.report.elements import (
    MAX_ROWS_AT_ONCE,
    PageSection,
    PlotGallery,
    PlotImage,
)
from fedgsca.lab.report.plots import (
    CLEAN,
    GREY,
    INK,
    NOISY,
    SMALL,
    figure_svg,
    make_axes,
    shorten,
    with_plot_style,
)
from fedgsca.lab.report.run_reader import LoadedRun, SiteLosses
from fedgsca.lab.table import LegendEntry
from fedgsca.selector import Selector, clean_probability

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_NUM_BINS = 36


def selection_section(run: LoadedRun) -> PageSection | None:
    """For simulations of a method that logs its losses (`Method.logged`)."""
    losses = {}
    for name in run.sites:
        site_losses = run.losses.get(name)
        if site_losses is not None and site_losses.losses.size:
            losses[name] = site_losses
    if not losses:
        return None
    selection = _noisiest_sites(losses)
    option = run.settings.method_option("monotone")
    monotone = True if option is None else bool(option)
    pictures = []
    for name, site_losses in selection.items():
        drawing = draw_loss_histogram(name, site_losses, monotone=monotone)
        pictures.append(PlotImage(drawing, _describe_histogram(name, site_losses)))
    has_truth = any(site_losses.wrong is not None for site_losses in selection.values())
    intro = (
        "A model that is still learning fits correct labels before wrong ones, so wrong labels "
        "accumulate at large losses. All sites together fit two bell curves to these losses. A "
        "label is taken as noisy where the left curve becomes too unlikely as an explanation."
    )
    last_round = max(site_losses.round for site_losses in selection.values()) + 1
    note = (
        "Height: number of labels; an arrow marks a bar that is higher than the plot. "
        f"The losses are those that the selector saw in round {last_round}."
    )
    if has_truth:
        note += " The colours show the truth, which only a simulation knows; the selector does not."
    if len(losses) > len(selection):
        note += f" Drawn: the {len(selection)} of {len(losses)} sites with the most noisy labels."
    gallery = PlotGallery(pictures, "half", _legend(has_truth), note)
    return PageSection("selection", "What the selector sees", intro, [gallery])


def _noisiest_sites(losses: dict[str, SiteLosses]) -> dict[str, SiteLosses]:
    """All sites, or those with the most noisy labels if there are many; in the same order."""
    if len(losses) <= MAX_ROWS_AT_ONCE:
        return losses
    ranking = sorted(losses, key=lambda name: float(losses[name].clean.mean()))
    noisiest = ranking[:MAX_ROWS_AT_ONCE]
    return {name: losses[name] for name in losses if name in noisiest}


def _legend(has_truth: bool) -> list[LegendEntry]:
    names = ("correct label", "wrong label") if has_truth else ("taken as clean", "taken as noisy")
    return [
        LegendEntry(names[0], "clean-soft", "block"),
        LegendEntry(names[1], "noisy-soft", "block"),
        LegendEntry("fitted: clean", "clean"),
        LegendEntry("fitted: noisy", "noisy"),
        LegendEntry("threshold: labels to its right are noisy", "ink", "line", (4, 2.5)),
    ]


def _describe_histogram(name: str, losses: SiteLosses) -> str:
    text = f"Loss histogram of {name}: {losses.losses.size} labels, {int(losses.noisy.sum())} noisy"
    if losses.wrong is None:
        return f"{text}."
    num_wrong = int(losses.wrong.sum())
    num_hits = int((losses.wrong & losses.noisy).sum())
    return f"{text}; {num_wrong} are wrong, {num_hits} of these are taken as noisy."


@with_plot_style
def draw_loss_histogram(site: str, losses: SiteLosses, *, monotone: bool) -> str:
    """Losses, coloured by truth (by decision where the truth is unknown), and the fit."""
    figure, axes = make_axes(490, 250, margin_left=40)
    is_finite = np.isfinite(losses.losses)
    x = losses.losses[is_finite]
    bad = losses.noisy if losses.wrong is None else losses.wrong
    edges = np.linspace(min(0.0, float(x.min())), max(float(x.max()), 0.5), _NUM_BINS + 1)
    width = edges[1] - edges[0]
    good_counts = np.histogram(x[~bad[is_finite]], edges)[0]
    counts = np.histogram(x, edges)[0]
    axes.stairs(good_counts, edges, fill=True, color=CLEAN, alpha=0.5, lw=0)
    axes.stairs(counts, edges, baseline=good_counts, fill=True, color=NOISY, alpha=0.6, lw=0)
    if np.isfinite(losses.selector).all():
        _draw_fit(axes, losses, counts, edges, monotone=monotone)
    axes.set_xlim(edges[0] - width, edges[-1] + width)
    axes.locator_params(axis="y", nbins=5, integer=True)
    axes.set_xlabel("Loss against the given label")
    axes.set_title(f"{shorten(site, 26)}: {100 * float(losses.noisy.mean()):.0f} % noisy")
    return figure_svg(figure, f"losses-{site}")


def _draw_fit(
    axes: Axes, losses: SiteLosses, counts: np.ndarray, edges: np.ndarray, *, monotone: bool
) -> None:
    """The two Gaussians and the threshold. counts (bins,), edges (bins + 1,)."""
    width = edges[1] - edges[0]
    grid = np.linspace(edges[0] - width, edges[-1] + width, 160)
    scale = counts.sum() * width
    clean_curve = _bell_curve(grid, losses.selector[0::2], scale)
    noisy_curve = _bell_curve(grid, losses.selector[1::2], scale)
    axes.plot(grid, clean_curve, color=CLEAN)
    axes.plot(grid, noisy_curve, color=NOISY)
    # The spike near zero would flatten everything else: cut it off, and print its height.
    highest = max(clean_curve.max(), noisy_curve.max())
    top = max(1.2 * highest, float(np.sort(counts)[-3]))
    axes.set_ylim(0, top)
    if counts.max() > 1.04 * top:
        last_tall_bin = np.flatnonzero(counts > 0.9 * top)[-1]
        position = (edges[last_tall_bin + 1] + 0.3 * width, 0.97 * top)
        axes.annotate(f"↑ {counts.max()}", position, va="top", color=GREY, fontsize=SMALL)
    for threshold in find_thresholds(losses, grid[0], grid[-1], monotone=monotone):
        axes.axvline(threshold, color=INK, lw=1.6, ls=(0, (4, 2.5)))


def _bell_curve(x: np.ndarray, component: np.ndarray, scale: float) -> np.ndarray:
    """One weighted Gaussian (mean, variance, weight) at the scale of the histogram (Eq. 1)."""
    mean, var, weight = component
    return np.asarray(
        scale * weight * np.exp(-((x - mean) ** 2) / (2 * var)) / np.sqrt(2 * np.pi * var)
    )


def find_thresholds(losses: SiteLosses, low: float, high: float, *, monotone: bool) -> list[float]:
    """Losses between low and high at which the probability of "clean" crosses the cut (Eq. 7).

    One if the probability is monotone, up to two if not.
    """
    grid = np.linspace(low, high, 2001)
    means, variances, weights = losses.selector.reshape(3, 2)
    selector = Selector(
        (means[0], means[1]), (variances[0], variances[1]), (weights[0], weights[1])
    )
    is_clean = clean_probability(grid, selector, monotone=monotone) >= losses.cut
    crossings = np.flatnonzero(is_clean[1:] != is_clean[:-1]) + 1
    return [float(grid[i]) for i in crossings]
