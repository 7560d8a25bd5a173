"""Clipping, noise, one answer per round, and the budget: against hand numbers and closed forms."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsca.config import PrivacyConfig, load_config
from fedgsca.errors import ConfigError, MissingExtraError, RunFolderError, UpdateError
from fedgsca.federation.local import open_runner
from fedgsca.federation.privacy import (
    answer_once,
    clamp_and_noise_extras,
    clip_and_noise_change,
    epsilon,
    keyed_normals,
    noise_for,
    noise_multiplier,
    protect,
)
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds
from fedgsca.lab.report.html_page import write_report
from fedgsca.methods.base import load_methods
from fedgsca.methods.site import weights_of
from fedgsca.selector import NO_SELECTOR, Selector
from fedgsca.wire import Payload, Update, check_update
from tests.toys import outcome, toy_config

RECEIVED_WEIGHTS = {
    "w": np.zeros((2, 2), np.float32),
    "bn.running_var": np.ones(1, np.float32),
    "n": np.array(3),
}
# the change has the norm 5
NEW_WEIGHTS = {
    "w": np.full((2, 2), 2.0, np.float32),
    "bn.running_var": np.array([4.0], np.float32),
    "n": np.array(9),
}
UPLOADS = load_methods()["fedgsca"].uploads
NORMALS = keyed_normals(b"")


def test_the_change_is_clipped_as_one_vector_and_counters_stay() -> None:
    weights = clip_and_noise_change(RECEIVED_WEIGHTS, NEW_WEIGHTS, 1.0, 0.0, NORMALS)
    assert np.allclose(weights["w"], 0.4)
    assert np.allclose(weights["bn.running_var"], 1.6)
    assert weights["n"] == 3
    assert all(weights[name].dtype == array.dtype for name, array in NEW_WEIGHTS.items())


def test_a_small_change_is_not_clipped() -> None:
    weights = clip_and_noise_change(RECEIVED_WEIGHTS, NEW_WEIGHTS, 5.1, 0.0, NORMALS)
    assert np.array_equal(weights["w"], NEW_WEIGHTS["w"])


def test_a_diverged_site_sends_no_change() -> None:
    diverged_weights = {**NEW_WEIGHTS, "w": np.full((2, 2), np.nan, np.float32)}
    weights = clip_and_noise_change(RECEIVED_WEIGHTS, diverged_weights, 1.0, 0.0, NORMALS)
    assert np.array_equal(weights["w"], RECEIVED_WEIGHTS["w"])


def test_the_numbers_are_standard_normal() -> None:
    draws = keyed_normals(b"key")("x", (100_000,))
    assert abs(draws.mean()) < 0.02
    assert abs(draws.std() - 1) < 0.01
    assert abs((draws**4).mean() - 3) < 0.15


def test_the_noise_has_the_stated_spread_and_a_variance_stays_positive() -> None:
    start = {"w": np.zeros(50_000, np.float32), "bn.running_var": np.ones(1000, np.float32)}
    weights = clip_and_noise_change(start, start, 0.5, 3.0, keyed_normals(b"key"))
    assert abs(weights["w"].std() - 1.5) < 0.03
    assert weights["bn.running_var"].min() > 0
    same_key = clip_and_noise_change(start, start, 0.5, 3.0, keyed_normals(b"key"))
    other_key = clip_and_noise_change(start, start, 0.5, 3.0, keyed_normals(b"kez"))
    assert np.array_equal(weights["w"], same_key["w"])
    assert not np.array_equal(weights["w"], other_key["w"])


@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("numbers", [NO_SELECTOR, np.array([-50.0, 90.0, 0.1, 77.0, 0.2, 0.8])])
def test_the_six_numbers_stay_a_selector_within_bounds(noise: float, numbers: np.ndarray) -> None:
    extras = {"selector": numbers, "delta": np.array(0.4)}
    noised_extras = clamp_and_noise_extras(extras, UPLOADS, noise, keyed_normals(b"k"))
    assert list(noised_extras) == ["selector"], "diagnostics do not leave"
    selector = Selector.from_array(noised_extras["selector"])
    assert selector is not None
    assert 0 <= selector.mean[0] <= selector.mean[1] <= 8
    assert max(selector.var) <= 4


def test_an_update_has_the_true_number_of_images() -> None:
    privacy = PrivacyConfig(clip=1.0)
    payload = Payload(0, RECEIVED_WEIGHTS)
    update = protect(Update("a", 0, NEW_WEIGHTS), payload, {}, privacy, NORMALS, 40)
    assert (update.site, update.num_samples) == ("a", 40)


def test_a_number_that_a_site_does_not_have_is_sent_all_the_same() -> None:
    without = clamp_and_noise_extras({}, UPLOADS, 0.0, NORMALS)
    empty = clamp_and_noise_extras({"selector": NO_SELECTOR}, UPLOADS, 0.0, NORMALS)
    assert np.array_equal(without["selector"], empty["selector"])
    first = clamp_and_noise_extras({}, UPLOADS, 1.0, keyed_normals(b"a"))
    second = clamp_and_noise_extras({}, UPLOADS, 1.0, keyed_normals(b"b"))
    assert not np.array_equal(first["selector"], second["selector"])


def test_a_crafted_weight_cannot_round_the_change_up() -> None:
    """The neighbour of this weight is 256 away: a change of 200 would be rounded to 256."""
    huge = np.full(1, 1.5 * 2.0**60)
    weights = clip_and_noise_change(
        {"w": huge}, {"w": huge + 256.0}, 200.0, 0.5, lambda _, shape: -np.ones(shape)
    )
    assert np.array_equal(weights["w"], huge), "200 - 100 rounds to 0, 256 - 100 would not"


def test_a_site_that_fails_in_the_method_sends_only_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config("fedgsca", frozen=True, train__rounds=1, privacy__clip=1.0)
    runner = open_runner(config, tmp_path)
    payload = runner.method.broadcast(runner.method.start(weights_of(runner.model), seed=0), 0)

    def diverge(*_: Any) -> Any:
        raise UpdateError("method.diverged", "more than 1 % of its losses are not finite", fix="")

    monkeypatch.setattr(runner.method, "local_update", diverge)
    reply = runner.run_round("site-1", payload)
    assert reply.error is None
    assert reply.update is not None
    assert reply.update.num_samples == runner.site("site-1").num_samples
    for name, array in payload.weights.items():
        assert np.array_equal(reply.update.weights[name], array)
    check_update(reply.update, payload.weights, runner.method.uploads, runner.experiment.dims)


# ---- one answer per round ----


class CountingSite:
    """A site with a reply cache that counts how often it trains."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder = folder
        self.rounds = rounds
        self.trained_rounds: list[int] = []

    def answer(self, round_index: int, value: float = 0.0) -> np.ndarray:
        def train() -> Update:
            self.trained_rounds.append(round_index)
            weights = {"w": np.full(2, len(self.trained_rounds))}
            return Update("a", 3, weights, {"s": np.array(1.5)})

        payload = Payload(round_index, {"w": np.full(2, value)})
        update = answer_once(self.folder, payload, self.rounds, train)
        assert update is not None
        assert (update.site, update.num_samples, float(update.extras["s"])) == ("a", 3, 1.5)
        return update.weights["w"]


