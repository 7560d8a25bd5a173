"""`--preset paper` against the printed equations, re-computed from what a run sent and stored.

The functions of this file are written from the paper alone, one sample at a time, and share no code
with the package. Equation numbers count the displayed equations.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from fedgsca.federation.base import Reply
from fedgsca.federation.rounds import run
from fedgsca.federation.simulation import Experiment, prepare
from fedgsca.wire import SMALLEST_GROUP, Payload
from tests.toys import ROUNDS, FaultyEngine, toy_config

ZETA = 0.8
NOISE_LEVEL = 0.1


def density(loss: float, mean: float, var: float) -> float:
    """N(loss; mu, sigma), sigma a variance: Eq. 1."""
    return math.exp(-((loss - mean) ** 2) / (2 * var)) / math.sqrt(2 * math.pi * var)


def responsibility(loss: float, s: np.ndarray) -> float:
    """gamma of the clean component: Eq. 3; s = (mu_1, mu_2, sigma_1, sigma_2, pi_1, pi_2)."""
    clean = density(loss, s[0], s[2]) * s[4]
    noisy = density(loss, s[1], s[3]) * s[5]
    if clean + noisy == 0.0:  # both densities underflow: compare their logarithms
        gap = (loss - s[1]) ** 2 / s[3] - (loss - s[0]) ** 2 / s[2]
        return 1.0 if gap > 0 else 0.0
    return float(clean / (clean + noisy))


def fit(losses: list[float], start: np.ndarray, floor: float = 1e-6) -> np.ndarray:
    """The last loop of Algorithm 1: EM from S until the mean log-likelihood stays."""
    s = start.copy()
    previous = -math.inf
    for _ in range(100):
        gammas = [responsibility(loss, s) for loss in losses]
        likelihood = 0.0
        for loss in losses:
            likelihood += math.log(
                density(loss, s[0], s[2]) * s[4] + density(loss, s[1], s[3]) * s[5]
            )
        parts = []
        for weights in (gammas, [1 - gamma for gamma in gammas]):
            mass = max(math.fsum(weights), 1e-12)
            pairs = list(zip(weights, losses, strict=True))
            mean = math.fsum(weight * loss for weight, loss in pairs) / mass
            var = math.fsum(weight * (loss - mean) ** 2 for weight, loss in pairs) / mass
            parts.append((mean, max(var, floor), mass / len(losses)))
        s = np.array([number for numbers in zip(*parts, strict=True) for number in numbers])
        if abs(likelihood / len(losses) - previous) < 1e-4:
            break
        previous = likelihood / len(losses)
    return s if s[0] <= s[1] else s[[1, 0, 3, 2, 5, 4]]


class Decisions(NamedTuple):
    """One site's round by Eq. 5 to 13."""

    tau: float
    clean: list[bool]
    delta: float
    thresholds: list[float]
    # row -> pseudo-label
    pseudo: dict[int, int]


def decide(losses: list[float], probs: list[list[float]], s: np.ndarray) -> Decisions:
    n = len(losses)
    num_classes = len(probs[0])
    mean = math.fsum(losses) / n
    deviation = math.sqrt(math.fsum((loss - mean) ** 2 for loss in losses) / n)
    tau = min(0.5 * (1 + deviation / (mean + 1e-6)), 0.8)  # Eq. 5
    clean = [responsibility(loss, s) >= tau for loss in losses]  # Eq. 6, 7
    delta = clean.count(False) / n  # Eq. 8
    averages = [0.0] * num_classes
    for row in range(n):
        if clean[row]:
            averages[probs[row].index(max(probs[row]))] += max(probs[row]) / clean.count(True)
    thresholds = [ZETA * average / max(averages) for average in averages]  # Eq. 9, 10
    pseudo = {}
    if delta >= NOISE_LEVEL:  # Eq. 13
        for row in range(n):
            label = probs[row].index(max(probs[row]))  # Eq. 11
            if not clean[row] and max(probs[row]) >= thresholds[label]:  # Eq. 12
                pseudo[row] = label
    return Decisions(tau, clean, delta, thresholds, pseudo)


