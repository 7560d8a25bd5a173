"""The SuperLink's doors: a hospital reaches what a node needs, and no command.

Every call of every service of the installed Flower is tried, from its descriptors and from the
routes of its application: a call that a new version adds is tried, too.
"""

from __future__ import annotations

import base64
import datetime
import http.client
import importlib
import json
import pkgutil
import re
import shutil
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import flwr.proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.superlink.main import create_app

from fedgsca.errors import ConfigError
from fedgsca.hospital.certificates import public_pem, read_node_key
from fedgsca.hospital.check_connection import probe_superlink
from fedgsca.hospital.superlink import NODE_PATHS, SuperLinkPlace, serve_superlink
from tests.deployment import Deployment, deployment, make_certificates, make_key

# a node needs neither of these: registration is by a file, and no program travels to a hospital
REFUSED_FLEET_CALLS = {"register-node", "unregister-node", "get-run", "get-fab"}


def service_paths() -> set[str]:
    """/v1/SERVICE/CALL of every service of flwr.proto."""
    paths = set()
    for module in pkgutil.iter_modules(flwr.proto.__path__):
        if module.name.endswith("_pb2"):
            file = importlib.import_module(f"flwr.proto.{module.name}").DESCRIPTOR
            for service in file.services_by_name.values():
                for call in service.methods:
                    paths.add(f"/v1/{service.name.lower()}/{kebab(call.name)}")
    return paths


def kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower().replace("o-auth", "oauth")


def route_paths() -> dict[str, set[str]]:
    """path -> methods of every route of the application."""
    from fastapi.routing import iter_route_contexts

    paths: dict[str, set[str]] = {}
    for context in iter_route_contexts(create_app().routes):
        route: Any = context.route
        paths.setdefault(route.path, set()).update(route.methods or ())
    return paths


def test_flower_has_the_services_that_these_tests_try() -> None:
    paths = service_paths()
    for call in ("control/start-run", "control/list-nodes", "control/register-node"):
        assert f"/v1/{call}" in paths
    fleet = {path for path in paths if path.startswith("/v1/fleet/")}
    assert {path.rpartition("/")[2] for path in fleet - NODE_PATHS} >= REFUSED_FLEET_CALLS
    assert set(route_paths()) >= NODE_PATHS and fleet >= NODE_PATHS
    assert len([path for path in route_paths() if path.startswith("/v1/control/")]) > 30


# ---- over TLS ----


class Client:
    """Requests over TLS with ca.crt and, if there is a key, a hospital's signature."""

    def __init__(self, folder: Path, port: int, key: Path | None) -> None:
        self.port = port
        self.context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        self.key = None if key is None else read_node_key(key.read_bytes())

    def send(self, path: str, body: bytes = b"", method: str = "POST") -> tuple[int, bytes]:
        headers = {"content-type": "application/protobuf", "accept": "application/protobuf"}
        if self.key is not None:
            timestamp = datetime.datetime.now(datetime.UTC).isoformat()
            headers["flwr-timestamp"] = timestamp
            headers["flwr-public-key"] = base64.b64encode(self.key.public).decode()
            signature = self.key.sign(timestamp.encode())
            headers["flwr-signature"] = base64.b64encode(signature).decode()
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=20, context=self.context
        )
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployment(tmp_path_factory.mktemp("superlink")) as parties:
        parties.superlink()
        for name in ("berlin", "lyon"):
            parties.register(name)
        yield parties


@pytest.fixture
def berlin(link: Deployment) -> Client:
    return Client(link.folder, link.port, link.folder / "key-berlin")


def test_no_call_but_those_of_a_node_exists_for_a_hospital(
    link: Deployment, berlin: Client
) -> None:
    routes = route_paths()
    requests = {(path, "POST") for path in service_paths()}
    for path, methods in routes.items():
        requests |= {(path, method) for method in methods | {"GET", "POST"}}
    forbidden = sorted(request for request in requests if request[0] not in NODE_PATHS)
    assert len(forbidden) > 60
    for path, method in forbidden:
        assert berlin.send(path, method=method)[0] == 404, path
    for path in NODE_PATHS:  # with another method, another spelling, or more behind it
        assert berlin.send(path, method="GET")[0] == 404
        for other in (path + "/", path.upper(), "/" + path, path + "/../../control/start-run"):
            assert berlin.send(other)[0] == 404
    # the same requests do arrive at the other door: this test can fail
    control = Client(link.folder, link.control_port, None)
    statuses = [control.send(path)[0] for path, _ in forbidden if path in routes]
    assert sum(status != 404 for status in statuses) > 30


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [["list"], ["supernode", "list"], ["federation", "list"], ["supernode", "register", "KEY"]],
)
def test_the_commands_of_flower_work_at_the_coordinator_only(
    link: Deployment, command: list[str]
) -> None:
    make_key(link.folder / "new")
    words = [word.replace("KEY", str(link.folder / "new.pub")) for word in command]
    refused = link.start("flwr", "flwr", *words, "nodes")
    assert refused.wait(60) != 0 and "404" in refused.text
    link.command(*words, "here")


