"""The review server without a socket: which requests it allows, what it answers and writes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.audits import toy_audit
from tests.toys import toy_npz

pytest.importorskip("starlette")

from fedgsca.errors import ConfigError
from fedgsca.labels.audit_images import AuditImages
from fedgsca.labels.audit_table import read_audit
from fedgsca.labels.review.security import LocalAccess
from fedgsca.labels.review.serve import bind
from fedgsca.labels.review.session import ListFilter, Session
from fedgsca.labels.review.web_app import build_app

PORT, TOKEN = 8765, "the-secret"
HOST = f"127.0.0.1:{PORT}"
SAME = {
    "host": HOST,
    "origin": f"http://{HOST}",
    "sec-fetch-site": "same-origin",
    "content-type": "application/json",
}


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("audited") / "run"
    toy_audit(run, source=toy_npz(400))
    return run


@pytest.fixture
def folder(master: Path, tmp_path: Path) -> Path:
    shutil.copytree(master, tmp_path / "run")
    return tmp_path / "run" / "audit" / "site-2"


def session(folder: Path, reviewer: str = "anna", blind: bool = False) -> Session:
    audit = read_audit(folder)
    return Session(audit, AuditImages.open(audit), reviewer, blind=blind)


@pytest.fixture
def app(folder: Path) -> LocalAccess:
    return build_app(session(folder), port=PORT, token=TOKEN)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def encode_headers(headers: dict[str, str | None]) -> list[tuple[bytes, bytes]]:
    return [
        (name.encode(), value.encode("latin-1"))
        for name, value in headers.items()
        if value is not None
    ]


def ask(
    app: LocalAccess, path: str, *, method: str = "GET", body: Any = None, **headers: str | None
) -> Answer:
    """One request as the browser of a reviewer sends it; a header that is None is omitted."""
    data = b"" if body is None else json.dumps(body).encode()
    request_headers: dict[str, str | None] = {
        **SAME,
        "content-length": str(len(data)),
        "cookie": f"{app.cookie}={app.session}",
    }
    request_headers |= {name.replace("_", "-"): value for name, value in headers.items()}
    route, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "path": route,
        "raw_path": route.encode(),
        "query_string": query.encode(),
        "scheme": "http",
        "headers": encode_headers(request_headers),
        "http_version": "1.1",
        "server": ("127.0.0.1", PORT),
        "client": ("127.0.0.1", 5),
        "root_path": "",
    }
    parts: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": data, "more_body": False}

    async def send(message: Any) -> None:
        parts.append(message)

    asyncio.run(app(scope, receive, send))
    start = parts[0]
    answer_headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(
        start["status"], answer_headers, b"".join(part.get("body", b"") for part in parts[1:])
    )


def first(app: LocalAccess, count: int = 1) -> list[dict[str, Any]]:
    return list(ask(app, f"/api/items?count={count}").json["items"])


def decide(app: LocalAccess, item: dict[str, Any], action: str, **fields: Any) -> Answer:
    body = {
        "row": item["row"],
        "hash": item["hash"],
        "action": action,
        "request": f"r{item['row']}{action}",
        **fields,
    }
    return ask(app, "/api/decide", method="POST", body=body)


# ---- access ----

DATA = ("/", "/review.js", "/api/about", "/api/items", "/api/summary", "/image/0", "/thumbnail/0")


@pytest.mark.parametrize("path", DATA)
def test_without_the_secret_nothing_is_shown(app: LocalAccess, path: str) -> None:
    for wrong in (
        path,
        f"{path}?token=",
        f"{path}?token=wrong",
        f"{path}?token=the-secre",
        f"{path}?token=%ff%00é",
    ):
        answer = ask(app, wrong, cookie=None)
        assert answer.status == 403 and "set-cookie" not in answer.headers
    assert ask(app, path, cookie=f"{app.cookie}=guess").status == 403


def test_the_token_opens_the_page_and_becomes_a_cookie_that_scripts_cannot_read(
    app: LocalAccess,
) -> None:
    answer = ask(app, f"/?token={TOKEN}", cookie=None, sec_fetch_site="none", origin=None)
    assert answer.status == 200 and b"<!doctype html>" in answer.body
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and TOKEN not in cookie
    assert ask(app, "/api/about", cookie=cookie.partition(";")[0]).status == 200
    assert ask(app, f"/api/about?token={TOKEN}", cookie=None).status == 403, (
        "the token opens the page, nothing else"
    )


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8765", "127.0.0.1", "127.0.0.1:80", "0.0.0.0:8765", "", None],
)
def test_dns_rebinding_is_refused(app: LocalAccess, host: str | None) -> None:
    for path in ("/api/items", f"/?token={TOKEN}"):
        assert ask(app, path, host=host).status == 421


def test_localhost_is_another_name_of_this_machine(app: LocalAccess) -> None:
    assert ask(app, "/api/about", host=f"localhost:{PORT}", origin=None).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": None},
        {"origin": f"https://{HOST}"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_a_decision_from_another_page_is_refused(
    app: LocalAccess, folder: Path, headers: dict[str, str | None]
) -> None:
    item = first(app)[0]
    body = {"row": item["row"], "hash": item["hash"], "action": "keep"}
    assert ask(app, "/api/decide", method="POST", body=body, **headers).status == 403
    assert ask(app, "/api/undo", method="POST", body={}, **headers).status == 403
    assert not (folder / "decisions.jsonl").exists()


def test_another_page_cannot_embed_an_image(app: LocalAccess) -> None:
    assert ask(app, "/image/0", sec_fetch_site="cross-site", origin=None).status == 403
    assert ask(app, "/image/0").headers["cross-origin-resource-policy"] == "same-origin"


def test_a_form_or_another_kind_of_body_is_refused(app: LocalAccess) -> None:
    assert ask(app, "/api/decide", method="POST", body={}, content_type="text/plain").status == 415
    assert ask(app, "/api/decide", method="POST", body=[]).status == 400
    assert ask(app, "/api/decide", method="POST", body={}, content_length=str(10**6)).status == 413
    assert ask(app, "/api/decide", method="POST", body={}, content_length=None).status == 413
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE"):
        assert ask(app, "/api/items", method=method).status == 405
    assert ask(app, "/api/decide").status == 405


@pytest.mark.parametrize("path", [*DATA, "/nothing", "/image/999999"])
@pytest.mark.parametrize("cookie", [True, False])
def test_every_answer_has_the_strict_headers(app: LocalAccess, path: str, cookie: bool) -> None:
    answer = ask(app, path) if cookie else ask(app, path, cookie=None)
    headers = answer.headers
    assert headers["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )
    assert headers["cache-control"] == "no-store" and headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_the_page_loads_nothing_from_elsewhere_and_has_no_inline_script(app: LocalAccess) -> None:
    for path in ("/", "/review.js", "/viewer.js", "/style.css"):
        text = ask(app, path).body.decode()
        assert (
            "http://" not in text
            and "https://" not in text
            and "//cdn" not in text
            and "innerHTML" not in text
        )
    page = ask(app, "/").body.decode()
    assert (
        "<style" not in page
        and " style=" not in page
        and " on" not in page.replace(" only", "")[: page.index("<body")]
    )


# ---- images ----


@pytest.mark.parametrize(
    "row",
    [
        "-1",
        "100000",
        "0.5",
        "..%2f..%2fetc%2fpasswd",
        "../0",
        "%00",
        "1e3",
        "0/../../config.toml",
        "99999999999999999999",
    ],
)
def test_images_are_addressed_by_row_only(app: LocalAccess, row: str) -> None:
    for kind in ("image", "thumbnail", "api/examples"):
        assert ask(app, f"/{kind}/{row}").status == 404


def test_images_have_the_right_format(app: LocalAccess) -> None:
    large, small = ask(app, "/image/0"), ask(app, "/thumbnail/0")
    assert large.headers["content-type"] == "image/png" and large.body.startswith(b"\x89PNG")
    assert small.headers["content-type"] == "image/jpeg" and small.body.startswith(b"\xff\xd8")


def test_no_path_of_this_machine_is_revealed(app: LocalAccess, folder: Path) -> None:
    for path in ("/api/about", "/api/items?count=50&scope=all", "/api/summary", "/api/examples/0"):
        assert str(folder.parent).encode() not in ask(app, path).body


def test_the_server_listens_on_this_machine_only_and_finds_a_free_port() -> None:
    first_place, second = bind(None), bind(None)
    with first_place, second:
        assert first_place.getsockname()[0] == second.getsockname()[0] == "127.0.0.1"
        assert first_place.getsockname()[1] != second.getsockname()[1]
        with pytest.raises(ConfigError) as error:
            bind(first_place.getsockname()[1])
        assert error.value.code == "review.port-unavailable"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))


# ---- deciding ----


def test_the_list_comes_in_order_of_suspicion_and_decided_labels_leave_it(app: LocalAccess) -> None:
    one, two, three = first(app, 3)
    assert [one["rank"], two["rank"], three["rank"]] == [1, 2, 3]
    assert decide(app, one, "accept").json["progress"]["priority_decided"] == 1
    assert decide(app, two, "change", label=one["given"]).status == 200
    page = ask(app, "/api/items?open=1&count=2").json
    assert page["items"][0]["row"] == three["row"] and page["decided"] == 2
    again = first(app)[0]
    assert (
        again["decision"]["action"] == "accept" and again["decision"]["label"] == one["suggested"]
    )


def test_choosing_the_given_class_is_keep_and_the_suggested_one_is_accept(
    app: LocalAccess, folder: Path
) -> None:
    one, two = first(app, 2)
    decide(app, one, "change", label=one["given"])
    decide(app, two, "change", label=two["suggested"])
    lines = [json.loads(line) for line in (folder / "decisions.jsonl").read_text().splitlines()]
    assert [(line["action"], line["label"]) for line in lines] == [
        ("keep", None),
        ("accept", two["suggested"]),
    ]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"row": 10**6}, "review.unknown-row"),
        ({"row": "0"}, "review.unknown-row"),
        ({"row": None}, "review.unknown-row"),
        ({"hash": "0" * 64}, "review.image-changed"),
        ({"hash": None}, "review.image-changed"),
        ({"action": "delete"}, "review.unknown-action"),
        ({"action": "undo"}, "review.unknown-action"),
        ({"action": "change", "label": "no such class"}, "review.unknown-class"),
        ({"action": "change"}, "review.unknown-class"),
    ],
)
def test_an_invalid_decision_is_refused_with_a_code(
    app: LocalAccess, folder: Path, wrong: dict[str, Any], code: str
) -> None:
    item = first(app)[0]
    answer = ask(
        app,
        "/api/decide",
        method="POST",
        body={"row": item["row"], "hash": item["hash"], "action": "keep", **wrong},
    )
    assert answer.status == 409 and answer.json["code"] == code
    assert answer.json["error"] and answer.json["fix"]
    assert not (folder / "decisions.jsonl").exists()


def test_a_full_disk_is_reported_to_the_page(
    app: LocalAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = first(app)[0]

    def full(handle: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    answer = decide(app, item, "keep")
    assert answer.status == 507 and answer.json["code"] == "review.not-saved"
    assert answer.json["error"].startswith("NOT saved"), "the page looks for this"


def test_undo_names_the_image_to_go_back_to(app: LocalAccess) -> None:
    item = first(app, 2)[1]
    decide(app, item, "unsure")
    assert ask(app, "/api/undo", method="POST", body={"request": "u"}).json["undone"] == {
        "row": item["row"]
    }
    assert ask(app, f"/api/place/{item['row']}").json == {"position": 1}
    assert ask(app, "/api/undo", method="POST", body={}).json["undone"] is None


def test_a_filter_by_class_pair_shows_that_pair_only(app: LocalAccess) -> None:
    pairs = ask(app, "/api/about").json["pairs"]
    assert sum(pair["labels"] for pair in pairs) == 100
    pair = pairs[0]
    page = ask(
        app,
        f"/api/items?scope=all&count=50&given={pair['given']}&suggested={pair['suggested']}",
    ).json
    assert page["total"] == pair["labels"]
    assert {(item["given"], item["suggested"]) for item in page["items"]} == {
        (pair["given"], pair["suggested"])
    }
    assert (
        ask(app, "/api/items?given=nonsense").status == 409
        and ask(app, "/api/items?start=-1").status == 400
    )


def test_reviewers_do_not_see_each_other_but_their_agreement_is_counted(folder: Path) -> None:
    anna, bert = (
        build_app(session(folder, reviewer=name), port=PORT, token=TOKEN)
        for name in ("anna", "bert")
    )
    for item in first(anna, 4):
        decide(anna, item, "accept")
    assert first(bert)[0]["decision"] is None
    for item, action in zip(first(bert, 4), ("accept", "accept", "keep", "unsure"), strict=True):
        decide(bert, item, action)
    for app, own in ((anna, "anna"), (bert, "bert")):  # neither has finished
        answer = ask(app, "/api/summary")
        other = "bert" if own == "anna" else "anna"
        assert not answer.json["complete"] and other not in answer.body.decode()
        assert list(answer.json["reviewers"]) == [own] and answer.json["agreement"] == []
        assert answer.json["reviewers"][own]["actions"]["accept"] > 0
    for item in ask(anna, "/api/items?count=1000&open=1").json["items"]:
        decide(anna, item, "accept")
    summary = ask(anna, "/api/summary").json
    assert summary["complete"] and set(summary["reviewers"]) == {"anna", "bert"}
    assert not ask(bert, "/api/summary").json["complete"], "bert still has to decide"
    (pair,) = summary["agreement"]
    assert (pair["both"], pair["n"], pair["agree"], pair["conflicts"]) == (4, 3, 2, 2)


# ---- blind ----


def test_nothing_but_the_image_reaches_a_blind_reviewer(folder: Path) -> None:
    open_session, blind_session = session(folder), session(folder, blind=True)
    everything = ListFilter(priority=False)
    items = open_session.list_items(everything, 0, 1000, open_only=False)["items"]
    blind_items = blind_session.list_items(everything, 0, 1000, open_only=False)["items"]
    rows = [blind_session._rows[item["row"]] for item in blind_items]
    ranks = {item["row"]: item["rank"] for item in items}
    assert set(rows) == set(ranks) and len(rows) == len(items)
    for item, row in zip(blind_items, rows, strict=True):
        assert item["id"] == "" and "rank" not in item
        assert row == blind_session.row_of(item["row"])
        assert item["hash"] == blind_session.images.hash(row)
    # neither the order nor the numbers in the addresses follow the classes, rows or ranks
    for numbers in (
        rows,
        [ranks[row] for row in rows],
        [blind_session._numbers[row] for row in range(len(items))],
    ):
        assert abs(np.corrcoef(numbers, np.arange(len(numbers)))[0, 1]) < 0.35


def test_a_blind_reviewer_cannot_filter_by_class(folder: Path) -> None:
    blind_session = session(folder, blind=True)
    name = blind_session.audit.classes[0]
    page = blind_session.list_items(ListFilter(given=name), 0, 1000, open_only=False)
    assert page["total"] == blind_session.audit.num_suspects


def test_a_blind_decision_is_about_the_image_that_was_shown(folder: Path) -> None:
    blind_session = session(folder, blind=True)
    (item,) = blind_session.list_items(ListFilter(), 0, 1, open_only=True)["items"]
    blind_session.decide({"row": item["row"], "hash": item["hash"], "action": "unsure"})
    line = json.loads((folder / "decisions.jsonl").read_text())
    assert line["row"] == blind_session.row_of(item["row"]) and line["hash"] == item["hash"]
    assert blind_session.undo("x")["undone"] == {"row": item["row"]}


def test_a_blind_reviewer_sees_no_label_before_the_list_is_complete(folder: Path) -> None:
    app = build_app(session(folder, blind=True), port=PORT, token=TOKEN)
    about, item = ask(app, "/api/about").json, first(app)[0]
    assert about["pairs"] == [] and set(item) == {
        "position",
        "row",
        "id",
        "hash",
        "decision",
    }
    examples = ask(app, f"/api/examples/{item['row']}").json["examples"]
    assert [group["label"] for group in examples] == about["classes"]
    items = first(app, 1000)
    for i, item in enumerate(items):
        answer = decide(app, item, "change", label=about["classes"][i % 2]).json
        # neither accept nor keep: both would tell what the given or the suggested label is
        decision = {"action": "change", "label": about["classes"][i % 2], "reason": ""}
        decision["time"] = answer["item"]["decision"]["time"]
        if i + 1 < len(items):
            assert {**item, **answer["item"]} == {**item, "decision": decision}
            assert first(app)[0] == {**items[0], "decision": first(app)[0]["decision"]}
            own = ask(app, "/api/summary").json["reviewers"]["anna"]
            assert own["decided"] == i + 1
            assert own["actions"] == {"unsure": 0} and own["confusions"] == []
    assert answer["item"]["given"] in about["classes"] and "suggested" in answer["item"]
    shown_items = first(app, 1000)
    assert all("given" in item for item in shown_items)
    assert {item["decision"]["action"] for item in shown_items} & {"accept", "keep"}
    assert set(ask(app, "/api/summary").json["reviewers"]["anna"]["actions"]) > {"accept", "keep"}
    lines = (folder / "decisions.jsonl").read_text().splitlines()
    assert all(json.loads(line)["blind"] for line in lines)


def test_with_an_empty_priority_list_all_labels_must_be_decided(folder: Path) -> None:
    anna = session(folder)
    anna.audit.index["priority"] = 0
    assert not anna.is_complete()
    for item in anna.list_items(ListFilter(priority=False), 0, 1000, open_only=True)["items"]:
        anna.decide({"row": item["row"], "hash": item["hash"], "action": "keep"})
    assert anna.is_complete()


def test_examples_are_clean_images_of_both_classes(app: LocalAccess) -> None:
    item = first(app)[0]
    groups = ask(app, f"/api/examples/{item['row']}").json["examples"]
    assert [group["label"] for group in groups] == [item["given"], item["suggested"]]
    assert all(item["row"] not in group["rows"] and group["rows"] for group in groups)


def test_an_image_that_changed_since_the_audit_is_not_decided_about(folder: Path) -> None:
    one = session(folder)

    class Others:
        def __getattr__(self, name: str) -> Any:
            return getattr(one.images, name) if name != "hash" else lambda row: "another"

    changed_session = Session(one.audit, cast(Any, Others()), "anna")
    item = changed_session.list_items(ListFilter(), 0, 1, open_only=True)["items"][0]
    app = build_app(changed_session, port=PORT, token=TOKEN)
    answer = decide(app, item, "keep")
    assert answer.status == 409 and answer.json["code"] == "review.image-changed"


# ---- hostile requests ----


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 50_000,
        b'{"request": "\\ud800"}',
        b'{"row": ' + b"9" * 5000 + b"}",
        b"\xff\xfe",
        b"[]",
    ],
)
@pytest.mark.parametrize("path", ["/api/decide", "/api/undo"])
def test_a_body_that_makes_no_sense_is_a_bad_request(
    app: LocalAccess, path: str, text: bytes
) -> None:
    assert send_raw(app, path, text).status == 400


@pytest.mark.parametrize("path", ["/image/", "/thumbnail/", "/api/place/", "/api/examples/"])
def test_a_row_of_thousands_of_digits_is_refused(app: LocalAccess, path: str) -> None:
    assert ask(app, path + "9" * 5000).status == 414
    assert ask(app, path + "9" * 100).status in (200, 404)


def test_a_slow_body_is_given_up(app: LocalAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedgsca.labels.review import web_app

    monkeypatch.setattr(web_app, "BODY_SECONDS", 0.2)
    assert send_raw(app, "/api/undo", b"{", is_slow=True).status == 408


def send_raw(app: LocalAccess, path: str, data: bytes, *, is_slow: bool = False) -> Answer:
    """A POST with these bytes; a slow one never ends."""
    headers = {
        **SAME,
        "content-length": str(len(data)),
        "cookie": f"{app.cookie}={app.session}",
    }
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "scheme": "http",
        "headers": encode_headers(dict(headers)),
        "http_version": "1.1",
        "server": ("127.0.0.1", PORT),
        "client": ("127.0.0.1", 5),
        "root_path": "",
    }
    parts: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if is_slow:
            await asyncio.sleep(0.05)
        return {"type": "http.request", "body": data, "more_body": is_slow}

    async def send(message: Any) -> None:
        parts.append(dict(message))

    asyncio.run(app(scope, receive, send))
    return Answer(parts[0]["status"], {}, b"".join(part.get("body", b"") for part in parts))


@pytest.mark.parametrize("row", [True, False, None, 1.0, "1", [], 10**30, -1])
def test_a_row_that_is_no_number_of_the_list_is_refused(app: LocalAccess, row: Any) -> None:
    body = {"row": row, "hash": "x", "action": "keep"}
    answer = ask(app, "/api/decide", method="POST", body=body)
    assert answer.status == 409 and answer.json["code"] == "review.unknown-row"


# ---- links to a viewer, copies, levels ----


def test_people_get_levels_and_no_probability(app: LocalAccess) -> None:
    item = first(app)[0]
    assert item["levels"][0] == [item["suggested"], "moderate"]
    assert {level for _, level in item["levels"]} <= {"strong", "moderate", "weak"}
    assert not {"probabilities", "suspicion", "probability"} & set(item)


def test_a_page_that_has_not_seen_the_newest_decision_is_told(app: LocalAccess) -> None:
    item = first(app)[0]
    saved = decide(app, item, "keep", seen="").json["item"]
    answer = decide(app, item, "accept", seen="")
    assert answer.status == 409 and answer.json["code"] == "review.decided-meanwhile"
    assert decide(app, item, "accept", seen=saved["decision"]["time"], request="x").status == 200


def test_dicom_images_have_a_link_that_a_file_cannot_bend(folder: Path) -> None:
    one = session(folder)
    viewer = "https://pacs.example/ohif/viewer?StudyInstanceUIDs={study}&sop={instance}"

    class Dicom:
        def __getattr__(self, name: str) -> Any:
            uids = {"study": "1.2.3", "series": "4.5", "instance": "6'/&x={study}"}
            return getattr(one.images, name) if name != "dicom_uids" else lambda row: uids

    linked = Session(one.audit, cast(Any, Dicom()), "anna", viewer=viewer)
    item = linked.list_items(ListFilter(), 0, 1, open_only=True)["items"][0]
    assert item["link"] == (
        "https://pacs.example/ohif/viewer?StudyInstanceUIDs=1.2.3&sop=6%27%2F%26x%3D%7Bstudy%7D"
    )
    blind = Session(one.audit, cast(Any, Dicom()), "anna", viewer=viewer, blind=True)
    item = blind.list_items(ListFilter(), 0, 1, open_only=True)["items"][0]
    assert "link" not in item and "copies" not in item
    assert first(build_app(one, port=PORT, token=TOKEN))[0]["link"] == ""


@pytest.mark.parametrize("viewer", ["javascript:alert({study})", "https://pacs.example/", "pacs"])
def test_a_viewer_is_the_address_of_an_image(
    folder: Path, viewer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedgsca.cli import execute

    assert execute(["review", str(folder), "--viewer", viewer]) != 0
    assert "review.invalid-viewer" in capsys.readouterr().err
