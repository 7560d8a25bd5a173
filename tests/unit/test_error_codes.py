"""Error codes: every error has a stable literal code with one meaning, and the page lists them."""

from __future__ import annotations

import importlib.util
import json
import pickle
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest

from fedgsca.cli import execute
from fedgsca.errors import ConfigError, ConfigProblem, DataError, FedgscaError

ROOT = Path(__file__).parents[2]


def _load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "generate_errors", ROOT / "docs" / "generate_errors.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


generator = _load_generator()
CALLS = generator.find_error_calls()


def test_every_error_has_a_literal_code_of_the_right_form() -> None:
    places = []
    for call in CALLS:
        if call.code is None or not generator.CODE.fullmatch(call.code):
            places.append(f"{call.place}: {call.code}")
    assert not places, "\n".join(places)


def test_no_code_is_a_placeholder() -> None:
    assert [call.place for call in CALLS if str(call.code).startswith("todo.")] == []


def test_every_code_belongs_to_a_documented_group() -> None:
    groups = {str(call.code).partition(".")[0] for call in CALLS}
    assert groups <= set(generator.GROUPS)


def test_a_code_has_one_exit_code() -> None:
    exit_codes = generator.read_exit_codes()
    found = defaultdict(set)
    for call in CALLS:
        if call.kind in exit_codes:
            found[call.code].add(exit_codes[call.kind])
    assert {code: codes for code, codes in found.items() if len(codes) > 1} == {}


def test_every_error_says_what_is_wrong_and_how_to_fix_it() -> None:
    for call in CALLS:
        assert call.message, call.place
        assert call.fix or call.kind == generator.PROBLEM_CLASS, call.place


def test_the_page_is_up_to_date() -> None:
    page = generator.PAGE.read_text(encoding="utf-8")
    assert page == generator.render_page(CALLS), "run python docs/generate_errors.py"


def test_exit_codes_are_those_of_the_classes() -> None:
    exit_codes = generator.read_exit_codes()
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
