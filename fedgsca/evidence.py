"""Evidence about labels that does not come from the model in training (docs/evidence.md).

A model that trains on a wrong label soon believes it. So the labels of a site are judged by two
others, neither of which has seen the label that it judges:

- *the federation*: K = 4 linear evidence heads on the features of the images, trained with small
  steps across all sites. Head f never trains on fold f, and judges the samples of fold f.
- *the site itself*: a kernel regression on its own features. Every sample is judged by the
  regression on all others, in closed form.

Where a site looks like the others, the federation knows more; where it looks different, the site
does. Their verdicts are averaged:

    heads   <- one epoch with small steps, without fold f                    train_heads
    p_i     <- opinion of head f(i), a mean over some rounds                 judge
    p_i     <- opinion of the regression without sample i                    judge_alone
    kappa   <- the power that explains the site's unseen labels best         judge_labels
    q_i     <- p_i^kappa, normalised; pi its mean over the site              Judgement.opinion
    T, pi_k <- transition matrix and class mix of the site                   estimate_transition
    r_i     <- P(true class | image i, given label y_i), for each judge      estimate_transition
    r_i     <- their weighted geometric mean, normalised                     SiteEvidence.posterior

The audit ranks labels by 1 - r_i(y_i) (`suspicion`); wrong_count.py estimates how many are wrong.
FedGSCA-E adds r to the labels that it trains on. Nothing of this leaves a site but the heads.

Symbols: n samples of one site, C classes, D features, K heads; `given` (n,) are the labels y.
Constants were chosen by a study on validation images (docs/evidence.md).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedgsca.rng import stream
from fedgsca.support.checked_labels import NO_ORIGINAL, CheckedLabels

# number of heads and of folds
NUM_HEADS = 4
# learning rate of the heads times D, the squared norm of a normalised feature vector, if few sites
# train them
STEP = 6.4
# exponent of the class weights: 0 is none, 1 gives every class the same total weight
BALANCE = 0.5
# largest weight of one sample
MAX_WEIGHT = 10.0
# values of kappa among which the likelihood chooses
POWERS = (0.7, 1.0, 1.4, 2.0, 3.0)
# of a site's own regression: ridge penalty; the slope that makes its predictions logits (kappa does
# the rest); how often it learns from its own posterior; samples that span it at most
RIDGE = 0.5
RIDGE_SLOPE = 6.0
RIDGE_RENEWALS = 3
LANDMARKS = 2000
# pseudo-samples behind each row of T and behind the class mix
ROW_PRIOR = 20.0
MIX_PRIOR = 10.0
# share of wrong labels at which EM starts, and which it cannot exceed: beyond it, "wrong" and
# "right" could be swapped
START_RATE = 0.1
MAX_RATE = 0.6
EM_STEPS = 40
# share of the labels' information across folds that evidence must explain before anything is
# concluded from it
MIN_USEFUL = 0.01
# how many times as much as the federation a site explains by itself, if its images look different
LOOKS_DIFFERENT = 1.5
# numbers of sites between which steps grow with the number, because the mean divides by it
FEW_SITES = 4
MANY_SITES = 100
# smallest probability whose logarithm is taken
TINY = 1e-12
# names of the judges of a site
SITE = "site"
FEDERATION = "federation"
# samples that are judged at a time: fixed, so that the bytes do not depend on the memory
_CHUNK = 256


# ---- the heads ----


@dataclass(frozen=True)
class Heads:
    """K linear heads on the same features."""

    # (K, D, C) and (K, C), float32
    weight: np.ndarray
    bias: np.ndarray

    @staticmethod
    def zeros(width: int, num_classes: int, num_heads: int = NUM_HEADS) -> Heads:
        """Heads without an opinion: every class has the same probability."""
        weight = np.zeros((num_heads, width, num_classes), np.float32)
        return Heads(weight, np.zeros((num_heads, num_classes), np.float32))


def assign_folds(
    seed: int, site: str, contents: Iterable[bytes], num_folds: int = NUM_HEADS
) -> np.ndarray:
    """(n,) int64: the fold of each sample, from a hash of its content.

    It depends on nothing but (seed, site, content): another order of the samples, or more of them,
    moves none, and two copies of one image are in the same fold.
    """
    address = repr((seed, "fold", site)).encode()
    folds = []
    for content in contents:
        digest = hashlib.sha256(address + content).digest()
        folds.append(digest[0] % num_folds)
    return np.array(folds, dtype=np.int64)


def number_contents(contents: Iterable[bytes]) -> np.ndarray:
    """(n,) int64: equal contents, such as the names of patients, have the same number."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(content, len(numbers)) for content in contents])


