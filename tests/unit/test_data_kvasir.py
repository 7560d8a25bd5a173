"""Kvasir-Capsule: published splits as published, ours keep videos apart, mistakes with a fix."""

from __future__ import annotations

import csv
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fedgsca.config import load_config
from fedgsca.data.checks import check_source
from fedgsca.data.load import load
from fedgsca.data.reader import ReaderOptions
from fedgsca.data.readers.kvasir import CLASSES, list_kvasir
from fedgsca.data.table import ImageTable
from fedgsca.errors import ConfigError, DataError
from fedgsca.federation.simulation import prepare
from fedgsca.noise.candidates import KVASIR, table_for
from tests import papers


@pytest.fixture(scope="session")
def complete_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = papers.kvasir(tmp_path_factory.mktemp("kvasir") / "labelled_images")
    papers.fedgp(root, noisy="symm-0.2")
    return root


@pytest.fixture
def root(complete_root: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(complete_root, tmp_path / "kvasir"))


def read(root: Path, **options: str) -> ImageTable:
    return load(f"kvasir:{root}", **options)  # type: ignore[arg-type]


def test_fedgp_files_decide_split_sites_and_labels(complete_root: Path) -> None:
    table = read(complete_root)
    assert (
        table.classes == CLASSES
        and len(table) == 200
        and table.site is not None
        and table.groups is not None
    )
    with open(complete_root / "train-4clients-B-shuffle.csv", newline="") as handle:
        csv_labels = {
            f"{row['category']}/{row['imgname'].partition('_')[2]}": int(row["clean_label"])
            for row in csv.DictReader(handle)
        }
    labels_of_b = {
        str(i): int(label)
        for i, label in zip(
            table.ids[table.site == "B"], table.labels[table.site == "B"], strict=True
        )
    }
    assert labels_of_b == csv_labels
    assert Counter(table.split.tolist()) == {"train": 140, "val": 20, "test": 40}
    assert table.groups[0] == str(table.ids[0]).split("/")[1][:16]
    assert any("split fedgp" in note and "data.split=video" in note for note in table.notes)


def test_the_clients_are_the_sites_unless_asked_otherwise(complete_root: Path) -> None:
    source = f"kvasir:{complete_root}"
    assert list(prepare(load_config(data__source=source, method="fedavg")).sites) == [
        "A",
        "B",
        "C",
        "D",
    ]
    assert load_config(data__source=source, data__sites=4).data.partition == "column"
    assert load_config(data__source=source, data__sites=3).data.partition == "stratified"
    assert (
        load_config(data__source=source, sets=["data.split=video"]).data.partition == "stratified"
    )


def test_video_split_keeps_every_video_on_one_side(complete_root: Path) -> None:
    table = read(complete_root, split="video")
    assert table.groups is not None and table.site is None
    sides = {str(g): set(table.split[table.groups == g].tolist()) for g in np.unique(table.groups)}
    assert all(len(side) == 1 for side in sides.values()) and set.union(*sides.values()) == {
        "train",
        "val",
        "test",
    }


def test_frame_split_is_the_protocol_and_says_that_it_is_ours(root: Path) -> None:
    for path in root.glob("*.csv"):
        path.unlink()
    table = read(root)
    assert (
        Counter(table.split.tolist()) == {"train": 140, "val": 20, "test": 40}
        and table.site is not None
    )
    assert Counter(table.site[table.split == "train"].tolist()) == dict.fromkeys("ABCD", 35)
    assert any("split frame" in note and "not its published split" in note for note in table.notes)
    again = load(f"kvasir:{root}", seed=5)
    assert again.split.tolist() == table.split.tolist(), "another seed, the same test set"


