"""A hospital's node: Flower's messages to the site worker and back, without a network."""

from __future__ import annotations

import inspect
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response

from fedgsca.cli import execute
from fedgsca.federation.rounds import run
from fedgsca.hospital.answers import ResidentSite
from fedgsca.hospital.messages import (
    MESSAGE_TYPES,
    EncodedMessage,
    decode,
    encode,
    from_records,
    kind_of,
    to_records,
)
from fedgsca.hospital.node import (
    Fleet,
    answer_next,
    answer_records,
    explain_exit,
    pause_after,
)
from fedgsca.hospital.settings import read_settings
from fedgsca.hospital.worker import OutdatedWorkerError
from tests.localgrid import LocalGrid, make_app, run_over_flower
from tests.toys import SITES, outcome, toy_config

ROOT = Path(__file__).parents[2]


# ---- the same bytes as without a worker ----


def worker_app(ask_site: Callable[[int, bytes], bytes]) -> ClientApp:
    """An app whose sites are numbered; `ask_site` is the worker of one."""

    def answer(kind: Any, records: RecordDict, context: Context) -> RecordDict:
        number = int(context.node_config["partition-id"]) + 1
        return answer_records(kind, records, lambda request: ask_site(number, request))

    return make_app(answer)


def test_workers_that_are_replaced_at_any_time_end_in_the_same_bytes(tmp_path: Path) -> None:
    config = toy_config("fedgsca", train__rounds=3)
    run(config, tmp_path / "here")
    sites: dict[int, ResidentSite] = {}
    requests = 0

    def ask_site(number: int, request: bytes) -> bytes:
        nonlocal requests
        requests += 1
        path = tmp_path / f"site-{number}.toml"
        path.write_text(f'name = "site-{number}"\nstate = "{tmp_path}/state/{number}"\n')
        if number not in sites or requests % 3 == 0:
            sites[number] = site_of(path)
        answer = sites[number].answer(request)
        if requests % 5 == 0:  # the answer is lost with the worker; the message is repeated
            sites[number] = site_of(path)
            answer = sites[number].answer(request)
        return answer

    run_over_flower(config, LocalGrid(worker_app(ask_site), SITES), tmp_path / "out")
    assert outcome(tmp_path / "out") == outcome(tmp_path / "here")


def test_another_experiment_or_changed_data_asks_for_a_new_worker(tmp_path: Path) -> None:
    path, data = tmp_path / "site.toml", tmp_path / "labels.csv"
    data.write_text("file,label\n")
    path.write_text(f'name = "a"\nstate = "{tmp_path}/s"\ndata = "{data}"\n')
    site = site_of(path)
    terms = {"version": "0", "config": {}, "fingerprint": "f", "classes": "", "backbone": ""}
    request = hello_request(terms)
    header = EncodedMessage.from_bytes(site.answer(request)).header
    assert "the coordinator has 0" in str(header["error"])
    assert EncodedMessage.from_bytes(site.answer(request)).header == header | {
        "seconds": pytest.approx(header["seconds"], abs=5)
    }
    data.write_text("file,label\nx,y\n")
    with pytest.raises(OutdatedWorkerError):
        site.answer(request)
    new_site = site_of(path)
    new_site.answer(request)
    with pytest.raises(OutdatedWorkerError):
        new_site.answer(hello_request({**terms, "fingerprint": "g"}))


def site_of(path: Path) -> ResidentSite:
    return ResidentSite(lambda: read_settings(path))


def hello_request(terms: dict[str, Any]) -> bytes:
    return encode("hello", {"round": 0, "terms": terms}, {}, {}).to_bytes()


def test_settings_that_cannot_be_used_are_a_reason_without_details(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text('name = "a"\nsecret_key = 1\n')
    terms = {"version": "0", "config": {}, "fingerprint": "f", "classes": "", "backbone": ""}
    header = EncodedMessage.from_bytes(site_of(path).answer(hello_request(terms))).header
    assert "configuration" in str(header["error"]) and "secret_key" not in str(header["error"])


def test_the_process_of_a_message_imports_neither_torch_nor_monai() -> None:
    heavy = ["torch", "monai", "fedgsca.federation.local", "fedgsca.federation.simulation"]
    modules = "fedgsca.hospital.node"
    code = f"import sys, {modules}; print([name for name in {heavy} if name in sys.modules])"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert output.splitlines()[-1] == "[]"


# ---- the node ----


@dataclass
class FakeSuperLink:
    """Messages for one node, in the pieces in which the SuperLink stores them."""

    messages: list[Message]
    contents: dict[str, bytes] = field(default_factory=dict)
    replies: list[Message] = field(default_factory=list)
    confirmations: list[str] = field(default_factory=list)

    def receive(self) -> tuple[Message, Any] | None:
        if not self.messages:
            return None
        message = self.messages.pop(0)
        for object_id, part in get_all_nested_objects(message).items():
            self.contents[object_id] = part.deflate()
        message.metadata.__dict__["_message_id"] = message.object_id
        return message, get_object_tree(message)

    def send(self, reply: Message, tree: Any, seconds: float) -> tuple[set[str], str]:
        self.replies.append(reply)
        return set(get_all_nested_objects(reply)), "session"

    def push_object(self, run_id: int, session: str, object_id: str, content: bytes) -> None:
        self.contents[object_id] = content

    def fleet(self) -> Fleet:
        return Fleet(
            node=7,
            receive=self.receive,
            send=self.send,
            pull_object=lambda run_id, object_id: self.contents[object_id],
            push_object=self.push_object,
            confirm=lambda run_id, message_id: self.confirmations.append(message_id),
        )


def make_message(message_type: str, records: RecordDict) -> Message:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    return Message(records, 7, message_type, group_id="3")


def make_records(
    header: dict[str, Any], weights: Any = (), extras: Any = (), kind: Any = "train"
) -> RecordDict:
    return to_records(encode(kind, header, dict(weights), dict(extras)))


def echo(request: bytes) -> bytes:
    return request


@pytest.mark.parametrize("kind", ["hello", "train", "test"])
def test_a_message_reaches_the_worker_and_its_answer_the_superlink(kind: Any) -> None:
    weights = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(4)}
    records = make_records({"round": 2}, weights, {"e": np.array([1.5])}, kind)
    message = make_message(MESSAGE_TYPES[kind], records)
    superlink = FakeSuperLink([message])
    assert answer_next(superlink.fleet(), echo)
    reply = superlink.replies[0]
    assert superlink.confirmations == [reply.metadata.reply_to_message_id] == [message.object_id]
    stored = inflate_object_from_contents(reply.metadata.message_id, superlink.contents)
    assert isinstance(stored, Message)
    header, answer_weights, extras = decode(from_records(kind, stored.content))
    assert header == {"round": 2} and extras["e"].tolist() == [1.5]
    assert all((answer_weights[name] == value).all() for name, value in weights.items())
    assert not answer_next(superlink.fleet(), echo)  # nothing left


