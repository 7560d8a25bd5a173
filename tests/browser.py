"""A real headless Chromium, driven through its own protocol over a pipe, without a driver."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from select import select
from typing import Any

ANSWER_SECONDS = 120  # on a busy machine the browser may not run for a while
KEYS = {"Enter": "\r", "Escape": "", "ArrowDown": "", "ArrowRight": "", "Tab": ""}

# Chromium reads from 3 and writes to 4. The pipes get high numbers first, so that moving one cannot
# overwrite the other.
MOVE_PIPES = """
import fcntl, os, sys
high = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 20) for number in sys.argv[1:3]]
os.dup2(high[0], 3), os.dup2(high[1], 4)
for number in high: os.close(number)
os.execv(sys.argv[3], sys.argv[3:])
"""


def chromium() -> str | None:
    """The program of a browser that is installed, or None."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        program = shutil.which(name)
        if program is not None:
            return program
    return None


class Browser:
    """One page of a headless browser."""

    def __init__(self, profile: Path) -> None:
        commands = os.pipe()  # we write, the browser reads
        replies = os.pipe()  # the browser writes, we read
        program = chromium()
        assert program is not None
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-sync",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-extensions",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        words = [
            sys.executable,
            "-c",
            MOVE_PIPES,
            str(commands[0]),
            str(replies[1]),
            program,
            *flags,
        ]
        self.process = subprocess.Popen(
            words,
            pass_fds=(commands[0], replies[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(commands[0])
        os.close(replies[1])
        self._out, self._in, self._buffer, self._count = commands[1], replies[0], b"", 0
        self.messages: list[str] = []  # errors on the page's console
        self.session: str | None = self._ask(
            "Target.attachToTarget", targetId=self._first_page(), flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def _first_page(self) -> str:
        """The id of the page about:blank, which a starting browser opens a little later."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            for target in self._ask("Target.getTargets")["targetInfos"]:
                if target["type"] == "page":
                    return str(target["targetId"])
            assert time.monotonic() < deadline, "the browser has opened no page"
            time.sleep(0.02)

    def ask(self, method: str, **params: Any) -> Any:
        return self._ask(method, self.session, **params)

    def _ask(self, method: str, session: str | None = None, **params: Any) -> Any:
        answer = self._exchange(method, session, params)
        assert "error" not in answer, answer
        return answer["result"]

    def _exchange(self, method: str, session: str | None, params: dict[str, Any]) -> dict[str, Any]:
        """The browser's answer, which may be an error."""
        self._count += 1
        number = self._count
        message = {"id": number, "method": method, "params": params} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(time.monotonic() + ANSWER_SECONDS)
            if answer.get("id") == number:
                return answer
            self._event(answer)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert (
                time.monotonic() < deadline
                and select([self._in], [], [], deadline - time.monotonic())[0]
            ), "no answer"
            piece = os.read(self._in, 1 << 16)
            assert piece, "the browser is gone"
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))

    def _event(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.messages.append(
                str(params["exceptionDetails"].get("exception", params).get("description"))
            )
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.messages.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    # ---- what a user does ----

    def open(self, address: str) -> None:
        """Returns when the new page is there: what is asked next is not about the old one."""
        self.js("window.isOldPage = true")
        self.ask("Page.navigate", url=address)
        deadline = time.monotonic() + ANSWER_SECONDS
        while not self._has_new_page():
            assert time.monotonic() < deadline, f"{address} is not opened; {self.messages}"
            time.sleep(0.02)

    def _has_new_page(self) -> bool:
        expression = "window.isOldPage === undefined && document.readyState === 'complete'"
        params = {"expression": expression, "returnByValue": True}
        answer = self._exchange("Runtime.evaluate", self.session, params)
        # an error: the old page went away while it was asked
        return "error" not in answer and bool(answer["result"]["result"].get("value"))

    def screen(self, width: int, height: int, *, dark: bool = False, mobile: bool = False) -> None:
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=features)

    def press(self, key: str) -> None:
        text = KEYS.get(key, key)
        virtual = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowRight": 39, "ArrowDown": 40}.get(
            key, ord(key[0].upper())
        )
        common = {"key": key, "windowsVirtualKeyCode": virtual}
        self.ask(
            "Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common
        )
        self.ask("Input.dispatchKeyEvent", type="keyUp", **common)

    def click(self, selector: str) -> None:
        x, y = self.js(
            f"(() => {{ const e = document.querySelector({selector!r});"
            " e.scrollIntoView({block: 'nearest'}); const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def js(self, code: str) -> Any:
        result = self.ask(
            "Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def text(self, selector: str) -> str:
        return str(self.js(f"document.querySelector({selector!r})?.innerText ?? ''"))

    def wait(self, condition: str, seconds: float = ANSWER_SECONDS) -> None:
        """Until the JavaScript condition holds."""
        deadline = time.monotonic() + seconds
        while not self.js(f"Boolean({condition})"):
            assert time.monotonic() < deadline, (
                f"{condition} did not become true; console: {self.messages}"
            )
            time.sleep(0.02)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self._ask("Browser.close")
        for handle in (self._out, self._in):
            os.close(handle)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser that is closed at the end of the block."""
    window = Browser(profile)
    try:
        yield window
    finally:
        window.close()
