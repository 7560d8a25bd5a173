"""The review page in a real browser: decide, undo, lose the server, continue.

The decisions file is what counts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from tests.audits import toy_audit
from tests.browser import Browser, browser, chromium
from tests.deployment import reserved_port
from tests.toys import toy_images, toy_npz

pytest.importorskip("starlette")
from fedgsca.labels.audit_images import AuditImages
from fedgsca.labels.audit_table import read_audit
from fedgsca.labels.review.serve import bind, build_page_server
from fedgsca.labels.review.session import Session

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="no Chromium is installed (Debian: apt-get install chromium)"
)


@contextmanager
def server(folder: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`fedgsca review` as a person starts it, and the address it prints."""
    words = [sys.executable, "-m", "fedgsca", "review", str(folder), "--reviewer", "anna", *flags]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        assert line.startswith("review"), process.stderr and process.stderr.read()
        yield process, line.split()[1]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        assert process.stderr is not None
        process.stderr.close()


@contextmanager
def served(folder: Path, *, blind: bool = False) -> Iterator[str]:
    """The same in a thread of this process, which saves the imports."""
    audit = read_audit(folder)
    with bind(None) as place:
        session = Session(audit, AuditImages.open(audit), "anna", blind=blind)
        running, address = build_page_server(session, place)
        thread = Thread(target=running.run, kwargs={"sockets": [place]})
        thread.start()
        try:
            yield address
        finally:
            running.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as window:
        window.screen(1920, 1080)
        yield window


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return toy_audit(tmp_path / "run", source=toy_npz(400)).path


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "decisions.jsonl").read_text().splitlines()]


def at(window: Browser, number: int) -> None:
    """Until this image is on the screen."""
    window.wait(f"document.querySelector('#viewer img')?.alt.startsWith('Image {number} of')")


@pytest.fixture
def port() -> Iterator[str]:
    """The same port twice: between the two no other test may get it."""
    with reserved_port() as number:
        yield str(number)


def test_accept_change_undo_kill_the_server_and_continue(
    window: Browser, folder: Path, port: str
) -> None:
    with server(folder, "--port", port) as (process, address):
        window.open(address)
        at(window, 1)
        assert "token" not in window.js("location.href"), (
            "the secret is taken out of the address bar"
        )
        suggestion = window.text("#suggested")
        given = window.text("#given")
        window.press("a")
        at(window, 2)
        window.press("r")  # a note; its letters are not shortcuts
        for letter in "kau":
            window.press(letter)
        window.press("Escape")
        window.press("c")  # another class, by number
        window.wait("document.querySelector('#chooser').open")
        class_name = window.text("#chooser-list span")
        window.press("1")
        at(window, 3)
        window.click('[data-action="keep"]')  # with the mouse
        at(window, 4)
        window.press("z")
        at(window, 3)
        window.press("u")
        at(window, 4)
        decisions = lines(folder)
        assert [d["action"] for d in decisions] == [
            "accept",
            decisions[1]["action"],
            "keep",
            "undo",
            "unsure",
        ]
        assert (decisions[0]["label"], decisions[0]["given"], decisions[0]["reviewer"]) == (
            suggestion,
            given,
            "anna",
        )
        assert (
            decisions[1]["reason"] == "kau"
            and (decisions[1]["label"] or decisions[1]["given"]) == class_name
        )
        assert (
            decisions[3]["row"] == decisions[2]["row"] == decisions[4]["row"]
            and 0 <= decisions[0]["seconds"] < 60
        )
        assert not window.messages, "nothing was blocked by the policy, nothing failed"

        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        window.press("k")
        window.wait("!document.querySelector('#alert').hidden")
        assert "NOT saved" in window.text("#alert") and window.text("#item-title").startswith(
            "Image 4 of"
        )
        assert len(lines(folder)) == 5

    with server(folder, "--port", port) as (_, address):
        window.press("k")  # the old page does not hold the new secret
        window.wait("document.querySelector('#alert').innerText.includes('earlier start')")
        window.open(address)
        at(window, 4)
        assert window.text("#progress-text").startswith("3 of 10")
        window.press("z")  # also what was decided before the kill
        at(window, 3)
        window.press("k")
        at(window, 4)
        window.press("k")
        at(window, 5)
        assert [d["action"] for d in lines(folder)][5:] == ["undo", "keep", "keep"]


