"""FedGP's published main loop on arrays: what the authors' program does, on a network of ours.

Written from reading the published program (one process, every client's data at hand), not copied
from it. Kept from it: one graph network and one list of centroids that the clients use in turn, so
that a client sees its own centroids of this round; in the first round everybody has those of the
first client; evaluation, purification and new centroids before every epoch; W as a new object after
every step, which the optimiser does not know; given labels on the purified set; no shuffling in the
warm-up; links of old members that never change; links between classes among the samples that join
in one round; half weights in the propagation, where all samples vote by their predictions and
newcomers have no links; neighbours of remaining samples that are arbitrary, because their rows of
the graph are empty; BatchNorm's statistics also from the remaining samples; the mean 1/K.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from sklearn.metrics import f1_score
from torch import Tensor, nn
from torch.nn import functional as F

from fedgsca.models.build import CentroidHead, Classifier


@dataclass(frozen=True)
class Hyper:
    """Values of the authors' script; the caller gives the rounds and the length of the warm-up."""

    rounds: int
    warmup: int
    epochs: int = 1
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 1e-6
    batch: int = 128
    lr_steps: tuple[float, ...] = (0.7, 0.9)
    core_ratio: float = 0.2
    confidence: float = 0.3
    alpha: float = 0.5
    neighbours: int = 20
    links: float = 0.5
    rho: float = 0.5
    pull: float = 0.5
    ema: float = 0.5
    norm: float = 0.1
    negative: float = 0.1
    # of the initial W (published 0.01); None: the network's own initial W
    centroid_std: float | None = 0.01
    # published; False: every client begins with the mean of last round's graph networks, as ours
    graph_in_turn: bool = True
    # published 1: of the graph network, as a multiple of the model's
    graph_rate: float = 1.0
    # published; False: all centroids in the stack are those of last round, and the first ones of a
    # client are its own, as ours
    new_centroids: bool = True
    # published False; True: as ours
    shuffle: bool = False
    train_w: bool = False

    def lr_at(self, round: int) -> float:
        """Learning rate of a zero-based round."""
        return float(self.lr * 0.1 ** sum(round >= int(s * self.rounds) for s in self.lr_steps))


@dataclass
class Client:
    """Inputs (n, ...), given labels (n,), and what the loop knows about them."""

    x: Tensor
    given: Tensor
    # (n,) true labels, for the record only
    truth: Tensor
    labels: Tensor = field(init=False)
    # (n,) bool
    clean: Tensor | None = None
    # (C, n, n) links inside P_k, and (n, n) their sum with links between classes
    class_links: Tensor = field(init=False)
    links: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.labels = self.given.clone()


@dataclass
class Outcome:
    """What the loop did, after every round."""

    # macro F1 in percent
    f1: list[float] = field(default_factory=list)
    # shares of samples in P_k, and of correct given labels among them; all samples in the warm-up
    purified: list[float] = field(default_factory=list)
    correct: list[float] = field(default_factory=list)
    # ||S||: the global centroids that the graph network makes at the end of the round
    sizes: list[float] = field(default_factory=list)

    @property
    def score(self) -> float:
        """Mean of the last five rounds."""
        return float(np.mean(self.f1[-5:]))


class CentroidGraph(nn.Module):
    """(K, C, d) centroids of all clients -> (C, d) global ones."""

    def __init__(self, dim: int, links: float, generator: torch.Generator) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        first = torch.randn(dim, dim, generator=generator)
        second = torch.randn(dim, dim, generator=generator)
        self.weights = nn.ParameterList([0.01 * first, 0.01 * second])
        self.links = links

    def _convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        cosine = F.cosine_similarity(x[:, None], x[None], dim=2)
        smallest = cosine.flatten().topk(int(self.links * cosine.numel())).values[-1]
        kept = torch.where(cosine > smallest - 1e-8, cosine, torch.zeros_like(cosine))
        matrix = torch.relu(kept) + torch.eye(len(x))
        scale = matrix.detach().sum(dim=1) ** -0.5
        return x + (scale[:, None] * matrix * scale[None]) @ (x @ weight)

    def forward(self, stack: Tensor) -> Tensor:
        """See the class."""
        x = self.norms[0](stack.flatten(0, 1))
        x = torch.relu(self.norms[1](self._convolve(x, self.weights[0])))
        return self._convolve(x, self.weights[1]).view(stack.shape).mean(dim=0)


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """(n, m): between the rows of a (n, d) and b (m, d)."""
    return F.normalize(a, dim=1) @ F.normalize(b, dim=1).T