class Recorded(NamedTuple):
    """A finished run, and what it sent."""

    folder: Path
    engine: FaultyEngine
    experiment: Experiment

    def outputs(self, site: str, payload: Payload) -> tuple[list[float], list[list[float]]]:
        """Losses and probabilities of the model as sent, on the data of a site."""
        site_data = self.experiment.sites[site]
        weight = payload.weights["head.weight"].astype(np.float64)
        logits = site_data.inputs.astype(np.float64) @ weight.T + payload.weights["head.bias"]
        losses = []
        probs = []
        for label, row in zip(site_data.labels.tolist(), logits.tolist(), strict=True):
            exponentials = [math.exp(logit - max(row)) for logit in row]
            total = math.fsum(exponentials)
            losses.append(math.log(total) + max(row) - row[label])
            probs.append([number / total for number in exponentials])
        return losses, probs

    def reply(self, round_index: int, site: str) -> Reply:
        position = round_index * len(self.sites) + self.sites.index(site)
        return self.engine.replies[position]

    @property
    def sites(self) -> list[str]:
        return sorted({reply.site for reply in self.engine.replies})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("paper") / "run"
    config = toy_config(
        "fedgsca", frozen=True, preset="paper", train__rounds=ROUNDS, fedgsca__warmup=0
    )
    assert config.options["unseen_class"] == "zero"
    engine = FaultyEngine(config, folder)
    run(config, folder, engine=engine)
    return Recorded(folder, engine, prepare(config))


def test_every_round_decides_by_the_printed_equations(recorded: Recorded) -> None:
    num_pseudo = 0
    num_noisy = 0
    for payload in recorded.engine.payloads:
        if not payload.extras["selecting"]:
            assert payload.round == 0, "only the first round has no selector"
            continue
        for site in recorded.sites:
            losses, probs = recorded.outputs(site, payload)
            expected = decide(losses, probs, payload.extras["selector"])
            update = recorded.reply(payload.round, site).update
            assert update is not None
            assert update.extras["tau"] == pytest.approx(expected.tau, abs=1e-6)
            assert update.extras["delta"] == pytest.approx(expected.delta)
            assert update.extras["clean"] == expected.clean.count(True)
            assert update.extras["pseudo"] == len(expected.pseudo)
            public = update.extras["thresholds"]
            for zeta, printed in zip(public.tolist(), expected.thresholds, strict=True):
                assert math.isnan(zeta) or zeta == pytest.approx(printed, abs=1e-6)
            num_pseudo += len(expected.pseudo)
            num_noisy += expected.delta >= NOISE_LEVEL
    assert num_pseudo > 0 and num_noisy > 0, "the run must reach the branch of Eq. 9 to 12"


def test_the_log_has_the_same_numbers(recorded: Recorded) -> None:
    lines = (recorded.folder / "metrics.jsonl").read_text().splitlines()
    for payload, line in zip(recorded.engine.payloads, lines, strict=True):
        sites = json.loads(line)["sites"]
        for site in recorded.sites:
            update = recorded.reply(payload.round, site).update
            assert update is not None
            assert sites[site]["delta"] == pytest.approx(float(update.extras["delta"]))
            assert sites[site]["tau"] == pytest.approx(float(update.extras["tau"]))


def test_the_stored_selection_of_the_last_round_is_d_clean_and_d_pseudo(recorded: Recorded) -> None:
    payload = recorded.engine.payloads[-1]
    for site in recorded.sites:
        expected = decide(*recorded.outputs(site, payload), payload.extras["selector"])
        with np.load(recorded.folder / "losses" / f"{site}.npz") as stored:
            assert stored["clean"].tolist() == expected.clean
            pairs = zip(stored["pseudo_rows"].tolist(), stored["pseudo_labels"].tolist())
            assert dict(pairs) == expected.pseudo
            assert stored["cut"] == pytest.approx(expected.tau, abs=1e-6)


def test_selectors_are_fitted_from_s_and_averaged(recorded: Recorded) -> None:
    """Eq. 1 to 4: EM on the losses of the trained model, started at S; then the weighted mean."""
    payloads = recorded.engine.payloads
    for payload, following in itertools.pairwise(payloads[1:]):
        total = np.zeros(6)
        count = 0
        for site in recorded.sites:
            update = recorded.reply(payload.round, site).update
            assert update is not None
            trained = Payload(payload.round, update.weights, {})
            losses, _ = recorded.outputs(site, trained)
            expected = fit(losses, payload.extras["selector"])
            assert update.extras["selector"] == pytest.approx(expected, rel=1e-4, abs=1e-5)
            total += update.num_samples * update.extras["selector"]
            count += update.num_samples
        assert following.extras["selector"] == pytest.approx(total / count)


def test_a_threshold_reflects_enough_images_to_be_public(recorded: Recorded) -> None:
    """Eq. 10 gives 0 to a class without clean predictions; it says nothing about single images."""
    payload = recorded.engine.payloads[-1]
    for site in recorded.sites:
        _, probs = recorded.outputs(site, payload)
        with np.load(recorded.folder / "losses" / f"{site}.npz") as stored:
            clean = stored["clean"]
        counts = np.bincount(np.argmax(probs, axis=1)[clean], minlength=len(probs[0]))
        update = recorded.reply(payload.round, site).update
        assert update is not None
        hidden = np.isnan(update.extras["thresholds"])
        assert hidden.tolist() == ((counts > 0) & (counts < SMALLEST_GROUP)).tolist()
        assert (update.extras["thresholds"][counts == 0] == 0).all()
