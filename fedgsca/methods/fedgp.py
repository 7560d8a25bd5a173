"""FedGP (Chen et al., Medical Image Analysis 2023): purify samples on graphs, share centroids.

    rounds   0 ......... T_w ................................................. T
    stage    0 warm-up      1 purification
    trains   all samples    the purified set P_k, which only grows;
                            then the other samples, by negative learning

The classifier is a matrix W of class centroids on an embedding f >= 0 of 64 numbers. A graph
network G (parts/centroid_network.py) turns the stack of all sites' class centroids {Z_j} into
global centroids S = G({Z_j}). One round at site k, given theta, W, G and the stack:

    evaluate  f_i, p_i and cross-entropies of all samples under the received model
    warm-up   Z_k <- EMA of the class means of f
              train on D_k: (1 - rho) [CE(f W^T) + lam_n (||W|| + ||S||) + lam_NL L_NE]
                            + rho CE(f S^T); each step W <- EMA of S
              L_NE pushes down the C - 2 classes that a sample's neighbours of the same label
              consider least likely
    purify    first time: P_k = per class the int(0.2 n_c) + 1 smallest losses, with
              degree-weighted centroids
              extend: i joins if its pseudo-label, its nearest row of W and its nearest row of Z_k
              agree, and p_i there > 0.3
              propagate: pseudo-labels of the remaining samples, over the cosine graph that links
              them to P_k
              Z_k <- EMA of the degree-weighted centroids of P_k
              train on P_k as above without L_NE, then one pass over the remaining samples with
              lam_NL L_NE alone

    server:   theta, W, G <- means over the sites;  stack <- the newest Z_k of every known site

P_k, Z_k and the pseudo-labels stay in the site's memory. The stack is the same for all, in the
order of site names, and holds last round's Z_k: a site need not know which row is its own. In the
very first round the stack is the site's own Z_k. The server cannot know how many sites exist before
they answer, so the stack has SLOTS places; unused ones are NaN, and further sites share places
(their mean), which also bounds the cost of G.

Where paper, published code and this file differ:
  clean_label  the code trains on P_k with the given labels, the paper speaks of reliable
               pseudo-labels. Default `pseudo`: a sample joins because three opinions agree on it;
               the given label may be the very error that was found.
  w_update     the code replaces the parameter W after every step, so the optimiser holds a stale
               object and from the second batch on W is only pulled towards S (`ema`). Default
               `trained`: pulled in place, and trained as the loss says.
  weighting    the code averages sites with 1/K, all other methods here with n_k/N (default); the
               same for equal sites.
  GNN          the code trains one object by the sites in turn; here it has shared parameters,
               trained locally and averaged. The mean moves only as far as one site's GNN, and in
               short runs from random weights S then stays three times too large (docs/methods.md).
               `graph_rate` is therefore 4, for the four sites of the code, where a network is
               trained. On frozen features the default is 1.
  adjacency    the code freezes the graph of old members of P_k although their features move; here
               it follows them.
  anchors      in the propagation the members of P_k vote for the label that they have; in the code
               they vote by their predictions, newcomers of this round have no links, and links
               have half the weight.
  stack        the code uses a site's own Z_k of this round, and those of the sites before it.
  epochs       the code evaluates, purifies and takes new centroids before every local epoch, here
               before every round: the same for one epoch.
  initial W    N(0, 0.01^2) in the code, uniform within 1/8 here, as all linear layers.
  neighbours   of a remaining sample: in the code arbitrary samples, because its row of the graph
               is empty; here samples with the same pseudo-label.
  BatchNorm    in the code the remaining samples also change its statistics.
`official` sets the first three as in the code, and graph_rate 4; the others have no switch.
benchmarks/oracles/fedgp_loop.py has all of them as in the code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedgsca.methods.aggregate import WeightedMean
from fedgsca.methods.base import (
    AtLeastOne,
    Card,
    Lateness,
    Logged,
    Method,
    NonNegative,
    PositiveShare,
    PublishedOptions,
    SampleMemory,
    ServerState,
    Share,
    ShareBelowOne,
    register,
    rounds_of,
)
from fedgsca.methods.parts import graph
from fedgsca.methods.parts.graph import GNN_NAMES, initial_gnn
from fedgsca.methods.site import Samples, Site
from fedgsca.methods.train import Batch, Evaluation, batches, evaluate, optimiser, precision
from fedgsca.rng import stream
from fedgsca.support.lazy_torch import F, Tensor, torch
from fedgsca.wire import SMALLEST_GROUP, Arrays, Extra, Payload, Update

if TYPE_CHECKING:
    from fedgsca.methods.parts.centroid_network import CentroidGNN

# stages
WARM_UP = 0
PURIFY = 1
# length of the embedding, as in CentroidHead
DIM = 64
# places in the stack of centroids
SLOTS = 16
# The graph network's learning rate where a network is trained: sites train it at the same time, and
# their mean moves as far as one site's. The published one takes the steps of its four clients.
TRAINED_GRAPH_RATE = 4.0
# no embedding or weight of a working network comes near
LARGE = 1e4
# the name of W
W = "head.centroids.weight"


class FedGPOptions(PublishedOptions):
    """Options of FedGP; "official" is the published code."""

    OFFICIAL: ClassVar[Mapping[str, object]] = {
        "clean_label": "given",
        "graph_rate": 4.0,
        "w_update": "ema",
        "weighting": "uniform",
    }

    warmup: Share = Field(
        default=0.2, description="T_w as a share of the rounds (official 20 of 100)"
    )
    core_ratio: Share = Field(
        default=0.2,
        description="share of each class with the smallest losses that founds P_k (official 0.2)",
    )
    confidence: Share = Field(
        default=0.3, description="probability that a joining sample needs (official 0.3)"
    )
    propagation: ShareBelowOne = Field(
        default=0.5, description="a: how far labels travel over the graph (official 0.5)"
    )
    neighbours: AtLeastOne = Field(
        default=20, description="that vote on the complementary classes (official 20)"
    )
    adjacency: PositiveShare = Field(
        default=0.5,
        description="share of the centroid graph's links that the GNN keeps (official 0.5)",
    )
    rho: Share = Field(
        default=0.5, description="weight of the global centroids' loss (official 0.5)"
    )
    w_pull: Share = Field(
        default=0.5, description="W <- (1 - w_pull) W + w_pull S after each step (official 0.5)"
    )
    w_update: Literal["trained", "ema"] = Field(
        default="trained",
        description="W also gets its gradient in every step, or (the code) only in the first",
    )
    ema: PositiveShare = Field(default=0.5, description="share of this round in Z_k (official 0.5)")
    norm: NonNegative = Field(default=0.1, description="lam_n, on ||W|| + ||S|| (official 0.1)")
    negative: NonNegative = Field(
        default=0.1, description="lam_NL, on the complementary classes (official 0.1)"
    )
    graph_rate: float | None = Field(
        default=None,
        gt=0,
        description="learning rate of the graph network, as a multiple of the model's; default 4 "
        "if a network is trained (one step per batch of four sites), 1 on frozen features",
    )
    clean_label: Literal["pseudo", "given"] = Field(
        default="pseudo",
        description="labels of P_k in training: pseudo-labels, or (the code) the given ones",
    )
    weighting: Literal["samples", "uniform"] = Field(
        default="samples", description="server mean: n_k/N as all methods here, or 1/K (the code)"
    )


def gnn_extra(shape: tuple[int, ...], description: str) -> Extra:
    """The declaration of some parameters of the graph network."""
    return Extra(shape, f"centroid network: {description}", low=-LARGE, high=LARGE, vote="mean")


GNN_EXTRAS = {
    "gnn_w1": gnn_extra((DIM, DIM), "first layer"),
    "gnn_w2": gnn_extra((DIM, DIM), "second layer"),
    "gnn_norm1": gnn_extra((2, DIM), "scale and shift of the first normalisation"),
    "gnn_norm2": gnn_extra((2, DIM), "scale and shift of the second normalisation"),
}


@dataclass(frozen=True)
class Purified:
    """P_k, and pseudo-labels of all samples."""

    # (n,) bool: P_k
    clean: np.ndarray
    # (n,) pseudo-labels
    labels: np.ndarray
    # (C, DIM) centroids of P_k, not yet averaged over rounds
    centroids: np.ndarray


@register
class FedGP(Method):
    """See the module docstring."""

    name = "fedgp"
    card = Card(
        title="FedGP",
        paper="Chen et al., FedGP: Federated Graph Purification for Medical Image Classification "
        "with Label Noise, MedIA 2023",
        order=5,
        in_paper=True,
        passes=4.0,
    )
    head = "centroid"
    uploads: ClassVar[Mapping[str, Extra]] = {
        "centroids": Extra(
            ("C", DIM),
            "Z, the mean embedding of every class at this site; "
            f"below {SMALLEST_GROUP} images: the received row of W",
            low=-LARGE,
            high=LARGE,
            vote="mean",
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
    logged: ClassVar[Logged] = Logged(
        stage="purification", stage_ran=lambda values, n: values.get("purified", n) < n
    )
    late = Lateness("the graph network travels beside the model, and a late one would pull it back")
    Options = FedGPOptions
    options: FedGPOptions

    # ---- server ----

    def _stage(self, round: int) -> int:
        first = rounds_of(self.options.warmup, self.rounds) if self.options.warmup else 0
        return WARM_UP if round < first else PURIFY

    def start(self, weights: Arrays, seed: int) -> ServerState:
        """The initial model and the initial GNN."""
        # derived from the initial head, which depends on the experiment's seed
        digest = hashlib.sha256(np.ascontiguousarray(weights[W]).tobytes()).digest()
        rng = stream(int.from_bytes(digest[:8], "little"), "fedgp", "gnn")
        extras = {"stage": np.array(self._stage(0)), **initial_gnn(DIM, rng)}
        return ServerState(0, weights, extras)

    def broadcast(self, state: ServerState, round: int) -> Payload:
        """The global model, the stage, the GNN and the stack of centroids."""
        extras = {name: state.extras[name] for name in ("stage", *GNN_NAMES)}
        names = sorted(name for name in state.extras if name.startswith("centroids/"))
        if names:
            extras["stack"] = stack_centroids([state.extras[name] for name in names])
        return Payload(round, state.weights, extras)

    def new_memory(self, samples: Samples, site: str, seed: int) -> SampleMemory:
        """Not purified yet."""
        labels, clean = samples.labels.copy(), np.zeros(len(samples), bool)
        return {**super().new_memory(samples, site, seed), "": {"clean": clean, "labels": labels}}

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """The means of models and GNNs, and the sites' newest centroids."""
        mean = WeightedMean()
        extras = dict(state.extras)
        for update in updates:
            # the engine has checked the weights; a diverged centroid or GNN would spoil all others
            if not all(np.isfinite(value).all() for value in update.extras.values()):
                continue
            gnn = {name: update.extras[name] for name in GNN_NAMES}
            weight = float(update.num_samples) if self.options.weighting == "samples" else 1.0
            mean.add({**update.weights, **gnn}, weight)
            extras[f"centroids/{update.site}"] = update.extras["centroids"]
        arrays = mean.result() or {**state.weights, **extras}
        extras |= {name: arrays[name] for name in GNN_NAMES}
        weights = {name: arrays[name] for name in state.weights}
        extras["stage"] = np.array(self._stage(state.round + 1))
        return ServerState(state.round + 1, weights, extras)

    # ---- site ----

    def local_update(self, payload: Payload, site: Site) -> Update:
        """Purify the samples, then train the model and the GNN."""
        site.load(payload.weights)
        stage = int(payload.extras["stage"])
        from fedgsca.methods.parts.centroid_network import Embedded

        evaluation = evaluate(Embedded(site.model), site.samples, site.device, features=True)
        memory = site.recall(payload.round)
        w_bar = np.asarray(payload.weights[W], dtype=np.float64)
        if stage == WARM_UP:
            pure = warm_up_set(evaluation, site.labels, w_bar)
        else:
            pure = purify(evaluation, site.labels, memory, w_bar, self.options)
        z = pure.centroids
        if "centroids" in memory:
            z = (1 - self.options.ema) * memory["centroids"] + self.options.ema * z
        centroids = z.astype(np.float32)
        gnn = self._train(payload, site, evaluation, pure, centroids)
        arrays = {"centroids": centroids}
        if stage == PURIFY:
            arrays |= {"clean": pure.clean, "labels": pure.labels}
            note_labels(site, pure)
        site.remember(payload.round, **arrays)
        extras = {
            "centroids": public_centroids(pure, centroids, payload.weights[W]),
            "purified": np.array(int(pure.clean.sum())),
            **gnn.arrays(),
        }
        return Update(site.name, site.num_samples, site.weights(), extras)

    def _train(
        self,
        payload: Payload,
        site: Site,
        evaluation: Evaluation,
        pure: Purified,
        centroids: np.ndarray,
    ) -> CentroidGNN:
        """Local training of the model in place and of the GNN, which is returned."""
        from fedgsca.methods.parts.centroid_network import CentroidGNN

        stack = np.asarray(payload.extras.get("stack", centroids[None]))
        stack = stack[np.isfinite(stack).all(axis=(1, 2))]
        parameters = {name: payload.extras[name] for name in GNN_NAMES}
        gnn = CentroidGNN(parameters, self.options.adjacency).to(site.device)
        is_warm_up = int(payload.extras["stage"]) == WARM_UP
        remaining = np.flatnonzero(~pure.clean)
        negative_rows = np.arange(site.num_samples) if is_warm_up else remaining
        mask = self._complementary(evaluation, pure, negative_rows)
        learner = Learner(site, payload.round, self.options, torch.from_numpy(mask).to(site.device))
        labels = site.labels if self.options.clean_label == "given" else pure.labels
        rows = np.flatnonzero(pure.clean)
        learner.train_positive(
            gnn, torch.from_numpy(stack).to(site.device), rows, labels[rows], negative=is_warm_up
        )
        if not is_warm_up and self.options.negative:
            learner.train_negative(remaining)
        return gnn

    def _complementary(
        self, evaluation: Evaluation, pure: Purified, rows: np.ndarray
    ) -> np.ndarray:
        """(n, C) bool: Ybar of the given rows; empty for all others."""
        mask = np.zeros(evaluation.probs.shape, bool)
        if self.options.negative and len(rows):
            assert evaluation.features is not None
            probs = graph.neighbour_probs(
                evaluation.features, evaluation.probs, pure.labels, self.options.neighbours, rows
            )
            mask[rows] = graph.complementary(probs, pure.labels[rows])
        return mask


def stack_centroids(centroids: Sequence[np.ndarray]) -> np.ndarray:
    """(SLOTS, C, DIM) from the (C, DIM) of every known site; unused places are NaN."""
    empty = np.full_like(centroids[0], np.nan)
    stack = []
    for slot in range(SLOTS):
        members = centroids[slot::SLOTS]
        stack.append(np.mean(members, axis=0) if members else empty)
    return np.stack(stack)


def warm_up_set(evaluation: Evaluation, given: np.ndarray, w_bar: np.ndarray) -> Purified:
    """All samples with their given labels, and the class means of f."""
    assert evaluation.features is not None
    centroids = graph.embedding_means(evaluation.features, given, w_bar)
    return Purified(np.ones(len(given), bool), given, centroids)


def purify(
    evaluation: Evaluation,
    given: np.ndarray,
    memory: Mapping[str, np.ndarray],
    w_bar: np.ndarray,
    options: FedGPOptions,
) -> Purified:
    """One purification round: found or extend P_k, propagate labels, take new centroids.

    given (n,) labels; w_bar (C, DIM) is W as received.
    """
    assert evaluation.features is not None
    f = evaluation.features
    if "clean" in memory:
        clean = memory["clean"].copy()
        labels = memory["labels"].copy()
        z = memory["centroids"]
    else:
        clean = core_set(evaluation.losses, given, options.core_ratio)
        labels = given.copy()
        z = graph.degree_centroids(f[clean], given[clean], w_bar)
    by_server = graph.nearest_centroid(f, w_bar)
    by_client = graph.nearest_centroid(f, z)
    confident = evaluation.probs[np.arange(len(given)), labels] > options.confidence
    clean |= (labels == by_server) & (labels == by_client) & confident
    vote = np.eye(len(w_bar))
    remaining = ~clean
    labels[remaining] = graph.propagate(
        f[remaining],
        f[clean],
        vote[by_client[remaining]] + vote[by_server[remaining]],
        2.0 * vote[labels[clean]],
        options.propagation,
    )
    return Purified(clean, labels, graph.degree_centroids(f[clean], labels[clean], w_bar))


