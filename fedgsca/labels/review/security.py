"""Everything that protects the review page: requests, keys, guesses, connections.

A local page listens on 127.0.0.1, but any web page that the browser has open may try to reach it,
and a hostile name server may let its own name point here. So every request must name this host (no
DNS rebinding), come from this page (no cross-site request), and contain a secret; every answer has
strict headers. `LocalAccess` knows one secret, that of the printed address. `NetworkAccess`, for a
page on a hospital's network, knows a personal link per reviewer. Either is exchanged for a cookie
with another secret. A link is looked up again with every request, so that one that is revoked or
has expired ends its open pages.

Nobody can guess a secret; a computer that tries gets thirty attempts a minute, so that it does not
load the server and is visible in the audit trail. A connection that only waits is closed: uvicorn
limits the time between two requests, but not that of a request's head (the body: web_app.py).
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http.cookies import CookieError, SimpleCookie
from typing import Any, ClassVar
from urllib.parse import parse_qs

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedgsca.errors import RunFolderError
from fedgsca.labels.review.people import LinkBook, PersonalLink, ReviewTrail, hash_token

log = logging.getLogger(__name__)
LINK = "fedgsca.link"  # key of the personal link in the scope of a request that is allowed
MAX_BODY = 64 * 1024  # bytes: a decision with a long note is a tenth of that
MAX_PATH = 200  # characters; Python refuses to read a number of some thousand digits
MAX_FAILURES, WINDOW_SECONDS = 30, 60.0  # wrong secrets of one computer
MAX_CLIENTS = 4096  # addresses in memory; the one that failed longest ago is forgotten first
IDLE_SECONDS = 8 * 3600.0  # a page that was left open on Friday does not work on Monday
MAX_PAGES = 20  # cookies of one link that work at the same time
HEAD_SECONDS = 10.0
HANDSHAKE_SECONDS = 10.0  # of TLS
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2, the oldest version that Python accepts
MAX_CLIENT_CONNECTIONS = 40  # of one address; a browser opens six
HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_ASK = "Ask the person who sent it for a new one.\n"
_UNAVAILABLE = "The server cannot check links now. Tell the person who started it.\n"
_REFUSALS = {
    "unknown": "Open the personal link that you were sent.\n",
    "revoked": f"This link was revoked. {_ASK}",
    "expired": f"This link has expired. {_ASK}",
    "signed-out": "This page was closed or not used for hours. Open your personal link again.\n",
}


# ---- who may send requests ----


@dataclass(frozen=True)
class Entry:
    """Who sent a request, or why it is refused."""

    refusal: PlainTextResponse | None = None
    # of a new cookie
    secret: str | None = None
    # None: the one reviewer of a local page
    link: PersonalLink | None = None


class AccessControl:
    """ASGI middleware: refuses foreign requests, asks who sends the others, seals every answer."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str], scheme: str, cookie: str) -> None:
        """Protect `app`; `hosts` are the Host headers that name this server, in lower case."""
        self.app = app
        self.hosts = tuple(hosts)
        self.scheme = scheme
        self.cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no lifespan, no websockets: returning without an answer closes the connection
        headers = Headers(scope=scope)
        refusal = refuse_foreign_request(scope, headers, self.hosts, self.scheme)
        cookie = None
        if refusal is None:
            entry = self.identify(scope, headers)
            refusal = entry.refusal or refuse_large_body(scope, headers)
            if refusal is None:
                scope[LINK] = entry.link
                cookie = None if entry.secret is None else self._cookie_line(entry.secret)
        await (refusal or self.app)(scope, receive, seal_answers(send, cookie))

    def identify(self, scope: Scope, headers: Headers) -> Entry:
        """Who sent a request of this page."""
        raise NotImplementedError

    def _cookie_line(self, secret: str) -> str:
        secure = " Secure;" if self.scheme == "https" else ""
        return f"{self.cookie}={secret};{secure} HttpOnly; SameSite=Strict; Path=/"


