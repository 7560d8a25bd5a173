"""Clipping, noise, one answer a round, and the budget: against hand numbers and closed forms."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import outcome, toy_config

from fedgsca.config import PrivacyConfig, load_config
from fedgsca.engine.local import Reply, open_runner
from fedgsca.engine.rounds import run
from fedgsca.errors import ConfigError, MissingExtraError, RunFolderError, UpdateError
from fedgsca.experiment.run_folder import read_lines
from fedgsca.methods.base import load_methods
from fedgsca.privacy.accountant import epsilon, noise_for
from fedgsca.privacy.mechanism import bounded_change, bounded_extras, multiplier, normals, protect
from fedgsca.privacy.reply_cache import once
from fedgsca.report.html_page import write_report
from fedgsca.selector import NO_SELECTOR, Selector
from fedgsca.site import weights_of
from fedgsca.wire import Payload, Update, check_update

RECEIVED = {
    "w": np.zeros((2, 2), np.float32),
    "bn.running_var": np.ones(1, np.float32),
    "n": np.array(3),
}
SENT = {
    "w": np.full((2, 2), 2.0, np.float32),
    "bn.running_var": np.array([4.0], np.float32),
    "n": np.array(9),
}  # norm 5
UPLOADS = load_methods()["fedgsca"].uploads
still = normals(b"")


def test_the_change_is_clipped_as_one_vector_and_counters_stay() -> None:
    made = bounded_change(RECEIVED, SENT, 1.0, 0.0, still)
    assert (
        np.allclose(made["w"], 0.4) and np.allclose(made["bn.running_var"], 1.6) and made["n"] == 3
    )
    assert all(made[name].dtype == SENT[name].dtype for name in SENT)
    whole = bounded_change(RECEIVED, SENT, 5.1, 0.0, still)
    assert np.array_equal(whole["w"], SENT["w"]), "a small change is left alone"
    bad = bounded_change(
        RECEIVED, {**SENT, "w": np.full((2, 2), np.nan, np.float32)}, 1.0, 0.0, still
    )
    assert np.array_equal(bad["w"], RECEIVED["w"]), "a diverged site says nothing"


def test_the_noise_has_the_promised_spread_and_a_variance_stays_positive() -> None:
    draw = normals(b"key")("x", (100_000,))
    assert (
        abs(draw.mean()) < 0.02 and abs(draw.std() - 1) < 0.01 and abs((draw**4).mean() - 3) < 0.15
    )
    zero = {"w": np.zeros(50_000, np.float32), "bn.running_var": np.ones(1000, np.float32)}
    made = bounded_change(zero, zero, 0.5, 3.0, normals(b"key"))
    assert abs(made["w"].std() - 1.5) < 0.03 and made["bn.running_var"].min() > 0
    again, other = (
        bounded_change(zero, zero, 0.5, 3.0, normals(b"key")),
        bounded_change(zero, zero, 0.5, 3.0, normals(b"kez")),
    )
    assert np.array_equal(made["w"], again["w"]) and not np.array_equal(made["w"], other["w"])


@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("numbers", [NO_SELECTOR, np.array([-50.0, 90.0, 0.1, 77.0, 0.2, 0.8])])
def test_the_six_numbers_stay_a_selector_within_bounds(noise: float, numbers: np.ndarray) -> None:
    made = bounded_extras(
        {"selector": numbers, "delta": np.array(0.4)}, UPLOADS, noise, normals(b"k")
    )
    assert list(made) == ["selector"], "diagnostics do not leave"
    found = Selector.from_array(made["selector"])
    assert found is not None and 0 <= found.mean[0] <= found.mean[1] <= 8 and max(found.var) <= 4


def test_an_update_names_the_true_number_of_images() -> None:
    made = protect(
        Update("a", 0, SENT), Payload(0, RECEIVED), {}, PrivacyConfig(clip=1.0), still, 40
    )
    assert (made.site, made.num_samples) == ("a", 40)


def test_a_number_that_a_site_does_not_have_is_sent_all_the_same() -> None:
    made = bounded_extras({}, UPLOADS, 0.0, still)
    assert np.array_equal(
        made["selector"], bounded_extras({"selector": NO_SELECTOR}, UPLOADS, 0.0, still)["selector"]
    )
    draws = [bounded_extras({}, UPLOADS, 1.0, normals(key))["selector"] for key in (b"a", b"b")]
    assert not np.array_equal(*draws)


def test_a_crafted_weight_cannot_round_the_change_up() -> None:
    """A weight whose neighbour is 256 away: a change of 200 that met it before the noise would count as 256."""
    huge = np.full(1, 1.5 * 2.0**60)
    made = bounded_change(
        {"w": huge}, {"w": huge + 256.0}, 200.0, 0.5, lambda _, shape: -np.ones(shape)
    )
    assert np.array_equal(made["w"], huge), "200 - 100 rounds to 0, 256 - 100 would not"


def test_a_site_that_fails_in_the_method_sends_noise_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config("fedgsca", frozen=True, train__rounds=1, privacy__clip=1.0)
    runner = open_runner(config, tmp_path)
    payload = runner.method.broadcast(runner.method.start(weights_of(runner.model), seed=0), 0)

    def diverged(*_: Any) -> Any:
        raise UpdateError(
            "todo.test-privacy-1", "more than 1 % of its losses are not finite", fix=""
        )

    monkeypatch.setattr(runner.method, "local_update", diverged)
    reply = runner.run_round("site-1", payload)
    assert (
        reply.error is None
        and reply.update is not None
        and reply.update.num_samples == runner.site("site-1").num_samples
    )
    assert all(
        np.array_equal(reply.update.weights[name], payload.weights[name])
        for name in payload.weights
    )
    check_update(reply.update, payload.weights, runner.method.uploads, runner.experiment.dims)


# ---- one answer a round ----


def test_a_round_is_answered_once_and_repeated_from_the_disk(tmp_path: Path) -> None:
    asked = list[int]()

    def ask(round: int, value: float = 0.0) -> np.ndarray:
        def run_round() -> Reply:
            asked.append(round)
            return Reply("a", Update("a", 3, {"w": np.full(2, len(asked))}, {"s": np.array(1.5)}))

        update = once(tmp_path / "a", Payload(round, {"w": np.full(2, value)}), 4, run_round).update
        assert update is not None and (
            update.site,
            update.num_samples,
            float(update.extras["s"]),
        ) == ("a", 3, 1.5)
        return update.weights["w"]

    first, second = ask(0), ask(1)
    assert np.array_equal(ask(1), second) and np.array_equal(ask(0), first) and asked == [0, 1]
    with pytest.raises(UpdateError, match="another model"):
        ask(1, 9.0)
    ask(3)
    for round in (2, 0, 4, -1):  # 2 was skipped, 0 is no longer kept, the others do not exist
        with pytest.raises(UpdateError, match="in their order"):
            ask(round)
    assert asked == [0, 1, 3] and len(list((tmp_path / "a").glob("round-*"))) == 2
    (tmp_path / "a" / "round-000003.safetensors").write_bytes(b"damaged")
    with pytest.raises(RunFolderError, match="damaged"):
        ask(3)


# ---- the budget ----


def exact(mu: float, delta: float) -> float:
    """Gaussian mechanism with sensitivity / std = mu: the smallest epsilon, by bisection of its closed form."""

    def tail(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    low, high = 0.0, 200.0
    for _ in range(100):
        middle = (low + high) / 2
        above = tail(mu / 2 - middle / mu) - math.exp(middle) * tail(-mu / 2 - middle / mu) > delta
        low, high = (middle, high) if above else (low, middle)
    return high


@pytest.mark.parametrize(("noise", "rounds"), [(2.0, 1), (4.0, 10), (10.0, 20), (80.0, 40)])
def test_the_accountant_bounds_the_closed_form_of_composed_gaussians(
    noise: float, rounds: int
) -> None:
    pytest.importorskip("opacus")
    truth = exact(math.sqrt(rounds) * 2 / noise, 1e-5)
    assert truth <= epsilon(noise, {}, rounds, 1e-5) <= 1.15 * truth
    sixfold = exact(math.sqrt(rounds) / multiplier(noise, UPLOADS), 1e-5)
    assert truth < sixfold <= epsilon(noise, UPLOADS, rounds, 1e-5) <= 1.15 * sixfold


@pytest.mark.parametrize("target", [0.5, 8.0, 1000.0])
def test_the_noise_for_an_epsilon_keeps_to_it_and_is_not_wasted(target: float) -> None:
    pytest.importorskip("opacus")
    noise = noise_for(target, UPLOADS, 30, 1e-5)
    assert 0.97 * target < epsilon(noise, UPLOADS, 30, 1e-5) <= target


def test_a_missing_accountant_is_told_before_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with pytest.raises(MissingExtraError, match="accountant"):
        run(
            toy_config("fedavg", frozen=True, privacy__clip=1.0, privacy__noise=1.0),
            tmp_path / "run",
        )
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


# ---- a run ----


def test_a_run_under_privacy_is_reproducible_and_tells_its_budget(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    sets: dict[str, Any] = {"train__rounds": 2, "privacy__clip": 1.0, "privacy__noise": 4.0}
    config = toy_config("fedgsca", frozen=True, **sets)
    result = run(config, tmp_path / "a")
    lines = read_lines(tmp_path / "a" / "metrics.jsonl")
    assert (
        result["privacy"] == lines[1]["privacy"]
        and lines[0]["privacy"]["epsilon"] < lines[1]["privacy"]["epsilon"]
    )
    assert not any(line["refused"] for line in lines) and "delta" not in lines[0]["sites"]["site-1"]
    run(config, tmp_path / "b")
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")
    text = write_report(tmp_path / "a").read_text("utf-8")
    assert (
        f"ε = {result['privacy']['epsilon']:.3g}</strong> at δ = 1e-05" in text
        and "in a simulation it is not" in text
    )


def test_what_cannot_be_protected_is_refused() -> None:
    for method in ("fedcorr", "fednoro", "fedgp", "fedfixer"):
        with pytest.raises(ConfigError, match="cannot be protected"):
            toy_config(method, privacy__clip=1.0)
    assert "privacy" not in toy_config("fedavg").to_tree(), (
        "off: the experiment keeps its fingerprint"
    )
    with pytest.raises(ConfigError, match="exact counts"):
        load_config(data__source="sites", privacy__clip=1.0, privacy__noise=1.0)
    assert load_config(
        data__source="sites", privacy__clip=1.0, privacy__noise=1.0, federation__test="t.npz"
    ).privacy