def core_set(losses: np.ndarray, given: np.ndarray, ratio: float) -> np.ndarray:
    """(n,) bool: of every class the int(ratio n_c) + 1 samples with the smallest losses."""
    core = np.zeros(len(given), bool)
    for c in np.unique(given):
        rows = np.flatnonzero(given == c)
        order = np.argsort(losses[rows], kind="stable")
        core[rows[order[: int(ratio * len(rows)) + 1]]] = True
    return core


def note_labels(site: Site, pure: Purified) -> None:
    """Leave the site's decisions for its own records."""
    corrections = pure.labels != site.labels
    rows = np.flatnonzero(pure.clean & corrections)
    site.note(
        clean=pure.clean & ~corrections,
        corrected=pure.labels,
        pseudo_rows=rows,
        pseudo_labels=pure.labels[rows],
    )


def public_centroids(pure: Purified, centroids: np.ndarray, w_bar: np.ndarray) -> np.ndarray:
    """(C, DIM): Z_k as it may leave the site; a class with a few images takes its row of W."""
    counts = np.bincount(pure.labels[pure.clean], minlength=len(centroids))
    is_public = counts >= SMALLEST_GROUP
    return np.where(is_public[:, None], centroids, w_bar).astype(np.float32)


def graph_rate(options: FedGPOptions, site: Site) -> float:
    """The learning rate of the graph network, as a multiple of the model's."""
    if options.graph_rate is not None:
        return options.graph_rate
    return TRAINED_GRAPH_RATE if site.samples.are_images else 1.0


