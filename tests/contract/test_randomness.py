"""No global generator, no salted hash, no network: checked in the source and during runs."""

from __future__ import annotations

import ast
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import fedgsca
from fedgsca.federation.rounds import run
from fedgsca.methods.base import load_methods
from fedgsca.rng import stream, torch_stream
from tests.toys import generator_states, toy_config

PACKAGE = Path(fedgsca.__file__).parent

DRAWS = {
    "rand",
    "randn",
    "randint",
    "randperm",
    "normal",
    "bernoulli",
    "multinomial",
    "poisson",
    "rand_like",
    "randn_like",
    "randint_like",
}
IN_PLACE = {
    "uniform_",
    "normal_",
    "random_",
    "bernoulli_",
    "exponential_",
    "log_normal_",
    "geometric_",
    "cauchy_",
}
HARMLESS_INIT = {"zeros_", "ones_", "constant_", "eye_", "dirac_"}
GENERATORS = {"Generator", "PCG64", "SeedSequence", "BitGenerator"}
DROPS = {
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "AlphaDropout",
    "dropout",
    "dropout2d",
    "alpha_dropout",
    "RReLU",
    "rrelu",
}
ESTIMATORS = {
    "GaussianMixture",
    "KMeans",
    "MiniBatchKMeans",
    "PCA",
    "train_test_split",
    "StratifiedKFold",
    "shuffle",
    "resample",
}
FORBIDDEN_MODULES = {"random", "secrets"}
# tokens, keys and privacy noise: nobody may be able to draw them again
SECRET_PLACES = {"review", "deploy", "privacy", "local_socket", "withdrawn"}


@dataclass(frozen=True)
class SourceReader:
    """Finds lines of a program that draw from a generator which the program does not name."""

    allowed_modules: frozenset[str] = frozenset()

    def find_draws(self, source: str) -> list[str]:
        problems: list[str] = []
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
                problems += self._module_problems(names, node.lineno)
            elif isinstance(node, ast.ImportFrom):
                problems += self._module_problems([node.module or ""], node.lineno)
                problems += _import_problems(node)
            elif isinstance(node, ast.Call):
                problem = _call_problem(node)
                if problem is not None:
                    problems.append(f"{node.lineno}: {problem}")
        return problems

    def _module_problems(self, names: list[str], line: int) -> list[str]:
        forbidden = FORBIDDEN_MODULES - self.allowed_modules
        return [f"{line}: import {name}" for name in names if name.split(".")[0] in forbidden]


def _import_problems(node: ast.ImportFrom) -> list[str]:
    if node.module not in ("torch", "numpy.random"):
        return []
    names = {alias.name for alias in node.names} - GENERATORS
    if node.module == "torch":
        names &= DRAWS
    return [f"{node.lineno}: from {node.module} import {name}" for name in names]


def _call_problem(node: ast.Call) -> str | None:
    name = ast.unparse(node.func)
    keywords = {keyword.arg for keyword in node.keywords}
    root, _, last = name.rpartition(".")
    if name in ("torch.manual_seed", "torch.seed", "torch.initial_seed"):
        return name
    if name == "torch.random.fork_rng":
        return None  # restores the global generator: it protects the state and draws nothing
    if name.startswith(("torch.cuda.manual_seed", "torch.random.")):
        return name
    if root == "torch" and last in DRAWS and "generator" not in keywords:
        return f"{name} without generator"
    if root in ("np.random", "numpy.random") and last not in GENERATORS:
        has_seed = bool(node.args or keywords)
        return None if last == "default_rng" and has_seed else name
    is_initialiser = last in IN_PLACE or (root.endswith("init") and last.endswith("_"))
    if is_initialiser and last not in HARMLESS_INIT and "generator" not in keywords:
        return f"{name} without generator"
    if last in DROPS:
        return f"{name} draws from torch's global generator"
    is_function = not isinstance(node.func, ast.Attribute)
    if last in ESTIMATORS and is_function and "random_state" not in keywords:
        return f"{name} without random_state"
    return "hash is salted per process" if name == "hash" else None


