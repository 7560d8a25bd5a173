"""Noise by class, image, group and annotator; parts that repeat; classes that are absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsca.cli import execute
from fedgsca.config import load_config
from fedgsca.data.load import load
from fedgsca.data.partition import partition
from fedgsca.errors import ConfigError
from fedgsca.federation.label_noise import measure_likeness
from fedgsca.federation.simulation import prepare
from fedgsca.lab.plan import parse_noises
from fedgsca.noise import (
    SiteNoise,
    corrupt,
    fixed_sites,
    parse_noise,
    read_site_noise,
    transition_matrix,
)
from fedgsca.noise.kinds.readers import majority_matrix, make_panel, scale_to_mean
from fedgsca.noise.transition import read_annotators
from fedgsca.rng import stream
from tests.toys import toy_npz

C = 4
LABELS = np.arange(4000) % C


def kind_of(text: str) -> SiteNoise:
    noise = read_site_noise(text)
    assert noise is not None
    return noise


@pytest.mark.parametrize("text", ["R40/10/0", "I30", "G20", "A", "V", "A30x3", "V12.5x5", "O20"])
def test_texts_are_read_back(text: str) -> None:
    noise = kind_of(text)
    assert str(noise) == text and read_site_noise(str(noise)) == noise
    assert noise.title and noise.describe()


@pytest.mark.parametrize(
    "text", ["R40", "R40/", "R140/10", "A30", "A0x3", "A30x9", "V70x3", "I101"]
)
def test_wrong_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_noise(text, 4)
    assert error.value.code == "noise.invalid-specification"


# ---- by class ----


def test_each_class_has_its_rate_and_the_last_is_for_all_others() -> None:
    matrix = transition_matrix(kind_of("R40/10"), C)
    assert np.diag(matrix) == pytest.approx([0.6, 0.9, 0.9, 0.9])
    assert matrix.sum(axis=1) == pytest.approx(np.ones(C))
    assert matrix[0, 1:] == pytest.approx([0.4 / 3] * 3)


# ---- by image ----


def test_doubtful_images_are_mislabelled_more_often_and_the_mean_is_the_rate() -> None:
    rng = stream(0, "likeness")
    likeness = rng.normal(0, 1, (len(LABELS), C))
    likeness[np.arange(len(LABELS)), LABELS] += 2.0
    given = corrupt(LABELS, kind_of("I30"), num_classes=C, likeness=likeness, rng=stream(1, "draw"))
    wrong = given != LABELS
    assert wrong.mean() == pytest.approx(0.3, abs=0.03)
    own = likeness[np.arange(len(LABELS)), LABELS]
    margin = own - np.where(np.eye(C, dtype=bool)[LABELS], -np.inf, likeness).max(axis=1)
    assert wrong[margin < 0].mean() > 2 * wrong[margin > 2].mean()
    # the wrong label is a class that the image looks like
    rival = np.where(np.eye(C, dtype=bool)[LABELS], -np.inf, likeness).argmax(axis=1)
    assert (given[wrong] == rival[wrong]).mean() > 0.5


def test_the_rate_of_a_site_is_kept_when_a_few_images_carry_the_doubt() -> None:
    doubt = np.concatenate([np.full(990, 1e-6), np.full(10, 1.0)])
    rates = scale_to_mean(doubt, 0.2)
    assert rates.mean() == pytest.approx(0.2, abs=1e-6) and rates.max() <= 0.95
    assert scale_to_mean(np.zeros(5), 0.2) == pytest.approx([0.2] * 5)


def test_instance_noise_has_no_matrix_and_needs_likeness() -> None:
    with pytest.raises(ConfigError) as error:
        transition_matrix(kind_of("I30"), C)
    assert error.value.code == "noise.no-transition-matrix"
    with pytest.raises(ConfigError) as error:
        corrupt(LABELS, kind_of("I30"), num_classes=C, rng=stream(0))
    assert error.value.code == "noise.missing-likeness"


def test_a_simulation_measures_likeness_and_keeps_rates_per_site() -> None:
    config = load_config(
        data__source=str(toy_npz(train=600)), noise__spec="0-I20-I40-S40", method="fedavg"
    )
    experiment = prepare(config)
    rates = []
    for name, samples in experiment.sites.items():
        truth = experiment.truth.get(name, samples.labels)
        rates.append(float((samples.labels != truth).mean()))
    assert rates == pytest.approx([0, 0.2, 0.4, 0.4], abs=0.12)
    table = experiment.table
    train = table.rows("train")
    likeness = measure_likeness(table)[train]
    assert (likeness.argmax(axis=1) == table.labels[train]).mean() > 0.8
    np.testing.assert_allclose(np.exp(likeness).sum(axis=1), 1)
    again = prepare(config)
    assert all((again.sites[n].labels == experiment.sites[n].labels).all() for n in again.sites)


def test_annotators_err_on_hard_images_and_keep_their_rates() -> None:
    # of every class, half of the images are clear
    likeness = np.log(np.full((len(LABELS), C), 0.5 / (C - 1)))
    is_clear = np.arange(len(LABELS)) // C % 2 == 1
    likeness[np.arange(len(LABELS)), LABELS] = np.where(is_clear, 0.0, -3.0)
    noise = kind_of("A30x3")
    given = corrupt(LABELS, noise, num_classes=C, likeness=likeness, rng=stream(3, "draw"))
    wrong = given != LABELS
    assert wrong[~is_clear].mean() > 1.5 * wrong[is_clear].mean()
    expected = 1 - np.diag(transition_matrix(noise, C)).mean()
    assert wrong.mean() == pytest.approx(expected, abs=0.02)


# ---- by group ----


def test_groups_differ_and_their_mean_is_the_rate() -> None:
    groups = np.repeat(np.arange(400), 10)
    given = corrupt(LABELS, kind_of("G30"), num_classes=C, groups=groups, rng=stream(0, "groups"))
    wrong = given != LABELS
    by_group = wrong.reshape(400, 10).mean(axis=1)
    assert wrong.mean() == pytest.approx(0.3, abs=0.06)
    assert by_group.std() > 1.7 * np.sqrt(0.3 * 0.7 / 10), "far more uneven than independent draws"
    whole = corrupt(LABELS, kind_of("G100"), num_classes=C, groups=groups, rng=stream(0))
    assert (whole != LABELS).all()


def test_noise_by_group_needs_groups() -> None:
    config = load_config(data__source=str(toy_npz()), noise__spec="G20", method="fedavg")
    with pytest.raises(ConfigError) as error:
        prepare(config)
    assert error.value.code == "noise.no-groups"


# ---- annotators ----


def test_one_annotator_is_the_mean_of_the_panel_and_a_vote_is_better() -> None:
    panel = make_panel(0.3, 3, C)
    assert panel.sum(axis=2) == pytest.approx(np.ones((3, C)))
    errors = 1 - np.diagonal(panel, axis1=1, axis2=2).mean(axis=1)
    assert errors.mean() == pytest.approx(0.3) and errors.std() > 0
    one = transition_matrix(kind_of("A30x3"), C)
    vote = transition_matrix(kind_of("V30x3"), C)
    assert one == pytest.approx(panel.mean(axis=0))
    assert vote.sum(axis=1) == pytest.approx(np.ones(C))
    assert np.diag(vote).mean() > np.diag(one).mean() + 0.05


def test_the_vote_matrix_is_what_votes_give() -> None:
    panel = make_panel(0.4, 3, 3)
    rng = stream(0, "votes")
    true = np.arange(30_000) % 3
    votes = np.stack([[rng.choice(3, p=m[c]) for c in true[:6000]] for m in panel])
    counts = np.stack([(votes == c).sum(axis=0) for c in range(3)], axis=1)
    noisy = counts + rng.random(counts.shape) * 0.5  # ties are drawn
    labels = noisy.argmax(axis=1)
    matrix = majority_matrix(panel)
    for c in range(3):
        shares = np.bincount(labels[true[:6000] == c], minlength=3) / 2000
        assert shares == pytest.approx(matrix[c], abs=0.04)


def test_matrices_of_annotators_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    blocks = np.concatenate([np.eye(3), np.full((3, 3), 1 / 3)])
    np.savetxt(path, blocks, delimiter=",")
    annotators = read_annotators(str(path), 3)
    assert annotators.shape == (2, 3, 3)
    matrix = transition_matrix(kind_of("A"), 3, annotators=annotators)
    assert np.diag(matrix) == pytest.approx([2 / 3] * 3)
    assert read_annotators("chaoyang", 4).shape == (3, 4, 4)
    for num_classes, code in ((4, "noise.annotators-shape"), (3, "")):
        if code:
            with pytest.raises(ConfigError) as error:
                read_annotators(str(path), num_classes)
            assert error.value.code == code
    with pytest.raises(ConfigError) as error:
        read_annotators(str(tmp_path / "none.csv"), 3)
    assert error.value.code == "noise.unreadable-annotators"
    with pytest.raises(ConfigError) as error:
        transition_matrix(kind_of("V"), 3)
    assert error.value.code == "noise.missing-annotators"


# ---- parts that repeat ----


@pytest.mark.parametrize("sites", [4, 10, 20, 50])
def test_a_star_repeats_the_parts_over_any_number_of_sites(sites: int) -> None:
    noises = parse_noise("0-S40-P20-C20*", sites)
    assert len(noises) == sites
    assert [str(noise) for noise in noises[:5]] == ["0", "S40", "P20", "C20", "0"][:sites]
    assert fixed_sites("0-S40*") is None and fixed_sites("S40") is None
    assert fixed_sites("0-S40-P20") == 3
    assert parse_noises(["0-s40%*", "S40"]) == ("0-S40*", "S40")


@pytest.mark.parametrize("spec", ["*", "S40-*", "0*-S40", "S40**"])
def test_a_star_elsewhere_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError):
        parse_noise(spec, 4)


# ---- classes that are absent ----


def test_every_site_lacks_some_classes_and_no_image_is_lost() -> None:
    table = load(str(toy_npz(train=300)))
    parts = partition(table, sites=4, scheme="missing", missing=1)
    rows = np.concatenate(list(parts.values()))
    assert sorted(rows.tolist()) == table.rows("train").tolist()
    for share in parts.values():
        assert len(np.unique(table.labels[share])) == 2
    again = partition(table, sites=4, scheme="missing", missing=1)
    assert all((again[name] == share).all() for name, share in parts.items())


def test_a_class_that_no_site_would_have_is_an_error() -> None:
    table = load(str(toy_npz()))
    with pytest.raises(ConfigError) as error:
        partition(table, sites=2, scheme="missing", missing=3)
    assert error.value.code == "data.class-nowhere"


@pytest.mark.parametrize(
    "settings",
    [{"data__partition": "missing"}, {"data__partition": "dirichlet", "data__alpha": 0.3}],
)
def test_missing_classes_and_noise_can_be_combined(settings: dict[str, Any]) -> None:
    config = load_config(
        data__source=str(toy_npz(train=400)),
        data__sites=6,
        noise__spec="0-I30-V30x3*",
        method="fedavg",
        **settings,
    )
    experiment = prepare(config)
    assert len(experiment.sites) == 6
    assert [str(noise) for noise in experiment.noise.values()] == ["0", "I30", "V30x3"] * 2


# ---- preview ----


def test_the_preview_shows_drawn_labels(capsys: pytest.CaptureFixture[str]) -> None:
    spec = "0-I30-R40/10-V30x3"
    words = ["noise", spec, "--data", str(toy_npz()), "--set", "model.feature_size=32"]
    code = execute(words)
    text = capsys.readouterr().out
    assert code == 0
    assert "I30 at site-2: labels as they were drawn" in text
    assert "V30x3: transition matrix" in text and "R40/10: transition matrix" in text
