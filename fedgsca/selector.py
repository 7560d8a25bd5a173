"""GSS, the global sample selector (Eq. 1-7 of the paper): which of a site's labels look clean?

A model that is still learning fits right labels before wrong ones, so the per-sample losses of a site form two heaps: small
losses (clean) and large ones (noisy). Each site fits two Gaussians to its losses (`fit_selector`), the server averages the six
numbers (`merge_selectors`), and each site asks the average how probable "clean" is for each of its samples
(`clean_probability`) and keeps those above its own threshold (`clean_threshold`).

Losses are natural-log cross-entropies against the given labels. The paper calls the *variance* of a component sigma; here it is
`var`. Component 0 is the clean one: it always has the smaller mean. Equation numbers count the paper's displayed equations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgsca.errors import UpdateError

LOSS_CAP = 9.21  # -log(1e-4): beyond it a loss says "wrong", not "more wrong", and would only inflate the noisy variance
MIN_SAMPLES, MIN_SPREAD, MIN_GAP = (
    20,
    1e-4,
    0.1,
)  # fewer samples, smaller std, closer means: no two heaps to speak of
NO_SELECTOR = np.full(
    6, np.nan
)  # "no selector yet" on the wire, where a selector is one array of six numbers
NO_SELECTOR.flags.writeable = False


@dataclass(frozen=True)
class Selector:
    """S = (mu, sigma, pi) (Eq. 2): two Gaussians over losses. `mean[0] <= mean[1]`, `var` are variances, `weight` sums to 1."""

    mean: tuple[float, float]
    var: tuple[float, float]
    weight: tuple[float, float]

    def to_array(self) -> np.ndarray:
        """(6,) float64: both means, both variances, both weights. These six numbers are all that leaves a site."""
        return np.array([*self.mean, *self.var, *self.weight], dtype=np.float64)

    @staticmethod
    def from_array(array: np.ndarray) -> Selector | None:
        """The inverse of `to_array`; all NaN means None. It is the door for numbers from elsewhere, so it checks them."""
        a = np.asarray(array, dtype=np.float64)
        if a.shape == (6,) and bool(np.isnan(a).all()):
            return None
        good = a.shape == (6,) and bool(np.isfinite(a).all()) and a[0] <= a[1] and min(a[2:]) > 0
        if not good or abs(a[4] + a[5] - 1.0) > 1e-5:
            raise UpdateError(
                "todo.selector-1",
                f"not a selector: {a.tolist()} (want two ascending means, two positive variances, two weights that sum to 1)",
                fix="run the same version of fedgsca at the server and at every site",
            )
        return _selector(a[:2], a[2:4], a[4:])


def _selector(mean: np.ndarray, var: np.ndarray, weight: np.ndarray) -> Selector:
    """Plain floats, sorted by mean: without the sorting, one swapped site would spoil the server's average."""
    i, j = (0, 1) if mean[0] <= mean[1] else (1, 0)
    return Selector(
        (float(mean[i]), float(mean[j])),
        (float(var[i]), float(var[j])),
        (float(weight[i]), float(weight[j])),
    )


# means, variances and weights to which a site's selector is clamped before noise is added (privacy.py)
SELECTOR_BOUNDS = ((0.0, 4.0), (1.0, 8.0), (0.05, 4.0), (0.05, 4.0), (0.01, 0.99), (0.01, 0.99))


def nearest_selector(array: np.ndarray) -> np.ndarray:
    """Six numbers within SELECTOR_BOUNDS as a selector again: sorted by mean, weights that sum to 1."""
    weight = array[4:] / array[4:].sum()
    return _selector(array[:2], array[2:4], weight).to_array()


def clip_losses(losses: np.ndarray, cap: float = LOSS_CAP) -> np.ndarray:
    """Losses for the fit: at most `cap`, non-finite ones counted as `cap`. More than 1 % of those: the model diverged."""
    x = np.asarray(losses, dtype=np.float64)
    bad = ~np.isfinite(x)
    if 100 * int(bad.sum()) > x.size:
        raise UpdateError(
            "todo.selector-2",
            f"{int(bad.sum())} of {x.size} losses are not finite: the model has diverged",
            fix="lower the learning rate, or resume from an earlier checkpoint",
        )
    worst = (
        cap if math.isfinite(cap) else float(x[~bad].max(initial=0.0))
    )  # cap = inf is the paper's literal reading
    return np.minimum(np.where(bad, worst, x), cap)


