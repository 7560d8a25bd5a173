"""Labels that are learned by gradient descent together with the model (PENCIL, Yi and Wu 2019).

Sample i has label logits u_i (C,), at first K at its given label and 0 elsewhere; its label is the
distribution d_i = softmax(u_i). p_i is the model's prediction, y_i the given label:

    L  = L_c / C + alpha L_o + beta L_e / C
    L_c = mean_i KL(p_i || d_i)                    the model and the labels agree
    L_o = mean_i w_i (-log d_i(y_i))               the labels stay near the given ones
    L_e = mean_i H(p_i)                            the model is certain
    u_i <- u_i - lambda dL/du_i                    once per epoch
    u_i <- K (softmax(u_i) + p_i) / 2              at the end of a round, p_i of the trained model

w_i is 1 for FedELC; MaskedOptim's mask is 0 for the samples of a batch with the largest losses.

The published lambda belongs to the mean over a batch of 64. Here the gradient is that of a mean
over 64 samples whatever the batch size, so that a small last batch moves its labels no faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedgsca.methods.site import Site
from fedgsca.methods.train import batches, evaluate, optimiser, precision
from fedgsca.support.lazy_torch import F, Tensor, torch

# the batch size of the published code, to which lambda belongs
PUBLISHED_BATCH = 64
# (logits (b, C), labels (b,)) -> weights w (b,) of the given labels
LabelMask = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class CorrectionSettings:
    """The constants of the loss and of the labels' steps."""

    # K, lambda, alpha, beta of the module docstring
    scale: float
    rate: float
    given_weight: float
    entropy_weight: float


def initial_logits(labels: np.ndarray, num_classes: int, scale: float) -> np.ndarray:
    """u (n, C): `scale` at the given label, 0 elsewhere."""
    logits = np.zeros((len(labels), num_classes), np.float32)
    logits[np.arange(len(labels)), labels] = scale
    return logits


def correction_loss(
    logits: Tensor, label_logits: Tensor, y: Tensor, settings: CorrectionSettings, mask: Tensor
) -> Tensor:
    """L of a batch: logits (b, C) of the model, label_logits u (b, C), y (b,), mask w (b,)."""
    num_classes = logits.shape[1]
    log_p = F.log_softmax(logits.float(), dim=1)
    log_d = F.log_softmax(label_logits, dim=1)
    p = log_p.exp()
    entropy = -(p * log_p).sum(dim=1).mean()
    agreement = -(p * log_d).sum(dim=1).mean() - entropy
    given = (-log_d.gather(1, y[:, None]).squeeze(1) * mask).mean()
    return (
        agreement / num_classes
        + settings.given_weight * given
        + settings.entropy_weight * entropy / num_classes
    )


def merged_logits(label_logits: np.ndarray, probs: np.ndarray, scale: float) -> np.ndarray:
    """u (n, C) for the next round: `scale` times the mean of the labels and the predictions."""
    logits = label_logits - label_logits.max(axis=1, keepdims=True)
    labels = np.exp(logits)
    labels /= labels.sum(axis=1, keepdims=True)
    return np.asarray(0.5 * scale * (labels + probs), dtype=np.float32)


def train_with_labels(
    site: Site,
    round: int,
    label_logits: np.ndarray,
    settings: CorrectionSettings,
    mask: LabelMask,
) -> np.ndarray:
    """E epochs on the model and the labels; u (n, C) for the next round, from u (n, C) of this one.

    The model of the site is trained in place.
    """
    site.model.train()
    sgd = optimiser(site, round)
    u = torch.from_numpy(np.array(label_logits)).to(site.device)
    for epoch in range(site.hyper.epochs):
        gradient = torch.zeros_like(u)
        for batch in batches(site, round, epoch=epoch):
            rows = torch.from_numpy(batch.rows).to(site.device)
            batch_u = u[rows].requires_grad_()
            sgd.zero_grad()
            with precision(site.device):
                logits = site.model(batch.x)
            weights = mask(logits.detach().float(), batch.y)
            loss = correction_loss(logits, batch_u, batch.y, settings, weights)
            torch.autograd.backward(loss)
            sgd.step()
            assert batch_u.grad is not None
            gradient[rows] = batch_u.grad * (len(rows) / PUBLISHED_BATCH)
        u = u - settings.rate * gradient
    probs = evaluate(site.model, site.samples, site.device).probs
    return merged_logits(u.cpu().numpy(), probs, settings.scale)