class Learner:
    """The two kinds of local training on the site's model."""

    def __init__(self, site: Site, round: int, options: FedGPOptions, mask: Tensor) -> None:
        """`mask` (n, C) bool is Ybar of all samples."""
        from fedgsca.models.build import CentroidHead

        head = site.model.head
        assert isinstance(head, CentroidHead)
        self.site = site
        self.round = round
        self.options = options
        self.mask = mask
        self.model = site.model
        self.head = head
        self.w = site.model.get_parameter(W)
        self.others = [p for p in site.model.parameters() if p is not self.w]

    def _negative_loss(self, logits: Tensor, rows: np.ndarray) -> Tensor:
        """lam_NL L_NE."""
        mask = self.mask[torch.from_numpy(rows)]
        return self.options.negative * graph.negative_loss(logits, mask)

    def train_positive(
        self,
        gnn: CentroidGNN,
        stack: Tensor,
        rows: np.ndarray,
        labels: np.ndarray,
        *,
        negative: bool,
    ) -> None:
        """E epochs on `rows` (m,) with `labels` (m,), by local and by global centroids.

        The global ones come from `stack` (K, C, DIM) through the GNN; W follows them after every
        step. `negative` adds L_NE.
        """
        site = self.site
        sgd = optimiser(site, self.round, self.others)
        sgd_graph = optimiser(site, self.round, list(gnn.parameters()))
        sgd_graph.lr *= graph_rate(self.options, site)
        sgd_w = optimiser(site, self.round, [self.w])
        is_first = True
        self.model.train()
        for epoch in range(site.hyper.epochs):
            for batch in batches(site, self.round, rows, labels, epoch=epoch):
                sgd.zero_grad()
                sgd_graph.zero_grad()
                sgd_w.zero_grad()
                with precision(site.device):
                    s = gnn(stack)  # (C, DIM)
                    loss = self._positive_loss(s, batch, negative=negative)
                loss.backward()  # type: ignore[no-untyped-call]
                sgd.step()
                sgd_graph.step()
                if is_first or self.options.w_update == "trained":
                    sgd_w.step()
                with torch.no_grad():
                    self.w.lerp_(s.detach().to(self.w.dtype), self.options.w_pull)
                is_first = False

    def _positive_loss(self, s: Tensor, batch: Batch, *, negative: bool) -> Tensor:
        """(1 - rho) [CE(f W^T) + lam_n (||W|| + ||S||) + lam_NL L_NE] + rho CE(f S^T)."""
        rho = self.options.rho
        f = self.head.embed(self.model.features(batch.x))
        logits = self.head.centroids(f)
        norms = self.w.norm() + s.norm()
        local = F.cross_entropy(logits, batch.y) + self.options.norm * norms
        if negative:
            local = local + self._negative_loss(logits, batch.rows)
        loss: Tensor = (1.0 - rho) * local + rho * F.cross_entropy(f @ s.T, batch.y)
        return loss

    def train_negative(self, rows: np.ndarray) -> None:
        """One pass over the samples without a trustworthy label: only what they are not.

        BatchNorm's running statistics stay those of P_k: three remaining samples would overwrite a
        tenth of them with noise.
        """
        site = self.site
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        parameters = list(self.others)
        if self.options.w_update == "trained":
            parameters.append(self.w)
        sgd = optimiser(site, self.round, parameters)
        self.model.train()
        for batch in batches(site, self.round, rows, epoch=site.hyper.epochs):
            sgd.zero_grad()
            with precision(site.device):
                loss = self._negative_loss(self.model(batch.x), batch.rows)
            loss.backward()  # type: ignore[no-untyped-call]
            sgd.step()
        with torch.no_grad():
            for buffer, value in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(value)
