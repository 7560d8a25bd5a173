"""Write what a command printed into a page, between its two markers.

    python -m benchmarks.write_part docs/results.md demo runs/demo/compare.md

    <!-- begin: demo -->
    <!-- end: demo -->

Numbers of a page are written this way and never by hand. A heading of the file is left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def replace_part(page: str, name: str, content: str) -> str:
    """The page with other content between the markers of a part."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"the page has no part {name!r}: write {begin} and {end} into it")
    lines = [line for line in content.splitlines() if not line.startswith("# ")]
    body = "\n".join(lines).strip()
    return f"{head}{begin}\n\n{body}\n\n{end}{tail}"


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.write_part", description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("name")
    parser.add_argument("file", type=Path, help="Markdown that a command has written")
    options = parser.parse_args(arguments)
    page = options.page.read_text(encoding="utf-8")
    text = replace_part(page, options.name, options.file.read_text(encoding="utf-8"))
    options.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
