"""The model comes home: after the last round each hospital receives it, with what is known of it.

    coordinator   pack_model     run folder -> Payload
    hospital      store_model    Payload -> STATE/EXPERIMENT/model

`fedgsca predict` and `fedgsca export` accept the folder at the hospital; SHA256SUMS has its
checksums, `export` the model card. It has nothing about single hospitals: no sizes, scores or
refusals of one, only names and what belongs to all of them together.
"""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedgsca.config import Config, to_toml
from fedgsca.errors import FedgscaError, UpdateError
from fedgsca.federation.records import RoundRecord
from fedgsca.federation.run_folder import dumps, read_result, read_rounds, read_setup
from fedgsca.support.files import PRIVATE, sha256_file, write_atomic
from fedgsca.wire import Payload, read_metadata, save_tensors

log = logging.getLogger(__name__)
FOLDER = "model"
MODEL_FILE = "model.safetensors"
_DELIVERY_FILE = "delivered.json"
_FILES = ("setup.json", "result.json", "metrics.jsonl")
_METADATA, _CHECKSUM = "metadata", "sha256"


# ---- at the coordinator ----


def pack_model(run: Path) -> Payload:
    """The model of a finished run, its results, and its checksum."""
    from safetensors.numpy import load

    result = read_result(run)
    assert result is not None, "only a finished run is delivered"
    statistics = result.statistics
    if statistics is not None:
        statistics = replace(statistics, per_site={})
    shared_result = replace(result, statistics=statistics, realised_noise={}, machine="")
    rounds = [_without_sites(record) for record in read_rounds(run)]
    files = {
        "setup.json": dumps(read_setup(run).to_json()),
        "result.json": dumps(shared_result.to_json()),
        "metrics.jsonl": b"".join(json.dumps(line.to_json()).encode() + b"\n" for line in rounds),
    }
    content = (run / MODEL_FILE).read_bytes()
    files[_METADATA] = json.dumps(read_metadata(content)).encode()
    files[_CHECKSUM] = sha256_file(run / MODEL_FILE).encode()
    extras = {name: np.frombuffer(data, np.uint8) for name, data in files.items()}
    return Payload(result.rounds, dict(load(content)), extras)


def _without_sites(record: RoundRecord) -> RoundRecord:
    return replace(
        record,
        sites={},
        refusals={},
        distant_sites=None,
        asked_sites=None,
        test_counts=None,
        site_confusions=None,
    )


def read_delivered(run: Path) -> dict[str, str]:
    """site -> sha256 of the model that it has confirmed."""
    with contextlib.suppress(OSError, ValueError):
        return {str(site): str(digest) for site, digest in _read_tree(run / _DELIVERY_FILE).items()}
    return {}


def record_delivery(run: Path, site: str) -> None:
    """A site has confirmed that it has the model."""
    tree = {**read_delivered(run), site: sha256_file(run / MODEL_FILE)}
    write_atomic(run / _DELIVERY_FILE, dumps(tree))


def _read_tree(path: Path) -> dict[str, object]:
    return dict(json.loads(path.read_bytes()))


# ---- at a hospital ----


def store_model(payload: Payload, config: Config, state: Path) -> Path:
    """Write the model into the state folder of this experiment; returns its folder.

    `config` names the hospital's own copy of the frozen backbone's weights.
    """
    folder = state / FOLDER
    files = {name: array.tobytes() for name, array in payload.extras.items()}
    metadata = {str(key): value for key, value in dict(json.loads(files[_METADATA])).items()}
    write_atomic(folder / MODEL_FILE, save_tensors(payload.weights, metadata), mode=PRIVATE)
    digest = sha256_file(folder / MODEL_FILE)
    if digest != files[_CHECKSUM].decode(errors="replace"):
        (folder / MODEL_FILE).unlink()
        raise UpdateError(
            "site.damaged-model",
            "the model that arrived does not have the coordinator's checksum",
            fix="ask the coordinator to start run.sh again, which sends it once more",
        )
    write_atomic(folder / "config.toml", to_toml(config).encode(), mode=PRIVATE)
    for name in _FILES:
        write_atomic(folder / name, files[name], mode=PRIVATE)
    names = sorted((MODEL_FILE, "config.toml", *_FILES))
    sums = "".join(f"{sha256_file(folder / name)}  {name}\n" for name in names)
    write_atomic(folder / "SHA256SUMS", sums.encode(), mode=PRIVATE)
    log.info("the model has arrived: %s (fedgsca predict, fedgsca export)", folder)
    _write_card(folder)
    return folder


def _write_card(folder: Path) -> None:
    """Export the model with its card. The model itself is there already: a problem is logged."""
    from fedgsca.lab.export.write_export import export

    if (folder / "export").exists():
        return
    try:
        export(folder, "safetensors", folder / "export")
    except FedgscaError as error:
        log.warning("its card was not written: %s. Fix: %s", error.message, error.fix)
