"""How a grid is run: by the paper's own protocol, or by a small one that fits a laptop.

paper   the paper's data, ResNet-50 with LVM-Med weights, 224 px, 100 rounds, 5 seeds
mini    the same rows and columns on any data: a linear head on frozen features, fewer rounds,
        3 seeds
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from types import MappingProxyType

from fedgsca.config import PRESETS, Tree, merge
from fedgsca.errors import ConfigError
from fedgsca.paper.experiments import DATASETS, REAL, SEEDS, GridColumn
from fedgsca.paper.table_result import Scale

PAPER_ROUNDS = 100
MINI_ROUNDS = 50
SEEDS_OF: Mapping[Scale, int] = MappingProxyType({"paper": SEEDS, "mini": 3})
PAPER: Tree = {
    "data": {"image_size": 224},
    "model": {"name": "resnet50"},
    "train": {
        "rounds": PAPER_ROUNDS,
        "epochs": 1,
        "batch_size": 128,
        "lr": 0.01,
        "momentum": 0.0,
        "weight_decay": 1e-6,
        "lr_steps": [0.7, 0.9],
        "lr_decay": 0.1,
        "augment": "rotate",
    },
}
# replaces the pathologists' matrix if there are not four classes: the same mean rate, between
# look-alikes
SUBSTITUTE_NOISE = "C11"


def base_tree(scale: Scale, user_tree: Tree) -> Tree:
    """Settings of all runs, which the user's settings override."""
    if scale == "paper":
        return PAPER
    rounds = int(user_tree.get("train", {}).get("rounds", MINI_ROUNDS))
    user_model = user_tree.get("model", {})
    frozen = bool(user_model.get("frozen", "name" not in user_model))
    tree: Tree = {"train": {"rounds": rounds, "threads": 1}}
    if frozen:
        tree |= {"model": {"frozen": True}, "noise": {"candidates": "features"}}
    options: Tree = {}
    for name, (_, warmup) in warmups(rounds, str(user_tree.get("preset", "default"))).items():
        options[name] = {"warmup": warmup}
    return merge(tree, options)


def warmups(rounds: int, preset: str = "default") -> dict[str, tuple[int, int]]:
    """Methods whose warm-up is a number of rounds: (default, scaled).

    The default suits the paper's 100 rounds; the scaled one is the same share of fewer rounds. A
    warm-up that the preset decides is left to the preset.
    """
    from fedgsca.methods.base import load_methods

    decisions = PRESETS.get(preset, {})
    pairs = {}
    for name, method in load_methods().items():
        info = method.Options.model_fields.get("warmup")
        is_open = "warmup" not in decisions.get(name, {})
        if info is not None and type(info.default) is int and is_open:
            scaled_rounds = ceil(info.default * min(rounds / PAPER_ROUNDS, 1))
            pairs[name] = (info.default, scaled_rounds)
    return pairs


def is_own(dataset: str, source: str) -> bool:
    """Whether a source is the paper's data set itself: kvasir:ROOT."""
    return source.startswith(f"{dataset}:")


def source_of(dataset: str, sources: Sequence[str], scale: Scale) -> str:
    """The source that a data set of the paper is read from; at mini scale any source will do."""
    for source in sources:
        if is_own(dataset, source):
            return source
    if scale == "paper":
        raise ConfigError(
            "table.missing-dataset",
            f"this experiment needs the {DATASETS[dataset].title} images",
            fix=f"add --data {dataset}:ROOT, or run the small version on any data with "
            "--scale mini --data FILE.npz",
        )
    if not sources:
        raise ConfigError(
            "table.missing-data",
            "an experiment at mini scale needs data",
            fix="add --data FILE.npz, --data FOLDER or --data synthetic",
        )
    return sources[0]


def column_tree(column: GridColumn, source: str, num_classes: int | None) -> Tree:
    """The settings that a column decides: data, number of sites, noise.

    `num_classes` matters only for real noise on other data.
    """
    if column.noise != REAL:
        noise = {"spec": column.noise}
    elif is_own(column.dataset, source):
        noise = {"spec": "0"}  # the labels are as people gave them
    elif num_classes == 4:
        noise = {"spec": "M", "matrix": "chaoyang"}
    else:
        noise = {"spec": SUBSTITUTE_NOISE}
    return {
        "data": {"source": source, "sites": DATASETS[column.dataset].sites},
        "noise": noise,
        "federation": {"eval_every": 1},
    }
