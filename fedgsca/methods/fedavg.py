"""FedAvg (McMahan et al., AISTATS 2017): sites train on given labels, the server averages.

site:   theta_k <- E epochs of SGD on the cross-entropy, from theta
server: theta   <- sum_k (n_k / N) theta_k
"""

from __future__ import annotations

from fedgsca.methods.base import Card, Lateness, Method, register
from fedgsca.methods.label_loss import LabelLoss
from fedgsca.methods.site import Site
from fedgsca.methods.train import train
from fedgsca.wire import Payload, Update


@register
class FedAvg(Method):
    """See the module docstring."""

    name = "fedavg"
    card = Card(
        title="FedAvg",
        paper="McMahan et al., Communication-Efficient Learning of Deep Networks from "
        "Decentralized Data, AISTATS 2017",
        order=1,
        in_paper=True,
    )
    takes_loss = True
    late = Lateness("the server averages models, and nothing else travels", is_tolerated=True)

    def local_update(self, payload: Payload, site: Site) -> Update:
        """E epochs of SGD on the loss of the given labels, by default cross-entropy."""
        site.load(payload.weights)
        loss = LabelLoss(site, payload.round)
        train(site, payload.round, loss)
        loss.save()
        return Update(site.name, site.num_samples, site.weights())
