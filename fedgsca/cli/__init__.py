"""The command line. A command group is a small module with `add(app)`, named in MODULES.

Commands import torch, numpy and scikit-learn only when they run, so that `fedgsca --help` answers
at once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import traceback
from collections.abc import Sequence
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
    reviewers,
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
from fedgsca.errors import FedgscaError
from fedgsca.support.console import JsonOutput
from fedgsca.support.files import is_disk_full
from fedgsca.support.version import __version__

MODULES = (
    demo,
    run,
    compare,
    paper_table,
    report,
    noise,
    audit,
    review,
    reviewers,
    apply,
    model,
    deploy,
    withdraw,
    wire,
    data,
    config,
    doctor,
)
# the commands of each person, in the order in which a newcomer needs them
PEOPLE = {
    "Researcher: compare methods under label noise": (
        "demo",
        "run",
        "resume",
        "compare",
        "report",
        "table",
        "noise",
    ),
    "Hospital: find and correct wrong labels, use a model": (
        "audit",
        "audit-folder",
        "review",
        "reviewers",
        "apply",
        "exchange",
        "withdraw",
        "predict",
        "export",
    ),
    "Consortium: train across hospitals": ("deploy", "wire", "privacy"),
    "Developer: data, methods, settings, this computer": ("data", "methods", "config", "doctor"),
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
    """Add the commands of all modules, each in the panel of its person."""
    for module in MODULES:
        module.add(app)
    person_of: dict[str, str] = {}
    for person, names in PEOPLE.items():
        person_of |= dict.fromkeys(names, person)
    for command in app.registered_commands:
        command.rich_help_panel = person_of.get(command.name or "")
    for group in app.registered_groups:
        group.rich_help_panel = person_of.get(group.name or "")


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
