"""Results as records and data frames: one row per round, run and label."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import fedgsca
from fedgsca.errors import FedgscaError
from fedgsca.lab.frames import cell_rows, round_rows
from tests.toys import toy_npz

SETTINGS = {"preset": "paper", "train.rounds": 6, "train.batch_size": 16, "train.lr": 0.05}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedgsca.Run:
    config = fedgsca.Config.load(
        data=str(toy_npz()), method="fedgsca", noise="S40", model="cnn", sites=2, set=SETTINGS
    )
    return fedgsca.run(config, tmp_path_factory.mktemp("frames") / "a")


def test_one_row_per_round_and_per_site(run: fedgsca.Run) -> None:
    rows = round_rows(run.rounds)
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[-1]["f1"] == run.rounds[-1].f1 and rows[0]["sites"] == 2
    site_rows = round_rows(run.rounds, "sites")
    assert [(row["round"], row["site"]) for row in site_rows[:2]] == [(1, "site-1"), (1, "site-2")]
    assert "delta" in site_rows[-1] and np.ndim(site_rows[-1]["delta"]) == 0
    with pytest.raises(FedgscaError) as caught:
        round_rows(run.rounds, "patients")  # type: ignore[arg-type]
    assert caught.value.code == "run.unknown-frame"


def test_the_confusion_matrix_has_the_class_names_beside_it(run: fedgsca.Run) -> None:
    assert run.confusion.shape == (len(run.classes), len(run.classes))
    assert list(run.per_class) == list(run.classes)
    assert run.confusion.sum(axis=1).tolist() == [c.support for c in run.per_class.values()]


def test_a_selection_has_files_labels_flags_and_posteriors(run: fedgsca.Run) -> None:
    selection = run.selection("site-2")
    noise = run.rounds[-1].sites["site-2"]
    assert len(selection) == noise.num_samples and selection.round == 6
    assert int((~selection.noisy).sum()) == noise.number("clean")
    assert selection.true is not None and selection.posterior is not None
    wrong = selection.given != selection.true
    assert 0.2 < wrong.mean() < 0.6 and set(selection.given) <= set(run.classes)
    assert (selection.pseudo_label != "").sum() == noise.number("pseudo")
    row = selection.to_rows()[0]
    assert {"files", "given", "true", "noisy", "posterior", "loss", "pseudo_label"} == set(row)


def test_a_selection_that_does_not_exist_is_explained(run: fedgsca.Run, tmp_path: Path) -> None:
    with pytest.raises(FedgscaError) as caught:
        run.selection("site-9")
    assert caught.value.code == "run.unknown-site" and "site-1" in caught.value.fix
    config = fedgsca.Config.load(
        data=str(toy_npz()), method="fedavg", model="cnn", sites=2, rounds=1
    )
    with pytest.raises(FedgscaError) as caught:
        fedgsca.run(config, tmp_path / "avg").selection("site-1")
    assert caught.value.code == "run.no-selection"


def test_frames_need_pandas_and_say_so(run: fedgsca.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(FedgscaError) as caught:
        run.to_frame()
    assert caught.value.code == "extra.pandas-missing"


def test_a_comparison_of_settings_from_python_has_a_row_per_seed(tmp_path: Path) -> None:
    """`vary` is documented in docs/compare.md."""
    pandas = pytest.importorskip("pandas")
    config = fedgsca.Config.load(data=str(toy_npz()), model="cnn", rounds=1)
    table = fedgsca.compare(
        ["fedavg"],
        config,
        noises=["S40"],
        vary={"data.sites": [2, 3]},
        seeds=2,
        ceiling=False,
        out=tmp_path / "c",
    )
    frame = table.to_frame()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 4
    assert frame["sites"].tolist() == ["2", "3", "2", "3"] and set(frame["seed"]) == {0, 1}
    recalls = [name for name in frame.columns if name.startswith("recall of ")]
    assert np.allclose(frame[recalls].notna(), True)
    assert cell_rows(table.comparison.cells)[0]["f1"] == frame["f1"][0]
    assert (tmp_path / "c" / "figures" / "scores-3.5in.pdf").is_file()
