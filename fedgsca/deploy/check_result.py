"""One line of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    what: str
    state: Literal["ok", "FAIL", "unknown"]
    text: str
    fix: str = ""


def passed(what: str, text: str) -> Finding:
    return Finding(what, "ok", text)


def failed(what: str, text: str, fix: str) -> Finding:
    return Finding(what, "FAIL", text, fix)


def unknown(what: str, text: str, fix: str) -> Finding:
    return Finding(what, "unknown", text, fix)
