"""A time limit for the head of a request: a connection that only waits is closed.

uvicorn limits the time between two requests, but not that from the first byte of a request to the
end of its head. The limit for the body is in web_app.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
MAX_CLIENT_CONNECTIONS = 40  # of one address; a browser opens six


class TimedProtocol(H11Protocol):
    """uvicorn's protocol with a time limit for heads."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for the head of the first request."""
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Wait on while the head is incomplete; the application answers once it is complete."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait_for_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._close)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


class NetworkProtocol(TimedProtocol):
    """The same with a limit per client: one computer cannot use up all connections."""

    # address -> its open connections, in the one event loop of the server
    num_connections: ClassVar[Counter[str]] = Counter()
    _address: str | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection; one too many is closed at once."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if peer else ""
        self.num_connections[self._address] += 1
        if self.num_connections[self._address] > MAX_CLIENT_CONNECTIONS:
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection no longer."""
        if self._address is not None:
            self.num_connections[self._address] -= 1
            if self.num_connections[self._address] <= 0:
                del self.num_connections[self._address]
            self._address = None
        super().connection_lost(exc)