def test_noisy_sets_are_given_labels_over_the_truth(complete_root: Path) -> None:
    experiment = prepare(
        load_config(data__source=f"kvasir:{complete_root}", data__label="symm-0.2", method="fedavg")
    )
    clean = read(complete_root)
    assert (experiment.table.labels == clean.labels).all()
    for name, samples in experiment.sites.items():
        assert experiment.noise[name].kind == "F"
        assert np.mean(samples.labels != experiment.truth[name]) == pytest.approx(0.2, abs=0.01)
    noisier = load_config(
        data__source=f"kvasir:{complete_root}", data__label="symm-0.2", noise__spec="S20"
    )
    with pytest.raises(ConfigError) as caught:
        prepare(noisier)
    assert caught.value.code == "noise.labels-already-noisy"
    error = refused(complete_root, label="pair-0.4")
    assert error.code == "data.lists-not-found" and "4 csv files" in error.message
    assert "noisy sets there: symm-0.2" in error.fix


def test_corrected_labels_replace_the_given_ones_not_the_truth(
    complete_root: Path, tmp_path: Path
) -> None:
    table = read(complete_root, label="symm-0.2")
    lines = [f"{table.ids[row]},{table.classes[table.labels[row]]}" for row in table.rows("train")]
    (tmp_path / "fixed.csv").write_text("file,label\n" + "\n".join(lines))
    clean_table = load(f"kvasir:{complete_root}", label="symm-0.2", labels=tmp_path / "fixed.csv")
    assert (
        clean_table.given is not None
        and (clean_table.given == clean_table.labels).all()
        and (clean_table.labels == table.labels).all()
    )


def test_the_papers_candidates_apply(complete_root: Path) -> None:
    table = table_for(read(complete_root).classes)
    assert table is not None
    assert [CLASSES[c] for c in table[CLASSES.index("Ulcer")]] == [
        "Pylorus",
        "Foreign body",
    ] and table[0] == ()
    assert len(table) == len(KVASIR)


def test_real_lists_as_published(tmp_path: Path) -> None:
    """FedGP's own files, over a tree of empty files: nothing is decoded."""
    if not papers.SHARED.is_dir():
        pytest.skip("FedGP's csv files are not here")
    for path in papers.SHARED.glob("[tv]*.csv"):
        with open(path, newline="") as handle:
            for row in csv.DictReader(handle):
                (tmp_path / row["category"]).mkdir(exist_ok=True)
                (tmp_path / row["category"] / row["imgname"].partition("_")[2]).touch()
    report = check_source(f"kvasir:{tmp_path}", splits=papers.SHARED, fast=True)
    assert report.ok and report.sites == report.published_sites == {
        "A": 2536,
        "B": 2536,
        "C": 2532,
        "D": 2529,
    }
    for split, classes in report.published_counts.items():
        assert {**report.counts[split], "all": sum(report.counts[split].values())} == classes
    leak = "2894 of 2894 test images come from a video that is also in the training set"
    assert leak in report.warnings
    assert len(report.lists) == 6 and all(len(digest) == 64 for _, digest in report.lists)
    noisy = list_kvasir(tmp_path, ReaderOptions(splits=papers.SHARED, label="pair-0.4"))
    train = [row for row in noisy.rows if row.split == "train"]
    noisy_rows = [row for row in train if row.given != row.label]
    assert (
        not noisy.problems
        and len(train) == 10133
        and len(noisy_rows) / len(train) == pytest.approx(0.4, abs=0.02)
    )
    assert all(
        (CLASSES.index(row.label) + 1) % 10 == CLASSES.index(row.given) for row in noisy_rows
    )
    video_report = check_source(f"kvasir:{tmp_path}", split="video", fast=True)
    assert video_report.ok and not any(
        "in more than one split" in warning for warning in video_report.warnings
    )
    assert all(video_report.counts[split][name] for split in ("train", "test") for name in CLASSES)


# ---- mistakes ----


def refused(root: Path, **options: str) -> DataError:
    with pytest.raises(DataError) as caught:
        read(root, **options)
    assert "\n" not in caught.value.message and len(caught.value.fix) > 5
    return caught.value


def test_wrong_roots(root: Path, tmp_path: Path) -> None:
    assert refused(tmp_path / "nowhere").code == "data.folder-not-found"
    for wrong_root in (tmp_path, root / "Ulcer"):
        error = refused(wrong_root)
        assert error.code == "data.wrong-root" and error.fix == f"use --data kvasir:{root}"
    (tmp_path / "packed").mkdir()
    error = refused(tmp_path / "packed")
    assert error.code == "data.unknown-layout" and "it contains: nothing" in error.message
    (tmp_path / "packed" / "labelled_images.zip").touch()
    error = refused(tmp_path / "packed")
    assert error.code == "data.archive-not-unpacked" and error.fix == "unpack the archives first"