def test_a_node_is_who_its_key_says(link: Deployment, berlin: Client) -> None:
    def activate(client: Client, key: bytes) -> tuple[int, bytes]:
        request = ActivateNodeRequest(public_key=key, heartbeat_interval=30)
        return client.send("/v1/fleet/activate-node", request.SerializeToString())

    lyon = Client(link.folder, link.port, link.folder / "key-lyon")
    assert berlin.key is not None and lyon.key is not None
    assert activate(berlin, lyon.key.public)[0] == 401  # another hospital's key
    status, body = activate(lyon, lyon.key.public)
    assert status == 200 and body
    number = PullMessagesRequest.FromString(b"")
    number.node.CopyFrom(Node(node_id=7))
    assert berlin.send("/v1/fleet/pull-messages", number.SerializeToString())[0] == 401
    make_key(link.folder / "stranger")
    stranger = Client(link.folder, link.port, link.folder / "stranger")
    assert stranger.key is not None
    status, body = activate(stranger, stranger.key.public)
    assert status == 412 and json.loads(body)["code"] == 2004
    assert stranger.send("/v1/fleet/pull-messages", number.SerializeToString())[0] == 401
    assert Client(link.folder, link.port, None).send("/v1/fleet/pull-messages")[0] == 401


def test_the_check_of_a_kit_sees_whether_its_key_is_admitted(link: Deployment) -> None:
    make_key(link.folder / "unknown")
    for name, is_registered in (("key-berlin", True), ("unknown", False)):
        public = read_node_key((link.folder / name).read_bytes()).public
        answer = probe_superlink("127.0.0.1", link.port, link.folder / "ca.crt", public)
        assert answer.is_registered is is_registered
        assert answer.seconds_ahead is not None


def test_nobody_answers_in_the_name_of_another_hospital(berlin: Client) -> None:
    answer = Message(metadata=Metadata(run_id=1, src_node_id=8, dst_node_id=1))
    request = PushMessagesRequest(node=Node(node_id=7), messages_list=[answer])
    assert berlin.send("/v1/fleet/push-messages", request.SerializeToString())[0] == 403
    answer.metadata.src_node_id = 7
    request = PushMessagesRequest(node=Node(node_id=7), messages_list=[answer])
    assert berlin.send("/v1/fleet/push-messages", request.SerializeToString())[0] == 401
    assert berlin.send("/v1/fleet/push-messages", b"\xff" * 50)[0] == 403


def test_a_key_is_shut_out_with_its_file_and_admitted_with_it(link: Deployment) -> None:
    superlink = next(process for process in link.processes if process.name == "superlink")
    path = link.folder / "keys" / "lyon.pub"
    lyon = Client(link.folder, link.port, link.folder / "key-lyon")
    path.rename(link.folder / "away.pub")
    superlink.wait_for("shut out: lyon")
    assert lyon.send("/v1/fleet/pull-messages")[0] == 401
    assert lyon.key is not None
    request = ActivateNodeRequest(public_key=lyon.key.public, heartbeat_interval=30)
    assert lyon.send("/v1/fleet/activate-node", request.SerializeToString())[0] == 412
    for name, problem in (
        ("turin", "turin is not admitted: it is the key of lyon"),
        ("odd", "odd is not admitted: not a public key"),
    ):
        other = path.with_name(f"{name}.pub")
        content = (link.folder / "away.pub").read_bytes()
        other.write_bytes(content if name == "turin" else b"nonsense")
        superlink.wait_for(problem)
        other.unlink()
    (link.folder / "away.pub").rename(path)
    wait_for_admission(lyon, request.SerializeToString())


def wait_for_admission(client: Client, request: bytes) -> None:
    end = time.monotonic() + 20
    # an active node cannot be activated again: Flower's own answer may be 412, too
    while b"not admitted" in client.send("/v1/fleet/activate-node", request)[1]:
        assert time.monotonic() < end
        time.sleep(0.2)


def test_what_the_superlink_needs_is_reported(tmp_path: Path) -> None:
    place = SuperLinkPlace(tmp_path, "127.0.0.1", 1, 2, None)
    with pytest.raises(ConfigError) as info:
        serve_superlink(place)
    assert info.value.code == "deploy.not-a-kit" and "ca.crt" in info.value.message
    make_certificates(tmp_path)
    (tmp_path / "keys").mkdir()
    elsewhere = SuperLinkPlace(tmp_path, "192.0.2.1", 8000, 8001, None)
    with pytest.raises(ConfigError) as info:
        serve_superlink(elsewhere)
    assert info.value.code == "deploy.port-in-use"


def test_only_keys_that_flower_accepts_are_keys(tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    pem = public_pem((tmp_path / "key.pub").read_bytes())
    assert pem == read_node_key((tmp_path / "key").read_bytes()).public
    if shutil.which("ssh-keygen"):
        import subprocess

        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")]
        subprocess.run(command, check=True)
        assert public_pem((tmp_path / "other.pub").read_bytes()) is None
