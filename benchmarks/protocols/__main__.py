"""Frozen protocols, submissions, their check, and the leaderboard."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks.protocols.protocol import PROTOCOLS, Protocol, Tree
from fedgsca.cli.options import Json, Quiet
from fedgsca.errors import ConfigError, FedgscaError
from fedgsca.federation.progress import Display, display
from fedgsca.support.console import (
    print_error,
    print_json,
    print_line,
    print_warning,
)
from fedgsca.support.text import plural

if TYPE_CHECKING:
    from benchmarks.protocols.check_submission import SubmissionCheck
    from benchmarks.protocols.run_protocol import BenchmarkRun
    from fedgsca.federation.base import RunObserver

Data = Annotated[str, typer.Option("--data", help="the protocol's images, a file or folder")]
Methods = Annotated[str, typer.Option("--methods", help="names joined by commas, all or paper")]
Out = Annotated[Path | None, typer.Option("--out", help="folder; default runs/benchmark-NAME")]
Settings = Annotated[
    Path | None,
    typer.Option(
        "--settings", help="TOML with [[METHOD]] tables: as many candidates as the protocol allows"
    ),
]
Note = Annotated[str, typer.Option("--note", help="free text for the submission, such as a name")]
Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="submission files, folders")]
RepeatData = Annotated[
    str | None, typer.Option("--data", help="run one seed again on these images and compare")
]
SeedAgain = Annotated[int, typer.Option("--seed", help="the seed to run again")]
PageOut = Annotated[Path, typer.Option("--out", help="the page to write: .md or .csv")]


app = typer.Typer(
    no_args_is_help=True, help="Run a frozen protocol, check submissions, build a leaderboard."
)


def make_app() -> typer.Typer:
    """One command per protocol, and three about submissions."""
    for protocol in PROTOCOLS.values():
        app.command(protocol.name, help=f"{protocol.title} (v{protocol.version}).")(
            protocol_command(protocol)
        )
    app.command("list", help="The protocols and what they fix.")(list_command)
    app.command("check", help="Check submission files.")(check_command)
    app.command("page", help="Write a leaderboard from submission files.")(page_command)
    return app


def protocol_command(protocol: Protocol) -> Callable[..., None]:
    """The command `python -m benchmarks.protocols NAME` of a protocol."""

    def command(
        data: Data,
        methods: Methods = "all",
        out: Out = None,
        settings: Settings = None,
        note: Note = "",
        quiet: Quiet = False,
        as_json: Json = False,
    ) -> None:
        folder = out or Path("runs") / f"benchmark-{protocol.name}"
        paths = run_protocol(protocol, data, methods, folder, settings, note, quiet=quiet)
        if as_json:
            print_json({"submissions": [str(path) for path in paths]})
        elif not quiet:
            show_submissions(paths)

    return command


def run_protocol(
    protocol: Protocol,
    data: str,
    methods: str,
    out: Path,
    settings: Path | None,
    note: str,
    *,
    quiet: bool,
) -> list[Path]:
    """Run a protocol for the methods and write their submissions; returns the paths."""
    from benchmarks.protocols.run_protocol import ProtocolRunner
    from fedgsca.lab.plan import parse_methods

    names = parse_methods(methods)
    own_candidates = read_settings(settings, names) if settings else {}
    runner = ProtocolRunner(protocol, data, out)
    runner.write_label_files()
    runs_per_method = len(protocol.candidates) + len(protocol.seeds)
    paths = []
    with display(quiet=quiet, runs=runs_per_method * len(names)) as progress:
        for name in names:
            candidates = own_candidates.get(name, list(protocol.candidates))
            paths.append(runner.submit(name, candidates, _observers(progress), note))
    return paths


def _observers(progress: Display) -> Callable[[BenchmarkRun], RunObserver]:
    def observe(benchmark_run: BenchmarkRun) -> RunObserver:
        return progress.observe(benchmark_run.name)

    return observe


def read_settings(path: Path, methods: Sequence[str]) -> dict[str, list[Tree]]:
    """Candidate settings per method from a TOML file with one [[METHOD]] table per candidate."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            "benchmark.unreadable-settings",
            f"{path} cannot be read as TOML: {error}",
            fix="write one table [[METHOD]] per candidate, for example [[fedprox]]",
        ) from None
    for name, candidates in tree.items():
        is_list = isinstance(candidates, list) and all(isinstance(c, dict) for c in candidates)
        if name not in methods or not is_list:
            raise ConfigError(
                "benchmark.unreadable-settings",
                f"{path}: {name} is not a list of settings of one of the methods",
                fix="write one table [[METHOD]] per candidate, for example [[fedprox]]",
            )
    return tree


