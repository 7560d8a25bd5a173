"""A hospital's answer to a message of the coordinator; the worker process asks for it.

Every message carries the terms: package version, configuration, class list, and the digest of a
frozen backbone. A site that cannot accept them answers with a reason instead of an update. Such a
reason only names the kind of problem: names of files and patients stay in the site's own log.

A message may arrive twice, and every message may be handled by a new process. So everything that a
site keeps is on its disk, under the fingerprint of the experiment, and a repeated round reads the
memory from before that round (methods/site_store.py). memory.json says in which round this memory
begins and which files of it must exist: if some are gone, the site says so instead of training
another model. If the whole folder is gone, so is this record; the site then begins as a new one,
its reply says since when it remembers, and the coordinator's log says that it took part before.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedgsca.config import SITES_SOURCE, Config, build, to_toml
from fedgsca.errors import ClassListError, ConfigError, FedgscaError, RunFolderError, UpdateError
from fedgsca.federation.base import Reply
from fedgsca.federation.changed_samples import SIGNATURE
from fedgsca.federation.checkpoint import describe_memory
from fedgsca.federation.local import SiteRunner
from fedgsca.federation.privacy import answer_once
from fedgsca.federation.samples import backbone_digest
from fedgsca.federation.simulation import Experiment, prepare
from fedgsca.federation.site_rows import keep_samples
from fedgsca.hospital.delivery import store_model
from fedgsca.hospital.messages import (
    EncodedMessage,
    MessageKind,
    Terms,
    decode,
    encode_reply,
    list_digest,
    public_reason,
)
from fedgsca.hospital.settings import SiteSettings, state_folder
from fedgsca.hospital.worker import OutdatedWorkerError
from fedgsca.methods.base import compose_method
from fedgsca.methods.site_store import Store
from fedgsca.support.files import write_atomic
from fedgsca.support.registry import is_import_path
from fedgsca.support.text import one_line
from fedgsca.support.version import __version__
from fedgsca.wire import Payload, Update, check_extras

log = logging.getLogger(__name__)
_MEMORY_FILE = "memory.json"


# ---- all messages of one experiment ----


class ResidentSite:
    """A hospital's answers to the messages of one experiment.

    `read` returns the settings, which may change between two messages. Images and model stay in
    memory; when terms, settings or data change, OutdatedWorkerError asks for a new process.
    """

    def __init__(self, read: Callable[[], SiteSettings]) -> None:
        self.read = read
        self.identity: str | None = None  # of the experiment, once a message has come
        self.runner: SiteRunner | None = None

    def answer(self, request: bytes) -> bytes:
        """The reply to an encoded message, encoded."""
        message = EncodedMessage.from_bytes(request)
        header, weights, extras = decode(message)
        payload = Payload(int(str(header["round"])), weights, extras)
        reply = self.reply(message.kind, Terms.from_json(header["terms"]), payload)
        return encode_reply(message.kind, payload.round, reply).to_bytes()

    def reply(self, kind: MessageKind, terms: Terms, payload: Payload) -> Reply:
        """The reply to a message. Errors of the site are reasons in it."""
        start = time.perf_counter()
        name = ""
        try:
            settings = self.read()
            self._check_identity(terms, settings)
            name = settings.name
            reply = self._reply(kind, terms, payload, settings)
        except OutdatedWorkerError:
            raise
        except Exception as error:
            bug = None if isinstance(error, FedgscaError | MemoryError) else error
            log.error("%s of round %d failed: %s", kind, payload.round + 1, error, exc_info=bug)
            return Reply(name, None, public_reason(error), seconds=time.perf_counter() - start)
        seconds = time.perf_counter() - start
        log.info("%s of round %d took %.2f s", kind, payload.round + 1, seconds)
        return reply

    def _check_identity(self, terms: Terms, settings: SiteSettings) -> None:
        sources = [settings.data, settings.labels, settings.weights]
        if settings.data is None:  # a rehearsal: the source of the configuration is shared
            data = terms.config.get("data")
            sources.append(str(data.get("source")) if isinstance(data, dict) else None)
        stamps = [source_stamp(source) for source in sources]
        identity = json.dumps([terms.to_json(), settings.model_dump(), stamps], sort_keys=True)
        if self.identity not in (None, identity):
            raise OutdatedWorkerError
        self.identity = identity

    def _reply(
        self, kind: MessageKind, terms: Terms, payload: Payload, settings: SiteSettings
    ) -> Reply:
        name = settings.name
        folder = state_folder(settings, terms.fingerprint)
        if kind == "model":  # it needs none of the site's data
            config = with_own_weights(_accept_terms(terms), settings)
            store_model(payload, config, folder)
            return Reply(name, Update(name, 0, {}))
        if self.runner is None:
            self.runner = _open_runner(_accept_terms(terms), terms, settings, folder)
        experiment = self.runner.experiment
        if name not in experiment.names or name not in experiment.sites:
            raise UpdateError(
                "site.unknown-name",
                f"{name} is not one of the experiment's sites",
                fix="correct name in site.toml",
            )
        if kind == "hello":
            return Reply(name, Update(name, len(experiment.sites[name]), {}))
        if kind == "test":
            return _test_reply(self.runner, name, payload)
        return _train_reply(self.runner, name, payload)


def source_stamp(source: str | None) -> str:
    """A digest of the names, sizes and times of all files of a data source; no file is read."""
    if source is None:
        return ""
    sha = hashlib.sha256()
    for text in (source, source.partition(":")[2]):
        root = Path(text).expanduser()
        if text and root.exists():
            for path in _files_below(root):
                status = path.stat(follow_symlinks=True)
                sha.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return sha.hexdigest()


def _files_below(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if path.exists():
                yield path


# ---- the terms ----


def _accept_terms(terms: Terms) -> Config:
    """The configuration, if this site can run it; whether it may was asked before (ledger.py).

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


