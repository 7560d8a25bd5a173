"""Noise: the specification a person types, and the statistics of what it does."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsca.errors import ConfigError, DataError
from fedgsca.noise import (
    KINDS,
    Candidates,
    NoiseContext,
    NoiseKind,
    SiteNoise,
    corrupt,
    corrupt_with,
    explain_specification,
    list_kinds,
    parse_noise,
    read_site_noise,
    realised,
    register_kind,
    transition_matrix,
)
from fedgsca.noise.base import mix_with_identity, other_classes
from fedgsca.rng import stream

C = 5
CANDIDATES: Candidates = {0: (), 1: (2, 3), 2: (1,), 3: "any", 4: (0, 1)}
LABELS = np.repeat(np.arange(C), 2000)


def within(count: int, n: int, p: float) -> bool:
    """Five standard deviations of a binomial: fails by chance once in two million."""
    return bool(abs(count - n * p) <= 5 * np.sqrt(n * p * (1 - p)) + 1e-9)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("0-S40-P20-C20", [("none", 0.0), ("S", 0.4), ("P", 0.2), ("C", 0.2)]),
        ("S40", [("S", 0.4)] * 4),
        ("0", [("none", 0.0)] * 4),
        ("clean", [("none", 0.0)] * 4),
        ("0-s2.5-p20%-M", [("none", 0.0), ("S", 0.025), ("P", 0.2), ("M", 0.0)]),
        (" 0 - S100 - S0 - C.5 ", [("none", 0.0), ("S", 1.0), ("none", 0.0), ("C", 0.005)]),
    ],
)
def test_specifications(spec: str, expected: list[tuple[str, float]]) -> None:
    assert [(n.kind, n.rate) for n in parse_noise(spec, 4)] == expected


@pytest.mark.parametrize(
    "spec",
    ["", "S", "40", "X40", "S40-", "S101", "S-40-0-0", "S40,P20", "S40 P20", "0-S40-P20-Q", "S1e2"],
)
def test_nonsense_is_refused_with_an_example(spec: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_noise(spec, 4)
    assert error.value.code == "noise.invalid-specification"
    assert repr(spec) in error.value.message and "0-S40-P20-C20" in error.value.fix


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("S140", "'S140' (140 % is above 100 %)"),
        ("X40", "'X40' (unknown kind X)"),
        ("S", "'S' (without a rate in percent)"),
    ],
)
def test_the_message_says_what_is_wrong_before_the_legend(spec: str, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_noise(spec, 4)
    assert error.value.message.endswith(f"part 1 is {reason}")
    assert "S = symmetric" in error.value.fix


def test_the_message_points_at_the_bad_part() -> None:
    with pytest.raises(ConfigError) as error:
        parse_noise("0-Z40-P20-S400", 4)
    for part in ("part 2", "'Z40'", "part 4", "'S400'"):
        assert part in error.value.message
    assert "part 1" not in error.value.message and "part 3" not in error.value.message


def test_the_number_of_parts_must_fit_the_sites() -> None:
    with pytest.raises(ConfigError) as error:
        parse_noise("0-S40-P20-C20", 3)
    assert error.value.code == "noise.wrong-number-of-parts"
    assert len(parse_noise(error.value.fix.split()[-1], 3)) == 3  # the suggested example works


@given(st.lists(st.tuples(st.sampled_from("SPC"), st.integers(1, 1000)), min_size=2, max_size=6))
def test_compact_form_reads_back(parts: list[tuple[str, int]]) -> None:
    noise = [SiteNoise(kind, permille / 1000) for kind, permille in parts]
    again = parse_noise("-".join(map(str, noise)), len(noise))
    assert [n.kind for n in again] == [n.kind for n in noise]
    np.testing.assert_allclose([n.rate for n in again], [n.rate for n in noise], atol=1e-12)


def test_compact_forms() -> None:
    assert [str(n) for n in parse_noise("0-S40-P2.5-M", 4)] == ["0", "S40", "P2.5", "M"]


@pytest.mark.parametrize("kind", ["none", "S", "P", "C"])
@pytest.mark.parametrize("rate", [0.1, 0.4, 1.0])
def test_transition_rows_sum_to_one_and_keep_the_rate(kind: str, rate: float) -> None:
    matrix = transition_matrix(SiteNoise(kind, 0.0 if kind == "none" else rate), C, CANDIDATES)
    np.testing.assert_allclose(matrix.sum(axis=1), 1.0)
    np.testing.assert_allclose(np.diag(matrix), 1.0 if kind == "none" else 1.0 - rate, atol=1e-15)


def test_no_noise_changes_nothing_and_copies() -> None:
    given_labels = corrupt(LABELS, SiteNoise("none", 0.0), num_classes=C, rng=stream(0, "noise"))
    np.testing.assert_array_equal(given_labels, LABELS)
    assert given_labels is not LABELS and given_labels.dtype == np.int64


def test_symmetric_noise_is_uniform_over_the_other_classes() -> None:
    counts = np.array(
        realised(
            LABELS, corrupt(LABELS, SiteNoise("S", 0.4), num_classes=C, rng=stream(0, "S")), C
        )["counts"]
    )
    for true in range(C):
        for label in range(C):
            assert within(counts[true, label], 2000, 0.6 if true == label else 0.1)


def test_pairflip_moves_only_to_the_next_class() -> None:
    given_labels = corrupt(LABELS, SiteNoise("P", 0.3), num_classes=C, rng=stream(0, "P"))
    moved = given_labels != LABELS
    np.testing.assert_array_equal(given_labels[moved], (LABELS[moved] + 1) % C)
    assert within(int(moved.sum()), LABELS.size, 0.3)


def test_asymmetric_noise_draws_from_the_candidates_only() -> None:
    given_labels = corrupt(
        LABELS, SiteNoise("C", 0.5), num_classes=C, candidates=CANDIDATES, rng=stream(0, "C")
    )
    counts = np.array(realised(LABELS, given_labels, C)["counts"])
    assert (
        counts[1, 0] == counts[1, 4] == 0
        and within(counts[1, 2], 2000, 0.25)
        and within(counts[1, 3], 2000, 0.25)
    )
    assert within(counts[2, 1], 2000, 0.5)
    for anything in (0, 3):  # () and "any": every other class
        assert all(
            within(counts[anything, other], 2000, 0.125) for other in range(C) if other != anything
        )


@pytest.mark.parametrize(
    ("candidates", "named"),
    [
        ({0: (1,), 1: (2,)}, ("class 2", "class 3", "class 4")),
        ({**CANDIDATES, 1: (1,)}, ("class 1", "(1,)")),
        ({**CANDIDATES, 2: (7,)}, ("class 2", "(7,)")),
        ({**CANDIDATES, 2: "all"}, ("class 2", "'all'")),
    ],
)
def test_candidates_that_do_not_fit_are_refused(
    candidates: Candidates, named: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as error:
        corrupt(LABELS, SiteNoise("C", 0.2), num_classes=C, candidates=candidates, rng=stream(0))
    assert error.value.code == "noise.invalid-candidates"
    assert all(text in error.value.message for text in named)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("C", "noise.missing-candidates"),
        ("M", "noise.missing-matrix"),
        ("F", "noise.no-transition-matrix"),
    ],
)
def test_noise_that_needs_more_says_what(kind: str, code: str) -> None:
    with pytest.raises(ConfigError) as error:
        corrupt(LABELS, SiteNoise(kind, 0.0), num_classes=C, rng=stream(0))
    assert error.value.code == code


@pytest.mark.parametrize("kind", ["S", "P", "C"])
def test_one_class_cannot_be_confused(kind: str) -> None:
    with pytest.raises(ConfigError) as error:
        corrupt(np.zeros(5, dtype=int), SiteNoise(kind, 0.2), num_classes=1, rng=stream(0))
    assert error.value.code == "noise.single-class"


def test_noise_m_draws_from_its_matrix() -> None:
    matrix = np.roll(np.eye(C), 2, axis=1)
    labels = corrupt(LABELS, SiteNoise("M", 0.0), num_classes=C, matrix=matrix, rng=stream(0))
    np.testing.assert_array_equal(labels, (LABELS + 2) % C)


def test_any_matrix() -> None:
    matrix = np.array([[0.0, 1.0, 0.0], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]])
    true = np.repeat([0, 1, 2], 3000)
    counts = np.array(realised(true, corrupt_with(true, matrix, stream(0, "M")), 3)["counts"])
    assert counts[0].tolist() == [0, 3000, 0] and counts[2].tolist() == [0, 0, 3000]
    assert all(within(counts[1, j], 3000, matrix[1, j]) for j in range(3))


@pytest.mark.parametrize(
    ("matrix", "code"),
    [
        ([[1.0, 0.0]], "noise.matrix-not-square"),
        ([[0.5, 0.4], [0, 1]], "noise.matrix-not-probabilities"),
        ([[1.5, -0.5], [0, 1]], "noise.matrix-not-probabilities"),
        ([[np.nan, 1], [0, 1]], "noise.matrix-not-probabilities"),
        (np.zeros((0, 0)), "noise.matrix-not-square"),
    ],
    ids=["not square", "sums to 0.9", "negative", "nan", "empty"],
)
def test_bad_matrices_are_refused(matrix: object, code: str) -> None:
    with pytest.raises(ConfigError) as error:
        corrupt_with(np.array([0, 1]), np.array(matrix), stream(0))
    assert error.value.code == code


def test_labels_outside_the_classes_are_refused() -> None:
    for bad in ([0, 3], [-1, 0]):
        with pytest.raises(DataError) as error:
            corrupt_with(np.array(bad), np.eye(3), stream(0))
        assert error.value.code == "noise.label-out-of-range"


@given(seed=st.integers(0, 10**6), classes=st.integers(2, 8))
def test_impossible_labels_are_never_drawn(seed: int, classes: int) -> None:
    rng = stream(seed, "matrix")
    matrix = rng.dirichlet(np.full(classes, 0.2), classes) * (rng.random((classes, classes)) < 0.6)
    matrix[matrix.sum(axis=1) == 0, 0] = 1.0
    matrix /= matrix.sum(axis=1, keepdims=True)
    true = rng.integers(0, classes, 200)
    assert np.all(matrix[true, corrupt_with(true, matrix, rng)] > 0)


def test_rounding_cannot_reach_an_impossible_label() -> None:
    class AlmostOne:
        def random(self, n: int) -> np.ndarray:
            return np.full(n, np.nextafter(1.0, 0.0))

    row = np.array([0.1] * 10 + [0.0])  # the sum is just below 1 in floats
    drawn = corrupt_with(np.array([0]), np.tile(row, (11, 1)), AlmostOne())  # type: ignore[arg-type]
    assert drawn[0] == 9


def test_the_same_stream_gives_the_same_labels() -> None:
    a, b = (
        corrupt(LABELS, SiteNoise("S", 0.4), num_classes=C, rng=stream(7, "noise", "site-1"))
        for _ in range(2)
    )
    np.testing.assert_array_equal(a, b)


def test_realised_report() -> None:
    report = realised(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]), 3)
    assert report == {"samples": 4, "rate": 0.25, "counts": [[1, 1, 0], [0, 2, 0], [0, 0, 0]]}
    json.dumps(report)
    assert realised(np.array([], dtype=int), np.array([], dtype=int), 2)["rate"] == 0.0


# ---- kinds ----


@pytest.mark.parametrize("text", ["0", "S40", "P2.5", "C20", "M", "F", "H30", "U2"])
def test_every_written_form_is_read_back(text: str) -> None:
    noise = read_site_noise(text)
    assert noise is not None and str(noise) == text


@pytest.mark.parametrize(
    ("text", "title", "nominal"),
    [("0", "none", 0.0), ("S40", "symmetric 40 %", 0.4), ("M", "custom matrix", None)],
)
def test_titles_and_nominal_rates(text: str, title: str, nominal: float | None) -> None:
    noise = read_site_noise(text)
    assert noise is not None and (noise.title, noise.nominal_rate) == (title, nominal)


def test_what_each_kind_needs() -> None:
    needs = {
        kind.letter: (kind.needs_candidates, kind.is_clean, kind.is_recorded)
        for kind in list_kinds()
        if kind.order < NoiseKind.order  # those of this package
    }
    assert needs == {
        "none": (False, True, False),
        "S": (False, False, False),
        "P": (False, False, False),
        "H": (False, False, False),
        "U": (True, False, False),
        "C": (True, False, False),
        "M": (False, False, False),
        "F": (False, False, True),
        "R": (False, False, False),
        "I": (False, False, False),
        "G": (False, False, False),
        "A": (False, False, False),
        "V": (False, False, False),
        "O": (False, False, False),
    }


def test_a_specification_cannot_ask_for_labels_from_a_file() -> None:
    with pytest.raises(ConfigError) as error:
        parse_noise("F", 2)
    assert error.value.code == "noise.invalid-specification"


def test_a_class_without_wrong_labels_keeps_its_label() -> None:
    wrong = np.array([[False, True, True], [False, False, False], [True, False, False]])
    matrix = mix_with_identity(SiteNoise("S", 0.4), wrong)
    np.testing.assert_allclose(matrix, [[0.6, 0.2, 0.2], [0.0, 1.0, 0.0], [0.4, 0.0, 0.6]])


def test_a_kind_may_depend_on_how_often_the_classes_occur() -> None:
    """Only the rarer half of the classes is mislabelled."""

    @register_kind
    class RareClasses(NoiseKind):
        letter = "RARE"
        title = "rare classes"
        description = "Only the rarer half of the classes is mislabelled."

        def transition_matrix(self, noise: SiteNoise, context: NoiseContext) -> np.ndarray:
            assert context.class_counts is not None
            is_rare = context.class_counts < np.median(context.class_counts)
            return mix_with_identity(noise, other_classes(context.num_classes) & is_rare[:, None])

    labels = np.repeat([0, 1, 2, 3], [50, 400, 60, 300])
    try:
        (noise,) = parse_noise("RARE50", 1)
        given_labels = corrupt(labels, noise, num_classes=4, rng=stream(0))
        assert set(labels[given_labels != labels]) == {0, 2}
    finally:
        KINDS.unregister("RARE")


def test_a_kind_may_have_two_parameters() -> None:
    """The example in the docstring of NoiseKind."""

    @register_kind
    class FirstClassNoise(NoiseKind):
        letter = "D"
        title = "by class"
        description = "One rate for class 0, another one for all others."
        has_rate = False

        def parse(self, text: str) -> SiteNoise | None:
            match = re.fullmatch(r"D([0-9]+)/([0-9]+)", text)
            if match is None or max(int(match[1]), int(match[2])) > 100:
                return None
            return SiteNoise("D", 0.0, (int(match[1]) / 100, int(match[2]) / 100))

        def write(self, noise: SiteNoise) -> str:
            first, others = noise.parameters
            return f"D{100 * first:g}/{100 * others:g}"

        def format_title(self, noise: SiteNoise) -> str:
            first, others = noise.parameters
            return f"by class {100 * first:g} % and {100 * others:g} %"

        def transition_matrix(self, noise: SiteNoise, context: NoiseContext) -> np.ndarray:
            first, others = noise.parameters
            rates = np.where(np.arange(context.num_classes) == 0, first, others)[:, None]
            wrong = other_classes(context.num_classes) / (context.num_classes - 1)
            return (1 - rates) * np.eye(context.num_classes) + rates * wrong

    try:
        clean, noise = parse_noise("0-d30/10", 2)
        assert str(noise) == "D30/10" and noise.title == "by class 30 % and 10 %"
        assert noise.nominal_rate is None and clean.nominal_rate == 0.0
        np.testing.assert_allclose(np.diag(transition_matrix(noise, 3)), [0.7, 0.9, 0.9])
    finally:
        KINDS.unregister("D")


def test_a_new_kind_is_one_class() -> None:
    """Class-wise noise: only every second class is mislabelled."""

    @register_kind
    class EvenClasses(NoiseKind):
        letter = "E"
        title = "even classes"
        description = "Only even classes are mislabelled, as class 1."
        wrong_label = "class 1, if the class is even"

        def transition_matrix(self, noise: SiteNoise, context: NoiseContext) -> np.ndarray:
            wrong = np.eye(context.num_classes, dtype=bool)
            wrong[::2] = np.arange(context.num_classes) == 1
            return mix_with_identity(noise, wrong)

    try:
        noise = parse_noise("0-E50", 2)[1]
        assert str(noise) == "E50" and noise.title == "even classes 50 %"
        assert noise.describe() == (
            "labels 50 % of its images wrongly, as class 1, if the class is even"
        )
        assert "E = even classes" in explain_specification()
        labels = corrupt(LABELS, noise, num_classes=C, rng=stream(0))
        assert set(LABELS[labels != LABELS]) == {0, 2, 4} and set(labels[labels != LABELS]) == {1}
    finally:
        KINDS.unregister("E")


# ---- grades and reading habits ----


def test_pair_flips_of_grades_go_to_a_neighbour() -> None:
    # grades 2 < 0 < 1, and class 3 is no grade
    matrix = transition_matrix(SiteNoise("P", 0.2), 4, order=(2, 0, 1))
    other = 0.2 / 3
    expected = np.array(
        [[0.8, 0.1, 0.1, 0], [0.2, 0.8, 0, 0], [0.2, 0, 0.8, 0], [other, other, other, 0.8]]
    )
    np.testing.assert_allclose(matrix, expected)


def test_one_grade_higher_never_lowers_a_grade() -> None:
    matrix = transition_matrix(SiteNoise("H", 0.3), 4, order=(0, 1, 2))
    expected = np.array([[0.7, 0.3, 0, 0], [0, 0.7, 0.3, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    np.testing.assert_allclose(matrix, expected)
    with pytest.raises(ConfigError) as caught:
        transition_matrix(SiteNoise("H", 0.3), 4)
    assert caught.value.code == "noise.no-order"


@pytest.mark.parametrize(
    ("spec", "order", "candidates", "replacement"),
    [
        ("U2", (0, 1, 2), None, 0),  # the grade below
        ("U1", (0, 1, 2), None, 1),  # there is none below
        ("U2", (), {1: (2, 0)}, 2),  # the most similar class
        ("U3", (), {2: ()}, 0),
    ],
)
def test_a_class_that_is_never_used_becomes_one_that_is_like_it(
    spec: str, order: tuple[int, ...], candidates: Any, replacement: int
) -> None:
    noise = parse_noise(spec, 1)[0]
    assert str(noise) == spec
    matrix = transition_matrix(noise, 3, candidates, order=order)
    unused = int(spec[1:]) - 1
    assert matrix[unused, replacement] == 1
    assert (np.delete(matrix, unused, 0) == np.delete(np.eye(3), unused, 0)).all()


def test_a_class_that_does_not_exist_cannot_be_unused() -> None:
    with pytest.raises(ConfigError) as caught:
        transition_matrix(parse_noise("U4", 1)[0], 3)
    assert caught.value.code == "noise.no-such-class"
