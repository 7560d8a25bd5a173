"""Every error code with its cause and fix, read from the source code, for docs/errors.md.

An error is a call of one of the classes in fedgsca/errors.py. Its first argument is the code, a
string literal. Message and fix may contain placeholders, which the page shows as <name>.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "fedgsca"
PROBLEM_CLASS = "ConfigProblem"
CODE = re.compile(r"[a-z]+(-[a-z]+)*\.[a-z0-9]+(-[a-z0-9]+)*")

# Functions that only format a value: the page names the value.
FORMATTERS = (
    *("sorted", "str", "repr", "list", "map", "tuple", "set", "max", "min"),
    *("show_cases", "size_text", "join_words", "percent", "number", "duration", "count"),
)
GROUPS = {
    "cli": "Command line",
    "config": "Configuration",
    "plugin": "Plugins",
    "extra": "Optional packages",
    "data": "Data",
    "noise": "Label noise",
    "method": "Methods",
    "model": "Models",
    "weights": "Weights files",
    "site": "Sites",
    "update": "Updates of the sites",
    "round": "Rounds",
    "run": "Run folders",
    "file": "Files",
    "grid": "Comparisons",
    "tune": "A search for the learning rate",
    "table": "Tables of the paper",
    "benchmark": "Benchmark",
    "bench": "Speed of this machine",
    "report": "Reports",
    "audit": "Label audits",
    "review": "Review of labels",
    "track": "Tracking",
    "watch": "The live page",
    "export": "Export of models",
    "predict": "Predictions",
    "privacy": "Privacy",
    "deploy": "Deployments",
    "withdraw": "Withdrawals",
}


@dataclass(frozen=True)
class ErrorCall:
    """One place in the source where an error is made."""

    code: str | None  # None: not a literal
    message: str
    fix: str
    kind: str
    path: Path
    line: int

    @property
    def place(self) -> str:
        """file:line, relative to the repository."""
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def read_exit_codes() -> dict[str, int]:
    """Error class -> exit code, from fedgsca/errors.py; subclasses inherit it."""
    tree = ast.parse((PACKAGE / "errors.py").read_text(encoding="utf-8"))
    exit_codes: dict[str, int] = {}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
        if node.name != "FedgscaError" and not any(base in exit_codes for base in bases):
            continue
        own_code = _class_constant(node, "exit_code")
        exit_codes[node.name] = exit_codes[bases[0]] if own_code is None else own_code
    return exit_codes


def _class_constant(node: ast.ClassDef, name: str) -> int | None:
    for statement in node.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            targets = [target.id for target in statement.targets if isinstance(target, ast.Name)]
            if name in targets:
                return int(str(statement.value.value))
    return None


def find_error_calls() -> list[ErrorCall]:
    """All calls of error classes in the package, except those that pass on another error's code."""
    kinds = {*read_exit_codes(), PROBLEM_CLASS}
    calls: list[ErrorCall] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path == PACKAGE / "errors.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for scope in _scopes(tree):
            calls += _calls_in_scope(scope, kinds, path)
    return calls


def _scopes(tree: ast.Module) -> Iterator[ast.AST]:
    """The module and every function, in which local names are looked up."""
    yield tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope without those of functions inside it."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield child
        yield from _own_nodes(child)


def _calls_in_scope(scope: ast.AST, kinds: set[str], path: Path) -> Iterator[ErrorCall]:
    nodes = list(_own_nodes(scope))
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "report":
            yield from _report_of_cases(node, _local_texts(nodes, node.lineno), path)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id not in kinds or not node.args:
            continue
        code_node = node.args[0]
        if isinstance(code_node, ast.Attribute) and code_node.attr == "code":
            continue  # the code of another error, which is documented where it is made
        if getattr(scope, "name", "") == "report":
            continue  # the code is an argument, see _report_of_cases
        code = None
        if isinstance(code_node, ast.Constant) and isinstance(code_node.value, str):
            code = code_node.value
        texts = _local_texts(nodes, node.lineno)
        message = _template(node.args[1], texts) if len(node.args) > 1 else ""
        fix = ""
        for keyword in node.keywords:
            if keyword.arg == "fix":
                fix = _template(keyword.value, texts)
        yield ErrorCall(code, message, fix, node.func.id, path, node.lineno)


def _report_of_cases(node: ast.Call, texts: dict[str, str], path: Path) -> Iterator[ErrorCall]:
    """A call of FileList.report(code, cases, noun, place, fix=...): a DataError about cases."""
    if len(node.args) != 4 or not isinstance(node.args[0], ast.Constant):
        return
    code, _, noun, place = (_template(argument, texts) for argument in node.args)
    keywords = {keyword.arg: _template(keyword.value, texts) for keyword in node.keywords}
    message = f"<root>: <number> {keywords.get('nouns', noun + 's')} {place}: <cases>"
    yield ErrorCall(code, message, keywords["fix"], "DataError", path, node.lineno)


