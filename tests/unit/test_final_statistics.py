"""The statistics of a finished run: its file of probabilities, intervals, sites, patients."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score, roc_auc_score

from fedgsca.errors import RunFolderError
from fedgsca.federation.base import Reply
from fedgsca.federation.calibration import scale_probabilities
from fedgsca.federation.final_statistics import (
    FILE,
    FinalPredictions,
    encode_predictions,
    read_predictions_file,
    summarise_counts,
    summarise_predictions,
)
from fedgsca.federation.records import Matrix, RoundRecord, RunResult
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_result
from fedgsca.federation.site_evaluation import pool_scores
from fedgsca.lab.export.prediction import open_model
from fedgsca.lab.export.trained_model import as_evaluated, read_trained
from fedgsca.lab.export.write_export import export
from fedgsca.lab.records import Comparison
from fedgsca.lab.report.comparison_rows import with_differences
from fedgsca.lab.report.html_page import write_report
from fedgsca.lab.statistic import draw_f1
from fedgsca.rng import stream
from fedgsca.wire import Update
from tests.toys import CLASSES, digest, toy_config, toy_folder, toy_images, toy_npz


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with validation images."""
    path = tmp_path_factory.mktemp("statistics") / "run"
    run(toy_config("fedavg", source=toy_npz(val=24), train__rounds=2), path)
    return path


def make_predictions(n: int = 120, seed: int = 0) -> FinalPredictions:
    rng = stream(seed, "final")
    labels = rng.integers(CLASSES, size=n)
    odds = np.exp(rng.normal(size=(n, CLASSES)) + 1.2 * np.eye(CLASSES)[labels])
    ids = np.array([f"image {i}" for i in range(n)])
    return FinalPredictions(ids, labels, odds / odds.sum(axis=1, keepdims=True))


NAMES = tuple(f"class {c}" for c in range(CLASSES))


def test_the_result_is_what_its_file_of_probabilities_says(folder: Path) -> None:
    result, predictions = read_result(folder), read_predictions_file(folder)
    assert result is not None and predictions is not None
    assert result.statistics is not None and result.statistics.calibration is not None
    classes = tuple(result.per_class)
    assert summarise_predictions(predictions, classes, 1, "group") == result.statistics
    f1 = f1_score(predictions.labels, predictions.probs.argmax(axis=1), average="macro")
    assert result.statistics.f1.value == pytest.approx(100 * f1)
    assert result.statistics.f1.value == pytest.approx(result.last.f1), "the last round's model"
    auroc = roc_auc_score(predictions.labels, predictions.probs, multi_class="ovr")
    assert result.statistics.auroc is not None
    assert result.statistics.auroc.value == pytest.approx(100 * auroc)
    assert predictions.ids[0] == "test/0" and len(predictions.ids) == 30
    assert sum(entry.images for entry in result.statistics.calibration.bins) == 30


def test_a_stopped_run_ends_with_the_same_probabilities(folder: Path, tmp_path: Path) -> None:
    config = toy_config("fedavg", source=toy_npz(val=24), train__rounds=2)
    assert run(config, tmp_path / "run", stop_after=1) is None
    assert not (tmp_path / "run" / FILE).exists()
    result = run(config, tmp_path / "run")
    assert result is not None
    assert digest(tmp_path / "run" / FILE) == digest(folder / FILE)
    assert result.statistics == RunResult.from_json(_read(folder / "result.json")).statistics


def _read(path: Path) -> dict[str, object]:
    return dict(json.loads(path.read_text()))


def test_intervals_hold_the_score_and_need_enough_images() -> None:
    statistics = summarise_predictions(make_predictions(), NAMES, 4, "group")
    assert statistics is not None and statistics.unit == "image" and statistics.units == 120
    for interval in (statistics.f1, statistics.accuracy, statistics.auroc):
        assert interval is not None and interval.low is not None and interval.high is not None
        assert interval.low < interval.value < interval.high
    few = summarise_predictions(make_predictions(4), NAMES, 4, "group")
    assert few is not None and few.draws == 0 and few.f1.low is None


