"""From decisions to corrected labels of the right images; the original is never overwritten."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedgsca
from fedgsca.cli import execute
from fedgsca.cli.apply import _counts_text
from fedgsca.cli.run import show_run
from fedgsca.data.load import load
from fedgsca.data.relabel import log_path, read_log
from fedgsca.errors import ConfigError, DataError, FedgscaError, RunFolderError
from fedgsca.federation.data_source import load_table
from fedgsca.federation.records import RunResult
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_config
from fedgsca.lab.report.html_page import write_report
from fedgsca.lab.report.previous_run import compare_with_previous, read_difference
from fedgsca.lab.statistic import describe
from fedgsca.labels.apply_decisions import DecisionCounts, apply_decisions
from fedgsca.labels.audit_table import Audit, Suspect, read_audit
from fedgsca.labels.decisions import FILE, Decision, Decisions
from tests.audits import toy_audit
from tests.toys import toy_config, toy_folder, toy_npz

FLAGS: dict[str, Any] = {"noise__spec": "0"}


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a folder of its own, with real labels: no noise is injected."""
    base = tmp_path_factory.mktemp("apply")
    shutil.copytree(toy_folder("five_samples"), base / "data")
    text = (
        (base / "data" / "labels.csv")
        .read_text()
        .replace("file,label,site,split", "File;Label;Site;Split")
        .replace(",", ";")
    )
    (base / "data" / "labels.csv").write_text(text)  # as a spreadsheet of another country writes it
    toy_audit(base / "run", "a", base / "data", **FLAGS)
    toy_audit(base / "run", "b", base / "data", **FLAGS)
    return base


@pytest.fixture
def audit(master: Path, tmp_path: Path) -> Audit:
    shutil.copytree(master, tmp_path / "x")
    base = tmp_path / "x"
    for folder in (base / "run").rglob("audit.json"):
        folder.write_text(folder.read_text().replace(str(master.resolve()), str(base)))
    config = base / "run" / "config.toml"
    config.write_text(config.read_text().replace(str(master), str(base)))
    return read_audit(base / "run" / "audit" / "a")


def decide(
    audit: Audit,
    position: int,
    action: str,
    *,
    reviewer: str = "anna",
    label: str | None = None,
    **fields: Any,
) -> Suspect:
    (suspect,) = audit.at([position])
    new = {"accept": suspect.suggestion, "change": label}.get(action)
    decision = Decision(
        reviewer=reviewer,
        row=suspect.row,
        id=suspect.id,
        hash=suspect.hash,
        given=suspect.given,
        action=action,
        label=new,
        reason="seen",
    )
    Decisions(audit.path).add(replace(decision, **fields))
    return suspect


def cells(path: Path) -> list[list[str]]:
    return list(csv.reader(path.read_text().splitlines()))


def test_files_with_names_of_images_are_private(audit: Audit) -> None:
    decide(audit, 0, "accept")
    file = apply_decisions(audit.path).file
    assert file is not None
    files = [*audit.path.iterdir(), file, log_path(file), log_path(file, "csv")]
    names = {path.name for path in files}
    assert names > {"audit.csv", "audit.json", "suspects.jsonl", "suspects.idx", "clean.json"}
    assert {path.name: path.stat().st_mode & 0o777 for path in files} == dict.fromkeys(names, 0o600)
    assert audit.path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((12, 11, 1, 0, 0), "12 labels were reviewed: 11 change, 1 is confirmed"),
        ((1, 1, 0, 0, 0), "1 label was reviewed: 1 changes"),
        (
            (4, 0, 2, 1, 1),
            "4 labels were reviewed: 2 are confirmed, 1 is disputed and stays as it is,"
            " 1 stays because nobody could tell",
        ),
        ((2, 0, 0, 0, 2), "2 labels were reviewed: 2 are disputed and stay as they are"),
    ],
)
def test_counts_are_a_correct_sentence(numbers: tuple[int, ...], text: str) -> None:
    assert _counts_text(DecisionCounts(*numbers)) == text


