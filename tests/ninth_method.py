"""A ninth method, registered for the duration of a test: nothing else in the package names it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedgsca.config import METHODS
from fedgsca.methods.base import Card, load_methods, register
from fedgsca.methods.fedavg import FedAvg


class NinthMethod(FedAvg):
    """FedAvg under another name."""

    name = "fednine"
    card = Card(title="Nine Lives", passes=6.0)


@contextmanager
def ninth_method() -> Iterator[type[NinthMethod]]:
    """Offer the method to the command line, tables and reports."""
    load_methods()  # the others first: otherwise they would be registered inside of the test
    register(NinthMethod)
    try:
        yield NinthMethod
    finally:
        METHODS.unregister(NinthMethod.name)
