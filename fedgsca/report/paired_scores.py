"""Is a run better than the one before it? Both models on the same test images, pair by pair.

The interval is a paired bootstrap: test images (or groups of them, such as patients) are drawn with
replacement, and both models are scored on the same draw. The test exchanges the predictions of the
two models at random, which changes nothing if they are equally good. Wrong labels among the test
images count as right, as in every score of a run.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedgsca.config import Config
from fedgsca.experiment.records import PairedDifference
from fedgsca.metrics import confusion, scores
from fedgsca.report.run_reader import read_json, read_run
from fedgsca.rng import stream
from fedgsca.support.files import write_atomic
from fedgsca.support.text import plural, signed

FILE = "paired.json"
DRAWS = 2000


def paired_difference(
    true: np.ndarray,
    old: np.ndarray,
    new: np.ndarray,
    num_classes: int,
    *,
    groups: np.ndarray | None = None,
    name: str = "",
    draws: int = DRAWS,
) -> PairedDifference:
    """Macro F1 of two lists of predictions (n,) for the same images, and how sure it is."""
    n = len(true)
    _, group_of = np.unique(np.arange(n) if groups is None else groups, return_inverse=True)
    num_groups = int(group_of.max(initial=-1)) + 1
    rng = stream(0, "paired scores")
    changes = np.empty(draws)
    null_changes = np.empty(draws)
    for draw in range(draws):
        picks = np.bincount(rng.integers(num_groups, size=num_groups), minlength=num_groups)
        rows = np.repeat(np.arange(n), picks[group_of])
        changes[draw] = _change(true[rows], old[rows], new[rows], num_classes)
        swap = rng.integers(2, size=num_groups)[group_of] == 1
        null_old = np.where(swap, new, old)
        null_new = np.where(swap, old, new)
        null_changes[draw] = _change(true, null_old, null_new, num_classes)
    change = _change(true, old, new, num_classes)
    low, high = np.quantile(changes, [0.025, 0.975])
    num_extreme = int(np.sum(np.abs(null_changes) >= abs(change) - 1e-9))
    return PairedDifference(
        run=name,
        images=n,
        old_f1=_macro_f1(true, old, num_classes),
        new_f1=_macro_f1(true, new, num_classes),
        low=float(low),
        high=float(high),
        p=(num_extreme + 1) / (draws + 1),
    )


def _macro_f1(true: np.ndarray, predictions: np.ndarray, num_classes: int) -> float:
    return scores(confusion(true, predictions, num_classes)).f1


def _change(true: np.ndarray, old: np.ndarray, new: np.ndarray, num_classes: int) -> float:
    return _macro_f1(true, new, num_classes) - _macro_f1(true, old, num_classes)


def describe_difference(difference: PairedDifference) -> str:
    """One sentence; the change itself only where it says something."""
    interval = f"95 % interval {signed(difference.low)} to {signed(difference.high)}"
    images = plural(difference.images, "test image")
    if difference.is_clear:
        change = signed(difference.new_f1 - difference.old_f1)
        return (
            f"macro F1 {difference.old_f1:.1f} before ({difference.run}), {difference.new_f1:.1f}"
            f" now: {change} on the same {images} ({interval}, p {difference.p:.2g})"
        )
    return (
        f"no difference to {difference.run} can be shown with the same {images}"
        f" ({interval}, p {difference.p:.2g})"
    )


# ---- run folders ----


def compare_with_previous(out: Path) -> None:
    """For a run on corrected labels: write paired.json, if the audited run can still be read."""
    previous = _find_previous_folder(out)
    if previous is not None:
        write_difference(out, previous)


def write_difference(out: Path, previous: Path) -> None:
    """Write paired.json for two finished runs; nothing if their test images differ."""
    new_test = _predict_test_images(out)
    old_test = _predict_test_images(previous)
    if new_test is None or old_test is None:
        return
    ids, true, predictions, num_classes, groups = new_test
    old_ids, old_true, old_predictions, old_num_classes, _ = old_test
    is_same = num_classes == old_num_classes and np.array_equal(ids, old_ids)
    if not (is_same and np.array_equal(true, old_true)):
        return
    difference = paired_difference(
        true,
        old_predictions,
        predictions,
        num_classes,
        groups=groups,
        name=previous.resolve().name,
    )
    text = json.dumps(difference.to_json(), indent=1, sort_keys=True)
    write_atomic(out / FILE, text.encode() + b"\n")


def read_difference(out: Path) -> PairedDifference | None:
    """The content of paired.json; None if it was not written."""
    tree = read_json(out / FILE)
    return None if tree is None else PairedDifference.from_json(tree)


def _find_previous_folder(out: Path) -> Path | None:
    """The folder of the audited run: above the labels file, or beside this run."""
    run = read_run(out, with_losses=False)
    review = run.setup.labels.review if run.setup.labels else None
    previous = review.previous_run if review else None
    labels = run.settings.values.get("data.labels")
    if previous is None or not isinstance(labels, str):
        return None
    candidates = [*Path(labels).expanduser().resolve().parents, out.resolve().parent / previous.run]
    for candidate in candidates:
        if candidate.name == previous.run and (candidate / "model.safetensors").is_file():
            return candidate
    return None


_TestPredictions = tuple[np.ndarray, np.ndarray, np.ndarray, int, np.ndarray | None]


def _predict_test_images(path: Path) -> _TestPredictions | None:
    """Ids, labels and predictions of the test images, number of classes, groups."""
    from safetensors.numpy import load_file

    from fedgsca.config import SITES_SOURCE
    from fedgsca.experiment.data_source import load_table
    from fedgsca.experiment.run_folder import read_config
    from fedgsca.experiment.samples import make_sampler, split_samples
    from fedgsca.experiment.simulation import feature_width_of
    from fedgsca.methods.base import load_methods
    from fedgsca.models.build import build_model
    from fedgsca.models.device import prepare_device
    from fedgsca.site import load_weights
    from fedgsca.train import evaluate

    config: Config = read_config(path)
    weights_file = path / "model.safetensors"
    if config.data.source == SITES_SOURCE or not weights_file.is_file():
        return None
    table = load_table(config)
    test = split_samples(table, "test", make_sampler(config, table))
    if test is None:
        return None
    device = prepare_device(config.train)
    model = build_model(
        config.model,
        table.num_classes,
        width=feature_width_of(config, table),
        head=load_methods()[config.method].head,
        seed=config.seed,
        weights=None,
    ).to(device)
    load_weights(model, load_file(weights_file))
    rows = table.rows("test")
    groups = None if table.groups is None else table.groups[rows]
    predictions = evaluate(model, test, device).predictions
    return table.ids[rows], test.labels, predictions, table.num_classes, groups
