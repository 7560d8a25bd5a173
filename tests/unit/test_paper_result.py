"""table.json: everything survives the way to the file and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgsca.errors import RunFolderError
from fedgsca.paper.table_result import TableRow, Score, TableResult, load, save


def make() -> TableResult:
    paper = {"S40": {"f1": Score(65.37, 0.43)}}
    ours = {"S40": {"f1": Score(60.0, 1.0, {"0": 59.0, "1": 61.0})}}
    rows = (
        TableRow("fedavg", "FedAvg", paper, ours, {"S40": {"f1": None}}),
        TableRow("fedgsca", "FedGSCA", paper, {}, {}),
    )
    series = {"classes": ["a", "b"], "f1": {"S40": {"fedavg": {"0": [1.0, 2.0]}}}}
    return TableResult(
        "toy",
        "Toy",
        "caption",
        "kvasir",
        "synthetic",
        "mini",
        ("S40",),
        ("f1",),
        rows,
        "fedavg",
        (0, 1),
        ("mini",),
        2,
        4,
        series,
    )


def test_saved_and_loaded_is_the_same(tmp_path: Path) -> None:
    assert load(save(make(), tmp_path).parent) == make()


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"rows": [1]}'])
def test_missing_or_damaged_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "table.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"table\.json"):
        load(tmp_path)