def test_only_the_labels_that_people_agree_on_change(audit: Audit) -> None:
    suspect = decide(audit, 0, "accept")
    decide(audit, 1, "keep")
    decide(audit, 2, "unsure")
    decide(audit, 3, "accept")
    decide(audit, 3, "keep", reviewer="bert")
    data = audit.path.parents[2] / "data"
    original = (data / "labels.csv").read_bytes()
    result = apply_decisions(audit.path)
    assert (
        result.file == (data / "labels.corrected.csv").resolve()
        and (data / "labels.csv").read_bytes() == original
    )
    assert result.counts == DecisionCounts(
        num_reviewed=4, num_changed=1, num_confirmed=1, num_unsure=1, num_disputed=1
    )
    old_rows = [line.split(";") for line in original.decode().splitlines()]
    all_rows = cells(result.file)
    assert all_rows[0] == [*old_rows[0], "checked", "original"]
    new_rows = [row[:-2] for row in all_rows]
    differing = [(a, b) for a, b in zip(old_rows, new_rows, strict=True) if a != b]
    assert differing == [
        (
            [suspect.id, suspect.given, *differing[0][0][2:]],
            [suspect.id, suspect.suggestion, *differing[0][0][2:]],
        )
    ]
    log = json.loads(log_path(result.file).read_text())
    assert log["counts"] == {
        "looked_at": 4,
        "changed": 1,
        "confirmed": 1,
        "unsure": 1,
        "disputed": 1,
    }
    (change,) = log["changes"]
    assert (change["id"], change["old"], change["new"]) == (
        suspect.id,
        suspect.given,
        suspect.suggestion,
    )
    assert (change["reviewers"], change["reason"], change["site"]) == (
        "anna",
        "seen",
        "a",
    ) and change["time"]
    assert cells(log_path(result.file, "csv"))[1][:4] == [
        "a",
        suspect.id,
        suspect.given,
        suspect.suggestion,
    ]


def marks(path: Path) -> dict[str, tuple[str, str]]:
    """Image -> checked and original, where one of them is not empty."""
    rows = {row[0]: (row[-2], row[-1]) for row in cells(path)[1:]}
    return {name: mark for name, mark in rows.items() if any(mark)}


def test_labels_that_people_agree_on_are_marked_as_checked(audit: Audit) -> None:
    changed = decide(audit, 0, "accept")
    confirmed = decide(audit, 1, "keep")
    decide(audit, 2, "unsure")
    decide(audit, 3, "accept")
    decide(audit, 3, "keep", reviewer="bert")
    result = apply_decisions(audit.path)
    assert result.file is not None and result.num_checked == 2
    assert marks(result.file) == {
        changed.id: ("1", changed.given),
        confirmed.id: ("1", confirmed.given),
    }
    table = load(str(result.file.parent), labels=result.file)
    assert table.checked is not None
    assert set(table.ids[table.checked.mask]) == {changed.id, confirmed.id}
    row = table.ids.tolist().index(changed.id)
    assert table.classes[table.labels[row]] == changed.suggestion
    assert table.classes[table.checked.original[row]] == changed.given
    # the file can also take the place of labels.csv
    shutil.move(result.file, result.file.parent / "labels.csv")
    again = load(str(result.file.parent))
    assert again.checked is not None
    np.testing.assert_array_equal(again.checked.mask, table.checked.mask)
    np.testing.assert_array_equal(again.checked.original, table.checked.original)


def test_a_column_of_marks_may_have_a_name_of_its_own(audit: Audit) -> None:
    """The corrected file has the marks once, under the name that every reader knows."""
    data = audit.path.parents[2] / "data"
    header, *lines = (data / "labels.csv").read_text().splitlines()
    text = "\n".join([f"{header};Reviewed", *(f"{line};" for line in lines)])
    (data / "labels.csv").write_text(text)
    (data / "names.toml").write_text('[columns]\nReviewed = "checked"\n')
    suspect = decide(audit, 0, "accept")
    result = apply_decisions(audit.path)
    assert result.file is not None
    assert cells(result.file)[0] == ["File", "Label", "Site", "Split", "checked", "original"]
    table = load(str(data), labels=result.file)
    shutil.move(result.file, data / "labels.csv")
    for marked_table in (table, load(str(data))):
        assert marked_table.checked is not None
        assert marked_table.ids[marked_table.checked.mask].tolist() == [suspect.id]


def test_a_label_that_nobody_could_tell_is_not_marked(audit: Audit) -> None:
    decide(audit, 0, "unsure")
    assert apply_decisions(audit.path).file is None


