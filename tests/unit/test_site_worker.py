"""The resident worker of a site: protocol, restart, secret, limits. Neither Flower nor torch."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedgsca.engine.site_answers import source_stamp
from fedgsca.engine.site_settings import SiteSettings
from fedgsca.engine.site_worker import WorkerClient, WorkerServer, state_of
from fedgsca.errors import ConfigError, RunFolderError, UpdateError
from fedgsca.support import local_socket
from fedgsca.support.local_socket import (
    LocalConnection,
    MessageTooLongError,
    WrongSecretError,
    accept_client,
    connect,
    make_private_folder,
    renew_secret,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def guardian() -> Iterator[subprocess.Popen[bytes]]:
    """Workers end with this process, also if a test fails."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def client(guardian: subprocess.Popen[bytes], tmp_path: Path) -> WorkerClient:
    return make_client(tmp_path / "worker", guardian)


def make_client(folder: Path, guardian: subprocess.Popen[bytes]) -> WorkerClient:
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.echo_worker import main"
    command = [sys.executable, "-c", f"{script}; main()", str(folder), str(guardian.pid)]
    return WorkerClient(folder, command)


def ask(client: WorkerClient, request: bytes) -> tuple[int, bytes]:
    """Process id of the worker that answered, and the answer."""
    number, _, answer = client.ask(request).partition(b" ")
    return int(number), answer


def wait_for_end(process_id: int) -> None:
    end = time.monotonic() + 120
    while is_running(process_id):
        assert time.monotonic() < end, "it is still running"
        time.sleep(0.02)


