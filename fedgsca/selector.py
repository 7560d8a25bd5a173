"""GSS, the global sample selector (Eq. 1-7 of the paper): which of a site's labels look clean?

A network fits correct labels before wrong ones, so while it is still learning, the losses of a
site's samples have two modes: small losses (clean) and large ones (noisy).

    site k    S_k  <- two Gaussians fitted to the losses of D_k      Eq. 1-3    fit_selector
    server    S    <- sum_k n_k/N S_k                                Eq. 4      merge_selectors
    site k    tau_k <- the threshold of this site                    Eq. 5      clean_threshold
              p("clean" | x, y) <- posterior of component 0 of S     Eq. 6      clean_probability
              D_k^c <- {(x, y): p("clean" | x, y) >= tau_k}          Eq. 7      clean_subset

Symbols: a loss is a natural-log cross-entropy against the given label, `losses` has the shape (n,),
n samples of one site. The paper writes sigma for the *variance* of a component; here it is `var`.
The paper counts components from 1; here component 0 is the clean one and has the smaller mean.
Equation numbers count the paper's displayed equations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedgsca.errors import UpdateError

# -log(1e-4). A larger loss means "wrong", not "more wrong", and only inflates the noisy variance.
LOSS_CAP = 9.21
# Below these (samples, standard deviation, distance of the means) there are no two modes.
MIN_SAMPLES = 20
MIN_SPREAD = 1e-4
MIN_GAP = 0.1
# Bounds of the two means, variances and weights before privacy noise is added to them.
SELECTOR_BOUNDS = ((0.0, 4.0), (1.0, 8.0), (0.05, 4.0), (0.05, 4.0), (0.01, 0.99), (0.01, 0.99))
# Fits have at least 1e-12, and FedDiv's squared weights make a merged variance at most K times
# smaller. Below, the square of a distance divided by it would overflow.
MIN_VARIANCE = 1e-18
# "No selector yet" on the wire, where a selector is one array of six numbers.
NO_SELECTOR = np.full(6, np.nan)
NO_SELECTOR.flags.writeable = False


@dataclass(frozen=True)
class Selector:
    """S = (mu, sigma, pi) (Eq. 2): two Gaussians over losses; component 0 is the clean one."""

    # mu, with mean[0] <= mean[1]
    mean: tuple[float, float]
    # sigma: variances, not standard deviations
    var: tuple[float, float]
    # pi = P(z = g), which sum to 1
    weight: tuple[float, float]

    def to_array(self) -> np.ndarray:
        """(6,) float64: means, variances, weights. Only these six numbers leave a site."""
        return np.array([*self.mean, *self.var, *self.weight], dtype=np.float64)

    @staticmethod
    def from_array(array: np.ndarray) -> Selector | None:
        """The inverse of `to_array`; all NaN means None. Numbers from elsewhere are checked."""
        a = np.asarray(array, dtype=np.float64)
        if a.shape == (6,) and bool(np.isnan(a).all()):
            return None
        if not _is_selector(a):
            raise UpdateError(
                "update.invalid-selector",
                f"{a.tolist()} is not a selector: it needs two ascending means, two "
                f"variances of at least {MIN_VARIANCE:g} and two positive weights that sum to 1",
                fix="run the same version of fedgsca at the server and at every site",
            )
        return _sort_components(a[:2], a[2:4], a[4:])


def read_selector(array: np.ndarray) -> Selector | None:
    """The selector that a site sent; invalid numbers are "no fit": one site cannot stop others."""
    try:
        return Selector.from_array(array)
    except UpdateError:
        return None


def _is_selector(a: np.ndarray) -> bool:
    if a.shape != (6,) or not np.isfinite(a).all():
        return False
    if min(a[2:4]) < MIN_VARIANCE or min(a[4:]) <= 0:
        return False
    return bool(a[0] <= a[1] and abs(a[4] + a[5] - 1.0) <= 1e-5)


def _sort_components(mean: np.ndarray, var: np.ndarray, weight: np.ndarray) -> Selector:
    """A selector sorted by mean: one swapped site would spoil the server's average."""
    i, j = (0, 1) if mean[0] <= mean[1] else (1, 0)
    return Selector(
        (float(mean[i]), float(mean[j])),
        (float(var[i]), float(var[j])),
        (float(weight[i]), float(weight[j])),
    )


def nearest_selector(array: np.ndarray) -> np.ndarray:
    """(6,) noised numbers within SELECTOR_BOUNDS as a selector: sorted, weights that sum to 1."""
    weight = array[4:] / array[4:].sum()
    return _sort_components(array[:2], array[2:4], weight).to_array()


# ---- Eq. 1-3: two Gaussians fitted to the losses of one site ----


