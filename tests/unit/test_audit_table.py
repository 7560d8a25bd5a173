"""The audit folder: written as a stream, read by position, and pictures by row."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from audits import toy_audit
from PIL import Image
from toys import toy_folder

from fedgsca.errors import DataError, RunFolderError
from fedgsca.label_audit.audit_images import Images, content_hash
from fedgsca.label_audit.audit_table import Audit, Suspect, read_audit, write_audit

CLASSES = ["normal", "serrated", "adenoma"]
HEADER = {"run": "../..", "site": "a", "classes": CLASSES, "data": {}, "summary": {}}


def suspect(rank: int, **changes: object) -> Suspect:
    base = Suspect(
        rank, 100 - rank, f"{rank}.png", "00", "serrated", "adenoma", 0.93, (("serrated", 0.05), ("normal", 0.02)),
        1 / rank, 12, 11, None, "given serrated, the model says adenoma with 0.93 in 11 of 12 rounds", rank <= 10,
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    entries = (suspect(i, given=CLASSES[i % 2], suggested=CLASSES[1 + i % 2]) for i in range(1, 51))
    return write_audit(
        tmp_path / "audit" / "a", HEADER, entries, {"normal": [{"row": 3, "hash": "ab"}]}
    )


def test_what_is_written_is_read_back_in_order(audit: Audit) -> None:
    again = read_audit(audit.path.parent.parent)  # the run's folder: there is one site
    assert [s.rank for s in again.suspects()] == list(range(1, 51))
    assert next(again.suspects()) == suspect(1, given="serrated", suggested="adenoma")
    assert again.clean == {"normal": [{"row": 3, "hash": "ab"}]}
    assert len(again) == 50


def test_a_window_needs_neither_the_start_nor_the_whole_list(audit: Audit) -> None:
    assert [s.rank for s in audit.window(3, 4)] == [4, 5, 6, 7]
    assert [s.rank for s in audit.window(8, 100)] == [9, 10]  # the quota ends there
    assert [s.rank for s in audit.window(48, 9, priority=False)] == [49, 50]
    assert [s.rank for s in audit.window(1, 3, given="serrated", priority=False)] == [3, 5, 7]
    assert audit.window(0, 5, given="adenoma", priority=False) == []
    assert audit.by_row(60) == audit.at([39])[0]
    assert audit.by_row(7) is None
    with pytest.raises(RunFolderError, match="no class 'polyp'"):
        audit.window(0, 1, given="polyp")


def test_names_survive_and_no_cell_is_a_formula(tmp_path: Path) -> None:
    odd = suspect(
        1,
        id='=cmd|"/c calc"!A1',
        reason="naïve, 日本\nline",
        posterior=0.25,
        opinions={"cleanlab": ("normal", 0.5)},
    )
    made = write_audit(tmp_path, HEADER, [odd, suspect(2, id="-1+1", others=())], {})
    assert next(made.suspects()) == odd
    rows = list(csv.reader(io.StringIO((tmp_path / "audit.csv").read_text(encoding="utf-8"))))
    assert rows[1][2] == "'" + odd.id
    assert rows[2][2] == "'-1+1"
    assert {len(row) for row in rows} == {len(rows[0])}
    assert dict(zip(rows[0], rows[1], strict=True))["opinions"] == "cleanlab: normal 0.50"


def test_an_interrupted_audit_is_no_audit(audit: Audit) -> None:
    def breaks() -> object:
        yield suspect(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_audit(audit.path, HEADER, breaks(), {})  # type: ignore[arg-type]
    with pytest.raises(RunFolderError, match="there is no audit"):
        read_audit(audit.path)
    assert not list(audit.path.glob("*.tmp"))


def test_damage_is_named(audit: Audit) -> None:
    (audit.path / "suspects.idx").write_bytes(b"short")
    with pytest.raises(RunFolderError, match=r"suspects\.idx is damaged"):
        read_audit(audit.path).window(0, 1)
    (audit.path / "audit.json").write_text(json.dumps({"version": 99}))
    with pytest.raises(RunFolderError, match="version 99"):
        read_audit(audit.path)


def test_several_sites_must_be_told_apart(audit: Audit) -> None:
    write_audit(audit.path.with_name("b"), HEADER, [suspect(1)], {})
    with pytest.raises(RunFolderError, match="several sites: a, b"):
        read_audit(audit.path.parent)


def test_pictures_come_by_row(tmp_path: Path) -> None:
    images = Images.open(toy_audit(tmp_path))
    assert len(images) == len(images.audit)
    for row in (0, len(images) - 1):
        shown = np.asarray(Image.open(io.BytesIO(images.png(row))))
        assert content_hash(shown) == images.hash(row)  # an npz has no other original
    assert max(Image.open(io.BytesIO(images.thumbnail(0, 8))).size) == 8
    with pytest.raises(DataError, match="no row"):
        images.png(len(images))
    found = images.neighbours(0, 2)
    assert len(found["given"]) == len(found["suggested"]) == 2
    assert 0 not in found["given"]


def test_a_folder_shows_the_original_and_survives_its_loss(tmp_path: Path) -> None:
    import shutil

    data = tmp_path / "data"
    shutil.copytree(toy_folder("five_samples"), data)
    picture = data / "000.png"
    Image.open(picture).resize((60, 40)).save(picture)  # larger than what the network sees
    audit = toy_audit(tmp_path / "run", "a", data, noise__spec="0", data__image_size=12)
    images = Images.open(audit.path)
    assert Image.open(io.BytesIO(images.png(0))).size == (60, 40)
    assert Image.open(io.BytesIO(images.png(0, 30))).size == (30, 20)
    picture.unlink()
    assert Image.open(io.BytesIO(images.png(0))).size == (12, 12)


def test_other_data_than_was_audited_is_refused(tmp_path: Path) -> None:
    audit = toy_audit(tmp_path)
    header = {**audit.header, "data": {**audit.header["data"], "fingerprint": "0" * 64}}
    (audit.path / "audit.json").write_text(json.dumps(header))
    with pytest.raises(DataError, match="not what the run was made with"):
        Images.open(audit.path)