def class_relative(
    losses: np.ndarray,
    labels: np.ndarray,
    num_classes: int,
    *,
    quantile: float = 0.25,
    min_count: int = 5,
) -> np.ndarray:
    """Shift the losses of each given class so that its lower quantile equals the site's (not in the paper).

    Rare and hard classes have larger losses throughout; on one common scale they would be declared noisy as a whole. The 25 %
    quantile stands for "a clean sample of this class" as long as fewer than three quarters of its labels are wrong. Classes
    with fewer than `min_count` samples stay as they are. Use it before the fit and before the posterior, not for tau.
    """
    shifted = np.array(losses, dtype=np.float64)
    if shifted.size == 0:
        return shifted
    target = np.quantile(shifted, quantile)
    for c in range(num_classes):
        mine = labels == c
        if np.count_nonzero(mine) >= min_count:
            shifted[mine] += target - np.quantile(shifted[mine], quantile)
    return shifted


def _log_joint(
    basis: np.ndarray, mean: np.ndarray, var: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """(2, n): log P(z = g) + log N(loss; mean_g, var_g), the numerators of Eq. 3 with the densities of Eq. 1.

    basis (3, n) holds 1, x, x^2 of the losses x: the logarithm of a Gaussian is a parabola, so one small product gives both.
    """
    constant = np.log(weight) - 0.5 * np.log(2.0 * np.pi * var) - mean * mean / (2.0 * var)
    joint: np.ndarray = np.stack([constant, mean / var, -0.5 / var], axis=1) @ basis
    return joint


def fit_selector(
    losses: np.ndarray,
    init: Selector | None = None,
    *,
    var_floor: float = 0.25,
    max_steps: int = 100,
    tol: float = 1e-4,
) -> Selector | None:
    """CSS, the site's own selector: EM for two Gaussians (Algorithm 1, the last loop). None: no trustworthy two-heap fit.

    EM starts at the global selector `init` and, because it never leaves a start in which both components coincide, once more at
    quantiles of the data; the likelier fit wins. `var_floor` (nats squared) bounds both variances from below: without it the clean
    component collapses onto the spike at loss 0 and calls a third of the right labels noisy. It must be a bound: *added* to the
    variances in every step, as mixture libraries do, it melts two heaps that are a nat and a half apart into one.
    """
    l = np.asarray(losses, dtype=np.float64)
    if l.size < MIN_SAMPLES or not np.isfinite(l).all() or l.std() < MIN_SPREAD:
        return None
    low, high = np.quantile(l, [0.25, 0.9])
    starts = [Selector((float(low), float(high)), (float(l.var()), float(l.var())), (0.7, 0.3))]
    fits = [
        _em(l, start, max(var_floor, 1e-12), max_steps, tol)
        for start in ([init] if init else []) + starts
    ]
    fit = max(fits, key=lambda found: found[1])[0]  # the first of equals: the one that started at S
    numbers_ok = bool(np.isfinite(fit.to_array()).all())
    both_inhabited = min(fit.weight) >= max(2.0 / l.size, 0.005)
    return fit if numbers_ok and both_inhabited and fit.mean[1] - fit.mean[0] >= MIN_GAP else None


def _em(
    losses: np.ndarray, start: Selector, floor: float, max_steps: int, tol: float
) -> tuple[Selector, float]:
    """Expectation-maximisation from `start` until the mean log-likelihood changes by less than `tol`; and that likelihood."""
    centre = losses.mean()
    l = losses - centre  # moments about the middle of the data: E[l^2] - E[l]^2 keeps its digits
    mean, var, weight = np.array(start.mean) - centre, np.array(start.var), np.array(start.weight)
    basis, before, now = np.stack([np.ones_like(l), l, l * l]), -np.inf, -np.inf
    for _ in range(max_steps):
        joint = _log_joint(basis, mean, var, weight)
        evidence = np.logaddexp(joint[0], joint[1])  # log P(loss), the denominator of Eq. 3
        gamma = np.exp(joint - evidence)  # (2, n), E-step: Eq. 3
        mass, first, second = (gamma @ basis.T).T  # M-step: sums of gamma, gamma l, gamma l^2
        mass = np.maximum(mass, 1e-12)
        mean, weight = first / mass, mass / l.size
        var = np.maximum(second / mass - mean * mean, floor)
        now = float(evidence.mean())
        if abs(now - before) < tol:
            break
        before = now
    return _selector(mean + centre, var, weight), now if np.isfinite(now) else -np.inf


def merge_selectors(selectors: Sequence[Selector | None], sizes: Sequence[int]) -> Selector | None:
    """GSS: the mean of the sites' selectors weighted by their number of samples (Eq. 4); None entries carry no weight.

    Variances are averaged linearly, as printed. The sums are exact, so the order of the sites does not matter.
    """
    valid = [
        (s.to_array(), n) for s, n in zip(selectors, sizes, strict=True) if s is not None and n > 0
    ]
    if not valid:
        return None
    total = sum(n for _, n in valid)
    a = np.array([math.fsum(s[i] * n for s, n in valid) / total for i in range(6)])
    return _selector(a[:2], a[2:4], a[4:])  # averages of sorted pairs are sorted


def clean_probability(
    losses: np.ndarray, selector: Selector, *, monotone: bool = True
) -> np.ndarray:
    """(n,): p("clean" | x, y) (Eq. 6), the posterior of component 0 (Eq. 3). Never rises with the loss if `monotone`.

    The log-odds of two Gaussians is a parabola in the loss. Beyond its vertex it turns round: with a narrow clean component the
    best-fitted samples become noisy, with a narrow noisy one the worst become clean. Both are nonsense for a loss, so losses
    beyond the vertex are moved to it. Between the two means nothing changes. `monotone=False` is the paper's literal formula.
    """
    x = np.asarray(losses, dtype=np.float64)
    mean, var = np.array(selector.mean), np.array(selector.var)
    if monotone and var[0] != var[1]:
        vertex = (mean[0] * var[1] - mean[1] * var[0]) / (var[1] - var[0])
        x = np.maximum(x, vertex) if var[1] > var[0] else np.minimum(x, vertex)
    joint = _log_joint(np.stack([np.ones_like(x), x, x * x]), mean, var, np.array(selector.weight))
    p: np.ndarray = np.exp(
        -np.logaddexp(0.0, joint[1] - joint[0])
    )  # a sigmoid of the log-odds that cannot overflow
    return p


def clean_threshold(losses: np.ndarray, cap: float = 0.8, eps: float = 1e-6) -> float:
    """tau_k (Eq. 5): stricter when a site's (unclipped) losses are more dispersed. D^c is {p("clean") >= tau_k} (Eq. 7)."""
    x = np.asarray(losses, dtype=np.float64)
    if x.size == 0 or not np.isfinite(x).all():
        return cap  # an infinite loss is infinite dispersion; no losses, nothing to trust
    return float(min(0.5 * (1.0 + x.std() / (x.mean() + eps)), cap))


def healthy(selector: Selector | None, *, separation: float = 1.5) -> bool:
    """Do the two components stand apart, so that selecting by them is better than not selecting?

    Their gap is measured in mean standard deviations (which include the variance floor). One symmetric heap split in two by EM
    reaches about 1 at most; so do models that know too little, and there the selector finds half of the wrong labels or fewer.
    From 1.5 on it finds 70 % and more while flagging under 15 % of the right ones (simulated logits, 9 classes, 20 and 40 %
    noise; a trained model has 2.5 to 4). A long tail without any noise passes, too, which is harmless: it flags few samples.
    """
    if selector is None:
        return False
    spread = 0.5 * (math.sqrt(selector.var[0]) + math.sqrt(selector.var[1]))
    return selector.mean[1] - selector.mean[0] >= separation * spread
