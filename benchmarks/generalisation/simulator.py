"""FedAvg and FedGSCA-E on frozen features without an engine, to vary many constants quickly.

A run of the product takes about 8 s, most of it for messages, stores and logs. Here the sites are
arrays in one process, and a run takes about one second. The mathematics is the package's own:
evidence.py, selector.py, the credal loss, SGD, and the same random streams. Two things differ: a
site fits its selector once per refresh of its evidence and not in every round, although the merged
selector from which EM starts moves, and rounding.

Only the part "validation" is used: test images cannot be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.generalisation.counting import HeadSite, make_sites
from fedgsca.config import Config
from fedgsca.credal import ONLY_GIVEN_LABEL, CredalObjective, beta_at
from fedgsca.evidence import (
    MAX_DECLINE,
    MIN_USEFUL,
    POWERS,
    Heads,
    Judgement,
    best_power,
    explained_across_folds,
    head_targets,
    judge,
    label_losses,
    select,
    sharpen,
    suspicion,
    train_heads,
)
from fedgsca.federation.simulation import prepare
from fedgsca.methods.aggregate import WeightedMean
from fedgsca.methods.fedgsca_e import FedGSCAEOptions
from fedgsca.methods.parts.evidence_heads import FIRST_JUDGED_ROUND
from fedgsca.methods.train import SGD, Batch, cross_entropy_gradient, draw_balanced
from fedgsca.metrics import HEADLINE_ROUNDS, confusion, headline, scores
from fedgsca.models.build import build_model
from fedgsca.pseudo_label import guard_reason
from fedgsca.rng import stream
from fedgsca.selector import (
    Selector,
    clean_probability,
    clip_losses,
    fit_selector,
    merge_selectors,
)
from fedgsca.wire import Arrays

# (logits, batch) -> (b, C), the derivative of the mean loss
Gradient = Callable[[Tensor, Batch], Tensor]


@dataclass(frozen=True)
class Opinion:
    """What a site knows about its labels between two refreshes."""

    # (n, C) float64: r
    posterior: np.ndarray
    # of its labels, by the heads now and when they had learnt from given labels only
    share_explained: float
    plain_explained: float

    def explains_less_than(self, min_explained: float, max_decline: float) -> bool:
        """Whether a selection by it would be arbitrary, or worse than plain training."""
        return self.share_explained < max(min_explained, self.plain_explained - max_decline)


@dataclass
class SimulatedSite(HeadSite):
    """A site; what its heads learn changes while they are trained."""

    plain_explained: float | None = None

    def renew_opinion(self, power: float) -> Opinion:
        """The opinion of a refresh; the heads learn its posterior, unless it explains too little.

        power is kappa.
        """
        judgement = Judgement(self.mean_opinion(), self.references(), power)
        reference = judgement.references[POWERS.index(power)]
        share = explained_across_folds(
            sharpen(judgement.probs, power), self.given, self.folds, reference
        )
        if self.plain_explained is None:
            self.plain_explained = share
        posterior = judgement.transition(self.given).posterior.astype(np.float32)
        opinion = Opinion(posterior.astype(np.float64), share, self.plain_explained)
        self.targets = opinion.posterior
        if opinion.explains_less_than(MIN_USEFUL, MAX_DECLINE):
            self.targets = np.eye(posterior.shape[1])[self.given]
        self.opinion_sum = np.zeros_like(self.opinion_sum)
        return opinion


@dataclass(frozen=True)
class Federation:
    """All sites of a setting, and the images on which F1 is measured."""

    config: Config
    sites: Sequence[SimulatedSite]
    num_classes: int
    test_features: Tensor
    test_labels: np.ndarray

    def start_weights(self) -> Arrays:
        """The head with which the product starts, too."""
        config = self.config
        width = self.test_features.shape[1]
        model = build_model(
            config.model,
            self.num_classes,
            width=width,
            head="linear",
            seed=config.seed,
            weights=(),
        )
        head = model.head
        assert isinstance(head, torch.nn.Linear)
        return {"weight": head.weight.detach().numpy(), "bias": head.bias.detach().numpy()}

    def measure(self, weights: Arrays) -> float:
        """Macro F1 in percent."""
        logits = torch.from_numpy(weights["bias"]) + self.test_features @ torch.from_numpy(
            weights["weight"].T
        )
        predictions = logits.argmax(dim=1).numpy()
        return scores(confusion(self.test_labels, predictions, self.num_classes)).f1


def make_federation(config: Config) -> Federation:
    """The sites of a configuration with frozen features."""
    experiment = prepare(config)
    config = config.model_copy(update={"train": experiment.train})
    assert experiment.test is not None
    num_classes = experiment.table.num_classes
    sites = make_sites(experiment, config.seed, SimulatedSite)
    test_features = torch.from_numpy(np.asarray(experiment.test.inputs, dtype=np.float32))
    test_labels = np.asarray(experiment.test.labels)
    return Federation(config, sites, num_classes, test_features, test_labels)


# ---- the evidence heads ----


def train_evidence(federation: Federation) -> dict[int, list[Opinion]]:
    """First round in which they count -> the opinions of all sites, in the order of the sites."""
    config, sites = federation.config, federation.sites
    collections = config.evidence.collection_rounds(config.train.rounds)
    heads = Heads.zeros(sites[0].features.shape[1], federation.num_classes)
    opinions = {}
    for round in range(collections[-1] + 1):
        mean = WeightedMean()
        log_likelihoods = []
        for site in sites:
            if round >= min(FIRST_JUDGED_ROUND, collections[0]):
                site.opinion_sum += judge(heads, site.features, site.folds).astype(np.float32)
            targets, weights = head_targets(site.targets)
            if round in collections:
                log_likelihoods.append(site.log_likelihoods())
            order = _stream(config, site, round, "evidence").permutation(len(site.given))
            own = train_heads(
                heads, site.features, targets, weights, site.folds, order, num_sites=len(sites)
            )
            mean.add({"weight": own.weight, "bias": own.bias}, float(len(site.given)))
        arrays = mean.result()
        assert arrays is not None
        heads = Heads(arrays["weight"], arrays["bias"])
        if log_likelihoods:
            power = best_power(np.sum(log_likelihoods, axis=0))
            opinions[round + 1] = [site.renew_opinion(power) for site in sites]
    return opinions


def _stream(
    config: Config, site: SimulatedSite, round: int, *purpose: str | int
) -> np.random.Generator:
    """The same as `Site.rng`."""
    return stream(config.seed, "site", site.name, round, *purpose)


# ---- the model ----


@dataclass(frozen=True)
class LocalWork:
    """What a site trains on in one round."""

    # (m,)
    rows: np.ndarray
    labels: np.ndarray
    gradient: Gradient


@torch.inference_mode()
def train_locally(
    weights: Arrays, site: SimulatedSite, work: LocalWork, config: Config, round: int
) -> Arrays:
    """One local epoch of SGD on a linear head, in the order of the product."""
    weight = torch.from_numpy(weights["weight"].copy())
    bias = torch.from_numpy(weights["bias"].copy())
    train = config.train
    sgd = SGD([], train.lr_at(round), train.momentum, train.weight_decay)
    features = torch.from_numpy(site.features)
    order = _stream(config, site, round, "shuffle", 0).permutation(len(work.rows))
    if train.class_balance > 0:
        rng = _stream(config, site, round, "balance", 0)
        order = draw_balanced(work.labels, order, train.class_balance, rng)
    for start in range(0, len(order), train.batch_size):
        positions = order[start : start + train.batch_size]
        if len(positions) < 2:
            continue
        rows = work.rows[positions]
        batch = Batch(
            features[torch.from_numpy(rows)], torch.from_numpy(work.labels[positions]), rows
        )
        gradient = work.gradient(torch.addmm(bias, batch.x, weight.t()), batch)
        sgd.move([weight, bias], [gradient.t().mm(batch.x), gradient.sum(0)])
    return {"weight": weight.numpy(), "bias": bias.numpy()}


def plain_gradient(logits: Tensor, batch: Batch) -> Tensor:
    """(b, C): the derivative of the mean cross-entropy."""
    return cross_entropy_gradient(logits, batch.y)


def run_fedavg(federation: Federation, *, is_ceiling: bool = False) -> float:
    """F1 of FedAvg, the mean of the last rounds; the ceiling leaves out all wrong labels."""
    config = federation.config
    weights = federation.start_weights()
    values = []
    for round in range(config.train.rounds):
        mean = WeightedMean()
        for site in federation.sites:
            rows = np.arange(len(site.given))
            if is_ceiling:
                rows = np.flatnonzero(site.given == site.truth)
            work = LocalWork(rows, site.given[rows], plain_gradient)
            mean.add(train_locally(weights, site, work, config, round), float(len(rows)))
        weights = mean.result() or weights
        if round >= config.train.rounds - HEADLINE_ROUNDS:
            values.append(federation.measure(weights))
    return headline(values)


# ---- FedGSCA ----


def run_fedgsca(
    federation: Federation, opinions: dict[int, list[Opinion]], options: FedGSCAEOptions
) -> float:
    """F1 of FedGSCA with these opinions of the evidence heads, the mean of the last rounds."""
    config = federation.config
    weights = federation.start_weights()
    selector: Selector | None = None
    # by site, since the last refresh
    fits: list[Selector | None] = []
    current: list[Opinion] | None = None
    values = []
    for round in range(config.train.rounds):
        if round in opinions:
            current = opinions[round]
            fits = _fit_selectors(federation, current, selector, options)
        mean = WeightedMean()
        for k, site in enumerate(federation.sites):
            opinion = None if current is None else current[k]
            work = _plan_round(federation, site, opinion, selector, options, round)
            weights_k = train_locally(weights, site, work, config, round)
            mean.add(weights_k, float(len(site.given)))
        weights = mean.result() or weights
        if fits:
            sizes = [len(site.given) for site in federation.sites]
            selector = merge_selectors(fits, sizes) or selector
        if round >= config.train.rounds - HEADLINE_ROUNDS:
            values.append(federation.measure(weights))
    return headline(values)


def _falls_back(opinion: Opinion, options: FedGSCAEOptions) -> bool:
    return opinion.explains_less_than(options.min_explained, options.max_decline)


def _fit_selectors(
    federation: Federation,
    opinions: Sequence[Opinion],
    start: Selector | None,
    options: FedGSCAEOptions,
) -> list[Selector | None]:
    """S_k of every site; None where the site falls back to its given labels."""
    fits: list[Selector | None] = []
    for site, opinion in zip(federation.sites, opinions, strict=True):
        if _falls_back(opinion, options):
            fits.append(None)
            continue
        losses = clip_losses(label_losses(opinion.posterior, site.given))
        fits.append(fit_selector(losses, start))
    return fits


def _plan_round(
    federation: Federation,
    site: SimulatedSite,
    opinion: Opinion | None,
    selector: Selector | None,
    options: FedGSCAEOptions,
    round: int,
) -> LocalWork:
    """What a site trains on."""
    if opinion is None or _falls_back(opinion, options):
        objective = CredalObjective(options.alpha, ONLY_GIVEN_LABEL)
        rows = np.arange(len(site.given))
        return LocalWork(rows, site.given, objective.logit_gradient)
    rows, labels = _select_labels(site, opinion, selector, options, federation.num_classes)
    rounds = federation.config.train.rounds
    beta = beta_at(round, rounds, start=options.beta_start, end=options.beta_end)
    objective = CredalObjective(options.alpha, beta, opinion.posterior >= options.alpha)
    return LocalWork(rows, labels, objective.logit_gradient)


def _select_labels(
    site: SimulatedSite,
    opinion: Opinion,
    selector: Selector | None,
    options: FedGSCAEOptions,
    num_classes: int,
) -> tuple[np.ndarray, np.ndarray]:
    """D_hat of a site, rows (m,) and labels (m,); all its labels if the guard says so."""
    posterior, given = opinion.posterior, site.given
    losses = clip_losses(label_losses(posterior, given))
    clean_posterior = np.exp(-losses)
    if selector is not None:
        clean_posterior = clean_probability(losses, selector)
    chosen_set = select(
        posterior,
        given,
        clean_posterior >= 0.5,
        noise_level=options.noise_level,
        zeta=options.zeta,
    )
    rows = chosen_set.rows
    labels = chosen_set.labels[rows]
    delta = float(suspicion(posterior, given).mean())
    if delta >= options.noise_level and guard_reason(given, labels, delta, num_classes):
        return np.arange(len(given)), given
    return rows, labels