def centroids_of(links: Tensor, f: Tensor) -> Tensor:
    """(C, d): means of f (n, d) with the degrees in links (C, n, n) as weights."""
    degree = links.sum(dim=2)
    return (degree @ f) / degree.sum(dim=1, keepdim=True)


def core_links(losses: Tensor, given: Tensor, cosine: Tensor, ratio: float) -> Tensor:
    """(C, n, n): cosines inside the samples with the smallest losses of every class."""
    links = []
    for c in range(int(given.max()) + 1):
        own = given == c
        limit = losses[own].sort().values[int(ratio * int(own.sum()))]
        core = own & (losses <= limit)
        links.append(cosine * core[:, None] * core)
    return torch.stack(links)


def spread_labels(cosine: Tensor, clean: Tensor, rest: Tensor, votes: Tensor, a: float) -> Tensor:
    """(n,): propagation over the links between remaining and old clean samples."""
    across = rest[:, None] & clean
    matrix = 0.5 * cosine * (across | across.T) + torch.eye(len(cosine))
    scale = matrix.sum(dim=1) ** -0.5
    system = 2 * (torch.eye(len(cosine)) - a * scale[:, None] * matrix * scale)
    solution: Tensor = torch.linalg.solve(system, (1 - a) * votes)
    return solution.clamp(min=0).argmax(dim=1)


def complementary(probs: Tensor, links: Tensor, labels: Tensor, neighbours: int) -> Tensor:
    """(n, C) bool: the C - 2 classes that the neighbours consider least likely."""
    nearest = links.topk(min(neighbours, len(links)), dim=1).indices
    means = probs[nearest].mean(dim=1)
    means[torch.arange(len(labels)), labels] = 5.0
    lowest = means.topk(means.shape[1] - 2, dim=1, largest=False).indices
    return torch.zeros_like(means, dtype=torch.bool).scatter(1, lowest, value=True)


def negative_loss(logits: Tensor, mask: Tensor) -> Tensor:
    """Mean over samples of -log(1 - p), summed over the classes of the mask (n, C)."""
    return -(torch.log(1 - logits.softmax(dim=1) + 1e-8) * mask).sum(dim=1).mean()


