"""Who holds which images: every row once, in the shares that the scheme promises; and what leaks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedgsca.data.partition import Parts, describe, leakage, partition, same_image
from fedgsca.data.table import Table
from fedgsca.errors import ConfigError, DataError, FedgscaError


def table(
    n: int = 203, classes: int = 4, seed: int = 0, test: int = 20, **changes: object
) -> Table:
    rng = np.random.default_rng(seed)
    total = n + test
    made = Table(
        name="t",
        images=rng.integers(0, 256, (total, 4, 4, 3), dtype=np.uint8),
        labels=np.minimum(rng.geometric(0.4, total) - 1, classes - 1).astype(np.int64),
        classes=tuple(f"c{i}" for i in range(classes)),
        split=np.array(["train"] * n + ["test"] * test),
        ids=np.array([f"i{i}" for i in range(total)]),
        fingerprint="",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def grouped(sizes: list[int], test: int = 4) -> Table:
    groups = np.array([f"p{i}" for i, size in enumerate(sizes) for _ in range(size)] + ["t"] * test)
    return table(sum(sizes), test=test, groups=groups)


def covers(made: Table, parts: Parts) -> bool:
    """Every training row at exactly one site, ascending."""
    rows = np.concatenate(list(parts.values()))
    return sorted(rows.tolist()) == made.rows("train").tolist() and all(
        (np.diff(p) > 0).all() for p in parts.values()
    )


@pytest.mark.parametrize("sites", [1, 4, 7, 203])
def test_stratified_shares_are_equal(sites: int) -> None:
    made = table()
    parts = partition(made, sites=sites, scheme="stratified", seed=1)
    assert covers(made, parts) and list(parts) == [f"site-{k + 1}" for k in range(sites)]
    sizes = [len(p) for p in parts.values()]
    assert max(sizes) - min(sizes) <= 1
    for label in range(4):
        counts = [int(np.sum(made.labels[p] == label)) for p in parts.values()]
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("scheme", ["stratified", "dirichlet", "group"])
def test_same_seed_same_parts(scheme: str) -> None:
    made = grouped([3] * 40)
    once, again, other = (partition(made, sites=4, scheme=scheme, seed=s) for s in (5, 5, 6))  # type: ignore[arg-type]
    assert all((once[k] == again[k]).all() for k in once)
    assert any(once[k].tolist() != other[k].tolist() for k in once)


@pytest.mark.parametrize("alpha", [1e-4, 0.1, 0.5, 100.0])
@pytest.mark.parametrize("seed", range(5))
def test_dirichlet_leaves_no_site_empty(alpha: float, seed: int) -> None:
    made = table()
    parts = partition(made, sites=8, scheme="dirichlet", alpha=alpha, seed=seed)
    assert covers(made, parts)
    assert min(len(p) for p in parts.values()) >= 10


def test_small_alpha_is_more_uneven() -> None:
    made = table(n=2000)

    def unevenness(alpha: float) -> float:
        parts = partition(made, sites=5, scheme="dirichlet", alpha=alpha, seed=0)
        shares = np.array(
            [np.bincount(made.labels[p], minlength=4) for p in parts.values()]
        ) / np.bincount(made.labels[:2000])
        return float(shares.std())

    assert unevenness(0.1) > 2 * unevenness(100.0)


def test_dirichlet_with_as_many_sites_as_images() -> None:
    made = table(n=30)
    parts = partition(made, sites=30, scheme="dirichlet", seed=0)
    assert covers(made, parts) and all(len(p) == 1 for p in parts.values())


def test_groups_stay_whole_and_sites_balanced() -> None:
    made = grouped([int(s) for s in np.random.default_rng(0).integers(1, 12, 50)])
    parts = partition(made, sites=4, scheme="group", seed=0)
    assert covers(made, parts) and made.groups is not None
    held = [set(made.groups[p]) for p in parts.values()]
    assert sum(map(len, held)) == 50
    sizes = [len(p) for p in parts.values()]
    assert max(sizes) - min(sizes) <= 11


def test_site_column_names_the_sites() -> None:
    made = table(n=4, test=2, site=np.array(["south", "north", "south", "north", "x", "x"]))
    for sites in (0, 2):
        parts = partition(made, sites=sites, scheme="column")
        assert {k: v.tolist() for k, v in parts.items()} == {"north": [1, 3], "south": [0, 2]}


@pytest.mark.parametrize(
    ("made", "options", "message"),
    [
        (table(n=3), {"sites": 4}, "4 sites share 3 training images"),
        (table(), {"sites": 0}, "0 sites"),
        (table(), {"sites": 2, "scheme": "group"}, "no group"),
        (table(), {"sites": 2, "scheme": "column"}, "no site column"),
        (
            grouped([5, 5]),
            {"sites": 3, "scheme": "group"},
            "2 groups cannot be divided over 3 sites",
        ),
        (
            table(n=2, test=0, site=np.array(["a", "b"])),
            {"sites": 3, "scheme": "column"},
            "names 2: a, b",
        ),
        (
            table(n=2, test=0, site=np.array(["a", "../b"])),
            {"sites": 2, "scheme": "column"},
            "cannot name a site",
        ),
        (table(), {"sites": 2, "scheme": "dirichlet", "alpha": 0}, "alpha"),
        (table(), {"sites": 8, "scheme": "dirichlet", "min_samples": 30}, "need 240"),
        (table(), {"sites": 8, "min_samples": 30}, "fewer than 30"),
        (table(), {"sites": 8, "scheme": "iid"}, "unknown partition"),
    ],
)
def test_impossible_partitions_say_why(
    made: Table, options: dict[str, object], message: str
) -> None:
    with pytest.raises(FedgscaError, match=message) as caught:
        partition(made, **options)  # type: ignore[arg-type]
    assert isinstance(caught.value, ConfigError | DataError) and caught.value.fix


def test_describe_names_what_a_site_lacks() -> None:
    made = table(n=6, classes=3, test=2, labels=np.array([0, 1, 2, 0, 1, 0, 0, 1]))
    parts = {"a": np.array([0, 1, 2]), "b": np.array([3, 4]), "c": np.array([5])}
    assert describe(made, parts) == ["b has no image of c2", "c holds one class only: c0"]


def test_describe_is_silent_about_equal_shares() -> None:
    made = table()
    assert describe(made, partition(made, sites=4, seed=0)) == []


def test_describe_notices_groups_over_sites_and_sizes() -> None:
    made = grouped([20, 20])
    parts = {"a": np.arange(1), "b": np.arange(1, 40)}
    text = " ".join(describe(made, parts))
    assert "tenfold" in text and "1 groups stand at more than one site" in text


def test_leakage_counts_without_names() -> None:
    groups = np.array(["p1", "p1", "p2", "p3", "p1", "p3", "p9", "p3"])
    made = table(n=4, test=4, groups=groups, split=np.array(["train"] * 4 + ["test"] * 3 + ["val"]))
    first, second = leakage(made)
    assert first.startswith(
        "2 of 4 groups stand in more than one split (1 in train + test, 1 in train + val + test)"
    )
    assert second == "2 of 3 test images come from a group that is also in training"
    assert "p1" not in first + second


def test_no_leakage_without_shared_groups() -> None:
    assert leakage(grouped([5, 5])) == [] and leakage(table()) == []


def test_same_image_across_splits_and_labels() -> None:
    made = table(n=10, test=4)
    images, labels = made.images.copy(), np.zeros(14, np.int64)
    images[11] = images[0]  # train and test
    images[3] = images[2]  # inside train, other label
    labels[3] = 1
    found = same_image(replace(made, images=images, labels=labels))
    assert found == [
        "1 images stand in more than one split, 1 of the copies in the test set",
        "1 images occur more than once with different labels (2 copies)",
        "1 images occur more than once within one split",
    ]
    assert same_image(made) == []