def test_probabilities_that_are_not_finite_have_no_statistics(tmp_path: Path) -> None:
    predictions = make_predictions()
    predictions.probs[3, 1] = np.nan
    assert summarise_predictions(predictions, NAMES, 4, "group") is None
    (tmp_path / FILE).write_bytes(encode_predictions(predictions))
    assert read_predictions_file(tmp_path) is None


def test_patients_are_drawn_as_a_whole_and_never_named() -> None:
    single = make_predictions(40)
    groups = np.repeat([f"patient-{i}-secret" for i in range(40)], 5)
    predictions = FinalPredictions(
        np.repeat(single.ids, 5),
        np.repeat(single.labels, 5),
        np.repeat(single.probs, 5, axis=0),
        groups,
    )
    by_image = summarise_predictions(
        FinalPredictions(predictions.ids, predictions.labels, predictions.probs), NAMES, 0, "x"
    )
    by_patient = summarise_predictions(predictions, NAMES, 0, "patient")
    assert by_image is not None and by_patient is not None
    assert by_patient.unit == "patient" and by_patient.units == 40
    assert by_patient.f1.value == pytest.approx(by_image.f1.value)
    assert _width(by_patient.f1) > 1.5 * _width(by_image.f1)
    assert by_patient.groups is not None
    assert by_patient.groups.groups == 40 and by_patient.groups.same_label == 40
    # all images of a patient are the same here, so that one prediction per patient changes nothing
    assert by_patient.groups.f1 == pytest.approx(by_patient.f1.value)
    assert by_patient.groups.mean_accuracy == pytest.approx(by_patient.accuracy.value)
    assert "secret" not in json.dumps(by_patient.to_json())


def _width(interval: object) -> float:
    return float(interval.high - interval.low)  # type: ignore[attr-defined]


def test_a_patient_with_two_labels_has_no_prediction_of_its_own() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1])
    probs = np.eye(CLASSES)[[0, 0, 1, 1, 1, 0]] * 0.8 + 0.05
    groups = np.array(["a", "a", "b", "b", "c", "c"])  # b has two labels
    ids = np.array(list("uvwxyz"))
    statistics = summarise_predictions(
        FinalPredictions(ids, labels, probs, groups), NAMES, 0, "patient"
    )
    assert statistics is not None and statistics.groups is not None
    assert statistics.groups.same_label == 2 and statistics.groups.groups == 3
    assert statistics.groups.all_wrong == 0 and statistics.groups.images_per_group == 2
    assert statistics.draws == 0, "three patients are too few for an interval"


def test_each_site_has_the_scores_of_its_own_test_images(tmp_path: Path) -> None:
    source = toy_folder("one_class")
    result = run(toy_config("fedavg", source=source, train__rounds=1), tmp_path / "run")
    predictions = read_predictions_file(tmp_path / "run")
    assert result is not None and result.statistics is not None and predictions is not None
    assert predictions.sites is not None
    assert set(result.statistics.per_site) == {"a", "b", "c"}, "d has no test images"
    rows = predictions.sites == "b"
    right = predictions.probs[rows].argmax(axis=1) == predictions.labels[rows]
    site = result.statistics.per_site["b"]
    assert site.images == 8 and site.accuracy.value == pytest.approx(100 * right.mean())
    f1 = f1_score(
        predictions.labels[rows],
        predictions.probs[rows].argmax(axis=1),
        average="macro",
        labels=np.unique(predictions.labels[rows]),
        zero_division=0,
    )
    assert site.f1.value == pytest.approx(100 * f1)


