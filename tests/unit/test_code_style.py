"""The worst habits stay out: vague names, names used twice, folded lines, slow imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.code_metrics import (
    Module,
    bindings,
    class_names,
    is_vague,
    nested_comprehensions,
    read_modules,
    repeated,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    return read_modules(ROOT)


def test_no_variable_is_named_by_a_participle_or_pronoun(modules: list[Module]) -> None:
    places = []
    for module in modules:
        for name, line in bindings(module):
            if is_vague(name):
                places.append(f"{module.path}:{line}: {name}")
    assert places == []


def test_the_check_of_names_can_fail() -> None:
    vague = ["found", "_kept", "what", "mine", "scaled", "waiting"]
    clear = ["labels", "seed", "num_samples", "pending_sites", "given", "scaled_losses"]
    assert [name for name in vague if is_vague(name)] == vague
    assert [name for name in clear if is_vague(name)] == []


def test_a_class_name_occurs_once(modules: list[Module]) -> None:
    assert repeated(class_names(modules)) == {}


def test_comprehensions_have_one_level(modules: list[Module]) -> None:
    places = []
    for module in modules:
        places += [f"{module.path}:{line}" for line in nested_comprehensions(module)]
    assert places == []


def test_the_formatter_is_never_switched_off(modules: list[Module]) -> None:
    for module in modules:
        assert not any("fmt: skip" in line or "fmt: off" in line for line in module.lines)


def test_import_fedgsca_loads_nothing_heavy() -> None:
    heavy = ["torch", "numpy", "pydantic", "monai", "matplotlib", "typer", "rich"]
    code = f"import sys, fedgsca; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert result.stdout.strip() == "[]"


def test_every_public_name_can_be_imported() -> None:
    import fedgsca

    for name in fedgsca.__all__:
        assert getattr(fedgsca, name) is not None
    assert set(fedgsca.__all__) <= set(dir(fedgsca))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fedgsca.nothing  # noqa: B018
