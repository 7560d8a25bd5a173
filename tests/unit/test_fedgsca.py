"""FedGSCA as a whole: its switches, when it selects, and what happens when selection fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_lines
from fedgsca.methods.base import ServerState
from fedgsca.methods.fedgsca import FedGSCA, FedGSCAOptions
from fedgsca.methods.parts import selection_log
from fedgsca.methods.site import weights_of
from fedgsca.models.build import build_head_only
from fedgsca.selector import NO_SELECTOR, Selector
from fedgsca.wire import Payload, Update
from tests.helpers import CLASSES, WIDTH, Toy, toy_experiment
from tests.toys import toy_config

NOW = {"warmup": 0}  # select from the second round on


def toy(folder: Path, **changes: Any) -> Toy:
    options = changes.pop("options", {})
    settings: dict[str, Any] = {
        "noise": (0.0, 0.4, 0.3),
        "samples": 80,
        "spread": 1.6,
        "rounds": 8,
        "lr": 0.2,
        **changes,
    }
    return toy_experiment(folder, "fedgsca", options={**NOW, **options}, **settings)


def start() -> dict[str, np.ndarray]:
    """The toy's initial weights, also after its model was trained."""
    return weights_of(build_head_only(WIDTH, CLASSES, seed=0))


def run_round(
    runner: Toy,
    selector: Selector | None,
    *,
    selecting: bool = True,
    round: int = 0,
    site: str = "site-2",
) -> Update:
    """One site's round under a selector of our choice."""
    weights = start()
    array = selector.to_array() if selector else NO_SELECTOR.copy()
    return runner.run_round(
        site, Payload(round, weights, {"selector": array, "selecting": np.array(int(selecting))})
    )


def same(one: Update | ServerState, other: Update | ServerState) -> bool:
    return all(np.array_equal(one.weights[name], other.weights[name]) for name in one.weights)


EVERYTHING_WRONG = Selector(
    mean=(-9.0, 0.0), var=(0.01, 4.0), weight=(0.5, 0.5)
)  # no loss is as small as "clean" wants it
EVERYTHING_RIGHT = Selector(mean=(0.0, 30.0), var=(4.0, 0.01), weight=(0.5, 0.5))


# ---- FedAvg inside ----


@pytest.mark.parametrize("frozen", [False, True])
def test_without_selection_and_credal_loss_it_is_fedavg_bit_for_bit(
    frozen: bool, tmp_path: Path
) -> None:
    run(toy_config("fedavg", frozen=frozen), tmp_path / "a")
    run(
        toy_config("fedgsca", frozen=frozen, fedgsca__warmup=6, fedgsca__loss="ce"),
        tmp_path / "b",
    )
    one, other = (load_file(tmp_path / x / "model.safetensors") for x in "ab")
    assert set(one) == set(other) and all(one[n].tobytes() == other[n].tobytes() for n in one)
    curves = [
        [(x["f1"], x["loss"], x["stability"]) for x in read_lines(tmp_path / x / "metrics.jsonl")]
        for x in "ab"
    ]
    assert curves[0] == curves[1]


# ---- the paper's variants ----

VARIANTS: dict[str, dict[str, Any]] = {
    "full": {},
    "without RCL": {"loss": "ce"},
    "without RCL and ATP": {"loss": "ce", "thresholds": "fixed", "zeta": 0.7},
    "without RCL, ATP and GSS": {
        "loss": "ce",
        "thresholds": "fixed",
        "zeta": 0.7,
        "scope": "own",
    },
    "CSS instead of GSS": {"scope": "own"},
    "UCL": {"loss": "ucl"},
    "beta constant": {"beta_schedule": "constant"},
    "beta linear": {"beta_schedule": "linear"},
    "zeta 0.7": {"zeta": 0.7},
    "zeta 0.9": {"zeta": 0.9},
    "losses of the trained model": {"losses_of": "trained"},
    "no memory": {"memory": 0.0},
    "not class-relative": {"class_relative": False},
    "later": {"warmup": 5},
    "loss only": {"warmup": 8},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Toy, ServerState]]:
    runner = {
        name: toy(tmp_path_factory.mktemp("v"), options=options)
        for name, options in VARIANTS.items()
    }
    return {name: (t, t.run(8)) for name, t in runner.items()}


