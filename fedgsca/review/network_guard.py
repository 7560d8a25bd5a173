"""Access control of the review server for a network: a personal link per reviewer.

The rules of request_guard.py apply here, too. A link opens the page and is exchanged for a cookie
with another secret, which is kept as a hash and in memory only. With every request the link is
looked up again, so that one that is revoked or has expired ends its open pages.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fedgsca.errors import RunFolderError
from fedgsca.review.attempt_limit import WINDOW_SECONDS, AttemptLimit
from fedgsca.review.links import LinkBook, PersonalLink, hash_token
from fedgsca.review.request_guard import (
    read_cookie,
    read_token,
    refuse_foreign_request,
    refuse_large_body,
    seal_answers,
)
from fedgsca.review.trail import ReviewTrail

log = logging.getLogger(__name__)
LINK = "fedgsca.link"  # key of the personal link in the scope of a request that is allowed
IDLE_SECONDS = 8 * 3600.0  # a page that was left open on Friday does not work on Monday
MAX_PAGES = 20  # cookies of one link that work at the same time
_ASK = "Ask the person who sent it for a new one.\n"
_UNAVAILABLE = "The server cannot check links now. Tell the person who started it.\n"
_REFUSALS = {
    "unknown": "Open the personal link that you were sent.\n",
    "revoked": f"This link was revoked. {_ASK}",
    "expired": f"This link has expired. {_ASK}",
    "signed-out": "This page was closed or not used for hours. Open your personal link again.\n",
}


@dataclass
class _PageAccess:
    """A cookie that was given to a browser."""

    link_id: str
    last_use: float


@dataclass(frozen=True)
class _Verdict:
    """Who sent a request, or why it is refused."""

    link: PersonalLink | None
    refusal: PlainTextResponse | None
    new_secret: str | None = None


class NetworkGuard:
    """ASGI middleware that lets reviewers in by their links and seals every answer."""

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
        """Protect `app`; `hosts` are the Host headers that name this server, in lower case."""
        self.app = app
        self.hosts = tuple(hosts)
        self.scheme = scheme
        self.links = links
        self.trail = trail
        self.limit = AttemptLimit(clock)
        self._clock = clock
        # hash of a cookie -> its access; the one that was used longest ago first
        self._pages: OrderedDict[str, _PageAccess] = OrderedDict()
        # browsers accept the prefix from https only, and then from no other host and for no path
        prefix = "__Host-" if scheme == "https" else ""
        self.cookie = f"{prefix}fedgsca-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        refusal = refuse_foreign_request(scope, headers, self.hosts, self.scheme)
        cookie = None
        if refusal is None:
            verdict = self._judge(scope, headers)
            refusal = verdict.refusal or refuse_large_body(scope, headers)
            if refusal is None:
                scope[LINK] = verdict.link
            if refusal is None and verdict.new_secret is not None:
                cookie = self._cookie_line(verdict.new_secret)
        await (refusal or self.app)(scope, receive, seal_answers(send, cookie))

    def sign_out(self, scope: Scope) -> None:
        """Forget the cookie of this request."""
        secret = read_cookie(Headers(scope=scope), self.cookie)
        if secret is not None:
            self._pages.pop(hash_token(secret), None)

    def _cookie_line(self, secret: str) -> str:
        secure = " Secure;" if self.scheme == "https" else ""
        return f"{self.cookie}={secret};{secure} HttpOnly; SameSite=Strict; Path=/"

    def _judge(self, scope: Scope, headers: Headers) -> _Verdict:
        client = client_address(scope)
        try:
            self.links.refresh()
            token = read_token(scope)
            if token:
                return self._judge_token(token, client)
            return self._judge_cookie(headers, client)
        except RunFolderError as error:  # no links, or no trail: nobody gets in
            log.warning("%s", error)  # for the person at the terminal; it names paths
            return _Verdict(None, PlainTextResponse(_UNAVAILABLE, 503))

    def _judge_token(self, token: str, client: str) -> _Verdict:
        if self.limit.is_blocked(client):  # the secret is not even compared
            return _Verdict(None, _too_many_attempts())
        link = self.links.find_token(token)
        if link is None:
            return self._refuse("unknown", client, None)
        problem = link.find_problem(datetime.now(UTC))
        if problem is not None:
            return self._refuse(problem, client, link)
        self.trail.write("opened", link.reviewer, link=link.id, address=client)
        return _Verdict(link, None, self._open_page(link))

    def _open_page(self, link: PersonalLink) -> str:
        """A new secret for a cookie; the oldest of the same link gives way if there are many."""
        own_pages = [key for key, page in self._pages.items() if page.link_id == link.id]
        for key in own_pages[: max(0, len(own_pages) - MAX_PAGES + 1)]:
            del self._pages[key]
        secret = secrets.token_urlsafe(32)
        self._pages[hash_token(secret)] = _PageAccess(link.id, self._clock())
        return secret

    def _judge_cookie(self, headers: Headers, client: str) -> _Verdict:
        secret = read_cookie(headers, self.cookie)
        if not secret:
            return _Verdict(None, PlainTextResponse(_REFUSALS["unknown"], 403))
        key = hash_token(secret)
        page = self._pages.get(key)
        if page is None:
            if self.limit.is_blocked(client):
                return _Verdict(None, _too_many_attempts())
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
        return _Verdict(link, None)

    def _refuse(self, reason: str, client: str, link: PersonalLink | None) -> _Verdict:
        if self.limit.count_failure(client):  # not every one: nobody can fill the disk with lines
            person = "" if link is None else link.reviewer
            self.trail.write("refused", person, reason=reason, address=client)
        return _Verdict(None, PlainTextResponse(_REFUSALS[reason], 403))


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
