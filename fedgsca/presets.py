"""Named starting points: `default` (our resolutions of the paper) and `paper` (its equations and protocol, literally)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {
        "train": {"rounds": 100, "epochs": 1, "batch_size": 128, "lr": 0.01, "momentum": 0.0, "augment": "rotate"},
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
    model = tree.get("model", {})
    if not isinstance(model, Mapping):
        return {}
    base: dict[str, Any] = {}
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
