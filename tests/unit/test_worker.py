"""The resident worker of a site: one process, replaced when it dies. Neither Flower nor torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedgsca.errors import UpdateError
from fedgsca.hospital.answers import source_stamp
from fedgsca.hospital.worker import WorkerClient, send

ROOT = Path(__file__).parents[2]


def make_client(folder: Path, *arguments: str) -> WorkerClient:
    return WorkerClient([sys.executable, "-m", "tests.echo_worker", str(folder), *arguments])


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerClient]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    client = make_client(tmp_path)
    yield client
    client.stop()


def ask(client: WorkerClient, request: bytes) -> tuple[int, bytes]:
    """Process id of the worker that answered, and the answer."""
    number, _, answer = client.ask(request).partition(b" ")
    return int(number), answer


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.02)


def has_ended(process_id: int) -> bool:
    try:
        # a zombie has no words: it has ended, and its parent has not asked yet
        return not Path(f"/proc/{process_id}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends while it is read
        return True


def test_one_process_answers_all_messages_until_it_dies(client: WorkerClient) -> None:
    first, answer = ask(client, b"abc")
    assert answer == b"cba"
    second, answer = ask(client, b"x" * 5_000_000)
    assert answer == b"x" * 5_000_000 and second == first
    os.kill(first, signal.SIGKILL)
    third, answer = ask(client, b"ab")
    assert third != first and answer == b"ba"


def test_a_worker_that_dies_over_a_message_is_asked_again(client: WorkerClient) -> None:
    assert ask(client, b"die once")[1] == b"ecno eid"
    with pytest.raises(UpdateError) as caught:
        client.ask(b"die always")
    assert caught.value.code == "site.worker-died"
    assert ask(client, b"a")[1] == b"a"  # the next message has a new chance


def test_a_worker_that_cannot_start_is_reported() -> None:
    client = WorkerClient([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(UpdateError) as caught:
        client.ask(b"a")
    assert caught.value.code == "site.worker-died"


def test_a_new_experiment_has_a_new_process(client: WorkerClient) -> None:
    first, _ = ask(client, b"a")
    second, answer = ask(client, b"new experiment")
    assert second != first and answer == b"tnemirepxe wen" and has_ended(first)


def test_a_bug_in_the_worker_is_reported_without_its_text(client: WorkerClient) -> None:
    with pytest.raises(UpdateError) as caught:
        client.ask(b"fail")
    assert caught.value.code == "site.worker-refused" and "a bug" not in caught.value.message
    assert ask(client, b"a")[1] == b"a"


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_worker_ends_with_its_node_in_the_middle_of_a_message(
    client: WorkerClient, tmp_path: Path, is_stopped: bool
) -> None:
    process = client.start()
    assert process.stdin is not None
    send(process.stdin, b"slow")
    wait_until((tmp_path / "slow").exists)
    if is_stopped:
        client.stop()
    else:  # as when the node is killed
        process.stdin.close()
    wait_until(lambda: has_ended(process.pid))


def test_a_worker_without_messages_ends(client: WorkerClient, tmp_path: Path) -> None:
    process = make_client(tmp_path, "0.05").start()
    assert process.wait(120) == 0
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def test_the_node_of_a_site_imports_nothing_heavy_for_the_worker() -> None:
    heavy = ["torch", "monai", "numpy", "pydantic", "flwr"]
    code = "import sys, fedgsca.hospital.worker;"
    code += f" print([name for name in {heavy} if name in sys.modules])"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


# ---- settings and data ----


def test_a_changed_file_changes_the_stamp(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "labels.csv").write_text("file,label\n")
    (folder / "broken").symlink_to(tmp_path / "nowhere")
    before = source_stamp(str(folder))
    assert source_stamp(f"csv:{folder}") == before != source_stamp("synthetic")
    (folder / "labels.csv").write_text("file,label\na.png,x\n")
    assert source_stamp(str(folder)) != before
    assert source_stamp(str(folder / "labels.csv")) != source_stamp(None) == ""
