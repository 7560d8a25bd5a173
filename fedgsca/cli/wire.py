"""`fedgsca wire METHOD`: everything that leaves a hospital in a round, and everything it receives.

With the number of bytes, measured by measure_wire.py. `fedgsca privacy METHOD`: how much noise for
which guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from fedgsca.cli.config import find_method
from fedgsca.cli.options import Json, Settings, experiment_options
from fedgsca.errors import ConfigError
from fedgsca.support.console import make_table, print_json, print_line, print_start, print_table
from fedgsca.support.text import plural, size_text

if TYPE_CHECKING:
    from rich.table import Table

    from fedgsca.cli.measure_wire import ExtraSize, MessageSize, WireMeasurement
    from fedgsca.config import Config


Name = Annotated[str, typer.Argument(metavar="METHOD", help="see `fedgsca methods`")]


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    text = "Show what a method sends out of a hospital, and what it receives."
    app.command("wire", help=text)(wire)
    text = "Compute the epsilon of a noise level, or the noise level for an epsilon."
    app.command("privacy", help=text)(privacy)


@experiment_options("data", "model", "frozen", "sites", "preset")
def wire(settings: Settings, method: Name, as_json: Json = False) -> None:
    """`fedgsca wire`."""
    from fedgsca.cli.chosen_settings import complete_config
    from fedgsca.cli.measure_wire import measure_wire

    name = find_method(method).name
    print_start(f"{name}: two rounds with a few images", quiet=as_json)
    config = complete_config(settings.load(method=name), quiet=True)
    measurement = measure_wire(config)
    if as_json:
        print_json(measurement.to_json())
    else:
        _show_measurement(measurement, config)


def _show_measurement(measurement: WireMeasurement, config: Config) -> None:
    from fedgsca.wire import SMALLEST_GROUP

    suffix = " (head only)" if config.model.frozen else ""
    num_sites = measurement.num_sites
    print_line(
        f"{measurement.method}, {measurement.model}{suffix}, {measurement.data}:"
        f" {measurement.num_classes} classes, {num_sites} sites",
        "bold",
    )
    print_line("\nLeaves a site every round", "bold")
    print_table(_upload_table(measurement.upload))
    print_line(_privacy_text(config))
    print_line("\nReaches a site every round", "bold")
    print_table(_download_table(measurement.download))
    up = measurement.upload.message_bytes
    down = measurement.download.message_bytes
    print_line(
        f"one site: {size_text(up)} out, {size_text(down)} in, each round, with names and header"
    )
    up *= num_sites
    down *= num_sites
    print_line(f"all {num_sites} sites: {size_text(up)} out, {size_text(down)} in, each round")
    print_line("\nAlso leaves a site in a deployment", "bold")
    print_table(_deployment_table(measurement))
    print_line(
        "Nothing else is sent: an array that is not declared is refused. Images, labels and file"
        " names stay.",
        "dim",
    )
    print_line(
        f"A statistic per class is sent only if at least {SMALLEST_GROUP} images of the site stand"
        " behind it. Exceptions: all weights, which also learn from a class with one image;"
        " the Gaussians that FedGSCA and FedDiv fit, which belong to no class and may rest on two"
        " images; totals over all classes, which may be as small as one; and a cell of the"
        " confusion matrix, if the sites test the model themselves.",
        "dim",
    )


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


def _upload_table(message: MessageSize) -> Table:
    """With a column for what `privacy` does to each row."""
    rows = [
        ["site", "text", "", "unchanged", "the site's name"],
        ["num_samples", "1 number", "", "unchanged", "how many training images it has"],
    ]
    for extra in message.extras:
        size = _bytes_text(extra)
        numbers = _shape_text(extra.shape)
        rows.append([extra.name, numbers, size, extra.privacy, extra.description])
    for name, numbers, size, meaning in _weight_rows(message):
        treatment = "as one vector" if name == "all weights" else "clipped, noised"
        rows.append([name, numbers, size, treatment, meaning])
    return make_table(["what", "size", "bytes", "under privacy", "meaning"], rows, text_columns=5)


def _download_table(message: MessageSize) -> Table:
    rows = [["round", "1 number", "", "the number of the round"]]
    for extra in message.extras:
        size = _bytes_text(extra)
        rows.append([extra.name, _shape_text(extra.shape), size, extra.description])
    rows += _weight_rows(message)
    return make_table(["what", "size", "bytes", "meaning"], rows, text_columns=4)


def _bytes_text(extra: ExtraSize) -> str:
    if extra.bytes is not None:
        return size_text(extra.bytes)
    return "switched off" if extra.is_switched_off else "not in this round"


def _weight_rows(message: MessageSize) -> list[list[str]]:
    """Name, size, bytes and meaning of every group of weights, and of all together."""
    rows = []
    for group in message.weights:
        size = size_text(group.bytes)
        tensors = plural(group.tensors, "tensor")
        rows.append([f"weights {group.name}", f"{group.numbers:,} numbers", size, tensors])
    numbers = sum(group.numbers for group in message.weights)
    total = size_text(message.weights_bytes)
    return [*rows, ["all weights", f"{numbers:,} numbers", total, "the model"]]


def _deployment_table(measurement: WireMeasurement) -> Table:
    rows = []
    for item in measurement.deployment:
        size = "text" if item.shape is None else _shape_text(item.shape)
        rows.append([item.name, size, item.description])
    return make_table(["what", "size", "meaning"], rows, text_columns=3)


def _shape_text(shape: Sequence[int]) -> str:
    text = " x ".join(str(length) for length in shape) or "1"
    return "1 number" if text == "1" else f"{text} numbers"


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
    """`fedgsca privacy`."""
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