def test_strange_messages_are_answered_with_an_error_and_the_node_goes_on() -> None:
    unreadable = RecordDict({"rest": ConfigRecord({"fedgsca": b"nonsense"})})
    good = make_records({"round": 0})
    messages = [make_message("train.other", good), make_message("train", unreadable)]
    superlink = FakeSuperLink([*messages, make_message("train", good)])
    for _ in range(3):
        assert answer_next(superlink.fleet(), echo)
    assert [reply.has_error() for reply in superlink.replies] == [True, True, False]
    reasons = [reply.error.reason for reply in superlink.replies[:2]]
    assert reasons == [
        "this site does not answer messages of this type",
        "the message cannot be read",
    ]


def test_a_failing_worker_is_a_reason_of_the_site() -> None:
    def fail(request: bytes) -> bytes:
        raise PermissionError("/home/patient-smith/site.toml")

    superlink = FakeSuperLink([make_message("train", make_records({"round": 1}))])
    assert answer_next(superlink.fleet(), fail)
    header = from_records("train", superlink.replies[0].content).header
    assert header["error"] == "it failed with PermissionError; its own log says more"
    assert header["round"] == 1 and header["kind"] == "train"


@pytest.mark.parametrize("error", [RunNotRunningException(), OSError("gone")])
def test_a_message_that_cannot_be_sent_does_not_end_the_node(error: BaseException) -> None:
    superlink = FakeSuperLink([make_message("train", make_records({"round": 1}))])

    def send(*_: Any) -> Any:
        raise error

    superlink.send = send  # type: ignore[assignment,method-assign]
    assert answer_next(superlink.fleet(), echo)


def test_an_error_of_the_connection_ends_the_node() -> None:
    """Its supervisor starts it again."""
    superlink = FakeSuperLink([])

    def receive() -> None:
        raise OSError("certificate expired")

    superlink.receive = receive  # type: ignore[assignment,method-assign]
    with pytest.raises(OSError, match="certificate"):
        answer_next(superlink.fleet(), echo)


def test_the_node_asks_more_often_while_rounds_are_short() -> None:
    pauses = [pause_after(seconds) for seconds in (0, 1, 5, 10, 3600)]
    assert pauses == [0.2, 0.2, 0.75, 1.5, 3.0]


def test_types_of_messages() -> None:
    assert [kind_of(name) for name in ("query", "train", "evaluate", "other")] == [
        "hello",
        "train",
        "test",
        None,
    ]


def test_the_functions_of_flower_that_the_node_uses_are_as_expected() -> None:
    """They are not documented: another version may change them."""
    parameters = list(inspect.signature(http_request_response).parameters)
    assert parameters[:4] == [
        "server_address",
        "insecure",
        "root_certificates",
        "authentication_keys",
    ]


def test_a_node_needs_certificate_and_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["deploy", "node", str(tmp_path / "site.toml"), "--superlink", "localhost:1"]
    for options in ([], ["--key", "k"], ["--root-certificates", "ca.crt"]):
        assert execute([*command, *options]) == 2
        assert "Missing option" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "nonsense"])
def test_a_key_that_cannot_be_used_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)
    options = ["--superlink", "localhost:1", "--root-certificates", str(path), "--key", str(path)]
    assert execute(["deploy", "node", str(tmp_path / "site.toml"), *options]) == 3
    assert "deploy.unusable-key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cause", "sentence"),
    [
        ("[code: 2004] Failed to activate SuperNode.", "does not admit this node"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] ...", "not signed by the authority"),
        ("something new", "something new"),
    ],
)
def test_the_last_words_of_a_connection_are_a_sentence(cause: str, sentence: str) -> None:
    text = f"Exit Code: 305\nFailed to initialize the connection.\n{cause}\nmore\nand more"
    record = logging.LogRecord("flwr", logging.ERROR, "", 1, text, (), None)
    assert explain_exit(record)
    assert sentence in record.getMessage() and "more" not in record.getMessage().splitlines()[-1]
