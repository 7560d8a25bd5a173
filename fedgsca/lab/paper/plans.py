"""An experiment of the paper as a comparison: its own scale, or a small one that fits a laptop.

paper   the paper's data, ResNet-50 with LVM-Med weights, 224 px, 100 rounds, 5 seeds
mini    the same rows and noises on any data: a linear head on frozen features, fewer rounds,
        3 seeds
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from fedgsca.config import PRESETS, Tree, flatten, merge
from fedgsca.errors import ConfigError
from fedgsca.lab.paper.experiments import DATASETS, REAL, PaperExperiment
from fedgsca.lab.plan import PAPER_METHOD, ComparisonPlan
from fedgsca.lab.records import PrintedNumbers
from fedgsca.methods.base import load_methods

Scale = Literal["paper", "mini"]
PAPER_ROUNDS = 100
MINI_ROUNDS = 50
SEEDS_OF: Mapping[str, int] = MappingProxyType({"paper": 5, "mini": 3})
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
# settings that an experiment decides
_FIXED_KEYS = ("method", "seed", "data.source", "data.sites", "noise.spec", "noise.matrix")


@cache
def read_numbers() -> dict[str, Any]:
    """numbers.json: the publication, and its experiments."""
    text = Path(__file__).with_name("numbers.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def printed_numbers(name: str) -> PrintedNumbers | None:
    """The paper's numbers of one experiment; None where it prints a figure without numbers."""
    experiment = read_numbers()["experiments"].get(name)
    if experiment is None:
        return None
    source = f"{experiment['where']}: {experiment['caption']}"
    return PrintedNumbers.from_json({"source": source, "rows": experiment["rows"]})


def make_plan(
    experiment: PaperExperiment,
    scale: Scale,
    source: str | None,
    *,
    rows: tuple[str, ...] = (),
    noises: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (),
    tree: Tree | None = None,
    ceiling: bool = True,
    without_weights: bool = False,
) -> ComparisonPlan:
    """The comparison of an experiment, or of some of its rows, noises and seeds."""
    tree = tree or {}
    check_settings(tree)
    dataset = DATASETS[experiment.dataset]
    source = choose_source(experiment.dataset, source, scale)
    is_own = source.startswith(f"{experiment.dataset}:")
    numbers = printed_numbers(experiment.name)
    chosen_noises = _choose("--noise", noises, experiment.noises)
    noise_tree: Tree = {}
    if REAL in chosen_noises:
        noise, noise_tree = real_noise(is_own, source, tree)
        chosen_noises = (noise,)
        numbers = None if numbers is None else _rename_noise(numbers, noise)
    run_tree = merge(merge(base_tree(scale, tree), dataset.tree), tree)
    run_tree = merge(run_tree, {"data": {"source": source, "sites": dataset.sites}, **noise_tree})
    available = (*experiment.rows, *(() if experiment.variants else load_methods()))
    return ComparisonPlan(
        methods=_choose("--methods", rows or experiment.rows, available),
        noises=chosen_noises,
        seeds=seeds or tuple(range(SEEDS_OF[scale])),
        tree=run_tree,
        ceiling=ceiling,
        title=f"{dataset.title}, {experiment.title}",
        method_settings=_variant_settings(experiment),
        labels={row: label for row, (label, _) in experiment.variants.items()},
        reference=experiment.reference,
        is_timed=experiment.is_timed,
        publication=numbers,
        notes=make_notes(experiment, scale, source, run_tree, without_weights=without_weights),
    )


def _variant_settings(experiment: PaperExperiment) -> dict[str, Tree]:
    settings = {}
    for row, (_, options) in experiment.variants.items():
        settings[row] = {"method": PAPER_METHOD, PAPER_METHOD: options}
    return settings


def _choose(flag: str, names: tuple[str, ...], available: tuple[str, ...]) -> tuple[str, ...]:
    """The names, in any case; all that are available if there are none."""
    names_by_key = {name.lower(): name for name in available}
    invalid = [name for name in names if name.lower() not in names_by_key]
    if invalid:
        raise ConfigError(
            "table.unknown-part",
            f"{flag}: this experiment does not have {', '.join(map(repr, invalid))}",
            fix=f"use one or more of: {', '.join(names_by_key.values())}",
        )
    return tuple(names_by_key[name.lower()] for name in names) or tuple(names_by_key.values())


