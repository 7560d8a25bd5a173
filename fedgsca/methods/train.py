"""The one local SGD loop and the one evaluation pass; every method uses both.

Pixels stay uint8 until the batch. A batch that was gathered from the (n, H, W, 3) array and then
permuted is channels-last already, the layout that CPUs train fastest. Evaluation never augments and
never shuffles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from fedgsca.evidence import MAX_WEIGHT, balance_classes
from fedgsca.methods.parts.optimisers import SGD, AdamW
from fedgsca.methods.site import Evaluation as Evaluation
from fedgsca.methods.site import Samples, Site
from fedgsca.models.batches import augment, channel_values, copy_stream, send
from fedgsca.support.lazy_torch import F, Tensor, inference_mode, nn, torch

if TYPE_CHECKING:
    from fedgsca.models.build import Classifier

EVAL_BATCH = 256
# batches of features that are read at a time, few enough for a processor's cache; images are
# augmented one batch at a time
FEATURE_BATCHES = 4


@dataclass(frozen=True)
class Batch:
    """The data of one training step."""

    # (b, 3, H, W) augmented and normalised images, or (b, D) features
    x: Tensor
    # (b,) the labels to train on
    y: Tensor
    # (b,) rows at the site
    rows: np.ndarray


class Network(Protocol):
    """What evaluation needs: features, and a head that turns them into logits."""

    @property
    def head(self) -> Callable[..., Any]: ...
    def features(self, x: Tensor) -> Tensor: ...
    def eval(self) -> object: ...


# in quotation marks: nn.Module must not be looked up before a site trains
Objective: TypeAlias = "Callable[[nn.Module, Batch], Tensor]"


@runtime_checkable
class LogitObjective(Protocol):
    """An objective of the logits alone that knows its gradient.

    On frozen features a step is then a few products, without a graph of operations. The gradient
    has the bits of the one that autograd computes.
    """

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor: ...

    def logit_gradient(self, logits: Tensor, batch: Batch) -> Tensor:
        """(b, C): the derivative of the loss of a batch with respect to its logits (b, C)."""
        ...

    @property
    def has_gradient(self) -> bool:
        """Whether `logit_gradient` can be used with the options of this objective."""
        ...


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """The objective of FedAvg: the mean cross-entropy of a batch, a single number."""
    return F.cross_entropy(model(batch.x), batch.y)


def softmax_gradient(gradient: Tensor, log_p: Tensor) -> Tensor:
    """(b, C): from the derivative with respect to log-softmax to that with respect to logits."""
    return torch._log_softmax_backward_data(gradient, log_p, 1, log_p.dtype)


def cross_entropy_gradient(logits: Tensor, y: Tensor) -> Tensor:
    """(b, C): the derivative of the mean cross-entropy, (p - onehot) / b."""
    log_p = torch.log_softmax(logits, 1)
    gradient = torch.zeros_like(log_p).scatter_(1, y.unsqueeze(1), -1.0 / y.shape[0])
    return softmax_gradient(gradient, log_p)


def proximal(model: nn.Module, anchor: Sequence[Tensor], mu: float) -> Tensor:
    """(mu / 2) ||theta - anchor||^2 over parameters; BatchNorm statistics are not parameters."""
    squares = []
    for parameter, value in zip(model.parameters(), anchor, strict=True):
        squares.append((parameter - value).square().sum())
    return 0.5 * mu * torch.stack(squares).sum()


def precision(device: torch.device) -> AbstractContextManager[object]:
    """bfloat16 on GPUs that have it, else float32: on most CPUs bfloat16 is many times slower."""
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
    """Inputs of the given rows: (b, 3, H, W) normalised images, or (b, D) features.

    With a random stream, images are augmented as uint8 before they are normalised.
    """
    inputs = torch.from_numpy(np.asarray(samples.inputs[rows]))
    if not samples.are_images:
        return send(inputs, device)
    images = inputs.permute(0, 3, 1, 2)  # (b, 3, H, W), channels-last in memory
    if rng is not None:
        images = augment(images, kind, rng)
    mean = channel_values(samples.mean, device)
    std = channel_values(samples.std, device)
    return send(images, device).float().sub_(mean).div_(std)


def batches(
    site: Site,
    round: int,
    rows: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    *,
    epoch: int = 0,
) -> Iterator[Batch]:
    """One shuffled, augmented pass over `rows` (default: all) with one label per row.

    The default labels are the given ones. With `train.class_balance` or `weights` (one per row),
    some rows come several times and others not in every pass (`draw_weighted`). A last batch of one
    sample is skipped: BatchNorm cannot normalise it.
    """
    site.evaluation = None  # the model is about to change
    rows = np.arange(site.num_samples) if rows is None else rows
    labels = site.labels[rows] if labels is None else labels
    order = site.rng(round, "shuffle", epoch).permutation(len(rows))
    if (site.hyper.class_balance > 0 or weights is not None) and len(rows):
        rng = site.rng(round, "balance", epoch)
        order = draw_weighted(labels, order, site.hyper.class_balance, rng, weights)
    rng = site.rng(round, "augment", epoch)
    size = site.hyper.batch_size
    if site.hyper.steps is not None:
        order = order[: site.hyper.steps * size]
    span = size if site.samples.are_images else FEATURE_BATCHES * size
    for start in range(0, len(order), span):
        positions = order[start : start + span]
        if len(positions) < 2:
            continue
        span_rows = rows[positions]
        with copy_stream(site.device) as deliver:
            x = to_tensor(site.samples, span_rows, site.device, rng, site.hyper.augment)
            y = send(torch.from_numpy(labels[positions]), site.device)
            deliver(x, y)
        for first, batch_x, batch_y in zip(
            range(0, len(positions), size), torch.split(x, size), torch.split(y, size), strict=True
        ):
            batch_rows = span_rows[first : first + size]
            if len(batch_rows) >= 2:
                yield Batch(batch_x, batch_y, batch_rows)


def draw_weighted(
    labels: np.ndarray,
    order: np.ndarray,
    exponent: float,
    rng: np.random.Generator,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """(m,): positions of a pass in which class c has a share in proportion to n_c^(1 - exponent).

    labels (m,), order (m,) a permutation that says which samples of a class come first. With
    `weights` (m,), n_c is the sum of those of the class, and within a class a sample comes in
    proportion to its weight. A sample comes MAX_WEIGHT times at most. Every class gets its number
    of places up to one, which a draw of every single place would not give; the pass is as long as
    one over all samples.
    """
    masses = np.bincount(labels, weights)
    shares = balance_classes(masses, exponent)[labels]
    if weights is not None:
        shares = shares * weights
    shares = np.minimum(shares / shares.mean(), MAX_WEIGHT)
    by_class = order[np.argsort(labels[order], kind="stable")]
    edges = np.cumsum(shares[by_class])
    places = (np.arange(len(labels)) + rng.random()) * (edges[-1] / len(labels))
    positions = np.minimum(np.searchsorted(edges, places, side="right"), len(labels) - 1)
    return np.asarray(by_class[positions][rng.permutation(len(labels))])


def optimiser(site: Site, round: int, parameters: Sequence[nn.Parameter] | None = None) -> SGD:
    """The experiment's optimiser, over all parameters of the site's model or over some."""
    site.evaluation = None  # the model is about to change
    hyper = site.hyper
    if parameters is None:
        parameters = list(site.model.parameters())
    kind = AdamW if hyper.optimiser == "adamw" else SGD
    rate = hyper.lr_at(round)
    return kind(parameters, rate, hyper.momentum, hyper.weight_decay, hyper.clip)


def train(
    site: Site,
    round: int,
    objective: Objective,
    rows: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> None:
    """E local epochs of SGD on the site's model, which already holds the weights to start from.

    rows (m,) and labels (m,) are the training set; by default all samples with the given labels,
    which all come equally often unless there are `weights` (m,).
    """
    site.model.train()
    sgd = optimiser(site, round)
    head = linear_head(site.model, site.device)
    if head is not None and isinstance(objective, LogitObjective) and objective.has_gradient:
        for epoch in range(site.hyper.epochs):
            epoch_batches = batches(site, round, rows, labels, weights, epoch=epoch)
            _train_head(head, sgd, objective, epoch_batches)
        return
    for epoch in range(site.hyper.epochs):
        for batch in batches(site, round, rows, labels, weights, epoch=epoch):
            sgd.zero_grad()
            with precision(site.device):
                loss = objective(site.model, batch)
            torch.autograd.backward(loss)
            sgd.step()


def linear_head(model: Classifier, device: torch.device) -> nn.Linear | None:
    """The whole model, if it is one linear layer on frozen features, on a CPU; else None."""
    head = model.head
    if not isinstance(head, nn.Linear) or not isinstance(model.backbone, nn.Identity):
        return None
    if device.type != "cpu" or head.bias is None:
        return None
    is_trained = head.weight.requires_grad and head.bias.requires_grad
    return head if is_trained else None


@inference_mode
def _train_head(
    head: nn.Linear, sgd: SGD, objective: LogitObjective, epoch: Iterator[Batch]
) -> None:
    """One pass of `train` over a linear head, with the same bits and without autograd."""
    weight, bias = head.weight, head.bias
    parameters: list[Tensor] = [weight, bias]
    columns = weight.t()  # a view: it follows the weights
    for batch in epoch:
        logits = torch.addmm(bias, batch.x, columns)
        gradient = objective.logit_gradient(logits, batch)
        # in the order of torch.optim and of autograd: other products have other last bits
        sgd.move(parameters, [gradient.t().mm(batch.x), gradient.sum(0)])


class LogitPass:
    """A forward pass, for a training loop that knows the derivative of its loss by the logits.

    For a linear head on frozen features it builds no graph of operations. The gradients have the
    bits of those that autograd computes.
    """

    def __init__(self, model: Classifier, x: Tensor, device: torch.device) -> None:
        """`x` is that of a batch."""
        self._x = x
        self._head = linear_head(model, device)
        if self._head is None:
            with precision(device):
                self._output = model(x)
        else:
            with torch.no_grad():
                self._output = torch.addmm(self._head.bias, x, self._head.weight.t())
        # (b, C), without a graph
        self.logits: Tensor = self._output.detach()

    def backward(self, gradient: Tensor) -> None:
        """Put the gradients into the model's parameters, which must have none.

        `gradient` (b, C) is the derivative by the logits.
        """
        if self._head is None:
            torch.autograd.backward(self._output, gradient.to(self._output.dtype))
            return
        with torch.no_grad():
            self._head.weight.grad = gradient.t().mm(self._x)
            self._head.bias.grad = gradient.sum(0)


@inference_mode
def evaluate(
    model: Network, samples: Samples, device: torch.device, *, features: bool = False
) -> Evaluation:
    """Probabilities and cross-entropy of every sample, with `features` also their features.

    Evaluation mode, fixed order, no augmentation.
    """
    model.eval()
    logit_batches = []
    feature_batches = []
    for start in range(0, len(samples), EVAL_BATCH):
        rows = np.arange(start, min(start + EVAL_BATCH, len(samples)))
        with precision(device):
            hidden = model.features(to_tensor(samples, rows, device))
            logit_batches.append(model.head(hidden))
        if features:
            feature_batches.append(hidden.float().cpu().numpy())
    log_probs = F.log_softmax(torch.cat(logit_batches).double(), dim=1)
    return Evaluation(
        log_probs.exp().cpu().numpy(),
        -log_probs.cpu().numpy()[np.arange(len(samples)), samples.labels],
        np.concatenate(feature_batches) if features else None,
    )


def evaluate_site(site: Site, *, features: bool = False) -> Evaluation:
    """Outputs on the site's own samples.

    Those of the model as received are computed once for all who ask (`Site.evaluation`).
    """
    evaluation = site.evaluation
    if evaluation is not None and (evaluation.features is not None or not features):
        return evaluation
    return evaluate(site.model, site.samples, site.device, features=features)
