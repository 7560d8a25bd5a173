"""Error codes: every error has a stable literal code with one meaning, and is listed."""

from __future__ import annotations

import json
import pickle
from collections import defaultdict

import pytest

from docs.error_codes import (
    CODE,
    GROUPS,
    PROBLEM_CLASS,
    find_error_calls,
    read_exit_codes,
    render_errors,
)
from fedgsca.cli import execute
from fedgsca.errors import ConfigError, ConfigProblem, DataError, FedgscaError

CALLS = find_error_calls()


def test_every_error_has_a_literal_code_of_the_right_form() -> None:
    places = []
    for call in CALLS:
        if call.code is None or not CODE.fullmatch(call.code):
            places.append(f"{call.place}: {call.code}")
    assert not places, "\n".join(places)


def test_no_code_is_a_placeholder() -> None:
    assert [call.place for call in CALLS if str(call.code).startswith("todo.")] == []


def test_every_code_belongs_to_a_documented_group() -> None:
    groups = {str(call.code).partition(".")[0] for call in CALLS}
    assert groups <= set(GROUPS)


def test_a_code_has_one_exit_code() -> None:
    exit_codes = read_exit_codes()
    found = defaultdict(set)
    for call in CALLS:
        if call.kind in exit_codes:
            found[call.code].add(exit_codes[call.kind])
    assert {code: codes for code, codes in found.items() if len(codes) > 1} == {}


def test_every_error_says_what_is_wrong_and_how_to_fix_it() -> None:
    for call in CALLS:
        assert call.message, call.place
        assert call.fix or call.kind == PROBLEM_CLASS, call.place


def test_the_list_has_every_code_once_and_every_exit_code() -> None:
    lines = render_errors().splitlines()
    codes = sorted({str(call.code) for call in CALLS})
    assert sorted(line.strip("# `") for line in lines if line.startswith("### ")) == codes
    for exit_code in {0, 70, 130, *read_exit_codes().values()}:
        assert any(line.startswith(f"| {exit_code} |") for line in lines)


def test_exit_codes_are_those_of_the_classes() -> None:
    exit_codes = read_exit_codes()
    assert exit_codes["FedgscaError"] == FedgscaError.exit_code
    assert exit_codes["ConfigError"] == ConfigError.exit_code
    assert exit_codes["ClassListError"] == DataError.exit_code


def test_errors_survive_the_way_between_processes() -> None:
    problem = ConfigProblem("config.unknown-key", "train.x: unknown key")
    error = ConfigError("config.invalid", "1 problem:", fix="correct it", problems=[problem])
    copy = pickle.loads(pickle.dumps(error))
    assert copy.to_json() == error.to_json()
    assert str(copy) == str(error)


# ---- how errors reach the user ----


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["wire", "foo"], "config.unknown-method"),
        (["run", "--no-such-option"], "cli.usage"),
        (["no-such-command"], "cli.usage"),
        (["run", "--rounds", "many"], "cli.usage"),
        (["run", "--set", "train.rounds=0"], "config.invalid"),
        (["resume", "no-such-folder"], "run.folder-not-found"),
    ],
)
def test_with_json_the_error_is_one_object_on_stdout(
    arguments: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code = execute([*arguments, "--json"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == code
    assert error["exit_code"] == exit_code != 0
    assert error["message"] and error["fix"]


def test_without_json_the_error_is_on_stderr_with_code_and_fix(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert execute(["wire", "foo"]) == ConfigError.exit_code
    output = capsys.readouterr()
    assert output.out == ""
    lines = output.err.splitlines()
    assert lines[0].startswith("Error [config.unknown-method]: ")
    assert lines[1].startswith("Fix: ")


def test_an_invalid_configuration_lists_its_problems(capsys: pytest.CaptureFixture[str]) -> None:
    execute(["config", "--set", "train.rounds=0", "--set", "train.nonsense=1", "--json"])
    error = json.loads(capsys.readouterr().out)["error"]
    codes = {problem["code"] for problem in error["problems"]}
    assert codes == {"config.invalid-value", "config.unknown-key"}


def test_a_misspelled_option_is_recognised_and_a_foreign_one_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    execute(["run", "--rouns", "3", "--json"])
    assert "'--rounds'" in json.loads(capsys.readouterr().out)["error"]["fix"]
    execute(["run", "--gpu", "--json"])
    assert "did you mean" not in json.loads(capsys.readouterr().out)["error"]["fix"]