def test_a_preferred_reviewer_settles_disputes(audit: Audit) -> None:
    suspect = decide(audit, 0, "accept")
    decide(audit, 0, "keep", reviewer="bert")
    result = apply_decisions(audit.path, prefer="bert")
    assert not result.changes and result.file is not None
    assert marks(result.file) == {suspect.id: ("1", suspect.given)}, "confirmed: nothing changes"
    assert [change.new for change in apply_decisions(audit.path, prefer="anna").changes] == [
        suspect.suggestion
    ]


def test_nothing_is_ever_overwritten(audit: Audit, tmp_path: Path) -> None:
    decide(audit, 0, "accept")
    names = [apply_decisions(audit.path).file for _ in range(3)]
    assert [path.name for path in names if path] == [
        "labels.corrected.csv",
        "labels.corrected-2.csv",
        "labels.corrected-3.csv",
    ]
    (tmp_path / "mine.csv").write_text("precious")
    with pytest.raises(RunFolderError) as error:
        apply_decisions(audit.path, out=tmp_path / "mine.csv")
    assert error.value.code == "file.already-exists"
    assert (tmp_path / "mine.csv").read_text() == "precious"


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"hash": "0" * 64}, "different image"),
        ({"id": "stranger.png"}, "not in the data"),
        ({"row": 9999}, "not in the data"),
        ({"given": "class 9"}, "another label"),
    ],
)
def test_decisions_about_other_images_are_refused(
    audit: Audit, wrong: dict[str, Any], problem: str
) -> None:
    decide(audit, 0, "accept")
    decide(audit, 1, "accept", **wrong)
    with pytest.raises(DataError) as error:
        apply_decisions(audit.path)
    assert error.value.code == "audit.decisions-mismatch" and problem in error.value.message
    assert not list((audit.path.parents[2] / "data").glob("*corrected*"))


def test_data_that_changed_since_the_audit_is_refused(audit: Audit) -> None:
    decide(audit, 0, "accept")
    data = audit.path.parents[2] / "data"
    shutil.copy(data / "001.png", data / "000.png")
    with pytest.raises(DataError) as error:
        apply_decisions(audit.path)
    assert error.value.code == "audit.data-changed"


def test_without_decisions_there_is_nothing_to_apply(audit: Audit) -> None:
    for content in (None, "damaged\n"):
        if content is not None:
            (audit.path / FILE).write_text(content)
        with pytest.raises(RunFolderError) as error:
            apply_decisions(audit.path)
        assert error.value.code == "audit.no-decisions"


def test_a_script_corrects_labels_without_the_browser(audit: Audit) -> None:
    decisions = audit.open_decisions()
    suspects = list(audit.suspects())
    for suspect in suspects:
        decisions.record(suspect, suspect.suggestion, reviewer="script")
    result = apply_decisions(str(audit.path))
    assert [change.id for change in result.changes] == [
        suspect.id for suspect in sorted(suspects, key=lambda s: s.row)
    ]
    assert result.counts.num_changed == audit.num_suspects


def test_all_sites_of_a_run_go_into_one_file(audit: Audit) -> None:
    second_audit = read_audit(audit.path.parent / "b")
    ids = {decide(audit, 0, "accept").id, decide(second_audit, 0, "accept").id}
    assert {change.id for change in apply_decisions(audit.path.parents[1]).changes} == ids


def test_a_corrected_folder_is_used_and_its_test_labels_are_locked(audit: Audit) -> None:
    suspect = decide(audit, 0, "accept")
    file = apply_decisions(audit.path).file
    assert file is not None
    table = load(str(file.parent), labels=file)
    row = table.ids.tolist().index(suspect.id)
    assert (
        table.classes[table.labels[row]] == suspect.suggestion and table.replaced_labels is not None
    )
    assert np.flatnonzero(table.replaced_labels != table.labels).tolist() == [row]
    lines = file.read_text().splitlines()
    test_line = next(i for i, line in enumerate(lines) if ",test," in line)
    cells = lines[test_line].split(",")
    cells[1] = next(name for name in table.classes if name != cells[1])
    lines[test_line] = ",".join(cells)
    file.write_text("\n".join(lines))
    with pytest.raises(DataError) as error:
        load(str(file.parent), labels=file)
    assert error.value.code == "data.labels-do-not-fit" and "locked" in error.value.message


# ---- retraining ----


