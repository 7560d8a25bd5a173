"""A site's record of its own labels during a run: how the received model judged each of them.

In every round of a window the model is evaluated before it trains on the samples in that round. It
has been trained on them in earlier rounds, by this site among others; docs/audit.md explains how
the window was chosen. The sums stay in the site's own folder and never leave it.

    evidence/<site>/site.json             which samples these are (EvidenceHeader)
    evidence/<site>/round-*.safetensors   sums up to a round, versioned like the site's memory, so
                                          that a repeated round counts once
    evidence/<site>/heads/round-*.safetensors   the newest judgement of the evidence heads
                                          (fedgsca/evidence.py), in runs that have them
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgsca.errors import RunFolderError
from fedgsca.evidence import Judgement
from fedgsca.experiment.records import EvidenceHeader
from fedgsca.experiment.run_folder import read_config
from fedgsca.selector import LOSS_CAP
from fedgsca.site import TrainingRecord
from fedgsca.site_store import Store
from fedgsca.support.files import write_atomic

if TYPE_CHECKING:
    from fedgsca.config import Config
    from fedgsca.experiment.simulation import Experiment
    from fedgsca.site import Site
    from fedgsca.train import Evaluation
    from fedgsca.wire import Payload

ALL_ROUNDS = 2**31  # later than any round
HEADS_FOLDER = "heads"
NO_MODEL = "no_model"  # an array of this name among the sums: see Evidence.has_model


@dataclass(frozen=True)
class Evidence:
    """Means over the rounds of the window, per sample in row order."""

    rounds: int  # how many rounds contributed
    losses: np.ndarray  # (n,) cross-entropy with the given label, at most LOSS_CAP in each round
    probs: np.ndarray  # (n, C)
    votes: np.ndarray  # (n, C) rounds in which the class was the most probable one
    posterior: np.ndarray | None = None  # (n,) of "clean", if the method has a selector
    judgement: Judgement | None = None  # of the evidence heads, if the run has them
    has_model: bool = True  # False: there was no run, and the means are those of the heads

    def __len__(self) -> int:
        return len(self.losses)


# ---- during a run ----


def evaluate_received(
    site: Site, payload: Payload, config: Config, *, records_training: bool = False
) -> Evaluation | None:
    """Outputs of the received model on the site's samples, before any training.

    None outside the window, and for a model that has diverged. The outputs are left at the site,
    so that a method that needs them does not compute them again. With a method that
    `records_training` and heads beside it, images are not evaluated: see `read_record`.
    """
    from fedgsca.train import evaluate_site

    if payload.round not in config.audit.window(config.train.rounds):
        return None
    has_heads = config.privacy is None and bool(
        config.evidence.collection_rounds(config.train.rounds)
    )
    if records_training and has_heads and site.samples.are_images and site.num_samples:
        site.record = TrainingRecord(site.samples)
        return None
    site.load(payload.weights)
    # evidence heads need the features: one pass serves both
    evaluation = evaluate_site(site, features=has_heads and site.samples.are_images)
    if not np.isfinite(evaluation.losses).all():
        return None
    for array in (evaluation.probs, evaluation.losses):
        array.setflags(write=False)
    site.evaluation = evaluation
    return evaluation


def read_record(site: Site, payload: Payload, config: Config) -> Evaluation | None:
    """What the training pass of this round saw of every sample, at a site that has a record of it.

    None outside the window, and for a model that has diverged.
    """
    from fedgsca.train import finish_record

    if site.record is None or payload.round not in config.audit.window(config.train.rounds):
        return None
    evaluation = finish_record(site, site.record)
    return evaluation if np.isfinite(evaluation.losses).all() else None


def add_to_folder(
    evaluation: Evaluation, site: Site, round_index: int, experiment: Experiment, folder: Path
) -> None:
    """Add a round to the site's sums on disk, with the files of the site's own memory."""
    place = _open_place(site, experiment, folder)
    store = Store(place, site.store.files)
    posterior = site.notes.get("clean_probability")
    sums = add_round(store.read_before(round_index), evaluation.probs, evaluation.losses, posterior)
    store.write(round_index, sums)


def add_judgement(site: Site, round_index: int, experiment: Experiment, folder: Path) -> None:
    """Store the judgement of the evidence heads, in rounds that have a new one."""
    if not experiment.config.audit.enabled or "evidence_probs" not in site.notes:
        return
    judgement = Judgement(
        site.notes["evidence_probs"],
        site.notes["evidence_references"],
        float(site.notes["evidence_power"]),
    )
    store = Store(_open_place(site, experiment, folder), site.store.files)
    write_judgement(store, round_index, judgement)


def _open_place(site: Site, experiment: Experiment, folder: Path) -> Path:
    """The folder of a site's evidence, with its header."""
    place = folder / "evidence" / site.name
    if not (place / "site.json").exists():
        header = EvidenceHeader(
            site=site.name,
            samples=site.num_samples,
            classes=tuple(experiment.table.classes),
            fingerprint=experiment.table.fingerprint,
            config=experiment.config.to_tree(),
        )
        write_header(place, header)
    return place


def write_header(place: Path, header: EvidenceHeader) -> None:
    """Write site.json into the folder of a site's evidence, with its checksum."""
    tree = header.to_json()
    tree["digest"] = _tree_digest(tree)
    write_atomic(place / "site.json", json.dumps(tree, indent=1).encode())


