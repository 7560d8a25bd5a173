"""FedLSR (Jiang et al., CIKM 2022): local self-regularisation with two views of every image.

z_1 and z_2 are the logits of two views of an image, p_v = softmax(z_v), q_v = softmax(z_v / T_d):

    site:   p_s  = sharpen(lam p_1 + (1 - lam) p_2),  lam ~ Beta(1, 1), sharpen(p) = p^2 / sum p^2
            loss = CE(p_s, y) + gamma_t JS(q_1, q_2) + gamma_e H(q_1, q_2)
            JS: Jensen-Shannon divergence;  H: mean entropy of both views
            gamma_t rises linearly to gamma over the first fifth of the rounds
    server: theta <- sum_k n_k/N theta_k

The mixed and sharpened prediction keeps the model from memorising single labels; nothing is
selected, nothing is remembered, and nothing but the model travels.

Where publication, published code and this file differ. We have read the published notebook and the
abstract; the paper's own equations could not be verified.
  loss_kind   the code gives p_s to a function that expects logits, so that the loss is the
              cross-entropy of softmax(p_s), which is bounded and learns slowly. Default `ce`, the
              cross-entropy of p_s; `double_softmax` is the code.
  entropy     the code takes softmax of q_1 once more and uses the first view twice; here the
              entropy of both q. Weight 0.6 in the notebook, 0.3 in the authors' later benchmark;
              default 0.3.
  JS          the code averages over samples and classes; here too.
  views       the code compares the plain image with an augmented one. Here the first view is the
              training image as every method has it and the second one another draw of the same
              augmentation (`dihedral` where the experiment has none). Frozen features cannot be
              augmented: there the second view is the vector with dropout (`feature_dropout`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedgsca.methods.base import (
    Card,
    Lateness,
    Method,
    NonNegative,
    Positive,
    PublishedOptions,
    Share,
    ShareBelowOne,
    register,
    rounds_of,
)
from fedgsca.methods.site import Site
from fedgsca.methods.train import Batch, Objective, to_tensor, train
from fedgsca.support.lazy_torch import F, Tensor, nn, torch
from fedgsca.wire import Payload, Update

# probabilities below it are raised to it before logarithms, as in the code
_SMALLEST = 1e-6


class FedLSROptions(PublishedOptions):
    """Options of FedLSR; "official" is the published notebook."""

    OFFICIAL: ClassVar[Mapping[str, object]] = {
        "entropy_weight": 0.6,
        "loss_kind": "double_softmax",
    }

    gamma: NonNegative = Field(
        default=0.4, description="weight of the agreement of the two views; official 0.4"
    )
    ramp: Share = Field(
        default=0.2, description="share of the rounds in which gamma rises; official 0.2"
    )
    entropy_weight: NonNegative = Field(
        default=0.3, description="gamma_e; official 0.6, the authors' benchmark 0.3"
    )
    temperature: Positive = Field(
        default=1.0 / 3.0, description="T_d of the self-distillation; official 1/3"
    )
    loss_kind: Literal["ce", "double_softmax"] = Field(
        default="ce",
        description="cross-entropy of the sharpened prediction, or of its softmax (official)",
    )
    feature_dropout: ShareBelowOne = Field(
        default=0.2, description="second view of frozen features: share that is dropped"
    )


def sharpen(p: Tensor) -> Tensor:
    """(n, C): p^2 / sum p^2."""
    squares = p.square()
    return squares / squares.sum(dim=1, keepdim=True)


def js_divergence(q_1: Tensor, q_2: Tensor) -> Tensor:
    """Jensen-Shannon divergence of two distributions (n, C), averaged over samples and classes."""
    log_mean = (0.5 * (q_1 + q_2)).log()
    parts = q_1 * (q_1.log() - log_mean) + q_2 * (q_2.log() - log_mean)
    return 0.5 * parts.mean()


def mean_entropy(q: Tensor) -> Tensor:
    """Mean entropy of distributions (n, C), in nats."""
    return -(q * q.log()).sum(dim=1).mean()


def label_loss(p: Tensor, y: Tensor, kind: Literal["ce", "double_softmax"]) -> Tensor:
    """Cross-entropy of probabilities (n, C), or of their softmax."""
    if kind == "double_softmax":
        return F.cross_entropy(p, y)
    return F.nll_loss(p.clamp(min=_SMALLEST).log(), y)


@register
class FedLSR(Method):
    """See the module docstring."""

    name = "fedlsr"
    card = Card(
        title="FedLSR",
        paper="Jiang et al., Towards Federated Learning against Noisy Labels via Local "
        "Self-Regularization, CIKM 2022",
        order=13,
        passes=6.0,
    )
    late = Lateness("the server averages models, and nothing else travels", is_tolerated=True)
    Options = FedLSROptions
    options: FedLSROptions

    def local_update(self, payload: Payload, site: Site) -> Update:
        """E epochs of SGD on two views of every image."""
        site.load(payload.weights)
        train(site, payload.round, self._objective(site, payload.round))
        return Update(site.name, site.num_samples, site.weights())

    def agreement_weight(self, round: int) -> float:
        """gamma_t of a zero-based round."""
        if not self.options.ramp:
            return self.options.gamma
        end = rounds_of(self.options.ramp, self.rounds)
        return self.options.gamma * min(1.0, round / end)

    def _objective(self, site: Site, round: int) -> Objective:
        options = self.options
        rng = site.rng(round, "lsr")
        gamma = self.agreement_weight(round)

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            z_1 = model(batch.x).float()
            z_2 = model(self._second_view(site, batch, rng)).float()
            lam = float(rng.beta(1.0, 1.0))
            p = lam * torch.softmax(z_1, dim=1) + (1.0 - lam) * torch.softmax(z_2, dim=1)
            q_1 = torch.softmax(z_1 / options.temperature, dim=1).clamp(_SMALLEST, 1.0)
            q_2 = torch.softmax(z_2 / options.temperature, dim=1).clamp(_SMALLEST, 1.0)
            entropy = 0.5 * (mean_entropy(q_1) + mean_entropy(q_2))
            loss = label_loss(sharpen(p), batch.y, options.loss_kind)
            return loss + gamma * js_divergence(q_1, q_2) + options.entropy_weight * entropy

        return objective

    def _second_view(self, site: Site, batch: Batch, rng: np.random.Generator) -> Tensor:
        """Another augmentation of the batch's images, or its features with dropout."""
        if site.samples.are_images:
            kind = "dihedral" if site.hyper.augment == "none" else site.hyper.augment
            return to_tensor(site.samples, batch.rows, site.device, rng, kind)
        share = self.options.feature_dropout
        keep = torch.from_numpy(rng.random(tuple(batch.x.shape)) >= share).to(batch.x.device)
        return batch.x * keep / (1.0 - share)
