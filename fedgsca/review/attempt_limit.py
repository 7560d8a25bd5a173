"""How often one computer may present a wrong secret: thirty times a minute.

The secrets cannot be guessed anyway; the limit keeps a program that tries from loading the server,
and makes it visible in the audit trail.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict, deque
from collections.abc import Callable

MAX_FAILURES = 30
WINDOW_SECONDS = 60.0
MAX_CLIENTS = 4096  # addresses in memory; the one that failed longest ago is forgotten first


class AttemptLimit:
    """Counts the failures of every address."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def is_blocked(self, client: str) -> bool:
        """Whether this address has failed too often in the last minute."""
        times = self._failures.get(network_of(client))
        if times is None:
            return False
        self._forget_old(times)
        return len(times) >= MAX_FAILURES

    def count_failure(self, client: str) -> bool:
        """Remember a failure; True for the first one of a minute, and for the one that blocks."""
        key = network_of(client)
        times = self._failures.setdefault(key, deque(maxlen=MAX_FAILURES))
        self._failures.move_to_end(key)
        while len(self._failures) > MAX_CLIENTS:
            self._failures.popitem(last=False)
        self._forget_old(times)
        is_full = len(times) == MAX_FAILURES
        times.append(self._clock())
        return len(times) == 1 or (len(times) == MAX_FAILURES and not is_full)

    def _forget_old(self, times: deque[float]) -> None:
        oldest = self._clock() - WINDOW_SECONDS
        while times and times[0] <= oldest:
            times.popleft()


def network_of(client: str) -> str:
    """The address; of IPv6 its first 64 bits, because one computer has all the others."""
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return client
    if address.version == 4:
        return str(address)
    mapped_address = address.ipv4_mapped
    if mapped_address is not None:
        return str(mapped_address)
    return str(ipaddress.ip_network((address, 64), strict=False))
