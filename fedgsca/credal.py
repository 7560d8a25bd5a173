"""RCL, the robust credal labelling loss (Eq. 14-17), its variant UCL, and the schedule of beta.

A label does not mean "certainly y" but a set A of classes that are fully possible: the given label
and every class to which the model itself gives at least beta (Eq. 14). All other classes together
may receive at most alpha. A prediction that satisfies this costs nothing; any other one is pulled
towards the nearest prediction that does.

With only two levels of possibility, 1 and alpha, the largest set of alpha-possible classes is the
only constraint of the credal set (Eq. 15) that can bind: p is inside exactly if S1, the sum of p
over A, is at least 1 - alpha. Inserting the projection p^r (Eq. 16) into KL(p^r || p) (Eq. 17)
leaves the divergence of two Bernoulli distributions, with S0 = 1 - S1:

    loss = 0                                                           if S1 >= 1 - alpha
           (1 - alpha) log((1 - alpha) / S1) + alpha log(alpha / S0)   otherwise

Its gradient with respect to the logits is p - p^r.

Shapes throughout: logits (n, C), labels (n,) int. Equation numbers count the paper's displayed
equations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from fedgsca.support.lazy_torch import F, Tensor, nn, no_grad, torch

Reduction = Literal["mean", "sum", "none"]
Schedule = Literal["cosine", "linear", "constant"]
Loss = Literal["rcl", "ucl", "ce"]
# a beta that no probability reaches: only the given label is possible (label relaxation)
ONLY_GIVEN_LABEL = 2.0
# alpha = 0 would make the projected probability of every other class 0 and the loss infinite
MIN_ALPHA = 1e-3


def rcl_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    alpha: float = 0.05,
    beta: float = 0.75,
    reduction: Reduction = "mean",
    permission: Tensor | None = None,
) -> Tensor:
    """L*(Q, p) (Eq. 17). The mean includes the samples that cost nothing.

    permission (n, C) bool: classes that a confident prediction may add to A; None: all. A model
    that trains on its own confidence can run away, and evidence from elsewhere prevents it.
    """
    log_p = _log_softmax(logits)
    possible = _robust_set(log_p, labels, beta, permission)
    return _reduce(_credal_loss(log_p, possible, max(alpha, MIN_ALPHA)), reduction)


def ucl_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    alpha: float = 0.05,
    beta: float = 0.75,
    reduction: Reduction = "mean",
    permission: Tensor | None = None,
) -> Tensor:
    """Uniform credal labelling, the ablation of RCL.

    A label that the model contradicts with at least beta carries no information: every class is
    possible, and the sample costs nothing. For any other label, A = {y}.
    """
    log_p = _log_softmax(logits)
    possible = _uniform_set(log_p, labels, beta, permission)
    return _reduce(_credal_loss(log_p, possible, max(alpha, MIN_ALPHA)), reduction)


@no_grad
def credal_gradient(
    logits: Tensor,
    labels: Tensor,
    weights: Tensor,
    *,
    alpha: float = 0.05,
    beta: float = 0.75,
    permission: Tensor | None = None,
    uniform: bool = False,
) -> Tensor:
    """(n, C): the derivative of sum_i weights_i loss_i, w (p - p^r), with respect to the logits.

    weights (n, 1). With `uniform` that of UCL, else of RCL. The bits are those of autograd.
    """
    log_p = _log_softmax(logits)
    make_set = _uniform_set if uniform else _robust_set
    r, _ = _project(log_p, make_set(log_p, labels, beta, permission), max(alpha, MIN_ALPHA))
    return torch._log_softmax_backward_data(r.mul_(weights).neg_(), log_p, 1, log_p.dtype)


class LabelledBatch(Protocol):
    """What an objective sees of a training step (fedgsca/methods/train.py)."""

    @property
    def x(self) -> Tensor: ...
    @property
    def y(self) -> Tensor: ...
    @property
    def rows(self) -> np.ndarray: ...


@dataclass(frozen=True)
class CredalObjective:
    """The mean credal loss of a batch at one beta: an objective for `train`.

    permission (n, C) bool, by row of the site: classes that may join the credal set; None: all. The
    loss "ucl" is the ablation, "ce" is cross-entropy.
    """

    alpha: float
    beta: float
    permission: np.ndarray | None = None
    loss: Loss = "rcl"

    def __call__(self, model: nn.Module, batch: LabelledBatch) -> Tensor:
        """The mean loss of a batch."""
        logits = model(batch.x)
        if self.loss == "ce":
            return F.cross_entropy(logits, batch.y)
        credal_loss = rcl_loss if self.loss == "rcl" else ucl_loss
        permission = self._permitted_classes(logits, batch)
        return credal_loss(logits, batch.y, alpha=self.alpha, beta=self.beta, permission=permission)

    @property
    def has_gradient(self) -> bool:
        """Both credal losses have a gradient of their own."""
        return self.loss != "ce"

    def logit_gradient(self, logits: Tensor, batch: LabelledBatch) -> Tensor:
        """(b, C): the derivative of the mean loss."""
        size = len(logits)
        return credal_gradient(
            logits,
            batch.y,
            torch.full((size, 1), 1.0 / size, dtype=logits.dtype, device=logits.device),
            alpha=self.alpha,
            beta=self.beta,
            permission=self._permitted_classes(logits, batch),
            uniform=self.loss == "ucl",
        )

    def _permitted_classes(self, logits: Tensor, batch: LabelledBatch) -> Tensor | None:
        if self.permission is None:
            return None
        return torch.from_numpy(self.permission.take(batch.rows, axis=0)).to(logits.device)


def _robust_set(log_p: Tensor, labels: Tensor, beta: float, permission: Tensor | None) -> Tensor:
    """(n, C) bool: A of RCL."""
    possible = log_p.detach().exp() >= beta  # Eq. 14: possibility 1 for confident predictions ...
    if permission is not None:
        possible &= permission
    return possible.scatter_(1, labels.unsqueeze(1), True)  # ... and for the given label, always


def _uniform_set(log_p: Tensor, labels: Tensor, beta: float, permission: Tensor | None) -> Tensor:
    """(n, C) bool: A of UCL."""
    is_given = torch.zeros_like(log_p, dtype=torch.bool).scatter(1, labels[:, None], True)
    is_confident = log_p.detach().exp() >= beta
    if permission is not None:
        is_confident = is_confident & permission
    contradiction = (is_confident & ~is_given).any(dim=1, keepdim=True)
    return is_given | contradiction


def beta_at(
    round: int,
    rounds: int,
    *,
    start: float = 0.75,
    end: float = 0.55,
    schedule: Schedule = "cosine",
) -> float:
    """beta of a zero-based round, the same at every site and in every local epoch.

    It falls from `start` to `end` as the model becomes more reliable.
    """
    progress = round / rounds
    if schedule == "cosine":
        return end + 0.5 * (start - end) * (1.0 + math.cos(math.pi * progress))
    if schedule == "linear":
        return start + (end - start) * progress
    if schedule == "constant":
        return start
    raise ValueError(f"unknown beta schedule {schedule!r}: use cosine, linear or constant")


def _log_softmax(logits: Tensor) -> Tensor:
    """(n, C), at least float32: half precision has too few digits for log(S0) near S1 = 1."""
    precise = logits if logits.dtype == torch.float64 else logits.float()
    return torch.log_softmax(precise, dim=1)


def _credal_loss(log_p: Tensor, possible: Tensor, alpha: float) -> Tensor:
    """(n,): 0 inside the credal set, else KL(p^r || p) (Eq. 17).

    log_p (n, C); `possible` (n, C) bool is A, each row with the given label.

    p^r is a constant for the gradient. That changes nothing (the gradient is p - p^r either way)
    and means that the logarithm of an empty sum is never differentiated: masking a finished loss
    would turn log 0 of the samples inside the credal set into NaN gradients.
    """
    r, log_r = _project(log_p, possible, alpha)
    return (r * (log_r - log_p)).sum(dim=1)  # Eq. 17


@no_grad
def _project(log_p: Tensor, possible: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """p^r (Eq. 16), (n, C), which is 0 inside the credal set, and its logarithm outside."""
    # S1 and S0 stay logarithms: S1 may be 1e-170; both at once
    masks = torch.stack((~possible, possible))  # (2, n, C)
    log_s1, log_s0 = log_p.masked_fill(masks, -torch.inf).logsumexp(dim=2, keepdim=True)
    inside = log_s1.exp() >= 1.0 - alpha  # p is in Q (Eq. 15); not so for a NaN, which must show
    log_r = log_p - torch.where(possible, log_s1 - math.log1p(-alpha), log_s0 - math.log(alpha))
    return log_r.exp().masked_fill_(inside, 0.0), log_r  # Eq. 16


def _reduce(loss: Tensor, reduction: Reduction) -> Tensor:
    if reduction == "mean":
        return loss.mean()
    return loss.sum() if reduction == "sum" else loss
