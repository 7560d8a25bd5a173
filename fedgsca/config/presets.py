"""Named starting points.

`default` is our reading of the paper. `paper` takes its equations and its training protocol
literally, with the network and the image size of the run; `paper-full` also sets those two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedgsca.config.schema import OWN_FEATURES
from fedgsca.models.training import default_evidence_backbone, default_weights, training_defaults

Tree = dict[str, Any]

_PAPER: Tree = {
    "method": "fedgsca",
    "train": {
        "rounds": 100,
        "epochs": 1,
        "batch_size": 128,
        "lr": 0.01,
        "momentum": 0.0,
        "weight_decay": 1e-6,
        "lr_steps": [0.7, 0.9],
        "lr_decay": 0.1,
        "class_balance": 0.0,
        "augment": "rotate",
    },
    "fedgsca": {
        "warmup": 0,
        "credal_after_warmup": False,
        "losses_of": "trained",
        "memory": 0.0,
        "class_relative": False,
        "var_floor": 1e-6,
        "checked_fit": False,
        "monotone": False,
        "doubtful": "flag",
        "unseen_class": "zero",
        "guard": False,
    },
}
# the parts of the protocol that need the paper's images and a GPU; its weights are a file of yours
_PAPER_NETWORK: Tree = {"data": {"image_size": 224}, "model": {"name": "resnet50"}}

PRESETS: dict[str, Tree] = {
    "default": {},
    "paper": _PAPER,
    "paper-full": _PAPER | _PAPER_NETWORK,
}


def recommend(tree: Mapping[str, Any]) -> Tree:
    """Defaults that depend on other values of the configuration.

    How a network is trained belongs to the network (fedgsca/models/training.py).
    """
    model = tree.get("model", {})
    data = tree.get("data", {})
    if not isinstance(model, Mapping) or not isinstance(data, Mapping):
        return {}
    base: Tree = {"data": _published_partition(data)}
    name = str(model.get("name", "cnn"))
    is_frozen = bool(model.get("frozen"))
    if name == OWN_FEATURES or ("name" not in model and data.get("features")):
        is_frozen = True
        base["model"] = {"name": OWN_FEATURES, "frozen": True}
    elif is_frozen:
        name = str(model.get("name", "efficientnet-lite0"))
        base["model"] = {"name": name}
    weights = default_weights(name, frozen=is_frozen)
    # a published protocol does not depend on what is installed here
    if weights is not None and (is_frozen or tree.get("preset", "default") == "default"):
        base["model"] = {**base.get("model", {}), "weights": weights}
    base["evidence"] = {"backbone": default_evidence_backbone()}
    base["train"] = training_defaults(name, frozen=is_frozen)
    return base


def _published_partition(data: Mapping[str, Any]) -> Tree:
    """The sites of the papers' experiments: FedGP's four of Kvasir-Capsule, three of Chaoyang."""
    kind, colon, _ = str(data.get("source", "")).partition(":")
    if not colon or "partition" in data:
        return {}
    if kind == "kvasir":
        is_fedgp_split = data.get("split", "none") in ("none", "fedgp", "frame")
        if is_fedgp_split and data.get("sites", 4) == 4:
            return {"partition": "column"}
    if kind != "chaoyang":
        return {}
    # one pathologist per site: the reader says which images are whose
    is_by_pathologist = data.get("label") == "pathologist"
    return {"sites": 3, "partition": "column"} if is_by_pathologist else {"sites": 3}