def test_every_variant_runs_and_none_is_another(
    finished: dict[str, tuple[Toy, ServerState]],
) -> None:
    twins = [
        (a, b) for a in finished for b in finished if a < b and same(finished[a][1], finished[b][1])
    ]
    assert twins == []
    assert all(
        np.isfinite(value).all()
        for _, state in finished.values()
        for value in state.weights.values()
    )


def test_the_full_method_finds_the_wrong_labels(
    finished: dict[str, tuple[Toy, ServerState]],
) -> None:
    runner, _ = finished["full"]
    for site in ("site-2", "site-3"):
        outputs = runner.metrics[site]
        assert outputs["noisy_auroc"] is not None and outputs["noisy_auroc"] > 0.85
        assert outputs["pseudo_accuracy"] is None or outputs["pseudo_accuracy"] > 0.7


def test_the_full_method_beats_plain_averaging(
    finished: dict[str, tuple[Toy, ServerState]], tmp_path: Path
) -> None:
    runner, state = finished["full"]
    plain = toy(tmp_path, options={"warmup": 8, "loss": "ce"})
    assert runner.accuracy(state.weights) > plain.accuracy(plain.run(8).weights)


# ---- when it selects ----


def test_nothing_is_flagged_before_the_warm_up_is_over(tmp_path: Path) -> None:
    runner = toy(tmp_path, options={"warmup": 3})
    state = runner.start()
    for t in range(5):
        state = runner.round(state)
        flagged = sum(float(u.extras["delta"]) for u in runner.updates.values())
        assert (flagged > 0) == (t >= 3), t
        assert np.isfinite(state.extras["selector"]).all(), "fitted meanwhile"


def test_it_waits_until_the_selector_was_healthy_twice(tmp_path: Path) -> None:
    runner = toy(tmp_path, options={"warmup": 1})
    state = runner.start()
    history = []
    for _ in range(8):
        old = int(state.extras["healthy"])
        state = runner.round(state)
        history.append((old, int(state.extras["healthy"]), int(state.extras["selecting"])))
    first = next(i for i, (_, _, selecting) in enumerate(history) if selecting)
    assert history[first][1] >= 2 and all(healthy < 2 for _, healthy, _ in history[:first])
    assert all(selecting for _, _, selecting in history[first:]), "once begun, it goes on"


def test_no_selector_means_all_labels(tmp_path: Path) -> None:
    runner = toy(tmp_path)
    without, resting = run_round(runner, None), run_round(runner, EVERYTHING_WRONG, selecting=False)
    assert float(without.extras["delta"]) == 0.0 and int(without.extras["clean"]) == 80
    assert float(resting.extras["delta"]) == 0.0


def test_a_site_with_few_flags_trains_on_all_its_labels(tmp_path: Path) -> None:
    runner = toy(tmp_path, options={"loss": "ce"})
    flagged = run_round(runner, EVERYTHING_RIGHT)
    assert float(flagged.extras["delta"]) == 0.0 and same(flagged, run_round(runner, None))


def test_a_site_too_small_for_a_fit_says_so_and_still_trains(tmp_path: Path) -> None:
    runner = toy(tmp_path, samples=8)
    update = run_round(runner, EVERYTHING_RIGHT)
    assert np.isnan(update.extras["selector"]).all()
    assert not all(np.array_equal(update.weights[n], w) for n, w in start().items())
    state = runner.run(3)  # nobody has a fit: the server has no selector, and goes on
    assert np.isnan(state.extras["selector"]).all() and int(state.extras["selecting"]) == 0


# ---- the guard ----


