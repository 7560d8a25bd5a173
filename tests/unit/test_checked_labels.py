"""Labels that a person has checked: from a file to the evidence, the selection and the audit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsca.cli import execute
from fedgsca.data.class_names import align_classes, rename_classes
from fedgsca.data.load import load, take_rows
from fedgsca.data.table import ImageTable
from fedgsca.errors import DataError, FedgscaError
from fedgsca.evidence import (
    START_RATE,
    estimate_transition,
    explain_opinions,
    judge_labels,
    suspicion,
    symmetric_matrix,
    to_halves,
    wrong_share,
)
from fedgsca.federation.rounds import run
from fedgsca.federation.simulation import divide, prepare
from fedgsca.labels import score
from fedgsca.labels.audit_table import read_audit
from fedgsca.labels.build_audit import LabelAssessment, summarise_labels
from fedgsca.labels.site_data import SiteData
from fedgsca.labels.wrong_count import estimate_wrong, fit_models
from fedgsca.methods.parts.evidence_heads import MethodWithHeads
from fedgsca.rng import stream
from fedgsca.support.checked_labels import NO_ORIGINAL, CheckedLabels, mark_checked
from tests.helpers import Toy, toy_experiment
from tests.toys import toy_config, toy_folder, toy_npz
from tests.unit.test_audit_score import flipped, judge
from tests.unit.test_evidence_heads import MIX, Labels, site_of
from tests.unit.test_wrong_count import evidence_of

# ---- evidence ----


def review_first(site: Labels, share: float) -> tuple[np.ndarray, CheckedLabels]:
    """Labels after a review of the most suspicious ones by a person who is always right."""
    doubt = suspicion(estimate_transition(site.opinion, site.given, site.mix).posterior, site.given)
    rows = np.argsort(-doubt, kind="stable")[: round(share * len(doubt))]
    mask = np.zeros(len(doubt), bool)
    mask[rows] = True
    checked = mark_checked(mask, site.given)
    assert checked is not None
    return np.where(mask, site.truth, site.given), checked


@pytest.fixture(scope="module")
def noisy_site() -> Labels:
    return site_of(symmetric_matrix(0.3, 3), MIX, n=900, sure=1.5)


def test_a_review_of_the_worst_labels_does_not_make_the_others_look_right(
    noisy_site: Labels,
) -> None:
    """Without the labels before the review, EM sees only labels that passed it."""
    labels, checked = review_first(noisy_site, 0.25)
    num_left = np.count_nonzero(noisy_site.wrong & ~checked.mask)
    assert num_left > 60, "the review has not found all of them"
    fit = estimate_transition(noisy_site.opinion, labels, noisy_site.mix, checked=checked)
    before = estimate_transition(noisy_site.opinion, noisy_site.given, noisy_site.mix)
    np.testing.assert_allclose(fit.matrix, before.matrix, atol=0.05)
    assert suspicion(fit.posterior, labels).sum() == pytest.approx(num_left, rel=0.15)
    blind = replace(checked, original=np.full(900, NO_ORIGINAL))
    fit_without = estimate_transition(noisy_site.opinion, labels, noisy_site.mix, checked=blind)
    assert suspicion(fit_without.posterior, labels).sum() < 0.1 * num_left
    # the share before the review decides whether a site is noisy
    assert wrong_share(fit.posterior, labels, checked) == pytest.approx(0.3, abs=0.03)
    # the audit counts what is left
    estimate = estimate_wrong(fit_models(evidence_of(noisy_site.opinion), labels, checked))
    assert estimate.can_tell
    assert 900 * estimate.low <= num_left <= 900 * estimate.high
    assert 900 * estimate.share == pytest.approx(num_left, rel=0.25)


def test_a_checked_label_is_certain_and_counts_in_the_class_mix(noisy_site: Labels) -> None:
    """Without an original label it says nothing about T, whatever it is."""
    mask = np.arange(900) < 450
    checked = mark_checked(mask)
    labels = np.where(mask, noisy_site.truth, noisy_site.given)
    fit = estimate_transition(noisy_site.opinion, labels, noisy_site.mix, checked=checked)
    np.testing.assert_array_equal(fit.posterior[mask], np.eye(3)[labels[mask]])
    np.testing.assert_allclose(fit.mix, MIX, atol=0.05)
    np.testing.assert_allclose(fit.matrix, symmetric_matrix(0.3, 3), atol=0.1)


@pytest.mark.parametrize("has_original", [True, False])
def test_all_labels_may_be_checked(has_original: bool) -> None:
    site = site_of(symmetric_matrix(0.3, 3), MIX, n=60)
    original = site.given if has_original else None
    checked = mark_checked(np.ones(60, bool), original)
    assert checked is not None
    fit = estimate_transition(site.opinion, site.given, site.mix, checked=checked)
    np.testing.assert_array_equal(fit.posterior, np.eye(3)[site.given])
    assert fit.wrong_share == 0.0 and np.isfinite(fit.log_likelihood)
    judgement = judge_labels(site.opinion, site.given, np.arange(60) % 2, checked=checked)
    value = judgement.share_explained
    assert np.isfinite(value) and (has_original or value == 0.0)
    estimate = estimate_wrong(fit_models(evidence_of(site.opinion), site.given, checked))
    assert (estimate.share, estimate.low, estimate.high) == (0.0, 0.0, 0.0) and estimate.can_tell


def test_without_any_informative_label_the_rate_of_errors_stays_at_its_start() -> None:
    """A small site may have checked every label of the half that explains the other one."""
    site = site_of(symmetric_matrix(0.1, 3), MIX, n=20)
    checked = mark_checked(np.ones(20, bool))
    fit = estimate_transition(site.opinion, site.given, site.mix, checked=checked)
    np.testing.assert_allclose(fit.matrix, symmetric_matrix(START_RATE, 3))


def test_labels_without_an_original_do_not_choose_the_power(noisy_site: Labels) -> None:
    checked = mark_checked(np.arange(900) < 300)
    assert checked is not None
    halves = to_halves(np.arange(900) % 4)
    values = []
    for labels in (noisy_site.given, np.where(checked.mask, 2, noisy_site.given)):
        values.append(
            explain_opinions(
                noisy_site.opinion[None], labels, halves, noisy_site.mix[None], checked=checked
            )[1]
        )
    assert values[0] == values[1]


# ---- FedGSCA ----


def reviewed_toy(folder: Path, share: float, method: str = "fedgsca-e", **options: Any) -> Toy:
    """The toy federation; at noisy sites, the first `share` of the labels were corrected."""
    toy = toy_experiment(folder, method, samples=120, rounds=16, options=options)
    toy.method = MethodWithHeads(toy.method, range(4, 11, 5))
    for name, samples in toy.sites.items():
        mask = np.arange(120) < share * 120
        toy.sites[name] = replace(
            samples,
            labels=np.where(mask, toy.truth[name], samples.labels),
            checked=mark_checked(mask, samples.labels),
        )
    return toy


def test_fedgsca_trusts_checked_labels_and_sends_nothing_else(tmp_path: Path) -> None:
    toy = reviewed_toy(tmp_path / "a", 0.3)
    toy.run(16)
    for name, samples in toy.sites.items():
        assert samples.checked is not None
        notes = toy.notes[name]
        assert notes["clean"][samples.checked.mask].all()
    noisy = toy.updates["site-3"].extras
    assert float(noisy["delta"]) == pytest.approx(0.4, abs=0.2), "the share before the review"
    plain = reviewed_toy(tmp_path / "b", 0.0)
    assert all(samples.checked is None for samples in plain.sites.values())
    plain.run(16)
    for name, update in toy.updates.items():
        shapes = {key: array.shape for key, array in update.extras.items()}
        plain_extras = plain.updates[name].extras
        assert shapes == {key: array.shape for key, array in plain_extras.items()}


def test_the_selector_without_evidence_keeps_checked_labels(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fedgsca", samples=120, rounds=12, options={"warmup": 2})
    wrong = toy.truth["site-3"] != toy.sites["site-3"].labels
    # a person insists on labels that the model will contradict
    samples = toy.sites["site-3"]
    toy.sites["site-3"] = replace(samples, checked=mark_checked(wrong))
    toy.run(12)
    assert toy.notes["site-3"]["clean"][wrong].all()
    assert not toy.notes["site-4"]["clean"].all()


def test_no_class_joins_a_checked_label_before_the_first_evidence(tmp_path: Path) -> None:
    updates = []
    for after_warmup in (True, False):
        options = {"credal_after_warmup": after_warmup, "beta_start": 0.01}
        toy = reviewed_toy(tmp_path / str(after_warmup), 1.0, "fedgsca", **options)
        toy.run(2)
        updates.append(toy.updates["site-3"].weights)
    for name, array in updates[0].items():
        np.testing.assert_allclose(updates[1][name], array, rtol=1e-4, atol=1e-6)


# ---- the audit ----


def test_a_checked_label_is_never_listed_again() -> None:
    truth, given = flipped(400, 0.3)
    judgement = judge(truth)
    first = score.rank_labels(judgement, given)
    mask = np.zeros(400, bool)
    mask[first.order[:40]] = True
    checked = mark_checked(mask, given)
    assert checked is not None
    labels = np.where(mask, truth, given)
    ranking = score.rank_labels(judgement, labels, checked=checked)
    assert len(ranking.order) == 360
    assert not mask[ranking.order].any() and not ranking.priority[mask].any()
    assert (ranking.suspicion[mask] == 0).all()
    for rows in score.select_clean_examples(labels, ranking).values():
        assert not mask[rows].any()
    models = fit_models(judgement, labels, checked)
    estimate = score.count_errors(models, 400)
    assert estimate.low <= 80 <= estimate.high
    of_checked = score.count_errors(models, 400, mask)
    assert (of_checked.count, of_checked.low, of_checked.high) == (0, 0, 0)


def test_the_summary_measures_the_list_without_checked_labels() -> None:
    truth, given = flipped(400, 0.3)
    judgement = judge(truth)
    mask = stream(0, "check").random(400) < 0.25
    labels = np.where(mask, truth, given)
    table = load(str(toy_npz()))
    rows = np.arange(400)
    wide_table = replace(table, checked=None)
    site_data = SiteData(toy_config("fedavg"), "a", "toy", None, wide_table, rows, labels, truth)
    checked = mark_checked(mask, given)
    ranking = score.rank_labels(judgement, labels, checked=checked)
    models = fit_models(judgement, labels, checked)
    summary = summarise_labels(LabelAssessment(site_data, ranking, models, {}))
    assert summary.labels == 400 and summary.truth is not None
    assert summary.truth.num_wrong == np.count_nonzero((given != truth) & ~mask)
    assert summary.truth.precision_at["errors"] is not None
    assert summary.truth.precision_at["errors"] > 0.8


# ---- files ----

CSV = "file,label,checked,original\n"


def marked_folder(tmp_path: Path, cells: dict[int, str], columns: str = ",checked") -> Path:
    """The toy folder of images with more columns; row -> its cells, "" for the others."""
    source = toy_folder("five_samples")
    root = tmp_path / "folder"
    root.mkdir()
    for image in source.glob("*.png"):
        (root / image.name).symlink_to(image)
    lines = (source / "labels.csv").read_text().splitlines()
    commas = "," * columns.count(",")
    text = [lines[0] + columns]
    for row, line in enumerate(lines[1:]):
        text.append(line + cells.get(row, commas))
    for link in root.glob("*.png"):
        content = link.read_bytes()
        link.unlink()
        link.write_bytes(content)
    (root / "labels.csv").write_text("\n".join(text) + "\n")
    return root


def checked_rows(table: ImageTable) -> list[int]:
    return [] if table.checked is None else np.flatnonzero(table.checked.mask).tolist()


def test_a_folder_says_which_labels_were_checked(tmp_path: Path) -> None:
    cells = {0: ",1,class 2", 3: ",TRUE,", 4: ",0,class 1", 5: ",false,"}
    root = marked_folder(tmp_path, cells, ",checked,original")
    table = load(str(root))
    assert checked_rows(table) == [0, 3]
    assert table.checked is not None
    assert table.checked.original[[0, 3, 4]].tolist() == [2, NO_ORIGINAL, NO_ORIGINAL]
    plain = load(str(toy_folder("five_samples")))
    assert plain.checked is None and plain.fingerprint != table.fingerprint
    part = take_rows(table, np.array([3, 1, 0]))
    assert checked_rows(part) == [0, 2]
    assert take_rows(table, np.array([1, 2])).checked is None
    names = {"class 0": "zero", "class 1": "one", "class 2": "two"}
    renamed = align_classes(rename_classes(table, names), ["two", "one", "zero"])
    assert renamed.checked is not None
    assert renamed.classes[renamed.checked.original[0]] == "two"


def test_a_column_without_a_mark_changes_nothing(tmp_path: Path) -> None:
    root = marked_folder(tmp_path, {0: ",0", 1: ",false"})
    table = load(str(root))
    assert table.checked is None
    assert table.fingerprint == load(str(toy_folder("five_samples"))).fingerprint


@pytest.mark.parametrize(
    ("cells", "code", "text"),
    [
        ({2: ",maybe,"}, "data.checked-value", "'maybe' in line 4"),
        ({2: ",2,"}, "data.checked-value", "'2' in line 4"),
    ],
)
def test_marks_that_cannot_be_read(
    tmp_path: Path, cells: dict[int, str], code: str, text: str
) -> None:
    root = marked_folder(tmp_path, cells, ",checked,original")
    with pytest.raises(DataError) as caught:
        load(str(root))
    assert caught.value.code == code and text in caught.value.message


def test_a_review_may_remove_a_class(tmp_path: Path) -> None:
    table = load(str(marked_folder(tmp_path, {2: ",1,class 9"}, ",checked,original")))
    assert table.checked is not None and table.checked.mask.sum() == 1
    assert (table.checked.original == NO_ORIGINAL).all()
    assert any("class 9" in note for note in table.notes)


def test_data_check_counts_checked_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = marked_folder(tmp_path, {0: ",1", 1: ",1"})
    assert execute(["data", "check", str(root)]) == 0
    assert "2 labels were checked by a person" in capsys.readouterr().out
    assert execute(["data", "check", str(root), "--fast", "--json"]) == 0
    assert '"checked": 2' in capsys.readouterr().out


def write_csv(path: Path, table: ImageTable, lines: dict[str, str], header: str = CSV) -> Path:
    """A csv of all training labels; image -> the end of its line, for some of them."""
    text = [header]
    for row in table.rows("train"):
        name = str(table.ids[row])
        line = lines.get(
            name, f"{table.classes[table.labels[row]]}" + "," * (header.count(",") - 1)
        )
        text.append(f"{name},{line}\n")
    path.write_text("".join(text))
    return path


def test_corrected_labels_say_which_were_checked(tmp_path: Path) -> None:
    table = load(str(toy_npz()))
    lines = {"train/0": "class 1,1,class 0", "train/1": "class 0,1,class 0"}
    path = write_csv(tmp_path / "a.csv", table, lines)
    corrected_table = load(str(toy_npz()), labels=path)
    assert checked_rows(corrected_table) == [0, 1]
    assert corrected_table.checked is not None
    assert corrected_table.checked.original[:3].tolist() == [0, 0, NO_ORIGINAL]
    write_csv(path, table, {"train/0": "class 1,1,class 8"})
    with pytest.raises(DataError) as caught:
        load(str(toy_npz()), labels=path)
    assert caught.value.code == "data.labels-do-not-fit" and "class 8" in caught.value.message
    write_csv(path, table, {"train/0": "class 1,x,"})
    with pytest.raises(DataError) as caught:
        load(str(toy_npz()), labels=path)
    assert caught.value.code == "data.checked-value"


def marked_npz(path: Path, marks: np.ndarray) -> Path:
    with np.load(toy_npz()) as archive:
        np.savez(path, **dict(archive), train_checked=marks)
    return path


def test_arrays_say_which_labels_were_checked(tmp_path: Path) -> None:
    marks = np.arange(124) % 10 == 3
    table = load(str(marked_npz(tmp_path / "a.npz", marks)))
    assert checked_rows(table) == np.flatnonzero(marks).tolist()
    number_table = load(str(marked_npz(tmp_path / "b.npz", marks[:, None].astype(np.uint8))))
    assert number_table.fingerprint == table.fingerprint
    # a csv without the column keeps the marks of labels that it does not change
    header = "file,label\n"
    path = write_csv(tmp_path / "a.csv", table, {"train/3": "class 1"}, header)
    corrected_table = load(str(tmp_path / "a.npz"), labels=path)
    assert checked_rows(corrected_table) == np.flatnonzero(marks).tolist()[1:]
    for wrong_marks in (marks[:-1], marks * 2, marks * 0.5):
        with pytest.raises(DataError) as caught:
            load(str(marked_npz(tmp_path / "c.npz", wrong_marks)))
        assert caught.value.code in ("data.column-length", "data.checked-value")


def test_features_say_which_labels_were_checked(tmp_path: Path) -> None:
    rng = stream(0, "features")
    labels = np.arange(60) % 3
    path = tmp_path / "f.npz"
    np.savez(path, features=rng.normal(size=(60, 4)), labels=labels, checked=labels == 1)
    table = load(str(path))
    assert checked_rows(table) == np.flatnonzero(labels == 1).tolist()
    np.savez(path, features=rng.normal(size=(60, 4)), labels=labels, checked=labels)
    with pytest.raises(DataError) as caught:
        load(str(path))
    assert caught.value.code == "data.checked-value"


# ---- simulations ----


def test_marks_reach_the_sites_and_their_labels_stay_correct(tmp_path: Path) -> None:
    marks = np.arange(124) % 4 == 0
    source = marked_npz(tmp_path / "a.npz", marks)
    config = toy_config("fedgsca", source=source)
    experiment = prepare(config)
    plain = prepare(toy_config("fedgsca"))
    assert experiment.signature() != plain.signature()
    for name, samples in experiment.sites.items():
        assert samples.checked is not None
        np.testing.assert_array_equal(samples.checked.mask, marks[experiment.rows[name]])
        rows = np.flatnonzero(samples.checked.mask)
        truth = experiment.table.labels[experiment.rows[name]]
        np.testing.assert_array_equal(samples.labels[rows], truth[rows])
        np.testing.assert_array_equal(
            samples.labels[~samples.checked.mask],
            plain.sites[name].labels[~samples.checked.mask],
        )
        half = samples.part(np.arange(0, len(samples), 2))
        assert half.checked is not None
        np.testing.assert_array_equal(half.checked.mask, samples.checked.mask[::2])


def test_marks_of_a_file_of_given_labels(tmp_path: Path) -> None:
    table = load(str(toy_npz()))
    lines = {"train/0": "class 1,1,class 2", "train/5": "class 0,1,"}
    path = write_csv(tmp_path / "given.csv", table, lines)
    config = toy_config("fedgsca", noise__spec="0", noise__given=str(path))
    division = divide(config)
    assert checked_rows(division.table) == [0, 5]
    assert division.table.checked is not None
    assert division.table.checked.original[[0, 5]].tolist() == [2, NO_ORIGINAL]
    write_csv(path, table, {"train/0": "class 1,1,class 7"})
    with pytest.raises(FedgscaError) as caught:
        divide(config)
    assert "class 7" in str(caught.value)


def test_a_site_may_have_checked_all_its_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its list is empty, and there is nothing for which a network would compute features."""
    source = marked_npz(tmp_path / "a.npz", np.ones(124, bool))
    run(toy_config("fedgsca-e", source=source, train__rounds=6), tmp_path / "run")
    assert execute(["audit", str(tmp_path / "run")]) == 0
    assert "124 labels were checked by a person before" in capsys.readouterr().out
    audit = read_audit(tmp_path / "run" / "audit" / "site-1")
    assert len(audit) == 0 and audit.summary.estimated_wrong.count == 0
