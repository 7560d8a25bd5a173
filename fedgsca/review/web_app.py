"""The routes of the review server. Images are addressed by row; no path reaches the browser.

Besides request_guard.py and serve.py, this is the only file that imports starlette.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedgsca.errors import FedgscaError, RunFolderError
from fedgsca.review.request_guard import Guard
from fedgsca.review.session import ListFilter, Session

STATIC = Path(__file__).with_name("static")
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/review.js": ("review.js", "text/javascript; charset=utf-8"),
    "/viewer.js": ("viewer.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
THUMBNAIL_PIXELS = 192
MAX_ITEMS = 50  # in one answer
BODY_SECONDS = 10.0  # in which the body of a request must have arrived

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


def build_app(session: Session, *, port: int, token: str) -> Guard:
    """The application behind its guard, for one reviewer."""
    routes = [Route(path, _serve_file(*file), methods=["GET"]) for path, file in FILES.items()]
    routes += [*_api_routes(session), *_image_routes(session)]
    app = Starlette(routes=routes, exception_handlers={FedgscaError: _explain_error})
    return Guard(app, port=port, token=token)


def _api_routes(session: Session) -> list[Route]:
    async def about(_: Request) -> Response:
        header = await run_in_threadpool(session.describe)
        return JSONResponse(header.to_json())

    async def items(request: Request) -> Response:
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
        row = session.row_of(int(request.path_params["row"]))
        if row is None:
            return JSONResponse({"position": None})
        position = await run_in_threadpool(session.find_position, row, _read_filter(request))
        return JSONResponse({"position": position})

    async def examples(request: Request) -> Response:
        groups = await run_in_threadpool(session.list_examples, _read_row(session, request))
        return JSONResponse({"examples": [group.to_json() for group in groups]})

    async def decide(request: Request) -> Response:
        body = await _read_body(request)
        return JSONResponse(await run_in_threadpool(session.decide, body))

    async def undo(request: Request) -> Response:
        body = await _read_body(request)
        request_id = str(body.get("request") or "")
        return JSONResponse(await run_in_threadpool(session.undo, request_id))

    async def summary(_: Request) -> Response:
        return JSONResponse(await run_in_threadpool(session.summarise))

    return [
        Route("/api/about", about),
        Route("/api/items", items),
        Route("/api/place/{row:int}", place),
        Route("/api/examples/{row:int}", examples),
        Route("/api/summary", summary),
        Route("/api/decide", decide, methods=["POST"]),
        Route("/api/undo", undo, methods=["POST"]),
    ]


def _image_routes(session: Session) -> list[Route]:
    async def image(request: Request) -> Response:
        data = await run_in_threadpool(session.images.png, _read_row(session, request))
        return Response(data, media_type="image/png")

    async def thumbnail(request: Request) -> Response:
        row = _read_row(session, request)
        data = await run_in_threadpool(session.images.thumbnail, row, THUMBNAIL_PIXELS)
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
