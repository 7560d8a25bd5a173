"""How long the review page takes to open on a list of 100,000 labels: `python -m benchmarks.review [LABELS]`.

The list is made up and written as an audit; then a browser's requests are made one after the other over a real connection: the page, its
style and scripts, what it is about, the first labels, the first image. Where Chromium is installed it opens the page, too: what counts is
the time until the first image is on the screen, in a browser that has just been started and in the same one again.
"""

from __future__ import annotations

import http.client
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from fedgsca.config import load_config
from fedgsca.data.table import ImageTable
from fedgsca.experiment.records import AuditSummary
from fedgsca.label_audit.audit_images import AuditImages
from fedgsca.label_audit.audit_table import Audit, Suspect, write_audit
from fedgsca.label_audit.site_data import SiteData
from fedgsca.review.serve import bind, build_server
from fedgsca.review.session import Session
from fedgsca.rng import stream

CLASSES = tuple(f"class {i}" for i in range(9))


def made_up(count: int) -> Iterator[Suspect]:
    for row in range(count):
        given, other = CLASSES[row % 9], CLASSES[(row + 1 + row % 7) % 9]
        reason = f"given {given}, the model says {other} with 0.80 in 11 of 12 rounds"
        yield Suspect(
            row + 1, row, f"img/{row:06d}.png", "0" * 64, given, other, 0.8, ((given, 0.1), (CLASSES[0], 0.05)),
            1 - row / count, 12, 11, None, reason, row < count // 10,
        )  # fmt: skip


def site(count: int) -> SiteData:
    images = stream(0, "benchmark").integers(0, 255, (count, 28, 28, 3), dtype=np.uint8)
    labels, names = np.arange(count) % 9, np.array([f"img/{row:06d}.png" for row in range(count)])
    table = ImageTable("made up", images, labels, CLASSES, np.full(count, "train"), names, "")
    return SiteData(load_config(), "site-1", "made up", None, table, np.arange(count), labels, None)


def shown(address: str) -> list[float]:
    """Seconds from the address to the first image on the screen, twice; empty without a browser."""
    from tests.browser import browser, chromium

    if chromium() is None:
        return []
    took = []
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as window:
        for _ in range(2):
            window.open("about:blank")
            start = time.perf_counter()
            window.open(address)
            window.wait("document.querySelector('#viewer img')?.alt.startsWith('Image 1 of')")
            took.append(time.perf_counter() - start)
    return took


def opened(audit: Audit, held: SiteData) -> dict[str, Any]:
    """Seconds until the server is ready, and for all requests of a page that opens."""
    start = time.perf_counter()
    session = Session(audit, AuditImages(held, audit), "benchmark")
    with bind(None) as place:
        server, address = build_server(session, place)
        thread = Thread(target=server.run, kwargs={"sockets": [place]})
        thread.start()
        try:
            ready = time.perf_counter()
            where = urlsplit(address)
            connection = http.client.HTTPConnection(where.netloc)
            connection.request("GET", f"/?{where.query}")
            answer = connection.getresponse()
            answer.read()
            cookie = {"Cookie": str(answer.getheader("set-cookie")).partition(";")[0]}
            for path in (
                "/style.css",
                "/review.js",
                "/viewer.js",
                "/api/about",
                "/api/items?count=5&open=1",
                "/image/0",
            ):
                connection.request("GET", path, headers=cookie)
                answer = connection.getresponse()
                assert answer.read() and answer.status == 200, path
            return {
                "ready": ready - start,
                "page": time.perf_counter() - ready,
                "shown": shown(address),
            }
        finally:
            server.should_exit = True
            thread.join()


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        header = AuditSummary.from_json(
            {"run": "../..", "site": "site-1", "classes": list(CLASSES), "split": "train"}
        )
        audit = write_audit(Path(folder), header, made_up(count), {})
        took = opened(audit, site(count))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{count} labels: list opened in {took['ready']:.2f} s, page served in {took['page']:.2f} s, peak memory {peak:.0f} MB"
    )
    if took["shown"]:
        print(
            f"first image on Chromium's screen after {' and '.join(f'{seconds:.2f}' for seconds in took['shown'])} s"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