def almost_all_wrong(runner: Toy, site: str = "site-2") -> Selector:
    """A selector under which nine of ten labels look wrong."""
    from fedgsca.methods.train import evaluate
    from fedgsca.selector import class_relative

    site_ = runner.site(site)
    site_.load(start())
    losses = class_relative(
        evaluate(runner.model, site_.samples, site_.device).losses, site_.labels, site_.num_classes
    )
    low = float(np.quantile(losses, 0.1))
    return Selector(mean=(low - 1.0, low + 1.0), var=(0.01, 0.01), weight=(0.5, 0.5))


def test_the_guard_falls_back_to_the_given_labels_and_reports_it(tmp_path: Path) -> None:
    runner = toy(tmp_path, options={"loss": "ce"})
    selector = almost_all_wrong(runner)
    guarded, plain = run_round(runner, selector), run_round(runner, None)
    assert int(guarded.extras["guard"]) == 1 and float(guarded.extras["delta"]) > 0.8
    assert int(guarded.extras["pseudo"]) == 0 and same(guarded, plain)
    runner = toy(tmp_path / "off", options={"loss": "ce", "guard": False})
    trusting = run_round(runner, selector)
    assert int(trusting.extras["guard"]) == 0 and not same(trusting, plain)


def test_the_guard_also_works_when_every_label_is_flagged(tmp_path: Path) -> None:
    runner = toy(tmp_path, options={"loss": "ce"})
    guarded = run_round(runner, EVERYTHING_WRONG)
    assert float(guarded.extras["delta"]) == 1.0 and int(guarded.extras["guard"]) == 1
    assert same(guarded, run_round(runner, None)), "it trains on the given labels, it does not rest"


def test_guard_events_reach_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "a reason"
    monkeypatch.setattr(selection_log, "guard_reason", lambda *_: reason)
    config = toy_config("fedgsca", frozen=True, fedgsca__noise_level=0.0)
    result = run(config, tmp_path / "run")
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    counted = sum(site["guard"] for line in lines for site in line["sites"].values())
    assert result is not None and result.guard_events == counted > 0


# ---- memory ----


def test_memory_is_the_normalised_mean_over_rounds(tmp_path: Path) -> None:
    runner = toy(tmp_path, options={"memory": 0.5})
    state, outputs = runner.start(), []
    for t in range(4):
        site = runner.site("site-2")
        site.load(state.weights)
        from fedgsca.methods.train import evaluate_site

        outputs.append(evaluate_site(site).losses)
        state = runner.round(state)
        stored = runner.site("site-2").recall(t + 1)
        weights = 0.5 ** np.arange(t, -1, -1)
        assert np.allclose(
            stored["losses"], np.tensordot(weights / weights.sum(), np.array(outputs), axes=1)
        )
    assert float(runner.site("site-2").recall(4)["count"]) == 4


def test_memory_never_crosses(tmp_path: Path) -> None:
    runner = toy(tmp_path)
    runner.run(3)
    largest = max(
        np.size(value) for update in runner.updates.values() for value in update.extras.values()
    )
    assert largest <= 6


def test_own_and_global_scope_differ_only_in_the_selector_used(tmp_path: Path) -> None:
    own = toy(tmp_path / "own", options={"scope": "own"})
    runner = toy(tmp_path / "global")
    for t in (own, runner):
        t.run(1)
    one, other = (run_round(t, EVERYTHING_WRONG, round=1) for t in (own, runner))
    assert float(other.extras["delta"]) == 1.0, "the shared selector is believed"
    assert float(one.extras["delta"]) < 1.0, "the shared selector is ignored"


def test_a_threshold_that_rests_on_a_few_images_stays_at_the_site() -> None:
    method = FedGSCA(FedGSCAOptions(), 10)
    probs = np.repeat(np.eye(3)[[0, 1, 2]], [40, 4, 5], axis=0) * 0.8 + 0.05
    thresholds, logged = method._class_thresholds(probs, np.ones(49, bool))
    assert np.isfinite(thresholds).all()
    assert np.isnan(logged).tolist() == [False, True, False]
