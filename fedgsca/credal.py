"""RCL, the robust credal labelling loss (Eq. 14-17 of the paper), its variant UCL, and the schedule of beta.

A label is not read as "certainly y" but as a set of classes A that are fully possible: the given label and every class that the
model itself gives at least beta (Eq. 14). All other classes together may receive at most alpha. A prediction that keeps this
promise costs nothing; any other one is pulled towards its nearest neighbour that does.

With only two levels of possibility, 1 and alpha, the largest set of alpha-possible classes is the only constraint of the credal
set (Eq. 15) that can bind: p is inside exactly if S1 = sum of p over A is at least 1 - alpha. Inserting the projection p^r
(Eq. 16) into KL(p^r || p) (Eq. 17) leaves the divergence of two coins, with S0 = 1 - S1:

    loss = 0                                                           if S1 >= 1 - alpha
           (1 - alpha) log((1 - alpha) / S1) + alpha log(alpha / S0)   otherwise

Its gradient with respect to the logits is p - p^r. Equation numbers count the paper's displayed equations.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]
Schedule = Literal["cosine", "linear", "constant"]
MIN_ALPHA = 1e-3  # alpha = 0 would make the projected probability of every other class 0 and the loss infinite


def rcl_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    alpha: float = 0.05,
    beta: float = 0.75,
    reduction: Reduction = "mean",
) -> Tensor:
    """L*(Q, p) (Eq. 17) for logits (n, C) and labels (n,). The mean counts the samples that cost nothing, too."""
    log_p = _log_softmax(logits)
    possible = log_p.detach().exp() >= beta  # Eq. 14: possibility 1 ...
    possible = possible.scatter(1, labels[:, None], True)  # ... the given label always
    return _reduce(_credal(log_p, possible, max(alpha, MIN_ALPHA)), reduction)


def ucl_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    alpha: float = 0.05,
    beta: float = 0.75,
    reduction: Reduction = "mean",
) -> Tensor:
    """Uniform credal labelling, the ablation: a label the model contradicts with at least beta says nothing, else A = {y}."""
    log_p = _log_softmax(logits)
    given = torch.zeros_like(log_p, dtype=torch.bool).scatter(1, labels[:, None], True)
    contradicted = ((log_p.detach().exp() >= beta) & ~given).any(dim=1, keepdim=True)
    return _reduce(
        _credal(log_p, given | contradicted, max(alpha, MIN_ALPHA)), reduction
    )  # all possible: inside, costs 0


def beta_at(
    round: int,
    rounds: int,
    *,
    start: float = 0.75,
    end: float = 0.55,
    schedule: Schedule = "cosine",
) -> float:
    """beta of a zero-based round. It falls as the model earns trust; the same for every site and epoch of the round."""
    done = round / rounds
    if schedule == "cosine":
        return end + 0.5 * (start - end) * (1.0 + math.cos(math.pi * done))
    if schedule == "linear":
        return start + (end - start) * done
    if schedule == "constant":
        return start
    raise ValueError(f"unknown beta schedule {schedule!r}: cosine, linear or constant")


def _log_softmax(logits: Tensor) -> Tensor:
    """(n, C) in float32 at least: half precision under autocast has too few digits for log(S0) near 1 - S1."""
    return torch.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), dim=1)


def _credal(log_p: Tensor, possible: Tensor, alpha: float) -> Tensor:
    """(n,): 0 inside the credal set, else KL(p^r || p) (Eq. 17). `possible` (n, C) is A; each row holds the given label.

    p^r is a constant for the gradient, which changes nothing (it is p - p^r either way) and means that no logarithm of an empty
    sum is ever differentiated: masking a finished loss would turn log 0 of the samples inside into NaN gradients.
    """
    with torch.no_grad():
        log_s1 = log_p.masked_fill(~possible, -torch.inf).logsumexp(
            dim=1, keepdim=True
        )  # S1 may be 1e-170: stay in logs
        log_s0 = log_p.masked_fill(possible, -torch.inf).logsumexp(dim=1, keepdim=True)
        outside = ~(
            log_s1.exp() >= 1.0 - alpha
        )  # "not >=": a NaN logit reaches the loss instead of hiding as 0
        scale = torch.where(possible, math.log1p(-alpha) - log_s1, math.log(alpha) - log_s0)
        log_r = log_p + torch.where(outside, scale, 0.0)  # Eq. 16
        r = log_r.exp() * outside
    return (r * (log_r - log_p)).sum(dim=1)


def _reduce(loss: Tensor, reduction: Reduction) -> Tensor:
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss
