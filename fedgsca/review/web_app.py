"""The addresses of the review server. Images go by row number; no path comes from, or goes to, the browser.

This is the only file besides guard.py and serve.py that imports starlette.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedgsca.errors import FedgscaError, RunFolderError
from fedgsca.review.request_guard import Guard
from fedgsca.review.session import Filter, Session

STATIC = Path(__file__).with_name("static")
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/review.js": ("review.js", "text/javascript; charset=utf-8"),
    "/viewer.js": ("viewer.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
THUMBNAIL, PAGE = 192, 50  # pixels; items in one answer


def make_app(session: Session, *, port: int, token: str) -> Guard:
    """The application behind its guard."""

    async def about(_: Request) -> Response:
        return JSONResponse(await run_in_threadpool(session.about))

    async def items(request: Request) -> Response:
        query = request.query_params
        start, count = _number(query.get("start"), 0), _number(query.get("count"), 1)
        chosen, open_only = _filter(request), query.get("open") == "1"
        return JSONResponse(
            await run_in_threadpool(
                lambda: session.items(chosen, start, min(count, PAGE), open_only=open_only)
            )
        )

    async def place(request: Request) -> Response:
        return JSONResponse(
            {
                "position": await run_in_threadpool(
                    session.place, request.path_params["row"], _filter(request)
                )
            }
        )

    async def examples(request: Request) -> Response:
        row = _row(session, request)
        return JSONResponse({"examples": await run_in_threadpool(session.examples, row)})

    async def image(request: Request) -> Response:
        data = await run_in_threadpool(session.pictures.png, _row(session, request))
        return Response(data, media_type="image/png")

    async def thumbnail(request: Request) -> Response:
        data = await run_in_threadpool(
            session.pictures.thumbnail, _row(session, request), THUMBNAIL
        )
        return Response(data, media_type="image/jpeg")

    async def decide(request: Request) -> Response:
        asked = await _body(request)
        return JSONResponse(await run_in_threadpool(session.decide, asked))

    async def undo(request: Request) -> Response:
        asked = await _body(request)
        return JSONResponse(await run_in_threadpool(session.undo, str(asked.get("request") or "")))

    async def summary(_: Request) -> Response:
        return JSONResponse(await run_in_threadpool(session.summary))

    routes = [
        *(Route(path, _file(name, kind), methods=["GET"]) for path, (name, kind) in FILES.items()),
        Route("/api/about", about),
        Route("/api/items", items),
        Route("/api/place/{row:int}", place),
        Route("/api/examples/{row:int}", examples),
        Route("/api/summary", summary),
        Route("/api/decide", decide, methods=["POST"]),
        Route("/api/undo", undo, methods=["POST"]),
        Route("/image/{row:int}", image),
        Route("/thumbnail/{row:int}", thumbnail),
    ]
    return Guard(
        Starlette(routes=routes, exception_handlers={FedgscaError: _explain}),
        port=port,
        token=token,
    )


def _file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    content = STATIC.joinpath(name).read_bytes()

    async def send(_: Request) -> Response:
        return Response(content, headers={"content-type": kind})

    return send


async def _explain(request: Request, error: Exception) -> Response:
    """An error in words: 507 a decision could not be written, 409 what was asked does not fit the list."""
    assert isinstance(error, FedgscaError)
    unsaved = request.method == "POST" and isinstance(error, RunFolderError)
    return JSONResponse({"error": error.message, "fix": error.fix}, 507 if unsaved else 409)


async def _body(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(415)
    try:
        value = json.loads(await request.body())
    except ValueError:
        raise HTTPException(400) from None
    if not isinstance(value, dict):
        raise HTTPException(400)
    return value


def _row(session: Session, request: Request) -> int:
    row = int(request.path_params["row"])
    if not session.has(row):
        raise HTTPException(404)
    return row


def _filter(request: Request) -> Filter:
    query = request.query_params
    return Filter(
        query.get("given") or None, query.get("suggested") or None, query.get("scope") != "all"
    )


def _number(text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.isdecimal() or len(text) > 9:
        raise HTTPException(400)
    return int(text)
