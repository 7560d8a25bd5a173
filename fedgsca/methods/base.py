"""The contract of a method: four functions, a declaration of what travels, and typed options.

    start -> [ broadcast -> local_update at every site -> aggregate ] x rounds

The client half (`local_update`) runs inside the hospital and sees the payload and its own `Site`.
The server half (`start`, `broadcast`, `aggregate`) sees only what travelled. Stages live in the
server state and reach the sites in the payload. A method stores nothing in `self` between calls, so
that another process, or a restarted one, can continue the run.

A new method is one file: a class that derives from `Method` and is decorated with `@register`. Its
`Card` is all that tables, legends and time estimates know about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, TypeVar, cast

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedgsca.config import METHODS, Config
from fedgsca.methods.aggregate import count_samples, weighted_mean
from fedgsca.wire import Arrays, Extra, Payload, Update

if TYPE_CHECKING:
    from fedgsca.methods.site import Samples, Site

# part of a site's store ("": the method's own) -> name -> (n, ...), an entry for each sample
SampleMemory = Mapping[str, Mapping[str, np.ndarray]]
LOSS_MEMORY = "elr"  # the part of label_loss.py

# ranges of options
Share = Annotated[float, Field(ge=0, le=1)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]


class MethodOptions(BaseModel):
    """Options of a method: immutable and typed; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PublishedOptions(MethodOptions):
    """Options of a method whose authors published code, with a switch that follows that code."""

    # the options whose default differs from the authors' code, with the value that they have there
    OFFICIAL: ClassVar[Mapping[str, object]] = {}

    official: bool = Field(
        default=False,
        description="every option as in the authors' code; options that are set explicitly win",
    )

    @model_validator(mode="before")
    @classmethod
    def _follow_the_authors(cls, values: Any) -> Any:
        """Fill the options that are not given with the authors' values, if that is asked for."""
        if isinstance(values, Mapping) and values.get("official") in (True, "true"):
            return {**cls.OFFICIAL, **values}
        return values


def rounds_of(share: float, rounds: int) -> int:
    """A stage given as a share of all rounds, in rounds.

    At least one, so that no stage vanishes from a short run.
    """
    return max(1, round(share * rounds))


@dataclass(frozen=True)
class Card:
    """What tables, legends and estimates say about a method. No step of a run reads it."""

    # as in reports and tables; without one, the name
    title: str = ""
    # the publication: authors, title, venue and year
    paper: str = ""
    # position in tables and legends; the methods of the paper come first, in its order
    order: int = 100
    # one of the eight methods that the paper compares
    in_paper: bool = False
    # cost of a round in passes over a site's data: a forward pass is 1, a training pass is 3
    passes: float = 3.0


@dataclass(frozen=True)
class ServerState:
    """Everything that the coordinator remembers between rounds. A checkpoint holds exactly this."""

    # the next round to run, zero-based
    round: int
    weights: Arrays
    # named arrays of any size, such as a selector, a stage or the momentum of every weight
    extras: Arrays = field(default_factory=dict)


def average_models(
    state: ServerState,
    updates: Iterable[Update],
    weight: Callable[[Update], float] = count_samples,
) -> ServerState:
    """theta <- sum_k w_k theta_k / sum_k w_k; by default w_k = n_k. Without updates: as it was.

    The extras of the state are kept. A server that needs the mean for something else calls
    `fedgsca.methods.aggregate.weighted_mean`.
    """
    weights = weighted_mean(updates, state.weights, weight)
    return ServerState(state.round + 1, weights, state.extras)


@dataclass(frozen=True)
class Logged:
    """What a method leaves for the log and the report, beside what travels. All of it is optional.

    events      uploads that are 1 when something unusual happened at a site in a round, and the
                clause that describes it, such as {"guard": "the collapse guard stepped in"}
    stage       the stage that makes the method more than training on all given labels, and
    stage_ran   whether it ran at a site in a round, from the site's numbers in the log and its
                number of samples; a table says where it never did
    """

    events: Mapping[str, str] = field(default_factory=dict)
    stage: str = ""
    stage_ran: Callable[[Mapping[str, Any], int], bool] | None = None


@dataclass(frozen=True)
class Lateness:
    """Whether an update that arrives rounds later still fits the method, and why.

    `stage` names a download: an update counts only if its value is the same in both rounds.
    """

    reason: str
    is_tolerated: bool = False
    stage: str | None = None


