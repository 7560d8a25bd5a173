"""The routes of the review server. Images are addressed by row; no path reaches the browser.

starlette is imported here and in security.py only.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
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
from fedgsca.labels.review.links import ADJUDICATOR, LinkBook, PersonalLink
from fedgsca.labels.review.security import LINK, LocalAccess, NetworkAccess, client_address
from fedgsca.labels.review.session import AdjudicationSession, ListFilter, Session
from fedgsca.labels.review.trail import ReviewTrail, TrailObserver

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
        observer = TrailObserver(self.trail, link)
        if link.role == ADJUDICATOR:
            return AdjudicationSession(
                self.audit,
                self.images,
                link.reviewer,
                find_readers=self.links.readers,
                observer=observer,
                **self._options,
            )
        return Session(
            self.audit,
            self.images,
            link.reviewer,
            blind=link.blind,
            observer=observer,
            **self._options,
        )


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
    routes += [*_api_routes(find_session, is_shared), *_image_routes(find_session), *more_routes]
    handler = _explain_shared_error if is_shared else _explain_error
    return Starlette(routes=routes, exception_handlers={FedgscaError: handler})


def _api_routes(find_session: FindSession, is_shared: bool) -> list[Route]:
    async def about(request: Request) -> Response:
        session = find_session(request)
        header = await run_in_threadpool(session.describe)
        return JSONResponse({**header.to_json(), "shared": is_shared})

    async def items(request: Request) -> Response:
        session = find_session(request)
        query = request.query_params
        page = await run_in_threadpool(
            session.list_items,
            _read_filter(request),
            _read_number(query.get("start"), 0),
            min(_read_number(query.get("count"), 1), MAX_ITEMS),
            open_only=query.get("open") == "1",
        )
        return JSONResponse(page.to_json())

    async def place(request: Request) -> Response:
        session = find_session(request)
        row = session.row_of(int(request.path_params["row"]))
        if row is None:
            return JSONResponse({"position": None})
        position = await run_in_threadpool(session.find_position, row, _read_filter(request))
        return JSONResponse({"position": position})

    async def examples(request: Request) -> Response:
        session = find_session(request)
        groups = await run_in_threadpool(session.list_examples, _read_row(session, request))
        return JSONResponse({"examples": groups})

    async def patient(request: Request) -> Response:
        session = find_session(request)
        row = _read_row(session, request)
        return JSONResponse(await run_in_threadpool(session.list_patient, row))

    async def decide(request: Request) -> Response:
        body = await _read_body(request)
        return JSONResponse(await run_in_threadpool(find_session(request).decide, body))

    async def undo(request: Request) -> Response:
        body = await _read_body(request)
        request_id = str(body.get("request") or "")
        return JSONResponse(await run_in_threadpool(find_session(request).undo, request_id))

    async def summary(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(find_session(request).summarise))

    return [
        Route("/api/about", about),
        Route("/api/items", items),
        Route("/api/place/{row:int}", place),
        Route("/api/examples/{row:int}", examples),
        Route("/api/patient/{row:int}", patient),
        Route("/api/summary", summary),
        Route("/api/decide", decide, methods=["POST"]),
        Route("/api/undo", undo, methods=["POST"]),
    ]


def _image_routes(find_session: FindSession) -> list[Route]:
    async def image(request: Request) -> Response:
        session = find_session(request)
        data = await run_in_threadpool(session.png, _read_row(session, request))
        return Response(data, media_type="image/png")

    async def thumbnail(request: Request) -> Response:
        session = find_session(request)
        row = _read_row(session, request)
        data = await run_in_threadpool(session.thumbnail, row, THUMBNAIL_PIXELS)
        return Response(data, media_type="image/jpeg")

    return [Route("/image/{row:int}", image), Route("/thumbnail/{row:int}", thumbnail)]


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
    if is_unsaved:
        message = f"NOT saved: {message}"
    fix = "tell the person who started the server, then try again"
    tree = {"code": error.code, "error": message, "fix": fix}
    return JSONResponse(tree, 507 if is_unsaved else 409)


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
    row = session.row_of(int(request.path_params["row"]))
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