def test_source_draws_only_from_named_streams() -> None:
    draws = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = {Path(part).stem for part in path.relative_to(PACKAGE).parts}
        allowed = frozenset({"secrets"}) if SECRET_PLACES & parts else frozenset[str]()
        problems = SourceReader(allowed).find_draws(path.read_text(encoding="utf-8"))
        draws += [f"{path}:{problem}" for problem in problems]
    assert draws == []


@pytest.mark.parametrize(
    "line",
    [
        "torch.manual_seed(0)",
        "torch.rand(3)",
        "torch.randperm(5)",
        "np.random.seed(1)",
        "np.random.rand(2)",
        "np.random.default_rng()",
        "import random",
        "from random import shuffle",
        "nn.Dropout(0.5)",
        "F.dropout(x)",
        "x.uniform_(0, 1)",
        "nn.init.normal_(w)",
        "GaussianMixture(2)",
        "hash('site-1')",
        "torch.cuda.manual_seed_all(1)",
        "torch.rand_like(x)",
        "from numpy.random import rand",
    ],
)
def test_a_global_draw_is_found(line: str) -> None:
    assert SourceReader().find_draws(line)


@pytest.mark.parametrize(
    "line",
    [
        "torch.rand(3, generator=g)",
        "rng.random(3)",
        "np.random.Generator(np.random.PCG64(1))",
        "generator.manual_seed(1)",
        "nn.init.zeros_(w)",
        "nn.init.uniform_(w, generator=g)",
        "GaussianMixture(2, random_state=0)",
        "x.copy_(y)",
        "rng.shuffle(x)",
    ],
)
def test_a_named_stream_is_accepted(line: str) -> None:
    assert not SourceReader().find_draws(line)


# that a run moves no generator is tested for every method in test_methods.py
@pytest.mark.parametrize("method", sorted(load_methods())[::6])
def test_a_run_does_not_depend_on_global_generators(method: str, tmp_path: Path) -> None:
    models = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        folder = tmp_path / str(seed)
        run(toy_config(method, train__rounds=2), folder)
        models.append((folder / "model.safetensors").read_bytes())
    assert models[0] == models[1]


def test_a_draw_from_a_global_generator_is_noticed() -> None:
    for draw in (lambda: torch.rand(1), lambda: np.random.rand(1), random.random):  # noqa: NPY002
        states = generator_states()
        draw()
        assert generator_states() != states


@pytest.mark.filterwarnings("ignore:A test tried to use socket")
@pytest.mark.parametrize("method", ["fedavg", "fedgsca"])
def test_a_run_needs_no_network(method: str, tmp_path: Path, socket_disabled: None) -> None:
    import socket

    from pytest_socket import SocketBlockedError

    with pytest.raises(SocketBlockedError):
        socket.socket()
    result = run(toy_config(method, frozen=True), tmp_path / "run")
    assert result is not None
    assert result.rounds == 6


# ---- the streams themselves ----


def test_the_same_address_gives_the_same_numbers() -> None:
    draws = [stream(0, "noise", "site-1").random(5).tolist() for _ in range(2)]
    assert draws[0] == draws[1]
    tensors = [torch.rand(5, generator=torch_stream(3, "a")) for _ in range(2)]
    assert torch.equal(tensors[0], tensors[1])


@pytest.mark.parametrize(
    "address",
    [(1, "a", 1), (0, "b", 1), (0, "a", 2), (0, "a", "1"), (0, "a"), (0, "a", 1, 0), (0, "a1")],
)
def test_every_part_of_an_address_counts(address: tuple[int | str, ...]) -> None:
    seed, *path = address
    assert stream(0, "a", 1).random() != stream(int(seed), *path).random()
