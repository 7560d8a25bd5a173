"""The views of the parties of a deployment: classes are matched by name, settings are checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsca.config import load_config
from fedgsca.data.class_names import align_classes
from fedgsca.data.load import load
from fedgsca.errors import ClassListError, ConfigError
from fedgsca.federation.deployment import prepare_coordinator, prepare_site, site_table
from fedgsca.federation.simulation import prepare
from tests import papers
from tests.toys import toy_config, toy_npz


def test_labels_are_renumbered_by_name() -> None:
    table = replace(load(str(toy_npz())), classes=("b", "c", "a"))
    aligned = align_classes(table, ("a", "b", "c", "d"))
    assert aligned.classes == ("a", "b", "c", "d")
    names = [table.classes[label] for label in table.labels]
    assert [aligned.classes[label] for label in aligned.labels] == names
    assert aligned.fingerprint != table.fingerprint
    assert align_classes(table, table.classes) is table
    with pytest.raises(ClassListError) as error:
        align_classes(table, ("a", "b"))
    assert error.value.code == "data.class-not-in-consortium"
    assert "'c'" in error.value.message


def test_all_problems_of_the_coordinator_are_reported_at_once() -> None:
    config = load_config(data__source="sites", noise__spec="S40", federation__sites=["a", "a"])
    with pytest.raises(ConfigError) as error:
        prepare_coordinator(config)
    assert error.value.code == "deploy.invalid-configuration"
    problems = [(problem.code, problem.message.split()[0]) for problem in error.value.problems]
    assert problems == [
        ("deploy.missing-key", "data.classes"),
        ("deploy.missing-key", "data.image_size"),
        ("deploy.duplicate-name", "federation.sites"),
        ("deploy.noise-in-deployment", "noise"),
    ]


def test_a_deployment_cannot_be_simulated() -> None:
    with pytest.raises(ConfigError) as error:
        prepare(load_config(data__source="sites"))
    assert error.value.code == "data.no-shared-source"


def test_a_coordinator_without_images_knows_names_only() -> None:
    keys: dict[str, Any] = {
        "data__source": "sites",
        "data__classes": ["x", "y"],
        "data__image_size": 12,
    }
    view = prepare_coordinator(load_config(**keys, federation__sites=["b", "a"]))
    assert view.names == ("a", "b")
    assert (view.dims["K"], view.dims["C"]) == (2, 2)
    assert not view.sites
    assert view.test is None
    assert len(view.table) == 0
    other_view = prepare_coordinator(load_config(**keys, federation__sites=["b", "c"]))
    assert view.signature() != other_view.signature()


def test_a_site_sees_its_own_images_only() -> None:
    classes = ["class 0", "class 1", "class 2"]
    config = load_config(data__source="sites", data__classes=classes, federation__sites=["a", "b"])
    view = prepare_site(config, "a", str(toy_npz()))
    assert set(view.sites) == {"a"}
    assert view.names == ("a", "b")
    assert view.test is not None
    assert not view.truth


def test_a_site_of_a_rehearsal_has_the_samples_of_the_simulation() -> None:
    view = prepare(toy_config("fedavg"), only="site-2")
    simulation = prepare(toy_config("fedavg"))
    assert set(view.sites) == {"site-2"}
    assert view.names == simulation.names
    assert view.test is None
    assert np.array_equal(view.sites["site-2"].labels, simulation.sites["site-2"].labels)
    assert np.array_equal(view.sites["site-2"].inputs, simulation.sites["site-2"].inputs)


def test_a_site_reads_the_labels_that_the_configuration_names(tmp_path: Path) -> None:
    papers.chaoyang(tmp_path / "data")
    source = f"chaoyang:{tmp_path / 'data'}"
    keys: dict[str, Any] = {"data__source": "sites", "federation__sites": ["a"]}
    labels = {}
    for rule in ("released", "drawn"):
        view = prepare_site(load_config(**keys, data__label=rule), "a", source)
        labels[rule] = view.sites["a"].labels
        table = load(source, label=rule, need_test=False)
        assert np.array_equal(labels[rule], table.trained_on[table.rows("train")])
    assert not np.array_equal(labels["released"], labels["drawn"]), "pathologists disagree"
    with pytest.raises(ConfigError, match=r"data\.label"):
        prepare_site(load_config(**keys, data__label="drawn"), "a", str(toy_npz()))


def test_the_path_of_corrected_labels_can_begin_with_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    table = site_table(load_config(data__source="sites"), str(toy_npz()))
    rows = table.rows("train")
    new_labels = (table.labels + 1) % table.num_classes
    lines = [f"{table.ids[row]},{table.classes[new_labels[row]]}\n" for row in rows]
    (tmp_path / "new.csv").write_text("file,label\n" + "".join(lines))
    config = load_config(data__source="sites", federation__sites=["a"])
    view = prepare_site(config, "a", str(toy_npz()), Path("~/new.csv"))
    assert np.array_equal(view.sites["a"].labels, new_labels[rows])


def test_the_coordinators_test_images_are_read_by_the_same_rule(tmp_path: Path) -> None:
    papers.odir(tmp_path / "data")
    source = f"odir:{tmp_path / 'data'}"
    keys: dict[str, Any] = {
        "data__source": "sites",
        "data__classes": list(load(source).classes),
        "data__image_size": 16,
        "federation__sites": ["a"],
        "federation__test": source,
    }
    sizes = {}
    for split in ("published", "patient"):
        view = prepare_coordinator(load_config(**keys, data__split=split))
        sizes[split] = len(view.table.rows("test"))
        assert sizes[split] == len(load(source, split=split, image_size=16).rows("test"))
    assert sizes["published"] != sizes["patient"]


def test_defaults_of_a_deployment_do_not_change_the_fingerprint_of_old_experiments() -> None:
    tree = load_config().to_tree()
    assert "classes" not in tree["data"]
    assert not {"deadline", "sites", "test"} & set(tree["federation"])
