"""Messages between programs of one user on one machine: a Unix socket in a private folder.

Only the user who owns the folder can open it (mode 0700). It contains a secret; both sides prove
that they know it before a message is read. No network address is involved.

    server -> client   32 random bytes
    client -> server   32 random bytes, HMAC-SHA-256(secret, "client", both)
    server -> client   HMAC-SHA-256(secret, "server", both)
    then               messages: eight bytes with the length, and the bytes
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from fedgsca.errors import RunFolderError
from fedgsca.support.files import write_atomic

MAX_MESSAGE = 2**31  # bytes; Flower's own limit is as large
_HANDSHAKE_SECONDS = 30.0  # on a busy machine the other side may not run for a while
_NUM_BYTES = 32  # of the secret, of the random numbers and of the proofs
_LONGEST_PATH = 100  # bytes of a socket's path; the system allows 107 or less
_SOCKET, _SECRET = "socket", "secret"


class MessageTooLongError(ConnectionError):
    """The length of a message is above the limit; the message was not sent or not read."""


class WrongSecretError(ConnectionError):
    """The other side does not know the secret."""


# ---- the folder ----


def make_private_folder(folder: Path) -> None:
    """Create the folder, or check that it belongs to this user alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        status = folder.stat()
    except OSError as error:
        raise RunFolderError(
            "file.cannot-write",
            f"{folder} cannot be made a private folder: {error.strerror}",
            fix=f"check that {folder.parent} is a folder that you may write to",
        ) from None
    if stat.S_IMODE(status.st_mode) & 0o077 or status.st_uid != os.geteuid():
        raise RunFolderError(
            "site.open-folder",
            f"other users of this machine can open {folder}",
            fix="set state in site.toml to a folder on a disk with Unix permissions",
        )


def renew_secret(folder: Path) -> None:
    """Write a new secret for the next server."""
    write_atomic(folder / _SECRET, secrets.token_bytes(_NUM_BYTES), mode=0o600)


def _read_secret(folder: Path) -> bytes:
    secret = (folder / _SECRET).read_bytes()
    if len(secret) != _NUM_BYTES:
        raise WrongSecretError(f"{folder / _SECRET} is damaged")
    return secret


@contextmanager
def _socket_path(folder: Path) -> Iterator[str]:
    """The path of the socket, in a short form if it is too long for the system."""
    path = str(folder / _SOCKET)
    if len(os.fsencode(path)) <= _LONGEST_PATH or not Path("/proc/self/fd").is_dir():
        yield path
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{_SOCKET}"
    finally:
        os.close(handle)


# ---- connections ----


class LocalConnection:
    """A connection on which both sides have proved that they know the secret."""

    def __init__(self, channel: socket.socket, limit: int = MAX_MESSAGE) -> None:
        self.channel = channel
        self.limit = limit

    def send(self, *parts: bytes) -> None:
        """Send one message that consists of these parts."""
        length = sum(len(part) for part in parts)
        if length > self.limit:
            raise MessageTooLongError(f"{length} bytes, at most {self.limit} are allowed")
        self.channel.sendall(length.to_bytes(8, "big"))
        for part in parts:
            self.channel.sendall(part)

    def receive(self) -> bytes:
        """The next message. Raises ConnectionError if the other side is gone."""
        length = int.from_bytes(_receive_exactly(self.channel, 8), "big")
        if length > self.limit:
            raise MessageTooLongError(f"{length} bytes, at most {self.limit} are allowed")
        return bytes(_receive_exactly(self.channel, length))

    def close(self) -> None:
        """Close the connection."""
        self.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def listen(folder: Path) -> socket.socket:
    """The server's socket. A socket that a killed server left behind is replaced."""
    (folder / _SOCKET).unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _socket_path(folder) as path:
        server.bind(path)
    (folder / _SOCKET).chmod(0o600)
    server.listen()
    return server


def stop_listening(server: socket.socket, folder: Path) -> None:
    """Take the socket away, so that no further client connects."""
    (folder / _SOCKET).unlink(missing_ok=True)
    server.close()


def accept_client(channel: socket.socket, folder: Path) -> LocalConnection:
    """Let a client prove that it knows the secret. Raises WrongSecretError if it does not."""
    secret = _read_secret(folder)
    channel.settimeout(_HANDSHAKE_SECONDS)
    challenge = secrets.token_bytes(_NUM_BYTES)
    channel.sendall(challenge)
    answer = bytes(_receive_exactly(channel, 2 * _NUM_BYTES))
    nonces = challenge + answer[:_NUM_BYTES]
    if not hmac.compare_digest(answer[_NUM_BYTES:], _proof(secret, b"client", nonces)):
        channel.sendall(bytes(_NUM_BYTES))  # tells the client that it is this and not a crash
        raise WrongSecretError("a client does not know the secret")
    channel.sendall(_proof(secret, b"server", nonces))
    channel.settimeout(None)
    return LocalConnection(channel)


def connect(folder: Path) -> LocalConnection:
    """Connect to the server of this folder.

    Raises FileNotFoundError or ConnectionError if there is none, WrongSecretError if it is another.
    """
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        channel.settimeout(_HANDSHAKE_SECONDS)
        with _socket_path(folder) as path:
            channel.connect(path)
        secret = _read_secret(folder)
        challenge = bytes(_receive_exactly(channel, _NUM_BYTES))
        nonces = challenge + secrets.token_bytes(_NUM_BYTES)
        channel.sendall(nonces[_NUM_BYTES:] + _proof(secret, b"client", nonces))
        answer = bytes(_receive_exactly(channel, _NUM_BYTES))
        if not hmac.compare_digest(answer, _proof(secret, b"server", nonces)):
            raise WrongSecretError("it refused ours, or did not prove that it knows it")
        channel.settimeout(None)
    except BaseException:
        channel.close()
        raise
    return LocalConnection(channel)


def _proof(secret: bytes, role: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, role + nonces, "sha256")


def _receive_exactly(channel: socket.socket, length: int) -> bytearray:
    content = bytearray(length)
    view = memoryview(content)
    position = 0
    while position < length:
        count = channel.recv_into(view[position:])
        if count == 0:
            raise ConnectionResetError("the other side has closed the connection")
        position += count
    return content
