"""What the parties of a deployment see: class names are matched by name, the coordinator's settings are checked as a whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import papers
import pytest
from toys import toy_config, toy_npz

from fedgsca.config import load_config
from fedgsca.data.align_classes import with_classes
from fedgsca.data.load import load
from fedgsca.engine.node_registry import NodeRegistry
from fedgsca.errors import ClassListError, ConfigError
from fedgsca.experiment.deployment import prepare_coordinator, prepare_site, site_table
from fedgsca.experiment.simulation import prepare


def test_labels_are_renumbered_by_name() -> None:
    table = replace(load(str(toy_npz())), classes=("b", "c", "a"))
    made = with_classes(table, ("a", "b", "c", "d"))
    assert made.classes == ("a", "b", "c", "d")
    assert [made.classes[k] for k in made.labels] == [table.classes[k] for k in table.labels]
    assert made.fingerprint != table.fingerprint and with_classes(table, table.classes) is table
    with pytest.raises(
        ClassListError, match="1 of its classes are not in the list of the consortium, first: c"
    ):
        with_classes(table, ("a", "b"))


def test_the_coordinator_is_told_of_every_problem_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        prepare_coordinator(
            load_config(data__source="sites", noise__spec="S40", federation__sites=["a", "a"])
        )
    for words in (
        "data.classes is not set",
        "data.image_size is not set",
        "federation.sites has a name twice",
        "simulations",
    ):
        assert words in caught.value.message
    with pytest.raises(ConfigError, match="nothing to simulate"):
        prepare(load_config(data__source="sites"))


def test_a_coordinator_without_images_knows_names_only() -> None:
    asked = {
        "data__source": "sites",
        "data__classes": ["x", "y"],
        "data__image_size": 12,
        "federation__sites": ["b", "a"],
    }
    seen = prepare_coordinator(load_config(**asked))
    assert seen.names == ("a", "b") and seen.dims["K"] == 2 and seen.dims["C"] == 2
    assert not seen.sites and seen.test is None and len(seen.table) == 0
    other = prepare_coordinator(load_config(**{**asked, "federation__sites": ["b", "c"]}))
    assert seen.signature() != other.signature()


def test_a_site_sees_its_own_images_only() -> None:
    asked = {
        "data__source": "sites",
        "data__classes": ["class 0", "class 1", "class 2"],
        "federation__sites": ["a", "b"],
    }
    seen = prepare_site(load_config(**asked), "a", str(toy_npz()))
    assert (
        set(seen.sites) == {"a"}
        and seen.names == ("a", "b")
        and seen.test is not None
        and not seen.truth
    )
    alone = prepare(toy_config("fedavg"), only="site-2")
    everyone = prepare(toy_config("fedavg"))
    assert set(alone.sites) == {"site-2"} and alone.names == everyone.names and alone.test is None
    assert np.array_equal(alone.sites["site-2"].labels, everyone.sites["site-2"].labels)
    assert np.array_equal(alone.sites["site-2"].inputs, everyone.sites["site-2"].inputs)


def test_a_site_reads_the_split_and_the_labels_that_the_configuration_names(tmp_path: Path) -> None:
    papers.chaoyang(tmp_path / "data")
    source = f"chaoyang:{tmp_path / 'data'}"
    asked = {"data__source": "sites", "federation__sites": ["a"]}
    given = {
        rule: prepare_site(load_config(**asked, data__label=rule), "a", source).sites["a"].labels
        for rule in ("released", "drawn")
    }
    for rule, labels in given.items():
        plain = load(source, label=rule, need_test=False)
        assert np.array_equal(labels, plain.trained_on[plain.rows("train")])
    assert not np.array_equal(given["released"], given["drawn"]), (
        "the drawn pathologist disagrees now and then"
    )
    with pytest.raises(ConfigError, match=r"data\.label = 'drawn' is not known to the source"):
        prepare_site(load_config(**asked, data__label="drawn"), "a", str(toy_npz()))


def test_corrected_labels_may_be_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    table = site_table(load_config(data__source="sites"), str(toy_npz()))
    rows, other = table.rows("train"), (table.labels + 1) % table.num_classes
    (tmp_path / "new.csv").write_text(
        "file,label\n" + "".join(f"{table.ids[i]},{table.classes[other[i]]}\n" for i in rows)
    )
    given = prepare_site(
        load_config(data__source="sites", federation__sites=["a"]),
        "a",
        str(toy_npz()),
        Path("~/new.csv"),
    )
    assert np.array_equal(given.sites["a"].labels, other[rows])


def test_the_coordinators_test_images_are_read_by_the_same_rule(tmp_path: Path) -> None:
    papers.odir(tmp_path / "data")
    source = f"odir:{tmp_path / 'data'}"
    classes = list(load(source).classes)
    asked = {
        "data__source": "sites",
        "data__classes": classes,
        "data__image_size": 16,
        "federation__sites": ["a"],
    }
    sizes = {
        split: len(
            prepare_coordinator(
                load_config(**asked, data__split=split, federation__test=source)
            ).table.rows("test")
        )
        for split in ("published", "patient")
    }
    for split, size in sizes.items():
        assert size == len(load(source, split=split, image_size=16).rows("test"))
    assert sizes["published"] != sizes["patient"]


def test_defaults_of_a_deployment_do_not_rename_old_experiments() -> None:
    tree = load_config().to_tree()
    assert not {"classes"} & set(tree["data"]) and not {"deadline", "sites", "test"} & set(
        tree["federation"]
    )


def test_the_roll() -> None:
    roll = NodeRegistry(("a", "b"))
    assert roll.strangers([1, 2, 3]) == [1, 2, 3]
    assert roll.enter(1, "a", "", None) is None
    assert roll.enter(2, "a", "", None) == "another node is a already"
    assert roll.enter(3, "c", "", None) == "c is not one of the experiment's sites"
    assert roll.enter(4, "a", "b", None) == "it calls itself a, but its key is registered as b"
    assert (
        roll.missing() == []
        and "registered as b" in roll.why_absent("b")
        and roll.strangers([1, 2, 3, 4, 5]) == [5]
    )
    roll.pardon()
    assert roll.missing() == ["b"] and roll.strangers([1, 2, 3]) == [2, 3]
    roll.forget_absent([2])
    assert roll.nodes == {} and roll.enter(2, "a", "", None) is None
