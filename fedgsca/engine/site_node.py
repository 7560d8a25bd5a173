"""What a site does with a message of the coordinator, whatever carried it.

Every message carries the terms: package version, configuration, class list, and the digest of a frozen backbone. A site that cannot
keep them answers with a reason instead of an update. A reason that crosses says what kind of trouble it is and no more: names of
files and patients stay in the site's own log.

A message may come twice, and each may find a fresh process: all that a site keeps is on its disk, under the fingerprint of the
experiment, and a round that is repeated reads the memory from before that round (store.py).
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from fedgsca import __version__
from fedgsca.config import SITES_SOURCE, Config, Section, build, describe, read_toml
from fedgsca.engine.local import Reply, SiteRunner
from fedgsca.errors import (
    ClassListError,
    ConfigError,
    DataError,
    MissingExtraError,
    RunFolderError,
    UpdateError,
    WeightsError,
)
from fedgsca.experiment.simulation import Experiment, prepare, weights_path
from fedgsca.methods.base import make_method
from fedgsca.privacy.reply_cache import once
from fedgsca.support.files import write_atomic
from fedgsca.wire import Payload, Update, check_extras

log = logging.getLogger(__name__)
Kind = Literal["hello", "train", "judge"]
_WORDS: Mapping[type[BaseException], str] = {
    DataError: "its images or labels cannot be used",
    ConfigError: "the configuration cannot be used there",
    WeightsError: "its weights file does not fit",
    RunFolderError: "it cannot write to its disk, or its memory is damaged",
    MissingExtraError: "a package is missing there",
    MemoryError: "it ran out of memory",
}


class SiteSettings(Section):
    """site.toml: what a hospital decides about itself. It never leaves the hospital, but for the name."""

    name: str = Field(min_length=1)
    state: str = Field(description="folder for the site's private memory")
    data: str | None = Field(
        default=None,
        description="its own images; none: a rehearsal with its part of the shared source",
    )
    labels: str | None = Field(
        default=None, description="csv (file,label) that replaces the given training labels"
    )
    weights: str | None = Field(
        default=None, description="its own copy of the frozen backbone's weights"
    )
    fingerprint: str | None = Field(
        default=None,
        description="the only experiment that it takes part in; none: any it is asked for",
    )


def read_settings(path: Path) -> SiteSettings:
    try:
        return SiteSettings.model_validate(read_toml(path))
    except ValidationError as error:
        raise ConfigError(
            "todo.site-node-1",
            f"{path}:\n  " + "\n  ".join(describe(error, SiteSettings)),
            fix="correct the keys above",
        ) from None


def state_folder(settings: SiteSettings, fingerprint: str) -> Path:
    """Where a site keeps what belongs to one experiment."""
    return Path(settings.state).expanduser() / fingerprint[:16]


# ---- the terms ----


def terms_of(experiment: Experiment) -> dict[str, Any]:
    """What coordinator and site must agree on; goes with every message."""
    config = experiment.config
    backbone = file_digest(weights_path(config)) if config.model.frozen else ""
    return {
        "version": __version__,
        "config": config.to_tree(),
        "fingerprint": config.fingerprint(),
        "classes": list_digest(experiment.table.classes),
        "backbone": backbone,
    }


def list_digest(names: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()


def file_digest(path: Path | None) -> str:
    return (
        hashlib.sha256(path.read_bytes()).hexdigest() if path is not None and path.is_file() else ""
    )


def _agree(terms: Mapping[str, Any], settings: SiteSettings) -> Config:
    """The configuration, if this site can and may run it. The version comes first: another one may not even read the rest."""
    if terms.get("version") != __version__:
        raise UpdateError(
            "todo.site-node-2",
            f"it has fedgsca {__version__}, the coordinator {terms.get('version')}",
            fix="install the coordinator's version",
        )
    config = build(terms["config"])
    if config.fingerprint() != terms["fingerprint"]:
        raise UpdateError(
            "todo.site-node-3",
            "it reads another experiment out of the configuration",
            fix="install the same versions everywhere",
        )
    if settings.fingerprint not in (None, terms["fingerprint"]):
        raise UpdateError(
            "todo.site-node-4",
            "it has agreed to another experiment than this one",
            fix="agree on one configuration; see site.toml",
        )
    return config


def _open(
    config: Config, terms: Mapping[str, Any], settings: SiteSettings, folder: Path, alone: bool
) -> SiteRunner:
    from fedgsca.experiment.deployment import prepare_site

    own = config.data.source == SITES_SOURCE
    if own:  # the weights travel with the payload; only a frozen backbone is needed here, from the site's own disk
        wanted = settings.weights or config.model.weights if config.model.frozen else None
        config = config.model_copy(
            update={"model": config.model.model_copy(update={"weights": wanted})}
        )
    if config.model.frozen and file_digest(weights_path(config)) != terms["backbone"]:
        raise UpdateError(
            "todo.site-node-5",
            "its frozen backbone is not the coordinator's",
            fix="copy the coordinator's weights file",
        )
    if own:
        if settings.data is None:
            raise ConfigError(
                "todo.site-node-6", "the site has no data", fix="set data in site.toml"
            )
        experiment = prepare_site(
            config, settings.name, settings.data, Path(settings.labels) if settings.labels else None
        )
    else:
        experiment = prepare(config, only=settings.name if alone else None)
    if list_digest(experiment.table.classes) != terms["classes"]:
        raise ClassListError(
            "todo.site-node-7",
            "the site has another class list",
            fix="use the same data source everywhere",
        )
    if alone:
        _same_data(folder / "signature", experiment.signature())
    return SiteRunner(
        experiment,
        make_method(config.method, config.options, config.train.rounds),
        folder,
        alone=alone,
    )


def _same_data(path: Path, signature: str) -> None:
    """A site goes on only with the images and labels with which it joined."""
    if not path.exists():
        write_atomic(path, signature.encode())
    elif path.read_text() != signature:
        raise UpdateError(
            "todo.site-node-8",
            "its images or labels have changed since the run began",
            fix="restore them, or start a new run with another seed",
        )


@functools.lru_cache(maxsize=1)
def _bench(terms: str, settings: SiteSettings, folder: Path, alone: bool) -> SiteRunner:
    """Kept for the life of the process, which over Flower is one message and in a simulation the whole run."""
    known = json.loads(terms)
    return _open(_agree(known, settings), known, settings, folder, alone)


# ---- answers ----


def answer(
    kind: Kind,
    terms: Mapping[str, Any],
    payload: Payload,
    settings: SiteSettings,
    folder: Path,
    *,
    alone: bool = True,
) -> Reply:
    """One message's work. A hospital's errors become reasons. `alone`: no other site in this process, which is a hospital's."""
    started = time.perf_counter()
    try:
        shared = settings if alone else settings.model_copy(update={"name": "all"})
        runner = _bench(json.dumps(terms, sort_keys=True), shared, folder, alone)
        reply = _do(kind, runner, settings.name, payload)
    except Exception as error:
        if not (alone or isinstance(error, UpdateError)):
            raise  # a simulation does not hide bugs
        log.error("%s of round %d failed", kind, payload.round + 1, exc_info=error)
        return Reply(
            settings.name, None, public_reason(error), seconds=time.perf_counter() - started
        )
    return reply


