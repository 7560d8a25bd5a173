"""The English texts of the review page and of the record to sign, as its sources have them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from fedgsca.labels import protocol, score

STATIC = Path(protocol.__file__).with_name("review") / "static"
ATTRIBUTES = ("title", "aria-label", "placeholder", "aria-roledescription")


class _Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: set[str] = set()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.texts |= {value for name, value in attrs if name in ATTRIBUTES and value}

    def handle_endtag(self, tag: str) -> None:
        while self.tags and self.tags.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        text = " ".join(data.split())
        if re.search("[A-Za-z]{2}", text) and self.tags[-1] not in ("kbd", "style", "title"):
            self.texts.add(text)


def page_texts() -> set[str]:
    """Texts and attributes of index.html, and what review.js passes to `t`."""
    parser = _Texts()
    parser.feed((STATIC / "index.html").read_text())
    script = (STATIC / "review.js").read_text()
    joined = re.sub(r'"\s*\n\s*\+ "', "", script)
    texts = set(re.findall(r'\bt\("((?:[^"\\]|\\.)*)"', joined))
    return {text for text in parser.texts | texts if text}


def protocol_texts() -> set[str]:
    heads = (
        protocol.READER_HEAD,
        protocol.AGREEMENT_HEAD,
        protocol.CHANGE_HEAD,
        protocol.CLASS_HEAD,
        protocol.SIGNATURE_HEAD,
        protocol.COUNT_LABELS.values(),
        protocol.HEADINGS,
    )
    return {text for head in heads for text in head} | {level for level, _ in score.LEVELS}
