"""Every engine gives the same bytes; a new one is a class and a registered function."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fedgsca.config import Config
from fedgsca.errors import ConfigError
from fedgsca.federation.base import (
    ENGINES,
    Reply,
    RunObserver,
    find_engine,
    load_engines,
    register_engine,
)
from fedgsca.federation.local import SiteRunner, open_runner
from fedgsca.federation.records import RunResult
from fedgsca.federation.rounds import run
from fedgsca.wire import Payload
from tests.toys import outcome, toy_config

# ---- example: the code of CONTRIBUTING ----


class BackwardsEngine:
    """Trains the sites in reverse order."""

    def __init__(self, runner: SiteRunner) -> None:
        self.runner = runner

    def exchange(self, payload: Payload, sites: Sequence[str] | None = None) -> Iterator[Reply]:
        replies = {}
        names = self.runner.experiment.sites if sites is None else sites
        for name in sorted(names, reverse=True):
            replies[name] = self.runner.run_round(name, payload)
        for name in sorted(replies):  # always returned in the order of site names
            yield replies[name]

    def close(self) -> None:
        pass


def run_backwards(
    config: Config, out: Path, *, jobs: int = 1, observer: RunObserver | None = None
) -> RunResult | None:
    engine = BackwardsEngine(open_runner(config, out))
    return run(config, out, engine=engine, observer=observer)


# ---- end of the example ----


@pytest.fixture
def backwards() -> Iterator[str]:
    register_engine("backwards", "all sites in reverse order")(run_backwards)
    yield "backwards"
    ENGINES.unregister("backwards")


def test_a_new_engine_gives_the_same_bytes(backwards: str, tmp_path: Path) -> None:
    config = toy_config("fedgsca", frozen=True)
    find_engine("local").run(config, tmp_path / "local")
    result = find_engine(backwards).run(config, tmp_path / "backwards")
    assert result is not None
    assert outcome(tmp_path / "backwards") == outcome(tmp_path / "local")


def test_the_command_line_runs_a_new_engine(backwards: str, tmp_path: Path) -> None:
    from fedgsca.cli import execute
    from fedgsca.config import to_toml

    config = toy_config("fedavg", frozen=True, train__rounds=2)
    (tmp_path / "config.toml").write_text(to_toml(config))
    arguments = ["run", "--config", str(tmp_path / "config.toml"), "--out", str(tmp_path / "run")]
    assert execute([*arguments, "--engine", backwards, "--quiet"]) == 0
    find_engine("local").run(config, tmp_path / "local")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "local")


def test_built_in_engines_are_listed_with_a_description() -> None:
    engines = load_engines()
    assert "local" in engines
    for name, kind in engines.items():
        assert kind.name == name
        assert kind.description


def test_an_unknown_engine_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(ConfigError) as error:
        find_engine("locl")
    assert error.value.code == "cli.unknown-engine"
    assert "local" in error.value.fix


def test_listing_engines_imports_nothing_heavy() -> None:
    script = (
        "import sys; from fedgsca.federation.base import load_engines; load_engines();"
        "print([name for name in ('torch', 'numpy', 'flwr', 'ray') if name in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "[]"