def check_settings(tree: Mapping[str, Any]) -> None:
    """Refuse settings that the experiment decides: they would change it under its name."""
    for key in flatten(dict(tree)):
        if key in _FIXED_KEYS:
            raise ConfigError(
                "table.fixed-setting",
                f"the experiment varies or fixes {key}, so it cannot be set",
                fix=f"leave {key} out, or use `fedgsca compare`",
            )


def choose_source(dataset: str, source: str | None, scale: Scale) -> str:
    """The source of the images; at mini scale any source will do."""
    if scale == "paper" and not (source or "").startswith(f"{dataset}:"):
        raise ConfigError(
            "table.missing-dataset",
            f"this experiment needs the {DATASETS[dataset].title} images",
            fix=f"add --data {dataset}:ROOT, or run the small version on any data with "
            "--scale mini --data FILE.npz",
        )
    if source is None:
        raise ConfigError(
            "table.missing-data",
            "an experiment at mini scale needs data",
            fix="add --data FILE.npz, --data FOLDER or --data synthetic",
        )
    return source


def base_tree(scale: Scale, user_tree: Tree) -> Tree:
    """Settings of all runs, which the user's settings override."""
    if scale == "paper":
        return PAPER
    rounds = int(user_tree.get("train", {}).get("rounds", MINI_ROUNDS))
    user_model = user_tree.get("model", {})
    tree: Tree = {"train": {"rounds": rounds, "threads": 1}}
    if user_model.get("frozen", "name" not in user_model):
        tree |= {"model": {"frozen": True}, "noise": {"candidates": "features"}}
    for name, (_, warmup) in warmups(rounds, str(user_tree.get("preset", "default"))).items():
        tree = merge(tree, {name: {"warmup": warmup}})
    return tree


def warmups(rounds: int, preset: str = "default") -> dict[str, tuple[int, int]]:
    """Methods whose warm-up is a number of rounds: (default, scaled).

    The default suits the paper's 100 rounds; the scaled one is the same share of fewer rounds. A
    warm-up that the preset decides is left to the preset.
    """
    decisions = PRESETS.get(preset, {})
    pairs = {}
    for name, method in load_methods().items():
        info = method.Options.model_fields.get("warmup")
        is_open = "warmup" not in decisions.get(name, {})
        if info is not None and type(info.default) is int and is_open:
            scaled_rounds = ceil(info.default * min(rounds / PAPER_ROUNDS, 1))
            pairs[name] = (info.default, scaled_rounds)
    return pairs


def real_noise(is_own: bool, source: str, tree: Tree) -> tuple[str, Tree]:
    """Noise and settings for labels as people gave them; a substitute on other data."""
    if is_own:
        return "0", {}
    from fedgsca.data.load import load

    options = {}
    for key in ("image_size", "skip_unreadable", "split", "label", "splits"):
        if key in tree.get("data", {}):
            options[key] = tree["data"][key]
    if load(source, **options).num_classes == 4:
        return "M", {"noise": {"matrix": "chaoyang"}}
    return SUBSTITUTE_NOISE, {}


def _rename_noise(numbers: PrintedNumbers, noise: str) -> PrintedNumbers:
    """The numbers of the real labels under the name of the noise that is run."""
    rows = {row: {noise: columns[REAL]} for row, columns in numbers.rows.items()}
    return PrintedNumbers(numbers.source, rows)


def make_notes(
    experiment: PaperExperiment, scale: Scale, source: str, tree: Tree, *, without_weights: bool
) -> tuple[str, ...]:
    """What a reader of the table must know: source of the printed numbers, scale, substitutes."""
    notes = []
    numbers = printed_numbers(experiment.name)
    if numbers is not None:
        notes.append(f"Printed: {numbers.source} (Ye et al., arXiv:2507.10611, five seeds).")
    if scale == "mini":
        rounds = tree["train"]["rounds"]
        notes.append(
            f"Mini scale: {source} instead of {DATASETS[experiment.dataset].title}, {rounds} "
            "rounds. Numbers are not comparable with printed ones; the order of methods may be. "
            "Warm-ups that count rounds are shortened in proportion."
        )
    if without_weights:
        notes.append("The network started from random weights, the paper's from LVM-Med.")
    if REAL in experiment.noises and not source.startswith(f"{experiment.dataset}:"):
        notes.append("Real wrong labels are replaced by injected ones of the same mean rate.")
    return (*notes, *experiment.notes)
