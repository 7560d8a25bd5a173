"""Text, registries and tables: helpers that every layer uses."""

from __future__ import annotations

import pytest

from fedgsca.support.text import (
    did_you_mean,
    duration,
    fold_name,
    join_words,
    number,
    percent,
    plural,
    signed,
    size_text,
    suggest,
)

METHODS = ("fedavg", "fedprox", "fedrobust", "fedcorr", "fedgp", "fedfixer", "fednoro", "fedgsca")


@pytest.mark.parametrize(
    ("word", "candidate"),
    [
        ("fedavgg", "fedavg"),
        ("FedAVG", "fedavg"),
        ("fed-gsca", "fedgsca"),
        ("fdeavg", "fedavg"),  # neighbours exchanged
        ("gsca", "fedgsca"),  # the only one that contains it
        ("fedgs", "fedgsca"),  # the only one that begins with it, although fedgp is nearer
    ],
)
def test_a_misspelled_or_shortened_name_is_recognised(word: str, candidate: str) -> None:
    assert suggest(word, METHODS) == candidate


@pytest.mark.parametrize("word", ["foo", "fed", "fedx", "gp", "", "x"])
def test_a_word_without_a_similar_name_gets_no_suggestion(word: str) -> None:
    assert suggest(word, METHODS) is None


def test_short_words_are_not_confused() -> None:
    assert suggest("--gpu", ("--out", "--json", "--device")) is None
    assert suggest("gpu", ("cpu", "cuda", "auto")) is None


def test_the_hint_is_empty_without_a_suggestion() -> None:
    assert did_you_mean("fedavgg", METHODS) == "did you mean 'fedavg'? "
    assert did_you_mean("foo", METHODS) == ""


def test_folded_names_ignore_capitals_spaces_and_hyphens() -> None:
    assert fold_name("Ulcer - Site_ID") == fold_name("ulcersiteid")
    assert fold_name("-") == "-"


def test_counts_and_lists_read_as_in_a_sentence() -> None:
    assert [plural(n, "site") for n in (0, 1, 1200)] == ["0 sites", "1 site", "1,200 sites"]
    assert plural(3, "class", "classes") == "3 classes"
    assert join_words([]) == ""
    assert join_words(["a"]) == "a"
    assert join_words(["a", "b", "c"]) == "a, b and c"
    assert join_words(["a", "b"], "or") == "a or b"


def test_numbers_as_text() -> None:
    assert number(71.349) == "71.3"
    assert percent(0.204) == "20.4 %"
    assert number(None) == percent(None) == "–"
    assert signed(-0.125, 2) == "−0.12"
    assert signed(0.001, 2) == signed(-0.001, 2) == "0.00"


def test_durations_and_sizes_use_the_unit_that_fits() -> None:
    assert [duration(s) for s in (3.21, 9.96, 59.7, 200, 7300)] == [
        "3.2 s",
        "10 s",
        "1 min 0 s",
        "3 min 20 s",
        "2 h 1 min",
    ]
    assert [size_text(s) for s in (812, 3_400_000, 6 * 10**9, 2 * 10**12)] == [
        "812 B",
        "3.4 MB",
        "6.0 GB",
        "2.0 TB",
    ]