def test_the_keyboard_is_enough_and_changes_are_announced(window: Browser, folder: Path) -> None:
    with served(folder) as address:
        window.open(address)
        at(window, 1)
        assert window.text("#live").startswith("Image 1 of 10. Given")
        focus_order = []
        for _ in range(25):
            window.press("Tab")
            focus_order.append(
                window.js("document.activeElement.dataset.action || document.activeElement.id")
            )
        assert {"filter", "viewer", "accept", "keep", "choose", "unsure", "undo", "note"} <= set(
            focus_order
        )
        assert window.js(
            "[...document.querySelectorAll('button')]"
            ".every(b => (b.innerText || b.ariaLabel || b.textContent).trim())"
        )
        window.js("document.querySelector('[data-action=accept]').focus()")
        window.press("Enter")
        at(window, 2)
        assert window.text("#live").startswith("Saved:") and "Image 2 of 10" in window.text("#live")
        assert window.js("document.activeElement.dataset.action") == "accept", (
            "the focus stays where it was"
        )
        zoom = window.text("#zoom")
        window.press("+")
        window.press("x")
        assert window.text("#zoom") != zoom and window.js(
            "document.querySelector('#viewer').classList.contains('pixels')"
        )
        window.press("n")
        at(window, 3)
        window.press("p")
        at(window, 2)
        for number in range(2, 11):
            at(window, number)
            window.press("k")
        window.wait("!document.querySelector('#done').hidden")
        assert len(lines(folder)) == 10
        window.click("#done-summary")
        window.wait("document.querySelector('#summary').open")
        assert "anna" in window.text("#summary-body")


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800), (1920, 1080)])
def test_everything_fits_on_the_screen(
    window: Browser, folder: Path, width: int, height: int
) -> None:
    window.screen(width, height, mobile=width < 500)
    try:
        with served(folder) as address:
            window.open(address)
            at(window, 1)
            assert window.js("document.documentElement.scrollWidth <= innerWidth")
            for name in ("accept", "keep", "choose", "unsure", "undo"):
                selector = f"document.querySelector('[data-action={name}]')"
                left, top, right, bottom = window.js(
                    f"(b => [b.left, b.top, b.right, b.bottom])({selector}.getBoundingClientRect())"
                )
                assert left >= 0 and top >= 0 and right <= width and bottom <= height, name
    finally:
        window.screen(1920, 1080)


@pytest.fixture
def wordy(tmp_path: Path) -> Path:
    """An audit with twelve classes whose names are long, one of them longer than any line."""
    from PIL import Image

    names = [
        "Plattenepithelkarzinom-in-situ mit Verhornungsstörung",
        "Schleimhaut" * 9,
        "Normalbefund",
    ]
    names += [f"Befundklasse {i}, Bindegewebsvermehrung" for i in range(9)]
    rows = [(i, names[i % 12], "test" if i >= 48 else "train") for i in range(60)]
    (tmp_path / "data").mkdir()
    for i, picture in enumerate(toy_images(np.arange(60) % 3)):
        Image.fromarray(picture).save(tmp_path / "data" / f"{i}.png")
    lines = ["file,label,split", *(f'{i}.png,"{name}",{split}' for i, name, split in rows)]
    (tmp_path / "data" / "labels.csv").write_text("\n".join(lines) + "\n")
    sets = {"data__sites": 1, "data__partition": "stratified", "noise__spec": "0"}
    return toy_audit(tmp_path / "run", "site-1", tmp_path / "data", **sets).path


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800)])
def test_long_names_neither_overflow_nor_hide_the_buttons(
    window: Browser, wordy: Path, width: int, height: int
) -> None:
    window.screen(width, height, mobile=width < 500)
    inside = "[...document.querySelectorAll(%r)].every(e => e.scrollWidth <= e.clientWidth + 1)"
    try:
        for blind in (False, True):
            with served(wordy, blind=blind) as address:
                window.open(address)
                at(window, 1)
                assert window.js("document.documentElement.scrollWidth") <= width
                assert window.js(inside % ".choices button, #labels > div, #side")
                for name in ("unsure", "undo", "next"):
                    low = window.js(
                        f"document.querySelector('[data-action={name}]').getBoundingClientRect().bottom"
                    )
                    assert low <= height, name
    finally:
        window.screen(1920, 1080)


