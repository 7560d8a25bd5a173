"""No global generator, no salted hash, no network: read from the source, and watched during runs."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from toys import toy_config

import fedgsca
from fedgsca.engine.rounds import run
from fedgsca.methods.base import load_methods
from fedgsca.rng import stream, torch_stream

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
SECRET_PLACES = {
    "review",
    "deploy",
    "privacy",
}  # tokens, keys and privacy noise: nobody may be able to draw them again


def culprits(source: str, allowed: frozenset[str] = frozenset()) -> list[str]:
    """Lines of a program that draw from a generator which the program does not name."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
            )
            found += [
                f"{node.lineno}: import {name}"
                for name in names
                if name.split(".")[0] in FORBIDDEN_MODULES - allowed
            ]
            if isinstance(node, ast.ImportFrom) and node.module in ("torch", "numpy.random"):
                taken = {a.name for a in node.names} - GENERATORS
                found += [
                    f"{node.lineno}: from {node.module} import {n}"
                    for n in taken
                    if n in DRAWS or node.module != "torch"
                ]
        if isinstance(node, ast.Call) and (why := _call(node)):
            found.append(f"{node.lineno}: {why}")
    return found


def _call(node: ast.Call) -> str | None:
    name, keywords = ast.unparse(node.func), {k.arg for k in node.keywords}
    root, _, last = name.rpartition(".")
    if name in ("torch.manual_seed", "torch.seed", "torch.initial_seed") or name.startswith(
        ("torch.cuda.manual_seed", "torch.random.")
    ):
        return name
    if root == "torch" and last in DRAWS and "generator" not in keywords:
        return f"{name} without generator"
    if (
        root in ("np.random", "numpy.random")
        and last not in GENERATORS
        and not (last == "default_rng" and (node.args or keywords))
    ):
        return name
    if (
        (last in IN_PLACE or root.endswith("init"))
        and last.endswith("_")
        and last not in HARMLESS_INIT
        and "generator" not in keywords
    ):
        return f"{name} without generator"
    if last in DROPS:
        return f"{name} draws from torch's global generator"
    if (
        last in ESTIMATORS
        and root != "rng"
        and "random_state" not in keywords
        and not isinstance(node.func, ast.Attribute)
    ):
        return f"{name} without random_state"
    return "hash is salted per process" if name == "hash" else None


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_source_draws_only_from_named_streams(path: Path) -> None:
    secret = SECRET_PLACES & {Path(part).stem for part in path.relative_to(PACKAGE).parts}
    assert (
        culprits(path.read_text(encoding="utf-8"), frozenset({"secrets"} if secret else ())) == []
    )


@pytest.mark.parametrize(
    "line",
    [
        "torch.manual_seed(0)", "torch.rand(3)", "torch.randperm(5)", "np.random.seed(1)", "np.random.rand(2)", "np.random.default_rng()",
        "import random", "from random import shuffle", "nn.Dropout(0.5)", "F.dropout(x)", "x.uniform_(0, 1)", "nn.init.normal_(w)",
        "GaussianMixture(2)", "hash('site-1')", "torch.cuda.manual_seed_all(1)", "torch.rand_like(x)", "from numpy.random import rand",
    ],
)  # fmt: skip
def test_the_reader_sees_a_global_draw(line: str) -> None:
    assert culprits(line)


@pytest.mark.parametrize(
    "line",
    [
        "torch.rand(3, generator=g)", "rng.random(3)", "np.random.Generator(np.random.PCG64(1))", "generator.manual_seed(1)",
        "nn.init.zeros_(w)", "nn.init.uniform_(w, generator=g)", "GaussianMixture(2, random_state=0)", "x.copy_(y)", "rng.shuffle(x)",
    ],
)  # fmt: skip
def test_the_reader_lets_a_named_stream_pass(line: str) -> None:
    assert not culprits(line)


def states() -> tuple[object, ...]:
    numpy_state = repr(np.random.get_state(legacy=False))  # noqa: NPY002  the one that must not be used
    return torch.get_rng_state().numpy().tobytes(), numpy_state, random.getstate()


@contextmanager
def untouched() -> Iterator[None]:
    """The three global generators are afterwards where they were before."""
    before = states()
    yield
    after = states()
    assert [a == b for a, b in zip(before, after, strict=True)] == [True] * 3, (
        "torch, numpy, random"
    )


@pytest.mark.parametrize("method", sorted(load_methods()))
def test_a_run_neither_reads_nor_moves_global_generators(method: str, tmp_path: Path) -> None:
    models = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        folder = tmp_path / str(seed)
        with untouched():
            run(toy_config(method, train__rounds=2), folder)
        models.append((folder / "model.safetensors").read_bytes())
    assert models[0] == models[1]


@pytest.mark.filterwarnings("ignore:A test tried to use socket")
@pytest.mark.parametrize("method", ["fedavg", "fedgsca"])
def test_a_run_needs_no_network(method: str, tmp_path: Path, socket_disabled: None) -> None:
    import socket

    from pytest_socket import SocketBlockedError

    with pytest.raises(SocketBlockedError):
        socket.socket()
    assert run(toy_config(method, frozen=True), tmp_path / "run")["rounds"] == 6


# ---- the streams themselves ----


def test_the_same_address_gives_the_same_numbers() -> None:
    assert (
        stream(0, "noise", "site-1").random(5).tolist()
        == stream(0, "noise", "site-1").random(5).tolist()
    )
    assert torch.equal(
        torch.rand(5, generator=torch_stream(3, "a")), torch.rand(5, generator=torch_stream(3, "a"))
    )


@pytest.mark.parametrize(
    "other",
    [(1, "a", 1), (0, "b", 1), (0, "a", 2), (0, "a", "1"), (0, "a"), (0, "a", 1, 0), (0, "a1")],
)
def test_every_part_of_an_address_counts(other: tuple[int | str, ...]) -> None:
    seed, *path = other
    assert stream(0, "a", 1).random() != stream(int(seed), *path).random()
