"""FedProx (Li et al., MLSys 2020): FedAvg with a term that keeps a site near the received model.

    site:   theta_k <- E epochs of SGD on  CE + (mu / 2) ||theta_k - theta||^2
    server: theta   <- sum_k (n_k / N) theta_k

The norm is taken over the trainable parameters; BatchNorm's running statistics are buffers and do
not enter. It is squared, as in the paper (one published benchmark sums unsquared norms, whose
gradient is undefined at theta_k = theta). With one local epoch the term is nearly inactive.

The authors search mu in {0.001, 0.01, 0.1, 1} for every data set and report the best: 1 for three
of five (`official`), 0.001 and 0.01 for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from fedgsca.methods.base import (
    Card,
    Lateness,
    Method,
    NonNegative,
    PublishedOptions,
    register,
)
from fedgsca.methods.label_loss import LabelLoss
from fedgsca.methods.site import Site
from fedgsca.methods.train import Batch, proximal, train
from fedgsca.support.lazy_torch import Tensor, nn
from fedgsca.wire import Payload, Update

# the authors' grid
MU_GRID = (0.001, 0.01, 0.1, 1.0)


class FedProxOptions(PublishedOptions):
    """Options of FedProx."""

    OFFICIAL: ClassVar[Mapping[str, object]] = {"mu": 1.0}

    mu: NonNegative = Field(
        default=0.01, description="strength of the proximal term; the paper's grid: 1e-3 .. 1"
    )


@register
class FedProx(Method):
    """See the module docstring."""

    name = "fedprox"
    card = Card(
        title="FedProx",
        paper="Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020",
        order=2,
        in_paper=True,
    )
    takes_loss = True
    late = Lateness("the server averages models, and nothing else travels", is_tolerated=True)
    Options = FedProxOptions
    options: FedProxOptions

    def local_update(self, payload: Payload, site: Site) -> Update:
        """E epochs of SGD on the loss of the given labels and the proximal term."""
        site.load(payload.weights)
        loss = LabelLoss(site, payload.round)
        anchor = [parameter.detach().clone() for parameter in site.model.parameters()]

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            return loss(model, batch) + proximal(model, anchor, self.options.mu)

        train(site, payload.round, objective)
        loss.save()
        return Update(site.name, site.num_samples, site.weights())
