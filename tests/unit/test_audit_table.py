"""The audit folder: written as a stream, read by position, and pictures by row."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgsca.errors import DataError, RunFolderError
from fedgsca.federation.records import AuditSummary
from fedgsca.labels.audit_images import AuditImages, content_hash
from fedgsca.labels.audit_table import Audit, Suspect, read_audit, write_audit
from tests.audits import toy_audit
from tests.toys import toy_folder

CLASSES = ["normal", "serrated", "adenoma"]
HEADER = AuditSummary.from_json(
    {"run": "../..", "site": "a", "classes": CLASSES, "data": {}, "summary": {}}
)


def suspect(rank: int, **changes: object) -> Suspect:
    base = Suspect(
        rank=rank,
        row=100 - rank,
        id=f"{rank}.png",
        hash="00",
        given="serrated",
        suggestion="adenoma",
        probability=0.93,
        runners_up=(("serrated", 0.05), ("normal", 0.02)),
        suspicion=1 / rank,
        reason="given serrated, the model says adenoma with 0.93 in 11 of 12 rounds",
        priority=rank <= 10,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    entries = (
        suspect(i, given=CLASSES[i % 2], suggestion=CLASSES[1 + i % 2]) for i in range(1, 51)
    )
    clean = {"normal": [3]}
    return write_audit(tmp_path / "audit" / "a", HEADER, entries, clean)


def test_written_labels_are_read_back_in_order(audit: Audit) -> None:
    again = read_audit(audit.path.parent.parent)  # the run's folder: there is one site
    assert [s.rank for s in again.ranked_labels()] == list(range(1, 51))
    assert next(again.ranked_labels()) == suspect(1, given="serrated", suggestion="adenoma")
    assert again.clean == {"normal": (3,)}
    assert len(again) == 50
    assert again.header == audit.header and again.header.columns[:7] == (
        "rank",
        "row",
        "id",
        "hash",
        "given",
        "suggested",
        "probability",
    )


def test_the_priority_list_is_a_part_of_the_ranking(audit: Audit) -> None:
    assert [s.rank for s in audit.suspects()] == list(range(1, 11))
    assert audit.num_suspects == 10


def test_the_files_have_their_keys(audit: Audit) -> None:
    line = json.loads((audit.path / "suspects.jsonl").read_text().splitlines()[0])
    assert list(line) == [
        *("rank", "row", "id", "hash", "given", "suggested", "probability", "others", "suspicion"),
        *("reason", "priority", "opinions", "copies"),
    ]
    assert json.loads((audit.path / "clean.json").read_text()) == {"normal": [3]}
    header = json.loads((audit.path / "audit.json").read_text())
    assert list(header) == [
        *("run", "site", "data", "classes", "method", "warning"),
        *("summary", "version", "scored", "columns", "order"),
    ]
    assert header["version"] == 1 and header["scored"] == 50


def test_a_window_is_read_without_the_rest_of_the_list(audit: Audit) -> None:
    assert [s.rank for s in audit.window(3, 4)] == [4, 5, 6, 7]
    assert [s.rank for s in audit.window(8, 100)] == [9, 10]  # the quota ends there
    assert [s.rank for s in audit.window(48, 9, priority=False)] == [49, 50]
    assert [s.rank for s in audit.window(1, 3, given="serrated", priority=False)] == [3, 5, 7]
    assert audit.window(0, 5, given="adenoma", priority=False) == []
    with pytest.raises(RunFolderError) as error:
        audit.window(0, 1, given="polyp")
    assert error.value.code == "audit.unknown-class" and "adenoma" in error.value.fix


def test_names_survive_and_no_cell_is_a_formula(tmp_path: Path) -> None:
    odd = suspect(
        1,
        id='=cmd|"/c calc"!A1',
        reason="naïve, 日本\nline",
        opinions={"cleanlab": ("normal", 0.5)},
    )
    audit = write_audit(tmp_path, HEADER, [odd, suspect(2, id="-1+1", runners_up=())], {})
    assert next(audit.ranked_labels()) == odd
    rows = list(csv.reader(io.StringIO((tmp_path / "audit.csv").read_text(encoding="utf-8"))))
    assert rows[1][2] == "'" + odd.id
    assert rows[2][2] == "'-1+1"
    assert {len(row) for row in rows} == {len(rows[0])}
    assert dict(zip(rows[0], rows[1], strict=True))["opinions"] == "cleanlab: normal (weak)"


def test_an_interrupted_audit_is_not_an_audit(audit: Audit) -> None:
    def breaks() -> object:
        yield suspect(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_audit(audit.path, HEADER, breaks(), {})  # type: ignore[arg-type]
    with pytest.raises(RunFolderError) as error:
        read_audit(audit.path)
    assert error.value.code == "audit.not-found"
    assert not list(audit.path.glob("*.tmp"))


def test_damage_is_reported(audit: Audit) -> None:
    (audit.path / "suspects.idx").write_bytes(b"short")
    with pytest.raises(RunFolderError) as error:
        read_audit(audit.path).window(0, 1)
    assert error.value.code == "audit.damaged-file" and "suspects.idx" in error.value.message
    (audit.path / "audit.json").write_text(json.dumps({"version": 99}))
    with pytest.raises(RunFolderError) as error:
        read_audit(audit.path)
    assert error.value.code == "audit.unknown-version" and "99" in error.value.message


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": '])
def test_a_damaged_header_is_an_error(audit: Audit, content: str) -> None:
    (audit.path / "audit.json").write_text(content)
    with pytest.raises(RunFolderError) as error:
        read_audit(audit.path)
    assert error.value.code == "audit.damaged-file"


def test_one_of_several_sites_must_be_chosen(audit: Audit) -> None:
    write_audit(audit.path.with_name("b"), HEADER, [suspect(1)], {})
    with pytest.raises(RunFolderError) as error:
        read_audit(audit.path.parent)
    assert error.value.code == "audit.several-sites" and "a, b" in error.value.message


def test_images_are_read_by_row(tmp_path: Path) -> None:
    images = AuditImages.open(toy_audit(tmp_path))
    assert len(images) == len(images.audit)
    for row in (0, len(images) - 1):
        pixels = np.asarray(Image.open(io.BytesIO(images.png(row))))
        assert content_hash(pixels) == images.hash(row)  # an npz has no other original
    assert max(Image.open(io.BytesIO(images.thumbnail(0, 8))).size) == 8
    with pytest.raises(DataError) as error:
        images.png(len(images))
    assert error.value.code == "audit.unknown-row"
    suspect = images.audit.at([0])[0]
    for name in (suspect.given, suspect.suggestion):
        rows = images.similar(suspect.row, name, 2)
        assert len(rows) == 2 and suspect.row not in rows


def test_a_folder_shows_the_original_and_survives_its_loss(tmp_path: Path) -> None:
    import shutil

    data = tmp_path / "data"
    shutil.copytree(toy_folder("five_samples"), data)
    picture = data / "000.png"
    Image.open(picture).resize((60, 40)).save(picture)  # larger than what the network sees
    audit = toy_audit(tmp_path / "run", "a", data, noise__spec="0", data__image_size=12)
    images = AuditImages.open(audit.path)
    assert Image.open(io.BytesIO(images.png(0))).size == (60, 40)
    assert Image.open(io.BytesIO(images.png(0, 30))).size == (30, 20)
    picture.unlink()
    assert Image.open(io.BytesIO(images.png(0))).size == (12, 12)


def test_data_that_differs_from_the_audit_is_refused(tmp_path: Path) -> None:
    audit = toy_audit(tmp_path)
    header = replace(audit.header, data=replace(audit.header.data, fingerprint="0" * 64))
    (audit.path / "audit.json").write_text(json.dumps(header.to_json()))
    with pytest.raises(DataError) as error:
        AuditImages.open(audit.path)
    assert error.value.code == "audit.data-changed"
