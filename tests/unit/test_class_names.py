"""A hospital's own words for classes and columns: names.toml and [classes] of site.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedgsca.config import load_config
from fedgsca.data.load import load
from fedgsca.errors import ClassListError, DataError
from fedgsca.federation.deployment import prepare_site, site_table
from fedgsca.hospital.settings import read_settings

GERMAN = ("Gesund", "Karzinom", "gesund ")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve images with a German labels.csv."""
    monkeypatch.setenv("FEDGSCA_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "bilder"
    folder.mkdir()
    lines = ["Datei;Klasse;Patient"]
    for i in range(12):
        pixels = np.random.default_rng(i).integers(0, 256, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
        lines.append(f"{i}.png;{GERMAN[i % 2]};p{i // 2}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_names(root: Path, classes: str, columns: str = "") -> None:
    columns = columns or 'Datei = "file"\nKlasse = "label"\npatient = "group"\n'
    (root / "names.toml").write_text(f"[classes]\n{classes}\n[columns]\n{columns}")


CLASSES = 'Gesund = "healthy"\nKarzinom = "carcinoma"\n'


def test_classes_and_columns_get_the_names_of_the_file(root: Path) -> None:
    write_names(root, CLASSES)
    table = load(str(root))
    assert table.classes == ("carcinoma", "healthy")
    assert [table.classes[label] for label in table.labels[:2]] == ["healthy", "carcinoma"]
    assert table.groups is not None and len(set(table.groups)) == 6
    assert any("names.toml" in note for note in table.notes)


def test_without_the_file_the_error_names_the_columns_that_are_meant(root: Path) -> None:
    with pytest.raises(DataError) as error:
        load(str(root))
    assert "'Datei' (did you mean file?)" in error.value.message
    assert "'Klasse' (did you mean label?)" in error.value.message
    assert "names.toml" in error.value.fix


def test_the_names_change_nothing_else(root: Path) -> None:
    """The same bytes as if somebody had written the other names into the list."""
    write_names(root, CLASSES)
    with_names = load(str(root))
    (root / "names.toml").unlink()
    text = (root / "labels.csv").read_text().replace("Datei;Klasse;Patient", "file;label;group")
    text = text.replace("Gesund", "healthy").replace("Karzinom", "carcinoma")
    (root / "labels.csv").write_text(text)
    assert load(str(root)).fingerprint == with_names.fingerprint


@pytest.mark.parametrize(
    ("classes", "columns", "code"),
    [
        ('Gesund = "healthy"\n', "", "data.unmapped-class"),
        ('Gesund = "healthy"\nKarzinon = "carcinoma"\n', "", "data.unmapped-class"),
        ("Gesund = 1\n", "", "data.invalid-names"),
        ('Gesund = ""\n', "", "data.invalid-names"),
        ("Gesund\n", "", "data.invalid-names"),
        (CLASSES, 'Datei = "files"\n', "data.unknown-column-name"),
        (CLASSES, 'Datei = "file"\nKlasse = "file"\n', "data.duplicate-column"),
        (CLASSES + "[more]\n", "", "data.invalid-names"),
    ],
)
def test_mistakes_are_refused_with_a_code(
    root: Path, classes: str, columns: str, code: str
) -> None:
    write_names(root, classes, columns)
    with pytest.raises(DataError) as error:
        load(str(root))
    assert error.value.code == code and error.value.fix


def test_a_label_that_has_no_name_is_shown_with_a_similar_one(root: Path) -> None:
    write_names(root, 'Gesund = "healthy"\nKarzinon = "carcinoma"\n')
    with pytest.raises(DataError) as error:
        load(str(root))
    assert "'Karzinom'" in error.value.message and "'Karzinon'" in error.value.fix


def test_folders_as_labels_get_names_too(root: Path) -> None:
    (root / "labels.csv").unlink()
    for i in range(12):
        (root / GERMAN[i % 2]).mkdir(exist_ok=True)
        (root / f"{i}.png").rename(root / GERMAN[i % 2] / f"{i}.png")
    (root / "names.toml").write_text(f"[classes]\n{CLASSES}")
    assert load(str(root)).classes == ("carcinoma", "healthy")


def test_corrected_labels_may_have_either_name(root: Path, tmp_path: Path) -> None:
    write_names(root, CLASSES)
    table = load(str(root))
    lines = ["file,label"]
    for i, row in enumerate(table.rows("train")):
        lines.append(f"{table.ids[row]},{('Gesund', 'healthy', 'Karzinom')[i % 3]}")
    path = tmp_path / "corrected.csv"
    path.write_text("\n".join(lines) + "\n")
    corrected = load(str(root), labels=path)
    names = [corrected.classes[label] for label in corrected.labels[corrected.rows("train")]]
    assert names[:6] == ["healthy", "healthy", "carcinoma"] * 2


SITES: dict[str, Any] = {
    "data__source": "sites",
    "data__classes": ["healthy", "adenoma", "carcinoma"],
    "data__image_size": 12,
    "federation__sites": ["north"],
}


def english_header(root: Path) -> None:
    text = (root / "labels.csv").read_text()
    (root / "labels.csv").write_text(text.replace("Datei;Klasse;Patient", "file;label;group"))


def test_site_toml_translates_into_the_classes_of_the_consortium(
    root: Path, tmp_path: Path
) -> None:
    english_header(root)
    settings_path = tmp_path / "site.toml"
    settings_path.write_text(
        f'name = "north"\nstate = "state"\ndata = "{root}"\n[classes]\n{CLASSES}'
    )
    settings = read_settings(settings_path)
    config = load_config(**SITES)
    view = prepare_site(config, "north", str(root), None, settings.classes)
    assert view.table.classes == ("healthy", "adenoma", "carcinoma")
    assert set(view.table.labels.tolist()) == {0, 2}
    table = site_table(config, str(root), None, settings.classes)
    assert table.fingerprint == view.table.fingerprint


def test_the_error_without_names_shows_the_line_to_write(root: Path) -> None:
    english_header(root)
    with pytest.raises(ClassListError) as error:
        site_table(load_config(**SITES), str(root))
    assert error.value.code == "data.class-not-in-consortium"
    assert '"Gesund" = "healthy"' in error.value.fix
    with pytest.raises(ClassListError) as typo:
        site_table(load_config(**SITES), str(root), None, {"Gesund": "healty"})
    assert typo.value.code == "site.unknown-class-name" and "healthy" in typo.value.fix
    with pytest.raises(DataError) as gap:
        site_table(load_config(**SITES), str(root), None, {"Gesund": "healthy"})
    assert gap.value.code == "data.unmapped-class" and "'Karzinom'" in gap.value.message


# ---- grades ----


@pytest.fixture
def graded(root: Path) -> Path:
    """The images in a folder of four classes, of which three are grades."""
    names = ["mild", "none", "severe", "blurred"]
    lines = ["file,label", *(f"{i}.png,{names[i % 4]}" for i in range(12))]
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root


def test_an_order_numbers_the_grades_from_the_lowest(graded: Path) -> None:
    table = load(str(graded), order=("none", "mild", "severe"))
    assert table.classes == ("none", "mild", "severe", "blurred")
    assert table.order == ("none", "mild", "severe")
    before = load(str(graded))
    assert before.order == ()
    assert [table.classes[c] for c in table.labels] == [before.classes[c] for c in before.labels]


def test_names_toml_may_order_grades_that_a_hospital_lacks(graded: Path) -> None:
    (graded / "names.toml").write_text('order = ["none", "mild", "moderate", "severe"]\n')
    table = load(str(graded))
    assert table.order == ("none", "mild", "severe")
    assert any("moderate" in note for note in table.notes)
    # the experiment's own order comes first
    assert load(str(graded), order=("severe", "mild")).order == ("severe", "mild")


@pytest.mark.parametrize("order", [("none", "mlid"), ("none",), ("none", "mild", "none")])
def test_an_order_that_does_not_fit_is_refused(graded: Path, order: tuple[str, ...]) -> None:
    with pytest.raises(DataError) as caught:
        load(str(graded), order=order)
    assert caught.value.code == "data.class-order"


def test_an_order_that_is_no_list_is_refused(graded: Path) -> None:
    (graded / "names.toml").write_text('order = "mild"\n')
    with pytest.raises(DataError) as caught:
        load(str(graded))
    assert caught.value.code == "data.invalid-names"
