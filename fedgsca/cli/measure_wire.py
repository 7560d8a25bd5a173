"""Measures what leaves and what reaches a hospital in a round.

The numbers are measured, not promised: one real exchange of the method on a few images, through
the same check that refuses undeclared arrays in every run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedgsca.config import Config, build, merge
from fedgsca.federation.data_source import read_source
from fedgsca.federation.local import SiteRunner
from fedgsca.federation.privacy import treatment
from fedgsca.federation.simulation import prepare
from fedgsca.federation.site_evaluation import TEST_UPLOADS
from fedgsca.methods.base import compose_method
from fedgsca.methods.site import weights_of
from fedgsca.support.json_record import Record, stored_as
from fedgsca.wire import (
    Arrays,
    Extra,
    check_extras,
    check_update,
    encode_payload,
    encode_update,
    num_bytes,
)

_IMAGES_PER_SITE = 16  # enough for a batch; no size on the wire depends on it
_SITE_TESTS = "if the coordinator has no test images (federation.test)"


@dataclass(frozen=True)
class WeightGroup(Record):
    """The tensors of one part of the network, such as backbone.layer1 or head."""

    name: str
    tensors: int
    numbers: int
    bytes: int


@dataclass(frozen=True)
class ExtraSize(Record):
    """An array beside the weights: as declared, and as sent in this round."""

    name: str
    description: str = field(metadata=stored_as("what"))
    shape: tuple[int, ...]
    symbols: tuple[str, ...]
    optional: bool
    privacy: str  # what happens to it under `privacy`
    is_sent: bool = field(metadata=stored_as("sent"))
    # never sent with these options, rather than only in other rounds
    is_switched_off: bool = field(metadata=stored_as("switched_off"))
    dtype: str | None = field(metadata=stored_as("type"))
    bytes: int | None


@dataclass(frozen=True)
class MessageSize(Record):
    """One message. `message_bytes` includes names, shapes and the header."""

    weights: tuple[WeightGroup, ...]
    weights_bytes: int
    extras: tuple[ExtraSize, ...]
    extras_bytes: int
    message_bytes: int


@dataclass(frozen=True)
class DeploymentItem(Record):
    """Something that leaves a site in a deployment only; without a shape it is text."""

    name: str
    shape: tuple[int, ...] | None
    description: str = field(metadata=stored_as("what"))


@dataclass(frozen=True)
class WireMeasurement(Record):
    """What `fedgsca wire --json` prints."""

    method: str
    model: str
    data: str
    num_classes: int = field(metadata=stored_as("classes"))
    num_sites: int = field(metadata=stored_as("sites"))
    upload: MessageSize = field(metadata=stored_as("leaves"))
    download: MessageSize = field(metadata=stored_as("arrives"))
    deployment: tuple[DeploymentItem, ...]


def measure_wire(config: Config) -> WireMeasurement:
    """Exchange two rounds with one site, on a few images; shapes and bytes of both messages.

    The first round is not measured: what a site starts from itself, such as evidence heads, is not
    sent to it.
    """
    method = compose_method(config)
    experiment = prepare(_reduce_images(config))
    dims = experiment.dims
    with tempfile.TemporaryDirectory() as folder:
        runner = SiteRunner(experiment, method, Path(folder))
        state = method.start(weights_of(runner.model), config.seed)
        for round_index in range(2):
            payload = method.broadcast(state, round_index)
            check_extras("payload", payload.extras, method.downloads, dims)
            update = runner.make_update(payload, runner.site(min(experiment.sites)))
            check_update(update, payload.weights, method.uploads, dims)
            state = method.aggregate(state, [update])
    return WireMeasurement(
        method=method.name,
        model=config.model.name,
        data=experiment.table.name,
        num_classes=experiment.table.num_classes,
        num_sites=len(experiment.sites),
        upload=_measure_message(
            update.weights,
            update.extras,
            method.uploads,
            dims,
            len(encode_update(update)),
            has_diagnostics=bool(getattr(method.options, "diagnostics", True)),
        ),
        download=_measure_message(
            payload.weights, payload.extras, method.downloads, dims, len(encode_payload(payload))
        ),
        deployment=_deployment_items(dims),
    )


def _deployment_items(dims: Mapping[str, int]) -> tuple[DeploymentItem, ...]:
    items = [
        DeploymentItem("seconds", (), "how long the site worked"),
        DeploymentItem("memory_since", (), "the round in which the site's own memory begins"),
        DeploymentItem("error", None, "if something fails: one sentence on the kind of failure"),
    ]
    for name, extra in TEST_UPLOADS.items():
        description = f"{_SITE_TESTS}: {extra.description}"
        items.append(DeploymentItem(name, extra.resolve(dims), description))
    return tuple(items)


def _reduce_images(config: Config) -> Config:
    """The same experiment on fewer images, where the source allows it.

    Noise and partition do not change any shape.
    """
    data = config.data
    tree = merge(config.to_tree(), {"noise": {"spec": "0"}, "train": {"epochs": 1}})
    if data.partition == "column" or data.labels:
        return build(tree)
    num_train = data.sites * _IMAGES_PER_SITE
    num_test = _IMAGES_PER_SITE
    if data.source != "synthetic":
        table = read_source(config, data.source)
        num_train = max(num_train, 2 * table.num_classes)
        num_train = min(num_train, len(table.rows("train")))
        num_test = min(num_test, len(table.rows("test")))
    images = {"partition": "stratified", "train": num_train, "test": num_test}
    return build(merge(tree, {"data": images}))


def _measure_message(
    weights: Arrays,
    extras: Arrays,
    declarations: Mapping[str, Extra],
    dims: Mapping[str, int],
    message_bytes: int,
    *,
    has_diagnostics: bool = True,
) -> MessageSize:
    """The sizes of one message; `has_diagnostics`: the method sends numbers for the log."""
    sizes = []
    for name, extra in declarations.items():
        array = np.asarray(extras[name]) if name in extras else None
        size = ExtraSize(
            name=name,
            description=extra.description,
            shape=tuple(extra.resolve(dims)),
            symbols=tuple(str(part) for part in extra.shape),
            optional=extra.optional,
            privacy=treatment(extra),
            is_sent=array is not None,
            is_switched_off=array is None and extra.diagnostic and not has_diagnostics,
            dtype=None if array is None else str(array.dtype),
            bytes=None if array is None else int(array.nbytes),
        )
        sizes.append(size)
    return MessageSize(
        weights=_group_weights(weights),
        weights_bytes=num_bytes(weights),
        extras=tuple(sizes),
        extras_bytes=num_bytes(extras),
        message_bytes=message_bytes,
    )


def _group_weights(weights: Arrays) -> tuple[WeightGroup, ...]:
    """Tensors summed by the part of the network that they belong to."""
    groups: dict[str, list[np.ndarray]] = {}
    for name, value in weights.items():
        parts = name.split(".")
        key = parts[0]
        if key == "backbone" and len(parts) > 2:
            key = ".".join(parts[:2])
        groups.setdefault(key, []).append(value)
    sizes = []
    for key, values in groups.items():
        numbers = sum(int(value.size) for value in values)
        total = sum(int(value.nbytes) for value in values)
        sizes.append(WeightGroup(key, len(values), numbers, total))
    return tuple(sizes)
