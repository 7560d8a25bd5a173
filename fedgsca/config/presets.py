"""Named starting points: `default` (our resolutions of the paper) and `paper` (its equations and protocol, literally)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
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
        "fedgsca": {
            "warmup": 0,
            "wait_for_health": False,
            "doubtful": "flag",
            "credal_after_warmup": False,
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


def recommended(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Values that depend on other values: a linear head on frozen features wants another step size than a network from scratch."""
    model, data = tree.get("model", {}), tree.get("data", {})
    if not isinstance(model, Mapping) or not isinstance(data, Mapping):
        return {}
    base: dict[str, Any] = {"data": _protocol(data)}
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


def _protocol(data: Mapping[str, Any]) -> dict[str, Any]:
    """Who holds what in the papers' experiments: FedGP's four clients of Kvasir-Capsule, three sites of Chaoyang."""
    kind, colon, _ = str(data.get("source", "")).partition(":")
    if not colon or "partition" in data:
        return {}
    if (
        kind == "kvasir"
        and data.get("split", "none") in ("none", "fedgp", "frame")
        and data.get("sites", 4) == 4
    ):
        return {"partition": "column"}
    return {"sites": 3} if kind == "chaoyang" else {}
