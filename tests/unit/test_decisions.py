"""Decisions about labels: nothing is lost, nothing counts twice, agreement is as by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fedgsca.errors import ConfigError, DataError, RunFolderError
from fedgsca.labels.audit_table import Suspect
from fedgsca.labels.consensus import (
    cohens_kappa,
    find_consensus,
    images_per_minute,
    measure_agreement,
    summarise_decisions,
)
from fedgsca.labels.decisions import FILE, Decision, Decisions


def decision(
    row: int, action: str = "accept", *, reviewer: str = "anna", label: str = "c", **fields: Any
) -> Decision:
    new_label = {"accept": "b", "change": label}.get(action)
    return Decision(reviewer, row, f"{row}.png", f"hash-{row}", "a", action, new_label, **fields)


def actions(folder: Path, reviewer: str = "anna") -> dict[int, str]:
    by_row = Decisions(folder).by_reviewer(reviewer)
    return {row: entry.action for row, entry in by_row.items()}


# ---- the file ----


def test_a_decision_is_on_the_disk_when_add_returns(tmp_path: Path) -> None:
    Decisions(tmp_path).add(decision(3, reason="mitoses", seconds=2.5))
    (line,) = (tmp_path / FILE).read_text().splitlines()
    entry = json.loads(line)
    assert (
        entry["reviewer"] == "anna"
        and entry["row"] == 3
        and entry["reason"] == "mitoses"
        and entry["label"] == "b"
    )
    assert entry["time"].endswith("+00:00") and entry["hash"] == "hash-3"
    assert actions(tmp_path) == {3: "accept"}


def test_the_file_only_grows_and_undo_is_a_line(tmp_path: Path) -> None:
    store = Decisions(tmp_path)
    store.add(decision(1, "keep"))
    store.add(decision(2, "accept"))
    content = (tmp_path / FILE).read_bytes()
    undone = store.undo("anna")
    assert undone is not None and undone.row == 2
    assert (tmp_path / FILE).read_bytes().startswith(content)
    assert actions(tmp_path) == {1: "keep"}


def test_undo_returns_step_by_step_to_an_earlier_opinion_and_to_nothing(tmp_path: Path) -> None:
    store = Decisions(tmp_path)
    store.add(decision(1, "keep"))
    store.add(decision(1, "accept"))  # changed her mind
    store.undo("anna")
    assert actions(tmp_path) == {1: "keep"}
    store.undo("anna")
    assert actions(tmp_path) == {} and store.undo("anna") is None
    assert store.undo("bert") is None


def test_the_same_request_counts_once(tmp_path: Path) -> None:
    store = Decisions(tmp_path)
    first = store.add(decision(1, "keep", request="click-1"))
    again = Decisions(tmp_path).add(decision(1, "keep", request="click-1"))  # after a restart, too
    assert again.time == first.time
    store.add(decision(2, request="click-2"))
    assert store.undo("anna", "undo-1") == store.undo("anna", "undo-1")
    assert actions(tmp_path) == {1: "keep"}
    assert len((tmp_path / FILE).read_text().splitlines()) == 3


def test_a_line_cut_short_by_a_crash_costs_that_line_only(tmp_path: Path) -> None:
    store = Decisions(tmp_path)
    for row in (1, 2):
        store.add(decision(row))
    content = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(content[:-9])
    again = Decisions(tmp_path)
    assert again.by_reviewer("anna").keys() == {1}
    again.add(decision(3))
    assert (
        Decisions(tmp_path).by_reviewer("anna").keys() == {1, 3}
        and Decisions(tmp_path).damaged_lines == 1
    )


@pytest.mark.parametrize(
    "line", ["", "\0\0\0", "nonsense", "[]", "{}", '{"row": "1"}', '{"reviewer": 3}']
)
def test_damaged_lines_are_skipped(tmp_path: Path, line: str) -> None:
    Decisions(tmp_path).add(decision(1))
    with open(tmp_path / FILE, "a") as handle:
        handle.write(line + "\n")
    Decisions(tmp_path).add(decision(2))
    assert Decisions(tmp_path).by_reviewer("anna").keys() == {1, 2}


def test_two_servers_on_one_file_see_each_other(tmp_path: Path) -> None:
    first = Decisions(tmp_path)
    second = Decisions(tmp_path)
    for row in range(20):
        store, reviewer = (first, "anna") if row % 2 else (second, "bert")
        store.add(decision(row, reviewer=reviewer))
    first.refresh()
    assert first.reviewers() == ["anna", "bert"]
    assert len(first.by_reviewer("anna")) == len(first.by_reviewer("bert")) == 10
    assert Decisions(tmp_path).damaged_lines == 0


@pytest.mark.parametrize("part", [0, 10])
def test_a_full_disk_is_reported_and_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    store = Decisions(tmp_path)
    store.add(decision(1))
    content = (tmp_path / FILE).read_bytes()
    write = os.write

    def full(handle: int, data: bytes) -> int:
        write(handle, data[:part])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(RunFolderError) as error:
            store.add(decision(2, request="r"))
    assert error.value.code == "review.not-saved" and "no space left" in error.value.message
    assert (tmp_path / FILE).read_bytes() == content and store.by_reviewer("anna").keys() == {1}
    store.add(decision(2, request="r"))  # the retry is not taken for a repetition
    assert actions(tmp_path).keys() == {1, 2}


def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    Decisions(tmp_path).add(decision(1))
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0


# ---- scripts ----


def suspect(row: int = 3) -> Suspect:
    return Suspect(
        rank=1,
        row=row,
        id=f"{row}.png",
        hash=f"hash-{row}",
        given="a",
        suggestion="b",
        probability=0.7,
        runners_up=(("a", 0.2), ("c", 0.1)),
        suspicion=0.9,
        reason="given a, the model says b",
        priority=True,
    )


@pytest.mark.parametrize(
    ("label", "action", "new_label"),
    [("a", "keep", None), ("b", "accept", "b"), ("c", "change", "c"), (None, "unsure", None)],
)
def test_a_script_records_what_the_label_should_be(
    tmp_path: Path, label: str | None, action: str, new_label: str | None
) -> None:
    store = Decisions(tmp_path, ["a", "b", "c"])
    entry = store.record(suspect(), label, reviewer="script", reason="rule 7")
    assert (entry.action, entry.label, entry.final) == (action, new_label, label)
    assert (entry.row, entry.id, entry.hash, entry.given) == (3, "3.png", "hash-3", "a")
    assert Decisions(tmp_path).by_reviewer("script") == {3: entry}


def test_a_script_cannot_record_an_unknown_class_or_an_empty_name(tmp_path: Path) -> None:
    store = Decisions(tmp_path, ["adenoma", "normal"])
    with pytest.raises(DataError) as error:
        store.record(suspect(), "adenome", reviewer="anna")
    assert error.value.code == "review.unknown-class" and "'adenoma'" in error.value.fix
    for name in ("", "  ", "two\nlines", "x" * 61):
        with pytest.raises(ConfigError) as refusal:
            store.record(suspect(), "normal", reviewer=name)
        assert refusal.value.code == "review.invalid-reviewer"
    assert not (tmp_path / FILE).exists()


def test_a_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    store = Decisions(tmp_path)
    store.add(decision(1))
    (tmp_path / FILE).write_text("")
    with pytest.raises(RunFolderError) as error:
        store.refresh()
    assert error.value.code == "review.decisions-shortened"


# ---- results ----


def test_kappa_by_hand() -> None:
    # 50 cases: both yes 20, both no 15, 5 and 10 differ:
    # p_o = 0.7, p_e = 0.5 * 0.6 + 0.5 * 0.4 = 0.5
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
        store.add(decision(row, anna))
        store.add(decision(row, bert, reviewer="bert"))
    store.add(decision(9))
    pair = measure_agreement(("anna", "bert"), store.by_reviewer("anna"), store.by_reviewer("bert"))
    assert (pair.num_common, pair.num_labelled, pair.num_equal) == (4, 3, 2)
    assert [conflict.row for conflict in pair.conflicts] == [1, 2]
    summary = summarise_decisions(store)
    counts = {"accept": 2, "keep": 2, "change": 0, "unsure": 1}
    assert summary.reviewers["anna"].actions == counts
    assert summary.agreement == (pair,)
    tree = summary.to_json()  # the keys that scripts read
    assert list(tree) == ["reviewers", "agreement", "damaged_lines"]
    assert list(tree["reviewers"]["anna"]) == [
        *("decided", "actions", "confusions", "median_seconds", "per_minute", "blind")
    ]
    assert list(tree["agreement"][0]) == [
        *("reviewers", "both", "n", "agree", "kappa", "weighted_kappa", "conflicts")
    ]
    assert tree["agreement"][0]["conflicts"][1] == {
        "row": 2,
        "id": "2.png",
        "given": "a",
        "labels": [None, "a"],
    }


def test_only_unanimous_labels_are_settled_unless_somebody_is_preferred(tmp_path: Path) -> None:
    store = Decisions(tmp_path)
    for row, (anna, bert) in enumerate(
        [("accept", "accept"), ("keep", "change"), ("unsure", "accept"), ("unsure", "unsure")]
    ):
        store.add(decision(row, anna))
        store.add(decision(row, bert, reviewer="bert"))
    store.add(decision(7, "keep"))
    plain = find_consensus(store)
    assert plain.agreements.keys() == {0, 7}
    assert plain.disputes.keys() == {1, 2} and plain.unsure.keys() == {3}
    with_preference = find_consensus(store, prefer="bert")
    labels = {row: entries[0].final for row, entries in with_preference.agreements.items()}
    assert labels == {0: "b", 1: "c", 2: "b", 7: "a"}
    with pytest.raises(ConfigError) as error:
        find_consensus(store, prefer="brt")
    assert error.value.code == "audit.unknown-reviewer" and "'bert'" in error.value.fix


def test_a_coffee_break_does_not_halve_the_speed() -> None:
    assert images_per_minute([decision(1, seconds=5.0), decision(2, seconds=5.0)]) == pytest.approx(
        12
    )
    assert images_per_minute(
        [decision(1, seconds=5.0), decision(2, seconds=3600.0)]
    ) == pytest.approx(60 * 2 / 125)
    assert images_per_minute([]) is None


# ---- two pages of one person ----


def test_what_another_page_decided_is_not_overwritten_unseen(tmp_path: Path) -> None:
    one = Decisions(tmp_path)
    other = Decisions(tmp_path)
    first = one.add(decision(3, "keep"), replaces="")
    with pytest.raises(DataError) as error:
        other.add(decision(3, "accept"), replaces="")
    assert error.value.code == "review.decided-meanwhile" and "'a'" in error.value.message
    assert actions(tmp_path) == {3: "keep"}
    other.add(decision(3, "accept"), replaces=first.time)  # now it has seen the first one
    assert actions(tmp_path) == {3: "accept"}
    other.undo("anna")
    one.add(decision(3, "unsure"), replaces=first.time)
    assert actions(tmp_path) == {3: "unsure"}


# ---- agreement about ordered classes ----


def test_weighted_kappa_counts_steps() -> None:
    grades = ("grade 0", "grade 1", "grade 2")
    first = [grades[0], grades[1], grades[2], grades[2]]
    near = [grades[0], grades[1], grades[1], grades[2]]
    far = [grades[0], grades[1], grades[0], grades[2]]
    # by hand: 1 of 4 differs, and 11 of 16 pairs by chance
    for second in (near, far):
        assert cohens_kappa(first, second) == pytest.approx(1 - (1 / 4) / (11 / 16))
    # steps apart: 1 and 2 in 4, and 14 and 16 in the 16 pairs by chance
    assert cohens_kappa(first, near, grades) == pytest.approx(1 - (1 / 4) / (14 / 16))
    assert cohens_kappa(first, far, grades) == pytest.approx(1 - (2 / 4) / (16 / 16))
    assert cohens_kappa([grades[0]], [grades[0]], grades) is None
