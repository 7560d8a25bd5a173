"""A site's answer to a message of the coordinator, whatever transport carried it.

Every message carries the terms: package version, configuration, class list, and the digest of a
frozen backbone. A site that cannot accept them answers with a reason instead of an update. Such a
reason only names the kind of problem: names of files and patients stay in the site's own log.

A message may arrive twice, and every message may be handled by a new process. So everything that a
site keeps is on its disk, under the fingerprint of the experiment, and a repeated round reads the
memory from before that round (site_store.py).
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from fedgsca.config import SITES_SOURCE, Config, Section, build, read_toml, validation_problems
from fedgsca.engine.base import Reply
from fedgsca.engine.local import SiteRunner
from fedgsca.engine.site_memory import check_memory, record_memory
from fedgsca.errors import (
    ClassListError,
    ConfigError,
    DataError,
    MissingExtraError,
    RunFolderError,
    UpdateError,
    WeightsError,
)
from fedgsca.experiment.samples import weights_digest
from fedgsca.experiment.simulation import Experiment, prepare
from fedgsca.methods.compose import compose_method
from fedgsca.privacy.reply_cache import answer_once
from fedgsca.support.files import write_atomic
from fedgsca.support.json_record import Record
from fedgsca.support.registry import is_import_path
from fedgsca.support.text import one_line
from fedgsca.support.version import __version__
from fedgsca.wire import Payload, Update, check_extras

log = logging.getLogger(__name__)
MessageKind = Literal["hello", "train", "judge"]  # "judge": test the model; a word of the wire
_PUBLIC_REASONS: Mapping[type[BaseException], str] = {
    DataError: "its images or labels cannot be used",
    ConfigError: "the configuration cannot be used there",
    WeightsError: "its weights file does not fit",
    RunFolderError: "it cannot write to its disk, or its memory is damaged",
    MissingExtraError: "a package is missing there",
    MemoryError: "it ran out of memory",
}


class SiteSettings(Section):
    """site.toml: a hospital's own decisions. Only the name leaves the hospital."""

    name: str = Field(min_length=1)
    state: str = Field(description="folder for the site's private memory")
    data: str | None = Field(
        default=None,
        description="its own images; without them, a rehearsal with its part of the shared source",
    )
    labels: str | None = Field(
        default=None, description="csv (file,label) that replaces the given training labels"
    )
    classes: dict[str, str] = Field(
        default_factory=dict,
        description="its own class names -> those of the consortium",
    )
    weights: str | None = Field(
        default=None, description="its own copy of the frozen backbone's weights"
    )
    networks: tuple[str, ...] = Field(
        default=(),
        description="import paths of networks (package.module:function) that an experiment may"
        " use; without them, no message can make this site import code",
    )
    fingerprint: str | None = Field(
        default=None,
        description="the only experiment in which it takes part; without it, any experiment",
    )

    def __hash__(self) -> int:
        """By all values, class names included: the runner of a site is cached by its settings."""
        digest = hashlib.sha256(self.model_dump_json().encode()).digest()
        return int.from_bytes(digest[:7], "big")


def read_settings(path: Path) -> SiteSettings:
    """Read and check site.toml."""
    try:
        return SiteSettings.model_validate(read_toml(path))
    except ValidationError as error:
        raise ConfigError(
            "site.invalid-settings",
            f"{path} is not valid:",
            fix="correct the keys above",
            problems=validation_problems(error, SiteSettings),
        ) from None


def state_folder(settings: SiteSettings, fingerprint: str) -> Path:
    """The folder of a site for one experiment."""
    return Path(settings.state).expanduser() / fingerprint[:16]


# ---- the terms ----


@dataclass(frozen=True)
class Terms(Record):
    """What coordinator and site must agree on; part of every message."""

    version: str
    config: Mapping[str, Any]  # as in config.toml
    fingerprint: str  # of the configuration
    classes: str  # digest of the class list
    backbone: str  # digest of the weights of a frozen backbone, else empty


def terms_of(experiment: Experiment) -> Terms:
    """The terms of the coordinator."""
    config = experiment.config
    backbone = (weights_digest(config) or "") if config.model.frozen else ""
    return Terms(
        version=__version__,
        config=config.to_tree(),
        fingerprint=config.fingerprint(),
        classes=list_digest(experiment.table.classes),
        backbone=backbone,
    )


