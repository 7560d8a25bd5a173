"""Which site has which images: every row once, in the promised shares; and what leaks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedgsca.data.duplicates import copy_warnings, find_copies
from fedgsca.data.partition import Parts, leakage_warnings, partition, partition_warnings
from fedgsca.data.table import ImageTable
from fedgsca.errors import ConfigError, DataError, FedgscaError


def table(
    n: int = 203, classes: int = 4, seed: int = 0, test: int = 20, **changes: object
) -> ImageTable:
    rng = np.random.default_rng(seed)
    total = n + test
    data = ImageTable(
        name="t",
        images=rng.integers(0, 256, (total, 4, 4, 3), dtype=np.uint8),
        labels=np.minimum(rng.geometric(0.4, total) - 1, classes - 1).astype(np.int64),
        classes=tuple(f"c{i}" for i in range(classes)),
        split=np.array(["train"] * n + ["test"] * test),
        ids=np.array([f"i{i}" for i in range(total)]),
        fingerprint="",
    )
    return replace(data, **changes)  # type: ignore[arg-type]


def grouped(sizes: list[int], test: int = 4) -> ImageTable:
    groups = np.array([f"p{i}" for i, size in enumerate(sizes) for _ in range(size)] + ["t"] * test)
    return table(sum(sizes), test=test, groups=groups)


def covers(data: ImageTable, parts: Parts) -> bool:
    """Every training row at exactly one site, ascending."""
    rows = np.concatenate(list(parts.values()))
    return sorted(rows.tolist()) == data.rows("train").tolist() and all(
        (np.diff(p) > 0).all() for p in parts.values()
    )


@pytest.mark.parametrize("sites", [1, 4, 7, 203])
def test_stratified_shares_are_equal(sites: int) -> None:
    data = table()
    parts = partition(data, sites=sites, scheme="stratified", seed=1)
    assert covers(data, parts) and list(parts) == [f"site-{k + 1}" for k in range(sites)]
    sizes = [len(p) for p in parts.values()]
    assert max(sizes) - min(sizes) <= 1
    for label in range(4):
        counts = [int(np.sum(data.labels[p] == label)) for p in parts.values()]
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("scheme", ["stratified", "dirichlet", "group"])
def test_same_seed_same_parts(scheme: str) -> None:
    data = grouped([3] * 40)
    once, again, third = (partition(data, sites=4, scheme=scheme, seed=s) for s in (5, 5, 6))  # type: ignore[arg-type]
    assert all((once[k] == again[k]).all() for k in once)
    assert any(once[k].tolist() != third[k].tolist() for k in once)


@pytest.mark.parametrize("alpha", [1e-4, 0.1, 0.5, 100.0])
@pytest.mark.parametrize("seed", range(5))
def test_dirichlet_leaves_no_site_empty(alpha: float, seed: int) -> None:
    data = table()
    parts = partition(data, sites=8, scheme="dirichlet", alpha=alpha, seed=seed)
    assert covers(data, parts)
    assert min(len(p) for p in parts.values()) >= 10


def test_small_alpha_is_more_uneven() -> None:
    data = table(n=2000)

    def unevenness(alpha: float) -> float:
        parts = partition(data, sites=5, scheme="dirichlet", alpha=alpha, seed=0)
        shares = np.array(
            [np.bincount(data.labels[p], minlength=4) for p in parts.values()]
        ) / np.bincount(data.labels[:2000])
        return float(shares.std())

    assert unevenness(0.1) > 2 * unevenness(100.0)


def test_dirichlet_with_as_many_sites_as_images() -> None:
    data = table(n=30)
    parts = partition(data, sites=30, scheme="dirichlet", seed=0)
    assert covers(data, parts) and all(len(p) == 1 for p in parts.values())


def test_groups_stay_whole_and_sites_balanced() -> None:
    data = grouped([int(s) for s in np.random.default_rng(0).integers(1, 12, 50)])
    parts = partition(data, sites=4, scheme="group", seed=0)
    assert covers(data, parts) and data.groups is not None
    sizes_by_site = [set(data.groups[p]) for p in parts.values()]
    assert sum(map(len, sizes_by_site)) == 50
    sizes = [len(p) for p in parts.values()]
    assert max(sizes) - min(sizes) <= 11


def test_site_column_names_the_sites() -> None:
    data = table(n=4, test=2, site=np.array(["south", "north", "south", "north", "x", "x"]))
    for sites in (0, 2):
        parts = partition(data, sites=sites, scheme="column")
        assert {k: v.tolist() for k, v in parts.items()} == {"north": [1, 3], "south": [0, 2]}


@pytest.mark.parametrize(
    ("data", "options", "code", "value"),
    [
        (table(n=3), {"sites": 4}, "data.more-sites-than-images", "4 sites"),
        (table(), {"sites": 0}, "data.site-count", "got 0"),
        (table(), {"sites": 2, "scheme": "group"}, "data.no-groups", "t"),
        (table(), {"sites": 2, "scheme": "column"}, "data.no-site-column", "t"),
        (
            grouped([5, 5]),
            {"sites": 3, "scheme": "group"},
            "data.more-sites-than-groups",
            "2 groups",
        ),
        (
            table(n=2, test=0, site=np.array(["a", "b"])),
            {"sites": 3, "scheme": "column"},
            "data.site-count-differs",
            "2: a, b",
        ),
        (
            table(n=2, test=0, site=np.array(["a", "../b"])),
            {"sites": 2, "scheme": "column"},
            "data.site-name",
            "'../b'",
        ),
        (table(), {"sites": 2, "scheme": "dirichlet", "alpha": 0}, "data.alpha", "got 0"),
        (
            table(),
            {"sites": 8, "scheme": "dirichlet", "min_samples": 30},
            "data.minimum-too-large",
            "240",
        ),
        (table(), {"sites": 8, "min_samples": 30}, "data.site-too-small", "minimum is 30"),
        (table(), {"sites": 8, "scheme": "iid"}, "data.unknown-partition", "'iid'"),
    ],
)
def test_impossible_partitions_are_explained(
    data: ImageTable, options: dict[str, object], code: str, value: str
) -> None:
    with pytest.raises(FedgscaError) as caught:
        partition(data, **options)  # type: ignore[arg-type]
    assert isinstance(caught.value, ConfigError | DataError) and caught.value.fix
    assert caught.value.code == code and value in caught.value.message


def test_warnings_name_what_a_site_lacks() -> None:
    data = table(n=6, classes=3, test=2, labels=np.array([0, 1, 2, 0, 1, 0, 0, 1]))
    parts = {"a": np.array([0, 1, 2]), "b": np.array([3, 4]), "c": np.array([5])}
    assert partition_warnings(data, parts) == [
        "b has no image of c2",
        "c has images of one class only: c0",
    ]


def test_no_warnings_about_equal_shares() -> None:
    data = table()
    assert partition_warnings(data, partition(data, sites=4, seed=0)) == []


def test_warnings_about_groups_across_sites_and_sizes() -> None:
    data = grouped([20, 20])
    parts = {"a": np.arange(1), "b": np.arange(1, 40)}
    text = " ".join(partition_warnings(data, parts))
    assert "tenfold" in text and "1 group split across several sites" in text


def test_leakage_counts_without_names() -> None:
    groups = np.array(["p1", "p1", "p2", "p3", "p1", "p3", "p9", "p3"])
    data = table(n=4, test=4, groups=groups, split=np.array(["train"] * 4 + ["test"] * 3 + ["val"]))
    first, second = leakage_warnings(data)
    assert first.startswith(
        "2 of 4 groups are in more than one split (1 in train + test, 1 in train + val + test)"
    )
    assert second == "2 of 3 test images come from a group that is also in the training set"
    assert "p1" not in first + second


def test_no_leakage_without_shared_groups() -> None:
    assert leakage_warnings(grouped([5, 5])) == [] and leakage_warnings(table()) == []


def test_duplicates_across_splits_and_labels() -> None:
    data = table(n=10, test=4)
    images, labels = data.images.copy(), np.zeros(14, np.int64)
    images[11] = images[0]  # train and test
    images[3] = images[2]  # inside train, other label
    labels[3] = 1
    warnings = copy_warnings(find_copies(replace(data, images=images, labels=labels)))
    assert warnings == [
        "duplicate images across splits: 1 image, 1 copy in the test set",
        "duplicate images with different labels: 1 image, 2 copies in total",
        "duplicate images within one split: 1 image",
    ]
    assert copy_warnings(find_copies(data)) == []


def test_many_sites_that_lack_classes_are_one_warning() -> None:
    data = table(n=40, labels=np.arange(60) % 4)
    parts = {f"site-{i}": np.array([i, i + 4]) for i in range(20)}
    (text,) = partition_warnings(data, parts)
    assert text.startswith("20 sites of 20 lack classes, such as site-0 has images of one class")
