"""FedGP (Chen et al., Medical Image Analysis 2023): purify each site's samples on graphs, share centroids through a GNN.

    rounds   0 ......... T_w ................................................. T
    stage    0 warm-up      1 purification
    trains   all samples    the purified set P_k, which only grows; then the rest, by negative learning

The classifier is a matrix W of class centroids on an embedding f >= 0 of 64 numbers. A graph network G (graph.py) turns the
stack of all sites' class centroids {Z_j} into global centroids S = G({Z_j}). One round at site k, given theta, W, G, the stack:

    look      f_i, p_i and cross-entropies of all samples under the received model
    warm-up   Z_k <- EMA of the class means of f
              train on D_k: (1 - rho) [CE(f W^T) + lam_n (||W|| + ||S||) + lam_NL L_NE] + rho CE(f S^T); each step W <- EMA of S
              L_NE pushes down the C - 2 classes that a sample's neighbours of the same label find least likely
    purify    first time: P_k = per class the int(0.2 n_c) + 1 smallest losses, with degree-weighted centroids
              extend: i joins if its pseudo-label, its nearest row of W and its nearest row of Z_k agree, and p_i there > 0.3
              propagate: pseudo-labels of the remaining samples, over the cosine graph that links them to P_k
              Z_k <- EMA of the degree-weighted centroids of P_k
              train on P_k as above without L_NE, then one pass over the rest with lam_NL L_NE alone

    server:   theta, W, G <- means over the sites;  stack <- the newest Z_k of every site it has heard of

P_k, Z_k and the pseudo-labels stay in the site's memory. The stack is the same for all, in the order of site names, and holds
last round's Z_k: a site need not know which row is its own. In the very first round the stack is the site's own Z_k. The server
cannot know how many sites exist before they answer, so the stack has SLOTS places; unused ones are NaN, and further sites
share places (their mean), which also bounds the cost of G.

Where paper, published code and this file differ:
  clean_label  the code trains on P_k with the given labels, the paper speaks of reliable pseudo-labels. Default `pseudo`: a
               sample joins because three opinions agree on it; the given label may be the very error that was found.
  w_update     the code replaces the parameter W after every step, so the optimiser holds a stale object and from the second
               batch on W is only pulled towards S (`ema`). Default `trained`: pulled in place, and trained as the loss says.
  weighting    the code averages sites with 1/K, all other methods here with n_k/N (default); the same for equal sites.
  GNN          the code trains one object by the sites in turn; here it is shared parameters, trained locally and averaged.
  adjacency    the code freezes the graph of old members of P_k although their features move; here it follows them.
  anchors      in the propagation the members of P_k vote for the label that they have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedgsca.aggregate import WeightedMean
from fedgsca.methods.base import Method, MethodOptions, ServerState, register
from fedgsca.methods.parts import graph
from fedgsca.methods.parts.graph import CentroidGNN
from fedgsca.methods.parts.statistics import rounds_of
from fedgsca.models.build import CentroidHead, Classifier
from fedgsca.rng import stream
from fedgsca.site import Site
from fedgsca.train import Evaluation, batches, evaluate, optimiser, precision
from fedgsca.wire import SMALLEST_GROUP, Arrays, Extra, Payload, Update

WARM_UP, PURIFY = 0, 1
DIM = 64  # of the embedding, as in CentroidHead
SLOTS = 16  # places in the stack of centroids
LARGE = 1e4  # no embedding or weight of a working network comes near
W = "head.centroids.weight"


class FedGPOptions(MethodOptions):
    warmup: float = Field(
        0.2, ge=0, le=1, description="T_w as a share of the rounds (official 20 of 100)"
    )
    core_ratio: float = Field(
        0.2,
        ge=0,
        le=1,
        description="share of each class with the smallest losses that founds P_k (official 0.2)",
    )
    confidence: float = Field(
        0.3, ge=0, le=1, description="probability that a joining sample needs (official 0.3)"
    )
    propagation: float = Field(
        0.5, ge=0, lt=1, description="a: how far labels travel over the graph (official 0.5)"
    )
    neighbours: int = Field(
        20, ge=1, description="that vote on the complementary classes (official 20)"
    )
    adjacency: float = Field(
        0.5,
        gt=0,
        le=1,
        description="share of the centroid graph's links that the GNN keeps (official 0.5)",
    )
    rho: float = Field(
        0.5, ge=0, le=1, description="weight of the global centroids' loss (official 0.5)"
    )
    w_pull: float = Field(
        0.5, ge=0, le=1, description="W <- (1 - w_pull) W + w_pull S after each step (official 0.5)"
    )
    w_update: Literal["trained", "ema"] = Field(
        "trained",
        description="W also gets its gradient in every step, or (the code) only in the first",
    )
    ema: float = Field(0.5, gt=0, le=1, description="share of this round in Z_k (official 0.5)")
    norm: float = Field(0.1, ge=0, description="lam_n, on ||W|| + ||S|| (official 0.1)")
    negative: float = Field(
        0.1, ge=0, description="lam_NL, on the complementary classes (official 0.1)"
    )
    clean_label: Literal["pseudo", "given"] = Field(
        "pseudo",
        description="labels of P_k in training: pseudo-labels, or (the code) the given ones",
    )
    weighting: Literal["samples", "uniform"] = Field(
        "samples", description="server mean: n_k/N as all methods here, or 1/K (the code)"
    )


GNN_EXTRAS = {
    "gnn_w1": Extra((DIM, DIM), "centroid network: first layer", low=-LARGE, high=LARGE),
    "gnn_w2": Extra((DIM, DIM), "centroid network: second layer", low=-LARGE, high=LARGE),
    "gnn_norm1": Extra(
        (2, DIM),
        "centroid network: scale and shift of the first normalisation",
        low=-LARGE,
        high=LARGE,
    ),
    "gnn_norm2": Extra(
        (2, DIM),
        "centroid network: scale and shift of the second normalisation",
        low=-LARGE,
        high=LARGE,
    ),
}


@dataclass(frozen=True)
class Purified:
    """P_k and what is known about the rest."""

    clean: np.ndarray  # (n,) bool, P_k
    labels: np.ndarray  # (n,) pseudo-labels
    centroids: np.ndarray  # (C, DIM) of P_k, not yet averaged over rounds


class Embedded(nn.Module):
    """The classifier seen with its embedding as the features, for the evaluation pass."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model
        assert isinstance(model.head, CentroidHead)
        self.embedding, self.head = model.head, model.head.centroids

    def features(self, x: Tensor) -> Tensor:
        return self.embedding.embed(self.model.features(x))