def test_a_round_is_answered_once_and_repeated_from_the_disk(tmp_path: Path) -> None:
    site = CountingSite(tmp_path / "a", rounds=4)
    first = site.answer(0)
    second = site.answer(1)
    assert np.array_equal(site.answer(1), second)
    assert np.array_equal(site.answer(0), first)
    assert site.trained_rounds == [0, 1]
    with pytest.raises(UpdateError) as error:
        site.answer(1, value=9.0)
    assert error.value.code == "privacy.round-already-answered"
    site.answer(3)
    # 2 was skipped, 0 is not stored any more, the others do not exist
    for round_index in (2, 0, 4, -1):
        with pytest.raises(UpdateError) as error:
            site.answer(round_index)
        assert error.value.code == "privacy.round-out-of-order"
    assert site.trained_rounds == [0, 1, 3]
    assert len(list((tmp_path / "a").glob("round-*"))) == 2
    (tmp_path / "a" / "round-000003.safetensors").write_bytes(b"damaged")
    with pytest.raises(RunFolderError) as damage:
        site.answer(3)
    assert damage.value.code == "privacy.damaged-update"


def test_a_round_without_an_update_can_be_answered_later(tmp_path: Path) -> None:
    payload = Payload(0, {"w": np.zeros(2)})
    assert answer_once(tmp_path, payload, 4, lambda: None) is None
    update = Update("a", 3, {"w": np.ones(2)})
    assert answer_once(tmp_path, payload, 4, lambda: update) is update


