"""For all tests: a cache folder of their own, one thread, no waiting for the disk, no chance."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# before torch is imported anywhere: on a busy machine several threads are much slower than one
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"

BASE = Path(tempfile.mkdtemp(prefix="fedgsca-tests-"))
os.environ["FEDGSCA_CACHE"] = str(BASE / "cache")  # also seen by the processes that tests start


def check_descriptor(descriptor: int) -> None:
    """What remains of os.fsync here: an error for a descriptor that is not open.

    A tiny run calls it two hundred times: 0.54 of 1.17 s in one profile on a busy disk. It protects
    against power failures, which no test can simulate; tests of a full disk and of kills put
    their own function in its place.
    """
    os.fstat(descriptor)


# Examples that do not depend on chance, and no time limits, which a busy machine exceeds: a change
# that breaks nothing must not fail. tests/unit/test_fuzz.py searches further (make slow).
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def pytest_configure() -> None:
    os.fsync = check_descriptor  # type: ignore[assignment]
    settings.load_profile("repeatable")


# Files that take longest for their number of tests, longest first.
LONG_FILES = (
    "e2e/test_tutorials.py",
    "contract/test_methods.py",
    "contract/test_withdrawal.py",
    "contract/test_evidence.py",
    "contract/test_private_flower.py",
    "contract/test_leaks.py",
    "contract/test_participation.py",
    "e2e/test_kill.py",
    "e2e/test_cli.py",
    "e2e/test_python_api.py",
    "e2e/test_bad_input.py",
    "e2e/test_review_page.py",
    "unit/test_monai_networks.py",
    "unit/test_resnet.py",
    "e2e/test_audit.py",
    "e2e/test_three_hospitals.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, then those with many tests, so that all processes end together.

    A file stays in one process. The tutorials have few tests: as the last file, they would keep
    one process busy for a minute while the others have nothing to do.
    """
    positions = {}
    for position, name in enumerate(LONG_FILES):
        path = Path(__file__).parent / name
        if not path.exists():
            raise pytest.UsageError(f"tests/conftest.py: LONG_FILES names {name}, which is gone")
        positions[path] = position
    num_tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (positions.get(item.path, len(positions)), -num_tests[item.path]))


def pytest_unconfigure() -> None:
    shutil.rmtree(BASE, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Also for a torch that was imported before this file."""
    import torch

    torch.set_num_threads(1)


# What a worker process of a run imports, by itself or at the first use of torch.
PRELOAD = ["torch", "numpy", "fedgsca.federation.processes", "fedgsca.federation.rounds"]


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServerContext]:
    """A process that has imported torch once, and of which workers are copies."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    yield context
    from multiprocessing import forkserver

    forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.fixture
def cheap_processes(fork_server: ForkServerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of `jobs=2` that do not import torch one by one. The kill tests start real ones."""
    monkeypatch.setattr(
        "fedgsca.federation.processes.multiprocessing.get_context", lambda kind: fork_server
    )
