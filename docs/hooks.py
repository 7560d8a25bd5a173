"""MkDocs hooks: generated blocks, pages of the root of the repository, and links to source files.

README.md, CONTRIBUTING.md and CHANGELOG.md belong in the root, where people look for them. The
site shows them as pages. Links to files outside docs/ work in a checkout but not on the site, so
the site shows their text only.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # MkDocs imports a hook by its path

from docs.generate import fill_site_blocks

ROOT_PAGES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
SOURCE_FOLDERS = ("fedgsca/", "tests/", "benchmarks/", "examples/")
ROOT_FILES = ("LICENSE", "CITATION.cff", "constraints.txt", "Makefile")
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
    markdown = fill_site_blocks(markdown)
    folder = posixpath.dirname(page.file.src_uri)

    def drop_source_link(match: re.Match[str]) -> str:
        target = match["target"].partition("#")[0]
        return match["text"] if _is_outside(posixpath.join(folder, target)) else match[0]

    return LINK.sub(drop_source_link, markdown)


def _is_outside(target: str) -> bool:
    """Whether a link leaves the documentation: to source code or to a file of the root."""
    path = posixpath.normpath(target)
    return path.startswith(("../", *SOURCE_FOLDERS)) or path in ROOT_FILES
