"""Misdiagnosis candidates: the paper's tables, files that people write, and guesses from images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedgsca.errors import ConfigError
from fedgsca.noise import SiteNoise, transition_matrix
from fedgsca.noise.candidates import TABLES, by_features, by_similarity, from_file, table_for
from fedgsca.rng import stream

# FedGP's order of the ten Kvasir-Capsule classes, in the data set's own spelling
KVASIR = [
    *("Normal clean mucosa", "Ileocecal valve", "Reduced mucosal view", "Pylorus", "Ulcer"),
    *("Angiectasia", "Foreign body", "Lymphangiectasia", "Erosion", "Blood - fresh"),
]


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_usable_as_noise(name: str) -> None:
    classes = [names.split("|")[0] for names in TABLES[name]]
    table = table_for(classes)
    assert table is not None and set(table) == set(range(len(classes)))
    assert all(len(wrong) in (0, 2) for wrong in table.values())
    matrix = transition_matrix(SiteNoise("C", 0.2), len(classes), table)
    np.testing.assert_allclose(np.diag(matrix), 0.8)


def test_the_papers_kvasir_table_in_the_data_sets_own_names() -> None:
    expected = [(), (2, 3), (1, 8), (4, 6), (3, 6), (8, 9), (4, 7), (8, 6), (2, 5), (5, 8)]
    assert table_for(KVASIR) == dict(enumerate(expected))


def test_the_papers_odir_table_by_position() -> None:
    expected = {0: (), 1: (2, 5), 2: (3, 1), 3: (4, 2), 4: (3, 1), 5: (6, 4), 6: (5, 7), 7: (6, 5)}
    by_letter = table_for(list("NDGCAHMO"))
    printed = table_for(
        [
            "Normal",
            "Hypertensive Retinopathy",
            "Glaucoma",
            "Cataract",
            "AMD",
            "Hypertension Complications",
            "Pathologic Myopia",
            "Other Diseases/Abnormalities",
        ]
    )
    assert by_letter == printed == expected


def test_order_and_case_do_not_matter_but_the_set_does() -> None:
    table = table_for([name.upper() for name in reversed(KVASIR)])
    assert table is not None
    assert table[9 - 4] == (9 - 3, 9 - 6)  # ulcer -> pylorus, foreign body
    assert table_for(KVASIR[:-1]) is None
    assert table_for([*KVASIR[:-1], "Polyp"]) is None
    assert table_for(["class 0", "class 1"]) is None


def test_similarity_finds_the_look_alikes() -> None:
    rng = stream(0, "look-alikes")
    shade = np.array([20, 40, 200, 230, 120])  # 0 and 1 are dark, 2 and 3 bright
    labels = np.repeat(np.arange(5), 30)
    images = (shade[labels, None, None, None] + rng.integers(0, 10, (150, 29, 21, 3))).astype(
        np.uint8
    )
    table = by_similarity(images, labels, 6, k=1)
    assert table == {
        0: (1,),
        1: (0,),
        2: (3,),
        3: (2,),
        4: (2,),
        5: (),
    }  # class 5 has no images: any other
    assert by_similarity(images, labels, 6) == by_similarity(images, labels, 6, k=2)
    assert all(len(by_similarity(images, labels, 5, k=9)[c]) == 4 for c in range(5))


def test_similarity_sees_layout_not_only_colour() -> None:
    images = np.zeros((30, 16, 16, 3), dtype=np.uint8)
    labels = np.repeat([0, 1, 2], 10)
    images[:10, :, :8], images[10:20, :, 8:], images[20:, :14, 8:] = (
        200,
        200,
        200,
    )  # left half, right half, most of the right
    assert by_similarity(images, labels, 3, k=1)[1] == (2,)
    assert by_similarity(images[:10], labels[:10], 3) == {0: (), 1: (), 2: ()}


def test_features_find_the_look_alikes() -> None:
    centre = np.array([[0, 0], [0, 1], [9, 9], [9, 8]])
    labels = np.repeat(np.arange(4), 500)
    features = centre[labels] + stream(0, "features").normal(0, 3, (2000, 2))
    features[:, 1] *= 1e6  # a scale is no similarity
    assert by_features(features.astype(np.float32), labels, 5, k=1) == {
        0: (1,),
        1: (0,),
        2: (3,),
        3: (2,),
        4: (),
    }


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "candidates.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_of_names(tmp_path: Path) -> None:
    path = write(
        tmp_path, '"Foreign Body" = ["ulcer"]\nulcer = ["Foreign body", "Blood"]\nBlood = "any"\n'
    )
    assert from_file(path, ["Ulcer", "Blood", "Foreign body"]) == {0: (2, 1), 1: (), 2: (0,)}


def test_all_problems_of_a_file_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, 'Ulcre = ["Blood"]\nBlood = ["Blood", "Forein body"]\nPylorus = 3\n')
    with pytest.raises(ConfigError) as error:
        from_file(path, ["Ulcer", "Blood", "Foreign body", "Pylorus"])
    assert error.value.code == "noise.invalid-candidates-file"
    problems = [(problem.code, problem.message) for problem in error.value.problems]
    expected = [
        ("noise.unknown-class", ("'Ulcre'", "'Ulcer'?")),
        ("noise.lists-itself", ("'Blood'",)),
        ("noise.unknown-class", ("'Blood'", "'Forein body'", "'Foreign body'?")),
        ("noise.not-a-list", ("'Pylorus'", "3")),
        ("noise.missing-class", ("'Ulcer'",)),
        ("noise.missing-class", ("'Foreign body'",)),
        ("noise.missing-class", ("'Pylorus'",)),
    ]
    assert [code for code, _ in problems] == [code for code, _ in expected]
    for (_, message), (_, parts) in zip(problems, expected, strict=True):
        assert all(part in message for part in parts)


def test_a_class_with_two_lines_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, 'Ulcer = ["Blood"]\nulcer = ["Blood"]\nBlood = []\n')
    with pytest.raises(ConfigError) as error:
        from_file(path, ["Ulcer", "Blood"])
    assert [problem.code for problem in error.value.problems] == ["noise.duplicate-class"]


def test_exact_names_win_over_similar_ones(tmp_path: Path) -> None:
    path = write(tmp_path, '"HER2" = ["HER2-"]\n"HER2-" = ["HER2"]\n')
    assert from_file(path, ["HER2", "HER2-"]) == {0: (1,), 1: (0,)}


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", write(tmp_path, "not toml at all")):
        with pytest.raises(ConfigError) as error:
            from_file(path, ["a", "b"])
        assert error.value.code == "noise.unreadable-candidates"
