"""The one local SGD loop and the one evaluation pass; every method uses both.

Pixels stay uint8 until the batch. A batch gathered from the (n, H, W, 3) array and permuted is channels-last already, which is the
layout that CPUs train fastest. Evaluation never augments and never shuffles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgsca.models.augment import augment
from fedgsca.site import Samples, Site

EVAL_BATCH = 256


@dataclass(frozen=True)
class Batch:
    """One training step's data: augmented and normalised inputs, the labels to train on, and their rows at the site."""

    x: Tensor
    y: Tensor
    rows: np.ndarray


@dataclass(frozen=True)
class Evaluation:
    """Model outputs on all samples in row order, without augmentation."""

    probs: np.ndarray  # (n, C) float64
    losses: np.ndarray  # (n,) float64: cross-entropy with the given labels, in nats
    features: np.ndarray | None = None  # (n, D), on request

    @property
    def predicted(self) -> np.ndarray:
        return np.asarray(self.probs.argmax(axis=1))


class Network(Protocol):
    """What evaluation needs: features, and a head that turns them into logits."""

    @property
    def head(self) -> Callable[..., Any]: ...
    def features(self, x: Tensor) -> Tensor: ...
    def eval(self) -> object: ...


Objective = Callable[[nn.Module, Batch], Tensor]


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch.x), batch.y)


def proximal(model: nn.Module, anchor: Sequence[Tensor], mu: float) -> Tensor:
    """(mu / 2) ||theta - anchor||^2 over parameters (buffers such as BatchNorm statistics are not parameters)."""
    squares = [
        (parameter - fixed).square().sum()
        for parameter, fixed in zip(model.parameters(), anchor, strict=True)
    ]
    return 0.5 * mu * torch.stack(squares).sum()


def precision(device: torch.device) -> AbstractContextManager[object]:
    """bfloat16 on GPUs that have it; plain float32 elsewhere (on most CPUs bfloat16 is many times slower)."""
    if device.type == "cuda" and torch.cuda.is_bf16_supported():
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return nullcontext()


def to_tensor(
    samples: Samples,
    rows: np.ndarray,
    device: torch.device,
    rng: np.random.Generator | None = None,
    kind: str = "none",
) -> Tensor:
    """Gather rows; images are augmented (if a stream is given) as uint8 and then normalised."""
    gathered = torch.from_numpy(np.asarray(samples.inputs[rows]))
    if not samples.are_images:
        return gathered.to(device)
    images = gathered.permute(0, 3, 1, 2)  # (b, 3, H, W), channels-last in memory
    if rng is not None:
        images = augment(images, kind, rng)
    mean = torch.tensor(samples.mean, device=device).view(1, 3, 1, 1)
    std = torch.tensor(samples.std, device=device).view(1, 3, 1, 1)
    return images.to(device).float().sub_(mean).div_(std)


def batches(
    site: Site,
    round: int,
    rows: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    *,
    epoch: int = 0,
) -> Iterator[Batch]:
    """One shuffled, augmented pass over `rows` (default: all) with `labels` (default: the given ones), one label per row.

    A trailing batch of one sample is skipped: BatchNorm cannot normalise it.
    """
    site.seen = None  # the model is about to change
    rows = np.arange(site.num_samples) if rows is None else rows
    labels = site.labels[rows] if labels is None else labels
    order = site.rng(round, "shuffle", epoch).permutation(len(rows))
    rng = site.rng(round, "augment", epoch)
    size = site.hyper.batch_size
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        if len(chosen) < 2:
            continue
        x = to_tensor(site.samples, rows[chosen], site.device, rng, site.hyper.augment)
        yield Batch(x, torch.from_numpy(labels[chosen]).to(site.device), rows[chosen])


class SGD:
    """Plain SGD with momentum and weight decay. torch.optim's first use imports its compiler for one to two seconds; this does not."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self._velocity: list[Tensor] | None = None

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        moved = [(p, p.grad) for p in self.parameters if p.grad is not None]
        parameters: list[Tensor] = [p for p, _ in moved]
        gradients = [g for _, g in moved if g is not None]
        if self.weight_decay:
            gradients = list(torch._foreach_add(gradients, parameters, alpha=self.weight_decay))
        if self.momentum:
            if self._velocity is None:
                self._velocity = [gradient.clone() for gradient in gradients]
            else:
                torch._foreach_mul_(self._velocity, self.momentum)
                torch._foreach_add_(self._velocity, gradients)
            gradients = self._velocity
        torch._foreach_add_(parameters, gradients, alpha=-self.lr)


def optimiser(site: Site, round: int, parameters: Sequence[nn.Parameter] | None = None) -> SGD:
    site.seen = None
    hyper = site.hyper
    chosen = list(site.model.parameters()) if parameters is None else parameters
    return SGD(chosen, hyper.lr_at(round), hyper.momentum, hyper.weight_decay)


def train(
    site: Site,
    round: int,
    objective: Objective,
    rows: np.ndarray | None = None,
    labels: np.ndarray | None = None,
) -> None:
    """E local epochs of SGD on the site's model, which already holds the weights to start from."""
    site.model.train()
    sgd = optimiser(site, round)
    for epoch in range(site.hyper.epochs):
        for batch in batches(site, round, rows, labels, epoch=epoch):
            sgd.zero_grad()
            with precision(site.device):
                loss = objective(site.model, batch)
            torch.autograd.backward(loss)
            sgd.step()


@torch.inference_mode()
def evaluate(
    model: Network, samples: Samples, device: torch.device, *, features: bool = False
) -> Evaluation:
    """Probabilities and cross-entropy of every sample: evaluation mode, fixed order, no augmentation."""
    model.eval()
    probs, losses, found = [], [], []
    for start in range(0, len(samples), EVAL_BATCH):
        rows = np.arange(start, min(start + EVAL_BATCH, len(samples)))
        with precision(device):
            hidden = model.features(to_tensor(samples, rows, device))
            logits = model.head(hidden)
        log_probs = F.log_softmax(logits.double(), dim=1)
        probs.append(log_probs.exp().cpu().numpy())
        losses.append(-log_probs.cpu().numpy()[np.arange(len(rows)), samples.labels[rows]])
        if features:
            found.append(hidden.float().cpu().numpy())
    return Evaluation(
        np.concatenate(probs), np.concatenate(losses), np.concatenate(found) if features else None
    )


def evaluate_site(site: Site, *, features: bool = False) -> Evaluation:
    """Outputs on the site's own samples; those of the model as received are computed once, whoever asks first."""
    if site.seen is not None and not features:
        return site.seen
    return evaluate(site.model, site.samples, site.device, features=features)
