"""Robust rules with every method and against a lying site, and going back to an earlier round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.poisons import POISONS, Liar
from fedgsca.cli import execute
from fedgsca.config import Config
from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.federation import checkpoint
from fedgsca.federation.base import Reply
from fedgsca.federation.filters.rules import load_rules
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_result, read_rounds, rewind
from fedgsca.methods.base import load_methods
from fedgsca.wire import Update
from tests.contract.test_filters import LIAR, study_config
from tests.toys import FaultyEngine, copy_run, finished_run, outcome, toy_config

POINTS = 3.0  # of macro F1


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


def run_with_liar(config: Config, folder: Path, poison: str) -> float:
    result = run(config, folder, engine=LyingEngine(config, folder, poison))
    assert result is not None
    return result.f1


@pytest.fixture(scope="module")
def honest() -> float:
    result = read_result(finished_run(study_config()))
    assert result is not None
    return result.f1


@pytest.mark.parametrize("poison", ["change x -10", "inner product", "the same push"])
def test_mixing_stops_lies_that_ruin_or_spoil_the_mean(
    poison: str, honest: float, tmp_path: Path
) -> None:
    config = study_config(aggregation__rule="mixing")
    assert run_with_liar(config, tmp_path / "run", poison) >= honest - POINTS


def test_the_plain_mean_stops_no_lie_of_the_right_form(honest: float, tmp_path: Path) -> None:
    assert run_with_liar(study_config(), tmp_path / "run", "change x -10") < honest - 20
    assert not any(record.refusals for record in read_rounds(tmp_path / "run"))


def test_a_rule_protects_the_evidence_heads(tmp_path: Path) -> None:
    """What a liar adds to the heads moves their mean far, and the rule's result not."""
    shifts = {}
    for rule in ("mean", "mixing"):
        config = study_config(aggregation__rule=rule, audit__enabled=True)
        heads = []
        for poison in (None, "extras x -5"):
            folder = tmp_path / f"{poison} {rule}"
            engine = None if poison is None else LyingEngine(config, folder, poison)
            run(config, folder, engine=engine, stop_after=3)
            state = checkpoint.latest(folder / "checkpoint", config.fingerprint())
            assert state is not None
            heads.append(state.extras["evidence.weight"])
        shifts[rule] = np.linalg.norm(heads[1] - heads[0]) / np.linalg.norm(heads[0])
    assert shifts["mixing"] < 0.5 < shifts["mean"]


METHODS = list(load_methods())
RULES = sorted(set(load_rules()) - {"mean"})  # the mean is the rule of all other tests


def rule_config(rule: str, method: str) -> Config:
    return toy_config(method, frozen=True, train__rounds=4, aggregation__rule=rule)


@pytest.mark.parametrize("method", METHODS)
def test_a_rule_refuses_no_honest_site(method: str) -> None:
    """Each method with one rule, and each rule with several methods."""
    rule = RULES[METHODS.index(method) % len(RULES)]
    folder = finished_run(rule_config(rule, method))
    assert not any(record.refusals for record in read_rounds(folder))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("method", METHODS[::5])
def test_a_stopped_run_with_a_rule_ends_in_the_same_bytes(
    rule: str, method: str, tmp_path: Path
) -> None:
    config = rule_config(rule, method)
    for rounds in (1, 3, 4):
        run(config, tmp_path / "run", stop_after=rounds)
    assert outcome(tmp_path / "run") == outcome(finished_run(config))


def test_a_rule_handles_the_counters_of_batchnorm(tmp_path: Path) -> None:
    config = toy_config("fedavg", train__rounds=2, aggregation__rule="mixing")
    run(config, tmp_path / "run")
    state = checkpoint.latest(tmp_path / "run" / "checkpoint", config.fingerprint())
    assert state is not None
    counters = [value for value in state.weights.values() if value.dtype.kind == "i"]
    assert counters
    assert all(value > 0 for value in counters)


def test_an_unknown_rule_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean mixing"):
        toy_config("fedavg", aggregation__rule="mixnig")


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
