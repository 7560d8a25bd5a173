"""What a person who watches a deployment is told: dead is dead, absent is not refused."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from fedgsca.federation import result_summary
from fedgsca.federation.base import Reply
from fedgsca.federation.progress import Display, LineDisplay, PaceObserver
from fedgsca.federation.records import RoundRecord, comparable_rounds
from fedgsca.federation.round_status import StatusObserver, read_deployment_status, read_status
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import RunFolder, read_rounds
from fedgsca.hospital.worker import ActivityLog
from fedgsca.lab.report.html_page import write_report
from fedgsca.support.console import activity, listen
from tests.toys import toy_config

LINE = {"round": 0, "lr": 0.1, "bytes_up": 1, "bytes_down": 1, "sites": {}, "refused": {}}


def test_status_and_page_agree_on_a_coordinator_that_died(tmp_path: Path) -> None:
    config, out = toy_config("fedavg", train__rounds=2), tmp_path / "run"
    run(config, out, stop_after=1)
    observer = StatusObserver(out)
    with RunFolder(out, config):
        observer.on_pause(None)  # "running"
        status = read_status(out)
        assert status is not None and status.state == "running"
        write_report(out)
        assert "has died" not in (out / "report.html").read_text()
    progress = read_deployment_status(out)
    assert progress.state.startswith("stopped: the coordinator's process has died\nFix: ")
    assert progress.awaited_sites == ()
    write_report(out)
    assert "the coordinator&#39;s process has died" in (out / "report.html").read_text()


@pytest.mark.parametrize(
    ("reply", "state", "word"),
    [
        (Reply("lyon", None, "not connected", is_absent=True), "absent: not connected", "absent"),
        (Reply("lyon", None, "other classes"), "left out: other classes", "left out"),
    ],
)
def test_an_absent_site_is_not_called_refused(
    tmp_path: Path, reply: Reply, state: str, word: str
) -> None:
    (tmp_path / "config.toml").touch()
    observer = StatusObserver(tmp_path)
    observer.on_site_done(0, reply)
    assert observer.status.sites["lyon"].state == state
    from fedgsca.federation.intake import Intake
    from fedgsca.wire import Payload

    messages: list[str] = []
    setattr(observer, "on_message", messages.append)  # noqa: B010
    intake = Intake(Payload(0, {}), ("lyon",), None, (), observer, (), tmp_path)
    assert list(intake.updates(iter([reply]))) == []
    assert messages == [f"round 1: lyon is {word}: {reply.error}"]
    assert intake.absent_sites == ({"lyon"} if reply.is_absent else set())


def test_a_record_knows_who_was_refused_and_who_was_absent() -> None:
    tree = {**LINE, "refused": {"a": "other classes", "b": "not connected"}, "absent": ["b"]}
    record = RoundRecord.from_json(tree)
    assert record.refused_sites == ("a",) and record.absent_sites == ("b",)
    assert RoundRecord.from_json(LINE).refused_sites == ()


def records_of_two_test_sets() -> list[RoundRecord]:
    """Two sites test; the one with the easy images is absent in the last rounds."""
    both, one = {"berlin": 10, "lyon": 50}, {"berlin": 10}
    records = []
    for number, (f1, counts) in enumerate([(90.0, both), (95.0, both), (60.0, one), (65.0, one)]):
        tree = {**LINE, "round": number, "f1": f1, "recall": f1, "precision": f1, "tested": counts}
        records.append(RoundRecord.from_json(tree))
    return records


def test_scores_of_different_test_images_are_not_mixed() -> None:
    records = records_of_two_test_sets()
    assert [record.f1 for record in comparable_rounds(records)] == [60.0, 65.0]
    assert max(score.f1 for score in result_summary.tested_rounds(records)) == 65.0
    same_images = [replace(record, test_counts=None) for record in records]
    assert len(comparable_rounds(same_images)) == 4  # the coordinator's own


def test_the_page_says_which_rounds_it_does_not_show(tmp_path: Path) -> None:
    config, out = toy_config("fedavg", train__rounds=4), tmp_path / "run"
    run(config, out, stop_after=1)
    lines = []
    (first,) = read_rounds(out)
    for record in records_of_two_test_sets():
        new = replace(first, round=record.round, f1=record.f1, test_counts=record.test_counts)
        lines.append(json.dumps(new.to_json()) + "\n")
    (out / "metrics.jsonl").write_text("".join(lines))
    write_report(out)
    assert "2 rounds, tested on the images of other sites" in (out / "report.html").read_text()


def test_the_best_score_survives_a_restart(tmp_path: Path) -> None:
    config, out = toy_config("fedavg", train__rounds=3), tmp_path / "run"
    run(config, out, stop_after=2)
    best = max(float(record.f1 or 0) for record in read_rounds(out))
    observer = LineDisplay(runs=1).observe("x")
    assert isinstance(observer, PaceObserver)
    status = StatusObserver(out)

    class Both(PaceObserver):
        """After the start, before the next round."""

        def on_history(self, rounds: object) -> None:
            observer.on_history(read_rounds(out))
            status.on_history(read_rounds(out))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, out, observer=Both("x", Display()))
    assert observer.best == best and observer.f1 is not None
    assert status.status.f1 == observer.f1


def test_the_log_of_a_hospital_tells_the_progress_of_features(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    clock = iter([0.0, 1.0, 6.0, 7.0, 13.0])
    monkeypatch.setattr("fedgsca.support.console.time.monotonic", lambda: next(clock))
    with listen(ActivityLog()), activity("computing features", 100) as advance:
        for _ in range(4):
            advance(25)
    assert [record.getMessage() for record in caplog.records] == [
        "computing features: 50 of 100 after 6 s",
        "computing features: 100 of 100 after 13 s",
    ]