def test_the_report_shows_before_and_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A simulation: labels are corrected, the same sites train again, both results are shown."""
    source = shutil.copy(toy_npz(), tmp_path / "toy.npz")
    audit = toy_audit(tmp_path / "run", source=Path(source))
    suspects = [decide(audit, position, "accept") for position in range(3)]
    result = apply_decisions(audit.path)
    assert result.file == (tmp_path / "toy.labels.corrected.csv").resolve()
    assert result.has_noise
    again = toy_config(
        "fedavg",
        source=Path(source),
        train__rounds=1,
        noise__spec="0",
        data__labels=str(result.file),
        data__sites=4,
    )
    run(again, tmp_path / "again")
    setup = [json.loads((tmp_path / name / "setup.json").read_text()) for name in ("run", "again")]
    assert [s["num_samples"] for s in setup[0]["sites"].values()] == [
        s["num_samples"] for s in setup[1]["sites"].values()
    ]
    results = [
        RunResult.from_json(json.loads((tmp_path / name / "result.json").read_text()))
        for name in ("run", "again")
    ]
    review = setup[1]["labels"]["review"]
    assert sum(pair["count"] for pair in review["pairs"]) == len(suspects)
    assert review["before"]["f1"] == results[0].f1
    page = write_report(tmp_path / "again").read_text()
    for text in ("Corrected labels", "Before (run) and after", "anna reviewed 3 labels"):
        assert text in page
    assert "Corrected labels" not in write_report(tmp_path / "run").read_text()
    compare_with_previous(tmp_path / "again")
    difference = read_difference(tmp_path / "again")
    assert difference is not None and difference.reference == "run" and difference.images == 30
    assert difference.points == pytest.approx(results[1].f1 - results[0].f1, abs=0.11)
    for name, run_result in zip(("run", "again"), results, strict=True):
        show_run(tmp_path / name, read_config(tmp_path / name), run_result)
    output = capsys.readouterr().out.splitlines()
    assert "labels  3 labels corrected by anna" in output
    assert f"effect  {describe(difference, 'this run', difference.reference)}" in output


def test_the_corrected_file_keeps_images_that_the_run_did_not_use(tmp_path: Path) -> None:
    """Whoever renames the corrected file to labels.csv loses nothing, and a run accepts it."""
    data = tmp_path / "data"
    shutil.copytree(toy_folder("five_samples"), data)
    config = toy_config(
        "fedavg", source=data, audit__enabled=True, data__train=40, data__test=12, noise__spec="0"
    )
    run(config, tmp_path / "run")
    audit = next(iter(fedgsca.audit(tmp_path / "run")))
    decide(audit, 0, "accept")
    result = apply_decisions(audit.path)
    assert result.file is not None and result.num_unused > 0
    assert len(cells(result.file)) == len(cells(data / "labels.csv"))
    again = config.model_copy(
        update={"data": config.data.model_copy(update={"labels": str(result.file)})}
    )
    table = load_table(again)
    assert any("1 of 40 differ" in note for note in table.notes)


def test_corrected_labels_leave_every_image_at_its_site(audit: Audit, tmp_path: Path) -> None:
    from fedgsca.federation.simulation import prepare

    table = load(str(toy_npz()))
    file = tmp_path / "labels.csv"
    new_labels = [
        (table.ids[r], table.classes[(table.labels[r] + 1) % 3]) for r in table.rows("train")
    ]
    file.write_text("id,label\n" + "".join(f"{name},{label}\n" for name, label in new_labels))
    plain = prepare(toy_config("fedavg", noise__spec="0"))
    corrected_run = prepare(toy_config("fedavg", noise__spec="0", data__labels=str(file)))
    for site, rows in plain.rows.items():
        assert rows.tolist() == corrected_run.rows[site].tolist()
        assert not np.any(plain.sites[site].labels == corrected_run.sites[site].labels)
    noisy = prepare(toy_config("fedavg", data__labels=str(file)))
    assert any("is injected into the labels of labels.csv" in text for text in noisy.warnings)


def test_a_log_counts_only_for_an_unchanged_file(audit: Audit) -> None:
    decide(audit, 0, "accept")
    file = apply_decisions(audit.path).file
    assert file is not None and read_log(file) is not None
    file.write_text(file.read_text() + "\n")
    assert read_log(file) is None
    log_path(file).write_text("{")
    assert read_log(file) is None


def test_the_summary_of_a_review_names_the_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = toy_audit(tmp_path / "run")
    assert execute(["review", str(audit.path), "--summary"]) == 0
    assert "fedgsca apply" not in capsys.readouterr().out, "nothing has been decided yet"
    decide(audit, 0, "accept")
    assert execute(["review", str(audit.path), "--summary"]) == 0
    assert f"fedgsca apply {audit.path}" in capsys.readouterr().out.replace("\n", "")


def test_apply_that_was_killed_can_be_repeated(
    audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the log and before the labels, with a half-written file left behind."""
    from fedgsca.labels import apply_decisions as module

    decide(audit, 0, "accept")

    def die(path: Path, content: bytes) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "corrected.csv"
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_atomic", die)
        with pytest.raises(KeyboardInterrupt):
            apply_decisions(audit.path, out=out)
    assert log_path(out).exists() and not out.exists()
    half_written = abandoned_file(out)
    apply_decisions(audit.path, out=out)
    assert read_log(out) is not None and not half_written.exists()
    with pytest.raises(RunFolderError) as error:
        apply_decisions(audit.path, out=out)
    assert error.value.code == "file.already-exists"


