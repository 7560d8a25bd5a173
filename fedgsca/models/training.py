"""How each model is trained unless the user says otherwise: the same for every method.

    small CNN                  lr 0.02, momentum 0.9, batches of 32
    with packaged weights      lr 0.01, momentum 0.9, batches of 16
    any other network          lr 0.01, no momentum, batches of 128 (the protocol of the paper)
    head on frozen features    no momentum, no augmentation, and a rate by `head_rate`
    any of them with adamw     lr 0.001

`train.lr = "auto"` is resolved by `resolve_rate`, once per run; a number that a user sets is used
as it is. This module needs no torch: configurations are built before it is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedgsca.config import Config, TrainConfig

SMALL_CNNS = ("cnn", "cnn-groupnorm")
_SMALL_CNN: Mapping[str, Any] = {"momentum": 0.9, "batch_size": 32}
# eight rounds of EfficientNet-Lite0 on 160 images: F1 84 to 88, with the protocol of the paper 34
# (benchmarks/studies/fine_tuning.md)
_FINE_TUNED: Mapping[str, Any] = {"momentum": 0.9, "batch_size": 16}
_NETWORK: Mapping[str, Any] = {"momentum": 0.0, "batch_size": 128}
# one thread: a linear head has no work for a second one, which would only wait and spin
_HEAD: Mapping[str, Any] = {"momentum": 0.0, "augment": "none", "threads": 1}
_BACKBONE = "efficientnet-lite0"
SMALL_CNN_RATE = 0.02
NETWORK_RATE = 0.01
ADAMW_RATE = 0.001
# sum over a run of the steps that a label takes in the model of all sites
STEP_SUM = 10.0
# largest rate times squared norm of a feature vector: a short run cannot make up for its length
MAX_STEP = 64.0


def training_defaults(name: str, *, frozen: bool = False) -> dict[str, Any]:
    """The values of `train` for a network by its configured name; without the learning rate."""
    from fedgsca.models.weights import WEIGHT_PACKAGES

    if frozen:
        return dict(_HEAD)
    if name in WEIGHT_PACKAGES:
        return dict(_FINE_TUNED)
    return dict(_SMALL_CNN if name in SMALL_CNNS else _NETWORK)


def default_weights(name: str, *, frozen: bool) -> str | None:
    """Where the initial values of a network come from: packaged weights wherever there are some.

    A frozen network needs them, so a missing package is reported; one that is trained starts from
    random values without them.
    """
    from fedgsca.models.weights import WEIGHT_PACKAGES, has_packaged_weights

    is_packaged = name in WEIGHT_PACKAGES if frozen else has_packaged_weights(name)
    return "packaged" if is_packaged else None


def default_evidence_backbone() -> str | None:
    """The network whose frozen features judge labels while another one is trained."""
    from fedgsca.models.weights import has_packaged_weights

    return _BACKBONE if has_packaged_weights(_BACKBONE) else None


def resolve_rate(config: Config, width: int, num_sites: int) -> float:
    """`train.lr` as a number: that of the user, or that of the model.

    width is D, the length of a feature vector; num_sites is how many sites a round asks.
    """
    train = config.train
    if not isinstance(train.lr, str):
        return train.lr
    if train.optimiser == "adamw":
        return ADAMW_RATE
    if config.model.frozen:
        return head_rate(train, width, num_sites)
    return SMALL_CNN_RATE if config.model.name in SMALL_CNNS else NETWORK_RATE


def head_rate(train: TrainConfig, width: int, num_sites: int) -> float:
    """The learning rate of a linear head on frozen features of this width.

    In one pass over one of four sites a label moves its own logit, in the model of all sites, by at
    most lr D / ((1 - momentum) 4 batch): D is the squared norm of a normalised feature vector. The
    sum over all passes of the run is STEP_SUM; for more sites see `site_factor`. A larger one
    memorises wrong labels, which a head with more features than images never forgets; with a
    smaller one rare classes are not learnt in time.
    """
    from fedgsca.evidence import FEW_SITES, site_factor  # with numpy, which no help text needs

    distance = max(width, 1) / (1.0 - train.momentum)
    passes = train.rounds * train.epochs
    total = distance * passes / (train.batch_size * FEW_SITES * site_factor(num_sites))
    return min(STEP_SUM / total, MAX_STEP / distance)
