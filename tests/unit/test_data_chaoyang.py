"""Chaoyang: three pathologists, three rules for the label, and names that must not tell it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsca.config import load_config
from fedgsca.data.checks import check_source
from fedgsca.data.class_names import align_classes
from fedgsca.data.load import load
from fedgsca.data.reader import ReaderOptions
from fedgsca.data.readers.chaoyang import list_chaoyang
from fedgsca.errors import DataError
from fedgsca.federation.deployment import prepare_site
from fedgsca.federation.simulation import prepare
from tests import papers


@pytest.fixture(scope="session")
def complete_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return papers.chaoyang(tmp_path_factory.mktemp("chaoyang"), train=48, test=16, bom=True)


@pytest.fixture
def root(complete_root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(complete_root, tmp_path / "chaoyang"))


def edit(path: Path, change: Any) -> None:
    entries = json.loads(path.read_text("utf-8-sig"))
    path.write_text(json.dumps(change(entries)))


def test_one_pathologist_is_drawn_per_image_and_the_majority_is_the_reference(
    complete_root: Path,
) -> None:
    table = load(f"chaoyang:{complete_root}", seed=1)
    truth = [int(str(i).partition("IMG")[2][:3]) % 4 for i in table.ids]
    assert table.labels.tolist() == truth, "two of three pathologists are right here"
    assert table.given is not None
    train, differ = table.split == "train", table.given != table.labels
    assert not differ[~train].any() and 0 < differ.sum() < 24, "a third of the doubtful half, about"
    assert (table.given[differ] == (table.labels[differ] + 1) % 4).all()
    second_draw = load(f"chaoyang:{complete_root}", seed=2)
    assert (
        second_draw.given is not None
        and (second_draw.given != table.given).any()
        and (second_draw.labels == table.labels).all()
    )
    assert any("label drawn" in note and f"{differ.sum()} of 48" in note for note in table.notes)


def test_three_sites_train_on_the_drawn_labels(complete_root: Path) -> None:
    experiment = prepare(load_config(data__source=f"chaoyang:{complete_root}", method="fedavg"))
    assert list(experiment.sites) == ["site-1", "site-2", "site-3"] and set(
        experiment.truth
    ) == set(experiment.sites)
    assert {noise.kind for noise in experiment.noise.values()} == {"F"}
    released_labels = prepare(
        load_config(
            data__source=f"chaoyang:{complete_root}", data__label="released", method="fedavg"
        )
    )
    assert released_labels.truth == {}, "nobody knows how many released labels are wrong"
    config = load_config(
        data__source=f"chaoyang:{complete_root}", data__label="majority", noise__spec="S40"
    )
    assert prepare(config).truth


def test_a_site_of_a_deployment_trains_on_the_drawn_labels_in_any_order_of_classes(
    complete_root: Path,
) -> None:
    table = load(f"chaoyang:{complete_root}")
    order = tuple(reversed(table.classes))
    reverse_table = align_classes(table, order)
    assert reverse_table.given is not None and table.given is not None
    assert [order[c] for c in reverse_table.given] == [table.classes[c] for c in table.given]
    config = load_config(data__classes=list(order), method="fedavg")
    site = prepare_site(config, "north", f"chaoyang:{complete_root}").sites["north"]
    assert (
        site.labels.tolist()
        == reverse_table.given[reverse_table.rows("train")].tolist()
        != reverse_table.labels[reverse_table.rows("train")].tolist()
    )


def test_without_pathologists_the_released_label(tmp_path: Path) -> None:
    root = papers.chaoyang(tmp_path, train=24, test=8, annotators=False)
    table = load(f"chaoyang:{root}")
    assert table.given is None and any("label released" in note for note in table.notes)
    error = refused(root, label="drawn")
    assert error.code == "data.no-pathologist-labels" and "data.label=released" in error.fix


def test_where_all_three_differ_the_released_label_counts(root: Path) -> None:
    edit(
        root / "train_annotators.json",
        lambda es: [e | {"label_A": 1, "label_B": 2, "label_C": 3} for e in es],
    )
    table = load(f"chaoyang:{root}", label="majority")
    assert np.bincount(table.labels[table.split == "train"]).tolist() == [12] * 4
    assert any("all three differ (48 images)" in note for note in table.notes)


def test_names_do_not_reveal_the_label(root: Path) -> None:
    table = load(f"chaoyang:{root}")
    assert not any(re.search(r"-\d\.jpg$|-\d$", str(i), flags=re.IGNORECASE) for i in table.ids)
    assert len(set(table.ids.tolist())) == len(table)
    assert table.groups is not None and table.groups[0] == "100_4", (
        "the slide is the text before -IMG"
    )
    twin = "train/100_4-IMG000x014-1.JPG"  # differs from the first image in the digit only
    shutil.copy(root / "train/100_4-IMG000x014-0.JPG", root / twin)
    edit(root / "train.json", lambda es: [*es, {"name": twin, "label": 1}])
    ids = load(f"chaoyang:{root}", label="released").ids.tolist()
    assert len(set(ids)) == len(ids) and "train/100_4-IMG000x014#2" in ids


def test_a_slide_on_both_sides_is_reported(root: Path) -> None:
    old = json.loads((root / "test.json").read_text("utf-8-sig"))[0]["name"]
    new = old.replace("200_4", "100_4").replace("IMG000", "IMG900")
    (root / old).rename(root / new)
    edit(root / "test.json", lambda es: [{**es[0], "name": new}, *es[1:]])
    report = check_source(f"chaoyang:{root}")
    assert report.ok and any(
        "1 of 8 slides are in more than one split" in warning for warning in report.warnings
    )


def test_check_compares_with_the_published_numbers(complete_root: Path) -> None:
    report = check_source(f"chaoyang:{complete_root}", label="released", fast=True)
    assert (
        report.published_counts["train"]["adenocarcinoma"] == 1404
        and report.published_counts["test"]["all"] == 2139
    )
    assert [name for name, _ in report.lists] == [
        "train.json",
        "train_annotators.json",
        "test.json",
    ]


# ---- mistakes ----


def refused(root: Path, **options: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        load(f"chaoyang:{root}", **options)
    assert "\n" not in caught.value.message and len(caught.value.fix) > 5
    return caught.value


def test_invalid_lists(root: Path, tmp_path: Path) -> None:
    edit(root / "test.json", lambda es: [es[0] | {"label": 4}, *es[1:]])
    error = refused(root)
    assert error.code == "data.label-range" and "1 entry of test.json" in error.message
    (root / "test.json").write_text('{"name": 1}')
    assert refused(root).code == "data.invalid-json"
    (root / "test.json").write_text("[{")
    error = refused(root)
    assert error.code == "data.invalid-json" and "test.json" in error.message
    (root / "test.json").unlink()
    error = refused(root)
    assert error.code == "data.lists-not-found" and "test.json" in error.message
    (tmp_path / "lists").mkdir()
    error = refused(root, splits=tmp_path / "lists")
    assert error.code == "data.lists-not-found" and str(tmp_path / "lists") in error.message


def test_half_a_data_set(root: Path, tmp_path: Path) -> None:
    edit(root / "train_annotators.json", lambda es: es[:-2])
    error = refused(root, label="drawn")
    assert error.code == "data.no-pathologist-labels" and "2 of 48" in error.message
    edit(
        root / "train_annotators.json",
        lambda es: [{**e, "name": e["name"].replace("IMG", "PIC")} for e in es],
    )
    error = refused(root)
    assert error.code == "data.lists-differ" and "46 images" in error.message
    (root / "train_annotators.json").unlink()
    shutil.rmtree(root / "test")
    error = refused(root)
    assert error.code == "data.file-not-found"
    assert "16 of 64 listed images not found: test/" in error.message
    for wrong_root in (tmp_path, root / "train"):
        error = refused(wrong_root)
        assert error.code == "data.wrong-root" and error.fix == f"use --data chaoyang:{root}"


def test_names_that_leave_the_folder(root: Path) -> None:
    edit(root / "test.json", lambda es: [{**es[0], "name": "test/../../secret-0.JPG"}, *es[1:]])
    codes = [problem.code for problem in list_chaoyang(root, ReaderOptions()).problems]
    assert "data.path-outside-folder" in codes
    assert "1 name outside the folders" in refused(root).message


def test_one_pathologist_per_site(complete_root: Path) -> None:
    entries: dict[str, Any] = {}
    for path in complete_root.rglob("*.json"):
        for entry in json.loads(path.read_text("utf-8-sig")):
            if "label_A" in entry:
                entries[re.sub(r"-\d\.\w+$", "", entry["name"])] = entry
    config = load_config(
        data__source=f"chaoyang:{complete_root}", data__label="pathologist", method="fedavg"
    )
    experiment = prepare(config)
    assert list(experiment.sites) == ["pathologist A", "pathologist B", "pathologist C"]
    sizes = []
    for name, letter in zip(experiment.sites, "ABC", strict=True):
        ids = experiment.table.ids[experiment.rows[name]]
        labels = [int(entries[str(i)][f"label_{letter}"]) for i in ids]
        assert experiment.sites[name].labels.tolist() == labels
        sizes.append(len(ids))
    assert sum(sizes) == 48 and max(sizes) - min(sizes) <= 24
    assert any("one pathologist per site" in note for note in experiment.warnings)
    slides = {}
    for name in experiment.sites:
        groups = experiment.table.groups
        assert groups is not None
        slides[name] = set(groups[experiment.rows[name]].tolist())
    if len(set().union(*slides.values())) >= 3:
        assert not slides["pathologist A"] & slides["pathologist B"], "slides stay together"


def test_the_division_among_pathologists_depends_on_the_seed_only(complete_root: Path) -> None:
    source = f"chaoyang:{complete_root}"
    one, same, other = (load(source, seed=seed, label="pathologist") for seed in (1, 1, 2))
    assert one.site is not None and same.site is not None and other.site is not None
    assert (one.site == same.site).all() and (one.site != other.site).any()