def _open_runner(config: Config, terms: Terms, settings: SiteSettings, folder: Path) -> SiteRunner:
    _check_network(config, settings)
    has_own_images = config.data.source == SITES_SOURCE
    if has_own_images:
        config = with_own_weights(config, settings)
    if backbone_digest(config) != terms.backbone:
        raise UpdateError(
            "site.other-backbone",
            "its frozen backbone is not the coordinator's",
            fix="copy the coordinator's weights file to the site",
        )
    if has_own_images:
        experiment = open_own_experiment(config, settings, folder)
    else:
        experiment = prepare(config, only=settings.name)
    if list_digest(experiment.table.classes) != terms.classes:
        raise ClassListError(
            "site.other-classes",
            "the class list of the site is not that of the consortium",
            fix="use the same data source, or the same data.classes, everywhere",
        )
    _check_same_data(folder / SIGNATURE, experiment.signature())
    keep_samples(folder, experiment)
    if not (folder / "config.toml").exists():  # for withdrawals between rounds
        write_atomic(folder / "config.toml", to_toml(build(terms.config)).encode())
    return SiteRunner(
        experiment,
        compose_method(config),
        folder,
        is_hospital=True,
        sends_diagnostics=settings.diagnostics or not has_own_images,
    )


def with_own_weights(config: Config, settings: SiteSettings) -> Config:
    """Weights arrive in the payload; only a frozen backbone is read from the site's own disk."""
    weights = None
    if config.model.frozen:
        weights = settings.weights or config.model.weights
    model = config.model.model_copy(update={"weights": weights})
    return config.model_copy(update={"model": model})


def open_own_experiment(config: Config, settings: SiteSettings, folder: Path) -> Experiment:
    """The experiment as this hospital sees it; `folder` is that of its memory."""
    from fedgsca.federation.deployment import prepare_site

    if settings.data is None:
        raise ConfigError(
            "site.no-data", "the settings of the site name no data", fix="set data in site.toml"
        )
    labels = Path(settings.labels) if settings.labels else None
    return prepare_site(config, settings.name, settings.data, labels, settings.classes, folder)


def _check_same_data(path: Path, signature: str) -> None:
    """A site continues only with the images and labels with which it joined."""
    if not path.exists():
        write_atomic(path, signature.encode())
    elif path.read_text() != signature:
        raise UpdateError(
            "site.data-changed",
            "its images or labels have changed since the run began",
            fix="at the site, `fedgsca withdraw --from site.toml` shows what is gone or new; if"
            " patients have left, name them there, and the site goes on with the images that"
            " remain; otherwise restore the data",
        )


# ---- answers ----


def _test_reply(runner: SiteRunner, name: str, payload: Payload) -> Reply:
    from fedgsca.federation.site_evaluation import TEST_UPLOADS, count_at_site

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
    since = check_memory(runner.folder, payload.round)
    if runner.experiment.config.privacy is not None:
        reply = _private_reply(runner, name, payload)
    else:
        reply = runner.run_round(name, payload)
    if reply.update is None:
        return reply
    record_memory(runner.folder, since, payload.round)
    # the hospital's own check: only what is declared leaves
    check_extras("update", reply.update.extras, runner.method.uploads, runner.experiment.dims)
    return replace(reply, memory_since=since)


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


# ---- the record of the site's memory ----


@dataclass(frozen=True)
class SiteMemoryRecord:
    """Since which round (from 0) the site remembers, and its newest files: folder -> version."""

    since: int
    files: Mapping[str, int] = field(default_factory=dict)


def check_memory(folder: Path, round_index: int) -> int:
    """The round in which the site's memory begins; an error if a file of it is missing."""
    record = _read_memory(folder)
    if record is None:
        return round_index
    for name, version in record.files.items():
        if version >= round_index:  # the coordinator went back: this round is run again
            continue
        try:
            Store(folder / name).require(version)
        except RunFolderError as error:
            raise UpdateError(
                "site.lost-memory",
                f"its memory of round {version + 1} is missing, and without it the run would end"
                " in another model",
                fix="restore the state folder of the site from a backup; or delete the folder, to"
                " begin as a new site: the coordinator's log then says so",
            ) from error
    return min(record.since, round_index)


def record_memory(folder: Path, since: int, round_index: int) -> None:
    """Write down the memory after a round."""
    tree = {"since": since, "files": describe_memory(folder, round_index + 1)}
    write_atomic(folder / _MEMORY_FILE, json.dumps(tree, sort_keys=True).encode())


def _read_memory(folder: Path) -> SiteMemoryRecord | None:
    try:
        content = (folder / _MEMORY_FILE).read_bytes()
    except FileNotFoundError:
        return None
    try:
        tree = json.loads(content)
        files = {str(name): int(version) for name, version in tree["files"].items()}
        return SiteMemoryRecord(int(tree["since"]), files)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunFolderError(
            "site.damaged-memory",
            f"the record of the site's memory {folder / _MEMORY_FILE} is damaged: {error}",
            fix="restore the file from a backup, or start a new run",
        ) from None
