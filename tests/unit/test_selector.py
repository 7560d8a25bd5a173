"""GSS against hand numbers, scikit-learn and the degenerate cases a hospital will meet."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsca.errors import UpdateError
from fedgsca.rng import stream
from fedgsca.selector import (
    LOSS_CAP,
    NO_SELECTOR,
    Selector,
    class_relative,
    clean_probability,
    clean_subset,
    clean_threshold,
    clip_losses,
    fit_selector,
    is_healthy,
    merge_selectors,
)

GOOD = Selector(mean=(0.2, 4.0), var=(0.04, 1.0), weight=(0.7, 0.3))


def draw(n: int, selector: Selector = GOOD, seed: int = 0) -> np.ndarray:
    rng = stream(seed, "test", "losses")
    component = (rng.random(n) < selector.weight[1]).astype(int)
    mean = np.array(selector.mean)[component]
    std = np.sqrt(np.array(selector.var))[component]
    return np.asarray(rng.normal(mean, std))


def test_fit_recovers_the_mixture_it_was_drawn_from() -> None:
    fit = fit_selector(draw(20_000), var_floor=1e-6)
    assert fit is not None
    np.testing.assert_allclose(fit.to_array(), GOOD.to_array(), rtol=0.05)


def test_fit_agrees_with_scikit_learn() -> None:
    from sklearn.mixture import GaussianMixture

    losses = draw(3000)
    own_fit = fit_selector(losses, var_floor=1e-9, max_steps=500, tol=1e-12)
    reference = GaussianMixture(
        2, reg_covar=1e-12, max_iter=500, tol=1e-12, means_init=[[0.2], [4.0]]
    ).fit(losses[:, None])
    others = [reference.means_.ravel(), reference.covariances_.ravel(), reference.weights_]
    assert own_fit is not None
    np.testing.assert_allclose(own_fit.to_array(), np.concatenate(others), rtol=1e-5)


def test_swapped_start_gives_the_same_sorted_fit() -> None:
    losses = draw(5000)
    swapped = Selector(mean=(4.0, 0.2), var=(1.0, 0.04), weight=(0.3, 0.7))
    a, b = fit_selector(losses, GOOD), fit_selector(losses, swapped)
    assert a is not None and b is not None
    np.testing.assert_allclose(a.to_array(), b.to_array(), rtol=1e-12)
    assert a.mean[0] < a.mean[1]


def test_variance_floor_is_a_lower_bound() -> None:
    fit = fit_selector(draw(20_000), var_floor=0.25)
    assert fit is not None
    assert fit.var[0] == 0.25  # the clean component has 0.04
    assert fit.var[1] == pytest.approx(
        1.0, rel=0.1
    )  # the other one is wider than the floor and stays as it is


def test_two_heaps_a_nat_and_a_half_apart_stay_two() -> None:
    """Losses of a small network from scratch: an added floor of 0.25 merges the two components."""
    rng = stream(0, "test", "heaps")
    losses = np.concatenate([rng.normal(0.7, 0.35, 420), rng.normal(2.3, 0.5, 280)])
    fit = fit_selector(losses)
    assert fit is not None
    assert fit.weight[1] == pytest.approx(0.4, abs=0.06)
    assert fit.mean[1] - fit.mean[0] > 1.3


def test_a_start_with_coinciding_components_is_left() -> None:
    losses = draw(1000)
    stuck = Selector(
        (losses.mean(), losses.mean() + 1e-9), (losses.var(), losses.var()), (0.99, 0.01)
    )
    fit, fresh = fit_selector(losses, stuck), fit_selector(losses)
    assert fit is not None and fresh is not None
    np.testing.assert_allclose(fit.to_array(), fresh.to_array(), rtol=1e-6)


def test_warm_start_at_a_selector_that_is_far_away_still_fits_or_declines() -> None:
    fit = fit_selector(draw(500), Selector((50.0, 60.0), (0.01, 0.01), (0.5, 0.5)))
    assert fit is None or np.isfinite(fit.to_array()).all()


@pytest.mark.parametrize(
    "losses",
    [
        pytest.param(np.array([]), id="no samples"),
        pytest.param(draw(19), id="fewer than 20"),
        pytest.param(np.full(500, 2.3), id="identical"),
        pytest.param(2.3 + 1e-6 * draw(500), id="almost identical"),
        pytest.param(np.append(draw(500), np.nan), id="nan"),
        pytest.param(np.append(draw(500), np.inf), id="inf"),
        pytest.param(
            stream(0, "one heap").normal(2.2, 0.2, 500), id="one narrow mode: means closer than 0.1"
        ),
        pytest.param(
            np.append(stream(0, "heap").normal(0.2, 0.1, 999), 9.0),
            id="one outlier is not a component",
        ),
    ],
)
def test_degenerate_losses_have_no_selector(losses: np.ndarray) -> None:
    assert fit_selector(losses) is None


@settings(max_examples=60, deadline=None)
@given(
    losses=st.lists(
        st.one_of(st.floats(0, 10), st.sampled_from([0.0, 9.21, 1e-300, 1e4])),
        min_size=0,
        max_size=60,
    ),
    floor=st.sampled_from([0.0, 1e-6, 0.25]),
)
def test_any_finite_losses_give_none_or_a_valid_selector(losses: list[float], floor: float) -> None:
    with np.errstate(all="raise", under="ignore"):
        fit = fit_selector(np.array(losses), var_floor=floor)
    if fit is not None:
        assert Selector.from_array(fit.to_array()) == fit
        assert fit.mean[1] - fit.mean[0] >= 0.1


def test_clipping_caps_large_and_non_finite_losses() -> None:
    losses = np.concatenate([np.full(198, 1.0), [np.inf, 50.0]]).astype(np.float32)
    clipped = clip_losses(losses)
    assert clipped.dtype == np.float64
    assert clipped[-2] == clipped[-1] == LOSS_CAP
    assert np.all(clip_losses(np.append(np.arange(100.0), np.nan), cap=np.inf) <= 99.0)


def test_a_diverged_model_is_refused() -> None:
    with pytest.raises(UpdateError) as error:
        clip_losses(np.concatenate([np.ones(197), [np.nan, np.inf, -np.inf]]))
    assert error.value.code == "update.losses-not-finite"
    assert "3 of 200" in error.value.message
    clip_losses(np.concatenate([np.ones(198), [np.nan, np.inf]]))  # exactly 1 % passes


def test_merge_weighs_by_size_and_ignores_sites_without_a_fit() -> None:
    a = Selector((0.0, 4.0), (0.5, 2.0), (0.9, 0.1))
    b = Selector((0.4, 3.0), (0.1, 1.0), (0.5, 0.5))
    merged = merge_selectors([a, None, b], [300, 1000, 100])
    assert merged is not None
    np.testing.assert_allclose(merged.to_array(), [0.1, 3.75, 0.4, 1.75, 0.8, 0.2], atol=1e-15)
    assert merge_selectors([None, None], [5, 5]) is None
    assert merge_selectors([], []) is None
    assert merge_selectors([None, b], [100, 7]) == b
    with pytest.raises(ValueError):
        merge_selectors([a, b], [1])


def random_selectors(count: int) -> list[Selector]:
    rng = stream(1, "selectors")
    mean = np.sort(rng.uniform(0, 9, (count, 2)), axis=1)
    var = 10.0 ** rng.uniform(-4, 1.5, (count, 2))
    weight = rng.uniform(0.005, 0.995, count)
    return [
        Selector((m[0], m[1]), (v[0], v[1]), (w, 1 - w))
        for m, v, w in zip(mean, var, weight, strict=True)
    ]


def test_merge_does_not_depend_on_the_order_and_stays_sorted() -> None:
    some = random_selectors(40)
    sizes = list(range(1, 41))
    merged = merge_selectors(some, sizes)
    assert merged == merge_selectors(some[::-1], sizes[::-1])
    assert merged is not None and merged.mean[0] <= merged.mean[1]
    assert sum(merged.weight) == pytest.approx(1.0)


def test_clean_probability_never_rises_with_the_loss() -> None:
    losses = np.linspace(-2, 14, 400)
    for selector in random_selectors(1000):
        p = clean_probability(losses, selector)
        assert np.all(np.diff(p) <= 1e-9), selector
        assert np.all((p >= 0) & (p <= 1))


def test_between_the_means_the_clamp_changes_nothing() -> None:
    for selector in random_selectors(200):
        between = np.linspace(*selector.mean, 50)
        literal = clean_probability(between, selector, monotone=False)
        np.testing.assert_allclose(clean_probability(between, selector), literal, atol=1e-12)


def test_the_best_fitted_sample_is_clean_after_the_clamp() -> None:
    selector = Selector(mean=(0.3, 3.0), var=(0.01, 4.0), weight=(0.6, 0.4))
    zero = np.array([0.0])
    assert clean_probability(zero, selector, monotone=False)[0] == pytest.approx(0.507, abs=5e-4)
    assert clean_probability(zero, selector)[0] == pytest.approx(0.987, abs=5e-4)


def test_posterior_is_bayes_rule() -> None:
    def normal(x: float, mean: float, var: float) -> float:
        return float(np.exp(-((x - mean) ** 2) / (2 * var)) / np.sqrt(2 * np.pi * var))

    s = Selector((0.5, 3.0), (0.4, 1.5), (0.6, 0.4))
    clean, noisy = 0.6 * normal(1.7, 0.5, 0.4), 0.4 * normal(1.7, 3.0, 1.5)
    assert clean_probability(np.array([1.7]), s)[0] == pytest.approx(
        clean / (clean + noisy), rel=1e-12
    )


@pytest.mark.parametrize(
    ("losses", "tau"),
    [
        ([1, 1, 1, 1], 0.5),
        ([0.7, 1.3, 0.7, 1.3], 0.65),
        ([0.4, 1.6], 0.8),
        ([0.0, 0.0, 9.0], 0.8),
        ([0.0, 0.0], 0.5),
        ([1.0, np.inf], 0.8),
    ],
)
def test_tau(losses: list[float], tau: float) -> None:
    assert clean_threshold(np.array(losses)) == pytest.approx(tau, abs=1e-6)


def test_class_relative_puts_every_class_on_the_sites_level() -> None:
    rng = stream(2, "classes")
    labels = np.repeat([0, 1, 2, 3], [500, 100, 4, 0])
    losses = rng.exponential(0.5, labels.size) + np.array([0.0, 3.0, 5.0, 0.0])[labels]
    shifted = class_relative(losses, labels, 4)
    for c in (0, 1):
        assert np.quantile(shifted[labels == c], 0.25) == pytest.approx(np.quantile(losses, 0.25))
        assert shifted[labels == c].std() == pytest.approx(
            losses[labels == c].std()
        )  # a shift, not a squeeze
    np.testing.assert_array_equal(
        shifted[labels == 2], losses[labels == 2]
    )  # four samples: left alone


def test_class_relative_saves_a_hard_class_from_being_flagged() -> None:
    rng = stream(3, "hard class")
    labels = np.repeat([0, 1], [900, 100])
    wrong = rng.random(1000) < 0.2
    losses = clip_losses(rng.exponential(0.3, 1000) + 6.0 * wrong + 3.0 * (labels == 1))

    def flagged(x: np.ndarray) -> float:
        fit = fit_selector(x)
        assert fit is not None
        return float((clean_probability(x, fit) < 0.8)[(labels == 1) & ~wrong].mean())

    assert flagged(losses) > 0.5
    assert flagged(class_relative(losses, labels, 2)) < 0.1


def test_a_selector_travels_as_six_numbers() -> None:
    assert Selector.from_array(GOOD.to_array()) == GOOD
    assert Selector.from_array(NO_SELECTOR) is None
    assert GOOD.to_array().shape == NO_SELECTOR.shape == (6,)
    with pytest.raises(ValueError):
        NO_SELECTOR[0] = 1.0


@pytest.mark.parametrize(
    "array",
    [
        [4, 0, 1, 1, 0.5, 0.5],
        [0, 4, 0, 1, 0.5, 0.5],
        [0, 4, 1, 1, 0.9, 0.9],
        [0, 4, 1, 1, 1.5, -0.5],
        [0, np.nan, 1, 1, 0.5, 0.5],
        [0, 4, 1],
    ],
)
def test_numbers_that_are_no_selector_are_refused(array: list[float]) -> None:
    with pytest.raises(UpdateError) as error:
        Selector.from_array(np.array(array))
    assert error.value.code == "update.invalid-selector"


def test_a_healthy_selector_has_two_separate_modes() -> None:
    assert is_healthy(fit_selector(draw(1000)))
    assert not is_healthy(None)
    for width in (0.5, 1.0, 1.5):  # one mode, however wide, is not two
        assert not is_healthy(fit_selector(stream(4, "wide").normal(3.0, width, 1000)))
    assert not is_healthy(GOOD, separation=100.0)


def test_a_hospital_sized_fit_is_fast() -> None:
    import time

    losses, best = draw(1000), np.inf
    for _ in range(5):
        begin = time.thread_time()  # of this thread: other work of the machine does not count
        fit_selector(losses)
        best = min(best, time.thread_time() - begin)
    assert best < 0.02  # about 2 ms


def test_the_clean_subset_includes_the_threshold() -> None:
    assert clean_subset(np.array([0.2, 0.5, 0.9]), 0.5).tolist() == [False, True, True]


def test_without_a_second_start_em_stays_where_both_components_coincide() -> None:
    """The paper starts at S only; from equal components EM can never separate them."""
    losses = draw(1000)
    stuck = Selector((1.0, 1.0), (1.0, 1.0), (0.5, 0.5))
    literal = fit_selector(losses, stuck, second_start=False, validity_test=False)
    assert literal is not None and literal.mean[1] - literal.mean[0] < 1e-6
    assert fit_selector(losses, stuck, second_start=False) is None, "no two modes"
    assert is_healthy(fit_selector(losses, stuck))
    # without S there is only the data to start from
    assert fit_selector(losses, None, second_start=False) == fit_selector(losses)


def test_without_the_validity_test_every_computable_fit_counts() -> None:
    few = np.array([0.1, 0.1, 2.0])
    equal = np.full(50, 0.7)
    for losses in (few, equal):
        assert fit_selector(losses) is None
        literal = fit_selector(losses, validity_test=False, var_floor=1e-6)
        assert literal is not None
        assert Selector.from_array(literal.to_array()) == literal, "it can be sent and read"
    for losses in (np.empty(0), np.array([np.nan, 1.0])):
        assert fit_selector(losses, validity_test=False) is None


def test_the_smallest_gap_fits_the_range_of_the_losses() -> None:
    rng = stream(0, "narrow")
    losses = np.concatenate([rng.normal(1.50, 0.01, 300), rng.normal(1.58, 0.01, 300)])
    assert fit_selector(losses, var_floor=1e-6) is None, "0.1 is meant for nats from 0 to 9"
    assert fit_selector(losses, var_floor=1e-6, min_gap=0.01) is not None