# ---- the budget ----


def exact_epsilon(mu: float, delta: float) -> float:
    """Gaussian mechanism with sensitivity / std = mu: bisection of its closed form."""

    def normal_cdf(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    low, high = 0.0, 200.0
    for _ in range(100):
        middle = (low + high) / 2
        tail = math.exp(middle) * normal_cdf(-mu / 2 - middle / mu)
        if normal_cdf(mu / 2 - middle / mu) - tail > delta:
            low = middle
        else:
            high = middle
    return high


@pytest.mark.parametrize(("noise", "rounds"), [(2.0, 1), (4.0, 10), (10.0, 20), (80.0, 40)])
def test_the_accountant_bounds_the_closed_form_of_composed_gaussians(
    noise: float, rounds: int
) -> None:
    pytest.importorskip("opacus")
    weights_only = exact_epsilon(math.sqrt(rounds) * 2 / noise, 1e-5)
    assert weights_only <= epsilon(noise, {}, rounds, 1e-5) <= 1.15 * weights_only
    with_extras = exact_epsilon(math.sqrt(rounds) / noise_multiplier(noise, UPLOADS), 1e-5)
    assert weights_only < with_extras
    assert with_extras <= epsilon(noise, UPLOADS, rounds, 1e-5) <= 1.15 * with_extras


@pytest.mark.parametrize("target", [0.5, 8.0, 1000.0])
def test_the_noise_for_an_epsilon_stays_within_it_and_is_not_wasted(target: float) -> None:
    pytest.importorskip("opacus")
    noise = noise_for(target, UPLOADS, 30, 1e-5)
    assert 0.97 * target < epsilon(noise, UPLOADS, 30, 1e-5) <= target


def test_a_missing_accountant_is_reported_before_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    config = toy_config("fedavg", frozen=True, privacy__clip=1.0, privacy__noise=1.0)
    with pytest.raises(MissingExtraError) as error:
        run(config, tmp_path / "run")
    assert error.value.code == "extra.privacy-missing"
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


# ---- a run ----


def test_a_run_under_privacy_is_reproducible_and_reports_its_budget(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    sets: dict[str, Any] = {"train__rounds": 2, "privacy__clip": 1.0, "privacy__noise": 4.0}
    config = toy_config("fedgsca", frozen=True, **sets)
    result = run(config, tmp_path / "a")
    assert result is not None
    assert result.privacy is not None
    first, last = read_rounds(tmp_path / "a")
    assert result.privacy == last.privacy
    assert first.privacy is not None
    assert first.privacy.epsilon < result.privacy.epsilon
    assert not first.refusals
    assert not last.refusals
    assert "delta" not in first.sites["site-1"].values
    run(config, tmp_path / "b")
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")
    text = write_report(tmp_path / "a").read_text("utf-8")
    assert f"ε = {result.privacy.epsilon:.3g}</strong> at δ = 1e-05" in text
    assert "in a simulation it is not" in text, "the public seed protects nobody"


@pytest.mark.parametrize("method", ["fedcorr", "fednoro", "fedgp", "fedfixer"])
def test_a_method_that_cannot_be_protected_is_refused(method: str) -> None:
    with pytest.raises(ConfigError, match="privacy"):
        toy_config(method, privacy__clip=1.0)


def test_sites_cannot_test_the_model_under_privacy() -> None:
    sets: dict[str, Any] = {"data__source": "sites", "privacy__clip": 1.0, "privacy__noise": 1.0}
    sets["method"] = "fedavg"
    with pytest.raises(ConfigError, match=r"federation\.test"):
        load_config(**sets)
    assert load_config(**sets, federation__test="t.npz").privacy


def test_an_experiment_without_privacy_keeps_its_fingerprint() -> None:
    assert "privacy" not in toy_config("fedavg").to_tree()