def test_a_digit_may_be_the_beginning_of_a_number(window: Browser, wordy: Path) -> None:
    with served(wordy, blind=True) as address:
        window.open(address)
        at(window, 1)
        window.press("1")
        window.wait("document.querySelector('#chooser').open")
        window.press("2")
        window.wait("document.querySelectorAll('#chooser-list li').length === 1")
        class_name = window.text("#chooser-list span")
        window.press("Enter")
        at(window, 2)
        assert [d["label"] or d["given"] for d in lines(wordy)] == [class_name]


def test_a_blind_reviewer_sees_no_label(window: Browser, folder: Path) -> None:
    with served(folder, blind=True) as address:
        window.open(address)
        at(window, 1)
        assert not window.js("document.querySelector('#labels').checkVisibility()")
        assert not window.js("document.querySelector('#reason').checkVisibility()")
        window.press("a")  # nothing to accept
        window.press("2")
        at(window, 2)
        saved_text = window.text("#last")
        assert saved_text.startswith("Saved: ") and "given" not in saved_text
        window.click("#open-summary")
        window.wait("document.querySelector('#summary').open")
        text = window.text("#summary-body")
        assert "when you have decided about your whole list" in text and "Accepted" not in text
        window.press("Escape")
        window.press("z")
        at(window, 1)
        assert not window.js("document.querySelector('#labels').checkVisibility()")
        for number in range(1, 11):
            at(window, number)
            window.press("2")
        window.wait("!document.querySelector('#done').hidden")
        assert "The given label was" in window.text("#last")
        window.press("2")  # there is no image any more
        assert "wait for the image" not in window.text("body")
        assert "This list is complete" in window.text("#live")
        assert all(d["blind"] for d in lines(folder) if d["action"] != "undo")


# ---- brightness, patients, several people ----


def test_brightness_and_contrast_change_the_screen_and_nothing_else(
    window: Browser, folder: Path
) -> None:
    with served(folder) as address:
        window.open(address)
        at(window, 1)
        window.messages.clear()  # of an earlier page, whose server was stopped
        image_filter = "getComputedStyle(document.querySelector('#viewer img')).filter"
        slope = "Number(document.querySelector('#window-filter feFuncG').getAttribute('slope'))"
        assert window.js(image_filter) == "none", "the image as it is stored"
        window.press("w")
        assert window.js("document.querySelector('#contrast').checkVisibility()")
        for key in "mmbi":
            window.press(key)
        assert "window-filter" in window.js(image_filter)
        assert window.js(slope) < -1.2, "inverted, with more contrast"
        assert window.text("#brightness-value") == "8" and window.text("#contrast-value") == "16"
        window.press("i")
        window.js("document.querySelector('#contrast').value = -60")
        window.js("document.querySelector('#contrast').dispatchEvent(new Event('input'))")
        assert 0 < window.js(slope) < 0.5
        window.press("n")
        at(window, 2)
        assert "window-filter" in window.js(image_filter), "it stays for the next image"
        window.press("e")
        assert window.js(image_filter) == "none"
        assert not (folder / "decisions.jsonl").exists()
        # a window on grey values: the middle stays, twice the contrast is twice the slope
        change = "import('/window.js').then(m => m.linearChange(%s))"
        assert window.js(change % "0, 0, false") == [1, 0]
        assert window.js(change % "0, 33, false") == [2, -0.5]
        assert window.js(change % "0, 0, true") == [-1, 1]
        assert not window.messages


