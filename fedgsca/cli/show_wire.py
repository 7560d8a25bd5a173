"""`fedgsca wire METHOD`: everything that leaves a hospital in a round, and everything that arrives, with bytes.

The numbers are measured, not promised: one real exchange of the method on a handful of images, through the same check that
refuses undeclared arrays in every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgsca.cli.methods import find
from fedgsca.cli.options import (
    ConfigFile,
    Data,
    Frozen,
    Json,
    Model,
    Preset,
    Sets,
    Sites,
    make_config,
)
from fedgsca.support.console import make_table, print_json, print_line, print_table
from fedgsca.support.text import size_text

if TYPE_CHECKING:
    from fedgsca.config import Config
    from fedgsca.wire import Arrays, Extra

Name = Annotated[str, typer.Argument(metavar="METHOD", help="see `fedgsca methods`")]
_PER_SITE = 16  # images: enough for a batch; no size on the wire depends on it
_OWN_TEST = "if the coordinator has no test images (federation.test)"


def add(app: typer.Typer) -> None:
    app.command(
        "wire",
        help="Show what a method sends out of a hospital, and what it receives.",
        rich_help_panel="Understand",
    )(wire)


def wire(
    method: Name,
    data: Data = None,
    model: Model = None,
    frozen: Frozen = False,
    sites: Sites = None,
    config: ConfigFile = None,
    sets: Sets = None,
    preset: Preset = None,
    json: Json = False,
) -> None:
    name = find(method).name
    made = make_config(
        config, sets, data=data, method=name, model=model, frozen=frozen, sites=sites, preset=preset
    )
    found = measure(made)
    if json:
        print_json(found)
        return
    _show(found, made)


def _show(found: Mapping[str, Any], config: Config) -> None:
    from fedgsca.methods.base import load_methods
    from fedgsca.wire import SMALLEST_GROUP, unprotected

    up, down, sites = found["leaves"], found["arrives"], found["sites"]
    model = f"{found['model']}{' (head only)' if config.model.frozen else ''}"
    print_line(
        f"{found['method']}, {model}, {found['data']}: {found['classes']} classes, {sites} sites",
        "bold",
    )
    print_line("\nLeaves a site every round", "bold")
    who = [
        ["site", "text", "", "as it is", "the site's name"],
        ["num_samples", "1 number", "", "as it is", "how many training images it holds"],
    ]
    print_table(_table(up, who, "under privacy"))
    bare = unprotected(load_methods()[config.method].uploads)
    if bare:
        print_line(f"{config.method} cannot run under privacy: it needs {', '.join(bare)} as they are.")
    elif config.privacy is None:
        print_line("Privacy is off: all of it is sent as it is (docs/privacy.md).")
    else:
        clip, noise = config.privacy.clip, config.privacy.noise
        much = f"noise of std {noise * clip:g} on each number" if noise else "no noise"
        print_line(f"Privacy is on: the change of all weights has norm {clip:g} at most, and {much}.")
    print_line("\nArrives at a site every round", "bold")
    print_table(_table(down, [["round", "1 number", "", "which round it is"]]))
    out, back = up["message_bytes"], down["message_bytes"]
    print_line(f"one site: {size_text(out)} out, {size_text(back)} in, each round, with names and header")
    print_line(
        f"all {sites} sites: {size_text(sites * out)} out, {size_text(sites * back)} in, each round"
    )
    print_line("\nLeaves a site in a deployment, too", "bold")
    print_table(make_table(["what", "size", "meaning"], [_deployed(row) for row in found["deployment"]], text_columns=3))
    print_line(
        "Nothing else crosses: an array that is not declared is refused. Images, labels and file names stay.",
        "dim",
    )
    print_line(
        f"A method tells a number per class only if it rests on at least {SMALLEST_GROUP} images.",
        "dim",
    )


def measure(config: Config) -> dict[str, Any]:
    """One exchange with one site, on a few images of the data; shapes and bytes of both messages."""
    import tempfile
    from pathlib import Path

    from fedgsca.engine.local import SiteRunner
    from fedgsca.engine.site_evaluation import DECLARED
    from fedgsca.experiment.simulation import prepare
    from fedgsca.methods.base import make_method
    from fedgsca.site import weights_of
    from fedgsca.wire import check_extras, check_update, encode_payload, encode_update

    method = make_method(config.method, config.options, config.train.rounds)
    experiment = prepare(_few(config))
    with tempfile.TemporaryDirectory() as folder:
        runner = SiteRunner(experiment, method, Path(folder))
        payload = method.broadcast(method.start(weights_of(runner.model), config.seed), 0)
        check_extras("payload", payload.extras, method.downloads, experiment.dims)
        update = runner.update(payload, runner.site(min(experiment.sites)))
        check_update(update, payload.weights, method.uploads, experiment.dims)
    return {
        "method": method.name,
        "model": config.model.name,
        "data": experiment.table.name,
        "classes": experiment.table.num_classes,
        "sites": len(experiment.sites),
        "leaves": _message(
            update.weights,
            update.extras,
            method.uploads,
            experiment.dims,
            len(encode_update(update)),
        ),
        "arrives": _message(
            payload.weights,
            payload.extras,
            method.downloads,
            experiment.dims,
            len(encode_payload(payload)),
        ),
        "deployment": [
            {"name": "seconds", "shape": [], "what": "how long the site worked"},
            {
                "name": "error",
                "shape": None,
                "what": "if something fails: one sentence about the kind of failure",
            },
            *(
                {
                    "name": name,
                    "shape": list(extra.resolve(experiment.dims)),
                    "what": f"{_OWN_TEST}: {extra.what}",
                }
                for name, extra in DECLARED.items()
            ),
        ],
    }


def _few(config: Config) -> Config:
    """The same experiment on fewer images where the source can be thinned out; noise and partition change no shape."""
    from fedgsca.config import build, merge
    from fedgsca.experiment.simulation import read_source

    data = config.data
    tree = merge(config.to_tree(), {"noise": {"spec": "0"}, "train": {"epochs": 1}})
    if data.partition == "column" or data.labels:
        return build(tree)
    tree = merge(tree, {"data": {"partition": "stratified"}})
    least = data.sites * _PER_SITE
    if data.source == "synthetic":
        return build(merge(tree, {"data": {"train": least, "test": _PER_SITE}}))
    table = read_source(config, data.source)
    train, test = len(table.rows("train")), len(table.rows("test"))
    return build(
        merge(
            tree,
            {
                "data": {
                    "train": min(train, max(least, 2 * table.num_classes)),
                    "test": min(test, _PER_SITE),
                }
            },
        )
    )


def _message(
    weights: Arrays,
    extras: Arrays,
    declared: Mapping[str, Extra],
    dims: Mapping[str, int],
    encoded: int,
) -> dict[str, Any]:
    import numpy as np

    from fedgsca.privacy.mechanism import fate
    from fedgsca.wire import num_bytes

    rows = []
    for name, extra in declared.items():
        sent = np.asarray(extras[name]) if name in extras else None
        measured = (
            {"type": str(sent.dtype), "bytes": int(sent.nbytes)}
            if sent is not None
            else {"type": None, "bytes": None}
        )
        shape = {"shape": list(extra.resolve(dims)), "symbols": [str(part) for part in extra.shape]}
        known = {
            "name": name,
            "what": extra.what,
            **shape,
            "optional": extra.optional,
            "privacy": fate(extra),
        }
        rows.append({**known, "sent": sent is not None, **measured})
    return {
        "weights": _groups(weights),
        "weights_bytes": num_bytes(weights),
        "extras": rows,
        "extras_bytes": num_bytes(extras),
        "message_bytes": encoded,  # with names, shapes and the header
    }


def _groups(weights: Arrays) -> list[dict[str, Any]]:
    """Tensors summed by the part of the network they belong to: backbone.layer1, head."""
    groups: dict[str, dict[str, Any]] = {}
    for name, value in weights.items():
        parts = name.split(".")
        key = ".".join(parts[:2]) if parts[0] == "backbone" and len(parts) > 2 else parts[0]
        group = groups.setdefault(key, {"name": key, "tensors": 0, "numbers": 0, "bytes": 0})
        group["tensors"] += 1
        group["numbers"] += int(value.size)
        group["bytes"] += int(value.nbytes)
    return list(groups.values())


def _size(shape: list[int]) -> str:
    text = " x ".join(map(str, shape)) or "1"
    return f"{text} number{'s' * (text != '1')}"


def _deployed(row: Mapping[str, Any]) -> list[str]:
    return [row["name"], "text" if row["shape"] is None else _size(row["shape"]), row["what"]]


def _table(message: Mapping[str, Any], header: list[list[str]], fate: str | None = None) -> Any:
    """`fate`: heading of a column that tells what `privacy` does to each row; None for what arrives, which it leaves alone."""
    rows = list(header)

    def add(what: str, size: str, much: str, protected: str, meaning: str) -> None:
        rows.append([what, size, much, *([protected] if fate else []), meaning])

    for extra in message["extras"]:
        size = size_text(extra["bytes"]) if extra["sent"] else "not in this round"
        add(extra["name"], _size(extra["shape"]), size, extra["privacy"], extra["what"])
    for group in message["weights"]:
        tensors = f"{group['tensors']} tensor{'s' * (group['tensors'] != 1)}"
        add(
            f"weights {group['name']}",
            f"{group['numbers']:,} numbers",
            size_text(group["bytes"]),
            "clipped, noised",
            tensors,
        )
    numbers = sum(group["numbers"] for group in message["weights"])
    add(
        "all weights",
        f"{numbers:,} numbers",
        size_text(message["weights_bytes"]),
        "as one vector",
        "the model",
    )
    return make_table(["what", "size", "bytes", *([fate] if fate else []), "meaning"], rows, text_columns=5)