def list_digest(names: Sequence[str]) -> str:
    """sha256 of a list of names in their order."""
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()


def _accept_terms(terms: Terms, settings: SiteSettings) -> Config:
    """The configuration, if this site can and may run it.

    The version comes first: another version may not even understand the other terms.
    """
    if terms.version != __version__:
        raise UpdateError(
            "site.other-version",
            f"it has fedgsca {__version__}, the coordinator has {terms.version}",
            fix="install the coordinator's version at the site",
        )
    config = build(terms.config)
    if config.fingerprint() != terms.fingerprint:
        raise UpdateError(
            "site.other-configuration",
            "it reads another experiment out of the configuration",
            fix="install the same versions everywhere",
        )
    if settings.fingerprint not in (None, terms.fingerprint):
        raise UpdateError(
            "site.other-experiment",
            "it has agreed to another experiment than this one",
            fix="agree on one configuration, then set its fingerprint in site.toml",
        )
    return config


def _check_network(config: Config, settings: SiteSettings) -> None:
    """A message never makes a site import code that the site has not named itself."""
    name = config.model.name
    if is_import_path(name) and name not in settings.networks:
        raise UpdateError(
            "site.network-not-allowed",
            "the experiment uses a network of its own, which its settings do not allow",
            fix=f"read the code of {one_line(name)}; if you trust it, add it to networks in"
            " site.toml",
        )


# ---- the site's data ----


@dataclass(frozen=True)
class SitePlace:
    """Who answers, and where it keeps its files.

    `is_hospital`: no other site is in this process, and the folder is the site's own.
    """

    settings: SiteSettings
    folder: Path
    is_hospital: bool = True


def _open_runner(config: Config, terms: Terms, place: SitePlace) -> SiteRunner:
    settings = place.settings
    if place.is_hospital:
        _check_network(config, settings)
    has_own_images = config.data.source == SITES_SOURCE
    if has_own_images:
        config = _with_own_weights(config, settings)
    if config.model.frozen and (weights_digest(config) or "") != terms.backbone:
        raise UpdateError(
            "site.other-backbone",
            "its frozen backbone is not the coordinator's",
            fix="copy the coordinator's weights file to the site",
        )
    if has_own_images:
        experiment = _own_experiment(config, settings)
    else:
        experiment = prepare(config, only=settings.name if place.is_hospital else None)
    if list_digest(experiment.table.classes) != terms.classes:
        raise ClassListError(
            "site.other-classes",
            "the class list of the site is not that of the consortium",
            fix="use the same data source, or the same data.classes, everywhere",
        )
    if place.is_hospital:
        _check_same_data(place.folder / "signature", experiment.signature())
    method = compose_method(config)
    return SiteRunner(experiment, method, place.folder, is_hospital=place.is_hospital)


def _with_own_weights(config: Config, settings: SiteSettings) -> Config:
    """Weights arrive in the payload; only a frozen backbone is read from the site's own disk."""
    weights = None
    if config.model.frozen:
        weights = settings.weights or config.model.weights
    model = config.model.model_copy(update={"weights": weights})
    return config.model_copy(update={"model": model})


def _own_experiment(config: Config, settings: SiteSettings) -> Experiment:
    from fedgsca.experiment.deployment import prepare_site

    if settings.data is None:
        raise ConfigError(
            "site.no-data", "the settings of the site name no data", fix="set data in site.toml"
        )
    labels = Path(settings.labels) if settings.labels else None
    return prepare_site(config, settings.name, settings.data, labels, settings.classes)


def _check_same_data(path: Path, signature: str) -> None:
    """A site continues only with the images and labels with which it joined."""
    if not path.exists():
        write_atomic(path, signature.encode())
    elif path.read_text() != signature:
        raise UpdateError(
            "site.data-changed",
            "its images or labels have changed since the run began",
            fix="restore them, or start a new run with another seed",
        )


@functools.lru_cache(maxsize=1)
def _cached_runner(terms_text: str, place: SitePlace) -> SiteRunner:
    """Kept while the process lives: in a site worker for the experiment, else for the run."""
    terms = Terms.from_json(json.loads(terms_text))
    return _open_runner(_accept_terms(terms, place.settings), terms, place)


# ---- answers ----


