"""One site lies: the guard leaves it out, names it, and costs honest sites nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.poisons import CRUDE, POISONS, Liar
from fedgsca.cli import execute
from fedgsca.config import Config
from fedgsca.engine import checkpoint
from fedgsca.engine.base import Reply
from fedgsca.engine.rewind import rewind
from fedgsca.engine.rounds import run
from fedgsca.errors import ConfigError, RunFolderError, UpdateError
from fedgsca.experiment.records import RoundRecord
from fedgsca.experiment.run_folder import read_result, read_rounds, request_readmission
from fedgsca.methods.base import load_methods
from fedgsca.robust.base import load_rules
from fedgsca.wire import Payload, Update
from tests.toys import (
    FaultyEngine,
    RecordingObserver,
    copy_run,
    digest,
    finished_run,
    outcome,
    toy_config,
    toy_npz,
)

LIAR = "site-2"
# a share of all images that an honest site may have; a change that is scaled down, not refused
UNSEEN = {"images x 10", "change x 3.5"}
POINTS = 3.0  # of macro F1


def study_config(method: str = "fedavg", **sets: Any) -> Config:
    return toy_config(
        method, frozen=True, source=toy_npz(240, 300, 12), noise__spec="0", train__rounds=14, **sets
    )


class LyingEngine(FaultyEngine):
    """A toy engine in which one site lies in every round."""

    def __init__(self, config: Config, folder: Path, poison: str) -> None:
        super().__init__(config, folder, self.lie)
        self.poison = poison
        self.earlier: list[Update] = []
        self.others: list[Update] = []

    def lie(self, round_index: int, reply: Reply) -> Reply:
        assert reply.update is not None
        if reply.site != LIAR:
            if reply.site == "site-1":
                self.others = []
            self.others.append(reply.update)
            return reply
        payload = self.payloads[-1]
        first_weights = self.payloads[0].weights
        liar = Liar(payload, reply.update, list(self.earlier), list(self.others), first_weights)
        self.earlier.append(reply.update)
        return replace(reply, update=POISONS[self.poison](liar))


def run_with_liar(config: Config, folder: Path, poison: str) -> tuple[float, list[RoundRecord]]:
    result = run(config, folder, engine=LyingEngine(config, folder, poison))
    assert result is not None
    return result.f1, read_rounds(folder)


@pytest.fixture(scope="module")
def honest() -> float:
    result = read_result(finished_run(study_config()))
    assert result is not None
    return result.f1


# ---- lies ----


@pytest.mark.parametrize("poison", sorted(set(CRUDE) - UNSEEN))
def test_a_crude_lie_is_refused_and_does_no_harm(
    poison: str, honest: float, tmp_path: Path
) -> None:
    f1, records = run_with_liar(study_config(), tmp_path / "run", poison)
    refusals = [record.refusals for record in records if record.refusals]
    assert refusals
    assert all(set(sites) == {LIAR} for sites in refusals), "no honest site is blamed"
    assert f1 >= honest - POINTS


def test_a_change_that_is_always_a_little_too_large_is_scaled_down(
    honest: float, tmp_path: Path
) -> None:
    """Too small to be refused: after a few rounds it has the norm of the others."""
    f1, records = run_with_liar(study_config(), tmp_path / "run", "change x 3.5")
    assert not any(record.refusals for record in records)
    factors = []
    for record in records:
        for site, site_record in record.sites.items():
            factor = site_record.number("scaled_down")
            assert site == LIAR or factor is None, "no honest site is scaled down"
            if site == LIAR:
                factors.append(factor)
    assert factors[:4] == [None] * 4 and all(factors[4:6]), factors
    assert f1 >= honest - POINTS


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "geometric-median"])
@pytest.mark.parametrize(
    "poison",
    ["change x -1", "change x -2", "inner product", "x -5 in every second round", "the same push"],
)
def test_a_rule_stops_lies_of_ordinary_size(
    rule: str, poison: str, honest: float, tmp_path: Path
) -> None:
    f1, _ = run_with_liar(study_config(aggregation__rule=rule), tmp_path / "run", poison)
    assert f1 >= honest - POINTS


def test_without_the_guard_the_same_lie_ruins_the_model(honest: float, tmp_path: Path) -> None:
    config = study_config(aggregation__guard=False)
    f1, records = run_with_liar(config, tmp_path / "run", "change x -10")
    assert not any(record.refusals for record in records)
    assert f1 < honest - 20


@pytest.mark.parametrize(
    ("poison", "words"),
    [
        ("own update of round 1 again", "same as an update of round 1"),
        ("copy of another site", "same as the update of site-1"),
        ("10^9 images", "1,000,000,000 of"),
        ("10^9 images from round 3", "in its first round"),
        ("1e30 once", "1e+30"),
        ("3e38 once", "3e+38"),
        ("change x -10", "its change has the norm"),
    ],
)
def test_the_reason_is_given_in_words(poison: str, words: str, tmp_path: Path) -> None:
    config = study_config()
    observer = RecordingObserver()
    engine = LyingEngine(config, tmp_path / "run", poison)
    run(config, tmp_path / "run", engine=engine, observer=observer)
    reasons = [record.refusals.get(LIAR, "") for record in observer.rounds]
    assert any(words in reason for reason in reasons), reasons
    assert any(words in message and LIAR in message for message in observer.messages)


@pytest.mark.parametrize(
    ("poison", "code_words"),
    [
        ("extras x -5", "of the extras that are averaged"),
        ("statistics x 100", "adds up to"),
    ],
)
def test_honest_weights_do_not_hide_a_lie_beside_them(
    poison: str, code_words: str, tmp_path: Path
) -> None:
    """Poisoned evidence heads, and class masses of more images than the site has."""
    config = study_config("fedgsca")
    _, records = run_with_liar(config, tmp_path / "run", poison)
    refusals = [record.refusals for record in records if record.refusals]
    assert refusals
    assert all(set(sites) == {LIAR} for sites in refusals)
    assert any(code_words in sites[LIAR] for sites in refusals)


def test_a_rule_protects_the_evidence_heads(tmp_path: Path) -> None:
    """Without the guard: what a liar adds to the heads does not move their median far."""
    heads = {}
    for poison in ("no lie", "extras x -5"):
        for rule in ("mean", "median"):
            config = study_config(aggregation__guard=False, aggregation__rule=rule)
            folder = tmp_path / f"{poison} {rule}"
            engine = None if poison == "no lie" else LyingEngine(config, folder, poison)
            run(config, folder, engine=engine, stop_after=3)
            state = checkpoint.latest(folder / "checkpoint", config.fingerprint())
            assert state is not None
            heads[poison, rule] = state.extras["evidence.weight"]
    shifts = {}
    for rule in ("mean", "median"):
        difference = heads["extras x -5", rule] - heads["no lie", rule]
        shifts[rule] = np.linalg.norm(difference) / np.linalg.norm(heads["no lie", rule])
    assert shifts["median"] < 0.5 < shifts["mean"]


def test_a_site_that_does_not_clip_is_refused(tmp_path: Path) -> None:
    config = study_config(privacy__clip=0.05, privacy__noise=0.0)
    _, records = run_with_liar(config, tmp_path / "run", "change x -2")
    assert "does not clip" in records[0].refusals[LIAR], "also in the first round"
    assert all(set(record.refusals) == {LIAR} for record in records)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_clipped_and_noised_updates_of_honest_sites_pass(noise: float, tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    config = study_config(privacy__clip=0.05, privacy__noise=noise)
    run(config, tmp_path / "run")
    assert not any(record.refusals for record in read_rounds(tmp_path / "run"))


# ---- honest sites ----


@pytest.mark.parametrize("method", list(load_methods()))
def test_with_honest_sites_the_guard_changes_no_byte(method: str, tmp_path: Path) -> None:
    config = toy_config(method, frozen=True)
    assert config.aggregation.guard
    config_without = toy_config(method, frozen=True, aggregation__guard=False)
    run(config_without, tmp_path / "off")
    runs = ((config, finished_run(config)), (config_without, tmp_path / "off"))
    assert digest(runs[0][1] / "metrics.jsonl") == digest(runs[1][1] / "metrics.jsonl")
    models = []
    for run_config, folder in runs:
        state = checkpoint.latest(folder / "checkpoint", run_config.fingerprint())
        assert state is not None
        models.append(state.weights)
    assert all(np.array_equal(models[0][key], models[1][key]) for key in models[0])


@pytest.mark.parametrize("method", ["fedavg", "fednoro", "fedcorr", "fedfixer"])
def test_small_sites_that_are_asked_now_and_then_are_not_blamed(
    method: str, tmp_path: Path
) -> None:
    """Ten sites of 10 to 60 images; a few steps of a small site overshoot."""
    config = toy_config(
        method,
        frozen=True,
        source=toy_npz(240, 30, 12),
        seed=1,
        data__sites=10,
        data__partition="dirichlet",
        data__alpha=0.5,
        noise__spec="S20",
        federation__participation=0.4,
        train__rounds=12,
        train__lr=0.1,
    )
    run(config, tmp_path / "run")
    assert not any(record.refusals for record in read_rounds(tmp_path / "run"))


def test_a_learning_rate_that_overshoots_is_no_lie(tmp_path: Path) -> None:
    config = toy_config(
        "fedgsca",
        frozen=True,
        source=toy_npz(240, 30, 12),
        seed=1,
        train__rounds=20,
        train__lr=0.5,
    )
    run(config, tmp_path / "run")
    assert not any(record.refusals for record in read_rounds(tmp_path / "run"))


@pytest.mark.parametrize("rule", sorted(load_rules()))
@pytest.mark.parametrize("method", list(load_methods()))
def test_every_rule_works_with_every_method(rule: str, method: str, tmp_path: Path) -> None:
    config = toy_config(method, frozen=True, train__rounds=4, aggregation__rule=rule)
    run(config, tmp_path / "a")
    for rounds in (1, 3, 4):
        run(config, tmp_path / "b", stop_after=rounds)
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")
    assert not any(record.refusals for record in read_rounds(tmp_path / "a"))


def test_a_rule_handles_the_counters_of_batchnorm(tmp_path: Path) -> None:
    config = toy_config("fedavg", train__rounds=2, aggregation__rule="median")
    run(config, tmp_path / "run")
    state = checkpoint.latest(tmp_path / "run" / "checkpoint", config.fingerprint())
    assert state is not None
    counters = [value for value in state.weights.values() if value.dtype.kind == "i"]
    assert counters
    assert all(value > 0 for value in counters)


def test_an_unknown_rule_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean median"):
        toy_config("fedavg", aggregation__rule="medain")


# ---- repeated offenders ----


def test_three_strikes_put_a_site_aside_until_it_is_readmitted(tmp_path: Path) -> None:
    config = study_config()
    folder = tmp_path / "run"

    def stop_lying_after_round_four(round_index: int, reply: Reply) -> Reply:
        if reply.site != LIAR or round_index >= 4 or reply.update is None:
            return reply
        return replace(reply, update=POISONS["weights x 100"](make_liar(reply.update)))

    def make_liar(update: Update) -> Liar:
        return Liar(Payload(0, update.weights), update)

    observer = RecordingObserver()
    engine = FaultyEngine(config, folder, stop_lying_after_round_four)
    run(config, folder, engine=engine, observer=observer, stop_after=5)
    reasons = [record.refusals.get(LIAR, "") for record in observer.rounds]
    assert all("beyond" in reason or "norm" in reason for reason in reasons[:3])
    assert all("put aside" in reason for reason in reasons[3:5]), "honest again, but nobody asked"
    (message,) = [text for text in observer.messages if "put aside from round 4" in text]
    assert f"`fedgsca readmit RUN {LIAR}`" in message
    with pytest.raises(RunFolderError, match="no site 'site-9'"):
        request_readmission(folder, ["site-9"])
    request_readmission(folder, [LIAR])
    run(config, folder, engine=engine, observer=observer)
    assert not any(record.refusals for record in observer.rounds[5:])
    assert not list((folder / "readmit").iterdir())


def test_a_run_with_a_liar_resumes_in_the_same_bytes(tmp_path: Path) -> None:
    config = study_config()
    run_with_liar(config, tmp_path / "a", "change x -10")
    for rounds in range(1, config.train.rounds + 1):
        engine = LyingEngine(config, tmp_path / "b", "change x -10")
        run(config, tmp_path / "b", engine=engine, stop_after=rounds)
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")
    names = [path.name for path in sorted((tmp_path / "a" / "checkpoint").iterdir())]
    for name in names:
        paths = [tmp_path / folder / "checkpoint" / name for folder in ("a", "b")]
        assert digest(paths[0]) == digest(paths[1]), "the guard's memory is the same"


def test_a_replay_is_recognised_after_a_restart(tmp_path: Path) -> None:
    config = study_config()
    engine = LyingEngine(config, tmp_path / "run", "own update of round 1 again")
    run(config, tmp_path / "run", engine=engine, stop_after=1)
    run(config, tmp_path / "run", engine=engine, stop_after=2)
    assert "round 1" in read_rounds(tmp_path / "run")[1].refusals[LIAR]


def test_a_declared_number_of_images_is_checked(tmp_path: Path) -> None:
    """Of a deployment: the engine knows what a site said when it connected."""
    config = study_config()

    def declare(round_index: int, reply: Reply) -> Reply:
        assert reply.update is not None
        size = reply.update.num_samples
        return replace(reply, declared_samples=size - 1 if reply.site == LIAR else size)

    engine = FaultyEngine(config, tmp_path / "run", declare)
    run(config, tmp_path / "run", engine=engine, stop_after=2)
    for record in read_rounds(tmp_path / "run"):
        assert list(record.refusals) == [LIAR] and "when it connected" in record.refusals[LIAR]


class TwiceEngine(FaultyEngine):
    """An engine that delivers the update of one site twice, and one that nobody asked for."""

    def exchange(self, payload: Payload, sites: Sequence[str] | None = None) -> Iterator[Reply]:
        for reply in super().exchange(payload, sites):
            yield reply
            if reply.site == LIAR and reply.update is not None:
                yield reply
                stranger = replace(reply.update, site="site-9")
                yield Reply("site-9", stranger)


@pytest.mark.parametrize("rule", ["mean", "median"])
def test_a_second_answer_does_not_count(rule: str, tmp_path: Path) -> None:
    config = study_config(aggregation__rule=rule)
    observer = RecordingObserver()
    engine = TwiceEngine(config, tmp_path / "a")
    run(config, tmp_path / "a", engine=engine, observer=observer, stop_after=2)
    run(config, tmp_path / "b", stop_after=2)
    models = []
    for name in ("a", "b"):
        state = checkpoint.latest(tmp_path / name / "checkpoint", config.fingerprint())
        assert state is not None
        models.append(state.weights)
    assert all(np.array_equal(models[0][key], models[1][key]) for key in models[0])
    for record in observer.rounds:
        assert "answered twice" in record.refusals[LIAR]
        assert "not asked" in record.refusals["site-9"]


# ---- a model that is not usable ----


def test_a_bad_mean_never_becomes_a_checkpoint(tmp_path: Path) -> None:
    config = study_config(aggregation__guard=False)
    engine = LyingEngine(config, tmp_path / "run", "3e38 once")
    with pytest.raises(UpdateError) as error:
        run(config, tmp_path / "run", engine=engine)
    assert error.value.code == "round.invalid-aggregate"
    assert LIAR in error.value.message
    state = checkpoint.latest(tmp_path / "run" / "checkpoint", config.fingerprint())
    assert state is not None
    assert state.round == 2
    run(config, tmp_path / "run")


@pytest.mark.parametrize("method", ["fedcorr", "fedgsca", "fedfixer"])
@pytest.mark.parametrize("first_round", [1, 4, 6])
def test_resume_from_an_earlier_round_gives_the_same_bytes(
    method: str, first_round: int, tmp_path: Path
) -> None:
    """These methods keep memory at the sites."""
    config = toy_config(method, frozen=True)
    expected = outcome(copy_run(config, tmp_path / "run"))
    rewind(tmp_path / "run", first_round)
    assert not (tmp_path / "run" / "result.json").exists()
    assert len(read_rounds(tmp_path / "run")) == first_round - 1
    run(config, tmp_path / "run")
    assert outcome(tmp_path / "run") == expected


def test_the_command_goes_back_to_a_round(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = copy_run(toy_config("fedavg", frozen=True), tmp_path / "run")
    expected = outcome(folder)
    for number in ("0", "-3", "99", "9" * 30, "2"):
        assert execute(["resume", str(folder), "--from", number]) not in (0, 70)
        assert "Fix: " in capfd.readouterr().err
        assert outcome(folder) == expected, "nothing was deleted"
    assert execute(["resume", str(folder), "--from", "5", "--quiet"]) == 0
    assert outcome(folder) == expected


def test_a_round_whose_checkpoint_is_gone_is_an_error(tmp_path: Path) -> None:
    copy_run(toy_config("fedavg", frozen=True), tmp_path / "run")
    with pytest.raises(RunFolderError) as error:
        rewind(tmp_path / "run", 2)
    assert error.value.code == "run.no-such-checkpoint"
    assert "1, 4, 5, 6, 7" in error.value.fix
    assert (tmp_path / "run" / "result.json").exists(), "nothing was deleted"


def test_images_that_are_held_out_are_no_false_count(tmp_path: Path) -> None:
    """The evidence is about all images, `num_samples` about those that are trained on."""
    config = study_config("fedgsca", evidence__holdout=0.5)
    run(config, tmp_path / "run")
    assert not any(record.refusals for record in read_rounds(tmp_path / "run"))