def test_renamed_and_missing_folders(root: Path) -> None:
    (root / "Ileocecal valve").rename(root / "Ileocecal valv")
    shutil.rmtree(root / "Ulcer")
    error = refused(root, split="video")
    assert error.code == "data.class-folder-not-found"
    assert (
        "2 class folders not found: Ileocecal valve (is it 'Ileocecal valv'?), Ulcer"
        in error.message
    )
    # only signs and capitals differ: the same class
    (root / "Ileocecal valv").rename(root / "ileocecal_valve")
    assert "1 class folder not found: Ulcer" in refused(root, split="video").message


def test_missing_images_of_the_lists(root: Path) -> None:
    missing_paths = sorted((root / "Pylorus").iterdir())[:3]
    for path in missing_paths:
        path.unlink()
    error = refused(root)
    assert error.code == "data.file-not-found" and "--skip-unreadable" in error.fix
    assert "3 of 200 listed images not found: Pylorus/" in error.message
    table = load(f"kvasir:{root}", skip_unreadable=True)
    assert len(table) == 197 and any(
        "3 of 200 listed images not found and left out" in note for note in table.notes
    )
    report = check_source(f"kvasir:{root}")
    assert (
        not report.ok
        and sum(report.counts["train"].values()) + sum(report.counts["test"].values()) < 180
    )


def test_half_of_the_lists(root: Path) -> None:
    (root / "train-4clients-C-shuffle.csv").unlink()
    (root / "test-shuffle.csv").unlink()
    error = refused(root)
    assert error.code == "data.lists-not-found" and "2 csv files" in error.message


def test_lists_that_say_something_else(root: Path) -> None:
    path = root / "test-shuffle.csv"
    text = path.read_text()
    path.write_text("\ufeff" + text, encoding="utf-8")  # a BOM is no mistake
    assert len(read(root)) == 200
    path.write_text(text.replace("Ulcer", "Ulcr"))
    error = refused(root)
    assert error.code == "data.unknown-class" and "'Ulcr' in line" in error.message
    assert "did you mean 'Ulcer'?" in error.message
    path.write_text(text.replace("Ulcer,4", "Ulcer,5"))
    assert refused(root).code == "data.inconsistent-list"
    path.write_text(text.replace("category", "kind"))
    error = refused(root)
    assert error.code == "data.missing-column" and "category" in error.message
    path.write_text(text + text.split("\n")[1])
    error = refused(root)
    assert error.code == "data.duplicate-file" and "(the same label)" in error.message
    assert error.fix == "copy the published list again"


def test_damaged_images(root: Path) -> None:
    path = next(iter(sorted((root / "Erosion").iterdir())))
    path.write_bytes(path.read_bytes()[:200])
    error = refused(root)
    assert error.code == "data.unreadable-images" and "1 of 200 images" in error.message
    assert f"fedgsca data check kvasir:{root} --list-bad" in error.fix
    bad_files = check_source(f"kvasir:{root}").bad
    assert [bad.name for bad in bad_files] == [f"Erosion/{path.name}"]
    assert len(load(f"kvasir:{root}", skip_unreadable=True)) == 199


@pytest.mark.parametrize(
    ("source", "key", "value", "code", "fix"),
    [
        ("kvasir:x", "split", "vidoe", "data.unknown-option-value", "did you mean 'video'?"),
        ("kvasir:x", "label", "eye", "data.unknown-option-value", "use one of: clean"),
        ("synthetic", "split", "video", "data.option-not-supported", "remove data.split"),
        ("synthetic", "splits", "x", "data.option-not-supported", "remove data.splits"),
        ("chaoyang:x", "split", "published", "data.option-not-supported", "remove data.split"),
    ],
)
def test_options_of_other_sources_are_refused_before_anything_is_read(
    source: str, key: str, value: str, code: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(source, **{key: value})  # type: ignore[arg-type]
    assert caught.value.code == code and fix in caught.value.fix
