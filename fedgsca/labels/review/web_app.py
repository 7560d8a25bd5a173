"""The routes of the review server. Images are addressed by row; no path reaches the browser.

starlette is imported here and in security.py only.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedgsca.errors import FedgscaError, RunFolderError
from fedgsca.labels.audit_images import AuditImages
from fedgsca.labels.audit_table import Audit
from fedgsca.labels.review.people import (
    ADJUDICATOR,
    LinkBook,
    PersonalLink,
    ReviewTrail,
)
from fedgsca.labels.review.security import LINK, LocalAccess, NetworkAccess, client_address
from fedgsca.labels.review.session import AdjudicationSession, ListFilter, Session

log = logging.getLogger(__name__)
STATIC = Path(__file__).with_name("static")
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/review.js": ("review.js", "text/javascript; charset=utf-8"),
    "/viewer.js": ("viewer.js", "text/javascript; charset=utf-8"),
    "/window.js": ("window.js", "text/javascript; charset=utf-8"),
    "/texts.json": ("texts.json", "application/json"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
THUMBNAIL_PIXELS = 192
MAX_ITEMS = 50  # in one answer
BODY_SECONDS = 10.0  # in which the body of a request must have arrived

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
FindSession: TypeAlias = Callable[[Request], Session]
Answer: TypeAlias = Callable[[Session, Request], Any]
Change: TypeAlias = Callable[[Session, dict[str, Any]], dict[str, Any]]


def build_app(session: Session, *, port: int, token: str) -> LocalAccess:
    """The application behind its access control, for one reviewer on this machine."""
    return LocalAccess(build_pages(lambda _: session), port=port, token=token)


class SharedReview:
    """The sessions of all people who review one audit."""

    def __init__(
        self, audit: Audit, images: AuditImages, *, language: str = "", viewer: str = ""
    ) -> None:
        self._options = {"language": language, "viewer": viewer}
        self.audit = audit
        self.images = images
        self.links = LinkBook(audit.path)
        self.trail = ReviewTrail(audit.path)
        self._sessions: dict[str, Session] = {}
        self._lock = Lock()

    def session_of(self, link: PersonalLink) -> Session:
        """The session of a link. Nothing in a request can name another one."""
        with self._lock:
            if link.id not in self._sessions:
                self._sessions[link.id] = self._open_session(link)
            return self._sessions[link.id]

    def _open_session(self, link: PersonalLink) -> Session:
        people = (self.audit, self.images, link.reviewer)
        note = partial(self.trail.write, person=link.reviewer, link=link.id)
        options: dict[str, Any] = {"note": note, **self._options}
        if link.role == ADJUDICATOR:
            return AdjudicationSession(*people, find_readers=self.links.readers, **options)
        return Session(*people, blind=link.blind, **options)


def build_network_app(
    review: SharedReview, *, hosts: tuple[str, ...], scheme: str, port: int
) -> NetworkAccess:
    """The application behind its access control, for everybody who has a link."""

    def find_session(request: Request) -> Session:
        return review.session_of(request.scope[LINK])

    async def leave(request: Request) -> Response:
        link: PersonalLink = request.scope[LINK]
        address = client_address(request.scope)
        access.sign_out(request.scope)  # also if the trail cannot be written
        review.trail.write("left", link.reviewer, link=link.id, address=address)
        return JSONResponse({"left": True})

    routes = [Route("/api/leave", leave, methods=["POST"])]
    pages = build_pages(find_session, routes, is_shared=True)
    access = NetworkAccess(
        pages, hosts=hosts, scheme=scheme, port=port, links=review.links, trail=review.trail
    )
    return access


def build_pages(
    find_session: FindSession, more_routes: Sequence[Route] = (), *, is_shared: bool = False
) -> Starlette:
    """The application without access control; `find_session` knows whose request it is.

    `is_shared` tells the page that it is served to several people: it then offers to sign out.
    """
    routes = [Route(path, _serve_file(*file), methods=["GET"]) for path, file in FILES.items()]
    pages = {**_ANSWERS, "/api/about": lambda one, _: {**one.describe(), "shared": is_shared}}
    routes += [Route(path, _answer_get(find_session, page)) for path, page in pages.items()]
    for path, change in _CHANGES.items():
        routes.append(Route(path, _answer_post(find_session, change), methods=["POST"]))
    handler = _explain_shared_error if is_shared else _explain_error
    return Starlette(routes=[*routes, *more_routes], exception_handlers={FedgscaError: handler})


def _answer_get(find_session: FindSession, page: Answer) -> Endpoint:
    """An endpoint that answers with a JSON value, or an image, of the reviewer's session."""

    async def answer(request: Request) -> Response:
        value = await run_in_threadpool(page, find_session(request), request)
        return value if isinstance(value, Response) else JSONResponse(value)

    return answer


