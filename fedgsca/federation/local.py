"""The default engine: all sites in this process, with one model in memory.

`SiteRunner.run_round` is a site's work in one round. Every engine calls it, here, in a worker
process, or on a hospital's machine.
"""

from __future__ import annotations

import io
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.config import Config
from fedgsca.errors import UpdateError
from fedgsca.federation import label_evidence
from fedgsca.federation.base import Reply
from fedgsca.federation.privacy import NormalSource, protect, secret_normals
from fedgsca.federation.samples import weight_files
from fedgsca.federation.simulation import Experiment, prepare
from fedgsca.methods.base import Method, compose_method
from fedgsca.methods.site import Site
from fedgsca.methods.site_store import Store
from fedgsca.metrics import auroc, detection
from fedgsca.rng import global_torch_stream
from fedgsca.support.files import FileBatch
from fedgsca.support.registry import is_import_path
from fedgsca.wire import Payload, Update, drop_diagnostics

log = logging.getLogger(__name__)
LOSSES_EVERY = 5  # rounds between two versions of losses/<site>.npz
# what of a method's `site.note` arrays is in it (`Site.note` says what they are)
SELECTION_NOTES = (
    "losses",
    "clean",
    "clean_probability",
    "selector",
    "cut",
    "pseudo_rows",
    "pseudo_labels",
)


class SiteRunner:
    """One model, and the sites of this machine that take turns on it."""

    def __init__(
        self,
        experiment: Experiment,
        method: Method,
        folder: Path,
        *,
        is_hospital: bool = False,
        sends_diagnostics: bool = True,
    ) -> None:
        """`is_hospital`: this machine and this folder belong to a single site of a deployment.

        `sends_diagnostics`: also what is for people only, such as the share of flagged labels.
        """
        from fedgsca.models.build import build_model
        from fedgsca.models.device import compile_backbone, prepare_device

        self.experiment = experiment
        self.method = method
        self.folder = folder
        self.is_hospital = is_hospital
        self.sends_diagnostics = sends_diagnostics
        self.device = prepare_device(experiment.config.train)
        config = experiment.config
        model = build_model(
            config.model,
            experiment.table.num_classes,
            width=experiment.feature_width,
            head=method.head,
            seed=config.seed,
            # a frozen model is its head: the coordinator of a deployment needs no backbone
            weights=() if config.model.frozen else weight_files(config),
        )
        self.model = model.to(self.device)
        compile_backbone(self.model, config.train, self.device)
        # what the sites of this machine write in a round
        self.files = FileBatch()
        self._commits_each_site = True

    def site(self, name: str) -> Site:
        """The site as its method sees it, with its private memory."""
        experiment = self.experiment
        store = Store(self.folder / "store" / name, self.files)
        return Site(
            name,
            experiment.sites[name],
            experiment.train,
            experiment.config.seed,
            self.model,
            self.device,
            store,
            experiment.config.federation.num_asked(len(experiment.names)),
        )

    def run_round(self, name: str, payload: Payload) -> Reply:
        """A site's round: train on its own data and return the update.

        An error that is the site's own becomes the reply's reason; a bug is raised. What the site
        remembers is on the disk before its reply leaves (but see `commit_together`).
        """
        if not self._commits_each_site:
            return self._train_site(name, payload)
        with self.commit_together():
            return self._train_site(name, payload)

    @contextmanager
    def commit_together(self) -> Iterator[None]:
        """Within the block, what sites remember reaches the disk at its end, for all at once.

        For an engine whose replies stay in this process: nobody can have seen one before its
        site's memory is safe, because the round's checkpoint follows. A round that fails is
        repeated and needs none of it.
        """
        self._commits_each_site = False
        try:
            yield
        except GeneratorExit:  # the method took no more replies
            self.files.commit()
            raise
        except BaseException:
            self.files.discard()
            raise
        finally:
            self._commits_each_site = True
        self.files.commit()

    def _train_site(self, name: str, payload: Payload) -> Reply:
        if not is_import_path(self.experiment.config.model.name):
            return self._answer_payload(name, payload)
        # a network of the user's own may draw from torch's generator, as dropout does
        address = ("site", name, payload.round, "model")
        with global_torch_stream(self.experiment.config.seed, *address):
            return self._answer_payload(name, payload)

    def _answer_payload(self, name: str, payload: Payload) -> Reply:
        site = self.site(name)
        start = time.perf_counter()
        try:
            update = self.make_update(payload, site)
        except UpdateError as error:
            return Reply(name, None, error.message, seconds=time.perf_counter() - start)
        seconds = time.perf_counter() - start
        truth = self.experiment.truth.get(name)
        self._store_selection(site, payload.round, truth)
        label_evidence.add_evidence(site, payload.round, self.experiment, self.folder)
        metrics = measure_decisions(site.notes, truth, site.labels)
        return Reply(name, update, None, metrics, seconds)

    def make_update(self, payload: Payload, site: Site) -> Update:
        """What leaves the site: the method's update, clipped and noised under `privacy`."""
        privacy = self.experiment.config.privacy
        if privacy is None:
            update = self.method.local_update(payload, site)
            if self.sends_diagnostics:
                return update
            return replace(update, extras=drop_diagnostics(update.extras, self.method.uploads))
        try:
            update = self.method.local_update(payload, site)
        except UpdateError as error:
            # a refusal would tell something about the data that no noise protects
            log.error(
                "%s in round %d sends no change, only noise: %s",
                site.name,
                payload.round + 1,
                error.message,
            )
            update = Update(site.name, site.num_samples, payload.weights)
        normals = secret_normals() if self.is_hospital else _public_normals(site, payload.round)
        return protect(update, payload, self.method.uploads, privacy, normals, site.num_samples)

    def _store_selection(self, site: Site, round_index: int, truth: np.ndarray | None) -> None:
        """losses/<site>.npz: the newest selection, for the report; it stays on this machine."""
        config = self.experiment.config
        is_last = round_index >= config.train.rounds - 1
        is_due = is_last or round_index % LOSSES_EVERY == LOSSES_EVERY - 1
        if not (config.federation.keep_losses and is_due and "clean" in site.notes):
            return
        arrays: dict[str, Any] = {"round": np.array(round_index)}
        arrays |= {name: array for name, array in site.notes.items() if name in SELECTION_NOTES}
        if truth is not None:
            arrays["wrong"] = site.labels != truth
        content = io.BytesIO()
        np.savez(content, **arrays)
        self.files.write(self.folder / "losses" / f"{site.name}.npz", content.getvalue())