def is_running(process_id: int) -> bool:
    try:
        # a zombie has no words: it has ended, and its parent has not asked yet
        return bool(Path(f"/proc/{process_id}/cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends while it is read
        return False


# ---- life of a worker ----


def test_one_process_answers_all_messages(client: WorkerClient) -> None:
    first, answer = ask(client, b"abc")
    assert answer == b"cba"
    second, answer = ask(client, b"x" * 5_000_000)
    assert answer == b"x" * 5_000_000 and second == first


def test_another_client_finds_the_worker(
    client: WorkerClient, guardian: subprocess.Popen[bytes]
) -> None:
    first, _ = ask(client, b"a")
    other_client = make_client(client.folder, guardian)
    assert ask(other_client, b"a")[0] == first and other_client.process is None


def test_several_clients_start_one_worker(
    guardian: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    clients = [make_client(tmp_path / "worker", guardian) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        process_ids = {number for number, _ in pool.map(lambda c: ask(c, b"a"), clients)}
    assert len(process_ids) == 1


def test_a_killed_worker_is_replaced_although_its_socket_is_still_there(
    client: WorkerClient,
) -> None:
    first, _ = ask(client, b"a")
    os.kill(first, signal.SIGKILL)
    wait_for_end(first)
    assert (client.folder / "socket").exists()
    second, answer = ask(client, b"ab")
    assert second != first and answer == b"ba"


def test_a_worker_that_dies_over_a_message_is_asked_again(client: WorkerClient) -> None:
    assert ask(client, b"die once")[1] == b"ecno eid"


def test_after_three_deaths_over_one_message_the_site_says_so(client: WorkerClient) -> None:
    with pytest.raises(UpdateError) as caught:
        client.ask(b"die always")
    assert caught.value.code == "site.worker-died"
    assert ask(client, b"a")[1] == b"a"  # the next message has a new chance


def test_a_new_experiment_has_a_new_process(client: WorkerClient) -> None:
    first, _ = ask(client, b"a")
    second, answer = ask(client, b"new experiment")
    assert second != first and answer == b"tnemirepxe wen"


def test_a_bug_in_the_worker_is_reported_without_its_text(client: WorkerClient) -> None:
    with pytest.raises(UpdateError) as caught:
        client.ask(b"fail")
    assert caught.value.code == "site.worker-refused" and "a bug" not in caught.value.message
    assert ask(client, b"a")[1] == b"a"


def test_a_worker_ends_with_its_site(
    client: WorkerClient, guardian: subprocess.Popen[bytes]
) -> None:
    worker, _ = ask(client, b"a")
    guardian.kill()
    guardian.wait()
    wait_for_end(worker)


def test_stop_ends_the_worker_in_the_middle_of_a_message(client: WorkerClient) -> None:
    worker, _ = ask(client, b"a")
    with connect(client.folder) as connection:
        connection.send(b"slow")
        client.stop()
    wait_for_end(worker)


def test_a_worker_without_messages_ends(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "worker")
    WorkerServer(tmp_path / "worker", lambda: bytes, idle_seconds=0.05).serve()
    assert not (tmp_path / "worker" / "socket").exists()


def test_a_worker_that_cannot_start_is_reported(tmp_path: Path) -> None:
    client = WorkerClient(tmp_path / "worker", [sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(UpdateError) as caught:
        client.start()
    assert caught.value.code == "site.worker-not-started" and "(3)" in caught.value.message


# ---- who can reach it ----


def test_folder_socket_and_secret_are_private(client: WorkerClient) -> None:
    client.start()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in client.folder.iterdir()}
    assert stat.S_IMODE(client.folder.stat().st_mode) == 0o700
    assert modes["socket"] == 0o600 and modes["secret"] == 0o600


def test_a_folder_that_others_can_open_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "chmod", lambda self, mode: None)
    (tmp_path / "worker").mkdir(mode=0o755)
    with pytest.raises(RunFolderError) as caught:
        make_private_folder(tmp_path / "worker")
    assert caught.value.code == "site.open-folder"


def test_a_wrong_secret_is_refused_and_the_worker_goes_on(client: WorkerClient) -> None:
    worker, _ = ask(client, b"a")
    secret = (client.folder / "secret").read_bytes()
    renew_secret(client.folder)
    # the worker reads the secret for each client, so both know the new one
    assert ask(client, b"a")[0] == worker
    assert (client.folder / "secret").read_bytes() != secret
    channel = raw_channel(client)
    channel.recv(32)
    channel.sendall(bytes(64))
    assert channel.recv(64) == bytes(32) and channel.recv(1) == b""
    assert ask(client, b"a")[0] == worker


def test_a_server_without_the_secret_is_not_trusted(tmp_path: Path) -> None:
    """Somebody else's program on the socket: the client sends it nothing."""
    folder, other = tmp_path / "worker", tmp_path / "other"
    for path in (folder, other):
        make_private_folder(path)
        renew_secret(path)
    server = local_socket.listen(folder)
    with ThreadPoolExecutor(1) as pool:
        refusal = pool.submit(lambda: accept_client(server.accept()[0], other))
        with pytest.raises(UpdateError) as caught:
            WorkerClient(folder, ["false"]).ask(b"a")
        assert caught.value.code == "site.wrong-secret"
        with pytest.raises(WrongSecretError):
            refusal.result()
    server.close()


def test_noise_on_the_socket_does_not_disturb_the_worker(client: WorkerClient) -> None:
    worker, _ = ask(client, b"a")
    silent = raw_channel(client)  # says nothing and stays
    raw_channel(client).close()
    hasty = raw_channel(client)
    hasty.sendall(b"GET / HTTP/1.1\r\n\r\n")
    hasty.close()
    assert ask(client, b"a")[0] == worker
    silent.close()


def raw_channel(client: WorkerClient) -> socket.socket:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.settimeout(120)
    channel.connect(str(client.folder / "socket"))
    return channel


# ---- limits ----


def test_a_message_that_is_too_long_is_not_read(client: WorkerClient) -> None:
    worker, _ = ask(client, b"a")
    with connect(client.folder) as connection:
        connection.channel.sendall((2**40).to_bytes(8, "big"))
        with pytest.raises(ConnectionError):
            connection.receive()
    assert ask(client, b"a")[0] == worker


def test_a_message_that_is_too_long_is_not_sent(
    client: WorkerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = LocalConnection(socket.socket(), limit=10)
    with pytest.raises(MessageTooLongError):
        connection.send(b"12345", b"678901")
    connection.close()
    monkeypatch.setattr(LocalConnection.__init__, "__defaults__", (10,))
    with pytest.raises(UpdateError) as caught:
        client.ask(b"12345678901")
    assert caught.value.code == "site.message-too-long"


def test_a_long_path_is_no_obstacle(guardian: subprocess.Popen[bytes], tmp_path: Path) -> None:
    client = make_client(tmp_path / ("a" * 90) / ("b" * 90) / "worker", guardian)
    assert ask(client, b"ab")[1] == b"ba"


# ---- settings and data ----


def test_the_state_folder_is_read_without_heavy_imports(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text('name = "a"\nstate = "/x/y"\n')
    assert state_of(path) == Path("/x/y")
    path.write_text('name = "a"\n')
    with pytest.raises(ConfigError) as caught:
        state_of(path)
    assert caught.value.code == "site.invalid-settings"
    modules = "fedgsca.engine.site_worker"
    heavy = ["torch", "monai", "numpy", "pydantic", "flwr"]
    code = f"import sys, {modules}; print([name for name in {heavy} if name in sys.modules])"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert output.strip() == "[]"


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


def test_settings_with_class_names_can_be_a_key_of_the_cache() -> None:
    """The runner of a site is cached by its settings; a dictionary alone could not be hashed."""
    settings = SiteSettings(name="lyon", state="state", classes={"Gesund": "healthy"})
    equal_settings = SiteSettings(name="lyon", state="state", classes={"Gesund": "healthy"})
    other_settings = SiteSettings(name="lyon", state="state", classes={"Krank": "healthy"})
    assert {settings: 1}[equal_settings] == 1
    assert other_settings not in {settings: 1}
