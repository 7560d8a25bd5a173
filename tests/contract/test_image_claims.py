"""False numbers of images: what was agreed on, and the alarm when one site opposes all others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedgsca.engine.guard_memory import EXTRAS, MODEL, GuardMemory
from fedgsca.engine.opposition_alarm import OppositionAlarm
from fedgsca.engine.update_facts import PartFacts, UpdateFacts
from fedgsca.robust.motion import SKETCH_SIZE, SiteMotion
from fedgsca.robust.opposition import Balance, Streak, extend_streaks, weigh_sites

from fedgsca.cli import execute
from fedgsca.config import Config
from fedgsca.engine.base import Reply
from fedgsca.engine.rewind import rewind
from fedgsca.engine.rounds import run
from fedgsca.errors import ConfigError
from fedgsca.experiment.run_folder import read_result, read_rounds, request_readmission
from tests.contract.test_robustness import LIAR, POINTS, LyingEngine, study_config
from tests.toys import (
    FaultyEngine,
    RecordingObserver,
    digest,
    finished_run,
    outcome,
    toy_config,
    toy_npz,
)

LIE = "one wrong model and images x 3"


def lie_about_images(factor: int) -> Any:
    def lie(round_index: int, reply: Reply) -> Reply:
        if reply.site != LIAR or reply.update is None:
            return reply
        size = factor * reply.update.num_samples
        return replace(reply, update=replace(reply.update, num_samples=size))

    return lie


def run_with_alarm(config: Config, folder: Path) -> tuple[float, RecordingObserver]:
    observer = RecordingObserver()
    result = run(config, folder, engine=LyingEngine(config, folder, LIE), observer=observer)
    assert result is not None
    return result.f1, observer


# ---- the agreed number ----


@pytest.mark.parametrize("max_images", [100, {LIAR: 100}])
def test_more_images_than_agreed_are_refused_in_every_round(
    max_images: object, tmp_path: Path
) -> None:
    config = study_config(aggregation__max_images=max_images)
    observer = RecordingObserver()
    engine = FaultyEngine(config, tmp_path / "run", lie_about_images(2))
    run(config, tmp_path / "run", engine=engine, observer=observer, stop_after=5)
    reasons = [record.refusals[LIAR] for record in observer.rounds]
    assert all(set(record.refusals) == {LIAR} for record in observer.rounds)
    words = "it claims 120 images, but the consortium agreed on 100 at most"
    assert reasons[:3] == [words] * 3
    assert all("put aside" in reason for reason in reasons[3:]), "it is an offence"


def test_as_many_images_as_agreed_change_no_byte(tmp_path: Path) -> None:
    run(study_config(aggregation__max_images=60), tmp_path / "a", stop_after=3)
    run(study_config(), tmp_path / "b", stop_after=3)
    paths = [tmp_path / name / "metrics.jsonl" for name in "ab"]
    assert digest(paths[0]) == digest(paths[1])


@pytest.mark.parametrize("max_images", [0, -3, 2.5, "many", {LIAR: 0}, {LIAR: "x"}, True])
def test_an_agreement_is_a_positive_number(max_images: object) -> None:
    with pytest.raises(ConfigError, match=r"aggregation\.max_images"):
        study_config(aggregation__max_images=max_images)


def test_an_agreement_with_an_unknown_site_is_an_error(tmp_path: Path) -> None:
    config = study_config(aggregation__max_images={"site-22": 100})
    with pytest.raises(ConfigError) as error:
        run(config, tmp_path / "run")
    assert error.value.code == "config.unknown-site"
    assert "site-22" in error.value.message and "did you mean 'site-2'" in error.value.fix


# ---- one site against all others ----


def test_a_site_that_outweighs_a_united_rest_is_reported_and_limited(tmp_path: Path) -> None:
    honest = read_result(finished_run(study_config()))
    f1, observer = run_with_alarm(study_config(), tmp_path / "run")
    assert honest is not None and f1 >= honest.f1 - POINTS
    reports = [record for record in observer.rounds if record.opposition]
    assert len(reports) == 1, "not again for ten rounds"
    assert list(reports[0].opposition or {}) == [LIAR]
    assert reports[0].round < 6
    text = (reports[0].opposition or {})[LIAR]
    for words in ("since round", "180 images", "--from", "aggregation.rule=multi-krum"):
        assert words in text
    assert any("ALARM" in message and LIAR in message for message in observer.messages)
    factors = []
    for record in observer.rounds[reports[0].round + 1 :]:
        if LIAR in record.sites:
            factors.append(record.sites[LIAR].number("scaled_down"))
    assert factors and all(factor is not None and factor < 0.5 for factor in factors)
    for record in observer.rounds:
        for site, values in record.sites.items():
            assert site == LIAR or values.number("scaled_down") is None


def test_with_report_the_model_is_as_without_the_alarm(tmp_path: Path) -> None:
    f1, observer = run_with_alarm(study_config(aggregation__opposed_sites="report"), tmp_path / "a")
    assert f1 < 60, "this is what the limit prevents"
    texts = [record.opposition for record in observer.rounds if record.opposition]
    assert texts and "at most as much" not in texts[0][LIAR]


def test_an_alarm_survives_a_restart(tmp_path: Path) -> None:
    config = study_config()
    run_with_alarm(config, tmp_path / "a")
    engine = LyingEngine(config, tmp_path / "b", LIE)
    for rounds in range(1, config.train.rounds + 1):
        run(config, tmp_path / "b", engine=engine, stop_after=rounds)
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")
    names = [path.name for path in sorted((tmp_path / "a" / "checkpoint").iterdir())]
    for name in names:
        paths = [tmp_path / folder / "checkpoint" / name for folder in "ab"]
        assert digest(paths[0]) == digest(paths[1]), "the guard's memory is the same"


def test_the_limit_ends_when_the_site_is_readmitted(tmp_path: Path) -> None:
    config, folder = study_config(), tmp_path / "run"
    engine = LyingEngine(config, folder, LIE)
    run(config, folder, engine=engine, stop_after=7)
    request_readmission(folder, [LIAR])
    run(config, folder, engine=engine, stop_after=8)
    factors = [record.sites[LIAR].number("scaled_down") for record in read_rounds(folder)]
    assert factors[6] is not None and factors[7] is None


def test_report_and_terminal_repeat_the_alarm(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    run_with_alarm(study_config(), folder)
    assert execute(["resume", str(folder)]) == 0
    assert "ALARM" in capfd.readouterr().out
    assert execute(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert "One site against all others" in page
    assert "site-2 leads the model against all others" in page
    assert "aggregation.rule=multi-krum" in page


@pytest.mark.parametrize("division", ["stratified", "dirichlet"])
def test_honest_sites_are_not_reported(division: str, tmp_path: Path) -> None:
    for name in ("on", "off"):
        config = toy_config(
            "fedavg",
            frozen=True,
            source=toy_npz(240, 300, 12),
            train__rounds=14,
            data__partition=division,
            data__alpha=0.5,
            aggregation__guard=name == "on",
        )
        run(config, tmp_path / name)
    assert not any(record.opposition for record in read_rounds(tmp_path / "on"))
    assert digest(tmp_path / "on" / "metrics.jsonl") == digest(tmp_path / "off" / "metrics.jsonl")


def test_a_repeated_alarm_promises_nothing_that_is_over() -> None:
    """Its checkpoint is gone by then, and the limit is in force since the first alarm."""
    memory = GuardMemory(("site-1", "site-2", "site-3"))
    alarm = OppositionAlarm(study_config().aggregation, memory)
    alarm.balance = Balance((LIAR,), 0.9, 0.9, 2.0)
    streak = Streak(first_round=2, count=2)
    first_text = alarm._describe(LIAR, 180, streak, round_index=3)
    assert "changes count 2.0 times" in first_text
    assert "From now on" in first_text and "--from 3" in first_text
    memory.alarms[LIAR] = 3
    later_text = alarm._describe(LIAR, 180, Streak(first_round=2, count=12), round_index=13)
    assert "changes would count 2.0 times" in later_text
    assert "From now on" not in later_text and "--from" not in later_text
    assert "aggregation.rule=multi-krum" in later_text


@pytest.mark.parametrize("part", [MODEL, EXTRAS])
def test_evidence_heads_are_watched_like_the_model(part: str) -> None:
    """A stranger led the heads away and sent true weights: nobody noticed."""
    names = ("site-1", "site-2", "site-3", "site-4")
    memory = GuardMemory(names)
    alarm = OppositionAlarm(study_config().aggregation, memory)
    directions = np.zeros((4, SKETCH_SIZE))
    directions[:, 0] = [1.0, -3.0, 1.0, 1.0]
    zeros = np.zeros(SKETCH_SIZE)
    for round_index in range(4):
        facts = []
        for name, direction in zip(names, directions, strict=True):
            row = PartFacts(float(abs(direction[0])), change=direction, model=zeros)
            facts.append(UpdateFacts(name, 300, {part: row}, b""))
            motions = memory.parts[part].motions
            motions[name] = motions.get(name, SiteMotion.zero()).add(direction, zeros)
        alarm.remember(round_index, facts)
        if alarm.messages:
            break
    assert list(alarm.messages) == [LIAR]
    assert ("evidence heads" in alarm.messages[LIAR]) == (part == EXTRAS)


def test_the_round_of_a_first_alarm_can_be_repeated(tmp_path: Path) -> None:
    config, folder = study_config(), tmp_path / "run"
    engine = LyingEngine(config, folder, LIE)
    rounds = 0
    while not any(record.opposition for record in read_rounds(folder)):
        rounds += 1
        run(config, folder, engine=engine, stop_after=rounds)
    text = (read_rounds(folder)[-1].opposition or {})[LIAR]
    start = int(text.split("--from ")[1].split("`")[0])
    rewind(folder, start)
    assert len(read_rounds(folder)) == start - 1


# ---- the numbers behind it ----


def changes_of(*angles: float) -> dict[str, np.ndarray]:
    """Unit vectors in a plane, in degrees."""
    radians = np.radians(angles)
    rows = np.stack([np.cos(radians), np.sin(radians)], axis=1)
    return {f"site-{position}": row for position, row in enumerate(rows, 1)}


def test_a_balance_by_hand() -> None:
    sizes = {"site-1": 100, "site-2": 100, "site-3": 100, "site-4": 600}
    balance = weigh_sites(changes_of(0, 30, -30, 180), sizes)
    assert balance.opponents == ("site-4",)
    # cosines of site-4 with the others: -1, -0.866 and -0.866
    assert balance.opposition == pytest.approx(0.8660, abs=1e-4)
    # of the others: 0.866, 0.866 and 0.5
    assert balance.unity == pytest.approx(0.8660, abs=1e-4)
    # 600 against 100 (1 + 2 cos 30)
    assert balance.weight == pytest.approx(6.0 / 2.7321, abs=1e-4)
    assert balance.is_alarming
    sizes["site-4"] = 300
    assert not weigh_sites(changes_of(0, 30, -30, 180), sizes).is_alarming, "it has no more weight"


def test_larger_steps_straight_against_the_others_need_no_weight() -> None:
    """An attack with the true number of images that the others just hold: the weight is 1.1."""
    changes = changes_of(0, 30, -30, 180)
    changes["site-4"] = 3.0 * changes["site-4"]
    sizes = dict.fromkeys(changes, 100)
    balance = weigh_sites(changes, sizes)
    assert balance.step == pytest.approx(3.0)
    assert balance.weight == pytest.approx(3.0 / 2.7321, abs=1e-4)
    assert balance.is_alarming
    changes["site-4"] = 0.6 * changes["site-4"]  # 1.8 times the others
    assert not weigh_sites(changes, sizes).is_alarming
    askew = changes_of(0, 30, -30, 115)
    askew["site-4"] = 3.0 * askew["site-4"]
    assert not weigh_sites(askew, sizes).is_alarming, "it does not oppose strongly"


@pytest.mark.parametrize(
    "angles",
    [
        (0, 120, 240),  # all oppose each other
        (0, 0, 180, 180),  # two halves: nobody knows which one is wrong
        (0, 180),
        (0, 90, 45, 60),
    ],
)
def test_without_a_united_rest_nobody_is_blamed(angles: tuple[float, ...]) -> None:
    changes = changes_of(*angles)
    sizes = dict.fromkeys(changes, 100) | {"site-1": 10_000}
    balance = weigh_sites(changes, sizes)
    assert not balance.is_alarming
    assert balance.opponents == ()


def test_a_streak_ends_when_the_site_agrees_again() -> None:
    alarm = Balance(("a",), 0.9, 0.9, 2.0)
    streaks = extend_streaks({}, alarm, ["a", "b", "c"], 3)
    streaks = extend_streaks(streaks, alarm, ["a", "b", "c"], 4)
    assert streaks == {"a": Streak(3, 2)}
    assert extend_streaks(streaks, Balance(), ["b", "c"], 5) == streaks, "it was not asked"
    assert extend_streaks(streaks, Balance(), ["a", "b", "c"], 5) == {}