@register
class FedGP(Method):
    name = "fedgp"
    title = "FedGP"
    paper = "Chen et al., FedGP: Federated Graph Purification for Medical Image Classification with Label Noise, MedIA 2023"
    order = 5
    head = "centroid"
    passes = 4.0
    uploads: ClassVar[Mapping[str, Extra]] = {
        "centroids": Extra(
            ("C", DIM),
            f"Z, the mean embedding of every class at this site; below {SMALLEST_GROUP} images: the received row of W",
            low=-LARGE,
            high=LARGE,
        ),
        **GNN_EXTRAS,
        "purified": Extra((), "size of the purified set", low=0),
    }
    downloads: ClassVar[Mapping[str, Extra]] = {
        "stage": Extra((), "0 warm-up, 1 purification", low=0, high=1),
        "stack": Extra(
            (SLOTS, "C", DIM),
            f"the class centroids of up to {SLOTS} sites; NaN: no such site",
            optional=True,
            nan=True,
        ),
        **GNN_EXTRAS,
    }
    Options = FedGPOptions
    options: FedGPOptions

    # ---- server ----

    def _stage(self, round: int) -> int:
        first = rounds_of(self.options.warmup, self.rounds) if self.options.warmup else 0
        return WARM_UP if round < first else PURIFY

    def start(self, weights: Arrays, seed: int) -> ServerState:
        # derived from the initial head, as before `start` received the seed: same bytes as 0.2
        gnn_seed = int.from_bytes(
            hashlib.sha256(np.ascontiguousarray(weights[W]).tobytes()).digest()[:8], "little"
        )
        return ServerState(
            0,
            weights,
            {
                "stage": np.array(self._stage(0)),
                **CentroidGNN.initial(DIM, stream(gnn_seed, "fedgp", "gnn")),
            },
        )

    def broadcast(self, state: ServerState, round: int) -> Payload:
        extras = {name: state.extras[name] for name in ("stage", *CentroidGNN.NAMES)}
        known = [
            state.extras[name] for name in sorted(state.extras) if name.startswith("centroids/")
        ]
        if known:
            empty = np.full_like(known[0], np.nan)
            places = [known[i::SLOTS] for i in range(SLOTS)]
            extras["stack"] = np.stack(
                [np.mean(place, axis=0) if place else empty for place in places]
            )
        return Payload(round, state.weights, extras)

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        mean, extras = WeightedMean(), dict(state.extras)
        for update in updates:
            if not all(np.isfinite(value).all() for value in update.extras.values()):
                continue  # the engine has checked the weights; a diverged centroid or GNN would spoil everybody's
            gnn = {name: update.extras[name] for name in CentroidGNN.NAMES}
            mean.add(
                {**update.weights, **gnn},
                float(update.num_samples) if self.options.weighting == "samples" else 1.0,
            )
            extras[f"centroids/{update.site}"] = update.extras["centroids"]
        result = mean.result() or {
            **state.weights,
            **{name: state.extras[name] for name in CentroidGNN.NAMES},
        }
        extras |= {name: result.pop(name) for name in CentroidGNN.NAMES}
        extras["stage"] = np.array(self._stage(state.round + 1))
        return ServerState(state.round + 1, result, extras)

    # ---- site ----

    def local_update(self, payload: Payload, site: Site) -> Update:
        options = self.options
        site.load(payload.weights)
        seen = evaluate(Embedded(site.model), site.samples, site.device, features=True)
        assert seen.features is not None
        memory, w_bar = site.recall(payload.round), np.asarray(payload.weights[W], dtype=np.float64)
        if int(payload.extras["stage"]) == WARM_UP:
            everything = np.ones(site.num_samples, bool)
            pure = Purified(
                everything, site.labels, graph.class_means(seen.features, site.labels, w_bar)
            )
        else:
            pure = purify(seen, site.labels, memory, w_bar, options)
        z = (
            pure.centroids
            if "centroids" not in memory
            else (1 - options.ema) * memory["centroids"] + options.ema * pure.centroids
        )
        own = z.astype(np.float32)
        gnn = self._train(payload, site, seen, pure, own)
        kept = {"centroids": own}
        if int(payload.extras["stage"]) == PURIFY:
            kept |= {"clean": pure.clean, "labels": pure.labels}
            changed = pure.labels != site.labels
            rows = np.flatnonzero(pure.clean & changed)
            site.note(
                clean=pure.clean & ~changed,
                corrected=pure.labels,
                pseudo_rows=rows,
                pseudo_labels=pure.labels[rows],
            )
        site.remember(payload.round, **kept)
        known = np.bincount(pure.labels[pure.clean], minlength=site.num_classes) >= SMALLEST_GROUP
        told = np.where(known[:, None], own, payload.weights[W]).astype(np.float32)
        extras = {"centroids": told, "purified": np.array(int(pure.clean.sum())), **gnn.arrays()}
        return Update(site.name, site.num_samples, site.weights(), extras)

    def _train(
        self, payload: Payload, site: Site, seen: Evaluation, pure: Purified, own: np.ndarray
    ) -> CentroidGNN:
        """Local training of the model in place and of the GNN, which is returned."""
        assert seen.features is not None
        stack = np.asarray(payload.extras.get("stack", own[None]))
        stack = stack[np.isfinite(stack).all(axis=(1, 2))]
        gnn = CentroidGNN(
            {name: payload.extras[name] for name in CentroidGNN.NAMES}, self.options.adjacency
        ).to(site.device)
        warm_up, rest = int(payload.extras["stage"]) == WARM_UP, np.flatnonzero(~pure.clean)
        rows = np.arange(site.num_samples) if warm_up else rest
        excluded = np.zeros(seen.probs.shape, bool)  # Ybar
        if self.options.negative and len(rows):
            averaged = graph.neighbour_probs(
                seen.features, seen.probs, pure.labels, self.options.neighbours, rows
            )
            excluded[rows] = graph.complementary(averaged, pure.labels[rows])
        learner = Learner(
            site, payload.round, self.options, torch.from_numpy(excluded).to(site.device)
        )
        labels = site.labels if self.options.clean_label == "given" else pure.labels
        chosen = np.flatnonzero(pure.clean)
        learner.positive(
            gnn, torch.from_numpy(stack).to(site.device), chosen, labels[chosen], negative=warm_up
        )
        if not warm_up and self.options.negative:
            learner.negative(rest)
        return gnn