def write_judgement(store: Store, round_index: int, judgement: Judgement) -> None:
    """Store a judgement of the evidence heads; `store` is that of a site's evidence."""
    arrays = {
        "probs": judgement.probs.astype(np.float32),
        "references": judgement.references,
        "power": np.array(judgement.power),
    }
    store.part(HEADS_FOLDER).write(round_index, arrays)


def add_round(
    sums: Mapping[str, np.ndarray],
    probs: np.ndarray,
    losses: np.ndarray,
    posterior: np.ndarray | None,
) -> dict[str, np.ndarray]:
    """The sums with one more round; no sums are the start. Shapes (n, C), (n,) and (n,)."""
    n, classes = probs.shape
    if not sums:
        sums = {
            "count": np.zeros((), np.int64),
            "loss_sum": np.zeros(n, np.float32),
            "prob_sum": np.zeros((n, classes), np.float32),
            "votes": np.zeros((n, classes), np.uint16),
        }
    votes = sums["votes"].copy()
    votes[np.arange(n), probs.argmax(axis=1)] += 1
    total = {
        **sums,
        "count": sums["count"] + 1,
        "loss_sum": sums["loss_sum"] + np.minimum(losses, LOSS_CAP).astype(np.float32),
        "prob_sum": sums["prob_sum"] + probs.astype(np.float32),
        "votes": votes,
    }
    if posterior is not None:
        posterior_sum = sums.get("posterior_sum", np.zeros(n, np.float32))
        posterior_count = sums.get("posterior_count", np.zeros((), np.int64))
        total["posterior_sum"] = posterior_sum + posterior.astype(np.float32)
        total["posterior_count"] = posterior_count + 1
    return {name: np.asarray(array) for name, array in total.items()}


def mean_evidence(sums: Mapping[str, np.ndarray], judgement: Judgement | None = None) -> Evidence:
    """Means from the sums of at least one round, and the heads' judgement, if there is one."""
    count = int(sums["count"])
    posterior_count = int(sums.get("posterior_count", 0))
    posterior = None
    if posterior_count:
        posterior = sums["posterior_sum"] / np.float32(posterior_count)
    return Evidence(
        rounds=count,
        losses=sums["loss_sum"].astype(np.float64) / count,
        probs=sums["prob_sum"] / np.float32(count),
        votes=sums["votes"],
        posterior=posterior,
        judgement=judgement,
        has_model=NO_MODEL not in sums,
    )


# ---- for the audit ----


def sites_with_evidence(run: Path) -> list[str]:
    """Names of the sites that have evidence in this folder, at least one."""
    sites = sorted(path.parent.name for path in (run / "evidence").glob("*/site.json"))
    if not sites:
        _check_window_reached(run)
        raise RunFolderError(
            "audit.no-evidence",
            f"{run} contains no evidence about labels: the run was made with audit.enabled=false"
            " or by an older version, or it has not reached the first round of the window",
            fix="run it again (`fedgsca run ... --out NEW`), or continue it with"
            f" `fedgsca resume {run}`",
        )
    return sites


def _check_window_reached(run: Path) -> None:
    """Raise the error of a run that stopped before its first round with evidence."""
    if not (run / "config.toml").is_file():
        return
    config = read_config(run)
    log = run / "metrics.jsonl"
    num_finished = len(log.read_bytes().splitlines()) if log.is_file() else 0
    window = config.audit.window(config.train.rounds)
    if window and num_finished <= window[0]:
        raise RunFolderError(
            "audit.no-evidence",
            f"{run} has {num_finished} of {config.train.rounds} rounds, and the evidence about its"
            f" labels begins with round {window[0] + 1}",
            fix=f"continue the run with `fedgsca resume {run}`, then audit again",
        )


def read_header(run: Path, site: str) -> EvidenceHeader:
    """Which samples the evidence of a site is about."""
    path = run / "evidence" / site / "site.json"
    try:
        tree = dict(json.loads(path.read_bytes()))
        digest = tree.pop("digest", None)  # 0.2 wrote none
        if digest not in (None, _tree_digest(tree)):
            raise ValueError("its content does not match its checksum")
        return EvidenceHeader.from_json(tree)
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise RunFolderError(
            "audit.damaged-evidence",
            f"{path} is damaged or missing: {error}",
            fix="restore the file from a backup, or make the run again",
        ) from None


def _tree_digest(tree: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def read_evidence(run: Path, site: str, *, before_round: int = ALL_ROUNDS) -> Evidence:
    """The evidence of a site so far, or only that of rounds earlier than `before_round`."""
    sums = Store(run / "evidence" / site).read_before(before_round)
    if not sums:
        raise RunFolderError(
            "audit.no-evidence",
            f"{site} in {run} has no evidence about its labels yet",
            fix=f"continue the run with `fedgsca resume {run}`, then audit again",
        )
    try:
        judgement = _read_judgement(Store(run / "evidence" / site).part(HEADS_FOLDER), before_round)
        return mean_evidence(sums, judgement)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise RunFolderError(
            "audit.damaged-evidence",
            f"the evidence of {site} in {run} is damaged: {type(error).__name__} {error}",
            fix="restore the folder from a backup, or make the run again",
        ) from None


def _read_judgement(store: Store, before_round: int) -> Judgement | None:
    """The newest judgement of the evidence heads; None in runs without heads, and early on."""
    arrays = store.read_before(before_round)
    if not arrays:
        return None
    probs = arrays["probs"].astype(np.float64)
    return Judgement(probs, arrays["references"], float(arrays["power"]))
