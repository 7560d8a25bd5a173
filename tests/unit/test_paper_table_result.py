"""table.json: writing and reading lose nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedgsca.errors import RunFolderError
from fedgsca.paper.table_result import Score, TableResult, TableRow, TableSeries, load, save


def make() -> TableResult:
    paper = {"S40": {"f1": Score(65.37, 0.43)}}
    ours = {"S40": {"f1": Score(60.0, 1.0, {"0": 59.0, "1": 61.0})}}
    rows = (
        TableRow("fedavg", "FedAvg", paper, ours, {"S40": {"f1": None}}),
        TableRow("fedgsca", "FedGSCA", paper, {}, {}),
    )
    return TableResult(
        name="toy",
        title="Toy",
        paper_caption="caption",
        dataset="kvasir",
        data="synthetic",
        scale="mini",
        columns=("S40",),
        metrics=("f1",),
        rows=rows,
        reference="fedavg",
        seeds=(0, 1),
        notes=("mini",),
        finished_runs=2,
        total_runs=4,
        series=TableSeries(("a", "b"), f1={"S40": {"fedavg": {"0": [1.0, 2.0]}}}),
    )


def test_saved_and_loaded_is_the_same(tmp_path: Path) -> None:
    assert load(save(make(), tmp_path).parent) == make()


def test_the_keys_of_the_file_are_those_of_version_0_2_0(tmp_path: Path) -> None:
    tree = json.loads(save(make(), tmp_path).read_bytes())
    assert (tree["done"], tree["total"]) == (2, 4)
    known = {"classes", "confusion", "f1", "seconds", "stability"}
    assert set(tree["series"]) == known | {"site_f1"}
    assert set(tree) == {
        *("columns", "data", "dataset", "done", "metrics", "name", "notes", "paper_caption"),
        *("reference", "rows", "scale", "seeds", "series", "title", "total"),
    }
    assert set(tree["rows"][0]) == {"key", "label", "ours", "p_value", "paper"}
    del tree["series"]["confusion"]  # tables of unfinished experiments may lack some
    (tmp_path / "table.json").write_text(json.dumps(tree))
    assert load(tmp_path) == make()


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"rows": [1]}', b"[]"])
def test_missing_or_damaged_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "table.json").write_bytes(content)
    with pytest.raises(RunFolderError) as error:
        load(tmp_path)
    is_missing = content is None
    code = "table.missing-result" if is_missing else "table.damaged-result"
    assert error.value.code == code
    assert "table.json" in error.value.message
