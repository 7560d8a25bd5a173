"""What a site remembers about its own labels during a run: how the model as received saw each of them, round after round.

The model of a round is asked before it trains on the sample in that round. It has been trained on it in earlier rounds, by this site
among others; how the window of rounds was chosen is in docs/audit.md. The sums live in the site's own folder and never leave it.

    evidence/<site>/site.json              which samples these are
    evidence/<site>/round-*.safetensors    sums up to a round, versioned like the site's memory: a repeated round counts once
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgsca.errors import RunFolderError
from fedgsca.selector import LOSS_CAP
from fedgsca.site_store import Store
from fedgsca.support.files import write_atomic

if TYPE_CHECKING:
    from fedgsca.config import Config
    from fedgsca.experiment.simulation import Experiment
    from fedgsca.site import Site
    from fedgsca.train import Evaluation
    from fedgsca.wire import Payload


@dataclass(frozen=True)
class Evidence:
    """Means over the rounds of the window, per sample in row order."""

    rounds: int  # how many rounds spoke
    losses: np.ndarray  # (n,) cross-entropy with the given label, at most LOSS_CAP in each round
    probs: np.ndarray  # (n, C)
    votes: np.ndarray  # (n, C) rounds in which the class was the most probable one
    posterior: np.ndarray | None = None  # (n,) of "clean", if the method's selector said it

    def __len__(self) -> int:
        return len(self.losses)


def look(site: Site, payload: Payload, config: Config) -> Evaluation | None:
    """The received model's outputs on the site's samples, before any training; None outside the window."""
    from fedgsca.train import evaluate_site

    if payload.round not in config.audit.window(config.train.rounds):
        return None
    site.load(payload.weights)
    seen = evaluate_site(site)
    if not np.isfinite(seen.losses).all():  # a diverged model has no opinion
        return None
    for array in (seen.probs, seen.losses):
        array.setflags(write=False)
    site.seen = seen  # a method that asks the same question gets this answer
    return seen


def keep(
    seen: Evaluation | None, site: Site, round: int, experiment: Experiment, folder: Path
) -> None:
    """Add this round to the site's sums."""
    if seen is None:
        return
    place = folder / "evidence" / site.name
    if not (place / "site.json").exists():
        write_atomic(place / "site.json", json.dumps(_about(site, experiment), indent=1).encode())
    store = Store(place)
    store.write(
        round,
        add(
            dict(store.before(round)), seen.probs, seen.losses, site.notes.get("clean_probability")
        ),
    )


def add(
    sums: dict[str, np.ndarray], probs: np.ndarray, losses: np.ndarray, posterior: np.ndarray | None
) -> dict[str, np.ndarray]:
    """The sums with one more round; an empty dict is the start."""
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
    added = {
        **sums,
        "count": sums["count"] + 1,
        "loss_sum": sums["loss_sum"] + np.minimum(losses, LOSS_CAP).astype(np.float32),
        "prob_sum": sums["prob_sum"] + probs.astype(np.float32),
        "votes": votes,
    }
    if posterior is not None:
        added["posterior_sum"] = sums.get(
            "posterior_sum", np.zeros(n, np.float32)
        ) + posterior.astype(np.float32)
        added["posterior_count"] = sums.get("posterior_count", np.zeros((), np.int64)) + 1
    return {name: np.asarray(array) for name, array in added.items()}


def means(sums: dict[str, np.ndarray]) -> Evidence:
    count = int(sums["count"])
    said = int(sums.get("posterior_count", 0))
    return Evidence(
        rounds=count,
        losses=sums["loss_sum"].astype(np.float64) / count,
        probs=sums["prob_sum"] / np.float32(count),
        votes=sums["votes"],
        posterior=sums["posterior_sum"] / np.float32(said) if said else None,
    )


def sites_with_evidence(run: Path) -> list[str]:
    found = sorted(path.parent.name for path in (run / "evidence").glob("*/site.json"))
    if not found:
        raise RunFolderError(
            "todo.label-evidence-1",
            f"{run} holds no evidence about labels: the run was made with audit.enabled=false, by an older version, "
            "or has not reached the first round of the window",
            fix="run it again (`fedgsca run ... --out NEW`), or go on with `fedgsca resume`",
        )
    return found


def about(run: Path, site: str) -> dict[str, Any]:
    """site.json: site, config, classes, samples, fingerprint of the data."""
    path = run / "evidence" / site / "site.json"
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise RunFolderError(
            "todo.label-evidence-2",
            f"{path} is damaged or missing: {error}",
            fix="restore it, or make the run anew",
        ) from None


def read_evidence(run: Path, site: str, *, before: int | None = None) -> Evidence:
    """All that the site has seen so far. `before`: only rounds earlier than this one."""
    sums = Store(run / "evidence" / site).before(2**31 if before is None else before)
    if not sums:
        raise RunFolderError(
            "todo.label-evidence-3",
            f"{site} in {run} has no evidence yet",
            fix="go on with `fedgsca resume`, then audit again",
        )
    return means(dict(sums))


def _about(site: Site, experiment: Experiment) -> dict[str, Any]:
    table = experiment.table
    return {
        "site": site.name,
        "samples": site.num_samples,
        "classes": list(table.classes),
        "fingerprint": table.fingerprint,
        "config": experiment.config.to_tree(),
    }
