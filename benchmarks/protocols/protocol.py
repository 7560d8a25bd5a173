"""The frozen protocols of the benchmark.

A protocol fixes everything that a method does not decide: images, division among sites, noise,
seeds, network, number of rounds, and how settings may be chosen. It has a version, and a test pins
its digest: a change of anything is a new version, and old submissions stay comparable among
themselves.

The tuning rule. Every method gets the same number of validation runs, one for each of its candidate
settings, on one seed that no test run uses. The setting with the highest F1 on the validation
images (mean of the last five rounds; the first of equals) is used for the test runs of all seeds.
By default the candidates are learning rates; a submission may replace them by as many settings of
its own. A setting may change the optimiser, the loss and the method's own options, nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedgsca.errors import ConfigError
from fedgsca.support.text import did_you_mean

# as in fedgsca.config, whose import would slow down the start of the command line
Tree = dict[str, Any]
# keys of `train` that a setting may change, beside the options of the method
TUNABLE = (
    "lr",
    "momentum",
    "weight_decay",
    "loss",
    "sce_alpha",
    "sce_beta",
    "gce_q",
    "elr_memory",
    "elr_strength",
)


@dataclass(frozen=True)
class Protocol:
    """One frozen protocol."""

    name: str
    version: int
    title: str
    # what --data has to be, in words
    data: str
    # sha256 of the file, or of labels.csv and the image files of a folder; pixels do not count,
    # because libraries decode them slightly differently
    data_digest: str
    # sha256 of the backbone's weights
    weights: str
    noise: str
    seeds: tuple[int, ...]
    # of the validation runs
    tuning_seed: int
    # default candidates; a submission may have others, but not more or fewer
    candidates: tuple[Tree, ...]
    # seed -> sha256 of the label file: who has which image, its true and its given label
    labels: Mapping[int, str]
    # everything else that the runs share
    tree: Tree

    @property
    def label(self) -> str:
        """The name with its version, which citations need."""
        return f"{self.name} v{self.version}"

    def digest(self) -> str:
        """sha256 of the entire protocol."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


_TRAINING: Tree = {
    "rounds": 40,
    "epochs": 1,
    "batch_size": 32,
    "lr": 0.03,
    "momentum": 0.0,
    "weight_decay": 1e-6,
    "lr_steps": [0.7, 0.9],
    "lr_decay": 0.1,
    "augment": "none",
    "threads": 1,
    "device": "cpu",
}
_MODEL: Tree = {
    "name": "efficientnet-lite0",
    "weights": "packaged",
    "frozen": True,
    "features": "stages",
    "feature_size": 96,
}
_RATES: tuple[Tree, ...] = (
    {"train": {"lr": 0.003}},
    {"train": {"lr": 0.01}},
    {"train": {"lr": 0.03}},
)
_TISSUE = Protocol(
    name="tissue-28",
    version=3,
    title="Tissue classification, nine balanced classes, 28 px",
    data="the file pathmnist_small.npz: 2,800 training, 400 validation and 1,200 test images",
    data_digest="2245b7b1f994773f17e820bfe31be42cc328a58153f3a44a96abaf1d8519ee04",
    weights="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    noise="S40",
    seeds=(0, 1, 2),
    tuning_seed=100,
    candidates=_RATES,
    labels={
        0: "bac6385e947b4d4e3bc76824aab375c012a0a4dedc89808208ec1a48bbea8e16",
        1: "ffd24c341c889994a7faf6872ff2c7d24e2e48922faae870e5b568bc4e9c441a",
        2: "0bfbb2e7cef1fb9d15d863db8eb371a3527546452e556b530986f6051d44f04b",
        100: "7cc744462ba3769661c6d3452f96b313dcc726265aaa97cbe4fd132b758bbf6c",
    },
    tree={
        "model": _MODEL,
        "train": _TRAINING,
        "data": {"sites": 4, "partition": "stratified"},
    },
)
_SKIN = Protocol(
    name="skin-96",
    version=3,
    title="Skin lesions, seven classes of which one has two thirds of the images, 96 px",
    data="the folder ham10000_small with labels.csv: 3,000 training and 1,200 test images",
    data_digest="c0ed31ee9c96ab7f746062318ff9434c9443dadfc1a01d437f42f4147edc0bb4",
    weights="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    noise="0-S40-P20-C20",
    seeds=(0, 1, 2),
    tuning_seed=100,
    candidates=_RATES,
    labels={
        0: "f3dc2ae800c323d452c9c7f52dc1c0335df4ee0613598a8dfe2444d84f7c25cc",
        1: "7bff98c9b339df9d278a3ea2f187eaeaf1d5e446b1a7252542497c8c35adce03",
        2: "3a9b38a6e957f88561151d2fc6df9b0f63c115175267ea61c714f11728d29689",
        100: "2ecae4aff60ca1209b721d064e4a7a9e19c79c61ef64030b70a4e22880138252",
    },
    tree={
        "model": _MODEL,
        "train": _TRAINING,
        "data": {"sites": 4, "partition": "stratified", "val": 0.15},
    },
)
PROTOCOLS = {protocol.name: protocol for protocol in (_TISSUE, _SKIN)}


def find_protocol(name: str) -> Protocol:
    """The newest version of a protocol by its name."""
    if name not in PROTOCOLS:
        hint = did_you_mean(name, PROTOCOLS)
        raise ConfigError(
            "benchmark.unknown-protocol",
            f"unknown benchmark protocol {name!r}",
            fix=f"{hint}use one of: {', '.join(PROTOCOLS)}",
        )
    return PROTOCOLS[name]
