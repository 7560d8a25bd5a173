"""Files for other labelling tools: decisions survive the round trip, foreign files are refused."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fedgsca import cli
from fedgsca.errors import DataError, RunFolderError
from fedgsca.labels.audit_table import Audit, read_audit
from fedgsca.labels.decisions import FILE, Decision, Decisions
from fedgsca.labels.exchange import export_suspects, import_verdicts
from tests.audits import toy_audit
from tests.toys import toy_npz

KINDS = ("cleanlab", "label-studio", "cvat")
NAMES = {"cleanlab": "issues.csv", "label-studio": "tasks.json", "cvat": "tags.xml"}


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("exchange") / "run"
    toy_audit(run, source=toy_npz(400))
    return run


@pytest.fixture
def audit(master: Path, tmp_path: Path) -> Audit:
    shutil.copytree(master, tmp_path / "run")
    return read_audit(tmp_path / "run")


def review(audit: Audit) -> dict[int, tuple[str, str | None, str]]:
    """One decision of every kind, by anna."""
    store = Decisions(audit.path)
    for suspect, action in zip(
        audit.window(0, 5), ("accept", "keep", "unsure", "change"), strict=False
    ):
        third = next(
            name for name in audit.classes if name not in (suspect.given, suspect.suggestion)
        )
        label = {"accept": suspect.suggestion, "change": third}.get(action)
        facts = (suspect.row, suspect.id, suspect.hash, suspect.given)
        store.add(
            Decision(
                "anna", *facts, action, label, reason='=odd, "quoted"' if action == "change" else ""
            )
        )
    return state(audit, "anna")


def state(audit: Audit, reviewer: str) -> dict[int, tuple[str, str | None, str]]:
    return {
        row: (d.action, d.label, d.reason)
        for row, d in Decisions(audit.path).by_reviewer(reviewer).items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_decisions_survive_the_round_trip(audit: Audit, tmp_path: Path, kind: str) -> None:
    decisions = review(audit)
    export_suspects(audit, kind, tmp_path / NAMES[kind])
    (audit.path / FILE).unlink()
    counts = []
    for _ in range(2):  # the same file twice counts once
        counts.append(import_verdicts(audit, kind, tmp_path / NAMES[kind], reviewer="bert"))
    assert counts == [{"bert": 4}, {"bert": 0}], "the second time, nothing is new"
    assert state(audit, "bert") == decisions
    assert len((audit.path / FILE).read_text().splitlines()) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_an_unreviewed_list_contains_no_decisions(audit: Audit, tmp_path: Path, kind: str) -> None:
    export_suspects(audit, kind, tmp_path / NAMES[kind])
    assert import_verdicts(audit, kind, tmp_path / NAMES[kind]) == {}
    with pytest.raises(RunFolderError) as error:
        export_suspects(audit, kind, tmp_path / NAMES[kind])
    assert error.value.code == "file.already-exists"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", ["image", "name", "class"])
def test_a_file_with_one_foreign_entry_is_refused_completely(
    audit: Audit, tmp_path: Path, kind: str, change: str
) -> None:
    review(audit)
    export_suspects(audit, kind, tmp_path / NAMES[kind])
    (audit.path / FILE).unlink()
    file = tmp_path / NAMES[kind]
    last = audit.window(3, 1)[0]
    third = next(name for name in audit.classes if name not in (last.given, last.suggestion))
    old, new = {
        "image": (last.hash, "f" * 64),
        "name": (last.id, "train/99999"),
        "class": (third, "no such class"),
    }[change]
    text = file.read_text()
    if change == "class" and kind != "cleanlab":
        text = text.replace(f'"choices": ["{old}"]', f'"choices": ["{new}"]').replace(
            f' label="{old}"', f' label="{new}"'
        )
    else:
        text = text.replace(old, new)
    file.write_text(text)
    with pytest.raises(DataError) as error:
        import_verdicts(audit, kind, tmp_path / NAMES[kind])
    assert error.value.code == "audit.import-mismatch"
    assert not (audit.path / FILE).exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", ["", "{", "[]x", '{"labels": 3}', "[{}]", "a,b\n1,2\n", "\x00"])
def test_a_damaged_file_is_an_error_with_a_fix(
    audit: Audit, tmp_path: Path, kind: str, content: str
) -> None:
    (tmp_path / "file").write_text(content)
    try:
        assert import_verdicts(audit, kind, tmp_path / "file") == {}
    except DataError as error:
        assert error.code.startswith(("audit.unreadable-import", "data.")) and error.fix
    assert not (audit.path / FILE).exists()


def test_cleanlab_columns(audit: Audit, tmp_path: Path) -> None:
    export_suspects(audit, "cleanlab", tmp_path / "all.csv", all_labels=True)
    rows = list(csv.DictReader((tmp_path / "all.csv").read_text().splitlines()))
    assert len(rows) == len(audit) and {
        "given_label",
        "predicted_label",
        "label_quality",
        "is_label_issue",
    } <= set(rows[0])
    quality = [float(row["label_quality"]) for row in rows]
    assert quality == sorted(quality) and {row["is_label_issue"] for row in rows} == {
        "True",
        "False",
    }


def test_a_file_of_cleanlab_itself_comes_in_as_its_opinion(audit: Audit, tmp_path: Path) -> None:
    one, two = audit.window(0, 2)
    lines = [
        "id,is_label_issue,label_quality,given_label,predicted_label",
        f"{one.id},True,0.1,x,{one.suggestion}",
        f"{two.id},False,0.9,x,{two.given}",
    ]
    (tmp_path / "theirs.csv").write_text("\n".join(lines))
    assert import_verdicts(audit, "cleanlab", tmp_path / "theirs.csv") == {"cleanlab": 1}
    assert state(audit, "cleanlab") == {one.row: ("accept", one.suggestion, "")}


def test_label_studio_tasks_and_an_export_of_several_people(audit: Audit, tmp_path: Path) -> None:
    tasks_file, labelling = export_suspects(audit, "label-studio", tmp_path / "tasks.json")
    tasks = json.loads(tasks_file.read_text())
    assert len(tasks) == 10 and tasks[0]["data"]["image"].startswith("data:image/png;base64,")
    choices = [choice.get("value") for choice in ElementTree.parse(labelling).iter("Choice")]
    assert choices == [*audit.classes, "cannot tell"]
    suggestion = tasks[0]["predictions"][0]["result"][0]["value"]["choices"][0]

    def annotation(person: Any, label: str, time: str, **fields: Any) -> dict[str, Any]:
        value = {
            "from_name": "label",
            "to_name": "image",
            "type": "choices",
            "value": {"choices": [label]},
        }
        return {
            "completed_by": person,
            "updated_at": time,
            "lead_time": 3.2,
            "was_cancelled": False,
            "result": [value],
            **fields,
        }

    given = tasks[0]["data"]["given"]
    tasks[0]["annotations"] = [
        annotation(7, suggestion, "2026-01-02"),
        annotation(7, given, "2026-01-01"),
        annotation({"id": 1, "email": "b@clinic.example"}, "cannot tell", "2026-01-01"),
        annotation(8, given, "2026-01-01", was_cancelled=True),
    ]
    tasks_file.write_text(json.dumps(tasks))
    assert import_verdicts(audit, "label-studio", tasks_file) == {
        "user 7": 1,
        "b@clinic.example": 1,
    }
    assert [d.action for d in Decisions(audit.path).by_reviewer("user 7").values()] == ["accept"]
    assert [d.action for d in Decisions(audit.path).by_reviewer("b@clinic.example").values()] == [
        "unsure"
    ]


def test_cvat_tags_of_a_person_are_decisions(audit: Audit, tmp_path: Path) -> None:
    file = tmp_path / "annotations.xml"
    export_suspects(audit, "cvat", file)
    tree = ElementTree.parse(file)
    tags = tree.findall("image/tag")
    assert {tag.get("source") for tag in tags} == {"auto"}, "suggestions are no decisions"
    first = audit.window(0, 1)[0]
    assert tags[0].get("label") == first.suggestion
    tags[0].set("source", "manual")
    tree.write(file, encoding="utf-8")
    assert import_verdicts(audit, "cvat", file) == {"cvat": 1}
    assert state(audit, "cvat")[first.row][:2] == ("accept", first.suggestion)
    file.write_text("<!DOCTYPE a [<!ENTITY b 'c'>]><annotations/>")
    with pytest.raises(DataError) as error:
        import_verdicts(audit, "cvat", file)
    assert error.value.code == "audit.unreadable-import"


def test_the_short_form_of_label_studio_is_refused(audit: Audit, tmp_path: Path) -> None:
    (tmp_path / "min.json").write_text(
        json.dumps([{"id": 4, "image": "x.png", "label": "class 1", "annotator": 1}])
    )
    with pytest.raises(DataError) as error:
        import_verdicts(audit, "label-studio", tmp_path / "min.json")
    assert error.value.code == "audit.unreadable-import" and "JSON-MIN" in error.value.message


def test_several_reviewers_must_be_chosen_from(audit: Audit, tmp_path: Path) -> None:
    review(audit)
    suspect = audit.window(0, 1)[0]
    audit.open_decisions().record(suspect, suspect.given, reviewer="bert")
    with pytest.raises(DataError) as error:
        export_suspects(audit, "cleanlab", tmp_path / "issues.csv")
    assert error.value.code == "audit.several-reviewers"
    export_suspects(audit, "cleanlab", tmp_path / "issues.csv", reviewer="bert")
    assert import_verdicts(audit, "cleanlab", tmp_path / "issues.csv") == {"cleanlab": 1}


def test_an_unknown_format_is_an_error(audit: Audit, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        export_suspects(audit, "labelstudio", tmp_path / "tasks.json")
    assert error.value.code == "audit.unknown-format" and "'label-studio'" in error.value.fix


def test_the_commands(audit: Audit, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "issues.csv")
    assert (
        cli.execute(["exchange", "export", str(audit.path), "--format", "cleanlab", "-o", out]) == 0
    )
    assert cli.execute(["exchange", "import", str(audit.path), out, "--format", "cleanlab"]) == 0
    assert "no decisions" in capsys.readouterr().out
    assert (
        cli.execute(["exchange", "export", str(audit.path), "--format", "excel", "-o", f"{out}x"])
        == 3
    )
    review(audit)
    assert cli.execute(["apply", str(audit.path), "--out", str(tmp_path / "new.csv")]) == 0
    output = capsys.readouterr().out
    assert "4 labels were reviewed: 2 change, 1 is confirmed, 1 stays because nobody" in output
    assert "--labels" in output and "--noise 0" in output
    assert cli.execute(["review", str(audit.path), "--summary"]) == 0
    assert "anna" in capsys.readouterr().out
    assert cli.execute(["review", str(audit.path), "--reviewer", " "]) == 2
