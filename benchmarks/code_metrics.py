"""Readability of the package in numbers, by the same definitions for every version.

    python -m benchmarks.code_metrics                  # this checkout
    python -m benchmarks.code_metrics --root ../old    # another one, for before and after

Code lines are lines that are neither blank nor a comment nor part of a docstring. Bindings are
assigned names and parameters.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_COLUMNS = 100

# Pronouns, question words, adverbs and irregular participles: none of them says what a thing is.
_VAGUE_WORDS = """
    alone another anything apart asked away before begun beside both built chosen come done drawn
    each either else everybody everything far few found fewer gone got given_to heard held here how
    it its itself kept known left less lost made many mine more most much near needed neither nobody
    nothing other others own put rest said seen sent set_up several shown so some somebody something
    spent spoken stood such taken that theirs them there these they this those thrown told
    unfinished unknown waiting wanted what when where which who whole whom whose why written yours
"""
VAGUE_NAMES = frozenset(_VAGUE_WORDS.split())
# Words that end like a participle but are nouns or terms of the field or of the file format.
_NOUNS = (
    "seed feed need speed embed bed shed weed hundred red given frozen predicted enabled logged"
    " checked"
)
ALLOWED_NAMES = frozenset(_NOUNS.split())


def is_vague(name: str) -> bool:
    """Whether a binding is named by a pronoun, a question word or a participle, not by a noun."""
    word = name.strip("_").lower()
    if word in ALLOWED_NAMES:
        return False
    return word in VAGUE_NAMES or re.fullmatch(r"[a-z]{2,}ed", word) is not None


@dataclass(frozen=True)
class Module:
    """A source file of the package, parsed."""

    path: Path
    lines: list[str]
    tree: ast.Module

    def nodes(self) -> Iterator[ast.AST]:
        return ast.walk(self.tree)


def read_modules(root: Path) -> list[Module]:
    """Every Python file below `root`/fedgsca."""
    modules = []
    for path in sorted((root / "fedgsca").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        modules.append(Module(path.relative_to(root), text.splitlines(), ast.parse(text)))
    return modules


def bindings(module: Module) -> Iterator[tuple[str, int]]:
    """Names of variables and parameters with their lines."""
    for node in module.nodes():
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in module.nodes():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def is_typed(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether every parameter but self and cls, and the result, has an annotation."""
    arguments = function.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    parameters += [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]
    annotated = all(p.annotation is not None for p in parameters if p.arg not in ("self", "cls"))
    return annotated and (function.returns is not None or function.name == "__init__")


def public_functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions of the module and methods of its public classes, without private ones."""
    for node in module.tree.body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        if isinstance(node, ast.ClassDef) and node.name.startswith("_"):
            continue
        for member in members:
            if not isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if not member.name.startswith("_"):
                yield member


def has_ellipsis_body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Members of a protocol: the class says what they mean."""
    body = function.body[-1]
    return (
        isinstance(body, ast.Expr)
        and isinstance(body.value, ast.Constant)
        and body.value.value is Ellipsis
    )


def nested_comprehensions(module: Module) -> Iterator[int]:
    """Lines of comprehensions that contain another one or have two loops."""
    kinds = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    for node in module.nodes():
        if isinstance(node, kinds):
            inner = [n for n in ast.walk(node) if isinstance(n, kinds) and n is not node]
            if inner or len(node.generators) > 1:
                yield node.lineno


def count_code_lines(module: Module) -> int:
    """Lines that are neither blank nor a comment nor part of a docstring."""
    docstring_lines: set[int] = set()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in module.nodes():
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            first = node.body[0]
            docstring_lines.update(range(first.lineno, (first.end_lineno or 0) + 1))
    count = 0
    for number, line in enumerate(module.lines, start=1):
        text = line.strip()
        if text and not text.startswith("#") and number not in docstring_lines:
            count += 1
    return count


def class_names(modules: list[Module]) -> list[str]:
    """Names of all classes, as often as they occur."""
    names = []
    for module in modules:
        names += [node.name for node in module.nodes() if isinstance(node, ast.ClassDef)]
    return names


def repeated(names: list[str]) -> dict[str, int]:
    return {name: count for name, count in sorted(Counter(names).items()) if count > 1}


def measure(root: Path) -> dict[str, float | int | str]:
    """All numbers of one checkout."""
    modules = read_modules(root)
    texts = ["\n".join(module.lines) for module in modules]
    lines = [line for module in modules for line in module.lines if line.strip()]
    names = [name for module in modules for name, _ in bindings(module)]
    nodes = [node for module in modules for node in module.nodes()]
    all_functions = [function for module in modules for function in functions(module)]
    public = [f for module in modules for f in public_functions(module) if not has_ellipsis_body(f)]
    lengths = [(function.end_lineno or 0) - function.lineno + 1 for function in all_functions]
    comprehension = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    code_lines = sum(map(count_code_lines, modules))
    thousands = code_lines / 1000
    return {
        "modules": len(modules),
        "modules in the root": sum(len(module.path.parts) == 2 for module in modules),
        "lines": len(lines),
        "code lines": code_lines,
        "vague bindings, %": round(100 * sum(map(is_vague, names)) / len(names), 2),
        "lines over 100 columns, %": round(
            100 * sum(len(line) > MAX_COLUMNS for line in lines) / len(lines), 2
        ),
        "fmt: skip": sum(text.count("fmt: skip") for text in texts),
        "conditional expressions per 1,000 code lines": round(
            sum(isinstance(n, ast.IfExp) for n in nodes) / thousands, 1
        ),
        "comprehensions per 1,000 code lines": round(
            sum(isinstance(n, comprehension) for n in nodes) / thousands, 1
        ),
        "nested comprehensions": sum(
            len(list(nested_comprehensions(module))) for module in modules
        ),
        "dict[str, Any]": sum(text.count("dict[str, Any]") for text in texts),
        "public functions with a docstring, %": round(
            100 * sum(ast.get_docstring(f) is not None for f in public) / len(public), 1
        ),
        "functions with a docstring, %": round(
            100 * sum(ast.get_docstring(f) is not None for f in all_functions) / len(all_functions),
            1,
        ),
        "typed functions, %": round(
            100 * sum(map(is_typed, all_functions)) / len(all_functions), 1
        ),
        "function length, median": statistics.median(lengths),
        "function length, p95": statistics.quantiles(lengths, n=20)[-1],
        "class names used twice": len(repeated(class_names(modules))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--list", choices=("vague", "nested", "classes"), help="name the places")
    arguments = parser.parse_args()
    modules = read_modules(arguments.root)
    if arguments.list == "vague":
        for module in modules:
            for name, line in bindings(module):
                if is_vague(name):
                    print(f"{module.path}:{line}: {name}")
    elif arguments.list == "nested":
        for module in modules:
            for line in nested_comprehensions(module):
                print(f"{module.path}:{line}")
    elif arguments.list == "classes":
        print(repeated(class_names(modules)))
    else:
        for name, value in measure(arguments.root).items():
            print(f"{name:45} {value}")


if __name__ == "__main__":
    main()