class LocalAccess(AccessControl):
    """A page of this machine: the token of the printed address opens it."""

    def __init__(self, app: ASGIApp, *, port: int, token: str) -> None:
        """Protect `app`, which is served on `port`."""
        hosts = (f"127.0.0.1:{port}", f"localhost:{port}")
        # cookies ignore ports: two reviews on one machine must not share a name
        super().__init__(app, hosts, "http", f"fedgsca-{port}")
        self.token = token
        self.session = secrets.token_urlsafe(32)

    def identify(self, scope: Scope, headers: Headers) -> Entry:
        """Whoever has the token or the cookie is the reviewer."""
        token = read_token(scope)
        if token is not None and is_equal(token, self.token):
            return Entry(secret=self.session)
        cookie = read_cookie(headers, self.cookie)
        if cookie is not None and is_equal(cookie, self.session):
            return Entry()
        text = "Open the address printed by `fedgsca review`: it contains the key.\n"
        return Entry(PlainTextResponse(text, 403))


@dataclass
class _PageAccess:
    """A cookie that was given to a browser."""

    link_id: str
    last_use: float


class NetworkAccess(AccessControl):
    """A page on a network: a personal link per reviewer."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Sequence[str],
        scheme: str,
        port: int,
        links: LinkBook,
        trail: ReviewTrail,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # browsers accept the prefix from https only, and then from no other host and for no path
        prefix = "__Host-" if scheme == "https" else ""
        super().__init__(app, hosts, scheme, f"{prefix}fedgsca-{port}")
        self.links = links
        self.trail = trail
        self.limit = AttemptLimit(clock)
        self._clock = clock
        # hash of a cookie -> its access, kept in memory only; the one used longest ago first
        self._pages: OrderedDict[str, _PageAccess] = OrderedDict()

    def sign_out(self, scope: Scope) -> None:
        """Forget the cookie of this request."""
        secret = read_cookie(Headers(scope=scope), self.cookie)
        if secret is not None:
            self._pages.pop(hash_token(secret), None)

    def identify(self, scope: Scope, headers: Headers) -> Entry:
        """The person whose link or cookie this is."""
        client = client_address(scope)
        try:
            self.links.refresh()
            token = read_token(scope)
            if token:
                return self._try_token(token, client)
            return self._try_cookie(headers, client)
        except RunFolderError as error:  # no links, or no trail: nobody gets in
            log.warning("%s", error)  # for the person at the terminal; it names paths
            return Entry(PlainTextResponse(_UNAVAILABLE, 503))

    def _try_token(self, token: str, client: str) -> Entry:
        if self.limit.is_blocked(client):  # the secret is not even compared
            return Entry(_too_many_attempts())
        link = self.links.find_token(token)
        if link is None:
            return self._refuse("unknown", client, None)
        problem = link.find_problem(datetime.now(UTC))
        if problem is not None:
            return self._refuse(problem, client, link)
        self.trail.write("opened", link.reviewer, link=link.id, address=client)
        return Entry(secret=self._open_page(link), link=link)

    def _open_page(self, link: PersonalLink) -> str:
        """A new secret for a cookie; the oldest of the same link gives way if there are many."""
        own_pages = [key for key, page in self._pages.items() if page.link_id == link.id]
        for key in own_pages[: max(0, len(own_pages) - MAX_PAGES + 1)]:
            del self._pages[key]
        secret = secrets.token_urlsafe(32)
        self._pages[hash_token(secret)] = _PageAccess(link.id, self._clock())
        return secret

    def _try_cookie(self, headers: Headers, client: str) -> Entry:
        secret = read_cookie(headers, self.cookie)
        if not secret:
            return Entry(PlainTextResponse(_REFUSALS["unknown"], 403))
        key = hash_token(secret)
        page = self._pages.get(key)
        if page is None:
            if self.limit.is_blocked(client):
                return Entry(_too_many_attempts())
            return self._refuse("signed-out", client, None)
        link = self.links.find_id(page.link_id)
        problem = "revoked" if link is None else link.find_problem(datetime.now(UTC))
        if problem is None and self._clock() - page.last_use > IDLE_SECONDS:
            problem = "signed-out"
        if problem == "signed-out":
            del self._pages[key]
        if problem is not None:  # a page of a revoked link stays known: it may ask again for why
            return self._refuse(problem, client, link)
        page.last_use = self._clock()
        self._pages.move_to_end(key)
        return Entry(link=link)

    def _refuse(self, reason: str, client: str, link: PersonalLink | None) -> Entry:
        if self.limit.count_failure(client):  # not every one: nobody can fill the disk with lines
            person = "" if link is None else link.reviewer
            self.trail.write("refused", person, reason=reason, address=client)
        return Entry(PlainTextResponse(_REFUSALS[reason], 403))


def client_address(scope: Scope) -> str:
    """The address of the other computer; headers of proxies are not believed."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def _too_many_attempts() -> PlainTextResponse:
    return PlainTextResponse(
        "Too many wrong links from this computer. Wait a minute.\n",
        429,
        headers={"retry-after": f"{WINDOW_SECONDS:.0f}"},
    )


