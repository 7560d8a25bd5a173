"""How long the review page takes to open on a list of 100,000 labels.

    python -m benchmarks.review [LABELS]
    python -m benchmarks.review --pictures docs/images     # of page and gallery, for the manual

The list is made up and written as an audit. Then the requests of a browser are sent one after the
other over a real connection: the page, its style and scripts, the header, the first labels, the
first image. If Chromium is installed, it opens the page as well: what counts is the time until the
first image is on the screen, in a browser that has just started and in the same one again.
"""

from __future__ import annotations

import argparse
import http.client
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

import fedgsca
from fedgsca.config import load_config
from fedgsca.data.table import ImageTable
from fedgsca.federation.records import AuditSummary
from fedgsca.labels.audit_images import AuditImages
from fedgsca.labels.audit_table import Audit, Suspect, write_audit
from fedgsca.labels.review.serve import bind, build_page_server
from fedgsca.labels.review.session import Session
from fedgsca.labels.site_data import SiteData
from fedgsca.rng import stream

if TYPE_CHECKING:
    from tests.browser import Browser

CLASSES = tuple(f"class {i}" for i in range(9))
# the requests of a browser after the page itself
REQUESTS = (
    "/style.css",
    "/review.js",
    "/viewer.js",
    "/api/about",
    "/api/items?count=5&open=1",
    "/image/0",
)
# getrusage counts bytes on macOS and kilobytes elsewhere
RSS_UNIT = 1e6 if sys.platform == "darwin" else 1e3


@dataclass(frozen=True)
class OpeningTimes:
    """Seconds until the server is ready, of all requests of the page, and in a browser."""

    ready: float
    page: float
    # a new browser and the same one again; empty without Chromium
    browser: list[float]


def make_suspects(count: int) -> Iterator[Suspect]:
    for row in range(count):
        given = CLASSES[row % 9]
        suggestion = CLASSES[(row + 1 + row % 7) % 9]
        yield Suspect(
            rank=row + 1,
            row=row,
            id=f"img/{row:06d}.png",
            hash="0" * 64,
            given=given,
            suggestion=suggestion,
            probability=0.8,
            runners_up=((given, 0.1), (CLASSES[0], 0.05)),
            suspicion=1 - row / count,
            reason=f"given {given}, the model says {suggestion} with 0.80 in 11 of 12 rounds",
            priority=row < count // 10,
        )


def make_site(count: int) -> SiteData:
    images = stream(0, "benchmark").integers(0, 255, (count, 28, 28, 3), dtype=np.uint8)
    labels = np.arange(count) % 9
    names = np.array([f"img/{row:06d}.png" for row in range(count)])
    table = ImageTable("made up", images, labels, CLASSES, np.full(count, "train"), names, "")
    rows = np.arange(count)
    return SiteData(load_config(), "site-1", "made up", None, table, rows, labels, None)


def browser_seconds(address: str) -> list[float]:
    """Seconds from the address to the first image on the screen, twice; empty without Chromium."""
    from tests.browser import browser, chromium

    if chromium() is None:
        return []
    seconds = []
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as window:
        for _ in range(2):
            window.open("about:blank")
            start = time.perf_counter()
            window.open(address)
            window.wait("document.querySelector('#viewer img')?.alt.startsWith('Image 1 of')")
            seconds.append(time.perf_counter() - start)
    return seconds


def request_page(address: str) -> None:
    """All requests of a page that opens."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.netloc)
    connection.request("GET", f"/?{parts.query}")
    response = connection.getresponse()
    response.read()
    cookie = {"Cookie": str(response.getheader("set-cookie")).partition(";")[0]}
    for path in REQUESTS:
        connection.request("GET", path, headers=cookie)
        response = connection.getresponse()
        assert response.read() and response.status == 200, path


@contextmanager
def served(session: Session) -> Iterator[str]:
    """Serve the page of a session; gives its address."""
    with bind(None) as listener:
        server, address = build_page_server(session, listener)
        thread = Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield address
        finally:
            server.should_exit = True
            thread.join()


def measure_opening(audit: Audit, site_data: SiteData) -> OpeningTimes:
    start = time.perf_counter()
    session = Session(audit, AuditImages(site_data, audit), "benchmark")
    with served(session) as address:
        ready = time.perf_counter()
        request_page(address)
        end = time.perf_counter()
        return OpeningTimes(ready - start, end - ready, browser_seconds(address))


def save_picture(window: Browser, file: Path) -> None:
    """The page as it is on the screen, in 256 colours: a fifth of the bytes."""
    window.picture(file)
    Image.open(file).quantize(256).save(file, optimize=True)


def take_pictures(target: Path) -> None:
    """The page in the middle of a review, and the gallery, of the hospital's tutorial."""
    from fedgsca.cli import execute
    from tests.browser import browser

    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder, "my_images")
        assert execute(["data", "example", str(images)]) == 0
        audit = fedgsca.audit_folder(images, Path(folder, "alone"))
        for suspect in audit.window(0, 6):
            audit.open_decisions().record(suspect, suspect.suggestion, reviewer="anna")
        session = Session(audit, AuditImages.open(audit), "anna", language="en")
        with served(session) as address, browser(Path(folder, "profile")) as window:
            window.screen(1280, 800)
            window.open(address)
            window.wait("document.querySelectorAll('#examples img').length")
            window.press("v")
            window.wait("[...document.images].every((image) => image.complete)")
            save_picture(window, target / "review.png")
            window.screen(1000, 1100)
            window.open((audit.path / "gallery.html").as_uri())
            save_picture(window, target / "tutorial-gallery.png")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("labels", type=int, nargs="?", default=100_000)
    parser.add_argument("--pictures", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    if arguments.pictures is not None:
        take_pictures(arguments.pictures)
        return
    count = arguments.labels
    tree = {"run": "../..", "site": "site-1", "classes": list(CLASSES)}
    with tempfile.TemporaryDirectory() as folder:
        header = AuditSummary.from_json(tree)
        audit = write_audit(Path(folder), header, make_suspects(count), {})
        times = measure_opening(audit, make_site(count))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / RSS_UNIT
    print(
        f"{count} labels: list opened in {times.ready:.2f} s, page served in {times.page:.2f} s, "
        f"peak memory {peak:.0f} MB"
    )
    if times.browser:
        seconds = " and ".join(f"{value:.2f}" for value in times.browser)
        print(f"first image on Chromium's screen after {seconds} s")


if __name__ == "__main__":
    main()
