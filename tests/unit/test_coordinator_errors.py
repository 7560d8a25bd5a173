"""What the coordinator's terminal shows when a deployment stops."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from fedgsca.errors import QuorumError, RunFolderError
from fedgsca.hospital.coordinator import TracebackFilter, report_stop


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """A logger that writes like Flower's, with our filter."""
    logger = logging.getLogger("test-coordinator-errors")
    logger.propagate = False
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logger.addHandler(handler)
    our_filter = TracebackFilter()
    logger.addFilter(our_filter)
    yield logger, text
    logger.removeFilter(our_filter)
    logger.removeHandler(handler)


def fail(logger: logging.Logger, error: Exception) -> None:
    """What Flower does with an exception of a ServerApp."""
    try:
        raise error
    except Exception as caught:
        logger.error("%s raised an exception", "ServerApp", exc_info=caught)
    logger.error("Exit Code: 201\nAn unhandled exception occurred in the ServerApp.")


def test_an_error_of_ours_is_two_lines(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, text = log
    error = QuorumError("round.quorum-not-reached", "1 of 3 sites answered", fix="call the others")
    fail(logger, error)
    assert text.getvalue().splitlines() == [
        "ERROR: Error [round.quorum-not-reached]: 1 of 3 sites answered",
        "Fix: call the others",
    ]


def test_a_bug_keeps_its_traceback(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, text = log
    fail(logger, ZeroDivisionError("a bug"))
    assert "Traceback" in text.getvalue()
    assert "Exit Code: 201" in text.getvalue()


@pytest.mark.parametrize(
    "fix",
    [
        "free some space, then run `fedgsca resume`",
        "free some space under /srv/run, then run `fedgsca resume /srv/run`",
        "choose another --out, or continue that experiment with `fedgsca resume`",
    ],
)
def test_every_fix_names_the_script_of_the_kit(fix: str) -> None:
    error = RunFolderError("run.disk-full", "the disk is full", fix=fix)
    report_stop(error)
    assert "`./run.sh` of the coordinator's kit" in error.fix
    assert "fedgsca resume" not in error.fix
