"""The watch page: what it shows of a run in any state, and which requests it refuses."""

from __future__ import annotations

import json
import os
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from fedgsca.experiment.records import RunStatus, SiteStatus
from fedgsca.watch.snapshot import (
    MAX_BYTES,
    MAX_POINTS,
    MAX_REFUSALS,
    MAX_SITES,
    RunSnapshot,
    RunWatch,
    WatchList,
)
from fedgsca.watch.watch_app import FILES, STATIC, WatchAccess, build_watch_app
from tests.unit.test_review_server import HOST, PORT, TOKEN, Answer, ask

CONFIG = 'method = "fedgsca"\n[train]\nrounds = 8\n[data]\nsource = "synthetic"\n'
SELECTOR = [0.2, 1.8, 0.1, 0.4, 0.7, 0.3]


def line(round_index: int, **changes: Any) -> dict[str, Any]:
    sites = {
        "a": {"num_samples": 40, "delta": 0.25, "selector": SELECTOR},
        "b": {"num_samples": 20, "delta": 0.0, "selector": [None] * 6},
    }
    return {"round": round_index, "f1": 50.0 + round_index, "sites": sites, **changes}


def write_run(folder: Path, rounds: int, **changes: Any) -> Path:
    """A run folder as a run writes it, without a run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(CONFIG)
    setup = {"data": {"name": "toy"}, "sites": {"a": {"num_samples": 40}, "b": {}}}
    (folder / "setup.json").write_text(json.dumps(setup))
    lines = [json.dumps(line(i, **changes)) for i in range(rounds)]
    (folder / "metrics.jsonl").write_text("".join(f"{text}\n" for text in lines))
    timing = {"sites": {}, "exchange": 2.0, "evaluate": 0.5, "save": 0.5}
    times = [json.dumps({"round": i, **timing}) for i in range(rounds)]
    (folder / "timing.jsonl").write_text("".join(f"{text}\n" for text in times))
    return folder


def look(folder: Path, now: float | None = None) -> RunSnapshot:
    return RunWatch(folder, folder.name).look(now)


# ---- what it shows ----


def test_a_run_in_progress(tmp_path: Path) -> None:
    view = look(write_run(tmp_path / "run", 3))
    assert (view.state, view.round, view.rounds) == ("running", 3, 8)
    assert [point.value for point in view.test] == [50.0, 51.0, 52.0]
    assert view.f1 == 52.0 and view.seconds_per_round == 3.0 and view.seconds_left == 15.0
    first, second = view.sites
    assert first.flagged_share == 0.25 and first.images == 40 and first.is_online
    assert first.selector is not None and first.selector.noisy_share == 0.3
    assert second.selector is None, "no selector was fitted yet"
    assert view.method == "fedgsca" and view.data == "toy"


def test_the_page_follows_a_run_from_nothing_to_its_end(tmp_path: Path) -> None:
    watch = RunWatch(tmp_path / "run", "run")
    assert watch.look().state == "waiting"
    (tmp_path / "run").mkdir()
    assert watch.look().state == "waiting"
    (tmp_path / "run" / "config.toml").write_text(CONFIG)
    assert watch.look().round == 0 and watch.look().rounds == 8
    write_run(tmp_path / "run", 2)
    assert watch.look().round == 2
    with (tmp_path / "run" / "metrics.jsonl").open("a") as handle:
        handle.write(json.dumps(line(2))[:40])  # being written, or cut by a crash
    assert watch.look().round == 2
    write_run(tmp_path / "run", 8)
    (tmp_path / "run" / "result.json").write_text(json.dumps({"f1": 57.0}))
    view = watch.look()
    assert view.state == "finished" and view.seconds_left is None
    assert all(site.is_online is None for site in view.sites)
    (tmp_path / "run" / "result.json").unlink()
    write_run(tmp_path / "run", 4)  # `resume --from`: the log became shorter
    assert watch.look().state == "running" and watch.look().round == 4


@pytest.mark.parametrize("name", ["config.toml", "setup.json", "metrics.jsonl", "result.json"])
@pytest.mark.parametrize("content", [b"", b"\0" * 50, b"[[[", b'{"round": 1e999}', b"\xff\xfe"])
def test_damaged_files_never_break_the_page(tmp_path: Path, name: str, content: bytes) -> None:
    folder = write_run(tmp_path / "run", 3)
    (folder / name).write_bytes(content)
    json.dumps(look(folder).to_json(), allow_nan=False)


def test_values_of_the_wrong_kind_never_break_the_page(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "f1": float("nan"),
        "sites": {"a": {"num_samples": "many", "delta": [1], "selector": "x"}, "b": 4},
        "refused": {"a": 3},
        "asked": "a",
    }
    folder = write_run(tmp_path / "run", 2, **changes)
    (folder / "timing.jsonl").write_text('{"round": 0, "exchange": "x"}\n')
    json.dumps(look(folder).to_json(), allow_nan=False)
    (folder / "status.json").write_text('{"state": 4, "sites": {"a": 1}, "messages": "x"}')
    json.dumps(look(folder).to_json(), allow_nan=False)


def test_a_silent_run_is_not_called_running(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 3)
    now = (folder / "metrics.jsonl").stat().st_mtime
    assert look(folder, now + 60).state == "running"
    view = look(folder, now + 3600)
    assert view.state == "silent" and view.seconds_left is None
    assert all(site.is_online is None for site in view.sites)


def test_a_coordinator_may_wait_longer_than_a_simulation(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 3)
    sites = {"a": SiteStatus("awaited: an update", "", timeout=7200.0)}
    status = RunStatus("running", 3, 8, 52.0, sites, ())
    (folder / "status.json").write_text(json.dumps(status.to_json()))
    now = (folder / "status.json").stat().st_mtime
    assert look(folder, now + 10000).state == "running"
    assert look(folder, now + 11000).state == "silent"


def test_a_coordinator_shows_who_is_online_and_why_it_waits(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 3)
    sites = {
        "a": SiteStatus("answered", "2026-01-01T10:00:00+00:00"),
        "b": SiteStatus("left out: no reply within 60 s", "2026-01-01T10:00:00+00:00"),
        "c": SiteStatus("awaited: an update", "2026-01-01T10:00:00+00:00"),
    }
    status = RunStatus("paused: 1 of 3 sites answered", 3, 8, 52.0, sites, ("one\x1b[31mline",))
    (folder / "status.json").write_text(json.dumps(status.to_json()))
    view = look(folder)
    assert (view.state, view.detail) == ("paused", "1 of 3 sites answered")
    assert {site.name: site.is_online for site in view.sites} == {"a": True, "b": False, "c": True}
    assert view.messages == ("one[31mline",)
    stopped_status = RunStatus("stopped: no quorum", 3, 8, 52.0, sites, ())
    (folder / "status.json").write_text(json.dumps(stopped_status.to_json()))
    assert look(folder).state == "stopped"


def test_refused_updates_are_counted_and_the_newest_come_first(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 40, refused={"b": "not finite\nvalue"}, sites={})
    view = look(folder)
    assert view.num_refusals == 40 and len(view.refusals) == MAX_REFUSALS
    assert view.refusals[0].round == 40 and view.refusals[0].reason == "not finite value"
    state = {site.name: site for site in view.sites}
    assert state["b"].refusals == 40 and state["b"].state.startswith("refused")
    assert state["a"].is_online is False, "it did not answer"


def test_long_runs_and_many_sites_stay_small(tmp_path: Path) -> None:
    sites = {f"site-{i}": {"num_samples": 5} for i in range(MAX_SITES + 30)}
    folder = write_run(tmp_path / "run", 3, sites=sites)
    view = look(folder)
    assert len(view.sites) == MAX_SITES and view.hidden_sites >= 30
    folder = write_run(tmp_path / "long", 2345, sites={})
    view = look(folder)
    assert len(view.test) <= MAX_POINTS and view.test[-1].round == 2345


def test_a_log_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 1)
    os.truncate(folder / "metrics.jsonl", MAX_BYTES + 1)  # sparse: takes no space
    view = look(folder)
    assert view.state == "waiting" and "too large" in view.detail


def test_a_comparison_becomes_its_runs_also_those_that_start_later(tmp_path: Path) -> None:
    out = tmp_path / "cmp"
    watches = WatchList([out, tmp_path / "single", out])
    assert [view.name for view in watches.look()] == ["cmp", "single"]
    plan = {"methods": ["fedavg", "fedprox"], "noises": ["S40"], "seeds": [0], "ceiling": False}
    out.mkdir()
    (out / "plan.json").write_text(json.dumps(plan))
    write_run(out / "cells" / "fedavg-S40-s0", 2)
    views = watches.look()
    assert [view.name for view in views] == ["fedavg-S40-s0", "fedprox-S40-s0", "single"]
    assert [view.state for view in views] == ["running", "waiting", "waiting"]
    (out / "plan.json").write_text("{")  # being replaced
    assert [view.name for view in watches.look()] == ["fedavg-S40-s0", "single"]


def test_looking_changes_nothing_in_the_folder(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 3)
    (folder / ".lock").write_text("")
    folder_facts = {path: path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]}
    WatchList([folder]).look()
    assert {path: path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]} == folder_facts
    import fcntl

    with (folder / ".lock").open() as handle:  # a run can still take its lock
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


# ---- who may look ----


@pytest.fixture
def guard(tmp_path: Path) -> WatchAccess:
    folder = write_run(tmp_path / "secret-place" / "run", 3)
    return build_watch_app(WatchList([folder]), port=PORT, token=TOKEN)


def get(guard: WatchAccess, path: str, **changes: Any) -> Answer:
    return ask(guard, path, **{"content_type": None, **changes})


def test_the_key_opens_the_page_and_becomes_a_cookie(guard: WatchAccess) -> None:
    answer = get(guard, f"/?token={TOKEN}", cookie=None, origin=None, sec_fetch_site="none")
    assert answer.status == 200 and b"fedgsca" in answer.body
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and TOKEN not in cookie
    assert get(guard, "/api/runs").json["runs"][0]["round"] == 3


@pytest.mark.parametrize("path", ["/", "/?token=wrong", "/?token=", "/api/runs", "/watch.js"])
def test_without_the_key_nothing_is_shown(guard: WatchAccess, path: str) -> None:
    for cookie in (None, "fedgsca-8765=guess", "x" * 5000, "\xff"):
        answer = get(guard, path, cookie=cookie)
        assert answer.status == 403 and b"fedgsca watch" in answer.body
        assert b"run" not in answer.body.replace(b"fedgsca watch", b"")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        f"evil.example:{PORT}",
        "127.0.0.1",
        "127.0.0.1:80",
        f"127.0.0.1.evil:{PORT}",
        "",
    ],
)
def test_another_name_for_this_machine_is_refused(guard: WatchAccess, host: str) -> None:
    assert get(guard, "/api/runs", host=host).status == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example", "sec_fetch_site": "cross-site"},
        {"origin": "null"},
        {"sec_fetch_site": "same-site", "origin": None},
        {"origin": f"https://{HOST}"},
    ],
)
def test_other_pages_cannot_read_the_runs(guard: WatchAccess, headers: dict[str, Any]) -> None:
    assert get(guard, "/api/runs", **headers).status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/", "/api/runs"])
def test_nothing_can_be_written(guard: WatchAccess, method: str, path: str) -> None:
    assert ask(guard, path, method=method, body={}).status == 405


@pytest.mark.parametrize(
    "path",
    [
        "/../pyproject.toml",
        "/..%2f..%2fetc/passwd",
        "//etc/passwd",
        "/static/watch.js",
        "/metrics.jsonl",
        "/run/config.toml",
        "/api/runs/0",
        "/api",
        "/%00",
    ],
)
def test_no_file_of_the_machine_can_be_asked_for(guard: WatchAccess, path: str) -> None:
    assert get(guard, path).status == 404


def test_a_very_long_address_is_refused(guard: WatchAccess) -> None:
    assert get(guard, "/" + "a" * 5000).status == 414


def test_every_answer_is_sealed(guard: WatchAccess) -> None:
    for path in [*FILES, "/api/runs", "/nothing"]:
        headers = get(guard, path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert headers["cache-control"] == "no-store" and headers["x-frame-options"] == "DENY"


def test_no_path_of_this_machine_reaches_the_browser(guard: WatchAccess) -> None:
    assert b"secret-place" not in get(guard, "/api/runs").body


def test_the_page_has_no_foreign_content_and_no_html_from_runs() -> None:
    texts = {path.name: path.read_text() for path in STATIC.iterdir()}
    for name, text in texts.items():
        assert "https://" not in text, name
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", ""), name
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in texts["watch.js"]
    assert "style=" not in texts["index.html"] and "onclick" not in texts["index.html"]


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>"
    folder = write_run(tmp_path / "run", 1, sites={name: {"num_samples": 3}}, refused={name: name})
    guard = build_watch_app(WatchList([folder]), port=PORT, token=TOKEN)
    answer = get(guard, "/api/runs")
    assert answer.headers["content-type"] == "application/json"
    assert name in [site["name"] for site in answer.json["runs"][0]["sites"]]


def test_the_server_listens_on_this_machine_only(tmp_path: Path) -> None:
    from fedgsca.review.serve import bind, build_page_server

    make_app = partial(build_watch_app, WatchList([tmp_path]))
    with bind(None) as listener:
        _, address = build_page_server(make_app, listener)
        assert listener.getsockname()[0] == "127.0.0.1"
        assert address.startswith(f"http://127.0.0.1:{listener.getsockname()[1]}/?token=")
        assert len(address.partition("token=")[2]) >= 40
        assert isinstance(listener, socket.socket)


def test_a_file_is_not_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fedgsca.cli import execute

    (tmp_path / "file").write_text("")
    assert execute(["watch", str(tmp_path / "file")]) == 7
    assert "watch.not-a-folder" in capsys.readouterr().err
    assert execute(["watch", *(["x"] * 101)]) == 7
    assert "watch.too-many-runs" in capsys.readouterr().err