def _public_normals(site: Site, round_index: int) -> NormalSource:
    """Noise of a simulation: reproducible, so it protects nobody."""

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        return site.rng(round_index, "privacy", name).standard_normal(shape)

    return draw


class LocalEngine:
    """Trains the sites one after the other in this process."""

    def __init__(self, runner: SiteRunner) -> None:
        self.runner = runner

    def exchange(self, payload: Payload, sites: Sequence[str] | None = None) -> Iterator[Reply]:
        """Train a site whenever the round loop takes the next reply."""
        names = self.runner.experiment.sites if sites is None else sites
        with self.runner.commit_together():
            for name in sorted(names):
                yield self.runner.run_round(name, payload)

    def close(self) -> None:
        """Nothing to release."""


def open_runner(config: Config, folder: Path) -> SiteRunner:
    """A runner for all sites of a simulation."""
    method = compose_method(config)
    return SiteRunner(prepare(config, folder=folder), method, folder)


# ---- simulations know the true labels: the quality of decisions, never part of an update ----


PREFIXES = ("noisy_", "pseudo_", "label_accuracy_")  # of the names of these numbers


def measure_decisions(
    notes: Mapping[str, np.ndarray], truth: np.ndarray | None, given: np.ndarray
) -> dict[str, float | None]:
    """Selector and pseudo-label quality from the notes that a method leaves; empty without truth.

    Names of notes: losses (n,), clean (n,) bool, clean_probability (n,), pseudo_rows (m,),
    pseudo_labels (m,), corrected (n,) labels. `truth` and `given` are labels (n,).
    """
    if truth is None:
        return {}
    is_wrong = given != truth
    metrics: dict[str, float | None] = {}
    if "clean" in notes:
        quality = detection(~notes["clean"], is_wrong)
        metrics["noisy_precision"] = quality["precision"]
        metrics["noisy_recall"] = quality["recall"]
    if "clean_probability" in notes:
        metrics["noisy_auroc"] = auroc(-notes["clean_probability"], is_wrong)
    elif "losses" in notes:
        metrics["noisy_auroc"] = auroc(notes["losses"], is_wrong)
    rows = notes.get("pseudo_rows")
    if rows is not None:
        is_right = notes["pseudo_labels"] == truth[rows]
        metrics["pseudo_count"] = float(len(rows))
        metrics["pseudo_accuracy"] = float(np.mean(is_right)) if len(rows) else None
    if "corrected" in notes:
        metrics["label_accuracy_before"] = float(np.mean(given == truth))
        metrics["label_accuracy_after"] = float(np.mean(notes["corrected"] == truth))
    return metrics


def check_metrics(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """The metrics that a site of a rehearsal reports; ValueError for anything else.

    They go into the log beside checked numbers.
    """
    for name, value in metrics.items():
        is_number = isinstance(value, (int, float)) and math.isfinite(value)
        if not name.startswith(PREFIXES) or not (value is None or is_number):
            raise ValueError(f"{name} is not a simulation metric")
    return dict(metrics)