def _do(kind: Kind, runner: SiteRunner, name: str, payload: Payload) -> Reply:
    if name not in runner.experiment.names or name not in runner.experiment.sites:
        raise UpdateError(
            "todo.site-node-9",
            f"{name} is not one of the experiment's sites",
            fix="correct name in site.toml",
        )
    if kind == "hello":
        return Reply(name, Update(name, len(runner.experiment.sites[name]), {}))
    config = runner.experiment.config
    privacy = config.privacy
    if kind == "judge":
        if privacy is not None and privacy.noise > 0:
            raise UpdateError(
                "todo.site-node-10",
                "it tells no exact counts of its test images under privacy",
                fix="set federation.test",
            )
        from fedgsca.engine.site_evaluation import DECLARED, judge

        update = judge(runner, name, payload)
        check_extras("test result", update.extras, DECLARED, runner.experiment.dims)
        return Reply(name, update)
    once_only = runner.alone and privacy is not None
    run_round = functools.partial(runner.run_round, name, payload)
    reply = (
        once(runner.folder / "answers" / name, payload, config.train.rounds, run_round)
        if once_only
        else run_round()
    )
    if reply.update is not None:  # the hospital's own check: what is not declared does not leave
        check_extras("update", reply.update.extras, runner.method.uploads, runner.experiment.dims)
    return reply


def public_reason(error: Exception) -> str:
    """What the coordinator may know about a failure."""
    if isinstance(error, UpdateError):  # speaks of versions, names and declared numbers only
        return error.message
    if isinstance(error, ClassListError):
        return "its class list is not that of the consortium"
    words = next(
        (text for kind, text in _WORDS.items() if isinstance(error, kind)),
        f"it failed with {type(error).__name__}",
    )
    return f"{words}; its own log says more"
