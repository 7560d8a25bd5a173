"""A real deployment on this machine: certificates, keys, a SuperLink and SuperNodes.

Every process is ended by its own process id.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509

BIN = Path(sys.executable).parent
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port of loopback that no other process gets during the block.

    Nobody listens there, but a server that sets SO_REUSEADDR, as all of ours do, can: the port is
    bound here, and not listened on.
    """
    with socket.socket() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("127.0.0.1", 0))
        yield int(place.getsockname()[1])


def make_certificates(folder: Path, *, name: str = "ca") -> None:
    """Write <name>.crt, an authority, and server.pem and server.key, signed by it, for loopback."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def common_name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    folder.mkdir(parents=True, exist_ok=True)
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    end = begin + datetime.timedelta(days=2)
    authority = ec.generate_private_key(ec.SECP384R1())
    server = ec.generate_private_key(ec.SECP384R1())
    base = (
        x509.CertificateBuilder()
        .not_valid_before(begin)
        .not_valid_after(end)
        .issuer_name(common_name(f"{name} of a test"))
    )
    identity = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root = (
        base.subject_name(common_name(f"{name} of a test"))
        .public_key(authority.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(identity, critical=False)
        .add_extension(_usage(sign=True), critical=True)
        .sign(authority, hashes.SHA384())
    )
    hosts = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identity)
    leaf = (
        base.subject_name(common_name("localhost"))
        .public_key(server.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(hosts, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(issuer, critical=False)
        .add_extension(_usage(sign=False), critical=True)
        .sign(authority, hashes.SHA384())
    )
    pem = serialization.Encoding.PEM
    (folder / f"{name}.crt").write_bytes(root.public_bytes(pem))
    (folder / "server.pem").write_bytes(leaf.public_bytes(pem))
    encoding = serialization.PrivateFormat.TraditionalOpenSSL
    key = server.private_bytes(pem, encoding, serialization.NoEncryption())
    (folder / "server.key").write_bytes(key)


def _usage(*, sign: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=sign,
        crl_sign=sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def make_key(path: Path) -> None:
    """A SuperNode's key pair, `path` and `path`.pub, in the form that Flower reads."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    path.write_bytes(private)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    path.with_name(path.name + ".pub").write_bytes(public)


def descendants(number: int) -> list[int]:
    """Children, their children and so on, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    process_ids: list[int] = []
    generation = [number]
    while generation:
        next_generation = []
        for parent in generation:
            next_generation += children.get(parent, [])
        process_ids += next_generation
        generation = next_generation
    return process_ids


def program(number: int) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        content = Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return ""
    return content.replace(b"\0", b" ").decode(errors="replace")


def cpu_seconds(process_id: int) -> float:
    """Processor time of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(value) for value in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def site_workers(folder: Path, name: str = "") -> list[int]:
    """Resident workers of the sites whose site.toml is in this folder; of one site if named."""
    process_ids = []
    for entry in Path("/proc").glob("[0-9]*"):
        words = program(int(entry.name)).split()
        if "fedgsca.hospital.worker" in words and any(
            word.startswith(str(folder)) and word.endswith(f"{name}.toml") for word in words
        ):
            process_ids.append(int(entry.name))
    return process_ids


def end_flower(number: int) -> None:
    """kill -9 a process if it is one of Flower's or ours; its id may belong to another one."""
    if any(word in program(number) for word in ("flwr", "flower", "fedgsca")):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


@dataclass
class Process:
    """A child process in its own session, with its output in a file."""

    name: str
    handle: subprocess.Popen[bytes]
    log: Path
    # its children at the moment it was killed
    family: list[int] = field(default_factory=list)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def running(self) -> bool:
        return self.handle.poll() is None

    def wait(self, seconds: float) -> int:
        try:
            return self.handle.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.name} still runs after {seconds} s:\n{self.text[-3000:]}"
            ) from None

    def wait_for(self, phrase: str, seconds: float = 300) -> None:
        """Wait until the process has printed this."""
        end = time.monotonic() + seconds
        while phrase not in self.text:
            assert time.monotonic() < end and self.running, (
                f"{self.name} did not print {phrase!r}:\n{self.text[-3000:]}"
            )
            time.sleep(0.1)

    def kill(self) -> None:
        """kill -9, as in a crash. Its children should end by themselves; stop() makes sure."""
        self.family = descendants(self.handle.pid)
        self.handle.kill()
        self.handle.wait()

    def stop(self) -> None:
        """End the process and its children, first politely, then by force.

        Flower starts children in their own sessions, so they are looked up while it lives.
        """
        family = [*self.family, *descendants(self.handle.pid)]
        if self.running:
            self.handle.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.handle.wait(5)
        for number in [self.handle.pid, *family] if self.running else family:
            end_flower(number)
        self.handle.wait()