def _answer_post(find_session: FindSession, change: Change) -> Endpoint:
    async def answer(request: Request) -> Response:
        body = await _read_body(request)
        return JSONResponse(await run_in_threadpool(change, find_session(request), body))

    return answer


def _list_items(session: Session, request: Request) -> dict[str, Any]:
    query = request.query_params
    return session.list_items(
        _read_filter(request),
        _read_number(query.get("start"), 0),
        min(_read_number(query.get("count"), 1), MAX_ITEMS),
        open_only=query.get("open") == "1",
    )


def _find_position(session: Session, request: Request) -> dict[str, Any]:
    row = session.row_of(request.path_params["row"])
    if row is None:
        return {"position": None}
    return {"position": session.find_position(row, _read_filter(request))}


def _thumbnail(session: Session, request: Request) -> Response:
    data = session.thumbnail(_read_row(session, request), THUMBNAIL_PIXELS)
    return Response(data, media_type="image/jpeg")


_ANSWERS: Mapping[str, Answer] = {
    "/api/items": _list_items,
    "/api/place/{row:int}": _find_position,
    "/api/examples/{row:int}": lambda session, request: {
        "examples": session.list_examples(_read_row(session, request))
    },
    "/api/patient/{row:int}": lambda session, request: session.list_patient(
        _read_row(session, request)
    ),
    "/api/summary": lambda session, _: session.summarise(),
    "/image/{row:int}": lambda session, request: Response(
        session.png(_read_row(session, request)), media_type="image/png"
    ),
    "/thumbnail/{row:int}": _thumbnail,
}
_CHANGES: Mapping[str, Change] = {
    "/api/decide": lambda session, body: session.decide(body),
    "/api/undo": lambda session, body: session.undo(str(body.get("request") or "")),
}


def _serve_file(name: str, content_type: str) -> Endpoint:
    content = STATIC.joinpath(name).read_bytes()

    async def send(_: Request) -> Response:
        return Response(content, headers={"content-type": content_type})

    return send


async def _explain_error(request: Request, error: Exception) -> Response:
    """507: a decision could not be written; 409: the request does not fit the list."""
    assert isinstance(error, FedgscaError)
    is_unsaved = request.method == "POST" and isinstance(error, RunFolderError)
    tree = {"code": error.code, "error": error.message, "fix": error.fix}
    return JSONResponse(tree, 507 if is_unsaved else 409)


async def _explain_shared_error(request: Request, error: Exception) -> Response:
    """The same for reviewers at other computers: no path of this machine."""
    assert isinstance(error, FedgscaError)
    if not isinstance(error, RunFolderError):
        return await _explain_error(request, error)
    log.warning("%s", error)
    is_unsaved = request.method == "POST"
    message = "the server cannot read or write its files"
    fix = "tell the person who started the server, then try again"
    tree = {"code": error.code, "error": f"NOT saved: {message}" if is_unsaved else message}
    return JSONResponse(tree | {"fix": fix}, 507 if is_unsaved else 409)


async def _read_body(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(415)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await request.body()
        value = json.loads(body)
        json.dumps(value, ensure_ascii=False).encode()  # no half characters: no file can have them
    except TimeoutError:
        raise HTTPException(408) from None
    except (ValueError, RecursionError):
        raise HTTPException(400) from None
    if not isinstance(value, dict):
        raise HTTPException(400)
    return value


def _read_row(session: Session, request: Request) -> int:
    row = session.row_of(request.path_params["row"])
    if row is None:
        raise HTTPException(404)
    return row


def _read_filter(request: Request) -> ListFilter:
    query = request.query_params
    return ListFilter(
        given=query.get("given") or None,
        suggestion=query.get("suggested") or None,
        priority=query.get("scope") != "all",
    )


def _read_number(text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.isdecimal() or len(text) > 9:
        raise HTTPException(400)
    return int(text)