def mean_state(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean 1/K of all numbers; counters are the first client's."""
    mean = {}
    for name, value in states[0].items():
        values = torch.stack([state[name] for state in states])
        mean[name] = values.mean(dim=0) if value.is_floating_point() else value
    return mean


class MainLoop:
    """Warm-up and purification with any backbone under a centroid head."""

    def __init__(
        self, clients: Sequence[Client], model: Classifier, hyper: Hyper, seed: int
    ) -> None:
        assert isinstance(model.head, CentroidHead)
        self.clients = list(clients)
        self.hyper = hyper
        self.generator = torch.Generator().manual_seed(seed)
        weight = model.head.centroids.weight
        self.num_classes, dim = weight.shape
        if hyper.centroid_std is not None:
            with torch.no_grad():
                weight.normal_(0.0, hyper.centroid_std, generator=self.generator)
        self.server = model
        self.models = [copy.deepcopy(model) for _ in clients]
        self.graph = CentroidGraph(dim, hyper.links, self.generator)
        self.z: list[Tensor] = []
        # those of last round
        self.old_z: list[Tensor] = []
        self.outcome = Outcome()

    def run(self, test_x: Tensor, test_y: np.ndarray) -> Outcome:
        """All rounds; the mean model is tested after each."""
        for round in range(self.hyper.rounds):
            sgds = [self._sgd(model, round) for model in self.models]
            graph_sgd = self._graph_sgd(round)
            self.old_z = list(self.z)
            initial_graph = copy.deepcopy(self.graph.state_dict())
            graphs = []
            for _ in range(self.hyper.epochs):
                for k, sgd in enumerate(sgds):
                    if not self.hyper.graph_in_turn:
                        self.graph.load_state_dict(initial_graph)
                        graph_sgd = self._graph_sgd(round)
                    if round < self.hyper.warmup:
                        self._warm_up(k, sgd, graph_sgd)
                    else:
                        self._purify(k, sgd, graph_sgd)
                    graphs.append(copy.deepcopy(self.graph.state_dict()))
            if not self.hyper.graph_in_turn:
                self.graph.load_state_dict(mean_state(graphs))
            self._average()
            self._record(test_x, test_y)
        return self.outcome

    def _sgd(self, module: nn.Module, round: int) -> torch.optim.SGD:
        hyper = self.hyper
        return torch.optim.SGD(
            module.parameters(),
            lr=hyper.lr_at(round),
            momentum=hyper.momentum,
            weight_decay=hyper.weight_decay,
        )

    def _graph_sgd(self, round: int) -> torch.optim.SGD:
        sgd = self._sgd(self.graph, round)
        sgd.param_groups[0]["lr"] *= self.hyper.graph_rate
        return sgd

    def _embed(self, model: Classifier, x: Tensor) -> Tensor:
        head = model.head
        assert isinstance(head, CentroidHead)
        return head.embed(model.features(x))

    def _w(self, model: Classifier) -> nn.Parameter:
        return model.get_parameter("head.centroids.weight")

    @torch.no_grad()
    def _look(self, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings (n, d), probabilities (n, C) and losses (n,) of all samples of a client."""
        model = self.models[k].eval()
        f = torch.cat([self._embed(model, part) for part in torch.split(self.clients[k].x, 256)])
        logits = f @ self._w(model).T
        losses = F.cross_entropy(logits, self.clients[k].given, reduction="none")
        return f, logits.softmax(dim=1), losses

    def _update_centroids(self, k: int, z: Tensor) -> None:
        if not self.z:
            self.z = [z.clone() for _ in self.clients]
        if not self.hyper.new_centroids and not self.old_z:
            self.z[k] = z
            return
        self.z[k] = (1 - self.hyper.ema) * self.z[k] + self.hyper.ema * z

    def _warm_up(self, k: int, sgd: torch.optim.SGD, graph_sgd: torch.optim.SGD) -> None:
        client = self.clients[k]
        f, probs, _ = self._look(k)
        one_hot = F.one_hot(client.given, self.num_classes).float()
        self._update_centroids(k, (one_hot.T @ f) / one_hot.sum(dim=0)[:, None])
        same = client.given[:, None] == client.given
        links = cosines(f, f) * same
        mask = complementary(probs, links, client.given, self.hyper.neighbours)
        rows = torch.arange(len(f))
        if self.hyper.shuffle:
            rows = torch.randperm(len(f), generator=self.generator)
        self._train(k, rows, sgd, graph_sgd, mask)

    def _purify(self, k: int, sgd: torch.optim.SGD, graph_sgd: torch.optim.SGD) -> None:
        client = self.clients[k]
        f, probs, losses = self._look(k)
        cosine = cosines(f, f)
        z = self.z[k]
        if client.clean is None:
            client.class_links = core_links(losses, client.given, cosine, self.hyper.core_ratio)
            client.links = client.class_links.sum(dim=0)
            client.clean = client.links.sum(dim=1) > 0
            z = centroids_of(client.class_links, f)
        by_server = cosines(f, self._w(self.models[k]).detach()).argmax(dim=1)
        by_client = cosines(f, z).argmax(dim=1)
        agree = (client.labels == by_server) & (by_server == by_client)
        sure = probs[torch.arange(len(f)), by_server] > self.hyper.confidence
        joins = agree & sure & ~client.clean
        rest = ~(client.clean | joins)
        votes = F.one_hot(by_server, self.num_classes) + F.one_hot(by_client, self.num_classes)
        spread = spread_labels(cosine, client.clean, rest, votes.float(), self.hyper.alpha)
        self._join(client, joins, cosine)
        client.labels = torch.where(rest, spread, client.labels)
        self._update_centroids(k, centroids_of(client.class_links, f))
        order = torch.randperm(len(f), generator=self.generator)
        self._train(k, order[client.clean[order]], sgd, graph_sgd, None)
        mask = complementary(probs, client.links, client.labels, self.hyper.neighbours)
        self._train_negative(k, order[rest[order]], sgd, mask)

    def _join(self, client: Client, joins: Tensor, cosine: Tensor) -> None:
        assert client.clean is not None
        links = cosine * joins[:, None] * joins
        for c in range(self.num_classes):
            own = joins & (client.labels == c)
            client.class_links[c] += links * (own[:, None] | own)
        client.links = client.links + links
        client.clean = client.clean | joins

    def _train(
        self,
        k: int,
        rows: Tensor,
        sgd: torch.optim.SGD,
        graph_sgd: torch.optim.SGD,
        mask: Tensor | None,
    ) -> None:
        """One epoch over rows with given labels; mask (n, C) adds negative learning."""
        hyper = self.hyper
        model = self.models[k].train()
        head = model.head
        assert isinstance(head, CentroidHead)
        stack = torch.stack(self.z)
        if not hyper.new_centroids:
            stack = torch.stack(self.old_z or [self.z[k]])
        for part in self._parts(rows):
            sgd.zero_grad()
            graph_sgd.zero_grad()
            s = self.graph(stack)
            w = self._w(model)
            f = self._embed(model, self.clients[k].x[part])
            y = self.clients[k].given[part]
            loss = F.cross_entropy(f @ w.T, y) + hyper.norm * (w.norm() + s.norm())
            if mask is not None:
                loss = loss + hyper.negative * negative_loss(f @ w.T, mask[part])
            loss = (1 - hyper.rho) * loss + hyper.rho * F.cross_entropy(f @ s.T, y)
            torch.autograd.backward(loss)
            sgd.step()
            graph_sgd.step()
            pulled = (1 - hyper.pull) * w.detach() + hyper.pull * s.detach()
            if hyper.train_w:
                w.data.copy_(pulled)
            else:
                # a new object: the optimiser keeps the old one
                head.centroids.weight = nn.Parameter(pulled)

    def _train_negative(self, k: int, rows: Tensor, sgd: torch.optim.SGD, mask: Tensor) -> None:
        model = self.models[k].train()
        for part in self._parts(rows):
            sgd.zero_grad()
            logits = model(self.clients[k].x[part])
            torch.autograd.backward(self.hyper.negative * negative_loss(logits, mask[part]))
            sgd.step()

    def _parts(self, rows: Tensor) -> list[Tensor]:
        return [part for part in torch.split(rows, self.hyper.batch) if len(part) > 1]

    @torch.no_grad()
    def _average(self) -> None:
        mean = mean_state([model.state_dict() for model in self.models])
        for model in (self.server, *self.models):
            model.load_state_dict(mean)

    @torch.no_grad()
    def _record(self, x: Tensor, y: np.ndarray) -> None:
        model = self.server.eval()
        predictions = torch.cat([model(part).argmax(dim=1) for part in torch.split(x, 256)])
        score = f1_score(y, predictions.numpy(), average="macro", zero_division=0)
        self.outcome.f1.append(100 * float(score))
        self.outcome.sizes.append(float(self.graph(torch.stack(self.z)).norm()))
        members = []
        correct = []
        for client in self.clients:
            everyone = torch.ones_like(client.given, dtype=torch.bool)
            clean = everyone if client.clean is None else client.clean
            members.append(clean)
            correct.append((client.given == client.truth)[clean])
        self.outcome.purified.append(float(torch.cat(members).float().mean()))
        self.outcome.correct.append(float(torch.cat(correct).float().mean()))