def test_a_foreign_file_in_place_of_the_log_is_not_overwritten(
    audit: Audit, tmp_path: Path
) -> None:
    decide(audit, 0, "accept")
    out = tmp_path / "corrected.csv"
    log_path(out).write_text('{"file": "other.csv"}')
    with pytest.raises(RunFolderError) as error:
        apply_decisions(audit.path, out=out)
    assert error.value.code == "file.already-exists"


def test_an_audit_removes_what_a_killed_one_left(audit: Audit) -> None:
    half_written = abandoned_file(audit.path / "suspects.jsonl")
    site = audit.path.name
    toy_audit(audit.path.parents[1], site, audit.path.parents[2] / "data", **FLAGS)
    assert not half_written.exists() and not list(audit.path.glob("*.tmp"))


def abandoned_file(path: Path) -> Path:
    """A temporary file of a process that does not exist any more."""
    import platform
    import subprocess

    process = subprocess.Popen(["true"])
    process.wait()
    temporary = path.with_name(f"{path.name}.{platform.node()}-{process.pid}-1.tmp")
    temporary.write_bytes(b"half")
    return temporary


# ---- people who do not count, and the page to sign ----


def test_a_person_can_be_left_out(audit: Audit) -> None:
    suspect = decide(audit, 0, "accept")
    decide(audit, 0, "keep", reviewer="bert")
    disputed = apply_decisions(audit.path)
    assert disputed.counts.num_disputed == 1 and disputed.file is None
    result = apply_decisions(audit.path, without=["bert"])
    assert [change.new for change in result.changes] == [suspect.suggestion]
    assert result.file is not None
    log = json.loads(log_path(result.file).read_text())
    assert log["policy"] == "unanimous; without bert" and log["reviewers"] == ["anna"]
    for names, code in (
        (["carl"], "audit.unknown-reviewer"),
        (["anna", "bert"], "audit.no-decisions"),
    ):
        with pytest.raises(FedgscaError) as error:
            apply_decisions(audit.path, without=names)
        assert error.value.code == code


def test_the_record_has_counts_changes_and_a_line_to_sign(audit: Audit) -> None:
    suspect = decide(audit, 0, "accept")
    decide(audit, 1, "keep")
    decide(audit, 1, "keep", reviewer="bert")
    result = apply_decisions(audit.path, language="de")
    assert result.protocol is not None and result.file is not None
    assert result.protocol.stat().st_mode & 0o077 == 0
    page = result.protocol.read_text()
    assert "Protokoll einer Label-Prüfung" in page and "Unterschrift" in page
    assert f"{suspect.given} → {suspect.suggestion}" in page
    assert hashlib.sha256(result.file.read_bytes()).hexdigest() in page
    assert "<script" not in page and "anna" in page and "bert" in page


@pytest.mark.parametrize("language", ["fy", "../de"])
def test_an_unknown_language_writes_nothing(audit: Audit, language: str) -> None:
    decide(audit, 0, "accept")
    with pytest.raises(ConfigError) as error:
        apply_decisions(audit.path, language=language)
    assert error.value.code == "review.unknown-language"
    assert not list((audit.path.parents[2] / "data").glob("*corrected*"))
