"""What stands behind a grid: the paper's own protocol, or a small one that fits a laptop.

paper   the paper's data, ResNet-50 with LVM-Med weights, 224 px, 100 rounds, 5 seeds
mini    the same rows and columns on any data: a linear head on frozen features, fewer rounds, 3 seeds
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from types import MappingProxyType
from typing import Any

from fedgsca.config import Tree, merge
from fedgsca.errors import ConfigError
from fedgsca.paper.experiments import DATASETS, REAL, SEEDS, Column
from fedgsca.paper.table_result import Scale

PAPER_ROUNDS, MINI_ROUNDS = 100, 50
SEEDS_OF: Mapping[Scale, int] = MappingProxyType({"paper": SEEDS, "mini": 3})
PAPER: Tree = {
    "data": {"image_size": 224},
    "model": {"name": "resnet50"},
    "train": {
        "rounds": PAPER_ROUNDS, "epochs": 1, "batch_size": 128, "lr": 0.01, "momentum": 0.0, "weight_decay": 1e-6,
        "lr_steps": [0.7, 0.9], "lr_decay": 0.1, "augment": "rotate",
    },
}  # fmt: skip
STAND_IN = "C11"  # instead of the pathologists' matrix where classes are not four: the same mean rate, between look-alikes


def base_tree(scale: Scale, given: Tree) -> Tree:
    """Settings of all cells, before what the user gave."""
    if scale == "paper":
        return PAPER
    rounds = int(given.get("train", {}).get("rounds", MINI_ROUNDS))
    own = given.get("model", {})
    frozen = bool(own.get("frozen", "name" not in own))
    tree: Tree = {"train": {"rounds": rounds, "threads": 1}}
    if frozen:
        tree |= {"model": {"frozen": True}, "noise": {"candidates": "features"}}
    return merge(tree, {name: {"warmup": scaled} for name, (_, scaled) in warmups(rounds).items()})


def warmups(rounds: int) -> dict[str, tuple[int, int]]:
    """Methods whose warm-up is a number of rounds: as made for the paper's 100 rounds, and the same share of fewer."""
    from fedgsca.methods.base import load_methods

    found = {}
    for name, method in load_methods().items():
        info = method.Options.model_fields.get("warmup")
        if (
            info is not None
            and isinstance(info.default, int)
            and not isinstance(info.default, bool)
        ):
            found[name] = (info.default, ceil(info.default * min(rounds / PAPER_ROUNDS, 1)))
    return found


def is_own(dataset: str, source: str) -> bool:
    """Whether a source is the paper's data set itself: kvasir:ROOT."""
    return source.startswith(f"{dataset}:")


def source_of(dataset: str, sources: Sequence[str], scale: Scale) -> str:
    """The source that stands for a data set of the paper."""
    own = [source for source in sources if is_own(dataset, source)]
    if own or (scale == "mini" and sources):
        return (own or list(sources))[0]
    if scale == "mini":
        raise ConfigError(
            "todo.scales-1",
            "mini scale needs data",
            fix="for example --data FILE.npz, --data FOLDER or --data synthetic",
        )
    raise ConfigError(
        "todo.scales-2",
        f"this experiment needs the {DATASETS[dataset].title} images",
        fix=f"--data {dataset}:ROOT, or the small version on any data: --scale mini --data FILE.npz",
    )


def column_tree(column: Column, source: str, num_classes: int | None) -> Tree:
    """What the column decides: data, number of sites, noise. `num_classes` matters only for real noise on other data."""
    dataset = DATASETS[column.dataset]
    noise: dict[str, Any] = {"spec": column.noise}
    if column.noise == REAL and is_own(column.dataset, source):
        noise = {"spec": "0"}  # the labels are what people gave
    elif column.noise == REAL:
        noise = {"spec": "M", "matrix": "chaoyang"} if num_classes == 4 else {"spec": STAND_IN}
    return {
        "data": {"source": source, "sites": dataset.sites},
        "noise": noise,
        "federation": {"eval_every": 1},
    }