def purify(
    seen: Evaluation,
    given: np.ndarray,
    memory: Mapping[str, np.ndarray],
    w_bar: np.ndarray,
    options: FedGPOptions,
) -> Purified:
    """One purification round: found or extend P_k, propagate labels to the rest, take new centroids."""
    assert seen.features is not None
    f, num_classes = seen.features, len(w_bar)
    if "clean" in memory:
        clean, labels, z = memory["clean"].copy(), memory["labels"].copy(), memory["centroids"]
    else:
        clean, labels = core_set(seen.losses, given, options.core_ratio), given.copy()
        z = graph.degree_centroids(f[clean], given[clean], w_bar)
    by_server = graph.nearest_centroid(f, w_bar)
    by_client = graph.nearest_centroid(f, z)
    sure = seen.probs[np.arange(len(given)), labels] > options.confidence
    clean |= (labels == by_server) & (labels == by_client) & sure
    vote = np.eye(num_classes)
    rest = ~clean
    labels[rest] = graph.propagate(
        f[rest],
        f[clean],
        vote[by_client[rest]] + vote[by_server[rest]],
        2.0 * vote[labels[clean]],
        options.propagation,
    )
    return Purified(clean, labels, graph.degree_centroids(f[clean], labels[clean], w_bar))


def core_set(losses: np.ndarray, given: np.ndarray, ratio: float) -> np.ndarray:
    """(n,) bool: of every class the int(ratio n_c) + 1 samples with the smallest losses."""
    core = np.zeros(len(given), bool)
    for c in np.unique(given):
        rows = np.flatnonzero(given == c)
        core[rows[np.argsort(losses[rows], kind="stable")[: int(ratio * len(rows)) + 1]]] = True
    return core


