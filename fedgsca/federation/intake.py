"""The replies of one round on their way to the method: who may answer, filters, and what is logged.

    engine.exchange --> Intake.updates --> method.aggregate

A reply that nobody asked for, a second one and one without a usable update are left out here;
whatever is an update passes the filters (fedgsca/federation/filters). A site that is left out never
stops a round, as long as a quorum remains.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedgsca.config import Config
from fedgsca.errors import QuorumError, UpdateError
from fedgsca.federation.base import Reply, RunObserver
from fedgsca.federation.filters.base import RoundContext, UpdateContext, UpdateFilter
from fedgsca.federation.privacy import spent_epsilon
from fedgsca.federation.records import PrivacyBudget, RoundRecord, SiteRecord, SiteValue
from fedgsca.federation.simulation import Experiment
from fedgsca.metrics import stability
from fedgsca.support.text import one_line
from fedgsca.wire import Payload, Update, num_bytes

LOG_LIMIT = 64  # larger arrays of an update are not written to metrics.jsonl
_MAX_STRANGER_NAME = 80  # characters
_MAX_STRANGERS = 10  # in a round; further ones are counted


def quorum_of(config: Config, sites: int) -> int:
    """How many usable updates a round needs."""
    return max(1, math.ceil(config.federation.quorum * sites))


@dataclass
class _Receipt:
    """What the log needs of an update, which is forgotten when the next one comes."""

    num_samples: int
    num_bytes: int
    drift: float  # change of the weights at the site
    values: dict[str, SiteValue]


@dataclass
class Intake:
    """The replies of one round."""

    payload: Payload
    names: Sequence[str]  # the sites of the run
    asked_sites: tuple[str, ...] | None  # None: all
    filters: Sequence[UpdateFilter]
    observer: RunObserver
    trainable: Sequence[str]  # arrays
    folder: Path
    logged: Container[str] | None = None  # extras for metrics.jsonl; None: all
    site_seconds: dict[str, float] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)  # site -> reason
    absent_sites: set[str] = field(default_factory=set)  # those of `refusals` that said nothing
    # (name, code of the error) -> how often
    num_refusals: dict[tuple[str, str], int] = field(default_factory=dict)
    used_sites: list[str] = field(default_factory=list)
    _receipts: dict[str, _Receipt] = field(default_factory=dict)
    _strangers: set[str] = field(default_factory=set)  # names of sites that nobody knows
    _answered_sites: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.context = RoundContext(
            self.payload, self.folder, self.observer.on_message, self._refuse
        )

    @property
    def expected_sites(self) -> Sequence[str]:
        """The sites that were asked."""
        return self.names if self.asked_sites is None else self.asked_sites

    # ---- the way of an update ----

    def updates(self, replies: Iterator[Reply]) -> Iterator[Update]:
        """The usable updates, in the order of the replies. A site without one is left out."""
        for item in self.filters:
            item.start(self.context)
        updates = self._examine(replies)
        for item in self.filters:
            updates = item.judge(updates, self.context)
        for update in updates:
            self.used_sites.append(update.site)
            yield update

    def _examine(self, replies: Iterator[Reply]) -> Iterator[Update]:
        for reply in replies:
            try:
                self._check_expected(reply)
                self.observer.on_site_done(self.payload.round, reply)
                if reply.is_absent:
                    self.absent_sites.add(reply.site)
                self.site_seconds[reply.site] = reply.seconds
                update = _read_update(reply)
                for item in self.filters:
                    update = item.examine(update, UpdateContext(reply, self.context))
            except UpdateError as error:
                self._refuse(reply.site, error)
                continue
            self._receipts[update.site] = self._receipt(update, reply)
            yield update
        self._report_repetitions()

    def _check_expected(self, reply: Reply) -> None:
        """Engines ask every site once; a reply that nobody waits for must not count all the same.

        An update for an earlier round may come from a site that this round does not ask. A reply
        without content is the engine's own: it says why there is no answer.
        """
        if reply.update is None and not reply.is_malformed:
            return
        names = self.expected_sites if reply.late_to is None else self.names
        if reply.site not in names:
            raise UpdateError(
                "update.not-asked",
                "it was not asked in this round",
                fix="look at the engine that carries the messages",
            )
        if reply.site in self._answered_sites:
            raise UpdateError(
                "update.second-reply",
                "it answered twice in this round; the second answer is left out",
                fix="look for a second node that runs under the name of this site",
            )
        self._answered_sites.add(reply.site)

    def _receipt(self, update: Update, reply: Reply) -> _Receipt:
        return _Receipt(
            update.num_samples,
            num_bytes(update.weights) + num_bytes(update.extras),
            stability(self.payload.weights, update.weights, self.trainable),
            {**_loggable_extras(update, self.logged), **reply.simulation_metrics},
        )

    # ---- sites that are left out ----

    def _refuse(self, site: str, error: UpdateError) -> None:
        reason = one_line(error.message)  # it may quote names that the site has chosen
        name = self._display_name(site)
        key = (name, error.code)
        self.num_refusals[key] = self.num_refusals.get(key, 0) + 1
        if self.num_refusals[key] > 1:  # thousands of answers are one message
            return
        self.refusals[name] = reason
        state = "absent" if site in self.absent_sites else "left out"
        self.observer.on_message(f"round {self.payload.round + 1}: {name} is {state}: {reason}")

    def _display_name(self, site: str) -> str:
        """The name of a site in messages and files. A stranger may call itself anything.

        All strangers beyond the first few have one name: they must not fill the log.
        """
        if site in self.names:
            return site
        name = one_line(site, _MAX_STRANGER_NAME)
        if name in self.names:  # it looks like one of ours
            name = f"{name} (another name)"
        if name not in self._strangers and len(self._strangers) >= _MAX_STRANGERS:
            return "other unknown names"
        self._strangers.add(name)
        return name

    def _report_repetitions(self) -> None:
        for (name, _), count in self.num_refusals.items():
            if count > 1:
                self.observer.on_message(
                    f"round {self.payload.round + 1}: {name} sent {count:,} such answers"
                )

    # ---- the end of the round ----

    def check_quorum(self, config: Config) -> None:
        """Stop the run if too few sites sent a usable update."""
        names = self.expected_sites
        quorum = quorum_of(config, len(names))
        if len(self.used_sites) >= quorum:
            return
        site, reason = next(iter(self.refusals.items()), ("no site", "no reply"))
        raise QuorumError(
            "round.quorum-not-reached",
            f"round {self.payload.round + 1}: {len(self.used_sites)} of {len(names)} sites sent a "
            f"usable update, but {quorum} are needed; the first problem is at {site}: {reason}",
            fix="fix this site and the others named in the log, then run `fedgsca resume`;"
            " finished rounds are kept",
        )

    def finish(self, experiment: Experiment) -> RoundRecord:
        """Let the filters remember the round; returns its line of metrics.jsonl, without scores."""
        for item in self.filters:
            item.remember(self.used_sites, self.context)
        receipts = {site: self._receipts[site] for site in self.used_sites}
        sites = {}
        for site, receipt in receipts.items():
            values = {**receipt.values, **self.context.site_values.get(site, {})}
            sites[site] = SiteRecord(receipt.num_samples, values)
        drift = [receipt.drift for receipt in receipts.values()]
        payload_bytes = num_bytes(self.payload.weights) + num_bytes(self.payload.extras)
        return RoundRecord(
            round=self.payload.round,
            lr=experiment.train.lr_at(self.payload.round),
            stability=float(np.mean(drift)) if drift else None,
            bytes_up=sum(receipt.num_bytes for receipt in receipts.values()),
            bytes_down=len(self.expected_sites) * payload_bytes,
            sites=sites,
            asked_sites=self.asked_sites,
            refusals=self.refusals,
            absent_sites=tuple(sorted(self.absent_sites)) or None,
            distant_sites=self.context.distant_sites or None,
            privacy=_budget(experiment.config, self.payload.round + 1),
        )


def _read_update(reply: Reply) -> Update:
    """The update of a reply. Raises UpdateError if there is none, or one of another site."""
    update = reply.update
    if update is None and reply.is_malformed:
        raise UpdateError(
            "update.malformed-message",
            reply.error or "its message cannot be used",
            fix="check that the site runs the same version; look for a damaged connection",
        )
    if update is None:
        raise UpdateError("update.no-reply", reply.error or "no reply", fix="see the site's log")
    if update.site != reply.site:
        raise UpdateError(
            "update.wrong-site",
            f"the update is signed {update.site!r}",
            fix="let every site answer only for itself",
        )
    return update


def _loggable_extras(update: Update, logged: Container[str] | None) -> dict[str, SiteValue]:
    """Small extras as plain numbers and lists; a value that is not finite becomes None."""
    values: dict[str, SiteValue] = {}
    for name, array in update.extras.items():
        if np.size(array) <= LOG_LIMIT and (logged is None or name in logged):
            plain = np.asarray(array).astype(object)
            plain[np.asarray(~np.isfinite(array))] = None
            values[name] = plain.tolist()
    return values


def _budget(config: Config, rounds: int) -> PrivacyBudget | None:
    epsilon = spent_epsilon(config, rounds)
    if epsilon is None or config.privacy is None:
        return None
    return PrivacyBudget(epsilon, config.privacy.delta)