def fit_selector(
    losses: np.ndarray,
    init: Selector | None = None,
    *,
    var_floor: float = 0.25,
    min_gap: float = MIN_GAP,
    second_start: bool = True,
    validity_test: bool = True,
    max_steps: int = 100,
    tol: float = 1e-4,
) -> Selector | None:
    """S_k, the site's own selector (CSS), by EM for two Gaussians (Algorithm 1, the last loop).

    losses (n,) -> Selector, or None where there is no trustworthy fit of two components.

    EM starts at the global selector `init` and, because it never leaves a start at which both
    components coincide, once more at quantiles of the data; the fit with the higher likelihood
    wins. `var_floor` (nats squared) bounds both variances from below: without it the clean
    component collapses onto the spike at loss 0, and a third of the correct labels count as noisy.
    It must be a bound. *Added* to the variances in every step, as mixture libraries do, it merges
    two modes that are a nat and a half apart. `min_gap` is the smallest distance of two means.

    The paper starts only at S (`second_start=False`; without S, at the data) and tests nothing
    (`validity_test=False`; only an empty site and losses that are not finite have no fit).
    """
    x = np.asarray(losses, dtype=np.float64)
    if x.size == 0 or not np.isfinite(x).all():
        return None
    if validity_test and (x.size < MIN_SAMPLES or x.std() < MIN_SPREAD):
        return None
    low, high = np.quantile(x, [0.25, 0.9])
    floor = max(var_floor, 1e-12)
    spread = max(float(x.var()), floor)
    starts = [Selector((float(low), float(high)), (spread, spread), (0.7, 0.3))]
    if init:
        starts = [init, *starts] if second_start else [init]
    fits = [_maximise_likelihood(x, start, floor, max_steps, tol) for start in starts]
    # max takes the first of equals: the fit that started at S
    fit = max(fits, key=lambda candidate: candidate.log_likelihood).selector
    if not np.isfinite(fit.to_array()).all():
        return None
    return fit if not validity_test or _has_two_modes(fit, x.size, min_gap) else None


class _Fit(NamedTuple):
    selector: Selector
    log_likelihood: float


def _maximise_likelihood(
    losses: np.ndarray, start: Selector, floor: float, max_steps: int, tol: float
) -> _Fit:
    """EM from `start` until the mean log-likelihood changes by less than `tol`."""
    # moments about the centre of the data: there E[l^2] - E[l]^2 keeps its digits
    centre = losses.mean()
    l = losses - centre
    basis = _parabola_basis(l)
    mean = np.array(start.mean) - centre
    var = np.array(start.var)
    weight = np.array(start.weight)
    previous = log_likelihood = -np.inf
    for _ in range(max_steps):
        joint = _log_joint(basis, mean, var, weight)
        evidence = np.logaddexp(joint[0], joint[1])  # (n,) log P(loss), the denominator of Eq. 3
        gamma = np.exp(joint - evidence)  # (2, n) E-step: Eq. 3
        # M-step: (2,) sums of gamma, gamma l, gamma l^2
        mass, first, second = (gamma @ basis.T).T
        mass = np.maximum(mass, 1e-12)
        mean = first / mass
        weight = mass / l.size
        var = np.maximum(second / mass - mean * mean, floor)
        log_likelihood = float(evidence.mean())
        if abs(log_likelihood - previous) < tol:
            break
        previous = log_likelihood
    if not np.isfinite(log_likelihood):
        log_likelihood = -np.inf
    return _Fit(_sort_components(mean + centre, var, weight), log_likelihood)


def _parabola_basis(losses: np.ndarray) -> np.ndarray:
    """(3, n): 1, l, l^2. The logarithm of a Gaussian is a combination of these three."""
    return np.stack([np.ones_like(losses), losses, losses * losses])


