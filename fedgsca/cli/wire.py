"""`fedgsca wire METHOD`: everything that leaves a hospital in a round, and everything it receives.

The numbers are measured, not promised: two real rounds of the method on a few images, through the
same check that refuses undeclared arrays in every run. `fedgsca privacy METHOD`: how much noise for
which guarantee.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgsca.cli.config import find_method
from fedgsca.cli.options import Json, Settings, experiment_options
from fedgsca.errors import ConfigError
from fedgsca.support.console import make_table, print_json, print_line, print_start, print_table
from fedgsca.support.text import plural, size_text

if TYPE_CHECKING:
    from fedgsca.config import Config
    from fedgsca.wire import Arrays, Extra

_IMAGES_PER_SITE = 16  # enough for a batch; no size on the wire depends on it
_SITE_TESTS = "if the coordinator has no test images (federation.test)"
_CLOSING_TEXT = (
    "Nothing else is sent: an array that is not declared is refused. Images, labels and file"
    " names stay.\nA statistic per class is sent only if at least {} images of the site stand"
    " behind it. Exceptions: all weights, which also learn from a class with one image;"
    " the Gaussians that FedGSCA and FedDiv fit, which belong to no class and may rest on two"
    " images; totals over all classes, which may be as small as one; and a cell of the"
    " confusion matrix, if the sites test the model themselves."
)

Name = Annotated[str, typer.Argument(metavar="METHOD", help="see `fedgsca methods`")]


@experiment_options("data", "model", "frozen", "sites", "preset")
def wire(settings: Settings, method: Name, as_json: Json = False) -> None:
    """Show what a method sends out of a hospital, and what it receives."""
    from fedgsca.cli.chosen_settings import complete_config

    name = find_method(method).name
    print_start(f"{name}: two rounds with a few images", quiet=as_json)
    config = complete_config(settings.load(method=name), quiet=True)
    measurement = measure_wire(config)
    if as_json:
        print_json(measurement)
    else:
        _show_measurement(measurement, config)


# ---- measuring ----


def measure_wire(config: Config) -> dict[str, Any]:
    """Shapes and bytes of both messages of a round with one site, as `--json` prints them.

    Two rounds are run and the second is measured: what a site starts from itself, such as evidence
    heads, is not sent to it in the first.
    """
    from fedgsca.federation.local import SiteRunner
    from fedgsca.federation.simulation import prepare
    from fedgsca.methods.base import compose_method
    from fedgsca.methods.site import weights_of
    from fedgsca.wire import check_extras, check_update, encode_payload, encode_update

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
    upload = _message_sizes(update.weights, update.extras, method.uploads, dims)
    if not getattr(method.options, "diagnostics", True):  # never sent, not only in this round
        for row in upload["extras"]:
            row["switched_off"] = not row["sent"] and method.uploads[row["name"]].diagnostic
    download = _message_sizes(payload.weights, payload.extras, method.downloads, dims)
    return {
        "method": method.name,
        "model": config.model.name,
        "data": experiment.table.name,
        "classes": experiment.table.num_classes,
        "sites": len(experiment.sites),
        "leaves": {**upload, "message_bytes": len(encode_update(update))},
        "arrives": {**download, "message_bytes": len(encode_payload(payload))},
        "deployment": _deployment_items(dims),
    }


def _deployment_items(dims: Mapping[str, int]) -> list[dict[str, Any]]:
    """What leaves a site in a deployment only; without a shape it is text."""
    from fedgsca.federation.site_evaluation import TEST_UPLOADS

    items: list[tuple[str, Sequence[int] | None, str]] = [
        ("seconds", (), "how long the site worked"),
        ("memory_since", (), "the round in which the site's own memory begins"),
        ("error", None, "if something fails: one sentence on the kind of failure"),
    ]
    for name, extra in TEST_UPLOADS.items():
        items.append((name, extra.resolve(dims), f"{_SITE_TESTS}: {extra.description}"))
    return [{"name": name, "shape": shape, "what": text} for name, shape, text in items]


def _reduce_images(config: Config) -> Config:
    """The same experiment on fewer images, where the source allows it.

    Noise and partition do not change any shape.
    """
    from fedgsca.config import build, merge
    from fedgsca.federation.data_source import read_source

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


def _message_sizes(
    weights: Arrays, extras: Arrays, declarations: Mapping[str, Extra], dims: Mapping[str, int]
) -> dict[str, Any]:
    """One message: its tensors by part of the network, and every declared array, sent or not."""
    from fedgsca.federation.privacy import treatment
    from fedgsca.wire import num_bytes

    parts: dict[str, dict[str, Any]] = {}
    for name, tensor in weights.items():
        depth = 2 if name.startswith("backbone.") and name.count(".") > 1 else 1
        key = ".".join(name.split(".")[:depth])
        part = parts.setdefault(key, {"name": key, "tensors": 0, "numbers": 0, "bytes": 0})
        part["tensors"] += 1
        part["numbers"] += int(tensor.size)
        part["bytes"] += int(tensor.nbytes)
    rows = []
    for name, extra in declarations.items():
        array = extras.get(name)
        rows.append(
            {
                "name": name,
                "what": extra.description,
                "shape": list(extra.resolve(dims)),
                "symbols": [str(part) for part in extra.shape],
                "optional": extra.optional,
                "privacy": treatment(extra),
                "sent": array is not None,
                "switched_off": False,
                "type": None if array is None else str(array.dtype),
                "bytes": None if array is None else int(array.nbytes),
            }
        )
    return {
        "weights": list(parts.values()),
        "weights_bytes": num_bytes(weights),
        "extras": rows,
        "extras_bytes": num_bytes(extras),
    }


# ---- printing ----


def _show_measurement(measurement: Mapping[str, Any], config: Config) -> None:
    from fedgsca.wire import SMALLEST_GROUP

    upload, download = measurement["leaves"], measurement["arrives"]
    suffix = " (head only)" if config.model.frozen else ""
    num_sites = measurement["sites"]
    print_line(
        f"{measurement['method']}, {measurement['model']}{suffix}, {measurement['data']}:"
        f" {measurement['classes']} classes, {num_sites} sites",
        "bold",
    )
    head = ["what", "size", "bytes", "under privacy", "meaning"]
    rows = [
        ["site", "text", "", "unchanged", "the site's name"],
        ["num_samples", "1 number", "", "unchanged", "how many training images it has"],
        *_message_rows(upload),
    ]
    print_line("\nLeaves a site every round", "bold")
    print_table(make_table(head, rows, text_columns=5))
    print_line(_privacy_text(config))
    rows = [["round", "1 number", "", "", "the number of the round"], *_message_rows(download)]
    print_line("\nReaches a site every round", "bold")
    for row in (head, *rows):  # what privacy changes concerns uploads
        del row[3]
    print_table(make_table(head, rows, text_columns=4))
    up, down = upload["message_bytes"], download["message_bytes"]
    for text, count in (("one site", 1), (f"all {num_sites} sites", num_sites)):
        print_line(
            f"{text}: {size_text(up * count)} out, {size_text(down * count)} in, each round,"
            " with names and header"
        )
    rows = []
    for item in measurement["deployment"]:
        size = "text" if item["shape"] is None else _shape_text(item["shape"])
        rows.append([item["name"], size, item["what"]])
    print_line("\nAlso leaves a site in a deployment", "bold")
    print_table(make_table(["what", "size", "meaning"], rows, text_columns=3))
    print_line(_CLOSING_TEXT.format(SMALLEST_GROUP), "dim")


def _message_rows(message: Mapping[str, Any]) -> list[list[str]]:
    """Name, size, bytes, treatment under `privacy` and meaning of everything in a message."""
    rows = []
    for extra in message["extras"]:
        size = "switched off" if extra["switched_off"] else "not in this round"
        if extra["sent"]:
            size = size_text(extra["bytes"])
        rows.append(
            [extra["name"], _shape_text(extra["shape"]), size, extra["privacy"], extra["what"]]
        )
    total = 0
    for part in message["weights"]:
        total += part["numbers"]
        numbers, size = f"{part['numbers']:,} numbers", size_text(part["bytes"])
        tensors = plural(part["tensors"], "tensor")
        rows.append([f"weights {part['name']}", numbers, size, "clipped, noised", tensors])
    size = size_text(message["weights_bytes"])
    return [*rows, ["all weights", f"{total:,} numbers", size, "as one vector", "the model"]]


def _shape_text(shape: Sequence[int]) -> str:
    text = " x ".join(str(length) for length in shape) or "1"
    return "1 number" if text == "1" else f"{text} numbers"


def _privacy_text(config: Config) -> str:
    from fedgsca.methods.base import load_methods
    from fedgsca.wire import unprotected

    names = unprotected(load_methods()[config.method].uploads)
    if names:
        return f"{config.method} cannot run under privacy: it needs {', '.join(names)} unchanged."
    if config.privacy is None:
        return "Privacy is off: everything is sent unchanged."
    clip = config.privacy.clip
    noise = "no noise"
    if config.privacy.noise:
        noise = f"noise of std {config.privacy.noise * clip:g} on each number"
    return f"Privacy is on: the change of all weights has norm {clip:g} at most, and {noise}."


# ---- privacy ----


Rounds = Annotated[int, typer.Option("--rounds", min=1, help="rounds that a site answers")]
NoiseLevel = Annotated[
    float | None, typer.Option("--noise", help="privacy.noise: which epsilon does it give?")
]
Epsilon = Annotated[float | None, typer.Option("--epsilon", help="which noise does it need?")]
Delta = Annotated[float, typer.Option("--delta", help="privacy.delta")]


def privacy(
    method: Name,
    rounds: Rounds,
    noise: NoiseLevel = None,
    epsilon: Epsilon = None,
    delta: Delta = 1e-5,
    as_json: Json = False,
) -> None:
    """Compute the epsilon of a noise level, or the noise level for an epsilon."""
    from fedgsca.federation.privacy import epsilon as epsilon_of
    from fedgsca.federation.privacy import noise_for

    kind = find_method(method)
    _check_protectable(kind.name)
    _check_numbers(noise, epsilon, delta)
    if noise is None:
        noise = noise_for(epsilon or 0.0, kind.uploads, rounds, delta)
    spent_epsilon = epsilon_of(noise, kind.uploads, rounds, delta)
    if as_json:
        guarantee = {"method": kind.name, "rounds": rounds, "noise": noise, "delta": delta}
        print_json({**guarantee, "epsilon": spent_epsilon})
        return
    print_line(
        f"{kind.name}, {plural(rounds, 'round')}, noise {noise:g}: epsilon {spent_epsilon:.3g}"
        f" at delta {delta:g}, for a site as a whole"
    )
    print_line(
        "in a configuration: privacy.clip (any), privacy.noise, privacy.delta",
        "dim",
    )


def _check_protectable(name: str) -> None:
    """Refuse a method that sends numbers which cannot be protected."""
    from fedgsca.methods.base import load_methods
    from fedgsca.wire import unprotected

    unprotected_extras = {}
    for other_name, method in load_methods().items():
        unprotected_extras[other_name] = unprotected(method.uploads)
    if unprotected_extras[name]:
        protectable = [key for key, extras in unprotected_extras.items() if not extras]
        raise ConfigError(
            "privacy.method-cannot-be-protected",
            f"{name} cannot run under privacy: it needs {', '.join(unprotected_extras[name])}"
            " without noise",
            fix=f"use one of: {', '.join(protectable)}",
        )


def _check_numbers(noise: float | None, epsilon: float | None, delta: float) -> None:
    has_one = (noise is None) != (epsilon is None)
    if not has_one or not 0 < (noise or epsilon or 0.0) < math.inf or not 0 < delta < 1:
        raise ConfigError(
            "privacy.invalid-budget",
            "privacy needs either --noise or --epsilon, above 0, and a --delta between 0 and 1",
            fix="for example, use --epsilon 8",
        )
