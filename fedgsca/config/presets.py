"""Named starting points.

`default` is our reading of the paper, `paper` its equations and protocol taken literally.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Tree = dict[str, Any]

PRESETS: dict[str, Tree] = {
    "default": {},
    "paper": {
        "train": {
            "rounds": 100,
            "epochs": 1,
            "batch_size": 128,
            "lr": 0.01,
            "momentum": 0.0,
            "augment": "rotate",
        },
        "evidence": {"enabled": False},
        "fedgsca": {
            "warmup": 0,
            "wait_for_health": False,
            "doubtful": "flag",
            "credal_after_warmup": False,
            "class_balance": 0.0,
            "guard": {"enabled": False},
            "selector": {
                "losses_of": "trained",
                "class_relative": False,
                "memory": 0.0,
                "var_floor": 1e-6,
                "clip": None,
                "monotone": False,
            },
        },
    },
}


def recommend(tree: Mapping[str, Any]) -> Tree:
    """Defaults that depend on other values of the configuration.

    A linear head on frozen features needs another step size than a network trained from scratch.
    """
    model = tree.get("model", {})
    data = tree.get("data", {})
    if not isinstance(model, Mapping) or not isinstance(data, Mapping):
        return {}
    base: Tree = {"data": _published_partition(data)}
    name = str(model.get("name", "cnn"))
    if model.get("frozen"):
        # one thread: a linear head has no work for a second one, which would only wait and spin
        base["train"] = {"lr": 0.05, "momentum": 0.0, "augment": "none", "threads": 1}
        base["model"] = {"name": model.get("name", "efficientnet-lite0")}
        if base["model"]["name"] == "efficientnet-lite0":
            base["model"]["weights"] = "packaged"
    elif name.startswith(("resnet", "efficientnet")):
        base["train"] = {"lr": 0.01, "batch_size": 128, "momentum": 0.0}
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
    return {"sites": 3} if kind == "chaoyang" else {}
