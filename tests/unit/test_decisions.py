"""Decisions about labels: nothing is lost, nothing counts twice, and agreement is computed as by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.label_audit import decisions as module
from fedgsca.label_audit.consensus import agreement, cohens_kappa, consensus, pace, summarise
from fedgsca.label_audit.decisions import FILE, Decision, Decisions


def made(
    row: int, action: str = "accept", *, who: str = "anna", label: str | None = None, **more: Any
) -> Decision:
    new = {"accept": "b", "change": label or "c"}.get(action)
    return Decision(who, row, f"{row}.png", f"hash-{row}", "a", action, new, **more)


def actions(folder: Path, who: str = "anna") -> dict[int, str]:
    return {row: d.action for row, d in Decisions(folder).of(who).items()}


# ---- the file ----


def test_a_decision_is_on_the_disk_when_add_returns(tmp_path: Path) -> None:
    Decisions(tmp_path).add(made(3, reason="mitoses", seconds=2.5))
    (line,) = (tmp_path / FILE).read_text().splitlines()
    told = json.loads(line)
    assert (
        told["reviewer"] == "anna"
        and told["row"] == 3
        and told["reason"] == "mitoses"
        and told["label"] == "b"
    )
    assert told["time"].endswith("+00:00") and told["hash"] == "hash-3"
    assert actions(tmp_path) == {3: "accept"}


def test_the_file_only_grows_and_undo_is_a_line(tmp_path: Path) -> None:
    store = Decisions(tmp_path)
    store.add(made(1, "keep"))
    store.add(made(2, "accept"))
    before = (tmp_path / FILE).read_bytes()
    undone = store.undo("anna")
    assert undone is not None and undone.row == 2
    assert (tmp_path / FILE).read_bytes().startswith(before)
    assert actions(tmp_path) == {1: "keep"}


def test_undo_goes_back_step_by_step_to_an_earlier_opinion_and_to_nothing(tmp_path: Path) -> None:
    store = Decisions(tmp_path)
    store.add(made(1, "keep"))
    store.add(made(1, "accept"))  # changed her mind
    store.undo("anna")
    assert actions(tmp_path) == {1: "keep"}
    store.undo("anna")
    assert actions(tmp_path) == {} and store.undo("anna") is None
    assert store.undo("bert") is None


def test_the_same_request_counts_once(tmp_path: Path) -> None:
    store = Decisions(tmp_path)
    first = store.add(made(1, "keep", request="click-1"))
    again = Decisions(tmp_path).add(made(1, "keep", request="click-1"))  # after a restart, too
    assert again.time == first.time
    store.add(made(2, request="click-2"))
    assert store.undo("anna", "undo-1") == store.undo("anna", "undo-1")
    assert actions(tmp_path) == {1: "keep"}
    assert len((tmp_path / FILE).read_text().splitlines()) == 3


def test_a_line_cut_short_by_a_crash_costs_that_line_only(tmp_path: Path) -> None:
    store = Decisions(tmp_path)
    for row in (1, 2):
        store.add(made(row))
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[:-9])
    again = Decisions(tmp_path)
    assert again.of("anna").keys() == {1}
    again.add(made(3))
    assert Decisions(tmp_path).of("anna").keys() == {1, 3} and Decisions(tmp_path).damaged == 1


@pytest.mark.parametrize(
    "line", ["", "\0\0\0", "nonsense", "[]", "{}", '{"row": "1"}', '{"reviewer": 3}']
)
def test_lines_that_are_no_decisions_are_skipped(tmp_path: Path, line: str) -> None:
    Decisions(tmp_path).add(made(1))
    with open(tmp_path / FILE, "a") as handle:
        handle.write(line + "\n")
    Decisions(tmp_path).add(made(2))
    assert Decisions(tmp_path).of("anna").keys() == {1, 2}


def test_two_servers_on_one_file_see_each_other(tmp_path: Path) -> None:
    one, other = Decisions(tmp_path), Decisions(tmp_path)
    for row in range(20):
        (one if row % 2 else other).add(made(row, who="anna" if row % 2 else "bert"))
    one.refresh()
    assert one.reviewers() == ["anna", "bert"]
    assert len(one.of("anna")) == len(one.of("bert")) == 10
    assert Decisions(tmp_path).damaged == 0


@pytest.mark.parametrize("part", [0, 10])
def test_a_full_disk_is_said_and_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    store = Decisions(tmp_path)
    store.add(made(1))
    before, write = (tmp_path / FILE).read_bytes(), os.write

    def full(handle: int, data: bytes) -> int:
        write(handle, data[:part])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "write", full)
        with pytest.raises(RunFolderError, match=r"NOT saved.*no space left"):
            store.add(made(2, request="r"))
    assert (tmp_path / FILE).read_bytes() == before and store.of("anna").keys() == {1}
    store.add(made(2, request="r"))  # the retry is not taken for a repetition
    assert actions(tmp_path).keys() == {1, 2}


def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    Decisions(tmp_path).add(made(1))
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0


# ---- what they amount to ----


def test_kappa_by_hand() -> None:
    # 50 cases: both yes 20, both no 15, 5 and 10 apart: p_o = 0.7, p_e = 0.5 * 0.6 + 0.5 * 0.4 = 0.5
    first = ["y"] * 25 + ["n"] * 25
    second = ["y"] * 20 + ["n"] * 5 + ["y"] * 10 + ["n"] * 15
    assert cohens_kappa(first, second) == pytest.approx(0.4)
    assert cohens_kappa(first, first) == 1
    assert cohens_kappa([], []) is None and cohens_kappa(["y"], ["y"]) is None


def test_agreement_counts_only_labels_that_both_gave(tmp_path: Path) -> None:
    store = Decisions(tmp_path)
    for row, (anna, bert) in enumerate(
        [("accept", "accept"), ("keep", "accept"), ("unsure", "keep"), ("keep", "keep")]
    ):
        store.add(made(row, anna))
        store.add(made(row, bert, who="bert"))
    store.add(made(9))
    found = agreement(store.of("anna"), store.of("bert"))
    assert (found["both"], found["n"], found["agree"]) == (4, 3, 2)
    assert [case["row"] for case in found["conflicts"]] == [1, 2]
    whole = summarise(store)
    assert whole["reviewers"]["anna"]["actions"] == {
        "accept": 2,
        "keep": 2,
        "change": 0,
        "unsure": 1,
    }
    assert whole["agreement"][0]["reviewers"] == ["anna", "bert"]


def test_only_unanimous_labels_are_settled_unless_somebody_is_preferred(tmp_path: Path) -> None:
    store = Decisions(tmp_path)
    for row, (anna, bert) in enumerate(
        [("accept", "accept"), ("keep", "change"), ("unsure", "accept"), ("unsure", "unsure")]
    ):
        store.add(made(row, anna))
        store.add(made(row, bert, who="bert"))
    store.add(made(7, "keep"))
    plain = consensus(store)
    assert (
        plain.settled.keys() == {0, 7}
        and plain.disputed.keys() == {1, 2}
        and plain.unsure.keys() == {3}
    )
    preferred = consensus(store, prefer="bert")
    assert {row: said[0].final for row, said in preferred.settled.items()} == {
        0: "b",
        1: "c",
        2: "b",
        7: "a",
    }
    with pytest.raises(ConfigError, match="carl"):
        consensus(store, prefer="carl")


def test_a_coffee_break_does_not_halve_the_speed() -> None:
    assert pace([made(1, seconds=5.0), made(2, seconds=5.0)]) == pytest.approx(12)
    assert pace([made(1, seconds=5.0), made(2, seconds=3600.0)]) == pytest.approx(60 * 2 / 125)
    assert pace([]) is None
