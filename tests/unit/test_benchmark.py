"""The benchmark: frozen protocols, submissions that can be checked, the leaderboard."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.protocols.__main__ import main
from benchmarks.protocols.check_submission import check_submission, repeat_run
from benchmarks.protocols.conditions import digest_data, label_file, protocol_config
from benchmarks.protocols.leaderboard import find_submissions, make_tables, write_leaderboard
from benchmarks.protocols.protocol import PROTOCOLS, Protocol, find_protocol
from benchmarks.protocols.run_protocol import ProtocolRunner
from benchmarks.protocols.submission import Submission, read_submission, write_submission
from fedgsca.config import load_config
from fedgsca.errors import ConfigError, DataError, RunFolderError
from fedgsca.federation.data_source import load_table
from fedgsca.federation.samples import weights_digest
from fedgsca.federation.simulation import divide
from tests.toys import toy_folder, toy_npz, toy_weights

# A protocol never changes: a change is a new version. If this test fails, undo the change.
FROZEN_DIGESTS = {
    "tissue-28 v3": "4748bfe03bf4cbd3cce84674d0240ef1529bcc76d207146d0e738d2aaa1e0330",
    "skin-96 v3": "d4be7c69c1956d4de577e450b87432c6400f27c529c1e3898989502fbbd5077d",
}
METHOD = "fedavg"


def test_protocols_never_change() -> None:
    digests = {protocol.label: protocol.digest() for protocol in PROTOCOLS.values()}
    digests.pop("toy v1")
    assert digests == FROZEN_DIGESTS


def make_toy_protocol() -> Protocol:
    """A protocol of a second per run."""
    draft = Protocol(
        name="toy",
        version=1,
        title="Toy",
        data="the toy file",
        data_digest="",
        weights="",
        noise="0-S40-P20-C20",
        seeds=(0, 1),
        tuning_seed=100,
        candidates=({"train": {"lr": 0.02}}, {"train": {"lr": 0.1}}),
        labels={},
        tree={
            "model": {
                "name": "cnn",
                "frozen": True,
                "weights": str(toy_weights()),
                "feature_size": 16,
            },
            "train": {"rounds": 6, "batch_size": 8, "threads": 1, "device": "cpu"},
            "data": {"sites": 4},
        },
    )
    source = str(toy_npz())
    labels = {}
    for seed in (*draft.seeds, draft.tuning_seed):
        config = protocol_config(draft, source, METHOD, {}, seed)
        division = divide(config)
        labels[seed] = hashlib.sha256(label_file(division)).hexdigest()
    weights = weights_digest(config)
    assert weights is not None
    digest = digest_data(source, division.table)
    return replace(draft, labels=labels, weights=weights, data_digest=digest)


@pytest.fixture(scope="module")
def toy_protocol() -> Protocol:
    return make_toy_protocol()


@pytest.fixture(autouse=True)
def register_toy_protocol(toy_protocol: Protocol, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROTOCOLS, "toy", toy_protocol)


@pytest.fixture(scope="module")
def submission_file(toy_protocol: Protocol, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runner = ProtocolRunner(toy_protocol, str(toy_npz()), tmp_path_factory.mktemp("benchmark"))
    runner.write_label_files()
    return runner.submit(METHOD, toy_protocol.candidates, note="a test")


@pytest.fixture
def submission(submission_file: Path) -> Submission:
    return read_submission(submission_file)


def test_a_submission_is_complete_and_valid(submission: Submission, submission_file: Path) -> None:
    assert check_submission(submission).problems == ()
    assert [run.seed for run in submission.runs] == [0, 1]
    assert len(submission.validation) == 2
    best = max(submission.validation, key=lambda trial: trial.val_f1)
    assert submission.chosen_setting == best.setting
    assert submission.software["fedgsca"] and submission.note == "a test"
    assert str(toy_npz()) not in submission_file.read_text(), "no paths of this machine"
    assert submission_file.stat().st_size < 30_000


def test_the_label_file_says_who_has_which_image(
    submission_file: Path, toy_protocol: Protocol
) -> None:
    content = (submission_file.parent / "labels-s0.csv").read_bytes()
    assert hashlib.sha256(content).hexdigest() == toy_protocol.labels[0]
    lines = content.decode().splitlines()
    assert lines[0] == "file,site,true,given"
    assert len(lines) == 1 + 124
    assert any(line.split(",")[2] != line.split(",")[3] for line in lines[1:])


def change_f1(submission: Submission) -> Submission:
    return replace(submission, f1=submission.f1 + 1)


def change_run(submission: Submission) -> Submission:
    first = replace(submission.runs[0], f1=99.0)
    return replace(submission, runs=(first, *submission.runs[1:]))


def change_confusion(submission: Submission) -> Submission:
    perfect = tuple(map(tuple, np.diag([10, 10, 10]).tolist()))
    first = replace(submission.runs[0], confusions=(perfect,) * 5)
    return replace(submission, runs=(first, *submission.runs[1:]))


def change_choice(submission: Submission) -> Submission:
    settings = [trial.setting for trial in submission.validation]
    loser = next(setting for setting in settings if setting != submission.chosen_setting)
    return replace(submission, chosen_setting=loser)


def add_trial(submission: Submission) -> Submission:
    return replace(submission, validation=(*submission.validation, submission.validation[0]))


def tune_rounds(submission: Submission) -> Submission:
    first = replace(submission.validation[0], setting={"train.rounds": 500})
    return replace(submission, validation=(first, *submission.validation[1:]))


def change_config(submission: Submission) -> Submission:
    return replace(submission, config={**submission.config, "train.rounds": 500})


def drop_seed(submission: Submission) -> Submission:
    return replace(submission, runs=submission.runs[:1])


def change_labels(submission: Submission) -> Submission:
    first = replace(submission.runs[0], labels="0" * 64)
    return replace(submission, runs=(first, *submission.runs[1:]))


def change_data(submission: Submission) -> Submission:
    return replace(submission, data_digest="0" * 64)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (change_f1, "mean F1"),
        (change_run, "confusion matrices give"),
        (change_confusion, "confusion matrices give"),
        (change_choice, "highest validation score"),
        (add_trial, "3 validation runs instead of 2"),
        (tune_rounds, "train.rounds may not be tuned"),
        (change_config, "train.rounds is 500"),
        (drop_seed, "seeds"),
        (change_labels, "label file"),
        (change_data, "the data is not"),
    ],
)
def test_a_changed_submission_is_refused_even_with_a_new_digest(
    change: Callable[[Submission], Submission],
    problem: str,
    submission: Submission,
    tmp_path: Path,
) -> None:
    write_submission(change(submission), tmp_path / "toy-v1-changed.json")
    problems = check_submission(read_submission(tmp_path / "toy-v1-changed.json")).problems
    assert any(problem in text for text in problems), problems


def test_an_edited_file_does_not_match_its_digest(submission_file: Path, tmp_path: Path) -> None:
    tree = json.loads(submission_file.read_text())
    tree["note"] = "somebody else"
    file = tmp_path / "toy-v1-edited.json"
    file.write_text(json.dumps(tree))
    assert "digest" in check_submission(read_submission(file)).problems[0]


def test_a_repeated_run_is_identical(submission: Submission) -> None:
    result = repeat_run(submission, str(toy_npz()), 1)
    assert result.problems == ()
    assert "identical" in result.remarks[0]


def test_other_data_is_refused(toy_protocol: Protocol, tmp_path: Path) -> None:
    runner = ProtocolRunner(toy_protocol, str(toy_npz(train=130)), tmp_path)
    with pytest.raises(DataError) as error:
        runner.write_label_files()
    assert error.value.code == "benchmark.other-data"


def test_other_labels_are_refused(toy_protocol: Protocol, tmp_path: Path) -> None:
    protocol = replace(toy_protocol, labels={**toy_protocol.labels, 0: "0" * 64})
    with pytest.raises(DataError) as error:
        ProtocolRunner(protocol, str(toy_npz()), tmp_path).write_label_files()
    assert error.value.code == "benchmark.other-labels"


def test_more_candidates_than_allowed_are_refused(toy_protocol: Protocol, tmp_path: Path) -> None:
    runner = ProtocolRunner(toy_protocol, str(toy_npz()), tmp_path)
    with pytest.raises(ConfigError) as error:
        runner.submit(METHOD, [*toy_protocol.candidates, {"train": {"lr": 0.5}}])
    assert error.value.code == "benchmark.tuning-rule"


def test_the_leaderboard_ranks_valid_submissions_only(
    submission: Submission, tmp_path: Path
) -> None:
    (table,) = make_tables([submission])
    assert table.title == "toy v1"
    assert [len(row) for row in table.rows] == [len(table.head)]
    rejections = write_leaderboard([submission, change_f1(submission)], tmp_path / "board.md")
    assert len(rejections) == 1 and "digest" in rejections[0]
    assert (tmp_path / "board.md").read_text().count("FedAvg") == 1


def test_files_that_are_not_submissions(tmp_path: Path) -> None:
    (tmp_path / "toy-v1-x.json").write_text("[1, 2")
    with pytest.raises(RunFolderError) as error:
        find_submissions([tmp_path])
    assert error.value.code == "benchmark.unreadable-submission"
    (tmp_path / "toy-v1-x.json").write_text("{}")
    with pytest.raises(RunFolderError) as error:
        find_submissions([tmp_path])
    assert error.value.code == "benchmark.unknown-format"
    with pytest.raises(RunFolderError) as error:
        find_submissions([])
    assert error.value.code == "benchmark.no-submissions"
    with pytest.raises(ConfigError):
        find_protocol("tisue-28")


def test_the_commands(submission_file: Path, tmp_path: Path) -> None:
    assert main(["check", str(submission_file)]) == 0
    assert main(["list", "--json"]) == 0
    page = tmp_path / "board.csv"
    assert main(["page", str(submission_file), "--out", str(page)]) == 0
    assert page.is_file()
    changed_file = tmp_path / "changed.json"
    write_submission(change_f1(read_submission(submission_file)), changed_file)
    assert main(["check", str(changed_file)]) != 0


def test_validation_images_can_be_held_out_and_do_not_depend_on_the_seed() -> None:
    source = str(toy_folder("one_class"))
    tables = []
    for seed in (0, 1):
        tables.append(load_table(load_config(data__source=source, data__val=0.2, seed=seed)))
    assert len(tables[0].rows("val")) > 5
    assert np.array_equal(tables[0].split, tables[1].split)
    assert tables[0].fingerprint == tables[1].fingerprint
    whole = load_table(load_config(data__source=source))
    assert np.array_equal(tables[0].split == "test", whole.split == "test")
    assert tables[0].fingerprint != whole.fingerprint
    with pytest.raises(ConfigError) as error:
        load_table(load_config(data__source=str(toy_npz()), data__val=0.2))
    assert error.value.code == "data.has-validation-images"
