"""data.shift: an appearance of its own for every simulated site."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedgsca.data.load import load
from fedgsca.data.shift import CHANGES, NO_CHANGE, apply_look, draw_look, parse_shift, shift_images
from fedgsca.data.table import ImageTable
from fedgsca.errors import ConfigError
from fedgsca.federation.simulation import divide, load_images, prepare
from fedgsca.labels.site_data import open_sites
from tests.toys import finished_run, toy_config


def small_table() -> ImageTable:
    return load("synthetic", train=96, test=48, image_size=32)


def parts_of(table: ImageTable, names: tuple[str, ...] = ("a", "b")) -> dict[str, np.ndarray]:
    rows = table.rows("train")
    return {name: rows[k :: len(names)] for k, name in enumerate(names)}


def test_parts_of_a_specification_belong_to_sites_in_their_order() -> None:
    assert parse_shift("strong", 3) == ["strong"] * 3
    assert parse_shift("none-Contrast+JPEG", 2) == ["none", "contrast+jpeg"]
    assert parse_shift("none-blur*", 3) == ["none", "blur", "none"]


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ("conrast", "data.unknown-shift"),
        ("none+blur", "data.unknown-shift"),
        ("none--blur", "data.unknown-shift"),
        ("none-blur", "data.wrong-number-of-shifts"),
    ],
)
def test_a_shift_that_is_not_valid_is_refused_before_data_is_read(spec: str, code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_shift(spec, 3)
    assert caught.value.code == code


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_alone_changes_an_image_and_nothing_else(name: str) -> None:
    pixels = np.asarray(small_table().images[0])
    look = draw_look(0, "a", name)
    assert replace(look, **{name: getattr(NO_CHANGE, name)}) == NO_CHANGE
    assert np.abs(apply_look(pixels, look).astype(int) - pixels).mean() > 1


def test_contrast_normalisation_removes_the_local_mean() -> None:
    ramp = np.repeat(np.linspace(0, 255, 96).astype(np.uint8)[None, :, None], 96, 0).repeat(3, 2)
    middle = apply_look(ramp, draw_look(0, "a", "contrast"))[24:72, 24:72].astype(float)
    assert np.abs(middle - 128).max() < 8


def test_a_look_depends_on_seed_and_site_only() -> None:
    assert draw_look(1, "a", "strong") == draw_look(1, "a", "strong")
    assert len({draw_look(seed, site, "strong") for seed in (1, 2) for site in "abc"}) == 6


def test_sites_keep_their_look_when_another_one_joins() -> None:
    table = small_table()
    parts = parts_of(table)
    alone = shift_images(table, {"a": parts["a"]}, "strong", 7)
    both = shift_images(table, parts, "strong", 7)
    assert np.array_equal(alone.images[parts["a"]], both.images[parts["a"]])
    assert np.array_equal(alone.images[parts["b"]], table.images[parts["b"]])
    assert alone.fingerprint != both.fingerprint != table.fingerprint


def test_no_shift_is_the_same_table() -> None:
    table = small_table()
    assert shift_images(table, parts_of(table), "none", 0) is table


def test_test_images_have_the_look_of_a_site_that_sees_their_class() -> None:
    table = replace(small_table(), groups=None)
    train, test = table.rows("train"), table.rows("test")
    is_low = table.labels[train] < 2
    parts = {"low": train[is_low], "high": train[~is_low]}
    shifted = shift_images(table, parts, "none-contrast", 0)
    is_same = np.array([np.array_equal(shifted.images[r], table.images[r]) for r in test])
    assert np.array_equal(is_same, table.labels[test] < 2)


def test_images_of_a_group_or_a_named_site_have_one_look() -> None:
    table = small_table()
    test = table.rows("test")
    groups = np.array([f"patient {row // 3}" for row in range(len(table))])
    shifted = shift_images(replace(table, groups=groups), parts_of(table), "none-blur", 0)
    is_same = np.array([np.array_equal(shifted.images[r], table.images[r]) for r in test])
    for group in np.unique(groups[test]):
        assert len(set(is_same[groups[test] == group])) == 1
    named = replace(table, groups=None, site=np.full(len(table), "a"))
    shifted = shift_images(named, parts_of(table), "none-blur", 0)
    assert np.array_equal(shifted.images[test], table.images[test])


def test_features_of_the_users_own_cannot_be_shifted() -> None:
    table = small_table()
    table = replace(table, features=np.zeros((len(table), 2), np.float32))
    with pytest.raises(ConfigError) as caught:
        shift_images(table, parts_of(table), "blur", 0)
    assert caught.value.code == "data.shift-needs-images"


def test_the_same_labels_are_wrong_with_and_without_a_shift() -> None:
    config, shifted = toy_config("fedavg"), toy_config("fedavg", data__shift="strong")
    before, after = divide(config), divide(shifted)
    assert before.table.fingerprint != after.table.fingerprint
    for site in before.rows:
        assert np.array_equal(before.rows[site], after.rows[site])
        assert np.array_equal(before.given[site], after.given[site])
    assert prepare(shifted).signature() != prepare(config).signature()
    assert load_images(shifted).fingerprint == after.table.fingerprint


def test_frozen_features_are_those_of_the_shifted_images() -> None:
    config = toy_config("fedavg", frozen=True)
    shifted = toy_config("fedavg", frozen=True, data__shift="none-none-colour-none")
    before, after = prepare(config), prepare(shifted)
    assert np.array_equal(before.sites["site-1"].inputs, after.sites["site-1"].inputs)
    assert not np.array_equal(before.sites["site-3"].inputs, after.sites["site-3"].inputs)


def test_an_audit_shows_the_images_that_the_site_trained_on() -> None:
    config = toy_config("fedgsca-e", frozen=True, data__shift="strong")
    images = prepare(config).table.images
    site_data = open_sites(finished_run(config))["site-2"]
    assert np.array_equal(site_data.image(0), images[site_data.rows[0]])
    assert site_data.originals is None