class Learner:
    """The two kinds of local training on the site's model."""

    def __init__(self, site: Site, round: int, options: FedGPOptions, excluded: Tensor) -> None:
        self.site, self.round, self.options, self.excluded = site, round, options, excluded
        head, w = site.model.head, site.model.get_parameter(W)
        assert isinstance(head, CentroidHead)
        self.model, self.head, self.w = site.model, head, w
        self.others = [p for p in site.model.parameters() if p is not self.w]

    def _loss_ne(self, logits: Tensor, rows: np.ndarray) -> Tensor:
        return self.options.negative * graph.negative_loss(
            logits, self.excluded[torch.from_numpy(rows)]
        )

    def positive(
        self,
        gnn: CentroidGNN,
        stack: Tensor,
        rows: np.ndarray,
        labels: np.ndarray,
        *,
        negative: bool,
    ) -> None:
        """E epochs on `rows`: local and global centroids, the latter through the GNN; W follows them after every step."""
        o, site, first = self.options, self.site, True
        sgd, sgd_w = (
            optimiser(site, self.round, [*self.others, *gnn.parameters()]),
            optimiser(site, self.round, [self.w]),
        )
        self.model.train()
        for epoch in range(site.hyper.epochs):
            for batch in batches(site, self.round, rows, labels, epoch=epoch):
                sgd.zero_grad()
                sgd_w.zero_grad()
                with precision(site.device):
                    s = gnn(stack)  # (C, DIM)
                    f = self.head.embed(self.model.features(batch.x))
                    logits = self.head.centroids(f)
                    local = F.cross_entropy(logits, batch.y) + o.norm * (self.w.norm() + s.norm())
                    if negative:
                        local = local + self._loss_ne(logits, batch.rows)
                    loss = (1.0 - o.rho) * local + o.rho * F.cross_entropy(f @ s.T, batch.y)
                loss.backward()
                sgd.step()
                if first or o.w_update == "trained":
                    sgd_w.step()
                with torch.no_grad():
                    self.w.lerp_(s.detach().to(self.w.dtype), o.w_pull)
                first = False

    def negative(self, rows: np.ndarray) -> None:
        """One pass over the samples whose label nobody trusts: only what they are not.

        BatchNorm's running statistics stay those of P_k: a rest of three samples would overwrite a tenth of them with noise.
        """
        site, kept = self.site, [buffer.clone() for buffer in self.model.buffers()]
        sgd = optimiser(
            site,
            self.round,
            [*self.others, self.w] if self.options.w_update == "trained" else self.others,
        )
        self.model.train()
        for batch in batches(site, self.round, rows, epoch=site.hyper.epochs):
            sgd.zero_grad()
            with precision(site.device):
                loss = self._loss_ne(self.model(batch.x), batch.rows)
            loss.backward()  # type: ignore[no-untyped-call]
            sgd.step()
        with torch.no_grad():
            for buffer, before in zip(self.model.buffers(), kept, strict=True):
                buffer.copy_(before)
