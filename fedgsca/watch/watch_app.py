"""The routes of the watch page: one page, its files, and one answer with all runs. Nothing writes.

The rules are those of the review page (review/security.py): only this machine, only its own
address, only with the key of the printed address, no other origin, no foreign content.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedgsca.review.security import LocalAccess
from fedgsca.watch.snapshot import WatchList

STATIC = Path(__file__).with_name("static")
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/watch.css": ("watch.css", "text/css; charset=utf-8"),
    "/watch.js": ("watch.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}

FileEndpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


class WatchAccess(LocalAccess):
    """The access control of the review page, which names this command."""

    command = "fedgsca watch"


def build_watch_app(watches: WatchList, *, port: int, token: str) -> WatchAccess:
    """The application behind its access control."""

    async def runs(_: Request) -> Response:
        snapshots = await run_in_threadpool(_look_at_all, watches)
        return JSONResponse({"runs": snapshots})

    routes = [Route(path, _serve_content(*file), methods=["GET"]) for path, file in FILES.items()]
    routes.append(Route("/api/runs", runs, methods=["GET"]))
    return WatchAccess(Starlette(routes=routes), port=port, token=token)


def _look_at_all(watches: WatchList) -> list[dict[str, object]]:
    return [snapshot.to_json() for snapshot in watches.look()]


def _serve_content(name: str, content_type: str) -> FileEndpoint:
    content = STATIC.joinpath(name).read_bytes()

    async def send(_: Request) -> Response:
        return Response(content, headers={"content-type": content_type})

    return send
