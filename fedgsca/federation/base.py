"""The contract of the engine: how a payload reaches the sites, and who watches a run.

An engine moves messages. It knows neither methods nor metrics: the round loop (rounds.py) hands it
a payload and receives one reply per site, in the order of the sites' names; with partial
participation it also names the sites of the round. A site's work is
`SiteRunner.run_round` (local.py), whichever engine calls it, so the result of an experiment does
not depend on the engine.

A new engine is one file: a class with `exchange` and `close`, and a function decorated with
`@register_engine`, which the command line offers as a value of `--engine`. Built-in ones are in
kinds.py; other packages use the entry point group `fedgsca.federation.kinds`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from fedgsca.errors import ConfigError
from fedgsca.support.registry import Registry
from fedgsca.support.text import did_you_mean, one_line

if TYPE_CHECKING:
    from pathlib import Path

    from fedgsca.config import Config
    from fedgsca.federation.records import RoundRecord, RunResult
    from fedgsca.federation.simulation import Experiment
    from fedgsca.wire import Payload, Update


@dataclass(frozen=True)
class Reply:
    """A site's answer to a payload: an update, or the reason why there is none."""

    site: str
    update: Update | None
    error: str | None = None
    # simulations only: the quality of the site's decisions, measured against the true labels
    simulation_metrics: Mapping[str, float | None] = field(default_factory=dict)
    seconds: float = 0.0
    # deployments only: the round in which the site's memory begins, see answers.py
    memory_since: int | None = None
    # deployments only: how many training images the site had when it connected
    declared_samples: int | None = None
    # the payload of an earlier round that the update answers, if it is late (filters/lateness.py)
    late_to: Payload | None = None
    # an answer arrived, but nothing in it can be used: there is no update
    is_malformed: bool = False
    # nothing arrived: the site is not connected, or did not answer in time
    is_absent: bool = False

    def __post_init__(self) -> None:
        """The reason comes from another machine: make it one short, printable line."""
        if self.error is not None:
            object.__setattr__(self, "error", one_line(self.error))


class Engine(Protocol):
    """Delivers a payload to the sites of a round and returns the replies."""

    def exchange(self, payload: Payload, sites: Sequence[str] | None = None) -> Iterator[Reply]:
        """One reply per site, in the order of the sites' names; None: of all sites.

        Lazy is welcome: the round loop takes the replies one by one and keeps none of them.
        """
        ...

    def close(self) -> None:
        """Release processes and connections; called by whoever created the engine."""
        ...


@runtime_checkable
class SiteEvaluator(Protocol):
    """An engine that can also have the global model tested at the sites."""

    def evaluate_at_sites(self, payload: Payload) -> Iterator[Reply]:
        """One reply per site with the extras that site_evaluation.py declares."""
        ...


@runtime_checkable
class PatientEngine(Protocol):
    """An engine that can wait for sites and have a round repeated."""

    def wait_for_quorum(self, attempt: int, problem: str) -> bool:
        """After too few answers: wait, and say whether to try again. `attempt` counts from 0."""
        ...


class RunObserver:
    """Receives the events of a run. This one ignores them; each observer overrides what it needs.

    Progress on the terminal, status.json and trackers are observers; none of them changes a run.
    """

    def on_start(self, experiment: Experiment, first_round: int) -> None:
        """The data is ready; rounds before `first_round` were run earlier."""

    def on_history(self, rounds: Sequence[RoundRecord]) -> None:
        """The rounds that were run earlier, before a restart."""

    def on_site_done(self, round_index: int, reply: Reply) -> None:
        """A site has answered, or will not."""

    def on_round_done(self, record: RoundRecord, seconds: float) -> None:
        """A round is finished and saved."""

    def on_message(self, message: str) -> None:
        """Something that a person should know."""

    # ---- deployments only ----

    def on_connection(self, site: str, problem: str | None) -> None:
        """A site has said who it is, or why it cannot take part."""

    def on_waiting(self, sites: Sequence[str], subject: str) -> None:
        """From now on these sites are awaited: a connection, an update, or a test result."""

    def on_timeout(self, site: str, usual: float | None, timeout: float | None) -> None:
        """How long a site usually needs, and how long it is awaited this time, in seconds."""

    def on_pause(self, reason: str | None) -> None:
        """The run waits for sites; None: it goes on."""


class ObserverGroup(RunObserver):
    """Several observers as one: each event reaches them in their order."""

    def __init__(self, *observers: RunObserver | None) -> None:
        """None stands for an observer that a run does not have."""
        self.observers = tuple(item for item in observers if item is not None)

    def __getattribute__(self, name: str) -> Any:
        """Every event of RunObserver is passed on, also one that is added later."""
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def tell(*arguments: object) -> None:
            for observer in self.observers:
                getattr(observer, name)(*arguments)

        return tell


# ---- the values of --engine ----


class RunFunction(Protocol):
    """Runs an experiment, or continues it, in the folder `out`.

    `jobs` is how many sites may train at the same time on this machine.
    """

    def __call__(
        self, config: Config, out: Path, *, jobs: int = 1, observer: RunObserver | None = None
    ) -> RunResult | None: ...


@dataclass(frozen=True)
class EngineKind:
    """A value of `--engine`."""

    name: str
    description: str
    run: RunFunction


ENGINES: Registry[EngineKind] = Registry("fedgsca.federation.kinds")
F = TypeVar("F", bound=RunFunction)


def register_engine(name: str, description: str) -> Callable[[F], F]:
    """Decorator that offers a function as the engine `name`; `description` is a line of help."""

    def register(function: F) -> F:
        ENGINES.register(name, EngineKind(name, description, function))
        return function

    return register


def load_engines() -> Mapping[str, EngineKind]:
    """All engines by name: those of this package and those of plugins. Imports nothing heavy."""
    return ENGINES.load()


def find_engine(name: str) -> EngineKind:
    """The engine with this name."""
    engines = load_engines()
    if name not in engines:
        raise ConfigError(
            "cli.unknown-engine",
            f"unknown engine {name!r}",
            fix=f"{did_you_mean(name, engines)}use one of: {', '.join(sorted(engines))}",
        )
    return engines[name]