def show_submissions(paths: Sequence[Path]) -> None:
    """A table of submissions, best first."""
    from benchmarks.protocols.leaderboard import make_tables
    from benchmarks.protocols.submission import read_submission
    from fedgsca.lab.table import print_tables

    print_tables(make_tables([read_submission(path) for path in paths]))
    for path in paths:
        print_line(f"written  {path}")


def list_command(as_json: Json = False) -> None:
    """`python -m benchmarks.protocols list`."""
    if as_json:
        rows = []
        for protocol in PROTOCOLS.values():
            rows.append(
                {
                    "name": protocol.name,
                    "version": protocol.version,
                    "title": protocol.title,
                    "data": protocol.data,
                    "digest": protocol.digest(),
                }
            )
        print_json({"protocols": rows})
        return
    for protocol in PROTOCOLS.values():
        print_line(f"{protocol.label}  {protocol.title}", "bold")
        print_line(f"  data: {protocol.data}")
        print_line(
            f"  noise {protocol.noise}, {plural(len(protocol.seeds), 'seed')}, "
            f"{protocol.tree['train']['rounds']} rounds, "
            f"{plural(len(protocol.candidates), 'validation run')} per method"
        )


def check_command(
    files: Files, data: RepeatData = None, seed: SeedAgain = 0, as_json: Json = False
) -> None:
    """`python -m benchmarks.protocols check`."""
    from benchmarks.protocols.check_submission import SubmissionCheck, check_submission, repeat_run
    from benchmarks.protocols.leaderboard import find_submissions

    records = []
    num_invalid = 0
    for submission in find_submissions(files):
        result = check_submission(submission)
        if data is not None and not result.problems:
            repetition = repeat_run(submission, data, seed)
            result = SubmissionCheck(repetition.problems, (*result.remarks, *repetition.remarks))
        name = f"{submission.protocol.name} {submission.method}"
        records.append({"submission": name, "problems": result.problems, "remarks": result.remarks})
        num_invalid += bool(result.problems)
        if not as_json:
            _show_check(name, result)
    if as_json:
        print_json({"checks": records})
    if num_invalid:
        raise FedgscaError(
            "benchmark.invalid-submission",
            f"{num_invalid} of {plural(len(records), 'submission')} did not pass the check",
            fix="write the submission again with `python -m benchmarks.protocols NAME`",
        )


def _show_check(name: str, result: SubmissionCheck) -> None:
    if result.problems:
        print_line(f"{name}: {plural(len(result.problems), 'problem')}", "red")
        for problem in result.problems:
            print_line(f"  {problem}")
    else:
        print_line(f"{name}: valid", "green")
    for remark in result.remarks:
        print_line(f"  {remark}", "dim")


def page_command(files: Files, out: PageOut = Path("leaderboard.md")) -> None:
    """`python -m benchmarks.protocols page`."""
    from benchmarks.protocols.leaderboard import find_submissions, write_leaderboard

    rejections = write_leaderboard(find_submissions(files), out)
    for rejection in rejections:
        print_warning(f"left out: {rejection}")
    print_line(f"written  {out}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; errors are printed with their fix."""
    try:
        make_app()(args=list(arguments) if arguments is not None else None, standalone_mode=False)
    except FedgscaError as error:
        print_error(error.code, error.message, error.fix)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
