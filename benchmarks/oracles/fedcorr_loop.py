"""FedCorr's published main loop on arrays: what the authors' program does with a linear head.

Written from reading the published program (one process, every client's data at hand), not copied
from it. Kept from it: softmax twice before the logarithm; LID with its constants; LIDs added up
over the iterations; scikit-learn's mixtures on LIDs and losses, which always make two groups; the
plain norm, left out in the first batch of an epoch; clients one after the other in stage 1 with an
average after each (`clients_at_once=1`). Fractions of clients in stages 2 and 3 are 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from sklearn.metrics import f1_score
from sklearn.mixture import GaussianMixture
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Hyper:
    """Values of the authors' options; the lengths of the stages are the caller's."""

    iterations: int
    rounds_fine: int
    rounds_usual: int
    epochs: int = 1
    lr: float = 0.05
    momentum: float = 0.0
    batch: int = 32
    beta: float = 5.0
    alpha: float = 1.0
    relabel_ratio: float = 0.5
    confidence: float = 0.5
    clean_level: float = 0.1
    # 1: one after the other (published); the number of clients: all in parallel
    clients_at_once: int = 1


@dataclass
class Client:
    """Features (n, D) and labels (n,), which the loop overwrites."""

    x: Tensor
    y: np.ndarray


@dataclass
class Outcome:
    """What the loop did."""

    # macro F1 in percent after every round
    f1: list[float] = field(default_factory=list)
    # per iteration: accumulated LIDs (K,) and estimated noise levels (K,)
    lids: list[np.ndarray] = field(default_factory=list)
    levels: list[np.ndarray] = field(default_factory=list)
    labels: list[np.ndarray] = field(default_factory=list)

    @property
    def score(self) -> float:
        """Mean of the last five rounds."""
        return float(np.mean(self.f1[-5:]))


def lid_terms(outputs: np.ndarray, k: int = 20, eps: float = 1e-6) -> np.ndarray:
    """(n,): LID of every row of softmax vectors (n, C) among the others."""
    x = outputs.astype(np.float32).astype(np.float64)
    squares = (x**2).sum(axis=1)
    distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * x @ x.T, 0.0))
    nearest = np.sort(distances, axis=1)[:, 1 : k + 1]
    with np.errstate(divide="ignore"):
        logs = np.log(nearest / (nearest[:, -1:] + eps))
    return np.asarray(-k / (logs.sum(axis=1) + eps))


def two_components(values: np.ndarray, seed: int) -> np.ndarray:
    """(n,) bool: membership in the upper of two Gaussian components."""
    column = values.reshape(-1, 1)
    mixture = GaussianMixture(n_components=2, random_state=seed).fit(column)
    lower = int(np.argmin(mixture.means_[:, 0]))
    return np.asarray(mixture.predict(column) != lower)


class MainLoop:
    """The three stages on a linear head."""

    def __init__(self, clients: Sequence[Client], head: nn.Linear, hyper: Hyper, seed: int) -> None:
        self.clients = list(clients)
        self.head = head
        self.hyper = hyper
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.outcome = Outcome()

    def run(self, test_x: Tensor, test_y: np.ndarray) -> Outcome:
        """All stages; the head is tested after every iteration and round."""
        noisy, levels = self._pre_process(test_x, test_y)
        clean = np.flatnonzero(levels <= self.hyper.clean_level)
        for _ in range(self.hyper.rounds_fine):
            self._average([self._train(int(k), 0.0) for k in clean], clean)
            self._test(test_x, test_y)
        for k in noisy:
            outputs, _ = self._outputs(self.clients[k])
            sure = outputs.max(axis=1) > self.hyper.confidence
            self.clients[k].y[sure] = outputs.argmax(axis=1)[sure]
        everyone = np.arange(len(self.clients))
        for _ in range(self.hyper.rounds_usual):
            self._average([self._train(int(k), 0.0) for k in everyone], everyone)
            self._test(test_x, test_y)
        self.outcome.labels = [client.y for client in self.clients]
        return self.outcome

    def _pre_process(self, test_x: Tensor, test_y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        count = len(self.clients)
        lids = np.zeros(count)
        levels = np.zeros(count)
        noisy = np.empty(0, int)
        for _ in range(self.hyper.iterations):
            losses: dict[int, np.ndarray] = {}
            order = self.rng.permutation(count)
            for start in range(0, count, self.hyper.clients_at_once):
                group = order[start : start + self.hyper.clients_at_once]
                models = []
                for k in group.tolist():
                    models.append(self._train(k, levels[k]))
                    outputs, losses[k] = self._outputs(self.clients[k], models[-1])
                    lids[k] += lid_terms(outputs).mean()
                self._average(models, group)
            noisy = np.flatnonzero(two_components(lids, self.seed))
            levels = np.zeros(count)
            for k in noisy.tolist():
                levels[k] = two_components(losses[k], self.seed).mean()
                self._correct(self.clients[k], losses[k], levels[k])
            self.outcome.lids.append(lids.copy())
            self.outcome.levels.append(levels)
            self._test(test_x, test_y)
        return noisy, levels

    def _correct(self, client: Client, losses: np.ndarray, level: float) -> None:
        outputs, _ = self._outputs(client)
        count = int(len(client.y) * level * self.hyper.relabel_ratio)
        worst = np.argsort(-losses)[:count]
        sure = worst[outputs.max(axis=1)[worst] > self.hyper.confidence]
        client.y[sure] = outputs.argmax(axis=1)[sure]

    def _train(self, k: int, mu: float) -> nn.Linear:
        hyper = self.hyper
        client = self.clients[k]
        model = nn.Linear(self.head.in_features, self.head.out_features)
        model.load_state_dict(self.head.state_dict())
        sgd = torch.optim.SGD(model.parameters(), lr=hyper.lr, momentum=hyper.momentum)
        labels = torch.from_numpy(client.y)
        for _ in range(hyper.epochs):
            order = self.rng.permutation(len(client.y))
            for step, start in enumerate(range(0, len(order), hyper.batch)):
                rows = torch.from_numpy(order[start : start + hyper.batch])
                loss = self._mixup_loss(model, client.x[rows], labels[rows])
                if hyper.beta > 0 and step > 0:
                    squares = [
                        (a - b.detach()).square().sum()
                        for a, b in zip(model.parameters(), self.head.parameters(), strict=True)
                    ]
                    loss = loss + hyper.beta * mu * torch.stack(squares).sum().sqrt()
                sgd.zero_grad()
                torch.autograd.backward(loss)
                sgd.step()
        return model

    def _mixup_loss(self, model: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
        lam = float(self.rng.beta(self.hyper.alpha, self.hyper.alpha))
        partner = torch.from_numpy(self.rng.permutation(len(y)))
        logits = model(lam * x + (1 - lam) * x[partner])
        own = F.cross_entropy(logits, y)
        return lam * own + (1 - lam) * F.cross_entropy(logits, y[partner])

    def _outputs(
        self, client: Client, model: nn.Linear | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(n, C) softmax vectors, and (n,) cross-entropies that take them for logits."""
        with torch.no_grad():
            probs = F.softmax((model or self.head)(client.x), dim=1)
            losses = F.cross_entropy(probs, torch.from_numpy(client.y), reduction="none")
        return probs.numpy().astype(np.float64), losses.numpy().astype(np.float64)

    def _average(self, models: Sequence[nn.Linear], group: np.ndarray) -> None:
        sizes = np.array([len(self.clients[k].y) for k in group], dtype=np.float64)
        shares = sizes / sizes.sum()
        with torch.no_grad():
            for name, parameter in self.head.named_parameters():
                tensors = [model.get_parameter(name) for model in models]
                mean = sum(
                    float(share) * tensor for share, tensor in zip(shares, tensors, strict=True)
                )
                parameter.copy_(torch.as_tensor(mean))

    def _test(self, x: Tensor, y: np.ndarray) -> None:
        with torch.no_grad():
            predictions = self.head(x).argmax(dim=1).numpy()
        score = f1_score(y, predictions, average="macro", zero_division=0)
        self.outcome.f1.append(100 * float(score))
