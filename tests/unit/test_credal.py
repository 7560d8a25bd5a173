"""RCL against its definition: the credal set by brute force, the loss by explicit divergence."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsca.credal import beta_at, rcl_loss, ucl_loss
from fedgsca.rng import stream, torch_stream


def logits_of(*p: float) -> torch.Tensor:
    return torch.tensor([p], dtype=torch.float64).log()


def possibility(p: np.ndarray, y: int, alpha: float, beta: float) -> np.ndarray:
    return np.array([1.0 if c == y or p[c] >= beta else alpha for c in range(len(p))])  # Eq. 14


def inside_by_all_subsets(p: np.ndarray, poss: np.ndarray) -> bool:
    """Eq. 15 as printed: every subset of the classes."""
    subsets = itertools.chain.from_iterable(
        itertools.combinations(range(len(p)), k) for k in range(1, len(p) + 1)
    )
    return all(p[list(s)].sum() <= poss[list(s)].max() + 1e-12 for s in subsets)


def projection(p: np.ndarray, poss: np.ndarray, alpha: float) -> np.ndarray:
    """p^r (Eq. 16)."""
    full = poss == 1.0
    inside = (1 - alpha) * p / p[full].sum()
    outside = alpha * p / max(p[~full].sum(), 1e-300)
    return np.asarray(np.where(full, inside, outside))


def defined_loss(p: np.ndarray, y: int, alpha: float, beta: float) -> float:
    poss = possibility(p, y, alpha, beta)
    if inside_by_all_subsets(p, poss):
        return 0.0
    pr = projection(p, poss, alpha)
    return float((pr * np.log(pr / p)).sum())  # Eq. 17


def test_hand_numbers() -> None:
    half = rcl_loss(logits_of(0.5, 0.3, 0.2), torch.tensor([0]), beta=0.75)
    assert half.item() == pytest.approx(
        0.95 * math.log(0.95 / 0.5) + 0.05 * math.log(0.05 / 0.5), abs=1e-12
    )
    assert half.item() == pytest.approx(0.49464, abs=1e-5)
    assert rcl_loss(logits_of(0.96, 0.03, 0.01), torch.tensor([0])).item() == 0.0


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    y=st.integers(0, 4),
    scale=st.floats(0.1, 6),
    alpha=st.sampled_from([0.001, 0.05, 0.3, 0.7]),
    beta=st.sampled_from([0.1, 0.3, 0.55, 0.75, 1.0]),
)
def test_closed_form_is_the_definition_with_five_classes(
    seed: int, y: int, scale: float, alpha: float, beta: float
) -> None:
    logits = stream(seed, "logits").normal(0, scale, 5)
    p = np.exp(logits - logits.max())
    p /= p.sum()
    own_fit = rcl_loss(torch.tensor(logits)[None], torch.tensor([y]), alpha=alpha, beta=beta)
    assert own_fit.item() == pytest.approx(defined_loss(p, y, alpha, beta), abs=1e-12)


def test_membership_is_the_s1_test() -> None:
    rng = stream(0, "membership")
    for p in rng.dirichlet(np.full(5, 0.3), 2000):
        y, beta = int(rng.integers(5)), float(rng.uniform(0.1, 1.0))
        poss = possibility(p, y, 0.05, beta)
        assert inside_by_all_subsets(p, poss) == (p[poss == 1.0].sum() >= 0.95 - 1e-12)


def test_gradient_is_p_minus_its_projection() -> None:
    logits = 3 * torch.randn(200, 5, dtype=torch.float64, generator=torch_stream(0, "gradient"))
    labels = torch.arange(200) % 5
    logits.requires_grad_(True)
    loss = rcl_loss(logits, labels, alpha=0.05, beta=0.6, reduction="none")
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    probs = logits.detach().softmax(dim=1).numpy()
    assert 20 < int((loss > 0).sum()) < 180  # both cases occur
    for p, y, value, g in zip(
        probs, labels.numpy(), loss.detach().numpy(), gradient.numpy(), strict=True
    ):
        expected = (
            p - projection(p, possibility(p, y, 0.05, 0.6), 0.05) if value > 0 else np.zeros(5)
        )
        np.testing.assert_allclose(g, expected, atol=1e-10)


def test_gradient_is_the_slope_of_the_loss() -> None:
    """By finite differences, because the projection is held constant inside the loss."""
    logits = torch.randn(
        40, 6, dtype=torch.float64, generator=torch_stream(2, "slope"), requires_grad=True
    )
    labels = torch.arange(40) % 6
    assert torch.autograd.gradcheck(lambda z: rcl_loss(z, labels, alpha=0.05, beta=0.5), (logits,))


def test_confident_disagreement_relaxes_the_label() -> None:
    """The model gives class 1 at least beta, so classes 0 and 1 are possible; they sum to 0.97."""
    z = logits_of(0.17, 0.80, 0.03)
    assert rcl_loss(z, torch.tensor([0]), beta=0.75).item() == 0.0
    assert rcl_loss(z, torch.tensor([0]), beta=0.85).item() > 1.0
    # A holds every class
    assert rcl_loss(logits_of(0.25, 0.75), torch.tensor([0]), beta=0.7).item() == 0.0
    # p = 0.5 exactly: ">= beta" includes equality
    exact = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
    assert rcl_loss(exact, torch.tensor([0]), beta=0.5).item() == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_absurdly_wrong_predictions_have_finite_loss_and_gradient(dtype: torch.dtype) -> None:
    z = torch.zeros(1, 10, dtype=dtype)
    z[0, 9] = -400.0
    z.requires_grad_(True)
    loss = rcl_loss(z, torch.tensor([9]))
    torch.autograd.backward(loss)
    assert loss.item() == pytest.approx(381.889, rel=1e-5 if dtype == torch.float32 else 1e-6)
    assert z.grad is not None and torch.isfinite(z.grad).all()


@pytest.mark.parametrize("loss", [rcl_loss, ucl_loss])
def test_perfect_predictions_have_zero_gradient_not_nan(loss) -> None:  # type: ignore[no-untyped-def]
    z = torch.full((4, 10), -1e4)
    z[:, 3] = 1e4  # p = 1 and 0 exactly: S0 = 0
    z.requires_grad_(True)
    loss(z, torch.full((4,), 3)).backward()
    assert z.grad is not None and torch.equal(z.grad, torch.zeros_like(z))


@pytest.mark.parametrize("loss", [rcl_loss, ucl_loss])
def test_a_diverged_model_is_not_hidden(loss) -> None:  # type: ignore[no-untyped-def]
    z = torch.zeros(3, 4)
    z[1, 2] = torch.nan
    assert torch.isnan(loss(z, torch.tensor([0, 1, 2])))


def test_mean_counts_the_samples_that_cost_nothing() -> None:
    z = torch.cat([logits_of(0.5, 0.3, 0.2), logits_of(0.96, 0.03, 0.01)])
    labels = torch.tensor([0, 0])
    each = rcl_loss(z, labels, reduction="none")
    assert each.shape == (2,)
    assert rcl_loss(z, labels).item() == pytest.approx(each.sum().item() / 2)
    assert rcl_loss(z, labels, reduction="sum").item() == pytest.approx(each.sum().item())


def test_half_precision_is_computed_in_float32() -> None:
    z = torch.randn(64, 7, generator=torch_stream(1, "half")).bfloat16()
    labels = torch.arange(64) % 7
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = rcl_loss(z, labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(rcl_loss(z.float(), labels).item(), rel=1e-6)


def test_alpha_has_a_floor() -> None:
    z = logits_of(0.5, 0.5)
    assert (
        rcl_loss(z, torch.tensor([0]), alpha=0.0).item()
        == rcl_loss(z, torch.tensor([0]), alpha=1e-3).item()
    )


def test_ucl_leaves_out_contradicted_samples_and_is_rcl_otherwise() -> None:
    labels = torch.tensor([0])
    contradicted = logits_of(0.05, 0.80, 0.15)
    assert ucl_loss(contradicted, labels, beta=0.75).item() == 0.0
    assert (
        rcl_loss(contradicted, labels, beta=0.75).item() > 0.0
    )  # S1 = 0.85: RCL still asks for 0.95
    for z in (
        logits_of(0.5, 0.3, 0.2),
        logits_of(0.80, 0.15, 0.05),
    ):  # nobody, or only the label itself, reaches beta
        assert ucl_loss(z, labels).item() == pytest.approx(rcl_loss(z, labels).item(), abs=1e-15)


def test_beta_schedules() -> None:
    assert beta_at(0, 100) == pytest.approx(0.75)
    assert beta_at(25, 100) == pytest.approx(0.721, abs=5e-4)
    assert beta_at(50, 100) == pytest.approx(0.65)
    assert beta_at(99, 100) == pytest.approx(0.55005, abs=1e-5)
    assert beta_at(50, 100, schedule="linear") == pytest.approx(0.65)
    assert beta_at(25, 100, schedule="linear") == pytest.approx(0.70)
    assert beta_at(77, 100, schedule="constant") == 0.75
    with pytest.raises(ValueError, match="sine"):
        beta_at(1, 2, schedule="sine")  # type: ignore[arg-type]
