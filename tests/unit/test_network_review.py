"""The review page on a network: who gets in, what one person sees of another, what is recorded."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import ssl
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pytest_socket import enable_socket  # type: ignore[import-untyped]

from fedgsca.cli import execute
from fedgsca.errors import ConfigError, DataError, FedgscaError, RunFolderError
from tests.audits import toy_audit
from tests.toys import toy_npz

pytest.importorskip("starlette")
pytest.importorskip("cryptography")

from fedgsca.labels.apply_decisions import apply_decisions
from fedgsca.labels.audit_images import AuditImages
from fedgsca.labels.audit_table import read_audit
from fedgsca.labels.consensus import find_consensus, summarise_decisions
from fedgsca.labels.review import security
from fedgsca.labels.review.people import (
    ADJUDICATOR,
    READER,
    LinkBook,
    ReviewTrail,
    check_trail,
    hash_token,
)
from fedgsca.labels.review.security import NetworkAccess
from fedgsca.labels.review.serve import (
    PageAddress,
    TlsFiles,
    bind_address,
    build_network_server,
    check_certificate,
    choose_listen_address,
    make_certificate,
    parse_address,
    require_tls,
)
from fedgsca.labels.review.web_app import SharedReview, build_network_app

HOST = "review.hospital.example:8443"
ORIGIN = f"https://{HOST}"
SECONDS = 120  # after which a request of a test fails; a busy machine is slow


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("audited") / "run"
    toy_audit(run, source=toy_npz(400))
    return run


@pytest.fixture
def folder(master: Path, tmp_path: Path) -> Path:
    shutil.copytree(master, tmp_path / "run")
    return tmp_path / "run" / "audit" / "site-2"


def open_app(folder: Path) -> NetworkAccess:
    audit = read_audit(folder)
    review = SharedReview(audit, AuditImages.open(audit))
    return build_network_app(review, hosts=(HOST,), scheme="https", port=8443)


def add_link(folder: Path, name: str, role: str = READER, **options: Any) -> str:
    """A new link; returns its secret."""
    values = {"blind": False, "days": 14, "address": ORIGIN, **options}
    return LinkBook(folder).add(name, role=role, **values)[1]


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    app: NetworkAccess,
    path: str,
    *,
    cookie: str | None = None,
    method: str = "GET",
    body: Any = None,
    client: str = "10.0.0.5",
    **headers: str | None,
) -> Answer:
    """One request as the browser of a reviewer sends it; a header that is None is omitted."""
    data = b"" if body is None else json.dumps(body).encode()
    values: dict[str, str | None] = {
        "host": HOST,
        "origin": ORIGIN,
        "sec-fetch-site": "same-origin",
        "content-type": "application/json",
        "content-length": str(len(data)),
        "cookie": cookie,
    }
    values |= {name.replace("_", "-"): value for name, value in headers.items()}
    route, _, query = path.partition("?")
    pairs = [(name, value) for name, value in values.items() if value is not None]
    scope = {
        "type": "http",
        "method": method,
        "path": route,
        "raw_path": route.encode(),
        "query_string": query.encode(),
        "scheme": "https",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in pairs],
        "http_version": "1.1",
        "server": ("10.0.0.1", 8443),
        "client": (client, 5),
        "root_path": "",
    }
    parts: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": data, "more_body": False}

    async def send(message: Any) -> None:
        parts.append(message)

    asyncio.run(app(scope, receive, send))
    answer_headers = {name.decode(): value.decode() for name, value in parts[0]["headers"]}
    content = b"".join(part.get("body", b"") for part in parts[1:])
    return Answer(parts[0]["status"], answer_headers, content)


def enter(app: NetworkAccess, token: str, client: str = "10.0.0.5") -> str:
    """Open a personal link from a mail; returns the cookie."""
    answer = ask(app, f"/?token={token}", origin=None, sec_fetch_site="cross-site", client=client)
    assert answer.status == 200, answer.body
    return answer.headers["set-cookie"].partition(";")[0]


def list_items(app: NetworkAccess, cookie: str, count: int = 50) -> list[dict[str, Any]]:
    return list(ask(app, f"/api/items?count={count}", cookie=cookie).json["items"])


def decide(
    app: NetworkAccess, cookie: str, item: dict[str, Any], action: str, **fields: Any
) -> Answer:
    body = {"row": item["row"], "hash": item["hash"], "action": action, "request": "", **fields}
    return ask(app, "/api/decide", cookie=cookie, method="POST", body=body)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---- links ----

PATHS = ("/", "/review.js", "/window.js", "/api/about", "/api/items", "/api/summary", "/image/0")


@pytest.mark.parametrize("path", PATHS)
def test_without_a_link_nothing_is_shown(folder: Path, path: str) -> None:
    add_link(folder, "anna")
    app = open_app(folder)
    for cookie in (None, f"{app.cookie}=guess", f"{app.cookie}="):
        for query in ("", "?token=", "?token=guess", "?token=%ff%00", "?token=0&token=1"):
            answer = ask(app, path + query, cookie=cookie)
            assert answer.status == 403 and "set-cookie" not in answer.headers
            assert answer.headers["cache-control"] == "no-store"


def test_a_link_opens_the_page_of_one_person_with_a_strict_cookie(folder: Path) -> None:
    token = add_link(folder, "anna")
    app = open_app(folder)
    answer = ask(app, f"/?token={token}", sec_fetch_site="cross-site", origin=None)
    assert answer.status == 200 and b"<!doctype html>" in answer.body
    line = answer.headers["set-cookie"]
    assert line.startswith("__Host-fedgsca-8443=") and token not in line
    assert line.endswith("; Secure; HttpOnly; SameSite=Strict; Path=/")
    about = ask(app, "/api/about", cookie=line.partition(";")[0]).json
    assert about["reviewer"] == "anna" and about["shared"] and not about["adjudication"]
    assert ask(app, f"/api/about?token={token}").status == 403, "the link opens the page only"


def test_the_file_has_hashes_and_nobody_else_can_read_it(folder: Path) -> None:
    token = add_link(folder, "anna")
    text = (folder / "reviewers.json").read_text()
    assert token not in text and hash_token(token) in text
    assert stat.S_IMODE((folder / "reviewers.json").stat().st_mode) == 0o600
    app = open_app(folder)
    assert ask(app, f"/?token={hash_token(token)}").status == 403, "the hash is not a key"
    trail = (folder / "review-trail.jsonl").read_text()
    enter(app, token)
    assert token not in trail + (folder / "review-trail.jsonl").read_text()


def test_a_revoked_link_ends_at_once_also_in_open_pages(folder: Path) -> None:
    token, other = add_link(folder, "anna"), add_link(folder, "bert")
    app = open_app(folder)
    cookie, other_cookie = enter(app, token), enter(app, other)
    item = list_items(app, cookie)[0]
    LinkBook(folder).revoke("anna")  # by another process
    for answer in (
        ask(app, "/api/about", cookie=cookie),
        ask(app, f"/?token={token}", origin=None),
        decide(app, cookie, item, "keep"),  # not the first request of this page that is refused
    ):
        assert answer.status == 403
        assert b"revoked" in answer.body
    assert not (folder / "decisions.jsonl").exists()
    assert ask(app, "/api/about", cookie=other_cookie).status == 200


def test_an_expired_link_ends_in_the_middle_of_the_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = add_link(folder, "anna", days=1)
    app = open_app(folder)
    cookie = enter(app, token)

    class Tomorrow(datetime):
        @classmethod
        def now(cls, zone: Any = None) -> Any:
            return datetime.now(zone) + timedelta(days=1, seconds=1)

    monkeypatch.setattr(security, "datetime", Tomorrow)
    assert b"expired" in ask(app, "/api/items", cookie=cookie).body
    assert ask(app, f"/?token={token}", origin=None).status == 403


def test_a_second_link_of_the_same_person_replaces_the_first(folder: Path) -> None:
    first = add_link(folder, "anna")
    second = add_link(folder, "anna", address=None)
    app = open_app(folder)
    assert ask(app, f"/?token={first}", origin=None).status == 403
    enter(app, second)
    states = [link.find_problem(datetime.now(UTC)) for link in LinkBook(folder).links]
    assert states == ["revoked", None]


def test_a_damaged_file_of_links_lets_nobody_in(folder: Path) -> None:
    token = add_link(folder, "anna")
    app = open_app(folder)
    cookie = enter(app, token)
    for content in ("{", "[]", '{"version": 7}', '{"links": [{"revoked": 3}]}'):
        (folder / "reviewers.json").write_text(content)
        answer = ask(app, "/api/about", cookie=cookie)
        assert answer.status in (403, 503) and str(folder).encode() not in answer.body, content
        assert ask(app, f"/?token={token}", origin=None).status in (403, 503)
    (folder / "reviewers.json").unlink()
    assert ask(app, "/api/about", cookie=cookie).status == 403


def test_a_page_that_was_forgotten_has_to_be_opened_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = add_link(folder, "anna")
    app = open_app(folder)
    cookie = enter(app, token)
    monkeypatch.setattr(security, "IDLE_SECONDS", -1.0)
    assert ask(app, "/api/about", cookie=cookie).status == 403


def test_signing_out_ends_one_page_and_not_the_others(folder: Path) -> None:
    token = add_link(folder, "anna")
    app = open_app(folder)
    one, two = enter(app, token), enter(app, token)
    assert one != two
    assert ask(app, "/api/leave", cookie=one, method="POST", body={}).json == {"left": True}
    assert ask(app, "/api/about", cookie=one).status == 403
    assert ask(app, "/api/about", cookie=two).status == 200


def test_a_link_opens_a_limited_number_of_pages(folder: Path) -> None:
    token, other = add_link(folder, "anna"), add_link(folder, "bert")
    app = open_app(folder)
    other_cookie = enter(app, other)
    cookies = [enter(app, token) for _ in range(security.MAX_PAGES + 3)]
    assert ask(app, "/api/about", cookie=cookies[0]).status == 403
    assert ask(app, "/api/about", cookie=cookies[-1]).status == 200
    assert ask(app, "/api/about", cookie=other_cookie).status == 200


def test_guessing_is_slowed_down_and_recorded_without_filling_the_disk(folder: Path) -> None:
    token = add_link(folder, "anna")
    app = open_app(folder)
    cookie = enter(app, token, client="10.0.0.66")
    for i in range(200):
        status = ask(app, f"/?token=guess{i}", origin=None, client="10.0.0.66").status
        assert status == (403 if i < security.MAX_FAILURES else 429)
    blocked = ask(app, f"/?token={token}", origin=None, client="10.0.0.66")
    assert blocked.status == 429, "a correct guess is not recognised either"
    assert blocked.headers["retry-after"] == "60"
    assert ask(app, "/api/about", cookie="__Host-fedgsca-8443=x", client="10.0.0.66").status == 429
    assert ask(app, "/api/about", cookie=cookie, client="10.0.0.66").status == 200, "work goes on"
    enter(app, token, client="10.0.0.7")
    refusals = [e for e in read_lines(folder / "review-trail.jsonl") if e["event"] == "refused"]
    assert 1 <= len(refusals) <= 3 and refusals[0]["address"] == "10.0.0.66"


def test_the_limit_forgets_after_a_minute_and_counts_a_network_of_ipv6_as_one() -> None:
    now = 0.0
    limit = security.AttemptLimit(lambda: now)
    for i in range(security.MAX_FAILURES):
        assert not limit.is_blocked("2001:db8::1")
        limit.count_failure(f"2001:db8::{i:x}")
    assert limit.is_blocked("2001:db8::ffff") and not limit.is_blocked("2001:db8:1::1")
    now = 61.0
    assert not limit.is_blocked("2001:db8::1")
    for i in range(security.MAX_CLIENTS + 10):
        limit.count_failure(f"10.{i // 65536}.{i // 256 % 256}.{i % 256}")
    assert len(limit._failures) == security.MAX_CLIENTS
    assert security.network_of("::ffff:10.0.0.1") == "10.0.0.1"


# ---- foreign requests ----


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8443", "review.hospital.example", "127.0.0.1:8443", "", None],
)
def test_another_host_is_refused(folder: Path, host: str | None) -> None:
    token = add_link(folder, "anna")
    app = open_app(folder)
    cookie = enter(app, token)
    assert ask(app, "/api/items", cookie=cookie, host=host).status == 421
    assert ask(app, f"/?token={token}", host=host).status == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": None},
        {"origin": f"http://{HOST}"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_another_page_can_neither_decide_nor_sign_out(
    folder: Path, headers: dict[str, Any]
) -> None:
    app = open_app(folder)
    cookie = enter(app, add_link(folder, "anna"))
    item = list_items(app, cookie)[0]
    body = {"row": item["row"], "hash": item["hash"], "action": "keep"}
    for path in ("/api/decide", "/api/undo", "/api/leave"):
        answer = ask(app, path, cookie=cookie, method="POST", body=body, **headers)
        assert answer.status == 403
    assert not (folder / "decisions.jsonl").exists()
    assert ask(app, "/api/about", cookie=cookie).status == 200


def test_sizes_methods_and_paths_are_limited(folder: Path) -> None:
    app = open_app(folder)
    cookie = enter(app, add_link(folder, "anna"))
    large = {"content_length": str(10**6)}
    assert ask(app, "/api/decide", cookie=cookie, method="POST", body={}, **large).status == 413
    assert ask(app, "/api/leave", cookie=cookie).status == 405
    assert ask(app, "/api/items", cookie=cookie, method="DELETE").status == 405
    for row in ("-1", "100000", "..%2f..%2fetc%2fpasswd", "../0", "0/../../reviewers.json"):
        for kind in ("image", "thumbnail", "api/examples", "api/patient"):
            assert ask(app, f"/{kind}/{row}", cookie=cookie).status == 404
    for path in ("/reviewers.json", "/decisions.jsonl", "/static/index.html", "//etc/passwd"):
        assert ask(app, path, cookie=cookie).status == 404
    assert ask(app, "/image/" + "9" * 5000, cookie=cookie).status == 414


# ---- several people ----


def test_nobody_sees_or_changes_the_decisions_of_another(folder: Path) -> None:
    app = open_app(folder)
    anna, bert = enter(app, add_link(folder, "anna")), enter(app, add_link(folder, "bert"))
    items = list_items(app, anna)
    for item in items[:3]:
        decide(app, anna, item, "accept", reviewer="bert", reason="note of anna")
    seen = list_items(app, bert)
    assert all(item["decision"] is None for item in seen)
    for path in ("/api/about", "/api/items?count=50", "/api/summary", "/api/summary?reviewer=anna"):
        assert b"anna" not in ask(app, path, cookie=bert, x_reviewer="anna").body
    assert ask(app, "/api/undo", cookie=bert, method="POST", body={}).json["undone"] is None
    decide(app, bert, items[0], "keep")
    lines = read_lines(folder / "decisions.jsonl")
    assert [line["reviewer"] for line in lines] == ["anna"] * 3 + ["bert"]
    both = f"{anna}; {bert}"  # two cookies of one name: the last one counts, and only one
    assert ask(app, "/api/about", cookie=both).json["reviewer"] in ("anna", "bert")


def test_concurrent_decisions_of_several_people_are_all_kept(folder: Path) -> None:
    app = open_app(folder)
    names = ("anna", "bert", "carl", "dora")
    cookies = {name: enter(app, add_link(folder, name)) for name in names}
    items = list_items(app, cookies["anna"])
    work = [(name, item) for item in items for name in names]

    def decide_one(task: tuple[str, dict[str, Any]]) -> int:
        name, item = task
        return decide(app, cookies[name], item, "keep", request=f"{name}{item['row']}").status

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(decide_one, work)) == {200}
    lines = read_lines(folder / "decisions.jsonl")
    pairs = {(line["reviewer"], line["row"]) for line in lines}
    assert len(lines) == len(pairs) == len(items) * len(names)
    check = check_trail(folder)
    assert not check.problems and check.events["decision"] == len(work)


def read_all(app: NetworkAccess, cookie: str, keep: int) -> None:
    """Decide about the whole list: keep the first labels, accept the others."""
    for i, item in enumerate(list_items(app, cookie)):
        answer = decide(app, cookie, item, "keep" if i < keep else "accept", reason=f"n{keep}")
        assert answer.status == 200


def test_disagreements_are_settled_by_a_named_person_after_the_readings(folder: Path) -> None:
    app = open_app(folder)
    anna, bert = enter(app, add_link(folder, "anna")), enter(app, add_link(folder, "bert"))
    judge = enter(app, add_link(folder, "prof", ADJUDICATOR))
    items = list_items(app, anna)
    read_all(app, anna, keep=4)
    about = ask(app, "/api/about", cookie=judge).json
    assert about["adjudication"] and list_items(app, judge) == []
    assert about["open_readings"] == [{"reader": "bert", "decided": 0, "required": len(items)}]
    assert decide(app, judge, items[0], "keep").json["code"] == "review.not-disputed"
    read_all(app, bert, keep=2)  # 2 and 3 are disputed
    disputed = list_items(app, judge)
    assert [item["row"] for item in disputed] == [items[2]["row"], items[3]["row"]]
    for item in disputed:
        labels = {reading["label"] for reading in item["readings"]}
        assert labels == {item["given"], item["suggested"]}
        assert "anna" not in json.dumps(item) and "bert" not in json.dumps(item)
    answer = decide(app, judge, disputed[0], "accept").json
    assert answer["progress"]["priority_decided"] == 1 and answer["progress"]["priority"] == 2
    decide(app, judge, disputed[1], "unsure")
    assert ask(app, "/api/items?open=1", cookie=judge).json["items"] == []
    decisions = read_audit(folder).open_decisions()
    outcome = find_consensus(decisions)
    settled = outcome.agreements[disputed[0]["row"]]
    assert [d.reviewer for d in settled] == ["prof"] and settled[0].adjudication
    assert list(outcome.disputes) == [disputed[1]["row"]]
    pairs = [pair.reviewers for pair in summarise_decisions(decisions).agreement]
    assert pairs == [("anna", "bert")], "a judge is not a reader"
    result = apply_decisions(folder)
    settled_changes = [change for change in result.changes if change.reviewers == "prof"]
    assert len(settled_changes) == 1 and result.counts.num_disputed == 1
    assert result.file is not None
    log = json.loads(result.file.with_name(f"{result.file.stem}.changes.json").read_text())
    assert log["policy"] == "unanimous, else the adjudication"
    assert ask(app, "/api/undo", cookie=judge, method="POST", body={}).json["undone"] is not None
    assert [line["event"] for line in check_trail(folder).latest][-2:] == ["adjudication", "undo"]


def test_readers_who_agree_after_all_overrule_the_judge(folder: Path) -> None:
    app = open_app(folder)
    anna, bert = enter(app, add_link(folder, "anna")), enter(app, add_link(folder, "bert"))
    judge = enter(app, add_link(folder, "prof", ADJUDICATOR))
    read_all(app, anna, keep=1)
    read_all(app, bert, keep=0)
    (item,) = list_items(app, judge)
    decide(app, judge, item, "keep")
    decide(app, anna, item, "accept")
    outcome = find_consensus(read_audit(folder).open_decisions())
    names = [d.reviewer for d in outcome.agreements[item["row"]]]
    assert names == ["anna", "bert"] and not outcome.disputes
    assert list_items(app, judge) == []


def test_a_judge_waits_only_for_readers_whose_links_work(folder: Path) -> None:
    app = open_app(folder)
    anna, bert = enter(app, add_link(folder, "anna")), enter(app, add_link(folder, "bert"))
    judge = enter(app, add_link(folder, "prof", ADJUDICATOR))
    read_all(app, anna, keep=1)
    decide(app, bert, list_items(app, bert)[0], "accept")
    assert list_items(app, judge) == []
    LinkBook(folder).revoke("bert")
    assert len(list_items(app, judge)) == 1


def test_nobody_is_reader_and_judge(folder: Path) -> None:
    app = open_app(folder)
    anna, bert = enter(app, add_link(folder, "anna")), enter(app, add_link(folder, "bert"))
    judge = enter(app, add_link(folder, "prof", ADJUDICATOR))
    read_all(app, anna, keep=1)
    read_all(app, bert, keep=0)
    decide(app, judge, list_items(app, judge)[0], "keep")
    for name, role, code in (
        ("anna", ADJUDICATOR, "review.reader-as-adjudicator"),
        ("prof", READER, "review.adjudicator-as-reader"),
    ):
        with pytest.raises(ConfigError) as error:
            add_link(folder, name, role)
        assert error.value.code == code


def test_a_blind_reader_gets_neither_labels_nor_the_order_of_the_data(folder: Path) -> None:
    app = open_app(folder)
    cookie = enter(app, add_link(folder, "anna", blind=True))
    item = list_items(app, cookie)[0]
    assert set(item) == {"position", "row", "id", "hash", "decision"}
    decide(app, cookie, item, "unsure")
    assert read_lines(folder / "decisions.jsonl")[0]["blind"]


# ---- the trail ----


def test_the_trail_says_who_saw_and_decided_what_without_names_of_files(folder: Path) -> None:
    token = add_link(folder, "anna")
    app = open_app(folder)
    cookie = enter(app, token)
    item = list_items(app, cookie)[0]
    for _ in range(3):
        assert ask(app, f"/image/{item['row']}", cookie=cookie).status == 200
    ask(app, f"/thumbnail/{item['row']}", cookie=cookie)
    decide(app, cookie, item, "keep", reason="a secret note")
    ask(app, "/api/undo", cookie=cookie, method="POST", body={})
    entries = read_lines(folder / "review-trail.jsonl")
    assert [entry["event"] for entry in entries] == ["opened", "image", "decision", "undo"]
    assert all(entry["who"] == "anna" for entry in entries)
    assert entries[1]["row"] == entries[2]["row"] == item["row"]
    text = (folder / "review-trail.jsonl").read_text()
    for private in (item["id"], "a secret note", token, str(folder)):
        assert private not in text
    assert stat.S_IMODE((folder / "review-trail.jsonl").stat().st_mode) == 0o600


def test_a_change_of_the_trail_is_noticed(folder: Path) -> None:
    trail = ReviewTrail(folder)
    for row in range(5):
        trail.write("image", "anna", row=row)
    path = folder / "review-trail.jsonl"
    lines = path.read_text().splitlines()
    assert check_trail(folder).problems == ()
    path.write_text("\n".join([lines[0], lines[2], *lines[3:]]) + "\n")
    assert len(check_trail(folder).problems) == 1
    path.write_text("\n".join(lines).replace('"row": 1,', '"row": 9,') + "\n")
    assert check_trail(folder).problems == ("line 3 does not follow line 2",)
    path.write_text("\n".join(lines)[:-20])  # a crash
    trail.write("image", "anna", row=5)
    check = check_trail(folder)
    assert len(check.problems) == 1 and "damaged" in check.problems[0]
    assert check.events["image"] == 5, "the line after the crash is whole"


def test_what_cannot_be_recorded_does_not_happen(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_app(folder)
    cookie = enter(app, add_link(folder, "anna"))
    item = list_items(app, cookie)[0]

    def fail(handle: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        answer = decide(app, cookie, item, "keep")
        assert answer.status == 507 and answer.json["error"].startswith("NOT saved")
        assert str(folder).encode() not in answer.body, "no path leaves the machine"
        assert ask(app, f"/image/{item['row']}", cookie=cookie).status == 409
    assert not (folder / "decisions.jsonl").exists()
    assert decide(app, cookie, item, "keep").status == 200


# ---- addresses and certificates ----


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("review.hospital.example", "review.hospital.example", 8443),
        ("Review.Hospital.Example:9000", "review.hospital.example", 9000),
        ("10.1.2.3:443", "10.1.2.3", 443),
        ("[2001:DB8::1]:8444", "2001:db8::1", 8444),
        ("2001:db8::1", "2001:db8::1", 8443),
    ],
)
def test_addresses_are_read(text: str, host: str, port: int) -> None:
    assert parse_address(text) == PageAddress(host, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":8443",
        "a b",
        "x:0",
        "x:99999",
        "x:ssh",
        "https://x",
        "1.2.3",
        "0x7f.1",
        "-x",
        "a" * 300,
    ],
)
def test_addresses_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_address(text)
    assert error.value.code == "review.invalid-address"


@pytest.mark.parametrize("text", ["0.0.0.0:8443", "[::]:8443"])
def test_the_address_must_be_one_that_a_browser_can_open(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_address(text)
    assert error.value.code == "review.unspecified-address"


@pytest.mark.parametrize(
    ("serve", "listen"),
    [("10.1.2.3", "10.1.2.3"), ("127.0.0.1", "0.0.0.0"), ("review.example", "127.0.0.1")],
)
def test_plain_http_stays_on_this_machine(serve: str, listen: str) -> None:
    with pytest.raises(ConfigError) as error:
        require_tls(parse_address(serve), listen, None)
    assert error.value.code == "review.tls-required"
    require_tls(parse_address("127.0.0.1"), "127.0.0.1", None)


def test_a_name_that_means_this_machine_needs_a_listen_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resolve(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 8443))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    served = parse_address("review.hospital.example")
    with pytest.raises(ConfigError) as error:
        choose_listen_address(served, None)
    assert error.value.code == "review.listens-locally"
    assert choose_listen_address(served, "10.1.2.3") == "10.1.2.3"
    with pytest.raises(ConfigError) as error:
        choose_listen_address(served, "review")
    assert error.value.code == "review.invalid-listen"


def test_certificates_of_another_host_or_key_are_refused(tmp_path: Path) -> None:
    served = parse_address("review.hospital.example")
    files = make_certificate(served, tmp_path / "tls", None).files
    assert check_certificate(files, served).days_left > 800
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    with pytest.raises(FedgscaError) as error:
        check_certificate(files, parse_address("other.hospital.example"))
    assert error.value.code == "review.certificate-for-another-host"
    other = make_certificate(parse_address("10.1.2.3"), tmp_path / "other", None).files
    check_certificate(other, parse_address("10.1.2.3"))
    with pytest.raises(DataError) as wrong_key:
        check_certificate(TlsFiles(files.certificate, other.key), served)
    assert wrong_key.value.code == "deploy.wrong-certificate-key"
    with pytest.raises(RunFolderError) as missing:
        check_certificate(TlsFiles(tmp_path / "no.pem", files.key), served)
    assert missing.value.code == "review.certificate-not-found"
    files.certificate.write_text("no certificate")
    with pytest.raises(DataError) as damage:
        check_certificate(files, served)
    assert damage.value.code == "deploy.unusable-certificate"
    with pytest.raises(RunFolderError) as limit:  # its authority is for one host only
        make_certificate(parse_address("other.hospital.example"), tmp_path / "tls", None)
    assert limit.value.code == "review.unusable-authority"


@contextmanager
def served_with_tls(folder: Path, tmp_path: Path) -> Iterator[tuple[str, ssl.SSLContext]]:
    """A real server with TLS on this machine: its address, and the trust of a browser."""
    with bind_address("127.0.0.1", 0) as listener:
        served = PageAddress("127.0.0.1", int(listener.getsockname()[1]))
        made_certificate = make_certificate(served, tmp_path / "tls", None)
        audit = read_audit(folder)
        review = SharedReview(audit, AuditImages.open(audit))
        server = build_network_server(review, served, made_certificate.files)
        thread = Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            context = ssl.create_default_context(cafile=made_certificate.authority)
            yield served.url(has_tls=True), context
        finally:
            server.should_exit = True
            thread.join()


def test_a_browser_that_trusts_the_authority_gets_in_and_plain_http_does_not(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enable_socket()
    token = add_link(folder, "anna")
    with served_with_tls(folder, tmp_path) as (url, context):
        answer = urllib.request.urlopen(f"{url}/?token={token}", context=context, timeout=SECONDS)
        assert answer.status == 200 and "Secure" in answer.headers["set-cookie"]
        weak = ssl.create_default_context(cafile=tmp_path / "tls" / "ca.crt")
        weak.maximum_version = ssl.TLSVersion.TLSv1_2
        weak.set_ciphers("AES128-SHA:AES256-SHA:ECDHE-ECDSA-AES256-SHA")
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"{url}/", context=weak, timeout=SECONDS)
        with pytest.raises(urllib.error.URLError):
            # the authority is not trusted
            urllib.request.urlopen(f"{url}/?token={token}", timeout=SECONDS)
        plain_url = url.replace("https", "http")
        with pytest.raises((urllib.error.URLError, OSError)):
            urllib.request.urlopen(f"{plain_url}/?token={token}", timeout=SECONDS)
        # from here on: the requests above must not be too slow on a busy machine
        monkeypatch.setattr(security, "MAX_CLIENT_CONNECTIONS", 5)
        monkeypatch.setattr(security, "HEAD_SECONDS", 0.5)
        host, port = url.removeprefix("https://").split(":")
        waiting = []
        for _ in range(5 + 3):  # more than one client may open; none of them sends a request
            plain = socket.create_connection((host, int(port)), timeout=SECONDS)
            waiting.append(context.wrap_socket(plain, server_hostname=host))
        # without a limit recv would fail after the time of its socket
        assert all(channel.recv(1) == b"" for channel in waiting), "closed, not waited for"
        for channel in waiting:
            channel.close()
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.load_verify_locations(tmp_path / "tls" / "ca.crt")
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        with pytest.warns(DeprecationWarning):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((urllib.error.URLError, OSError)):
            urllib.request.urlopen(f"{url}/", context=old, timeout=SECONDS)


# ---- the command line ----


def test_the_command_line_makes_lists_and_revokes_links(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(folder)
    assert execute(["reviewers", "add", place, "anna", "--json"]) == ConfigError.exit_code
    assert "review.no-address" in capsys.readouterr().out
    assert execute(["reviewers", "add", place, "anna", "--serve", HOST, "--json"]) == 0
    link = json.loads(capsys.readouterr().out)["link"]
    assert link.startswith(f"{ORIGIN}/?token=")
    enter(open_app(folder), link.partition("=")[2])
    assert execute(["reviewers", "add", place, "bert", "--days", "3", "--blind"]) == 0
    assert execute(["reviewers", "add", place, "c", "--adjudicator", "--blind"]) != 0
    capsys.readouterr()
    assert execute(["reviewers", "list", place, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["links"]
    assert [(e["reviewer"], e["state"], e["decided"]) for e in entries] == [
        ("anna", "active", 0),
        ("bert", "active", 0),
    ]
    assert "hash" not in entries[0]
    assert execute(["reviewers", "revoke", place, "ana"]) == ConfigError.exit_code
    assert "did you mean" in capsys.readouterr().err
    assert execute(["reviewers", "revoke", place, "anna"]) == 0
    assert execute(["reviewers", "trail", place]) == 0
    assert "link-revoked" in capsys.readouterr().out
    path = folder / "review-trail.jsonl"
    path.write_text(path.read_text().replace("anna", "anne"))
    assert execute(["reviewers", "trail", place, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--serve", "10.1.2.3"], "review.tls-required"),
        (["--serve", "10.1.2.3", "--reviewer", "anna"], "cli.conflicting-options"),
        (["--serve", "10.1.2.3", "--certificate", "x"], "cli.conflicting-options"),
        (["--listen", "10.1.2.3"], "cli.conflicting-options"),
        (["--serve", "0.0.0.0"], "review.unspecified-address"),
        (["--serve", "127.0.0.1"], "review.no-links"),
    ],
)
def test_unsafe_or_useless_options_are_refused(
    folder: Path, options: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["review", str(folder), *options]) != 0
    assert code in capsys.readouterr().err


def test_an_expired_link_stays_expired_and_the_server_says_why_nobody_gets_in(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = LinkBook(folder)
    for name, days in (("anna", -1), ("bert", 1)):
        book.add(name, role=READER, blind=False, days=days, address="http://127.0.0.1:8443")
        book.revoke(name)
    states = {
        link.reviewer: link.find_problem(datetime.now(UTC)) for link in LinkBook(folder).links
    }
    assert states == {"anna": "expired", "bert": "revoked"}
    assert execute(["review", str(folder), "--serve", "127.0.0.1"]) != 0
    assert "anna: expired, bert: revoked" in " ".join(capsys.readouterr().err.split())