@dataclass
class Deployment:
    """A SuperLink and any number of nodes in a folder, with TLS and keys."""

    folder: Path
    # registrations survive the SuperLink, in a database that also stores every message
    keep: bool = True
    port: int = field(default_factory=free_port)
    control_port: int = field(default_factory=free_port)
    processes: list[Process] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        if not (self.folder / "ca.crt").exists():
            make_certificates(self.folder)
        # In memory where possible: Flower's SuperExec ends when SQLite's lock takes longer than
        # five seconds. This helps, but on an overloaded machine the lock failed there, too.
        fast = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else self.folder
        self.database = fast / f"fedgsca-test-{os.getpid()}-{self.port}.db"
        trust = f'root-certificates = "{self.folder / "ca.crt"}"'
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n[superlink.here]\n'
            f'address = "127.0.0.1:{self.control_port}"\n{trust}\n'
            f'[superlink.nodes]\naddress = "127.0.0.1:{self.port}"\n{trust}\n'
        )
        root = str(Path(__file__).parent.parent)
        self.env = {**os.environ, **OFFLINE, "FLWR_HOME": str(home), "PYTHONPATH": root, **self.env}
        self.env["PATH"] = f"{BIN}:{self.env['PATH']}"  # Flower starts its other programs by name

    def start(self, name: str, program: str, *arguments: str) -> Process:
        log = self.folder / f"{name}-{len(self.processes)}.log"
        with open(log, "wb") as out:
            command = [str(BIN / program), *arguments]
            child = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.env,
                start_new_session=True,
            )
        self.processes.append(Process(name, child, log))
        return self.processes[-1]

    def command(self, *arguments: str, seconds: float = 300) -> str:
        """A `flwr` command that must succeed."""
        process = self.start("flwr", "flwr", *arguments)
        code = process.wait(seconds)
        assert code == 0, f"flwr {' '.join(arguments)} ended with {code}:\n{process.text[-3000:]}"
        return process.text

    def superlink(self) -> Process:
        (self.folder / "keys").mkdir(exist_ok=True)
        ports = ["--port", str(self.port), "--control-port", str(self.control_port)]
        database = ["--database", str(self.database)] if self.keep else []
        command = ["deploy", "superlink", str(self.folder), "--listen", "127.0.0.1"]
        process = self.start("superlink", "fedgsca", *command, *ports, *database)
        wait_for_port(self.control_port, process)
        return process

    def register(self, name: str) -> Path:
        """A new key, which the SuperLink admits under the site's name."""
        key = self.folder / f"key-{name}"
        make_key(key)
        shutil.copy(f"{key}.pub", self.folder / "keys" / f"{name}.pub")
        superlink = next(p for p in reversed(self.processes) if p.name == "superlink")
        superlink.wait_for(f"admitted: {name}")
        return key

    def site_file(self, name: str, **settings: str) -> Path:
        path = self.folder / f"{name}.toml"
        rows = {"name": name, "state": str(self.folder / "memory" / name), **settings}
        path.write_text("".join(f'{key} = "{value}"\n' for key, value in rows.items()))
        return path

    def supernode(
        self,
        name: str,
        key: Path | None = None,
        *,
        ca: Path | None = None,
        settings: Path | None = None,
    ) -> Process:
        """A hospital's node."""
        path = settings or self.site_file(name)
        authority = str(ca or self.folder / "ca.crt")
        key_path = str(key or self.folder / f"key-{name}")
        superlink = ["--superlink", f"127.0.0.1:{self.port}"]
        trust = ["--root-certificates", authority, "--key", key_path]
        return self.start(name, "fedgsca", "deploy", "node", str(path), *superlink, *trust)

    def run(self, app: Path) -> Process:
        return self.start("run", "flwr", "run", str(app), "here", "--stream")

    def close(self) -> None:
        for process in reversed(self.processes):
            process.stop()
        for path in self.database.parent.glob(self.database.name + "*"):
            path.unlink()


def wait_for_port(port: int, process: Process, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.running:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError(f"{process.name} does not listen on {port}:\n{process.text[-3000:]}")


@contextlib.contextmanager
def deployment(folder: Path, *, keep: bool = True, **env: str) -> Iterator[Deployment]:
    """A deployment that ends with the block."""
    parties = Deployment(folder, keep, env=env)
    try:
        yield parties
    finally:
        parties.close()
