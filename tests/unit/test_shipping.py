"""What is in the wheel: no message points to a file that only a checkout has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "fedgsca"
CHECKOUT_FILES = re.compile(
    r"\bdocs/\w|constraints\.txt|README\.md|CONTRIBUTING|benchmarks[/.]\w|examples/\w|Makefile"
)
# The README of a kit is about a folder into which the coordinator puts constraints.txt.
# The model card and the kits write a README.md of their own.
ALLOWED = ("hospital/", "lab/export/", "cli/deploy.py")


def find_messages(path: Path) -> list[str]:
    """String literals of a module that are not docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = node.body[0] if ast.get_docstring(node) is not None else None
            if isinstance(docstring, ast.Expr):
                docstrings.add(id(docstring.value))
    messages = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            messages.append(str(node.value))
    return messages


def test_no_message_points_to_a_file_of_the_checkout() -> None:
    messages = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if not path.relative_to(PACKAGE).as_posix().startswith(ALLOWED):
            texts = [text for text in find_messages(path) if CHECKOUT_FILES.search(text)]
            messages += [f"{path}: {text}" for text in texts]
    assert messages == []


def test_the_check_can_fail(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""See docs/x.md."""\nfix = "see docs/x.md"\n', encoding="utf-8")
    assert find_messages(module) == ["see docs/x.md"]
    assert CHECKOUT_FILES.search("see docs/x.md")


def test_the_package_is_marked_as_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
