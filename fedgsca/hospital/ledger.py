"""What a hospital has allowed, and what has left it: an append-only file that a person can check.

    STATE/ledger.jsonl    one entry per line, each with the digest of the one before

    agreed    a person allows an experiment, by its fingerprint, until a date
    ended     a person takes this back
    sent      an answer with numbers is about to leave: what, how much, its digest, who allowed it
    received  the final model has arrived
    withdrawn  patients have left, or images were added: how many, by whom

The node, which alone talks to the coordinator, writes an entry to the disk before the answer
leaves; what it cannot write down does not leave, and without an agreement nothing does. Only
refusals, one sentence on the kind of a failure, are not written down.

A changed, removed or inserted entry breaks the chain of digests. Whoever may write the file can
cut off its end or write a new one: a digest that was noted elsewhere shows it (`--expect`).
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedgsca.config import Config
from fedgsca.errors import FedgscaError, RunFolderError
from fedgsca.federation.base import Reply
from fedgsca.hospital.messages import EncodedMessage, decode, encode_reply, public_reason
from fedgsca.hospital.settings import SiteSettings, read_settings
from fedgsca.support.files import GROWING_FILE, PRIVATE, file_lock
from fedgsca.support.json_record import Record
from fedgsca.support.version import __version__

log = logging.getLogger(__name__)
FILE_NAME = "ledger.jsonl"
REHEARSAL = "nobody: site.toml names no data, a rehearsal"
NO_AGREEMENT = "nobody there has agreed to this experiment"
_FIRST = "0" * 64  # the digest before the first entry


@dataclass(frozen=True)
class LedgerEntry(Record):
    """One line. Texts that do not apply are empty."""

    number: int  # from 1
    time: str  # UTC
    event: str  # agreed, ended, sent, received or withdrawn
    experiment: str  # fingerprint of the configuration
    person: str  # who agreed or ended; of what was sent: whose agreement allowed it
    version: str  # of fedgsca
    until: str = ""  # the last day of an agreement
    kind: str = ""  # of a message: hello, train, test or model
    round: int = 0  # from 1
    fields: tuple[str, ...] = ()  # what left
    bytes: int = 0
    sha256: str = ""  # of the answer, or of the model
    previous: str = ""  # digest of the entry before
    digest: str = ""  # of this entry, without this field

    def with_digest(self) -> LedgerEntry:
        """The same entry with its digest."""
        return replace(self, digest=_digest(self))


def _digest(entry: LedgerEntry) -> str:
    text = json.dumps(replace(entry, digest="").to_json(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Ledger:
    """The ledger of one site."""

    def __init__(self, settings: SiteSettings) -> None:
        self.path = Path(settings.state).expanduser() / FILE_NAME

    def entries(self) -> list[LedgerEntry]:
        """All entries; an error names the first one that is not what was written."""
        entries: list[LedgerEntry] = []
        previous = _FIRST
        for number, line in enumerate(self._content().splitlines(), 1):
            entry = _parse(line)
            if entry is None or (entry.number, entry.previous) != (number, previous):
                raise RunFolderError(
                    "site.ledger-broken",
                    f"{self.path}: entry {number} is not what was written there",
                    fix="keep the file as evidence under another name, find out who changed it, and"
                    " agree again with `fedgsca deploy agree`: this begins a new ledger",
                )
            entries.append(entry)
            previous = entry.digest
        return entries

    def agreement(self, experiment: str, today: datetime.date | None = None) -> LedgerEntry | None:
        """The entry that allows this experiment today; None if there is none."""
        newest = None
        for entry in self.entries():
            if entry.experiment == experiment and entry.event in ("agreed", "ended"):
                newest = entry
        if newest is None or newest.event == "ended":
            return None
        day = today or datetime.datetime.now(datetime.UTC).date()
        return newest if day.isoformat() <= newest.until else None

    def newest_agreement(self) -> str | None:
        """The fingerprint of the experiment that was agreed to last."""
        fingerprints = [e.experiment for e in self.entries() if e.event == "agreed"]
        return fingerprints[-1] if fingerprints else None

    def append(self, event: str, experiment: str, person: str, **values: object) -> LedgerEntry:
        """Write an entry to the disk and return it."""
        try:
            with file_lock(self.path.with_suffix(".lock")):
                return self._append(event, experiment, person, values)
        except OSError as error:
            raise RunFolderError(
                "site.ledger-not-written",
                f"{self.path} cannot be written: {error.strerror}; nothing leaves without an entry",
                fix="free some space, or give the folder to the user of the node",
            ) from None

    def _append(
        self, event: str, experiment: str, person: str, values: Mapping[str, object]
    ) -> LedgerEntry:
        entries = self.entries()
        entry = LedgerEntry(
            number=len(entries) + 1,
            time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            event=event,
            experiment=experiment,
            person=person,
            version=__version__,
            previous=entries[-1].digest if entries else _FIRST,
        )
        entry = replace(entry, **values).with_digest()  # type: ignore[arg-type]
        handle = os.open(self.path, GROWING_FILE, PRIVATE)
        try:
            # an entry that a power cut left unfinished: its answer has not left
            os.ftruncate(handle, len(self._content()))
            os.write(handle, json.dumps(entry.to_json(), sort_keys=True).encode() + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)
        return entry

    def _content(self) -> bytes:
        """The complete lines."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return b""
        return content[: content.rfind(b"\n") + 1]


