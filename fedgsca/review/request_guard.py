"""The door of the review server: who may ask, from where, and what every answer carries.

The server listens on 127.0.0.1, but any web page the browser has open may try to reach it, and a hostile name server may make its own
name point here. So each request must name this host (no rebinding), come from this page (no cross-site request), and carry the secret.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY = 64 * 1024  # bytes: a decision with a long note is a tenth of that
HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """ASGI middleware. The token of the printed address opens the page and is exchanged for a cookie with another secret."""

    def __init__(self, app: ASGIApp, *, port: int, token: str) -> None:
        self.app, self.token, self.session = app, token, secrets.token_urlsafe(32)
        self.hosts = (f"127.0.0.1:{port}", f"localhost:{port}")
        self.cookie = f"fedgsca-{port}"  # cookies do not know ports: two reviews on one machine must not share a name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no lifespan, no websockets: leaving without an answer closes the connection
        headers = Headers(scope=scope)
        fresh = self._token_given(scope)
        refusal = self._refuse(scope, headers, fresh)

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answer[name] = value
                if fresh and refusal is None:
                    answer["set-cookie"] = (
                        f"{self.cookie}={self.session}; HttpOnly; SameSite=Strict; Path=/"
                    )
            await send(message)

        await (refusal or self.app)(scope, receive, sealed)

    def _refuse(self, scope: Scope, headers: Headers, fresh: bool) -> PlainTextResponse | None:
        """The refusal, or None: come in."""
        host = headers.get("host", "")
        if host not in self.hosts or len(headers.getlist("host")) != 1:
            return PlainTextResponse("This server answers only to its own address.\n", 421)
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("Not allowed.\n", 405)
        if not self._same_site(scope, headers, host):
            return PlainTextResponse("This request comes from another page.\n", 403)
        if not (fresh or self._cookie_given(headers)):
            return PlainTextResponse(
                "Open the address that `fedgsca review` printed: it holds the key.\n", 403
            )
        if scope["method"] == "POST" and not 0 <= _length(headers) <= BODY:
            return PlainTextResponse("The request is too large or has no length.\n", 413)
        return None

    def _same_site(self, scope: Scope, headers: Headers, host: str) -> bool:
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if scope["method"] == "POST":  # browsers always say where a POST comes from
            return origin == f"http://{host}" and site in (None, "same-origin")
        if scope["path"] == "/" and headers.get("sec-fetch-mode", "navigate") == "navigate":
            return True  # the address may be clicked anywhere; without the secret nothing is shown
        return site in (None, "same-origin", "none") and origin in (None, f"http://{host}")

    def _token_given(self, scope: Scope) -> bool:
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])
        return scope["path"] == "/" and scope["method"] == "GET" and _same(given[0], self.token)

    def _cookie_given(self, headers: Headers) -> bool:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return found is not None and _same(found.value, self.session)


def _same(given: str, secret: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "surrogatepass"), secret.encode())


def _length(headers: Headers) -> int:
    text = headers.get("content-length", "")
    return int(text) if text.isdecimal() and len(text) < 10 else -1