def _local_texts(nodes: list[ast.AST], line: int) -> dict[str, str]:
    """Names that stand for a text at this line: the last text that was assigned before it."""
    texts = {}
    for node in nodes:
        if not isinstance(node, ast.Assign) or node.lineno >= line or not _is_text(node.value):
            continue
        if isinstance(node.targets[0], ast.Name):
            texts[node.targets[0].id] = _template(node.value, {})
    return texts


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    is_string = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_string or isinstance(node, ast.JoinedStr)


def _template(node: ast.expr, texts: dict[str, str]) -> str:
    """A text with its values as <name>."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part, {}) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _template(node.value, {})
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left, texts) + _template(node.right, texts)
    if isinstance(node, ast.Name) and node.id in texts:
        return texts[node.id]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "did_you_mean":
            return ""
        if node.func.id == "plural" and isinstance(node.args[1], ast.Constant):
            plural_form = node.args[2] if len(node.args) > 2 else None
            if isinstance(plural_form, ast.Constant):
                return f"<number> {plural_form.value!s}"
            return f"<number> {node.args[1].value!s}s"
    return f"<{_value_name(node)}>"


def _value_name(node: ast.expr) -> str:
    """A short name for an expression: that of the value which is formatted."""
    if isinstance(node, ast.Attribute):
        return _readable(node.attr)
    if isinstance(node, ast.Name):
        return _readable(node.id)
    if isinstance(node, ast.Subscript):
        return _value_name(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        inner = node.func.value
        is_text_method = isinstance(inner, ast.Constant) and bool(node.args)  # ", ".join(names)
        return _value_name(node.args[0] if is_text_method else inner)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in FORMATTERS and node.args:
            return _value_name(node.args[-1 if node.func.id == "map" else 0])
        return "number" if node.func.id == "len" else _readable(node.func.id)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            name = _value_name(child)
            if name != "value":
                return name
        elif isinstance(child, ast.comprehension):
            return _value_name(child.iter)
    return "value"


def _readable(name: str) -> str:
    return name.strip("_").replace("_", " ").lower()


def render_errors() -> str:
    """Exit codes, then all codes by group, in Markdown."""
    exit_codes = read_exit_codes()
    lines = ["## Exit codes", "", "| exit code | meaning |", "|---|---|"]
    lines += _exit_code_rows(exit_codes)
    groups: dict[str, dict[str, list[ErrorCall]]] = {}
    for call in find_error_calls():
        if call.code is not None:
            group = call.code.partition(".")[0]
            groups.setdefault(group, {}).setdefault(call.code, []).append(call)
    for group in [*GROUPS, *sorted(set(groups) - set(GROUPS))]:
        if group in groups:
            lines += ["", f"## {GROUPS.get(group, group)}"]
            for code in sorted(groups[group]):
                lines += ["", *_render_code(code, groups[group][code], exit_codes)]
    return "\n".join(lines)


def _exit_code_rows(exit_codes: dict[str, int]) -> list[str]:
    """0, those of the error classes with the first line of their docstrings, 70 and 130."""
    tree = ast.parse((PACKAGE / "errors.py").read_text(encoding="utf-8"))
    meanings: dict[int, str] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in exit_codes:
            text = (ast.get_docstring(node) or "").splitlines()[0]
            meanings.setdefault(exit_codes[node.name], f"{text} (`{node.name}`)")
    meanings[0] = "Success."
    meanings[1] = "Any other error, a failed check or failed runs of a comparison (`FedgscaError`)"
    meanings[70] = "A bug in fedgsca (`cli.bug` with `--json`). Please report it."
    meanings[130] = "Stopped with Ctrl-C."
    return [f"| {code} | {text} |" for code, text in sorted(meanings.items())]


def _render_code(code: str, calls: list[ErrorCall], exit_codes: dict[str, int]) -> list[str]:
    lines = [f"### `{code}`", ""]
    causes = list(dict.fromkeys(_one_line(call.message) for call in calls))
    fixes = list(dict.fromkeys(_one_line(call.fix) for call in calls if call.fix))
    lines += [f"- Cause: {cause}" for cause in causes]
    lines += [f"- Fix: {fix}" for fix in fixes]
    codes = {exit_codes[call.kind] for call in calls if call.kind in exit_codes}
    if codes:
        lines.append(f"- Exit code: {', '.join(str(exit_code) for exit_code in sorted(codes))}")
    else:
        lines.append("- Reported among the `problems` of an invalid configuration")
    return lines


def _one_line(text: str) -> str:
    """Text for Markdown: on one line, with the angle brackets and stars escaped."""
    words = " ".join(text.split())
    parts = words.split("`")
    for i in range(0, len(parts), 2):  # the parts outside of `code`
        parts[i] = re.sub(r"([<*_\[\]|])", r"\\\1", parts[i])
    return "`".join(parts)