def draw_holdout(seed: int, site: str, contents: Iterable[bytes], share: float) -> np.ndarray:
    """(n,) bool: samples that no model trains on; chosen like folds, independently of them."""
    address = repr((seed, "holdout", site)).encode()
    mask = []
    for content in contents:
        digest = hashlib.sha256(address + content).digest()
        mask.append(int.from_bytes(digest[:4], "big") < share * 2**32)
    return np.array(mask, dtype=bool)


def layer_normalise(features: np.ndarray) -> np.ndarray:
    """(n, D): every vector with mean 0 and variance 1, as frozen features already are."""
    centre = features - features.mean(axis=1, keepdims=True)
    return np.asarray(centre / np.sqrt(centre.var(axis=1, keepdims=True) + 1e-5))


def balance_classes(masses: np.ndarray, exponent: float = BALANCE) -> np.ndarray:
    """(C,): (sum / mass)^exponent from class masses (C,); one more sample each keeps it finite."""
    padded_masses = np.asarray(masses, dtype=np.float64) + 1.0
    return np.asarray((padded_masses.sum() / padded_masses) ** exponent)


def head_targets(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Targets (n, C) and weights (n,) for training the heads.

    labels (n, C): one-hot given labels at first, the posterior r later. Classes are balanced by the
    site's own masses, so that rare ones are learnt, too; `estimate_transition` puts the site's mix
    back. Weights have mean 1 before they are cut at MAX_WEIGHT.
    """
    balanced_labels = labels * balance_classes(labels.sum(axis=0))
    sizes = balanced_labels.sum(axis=1)
    weights = np.minimum(sizes / sizes.mean(), MAX_WEIGHT)
    return balanced_labels / sizes[:, None], weights


def train_heads(
    heads: Heads,
    features: np.ndarray,
    targets: np.ndarray,
    weights: np.ndarray,
    folds: np.ndarray,
    order: np.ndarray,
    *,
    num_sites: int = FEW_SITES,
    batch_size: int = 32,
    step: float = STEP,
) -> Heads:
    """One epoch of SGD on the weighted cross-entropy; head f leaves out fold f.

    features (n, D) normalised, targets (n, C), weights (n,), folds (n,), order (n,) a permutation.
    The weights of the samples that a head sees are scaled by K / (K - 1): the heads move as far as
    one that sees all samples. The server averages heads like any other weights; the more sites
    share the images, the fewer steps each of them takes, and the larger a step is.
    """
    num_heads, width, num_classes = heads.weight.shape
    # (D, K C): one product for all heads
    weight = np.ascontiguousarray(heads.weight.transpose(1, 0, 2).reshape(width, -1))
    bias = heads.bias.reshape(-1).copy()
    # everything in the order of the steps
    is_seen = folds[order][:, None] != np.arange(num_heads)  # (n, K)
    scale = num_heads / (num_heads - 1)
    sample_weights = (weights[order][:, None] * is_seen * scale).astype(np.float32)[:, :, None]
    soft_labels = targets[order].astype(np.float32)[:, None]
    lr = np.float32(step * site_factor(num_sites) / width)
    for start in range(0, len(order), batch_size):
        rows = slice(start, start + batch_size)
        x = np.asarray(features[order[rows]], dtype=np.float32)
        size = len(x)
        if size < 2:
            continue
        logits = x @ weight
        logits += bias
        gap = softmax(logits.reshape(size, num_heads, num_classes))
        gap -= soft_labels[rows]
        gap *= sample_weights[rows]
        gradient = gap.reshape(size, -1)
        gradient *= lr / np.float32(size)
        weight -= x.T @ gradient
        bias -= gradient.sum(axis=0)
    trained_weight = weight.reshape(width, num_heads, num_classes).transpose(1, 0, 2)
    return Heads(np.ascontiguousarray(trained_weight), bias.reshape(num_heads, num_classes))


def judge(heads: Heads, features: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """(n, C) float64: each sample's probabilities by the head that never trained on it.

    features (n, D) normalised, folds (n,).
    """
    logits = np.empty((len(folds), heads.bias.shape[1]))
    for start in range(0, len(folds), _CHUNK):
        rows = slice(start, start + _CHUNK)
        x = np.asarray(features[rows], dtype=np.float32)
        for head, weight in enumerate(heads.weight):
            # a product of all samples, as in earlier versions: that of a part, or one product for
            # all heads, has other last bits
            is_judge = folds[rows] == head
            logits[rows][is_judge] = (x @ weight)[is_judge] + heads.bias[head]
    return softmax(logits)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis."""
    exponentials = logits - logits.max(axis=-1, keepdims=True)
    np.exp(exponentials, out=exponentials)
    exponentials /= exponentials.sum(axis=-1, keepdims=True)
    return np.asarray(exponentials)


# ---- from an opinion to a posterior ----


def sharpen(probs: np.ndarray, power: float) -> np.ndarray:
    """(n, C): probs^kappa, normalised. Heads that take small steps are too cautious."""
    return softmax(power * np.log(np.maximum(probs, TINY)))


def mean_opinion(opinion: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(C,): pi, the weighted mean over the site's samples of the opinion q (n, C).

    It is the site's own: where images look different, the opinions about all of them are shifted,
    and a mean over other sites would let the shift pass for wrong labels. weights (n,) are those
    of the samples in the training of the judge.
    """
    return normalise_mix(weights @ opinion)


def symmetric_matrix(rate: float, num_classes: int) -> np.ndarray:
    """(C, C): a share `rate` of every class is mislabelled, evenly over the other classes."""
    matrix = np.full((num_classes, num_classes), rate / max(num_classes - 1, 1))
    np.fill_diagonal(matrix, 1.0 - rate)
    return matrix


@dataclass(frozen=True)
class Transition:
    """What EM learns about the labels of one site."""

    # (C, C): T[c, y] = P(given y | true c)
    matrix: np.ndarray
    # (C,): shares of the true classes
    mix: np.ndarray
    # (n, C): r
    posterior: np.ndarray
    # mean of 1 - r_i(y_i)
    wrong_share: float
    # of the given labels
    log_likelihood: float


def estimate_transition(
    opinion: np.ndarray,
    given: np.ndarray,
    reference: np.ndarray,
    *,
    checked: CheckedLabels | None = None,
    row_prior: float = ROW_PRIOR,
    mix_prior: float = MIX_PRIOR,
    start_rate: float = START_RATE,
    steps: int = EM_STEPS,
) -> Transition:
    """EM for T and the site's class mix pi_k, started at "the labels are correct".

        a_i(c) ~ q_i(c) pi_k(c) / pi(c)              the opinion under this site's class mix
        r_i(c) ~ a_i(c) T[c, y_i]
        e      = mean_i(1 - r_i(y_i)), at most MAX_RATE
        T[c]   ~ sum_i r_i(c) onehot(y_i) + row_prior symmetric_matrix(e)[c]
        pi_k   = (sum_i r_i + mix_prior pi) / (n + mix_prior)

    opinion (n, C) is q, the sharpened judgement; reference (C,) is pi, the site's own mean opinion,
    with positive entries that sum to 1. The prior of T has the site's own e: no rate is assumed.
    A label that a person has `checked` is the truth: r_i is the given label. In e, T and the
    likelihood, it counts with the label that it was before; if that is not known, not at all.
    """
    matrices, mixes = _run_em(
        opinion[None],
        given,
        reference[None],
        checked=checked,
        row_prior=row_prior,
        mix_prior=mix_prior,
        start_rate=start_rate,
        steps=steps,
    )
    matrix, mix = matrices[0], mixes[0]
    first_labels = given if checked is None else checked.first_labels(given)
    r, likelihoods = _posterior(opinion * (mix / reference), first_labels, matrix)
    if checked is not None:
        r[checked.mask] = np.eye(opinion.shape[1])[given[checked.mask]]
        likelihoods[first_labels == NO_ORIGINAL] = 1.0
    return Transition(
        matrix=matrix,
        mix=mix,
        posterior=r,
        wrong_share=float(suspicion(r, given).mean()),
        log_likelihood=float(np.log(likelihoods).sum()),
    )


def _run_em(
    opinions: np.ndarray,
    given: np.ndarray,
    references: np.ndarray,
    *,
    checked: CheckedLabels | None = None,
    row_prior: float = ROW_PRIOR,
    mix_prior: float = MIX_PRIOR,
    start_rate: float = START_RATE,
    steps: int = EM_STEPS,
) -> tuple[np.ndarray, np.ndarray]:
    """T (P, C, C) and pi_k (P, C) of `estimate_transition`, for P opinions about the same labels.

    opinions (P, n, C), given (n,), references (P, C). The opinions do not influence each other:
    most of a step's time is the number of its operations, which is that of a single opinion.
    """
    num_opinions, n, num_classes = opinions.shape
    doubtful, doubtful_labels = opinions, given
    # of checked labels: true classes, and true classes by the label before the check
    true_counts, pair_counts = np.zeros(num_classes), np.zeros((num_classes, num_classes))
    if checked is not None:
        doubtful, doubtful_labels = opinions[:, ~checked.mask], given[~checked.mask]
        true_counts += np.bincount(given[checked.mask], minlength=num_classes)
        has_original = checked.original != NO_ORIGINAL
        np.add.at(pair_counts, (given[has_original], checked.original[has_original]), 1.0)
    num_labels = len(doubtful_labels) + float(pair_counts.sum())
    label_counts = np.bincount(doubtful_labels, minlength=num_classes)
    mix = (label_counts + true_counts + mix_prior * references) / (n + mix_prior)
    matrix = symmetric_matrix(start_rate, num_classes)[None]
    # (P, C, n), samples with the same label side by side: a step is a few sums over long rows
    order = np.argsort(doubtful_labels, kind="stable")
    columns = np.ascontiguousarray(doubtful[:, order].transpose(0, 2, 1))
    labels = doubtful_labels[order]
    present = np.flatnonzero(label_counts)
    starts = (np.cumsum(label_counts) - label_counts)[present]
    counts = np.zeros((num_opinions, num_classes, num_classes))
    prior = np.empty_like(counts)
    diagonal = np.arange(num_classes)
    rate = np.full(num_opinions, start_rate)  # if no label says anything about it
    joint = np.empty_like(columns)
    for _ in range(steps):
        factors = (mix / references)[:, :, None] * matrix
        np.take(factors, labels, axis=2, out=joint, mode="clip")
        joint *= columns
        joint /= np.maximum(joint.sum(axis=1, keepdims=True), 1e-300)
        counts[:, :, present] = np.add.reduceat(joint, starts, axis=2)
        label_pairs = counts + pair_counts
        if num_labels:
            rate = np.minimum(1.0 - label_pairs.trace(axis1=1, axis2=2) / num_labels, MAX_RATE)
        mix = (counts.sum(axis=2) + true_counts + mix_prior * references) / (n + mix_prior)
        # symmetric_matrix of each rate
        prior[:] = (rate / max(num_classes - 1, 1))[:, None, None]
        prior[:, diagonal, diagonal] = (1.0 - rate)[:, None]
        smooth_counts = label_pairs + row_prior * prior
        matrix = smooth_counts / smooth_counts.sum(axis=2, keepdims=True)
    return matrix, mix


def _posterior(
    opinion: np.ndarray, given: np.ndarray, matrix: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(n, C) r and (n,) P(y_i | image), from an opinion (n, C) that need not be normalised."""
    joint = opinion / opinion.sum(axis=1, keepdims=True) * matrix[:, given].T
    likelihoods = np.maximum(joint.sum(axis=1), 1e-300)
    return joint / likelihoods[:, None], likelihoods


def normalise_mix(masses: np.ndarray) -> np.ndarray:
    """(..., C): masses as shares; a class without any gets a tiny share instead of zero."""
    positive = np.maximum(masses, 1e-6)
    return np.asarray(positive / positive.sum(axis=-1, keepdims=True))


# ---- judges ----


@dataclass(frozen=True)
class Judgement:
    """What one judge, who has not seen the labels of a site, thinks of its images."""

    # (n, C) opinion, before it is sharpened
    probs: np.ndarray
    # (n,) weights of the samples in the training of the judge
    weights: np.ndarray
    # kappa, one of POWERS
    power: float
    # of the information in labels that it has not seen, the share that the opinion explains while
    # the judge has learnt given labels only: at most 1, and 0 or less if it is useless. What is
    # learnt from a posterior contains the judged labels in a roundabout way
    share_explained: float

    def opinion(self, power: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        """q (n, C) and its mean pi (C,), sharpened by `power`, by default kappa."""
        opinion = sharpen(self.probs, self.power if power is None else power)
        return opinion, mean_opinion(opinion, self.weights)

    def transition(self, given: np.ndarray, checked: CheckedLabels | None = None) -> Transition:
        """T, class mix and posterior for the given labels (n,)."""
        opinion, reference = self.opinion()
        return estimate_transition(opinion, given, reference, checked=checked)


def judge_labels(
    probs: np.ndarray,
    given: np.ndarray,
    parts: np.ndarray,
    *,
    weights: np.ndarray | None = None,
    checked: CheckedLabels | None = None,
) -> Judgement:
    """The judgement by an opinion, with the kappa that explains labels best that T has not seen.

    probs (n, C) of a judge who has not seen the labels `given` (n,); parts (n,) say which labels
    explain which; weights (n,) as in `Judgement`. Neither memorising nor a T that adapts to its
    labels can raise the likelihood.
    """
    weights = np.ones(len(given)) if weights is None else weights
    opinions = np.stack([sharpen(probs, power) for power in POWERS])
    references = np.stack([mean_opinion(opinion, weights) for opinion in opinions])
    log_likelihoods, baseline = explain_opinions(
        opinions, given, parts, references, checked=checked
    )
    best = int(np.argmax(log_likelihoods))
    share_explained = 1.0 - log_likelihoods[best] / baseline if baseline < 0.0 else 0.0
    return Judgement(probs, weights, POWERS[best], share_explained)


def judge_alone(
    features: np.ndarray,
    given: np.ndarray,
    groups: np.ndarray,
    num_classes: int,
    *,
    checked: CheckedLabels | None = None,
) -> Judgement:
    """The judgement of a site about itself, by a regression without the judged group.

    features (n, D) normalised, given (n,), groups (n,) int64: samples of one patient, or copies,
    are never judged by each other. The regression learns the given labels first, then its own
    posterior.
    """
    targets = np.eye(num_classes)[given]
    kernel = KernelRegression(features, groups)
    # not by their order: in many files, neighbours have different classes
    halves = stream(0, "halves").permutation(int(groups.max()) + 1)[groups] % 2
    for renewal in range(RIDGE_RENEWALS + 1):
        balanced_targets, weights = head_targets(targets)
        probs = softmax(RIDGE_SLOPE * kernel.leave_one_out(balanced_targets, weights))
        judgement = judge_labels(probs, given, halves, weights=weights, checked=checked)
        if renewal == 0:
            share_explained = judgement.share_explained
        if renewal < RIDGE_RENEWALS:
            targets = judgement.transition(given, checked).posterior
    return replace(judgement, share_explained=share_explained)


class KernelRegression:
    """Leave-one-group-out predictions of weighted kernel ridge regressions on the same features.

    With K_ij = exp(-|x_i - x_j|^2 / mean |x|^2) and Z = (K + RIDGE diag(1 / w))^-1, the residual of
    group g, predicted without g, is Z_gg^-1 (Z (t - m))_g. With more than LANDMARKS samples, K is
    approximated by its columns of so many of them (Nystroem).
    """

    def __init__(self, features: np.ndarray, groups: np.ndarray) -> None:
        """features (n, D), groups (n,) int64."""
        x = np.asarray(features, dtype=np.float64)
        x = x / np.sqrt((x**2).sum(axis=1).mean() + TINY)
        self.kernel: np.ndarray | None = None
        # (n, LANDMARKS) coordinates whose products approximate K
        self.coordinates: np.ndarray | None = None
        if len(x) <= LANDMARKS:
            self.kernel = gaussian_kernel(x, x)
        else:
            rows = np.sort(stream(0, "landmarks").permutation(len(x))[:LANDMARKS])
            factor = np.linalg.cholesky(
                gaussian_kernel(x[rows], x[rows]) + 1e-6 * np.eye(LANDMARKS)
            )
            self.coordinates = np.linalg.solve(factor, gaussian_kernel(x[rows], x)).T
        order = np.argsort(groups, kind="stable")
        # rows of every group, ascending
        self.groups = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)

    def leave_one_out(self, targets: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """(n, C): what the regression on all other groups predicts for targets (n, C)."""
        residuals = targets - weights @ targets / weights.sum()
        is_exact = self.kernel is not None
        held_out = self._exact_residuals if is_exact else self._approximate_residuals
        return np.asarray(targets - held_out(residuals, weights))

    def _exact_residuals(self, residuals: np.ndarray, weights: np.ndarray) -> np.ndarray:
        assert self.kernel is not None
        inverse = np.linalg.inv(self.kernel + np.diag(RIDGE / weights))
        coefficients = inverse @ residuals
        held_out = np.empty_like(residuals)
        for rows in self.groups:
            held_out[rows] = np.linalg.solve(inverse[np.ix_(rows, rows)], coefficients[rows])
        return held_out

    def _approximate_residuals(self, residuals: np.ndarray, weights: np.ndarray) -> np.ndarray:
        x = self.coordinates
        assert x is not None
        moments = x.T @ (x * weights[:, None]) + RIDGE * np.eye(x.shape[1])
        inverse = np.linalg.inv(moments)
        errors = residuals - x @ (inverse @ (x.T @ (residuals * weights[:, None])))
        held_out = np.empty_like(residuals)
        for rows in self.groups:
            leverage = x[rows] @ inverse @ x[rows].T * weights[rows]
            held_out[rows] = np.linalg.solve(np.eye(len(rows)) - leverage, errors[rows])
        return held_out


def gaussian_kernel(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """(n, m): exp(-|x_i - y_j|^2) of rows x (n, D) and columns y (m, D)."""
    squares = (rows**2).sum(axis=1)[:, None] + (columns**2).sum(axis=1)
    distances = np.maximum(squares - 2.0 * rows @ columns.T, 0.0)
    return np.asarray(np.exp(-distances))


@dataclass(frozen=True)
class SiteEvidence:
    """All that a site knows about its labels: its judges, and how much each of them counts."""

    # of the site alone, where it has features; of all sites; of anybody else
    judgements: Mapping[str, Judgement]
    # sum 1, by the same names
    shares: Mapping[str, float]

    @staticmethod
    def of(judgement: Judgement) -> SiteEvidence:
        """The evidence of a single judge."""
        return SiteEvidence({SITE: judgement}, {SITE: 1.0})

    @staticmethod
    def of_federation(federation: Judgement, site: Judgement, num_sites: int) -> SiteEvidence:
        """The evidence of a site in a federation.

        The errors of a judge fall with the root of the number of labels that taught it: the site
        alone counts as 1 beside the root of the number of sites.
        """
        share = 1.0 / (1.0 + math.sqrt(num_sites))
        judgements = {SITE: site, FEDERATION: federation}
        return SiteEvidence(judgements, {SITE: share, FEDERATION: 1.0 - share})

    @property
    def looks_different(self) -> bool:
        """The site's own images say clearly more about its labels than those of the others do."""
        if FEDERATION not in self.judgements:
            return False
        shares = {name: judge.share_explained for name, judge in self.judgements.items()}
        return shares[SITE] >= max(LOOKS_DIFFERENT * shares[FEDERATION], MIN_USEFUL)

    @property
    def num_labels(self) -> int:
        """The number of labels, n."""
        return len(next(iter(self.judgements.values())).probs)

    @property
    def share_explained(self) -> float:
        """Of the judge who explains more."""
        return max(judgement.share_explained for judgement in self.judgements.values())

    def opinion(self) -> np.ndarray:
        """(n, C): q of all judges, without a look at the labels."""
        return self._mean({name: judge.opinion()[0] for name, judge in self.judgements.items()})

    def posterior(self, given: np.ndarray, checked: CheckedLabels | None = None) -> np.ndarray:
        """(n, C): r for the given labels (n,)."""
        posteriors = {}
        for name, judgement in self.judgements.items():
            posteriors[name] = judgement.transition(given, checked).posterior
        return self._mean(posteriors)

    def _mean(self, probs: Mapping[str, np.ndarray]) -> np.ndarray:
        """(n, C): the weighted geometric mean of the judges' probabilities, normalised."""
        logs = [self.shares[name] * np.log(np.maximum(p, TINY)) for name, p in probs.items()]
        return softmax(sum(logs[1:], start=logs[0]))


def suspicion(posterior: np.ndarray, given: np.ndarray) -> np.ndarray:
    """(n,): 1 - r_i(y_i), the probability that the label is wrong."""
    return np.asarray(1.0 - posterior[np.arange(len(given)), given])


def to_halves(folds: np.ndarray) -> np.ndarray:
    """(n,): 0 or 1; folds (n,) stay whole, so copies of an image and patients do, too."""
    return np.asarray(folds % 2)


def explain_opinions(
    opinions: np.ndarray,
    given: np.ndarray,
    parts: np.ndarray,
    references: np.ndarray,
    *,
    checked: CheckedLabels | None = None,
    row_prior: float = ROW_PRIOR,
) -> tuple[list[float], float]:
    """Log-likelihoods of the labels of each part, by the other parts: by their T, by their shares.

    P opinions (P, n, C) with their means (P, C), about labels given (n,); parts (n,). T and the
    class mix of the other parts explain the labels of a part, so a T that adapts to its labels
    does not help. Of a label that a person has `checked`, the label before is explained, if it is
    known.
    """
    first_labels = given if checked is None else checked.first_labels(given)
    num_opinions, _, num_classes = opinions.shape
    log_likelihoods = [0.0] * num_opinions
    baseline = 0.0
    for part in np.unique(parts):
        rows = np.flatnonzero((parts == part) & (first_labels != NO_ORIGINAL))
        other_rows = np.flatnonzero(parts != part)
        if not len(other_rows):
            continue
        matrices, mixes = _run_em(
            opinions[:, other_rows],
            given[other_rows],
            references,
            checked=None if checked is None else checked.part(other_rows),
            row_prior=row_prior,
        )
        for index, (matrix, mix) in enumerate(zip(matrices, mixes, strict=True)):
            own_opinion = opinions[index, rows] * (mix / references[index])
            _, likelihoods = _posterior(own_opinion, first_labels[rows], matrix)
            log_likelihoods[index] += float(np.log(likelihoods).sum())
        other_labels = first_labels[other_rows]
        other_labels = other_labels[other_labels != NO_ORIGINAL]
        counts = np.bincount(other_labels, minlength=num_classes) + 1.0
        baseline += float(np.log(counts / counts.sum())[first_labels[rows]].sum())
    return log_likelihoods, baseline


# ---- selection for training ----


def wrong_share(
    posterior: np.ndarray, given: np.ndarray, checked: CheckedLabels | None = None
) -> float:
    """delta_k: the expected share of wrong labels, before any of them was checked and corrected."""
    doubt = suspicion(posterior, given)
    if checked is not None:
        has_original = checked.original != NO_ORIGINAL
        doubt[has_original] = (checked.original != given)[has_original]
    return float(doubt.mean())


def label_losses(posterior: np.ndarray, given: np.ndarray) -> np.ndarray:
    """(n,): -log r_i(y_i), in the order of `suspicion`, with more digits near 1."""
    return np.asarray(-np.log(np.maximum(posterior[np.arange(len(given)), given], TINY)))


def site_factor(num_sites: int) -> float:
    """How much larger steps are with many sites; 1 up to four.

    Each site takes its steps on its own part of the images, and the server takes the mean: with
    more sites a label moves the model of all sites less. A factor in proportion to their number
    would make up for that, but then a small site memorises its own labels on the way. The root is
    between the two.
    """
    return math.sqrt(min(max(num_sites, FEW_SITES), MANY_SITES) / FEW_SITES)