def _log_joint(
    basis: np.ndarray, mean: np.ndarray, var: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """(2, n): log P(z = g) + log N(loss; mean_g, var_g), the numerators of Eq. 3 by Eq. 1.

    basis (3, n) as from `_parabola_basis`: one small product gives both components.
    """
    constant = np.log(weight) - 0.5 * np.log(2.0 * np.pi * var) - mean * mean / (2.0 * var)
    joint: np.ndarray = np.stack([constant, mean / var, -0.5 / var], axis=1) @ basis
    return joint


def _has_two_modes(fit: Selector, num_samples: int, min_gap: float) -> bool:
    """Both components have at least two samples, and their means differ."""
    least_weight = max(2.0 / num_samples, 0.005)
    return min(fit.weight) >= least_weight and fit.mean[1] - fit.mean[0] >= min_gap


# ---- Eq. 4: the global selector ----


def merge_selectors(selectors: Sequence[Selector | None], sizes: Sequence[int]) -> Selector | None:
    """S (Eq. 4): the mean of the sites' selectors, weighted by their number of samples n_k.

    None entries carry no weight; None if there is nothing to merge. Variances are averaged
    linearly, as printed. The sums are exact, so the order of the sites does not matter.
    """
    arrays = []
    counts = []
    for selector, n_k in zip(selectors, sizes, strict=True):
        if selector is not None and n_k > 0:
            arrays.append(selector.to_array())
            counts.append(n_k)
    if not arrays:
        return None
    total = sum(counts)
    a = np.empty(6)
    for i in range(6):
        a[i] = math.fsum(s[i] * n_k for s, n_k in zip(arrays, counts, strict=True)) / total
    return _sort_components(a[:2], a[2:4], a[4:])  # averages of sorted pairs are sorted


def is_healthy(selector: Selector | None, *, separation: float = 1.5) -> bool:
    """Are the two components far enough apart that selecting by them is better than not?

    Not in the paper. The gap of the means is measured in mean standard deviations (which include
    the variance floor). A single symmetric mode that EM split in two reaches about 1 at most; so
    do models that know too little, for which the selector finds at most half of the wrong labels.
    From 1.5 on it finds 70 % and more and flags under 15 % of the correct ones (simulated logits, 9
    classes, 20 and 40 % noise; a trained model has 2.5 to 4). A long tail without any noise passes
    too, which does no harm: few samples are flagged.
    """
    if selector is None:
        return False
    spread = 0.5 * (math.sqrt(selector.var[0]) + math.sqrt(selector.var[1]))
    return selector.mean[1] - selector.mean[0] >= separation * spread


# ---- Eq. 5-7: which samples of a site are clean ----


def clean_threshold(losses: np.ndarray, cap: float = 0.8, eps: float = 1e-6) -> float:
    """tau_k (Eq. 5): stricter when a site's losses (n,), not clipped, are more dispersed.

    D^c is {p("clean") >= tau_k} (Eq. 7).
    """
    x = np.asarray(losses, dtype=np.float64)
    if x.size == 0 or not np.isfinite(x).all():
        return cap  # an infinite loss is infinite dispersion; without losses, trust nothing
    return float(min(0.5 * (1.0 + x.std() / (x.mean() + eps)), cap))


def clean_probability(
    losses: np.ndarray, selector: Selector, *, monotone: bool = True
) -> np.ndarray:
    """(n,): p("clean" | x, y) (Eq. 6), the posterior of component 0 (Eq. 3) for losses (n,).

    The log-odds of two Gaussians is a parabola in the loss. Beyond its vertex it turns around: with
    a narrow clean component the smallest losses become noisy, with a narrow noisy one the largest
    become clean. Neither makes sense, so `monotone` moves losses beyond the vertex to it, and the
    probability never rises with the loss. Nothing changes between the two means. `monotone=False`
    is the paper's literal formula.
    """
    x = np.asarray(losses, dtype=np.float64)
    mean = np.array(selector.mean)
    var = np.array(selector.var)
    if monotone and var[0] != var[1]:
        vertex = (mean[0] * var[1] - mean[1] * var[0]) / (var[1] - var[0])
        x = np.maximum(x, vertex) if var[1] > var[0] else np.minimum(x, vertex)
    joint = _log_joint(_parabola_basis(x), mean, var, np.array(selector.weight))
    # a sigmoid of the log-odds that cannot overflow
    p: np.ndarray = np.exp(-np.logaddexp(0.0, joint[1] - joint[0]))
    return p


def clean_subset(probability: np.ndarray, tau: float) -> np.ndarray:
    """(n,) bool: D^c (Eq. 7), the samples whose p("clean" | x, y), (n,), is at least `tau`.

    The others are D^n. FedGSCA by default passes 1 - tau_k, so that D^n has only labels that are
    wrong with that certainty (option `doubtful`); the paper passes tau_k.
    """
    return np.asarray(probability >= tau)


# ---- losses as the selector sees them (not in the paper) ----


def clip_losses(losses: np.ndarray, cap: float = LOSS_CAP) -> np.ndarray:
    """(n,): losses of at most `cap`; losses that are not finite count as `cap`.

    More than 1 % of those is an error: the model has diverged. `cap=inf` is the paper's reading.
    """
    x = np.asarray(losses, dtype=np.float64)
    bad = ~np.isfinite(x)
    if 100 * int(bad.sum()) > x.size:
        raise UpdateError(
            "update.losses-not-finite",
            f"{int(bad.sum())} of {x.size} losses are not finite: the model has diverged",
            fix="lower the learning rate, or resume from an earlier checkpoint",
        )
    worst = cap if math.isfinite(cap) else float(x[~bad].max(initial=0.0))
    return np.minimum(np.where(bad, worst, x), cap)


def class_relative(
    losses: np.ndarray,
    labels: np.ndarray,
    num_classes: int,
    *,
    quantile: float = 0.25,
    min_count: int = 5,
) -> np.ndarray:
    """(n,): losses shifted per given class, so that each class's quantile equals the site's.

    Rare and hard classes have larger losses throughout; on one common scale the entire class would
    count as noisy. The 25 % quantile represents "a clean sample of this class" as long as fewer
    than three quarters of its labels are wrong. Classes with fewer than `min_count` samples stay as
    they are. Use it before the fit and before the posterior, not for tau.
    """
    relative = np.array(losses, dtype=np.float64)
    if relative.size == 0:
        return relative
    target = np.quantile(relative, quantile)
    for c in range(num_classes):
        members = labels == c
        if np.count_nonzero(members) >= min_count:
            relative[members] += target - np.quantile(relative[members], quantile)
    return relative
