"""The command line: modules with a function for each command, listed in PEOPLE.

Commands import torch, numpy and scikit-learn only when they run, so that `fedgsca --help` answers
at once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from fedgsca.cli import (
    apply,
    audit,
    compare,
    config,
    data,
    demo,
    deploy,
    doctor,
    model,
    noise,
    paper_table,
    report,
    review,
    run,
    wire,
    withdraw,
)
from fedgsca.cli.error_output import (
    from_click,
    from_exception,
    show_bug,
    show_error,
)
from fedgsca.cli.options import NoiseHelpCommand
from fedgsca.errors import FedgscaError
from fedgsca.support.console import JsonOutput
from fedgsca.support.files import is_disk_full
from fedgsca.support.version import __version__

# the commands of each person, in the order in which a newcomer needs them; the docstring of a
# function is the help of its command
PEOPLE: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Researcher: compare methods under label noise": {
        "demo": demo.demo,
        "run": run.run,
        "resume": run.resume,
        "compare": compare.compare,
        "report": report.report,
        "table": paper_table.table,
        "noise": noise.preview,
    },
    "Hospital: find and correct wrong labels, use a model": {
        "audit": audit.audit,
        "audit-folder": audit.audit_folder,
        "review": review.review,
        "reviewers": review.reviewers,
        "apply": apply.apply_command,
        "exchange": apply.exchange,
        "withdraw": withdraw.withdraw_command,
        "predict": model.predict,
        "export": model.export,
    },
    "Consortium: train across hospitals": {
        "deploy": deploy.group,
        "wire": wire.wire,
        "privacy": wire.privacy,
    },
    "Developer: data, methods, settings, this computer": {
        "data": data.group,
        "methods": config.methods,
        "config": config.show_config,
        "doctor": doctor.doctor,
    },
}

INTERRUPT_EXIT_CODE = 130  # what a shell reports for Ctrl-C

# What newer versions of click raise for a group without a command; older ones print the help.
_HELP_REQUEST: type[click.UsageError] | tuple[()] = getattr(
    click.exceptions, "NoArgsIsHelpError", ()
)


class OrderedGroup(TyperGroup):
    """Lists the commands by person; those without one come last."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of PEOPLE."""
        names = list(itertools.chain.from_iterable(PEOPLE.values()))
        return sorted(self.commands, key=lambda name: (*names, name).index(name))


app = typer.Typer(
    name="fedgsca",
    cls=OrderedGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"fedgsca {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Train one image classifier across hospitals whose labels are partly wrong.

    No image leaves its hospital. Start with [bold]fedgsca demo[/bold].
    """


def add_commands() -> None:
    """Add all commands, each in the panel of its person."""
    for person, commands in PEOPLE.items():
        for name, command in commands.items():
            if isinstance(command, typer.Typer):
                app.add_typer(command, name=name, rich_help_panel=person)
            else:
                kind = NoiseHelpCommand if name in ("run", "noise") else None
                app.command(name, cls=kind, rich_help_panel=person)(command)


add_commands()


def main(argv: Sequence[str] | None = None) -> None:
    """The console script."""
    sys.exit(execute(argv))


def execute(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every failure becomes one clear message."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in arguments
    JsonOutput.is_printed = False
    try:
        code = app(args=arguments, prog_name="fedgsca", standalone_mode=False)
        sys.stdout.flush()  # a full disk is noticed here, not when Python has ended
        return code if isinstance(code, int) else 0
    except FedgscaError as error:
        return show_error(error, as_json=as_json)
    except _HELP_REQUEST as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        return show_error(from_click(error), as_json=as_json)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPT_EXIT_CODE
    except BrokenPipeError:  # `fedgsca ... | head` has seen enough
        _discard_output()
        return 0
    except Exception as error:
        if isinstance(error, OSError) and is_disk_full(error) and error.filename is None:
            _discard_output()
        refusal = from_exception(error)
        if refusal is not None:
            return show_error(refusal, as_json=as_json)
        traceback.print_exc()  # without the values of variables: they may be a patient's
        return show_bug(error, as_json=as_json)


def _discard_output() -> None:
    """Send what is left of stdout nowhere, so that Python does not fail once more at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
