"""FedNoRo (Wu et al., IJCAI 2023): find noisy sites by class losses, distil, weigh by distance.

    stage 1, warm-up   site:   logit-adjusted cross-entropy  LA = CE(z + log pi_k, y),
                               pi_k = class shares of the given labels
                       server: FedAvg
    switch, one round  site:   m_k (C,) = mean loss of the received model on each given class;
                               sends m_k; trains as in stage 1
                       server: two groups of sites by m_k (each class scaled to 0..1); the one with
                               larger losses is noisy
    stage 2            clean site:  LA
                       noisy site:  lam_t KL(q || softmax(z + log pi_k)) + (1 - lam_t) LA,
                                    q = softmax(z of theta / 0.8), theta as received;
                                    lam_t rises to 0.8 by exp(-5 (1 - progress)^2)
                       server: weights n_k exp(-d_k);  d_k = distance to the nearest clean model /
                               the largest of these; 0 for clean sites

Stages, verdicts and weights are in fedgsca/methods/parts/two_stages.py, which FedELC shares.

In the switch round the server already applies the distance-aware weights; only the distillation
starts one round later than in the published code, where lam_10 is 0.005.

Choices. (1) `grouping`: the published code fits a full-covariance Gaussian mixture with nine seeds
and takes the most frequent division (`mixtures`); default is 2-means from every start, without
randomness and without covariances of one or two points. The two differ in about a tenth of the
cases of tests/unit/test_mixtures.py. With `mixtures` the server broadcasts the winning mixture, 2 +
2 C^2 further numbers, and each site computes its own side of it. (2) A class absent at a site, or
with fewer than five images there (its mean would be about single images), takes the lowest loss of
that class, as published. (3) Losses are measured without augmentation. (4) log 0 of an absent class
is replaced by one sample (published: minus infinity, patched in the loss). (5) No clean or no noisy
site: FedAvg. The end of the ramp is a share of the rounds, so that short runs reach the full weight
too. `official` sets (1); all numbers are the code's already; (2) to (5) have no switch.

Memory: in stage 2 the server holds all models of a round, K times the model, because d_k needs
every clean one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field

from fedgsca.methods.base import (
    Card,
    Count,
    Lateness,
    Logged,
    Positive,
    ServerState,
    Share,
    average_models,
    register,
    rounds_of,
)
from fedgsca.methods.parts.two_stages import (
    CLASS_LOSSES,
    WARMUP,
    Distance,
    Grouping,
    TwoStageMethod,
    TwoStageOptions,
    average_by_distance,
    site_log_prior,
)
from fedgsca.methods.site import Site
from fedgsca.methods.train import Batch, Objective, train
from fedgsca.support.lazy_torch import F, Tensor, nn, torch
from fedgsca.wire import Payload, Update


class FedNoRoOptions(TwoStageOptions):
    """Options of FedNoRo; "official" is the published code."""

    OFFICIAL: ClassVar[Mapping[str, object]] = {"grouping": "mixtures"}

    warmup: Count = Field(default=10, description="T_1, rounds of stage 1; official 10")
    ramp_end: Share = Field(
        default=0.49,
        description="share of the rounds at which lam reaches its full value; official 49 of 100",
    )
    strength: Share = Field(
        default=0.8, description="full value of lam, the weight of the teacher; official 0.8"
    )
    temperature: Positive = Field(
        default=0.8, description="of the teacher; below 1 sharpens; official 0.8"
    )
    distance: Distance = Field(
        default="layers",
        description="of two models: sum of the tensors' norms (official) or one norm",
    )
    grouping: Grouping = Field(
        default="two-means",
        description="clean and noisy sites: 2-means, or a vote of Gaussian mixtures (official)",
    )


def rampup(t: float, begin: float, end: float) -> float:
    """exp(-5 (1 - clip((t - begin) / (end - begin), 0, 1))^2).

    It rises from e^-5 = 0.0067 at `begin` to 1 at `end` and stays there.
    """
    if end > begin:
        progress = float(np.clip((t - begin) / (end - begin), 0.0, 1.0))
    else:
        progress = float(t >= end)
    return float(np.exp(-5.0 * (1.0 - progress) ** 2))


@register
class FedNoRo(TwoStageMethod):
    """See the module docstring."""

    name = "fednoro"
    card = Card(
        title="FedNoRo",
        paper="Wu et al., FedNoRo: Towards Noise-Robust Federated Learning by Addressing Class "
        "Imbalance and Label Noise, IJCAI 2023",
        order=7,
        in_paper=True,
        passes=3.7,
    )
    logged: ClassVar[Logged] = Logged(
        stage="second stage", stage_ran=lambda values, _: values.get("noisy") is not None
    )
    late = Lateness(
        "the server averages models; a verdict is fixed after the switch, and a late model is"
        " brought near the current one before distances are measured",
        is_tolerated=True,
        stage="stage",
    )
    Options = FedNoRoOptions
    options: FedNoRoOptions

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """FedAvg in the warm-up; then the mean weighted by n_k exp(-d_k), and the rule."""
        if self.stage(state) == WARMUP:
            return average_models(state, updates)
        verdicts = self.judge(state, updates, self.options.grouping)
        return average_by_distance(state, verdicts, self.options.distance)

    def local_update(self, payload: Payload, site: Site) -> Update:
        """Train with LA, at a noisy site also with the teacher's predictions."""
        site.load(payload.weights)
        if site.num_samples == 0:
            return Update(site.name, 0, site.weights())
        memory = site.recall(payload.round)
        stand = self.take_stand(payload, site, memory)
        losses = stand.class_losses
        if losses is not None and losses is not memory.get(CLASS_LOSSES):
            site.remember(payload.round, **{CLASS_LOSSES: losses})
        lam = self.teacher_weight(payload.round) if stand.noisy else 0.0
        train(site, payload.round, self._objective(site, lam))
        return Update(site.name, site.num_samples, site.weights(), stand.extras)

    def teacher_weight(self, round: int) -> float:
        """lam_t."""
        end = rounds_of(self.options.ramp_end, self.rounds)
        return self.options.strength * rampup(round, self.options.warmup, end)

    def _objective(self, site: Site, lam: float) -> Objective:
        """LA, mixed with the distillation of the received model where lam > 0."""
        prior = site_log_prior(site)
        # the model as received: nothing has been trained yet
        teacher = copy.deepcopy(site.model).eval() if lam else None

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            student = F.log_softmax(model(batch.x) + prior, dim=1)
            label_loss = F.nll_loss(student, batch.y)
            if teacher is None:
                return label_loss
            with torch.no_grad():
                target = F.softmax(teacher(batch.x) / self.options.temperature, dim=1)
            teacher_loss = F.kl_div(student, target, reduction="batchmean")
            return lam * teacher_loss + (1.0 - lam) * label_loss

        return objective
