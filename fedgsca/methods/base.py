"""What a method is: four functions, a declaration of what crosses, and typed options.

    start -> [ broadcast -> local_update at every site -> aggregate ] x rounds

The client half (local_update) runs inside the hospital and sees the payload and its own Site. The server half (start, broadcast,
aggregate) sees only what crossed the wire. Stages live in the server state and travel in the payload. A method keeps nothing in
`self` between calls: another process, or a restarted one, must be able to go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar, cast

from pydantic import BaseModel, ConfigDict

from fedgsca.config import METHODS
from fedgsca.wire import Arrays, Extra, Payload, Update

if TYPE_CHECKING:
    from fedgsca.site import Site


class MethodOptions(BaseModel):
    """Options of a method: immutable, typed, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class ServerState:
    """All that the coordinator remembers between rounds; this is what a checkpoint holds."""

    round: int  # the next round to run, zero based
    weights: Arrays
    extras: Arrays = field(default_factory=dict)  # selector, stage, verdicts: small named arrays


class Method(Protocol):
    """See the module's text. `uploads` and `downloads` name every array that travels beside the weights."""

    name: ClassVar[str]
    paper: ClassVar[str]
    head: ClassVar[str]  # the classifier head it needs: "linear" for all but FedGP
    uploads: ClassVar[Mapping[str, Extra]]
    downloads: ClassVar[Mapping[str, Extra]]
    Options: ClassVar[type[MethodOptions]]

    def __init__(self, options: MethodOptions, rounds: int) -> None: ...
    def start(self, weights: Arrays) -> ServerState: ...
    def broadcast(self, state: ServerState, round: int) -> Payload: ...
    def local_update(self, payload: Payload, site: Site) -> Update: ...  # runs inside the hospital
    def aggregate(
        self, state: ServerState, updates: Iterable[Update]
    ) -> ServerState: ...  # one pass, in order of site names


M = TypeVar("M", bound=type)


def register(method: M) -> M:
    """Class decorator: makes the method known to the command line, the tables, every engine and the contract tests."""
    METHODS.register(method.name, method)  # type: ignore[attr-defined]
    return method


def load_methods() -> Mapping[str, type[Method]]:
    """All methods by name: those of this package and those of plugins."""
    return cast("Mapping[str, type[Method]]", METHODS.load())


def make_method(name: str, options: Mapping[str, object], rounds: int) -> Method:
    """The method with its options checked; `rounds` is the length of the run."""
    method = load_methods()[name]
    return method(method.Options.model_validate(options), rounds)
