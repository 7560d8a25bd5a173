"""Another value of a constant of the package, for this process only.

    use_constant("fedgsca.evidence", "STEP", 12.8)

Constants are defaults of parameters, so setting the attribute of a loaded module would change
nothing. The module is therefore executed from a changed syntax tree before anything imports it.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

# modules whose constants can be replaced by --constant
MODULES = ("fedgsca.evidence", "fedgsca.labels.wrong_count")
# the number of heads is part of the design; the smallest probability only prevents log(0)
EXCLUDED = ("NUM_HEADS", "TINY")


def list_constants(module: str) -> dict[str, float | int]:
    """Public numeric constants of a module, from its source: name -> value."""
    values: dict[str, float | int] = {}
    for node in _syntax_tree(module).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
            continue
        name = _target(node)
        if not name.isupper() or name.startswith("_") or name in EXCLUDED:
            continue
        value = node.value.value
        if isinstance(value, int | float) and not isinstance(value, bool):
            values[name] = value
    return values


def _target(node: ast.Assign) -> str:
    """The name that is assigned; empty for anything but a plain name."""
    target = node.targets[0]
    return target.id if isinstance(target, ast.Name) else ""


def use_constant(module: str, name: str, value: object) -> None:
    """Load `module` with another value of a constant. It must not have been imported.

    The value is a number or a tuple of numbers.
    """
    if module in sys.modules:
        raise RuntimeError(f"{module} is imported already")
    tree = _syntax_tree(module)
    nodes = [node for node in tree.body if isinstance(node, ast.Assign) and _target(node) == name]
    if not nodes:
        raise KeyError(f"{module} has no constant {name}")
    for node in nodes:
        node.value = ast.parse(repr(value), mode="eval").body
    ast.fix_missing_locations(tree)
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    loaded_module = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded_module
    exec(compile(tree, spec.origin, "exec"), loaded_module.__dict__)
    parent, _, stem = module.rpartition(".")
    setattr(sys.modules[parent], stem, loaded_module)


def _syntax_tree(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(module)
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