class Method(Protocol):
    """A federated learning method. `name` and `local_update` have no default.

    Without functions of its own, the server half is FedAvg's: the model travels, and nothing else.
    `uploads` and `downloads` declare every array that travels beside the weights. What is not
    declared is refused.
    """

    # as in the configuration and on the command line, lower case
    name: ClassVar[str]
    card: ClassVar[Card] = Card()
    # the loss of a given label is `train.loss` (label_loss.py), not one of the method
    takes_loss: ClassVar[bool] = False
    # reads `site.evidence`: the run has evidence, with or without `audit.enabled`
    reads_evidence: ClassVar[bool] = False
    # the classifier head that the method trains: "linear" or "centroid" (FedGP)
    head: ClassVar[str] = "linear"
    uploads: ClassVar[Mapping[str, Extra]] = {}
    downloads: ClassVar[Mapping[str, Extra]] = {}
    logged: ClassVar[Logged] = Logged()
    # may late updates count (`federation.staleness`)?
    late: ClassVar[Lateness] = Lateness("it does not declare that they fit")
    Options: ClassVar[type[MethodOptions]] = MethodOptions

    options: MethodOptions
    # the length of the run
    rounds: int

    def __init__(self, options: MethodOptions, rounds: int) -> None:
        self.options = options
        self.rounds = rounds

    def start(self, weights: Arrays, seed: int) -> ServerState:
        """The state before the first round. `seed` is the experiment's, for draws at the server."""
        return ServerState(0, weights)

    def broadcast(self, state: ServerState, round: int) -> Payload:
        """The message to every site in a round: what of the state is declared as a download."""
        extras = {name: state.extras[name] for name in self.downloads if name in state.extras}
        return Payload(round, state.weights, extras)

    def local_update(self, payload: Payload, site: Site) -> Update:
        """One round of training at a site. This runs inside the hospital."""
        ...

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """The next state. The updates arrive one by one, in the order of the sites' names."""
        return average_models(state, updates)

    def asks_all_sites(self, state: ServerState) -> bool:
        """Whether the next round needs all sites, also if `federation.participation` is partial."""
        return False

    def new_memory(self, samples: Samples, site: str, seed: int) -> SampleMemory:
        """What a site remembers about samples that it has never seen: (n, ...) for all n of them.

        These arrays of its memory, and no others, have an entry for each sample. When a patient
        leaves or images are added, entries follow their samples, and new samples get these.
        """
        zeros = np.zeros((len(samples), samples.num_classes), np.float32)
        return {LOSS_MEMORY: {"targets": zeros}}

    def trim_late(self, update: Update) -> Update:
        """What of a late update still counts: without extras that belong to their round only."""
        return update


class WrappedMethod(Method):
    """A method with something beside it; what is not overridden is the method's own.

    In states and messages, the names of what is beside it begin with `prefix`, and the method does
    not see them.
    """

    name = ""  # that of the method
    prefix: ClassVar[str]

    def __init__(self, method: Method) -> None:
        super().__init__(method.options, method.rounds)
        self.method = method
        # the declarations of a method are attributes of its class; here they are the method's own
        names = ("name", "card", "head", "logged", "late", "uploads", "downloads")
        vars(self).update({name: getattr(method, name) for name in names})

    def start(self, weights: Arrays, seed: int) -> ServerState:
        """As the method starts."""
        return self.method.start(weights, seed)

    def broadcast(self, state: ServerState, round: int) -> Payload:
        """The method's message."""
        return self.method.broadcast(self.split_state(state)[0], round)

    def local_update(self, payload: Payload, site: Site) -> Update:
        """The method's round."""
        return self.method.local_update(payload, site)

    def asks_all_sites(self, state: ServerState) -> bool:
        """As the method asks."""
        return self.method.asks_all_sites(self.split_state(state)[0])

    def new_memory(self, samples: Samples, site: str, seed: int) -> SampleMemory:
        """What the method remembers."""
        return self.method.new_memory(samples, site, seed)

    def trim_late(self, update: Update) -> Update:
        """As the method trims."""
        return self.method.trim_late(update)

    def split(self, extras: Arrays) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """(of the method, of what is beside it)."""
        own_extras: dict[str, np.ndarray] = {}
        other_extras: dict[str, np.ndarray] = {}
        for name, array in extras.items():
            (other_extras if name.startswith(self.prefix) else own_extras)[name] = array
        return own_extras, other_extras

    def split_state(self, state: ServerState) -> tuple[ServerState, dict[str, np.ndarray]]:
        """The state as the method knows it, and what is beside it."""
        own_extras, other_extras = self.split(state.extras)
        return replace(state, extras=own_extras), other_extras


M = TypeVar("M", bound=type)


def register(method: M) -> M:
    """Class decorator that offers a method to the command line, reports, engines and tests."""
    definition = cast("type[Method]", method)
    if not definition.card.title:
        definition.card = replace(definition.card, title=definition.name)
    METHODS.register(definition.name, method)
    return method


def load_methods() -> Mapping[str, type[Method]]:
    """All methods by name, in their table order: those of this package and those of plugins."""
    methods = cast("Mapping[str, type[Method]]", METHODS.load())
    names = sorted(methods, key=lambda name: (methods[name].card.order, name))
    return {name: methods[name] for name in names}


def paper_methods() -> tuple[str, ...]:
    """The methods that the paper compares, in its order."""
    return tuple(name for name, method in load_methods().items() if method.card.in_paper)


def make_method(name: str, options: Mapping[str, object], rounds: int) -> Method:
    """The method `name` with its options checked; `rounds` is the length of the run."""
    method = load_methods()[name]
    return method(method.Options.model_validate(options), rounds)


# ---- with or without evidence heads ----


def head_rounds(config: Config) -> range:
    """The rounds in which the sites renew their evidence; empty: there is none.

    They run where something reads them: the method, an audit, or a score on held-out images. Under
    `privacy` they are off: four heads per round would need noise of their own,
    which would leave nothing of the evidence.
    """
    reads_evidence = load_methods()[config.method].reads_evidence
    is_wanted = reads_evidence or config.audit.enabled or config.evidence.holdout > 0
    if config.privacy is not None or not is_wanted:
        return range(0)
    return config.evidence.renewal_rounds(config.train.rounds)


def compose_method(config: Config) -> Method:
    """The configured method, with evidence heads beside it where something reads them."""
    method = make_method(config.method, config.options, config.train.rounds)
    if config.aggregation.server != "mean":
        from fedgsca.methods.parts.server_steps import MethodWithServerSteps

        method = MethodWithServerSteps(
            method, config.aggregation.server, config.aggregation.server_rate
        )
    renewal_rounds = head_rounds(config)
    if not renewal_rounds:
        return method
    from fedgsca.methods.parts.evidence_heads import MethodWithHeads

    # a site that is asked for the first time after the heads' training still needs them
    keeps_heads = config.federation.is_partial
    return MethodWithHeads(method, renewal_rounds, config.evidence.holdout, keeps_heads=keeps_heads)