def answer(kind: MessageKind, terms: Terms, payload: Payload, place: SitePlace) -> Reply:
    """A site's reply to one message. At a hospital, errors become reasons."""
    name = place.settings.name
    start = time.perf_counter()
    try:
        terms_text = json.dumps(terms.to_json(), sort_keys=True)
        runner = _cached_runner(terms_text, _shared_place(place))
        return _reply_to(kind, runner, name, payload)
    except Exception as error:
        if not (place.is_hospital or isinstance(error, UpdateError)):
            raise  # a simulation does not hide bugs
        log.error("%s of round %d failed", kind, payload.round + 1, exc_info=error)
        return Reply(name, None, public_reason(error), seconds=time.perf_counter() - start)


def _shared_place(place: SitePlace) -> SitePlace:
    """The same for all sites that share this process, so that they share one runner."""
    if place.is_hospital:
        return place
    settings = place.settings.model_copy(update={"name": "all"})
    return SitePlace(settings, place.folder, is_hospital=False)


def _reply_to(kind: MessageKind, runner: SiteRunner, name: str, payload: Payload) -> Reply:
    experiment = runner.experiment
    if name not in experiment.names or name not in experiment.sites:
        raise UpdateError(
            "site.unknown-name",
            f"{name} is not one of the experiment's sites",
            fix="correct name in site.toml",
        )
    if kind == "hello":
        return Reply(name, Update(name, len(experiment.sites[name]), {}))
    if kind == "judge":
        return _test_reply(runner, name, payload)
    return _train_reply(runner, name, payload)


def _test_reply(runner: SiteRunner, name: str, payload: Payload) -> Reply:
    from fedgsca.engine.site_evaluation import TEST_UPLOADS, count_at_site

    privacy = runner.experiment.config.privacy
    if privacy is not None and privacy.noise > 0:
        raise UpdateError(
            "privacy.no-test-counts",
            "it does not send exact counts of its test images under privacy",
            fix="set federation.test, so that the coordinator tests the model",
        )
    update = count_at_site(runner, name, payload)
    check_extras("test result", update.extras, TEST_UPLOADS, runner.experiment.dims)
    return Reply(name, update)


def _train_reply(runner: SiteRunner, name: str, payload: Payload) -> Reply:
    config = runner.experiment.config
    since = check_memory(runner.folder, payload.round) if runner.is_hospital else None
    if runner.is_hospital and config.privacy is not None:
        reply = _private_reply(runner, name, payload)
    else:
        reply = runner.run_round(name, payload)
    if since is not None and reply.update is not None:
        record_memory(runner.folder, since, payload.round)
        reply = replace(reply, memory_since=since)
    if reply.update is not None:  # the hospital's own check: only what is declared leaves
        check_extras("update", reply.update.extras, runner.method.uploads, runner.experiment.dims)
    return reply


def _private_reply(runner: SiteRunner, name: str, payload: Payload) -> Reply:
    """Under privacy a round is answered once; a repeated request gets the stored update."""
    replies: list[Reply] = []

    def train() -> Update | None:
        replies.append(runner.run_round(name, payload))
        return replies[0].update

    folder = runner.folder / "answers" / name
    update = answer_once(folder, payload, runner.experiment.config.train.rounds, train)
    if replies:
        return replies[0]
    assert update is not None  # without training it was read from the disk
    return Reply(update.site, update)


def reply_header(kind: MessageKind, round_index: int, reply: Reply) -> dict[str, Any]:
    """What travels beside the arrays of a reply."""
    update = reply.update or Update(reply.site, 0, {})
    return {
        "kind": kind,
        "round": round_index,
        "site": update.site,
        "num_samples": update.num_samples,
        "error": reply.error,
        "observed": dict(reply.simulation_metrics),
        "seconds": reply.seconds,
        "memory_since": reply.memory_since,
    }


def public_reason(error: Exception) -> str:
    """What the coordinator may know about a failure."""
    if isinstance(error, UpdateError):  # it only speaks of versions, names and declared numbers
        return error.message
    if isinstance(error, ClassListError):
        return "its class list is not that of the consortium"
    for error_class, reason in _PUBLIC_REASONS.items():
        if isinstance(error, error_class):
            return f"{reason}; its own log says more"
    return f"it failed with {type(error).__name__}; its own log says more"