def test_counts_of_the_sites_are_enough_for_intervals() -> None:
    matrices: dict[str, Matrix] = {
        "a": ((30, 10), (5, 15)),
        "b": ((20, 0), (10, 10)),
        "c": ((0, 0), (0, 0)),
    }
    record = RoundRecord.from_json(
        {"round": 7, "confusion": [[50, 10], [15, 25]], "site_confusions": matrices_json(matrices)}
    )
    statistics = summarise_counts(record, ("x", "y"))
    assert statistics is not None and statistics.images == 100 and statistics.round == 7
    assert statistics.accuracy.value == pytest.approx(75.0)
    assert statistics.per_site["a"].accuracy.value == pytest.approx(75.0)
    assert set(statistics.per_site) == {"a", "b"}, "a site without test images has no score"
    # the standard error of a share of 0.75 with 100 images is 4.3 points
    assert 14 < _width(statistics.accuracy) < 20
    assert statistics.auroc is None and statistics.calibration is None
    assert summarise_counts(RoundRecord.from_json({"round": 1}), ("x", "y")) is None


def matrices_json(matrices: dict[str, Matrix]) -> dict[str, object]:
    return {name: [list(row) for row in matrix] for name, matrix in matrices.items()}


@pytest.mark.parametrize(
    ("counts", "images"),
    [([[-4, 8], [0, 2]], 6), ([[3, 0], [0, 3]], 60), ([[10**10, 0], [0, 0]], 10**10)],
)
def test_a_site_that_lies_about_its_counts_is_not_counted(
    counts: list[list[int]], images: int
) -> None:
    good = np.array([[5, 1], [2, 4]])
    replies = [make_reply("a", good, 12), make_reply("b", np.array(counts), images)]
    messages: list[str] = []
    pooled_scores = pool_scores(iter(replies), {"C": 2}, messages.append)
    assert pooled_scores is not None and pooled_scores.test_counts == {"a": 12}
    assert set(pooled_scores.site_confusions or {}) == {"a"}
    assert len(messages) == 1 and messages[0].startswith("b did not test the model")


def make_reply(site: str, counts: np.ndarray, images: int) -> Reply:
    extras = {"confusion": counts.astype(np.int64), "test_loss": np.array(0.5)}
    return Reply(site, Update(site, images, {}, extras))


