"""FedBN (Li et al., ICLR 2021): FedAvg, but every site keeps its own BatchNorm layers.

    site:   theta_k <- (received weights, own BatchNorm);  E epochs of SGD on the cross-entropy
    server: theta   <- sum_k (n_k / N) theta_k

Made for hospitals whose images look different. The paper averages everything but BatchNorm and
scores each site with its own layers. Here the sites send theirs as well, so that there is a global
model to test and to export: its BatchNorm layers are the mean of the sites'. A network without
BatchNorm, such as a head on frozen features, is trained as by FedAvg.
"""

from __future__ import annotations

from fedgsca.methods.aggregate import is_buffer
from fedgsca.methods.base import Card, register
from fedgsca.methods.fedavg import FedAvg
from fedgsca.methods.label_loss import LabelLoss
from fedgsca.methods.site import Site
from fedgsca.methods.train import train
from fedgsca.wire import Payload, Update


@register
class FedBN(FedAvg):
    """See the module docstring."""

    name = "fedbn"
    card = Card(
        title="FedBN",
        paper="Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch"
        " Normalization, ICLR 2021",
        order=40,
    )

    def local_update(self, payload: Payload, site: Site) -> Update:
        """As FedAvg, from the site's own BatchNorm layers."""
        site.load({**payload.weights, **site.recall(payload.round)})
        loss = LabelLoss(site, payload.round)
        train(site, payload.round, loss)
        loss.save()
        weights = site.weights()
        layers = {name.rpartition(".")[0] for name in weights if is_buffer(name)}
        memory = {
            name: value for name, value in weights.items() if name.rpartition(".")[0] in layers
        }
        site.remember(payload.round, **memory)
        return Update(site.name, site.num_samples, weights)