def test_all_images_of_a_patient_are_side_by_side(window: Browser, tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "data").mkdir()
    lines = ["file,label,group,split"]
    for i, picture in enumerate(toy_images(np.arange(60) % 3)):
        Image.fromarray(picture).save(tmp_path / "data" / f"{i}.png")
        lines.append(f"{i}.png,class {i % 3},patient {i // 4},{'test' if i >= 48 else 'train'}")
    (tmp_path / "data" / "labels.csv").write_text("\n".join(lines) + "\n")
    sets = {"data__sites": 1, "data__partition": "stratified", "noise__spec": "0"}
    folder = toy_audit(tmp_path / "run", "site-1", tmp_path / "data", **sets).path
    is_offered = "!document.querySelector('#open-patient').hidden"
    for blind in (False, True):
        with served(folder, blind=blind) as address:
            window.open(address)
            at(window, 1)
            window.wait(is_offered)
            assert window.text("#open-patient").startswith("Same patient or slide (4)")
            window.press("s")
            window.wait("document.querySelector('#patient').open")
            assert window.js("document.querySelectorAll('#patient-images img').length") == 4
            assert ("class 1" in window.text("#patient-images")) == (not blind)
            window.js("document.querySelector('#patient-images button:not(.this)').click()")
            window.wait("!document.querySelector('#comparing').hidden")
            assert "another image of the same" in window.text("#comparing")
            window.press("Escape")
            window.wait("document.querySelector('#comparing').hidden")


def test_two_readers_and_a_judge_over_the_network(window: Browser, folder: Path) -> None:
    from fedgsca.labels.review.people import ADJUDICATOR, READER, LinkBook
    from fedgsca.labels.review.serve import PageAddress, bind_address, build_network_server
    from fedgsca.labels.review.web_app import SharedReview

    with bind_address("127.0.0.1", 0) as listener:
        address = PageAddress("127.0.0.1", int(listener.getsockname()[1]))
        url = address.url(has_tls=False)
        links = {}
        for name, role in (("anna", READER), ("bert", READER), ("prof", ADJUDICATOR)):
            book = LinkBook(folder)
            _, token = book.add(name, role=role, blind=False, days=1, address=url)
            links[name] = f"{url}/?token={token}"
        audit = read_audit(folder)
        running = build_network_server(SharedReview(audit, AuditImages.open(audit)), address, None)
        thread = Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            window.open(links["prof"])
            window.wait("document.querySelector('#done')?.hidden === false")
            assert "anna (0 of 10), bert (0 of 10)" in window.text("#done-text")
            for name, keys in (("anna", "a" * 10), ("bert", "aaaaaaaakk")):
                window.open(links[name])
                for number, key in enumerate(keys, start=1):
                    at(window, number)
                    assert "anna" not in window.text("main") and "bert" not in window.text("main")
                    window.press(key)
                window.wait("document.querySelector('#done')?.hidden === false")
            window.open(links["prof"])
            at(window, 1)
            assert "Image 1 of 2" in window.text("#item-title")
            assert "Reading 1" in window.text("#readings")
            window.press("k")
            at(window, 2)
            LinkBook(folder).revoke("prof")
            window.press("k")
            window.wait("!document.querySelector('#alert').hidden")
            assert "NOT saved. This link was revoked." in window.text("#alert")
            window.open(links["anna"])
            window.wait("document.querySelector('#leave')?.hidden === false")
            window.click("#leave")
            window.wait("document.querySelector('#alert').innerText.includes('signed out')")
            # requests that are refused later do not hide it, and keys do nothing any more
            window.js("document.querySelector('#filter').dispatchEvent(new Event('change'))")
            window.press("z")
            assert window.js("fetch('/api/about').then(answer => answer.status)") == 403
            assert "signed out" in window.text("#alert")
            assert not window.js("document.querySelector('#work').checkVisibility()")
        finally:
            running.should_exit = True
            thread.join()
            window.messages.clear()  # the browser reports the refused request
    decisions = lines(folder)
    assert [d["reviewer"] for d in decisions].count("anna") == 10
    assert [d["adjudication"] for d in decisions[-2:]] == [False, True]
