"""Access control of the review server: who may send requests, and the headers of every answer.

The local server listens on 127.0.0.1, but any web page that the browser has open may try to reach
it, and a hostile name server may let its own name point here. So every request must name this host
(no DNS rebinding), come from this page (no cross-site request), and contain the secret. The server
for a network has the same rules and personal links: network_guard.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 64 * 1024  # bytes: a decision with a long note is a tenth of that
MAX_PATH = 200  # characters; Python refuses to read a number of some thousand digits
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


class Guard:
    """ASGI middleware of the local server: refuses foreign requests and seals every answer.

    The token of the printed address opens the page and is exchanged for a cookie with another
    secret.
    """

    command = "fedgsca review"  # prints the address

    def __init__(self, app: ASGIApp, *, port: int, token: str) -> None:
        """Protect `app`, which is served on `port`."""
        self.app = app
        self.token = token
        self.session = secrets.token_urlsafe(32)
        self.hosts = (f"127.0.0.1:{port}", f"localhost:{port}")
        # cookies ignore ports: two reviews on one machine must not share a name
        self.cookie = f"fedgsca-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no lifespan, no websockets: returning without an answer closes the connection
        headers = Headers(scope=scope)
        token = read_token(scope)
        has_token = token is not None and is_equal(token, self.token)
        refusal = refuse_foreign_request(scope, headers, self.hosts, "http")
        if refusal is None and not (has_token or self._has_cookie(headers)):
            refusal = PlainTextResponse(
                f"Open the address printed by `{self.command}`: it contains the key.\n", 403
            )
        if refusal is None:
            refusal = refuse_large_body(scope, headers)
        cookie = None
        if has_token and refusal is None:
            cookie = f"{self.cookie}={self.session}; HttpOnly; SameSite=Strict; Path=/"
        await (refusal or self.app)(scope, receive, seal_answers(send, cookie))

    def _has_cookie(self, headers: Headers) -> bool:
        value = read_cookie(headers, self.cookie)
        return value is not None and is_equal(value, self.session)


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
