"""The review application for several people: a session per personal link, and its audit trail."""

from __future__ import annotations

from threading import Lock

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedgsca.label_audit.audit_table import Audit
from fedgsca.label_audit.decisions import Decision
from fedgsca.review.adjudication import AdjudicationSession
from fedgsca.review.links import ADJUDICATOR, LinkBook, PersonalLink
from fedgsca.review.network_guard import LINK, NetworkGuard, client_address
from fedgsca.review.session import ImageSource, Session
from fedgsca.review.trail import ReviewTrail
from fedgsca.review.web_app import build_pages


class TrailObserver:
    """Writes what one reviewer sees and decides to the trail."""

    def __init__(self, trail: ReviewTrail, link: PersonalLink) -> None:
        self._trail = trail
        self._link = link
        self._seen_rows: set[int] = set()

    def note_image(self, row: int) -> None:
        """An image is sent: noted once per reviewer and start of the server."""
        if row not in self._seen_rows:
            self._trail.write(
                "image", self._link.reviewer, link=self._link.id, row=row, is_flushed=False
            )
            self._seen_rows.add(row)

    def note_decision(self, decision: Decision) -> None:
        """A decision is about to be written to decisions.jsonl, where its content is."""
        self._trail.write(
            "adjudication" if decision.adjudication else "decision",
            self._link.reviewer,
            link=self._link.id,
            row=decision.row,
            request=decision.request,
        )

    def note_undo(self) -> None:
        """The newest decision is about to be undone."""
        self._trail.write("undo", self._link.reviewer, link=self._link.id)


class SharedReview:
    """The sessions of all people who review one audit."""

    def __init__(self, audit: Audit, images: ImageSource) -> None:
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
            )
        return Session(self.audit, self.images, link.reviewer, blind=link.blind, observer=observer)


def build_network_app(
    review: SharedReview, *, hosts: tuple[str, ...], scheme: str, port: int
) -> NetworkGuard:
    """The application behind its guard, for everybody who has a link."""

    def find_session(request: Request) -> Session:
        return review.session_of(request.scope[LINK])

    async def leave(request: Request) -> Response:
        link: PersonalLink = request.scope[LINK]
        address = client_address(request.scope)
        guard.sign_out(request.scope)  # also if the trail cannot be written
        review.trail.write("left", link.reviewer, link=link.id, address=address)
        return JSONResponse({"left": True})

    routes = [Route("/api/leave", leave, methods=["POST"])]
    pages = build_pages(find_session, routes, is_shared=True)
    guard = NetworkGuard(
        pages, hosts=hosts, scheme=scheme, port=port, links=review.links, trail=review.trail
    )
    return guard