def test_a_damaged_file_of_probabilities_is_no_file(folder: Path, tmp_path: Path) -> None:
    content = (folder / FILE).read_bytes()
    for damaged_content in (b"", content[: len(content) // 2], b"\0" * 100):
        (tmp_path / FILE).write_bytes(damaged_content)
        assert read_predictions_file(tmp_path) is None
    assert read_predictions_file(tmp_path / "nothing") is None
    predictions = make_predictions()
    labels = predictions.labels.copy()
    labels[0] = CLASSES  # no such class
    (tmp_path / FILE).write_bytes(
        encode_predictions(FinalPredictions(predictions.ids, labels, predictions.probs))
    )
    assert read_predictions_file(tmp_path) is None


def test_a_run_of_an_older_version_has_a_report_without_the_section(
    folder: Path, tmp_path: Path
) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    shutil.copytree(folder, new)
    shutil.copytree(folder, old)
    tree = _read(old / "result.json")
    del tree["statistics"]
    (old / "result.json").write_text(json.dumps(tree))
    assert read_result(old) is not None
    texts = [write_report(path).read_text() for path in (new, old)]
    assert "How sure these numbers are" in texts[0] and "calibration error" in texts[0]
    assert "How sure these numbers are" not in texts[1] and "Class by class" in texts[1]


# ---- temperature ----


def test_the_temperature_is_fitted_on_validation_images(folder: Path, tmp_path: Path) -> None:
    result = export(folder, "safetensors", tmp_path / "scaled", temperature=True)
    fit = result.description.calibration
    assert fit is not None and fit.fitted_on == "validation images" and fit.images == 24
    assert fit.loss_after <= fit.loss_before
    assert fit.test_images == 30 and fit.test_ece_after is not None
    images = toy_images(np.arange(9) % CLASSES, seed=5)
    raw = as_evaluated(read_trained(folder))(images)
    model = open_model(tmp_path / "scaled")
    assert model.calibration == fit
    expected = scale_probabilities(raw, fit.temperature)
    assert model.probabilities(images) == pytest.approx(expected, abs=1e-5)
    card = (tmp_path / "scaled" / "MODEL_CARD.md").read_text()
    assert "fitted on 24 validation images" in card and "They are not calibrated" not in card
    assert "Confidence intervals" in card and "Average precision" in card
    plain = export(folder, "torchscript", tmp_path / "plain")
    assert plain.description.calibration is None
    card = (tmp_path / "plain" / "MODEL_CARD.md").read_text()
    assert "They are not calibrated" in card and "are not scaled" in card
    tree = _read(tmp_path / "scaled" / "model.json")
    assert tree["inside_model"]["temperature"] == fit.temperature  # type: ignore[index]


def test_a_damaged_temperature_is_refused(folder: Path, tmp_path: Path) -> None:
    export(folder, "safetensors", tmp_path / "out", temperature=True)
    path = tmp_path / "out" / "model.json"
    for value in (0, -1, "hot", None):
        tree = _read(path)
        tree["calibration"]["temperature"] = value  # type: ignore[index]
        path.write_text(json.dumps(tree))
        with pytest.raises(RunFolderError) as error:
            open_model(tmp_path / "out")
        assert error.value.code == "export.damaged-description"


def test_test_images_never_choose_the_temperature(tmp_path: Path) -> None:
    source = toy_folder("one_class")  # no validation images
    run(toy_config("fedavg", source=source, train__rounds=1), tmp_path / "run")
    with pytest.raises(RunFolderError) as error:
        export(tmp_path / "run", "safetensors", tmp_path / "out", temperature=True)
    assert error.value.code == "export.no-calibration-images"
    assert not (tmp_path / "out").exists()


def test_held_out_images_choose_it_where_there_are_no_validation_images(tmp_path: Path) -> None:
    config = toy_config(
        "fedavg", source=toy_folder("one_class"), train__rounds=1, evidence__holdout=0.4
    )
    run(config, tmp_path / "run")
    result = export(tmp_path / "run", "safetensors", tmp_path / "out", temperature=True)
    fit = result.description.calibration
    assert fit is not None and fit.has_given_labels and 20 <= fit.images < 96
    assert "given labels" in (tmp_path / "out" / "MODEL_CARD.md").read_text()


def test_too_few_images_are_refused(tmp_path: Path) -> None:
    run(toy_config("fedavg", train__rounds=1), tmp_path / "run")  # 12 validation images
    with pytest.raises(RunFolderError) as error:
        export(tmp_path / "run", "safetensors", tmp_path / "out", temperature=True)
    assert error.value.code == "export.too-few-calibration-images"


# ---- seeds ----


def test_other_test_images_get_other_draws() -> None:
    first = make_predictions(60)
    renamed = FinalPredictions(
        np.array([f"other {i}" for i in range(60)]), first.labels, first.probs
    )
    assert draw_f1(first)[0] == draw_f1(renamed)[0]
    assert not np.array_equal(draw_f1(first)[1:], draw_f1(renamed)[1:])
    assert np.array_equal(draw_f1(first), draw_f1(make_predictions(60)))


def test_a_comparison_gets_the_intervals_of_the_runs_that_have_probabilities(
    tmp_path: Path,
) -> None:
    cells = []
    for method in ("fedprox", "fedavg", "fedgsca"):
        for seed in (0, 1):
            path = f"cells/{method}-{seed}"
            cells.append({"method": method, "noise": "S40", "seed": seed, "path": path, "f1": 50.0})
            (tmp_path / path).mkdir(parents=True)
            if method != "fedprox":  # its test images are not here
                (tmp_path / path / FILE).write_bytes(
                    encode_predictions(make_predictions(50, seed=seed))
                )
    comparison = with_differences(tmp_path, Comparison.from_json({"cells": cells}))
    without, same = comparison.differences or ()
    assert (without.method, same.method) == ("fedprox", "fedgsca")
    assert without.reference == same.reference == "fedavg" and same.seeds == 2
    assert without.low is None and without.p is None
    assert (same.points, same.low, same.high, same.p) == (0.0, 0.0, 0.0, 1.0)
    assert not same.is_clear and not without.is_clear