@functools.lru_cache(maxsize=100_000)  # the node reads its ledger for every message
def _parse(line: bytes) -> LedgerEntry | None:
    """An entry whose digest is right; None for anything else."""
    try:
        tree = json.loads(line)
    except (ValueError, RecursionError):
        return None
    entry = LedgerEntry.from_json(tree)
    is_same = entry.to_json() == tree and _digest(entry) == entry.digest
    return entry if is_same else None


# ---- what a person is asked ----


def describe_experiment(config: Config) -> list[tuple[str, str]]:
    """(subject, text): what somebody who agrees to an experiment should know."""
    from fedgsca.federation.filters.claims import describe_aggregation
    from fedgsca.methods.base import head_rounds

    weights = "of the last layer" if config.model.frozen else "of the whole network"
    leaving = [f"the weights {weights}", "the number of training images"]
    if head_rounds(config):
        leaving.append("evidence heads (classifiers trained on your labels)")
    if config.federation.test is None:
        leaving.append("counts of your test images by class")
    protection = "clipped and noised" if config.privacy else "neither clipped nor noised"
    names = list(config.federation.sites or ())
    return [
        ("experiment", config.fingerprint()),
        ("method", f"{config.method}, {config.model.name}, {config.train.rounds} rounds"),
        ("hospitals", ", ".join(names)),
        ("leaves you", f"{', '.join(leaving)}; `fedgsca wire {config.method}` lists everything"),
        ("privacy", f"updates are {protection}"),
        ("aggregation", describe_aggregation(config, names)),
    ]


# ---- in the node ----


class Gate:
    """Between the network and the site worker: refuses what was not agreed to, and writes down."""

    def __init__(self, settings_path: Path, ask: Callable[[bytes], bytes]) -> None:
        self.settings_path = settings_path
        self.ask_worker = ask

    def ask(self, request: bytes) -> bytes:
        """The site's answer to an encoded message, or a refusal. An error: nothing may leave."""
        message = EncodedMessage.from_bytes(request)
        header = message.header
        try:
            settings = read_settings(self.settings_path)
            ledger = Ledger(settings)
            person = _who_allows(settings, ledger, str(header["terms"]["fingerprint"]))
            if person is not None:
                return self._answer(message, request, ledger, person)
            log.warning("%s. Fix: ./agree.sh of the kit shows it and asks you", NO_AGREEMENT)
            reply = Reply(settings.name, None, NO_AGREEMENT)
        except FedgscaError as error:
            log.error("[%s] %s. Fix: %s", error.code, error.message, error.fix)
            reply = Reply("", None, public_reason(error))
        return encode_reply(message.kind, int(header["round"]), reply).to_bytes()

    def _answer(
        self, message: EncodedMessage, request: bytes, ledger: Ledger, person: str
    ) -> bytes:
        answer = self.ask_worker(request)
        values = _describe(message, EncodedMessage.from_bytes(answer))
        if values is not None:
            event = "received" if message.kind == "model" else "sent"
            experiment = str(message.header["terms"]["fingerprint"])
            ledger.append(event, experiment, person, **values)
        return answer


def _who_allows(settings: SiteSettings, ledger: Ledger, experiment: str) -> str | None:
    if settings.data is None:
        return REHEARSAL
    agreement = ledger.agreement(experiment)
    return None if agreement is None else agreement.person


def _describe(message: EncodedMessage, answer: EncodedMessage) -> dict[str, object] | None:
    """The values of the entry about an answer; None for a refusal, which has no numbers."""
    header, weights, extras = decode(answer)
    if header["error"] is not None and not (weights or extras):
        return None
    content = answer.to_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if message.kind == "model":
        _, weights, files = decode(message)
        digest = files["sha256"].tobytes().decode()  # which the site has compared
        content = message.to_bytes()
    fields = [f"{header['num_samples']} images"] if header["num_samples"] else []
    if weights:
        size = sum(int(np.size(array)) for array in weights.values())
        fields.append(f"weights: {size} numbers")
    fields += [f"{name} {list(np.shape(array))}" for name, array in sorted(extras.items())]
    return {
        "kind": answer.kind,
        "round": int(header["round"]) + (answer.kind != "model"),
        "fields": tuple(fields),
        "bytes": len(content),
        "sha256": digest,
    }