# ---- requests and answers ----


def refuse_foreign_request(
    scope: Scope, headers: Headers, hosts: Sequence[str], scheme: str
) -> PlainTextResponse | None:
    """The answer to a request that names another host or comes from another page, else None."""
    host = headers.get("host", "").lower()
    if host not in hosts or len(headers.getlist("host")) != 1:
        return PlainTextResponse("This server answers only at its own address.\n", 421)
    if len(scope["path"]) > MAX_PATH:
        return PlainTextResponse("The address is too long.\n", 414)
    if scope["method"] not in ("GET", "HEAD", "POST"):
        return PlainTextResponse("This method is not allowed.\n", 405)
    if not _is_same_site(scope, headers, f"{scheme}://{host}"):
        return PlainTextResponse("This request comes from another page.\n", 403)
    return None


def refuse_large_body(scope: Scope, headers: Headers) -> PlainTextResponse | None:
    """The answer to a request whose body is too large or has no stated length, else None."""
    if scope["method"] == "POST" and not 0 <= _content_length(headers) <= MAX_BODY:
        return PlainTextResponse("The request is too large or states no length.\n", 413)
    return None


def seal_answers(send: Send, cookie: str | None) -> Send:
    """`send` with the strict headers in every answer, and a cookie if there is a new one."""

    async def send_sealed(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            if cookie is not None:
                headers["set-cookie"] = cookie
        await send(message)

    return send_sealed


def read_token(scope: Scope) -> str | None:
    """The token in the address of the page; None for any other request."""
    if scope["path"] != "/" or scope["method"] != "GET":
        return None
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    tokens: list[str] = query.get("token", [])
    return tokens[0] if tokens else None


def read_cookie(headers: Headers, name: str) -> str | None:
    """The value of a cookie; None if the browser sent none."""
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return None
    return None if cookie is None else cookie.value


def _is_same_site(scope: Scope, headers: Headers, own_origin: str) -> bool:
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    if scope["method"] == "POST":  # browsers always state where a POST comes from
        return origin == own_origin and site in (None, "same-origin")
    if scope["path"] == "/" and headers.get("sec-fetch-mode", "navigate") == "navigate":
        return True  # the address may be clicked anywhere; without the secret nothing is shown
    return site in (None, "same-origin", "none") and origin in (None, own_origin)


def is_equal(text: str, secret: str) -> bool:
    """Compare in constant time."""
    return secrets.compare_digest(text.encode("utf-8", "surrogatepass"), secret.encode())


def _content_length(headers: Headers) -> int:
    """The stated length; -1 if there is none."""
    text = headers.get("content-length", "")
    return int(text) if text.isdecimal() and len(text) < 10 else -1


# ---- guesses ----


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


# ---- connections ----


class TimedProtocol(H11Protocol):
    """uvicorn's protocol with a time limit for heads, and a limit of connections per client.

    One computer can neither hold connections open nor use up all of them.
    """

    # address -> its open connections, in the one event loop of the server
    num_connections: ClassVar[Counter[str]] = Counter()
    _address: str | None = None
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for the head of the first request; one connection too many is closed."""
        super().connection_made(transport)
        self._wait_for_head()
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if peer else ""
        self.num_connections[self._address] += 1
        if self.num_connections[self._address] > MAX_CLIENT_CONNECTIONS:
            self._close()

    def data_received(self, data: bytes) -> None:
        """Wait on while the head is incomplete; the application answers once it is complete."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait_for_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait, and count the connection no longer."""
        self._stop_waiting()
        if self._address is not None:
            self.num_connections[self._address] -= 1
            if self.num_connections[self._address] <= 0:
                del self.num_connections[self._address]
            self._address = None
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


class HandshakeTimer(asyncio.SelectorEventLoop):
    """An event loop whose TLS handshakes take ten seconds at most, instead of sixty."""

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:
        """As in the base class."""
        if options.get("ssl") is not None:
            options.setdefault("ssl_handshake_timeout", HANDSHAKE_SECONDS)
        return await super().create_server(*args, **options)
