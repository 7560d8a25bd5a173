"""MkDocs hooks: pages that live in the root of the repository, and links to source files.

README.md, CONTRIBUTING.md and CHANGELOG.md belong in the root, where people look for them. The site
shows them as pages. Links to files outside docs/ work in a checkout but not on the site, so the site
shows their text only.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT_PAGES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page's Markdown with links that work on the site."""
    root_page = ROOT_PAGES.get(page.file.src_uri)
    if root_page is not None:
        markdown = Path(root_page).read_text(encoding="utf-8")
        markdown = markdown.replace("](docs/", "](")
        for name, source in ROOT_PAGES.items():
            markdown = markdown.replace(f"]({source}", f"]({name}")
    else:
        for name, source in ROOT_PAGES.items():
            markdown = markdown.replace(f"](../{source}", f"]({name}")
    return LINK.sub(_drop_source_link, markdown)


def _drop_source_link(match: re.Match[str]) -> str:
    target = match["target"].partition("#")[0]
    is_outside = target.startswith(("../", "fedgsca/", "tests/", "benchmarks/", "examples/"))
    is_root_file = target in ("LICENSE", "CITATION.cff", "constraints.txt", "Makefile")
    if is_outside or is_root_file:
        return match["text"]
    return match[0]
