"""The command line. A command group is a small module with `add(app)`; to add one, write the module and name it in MODULES.

Commands import torch, numpy, scikit-learn and pydantic only when they run: `fedgsca --help` must answer at once.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from fedgsca import __version__
from fedgsca.cli import (
    apply,
    audit,
    compare,
    data,
    demo,
    deploy,
    exchange,
    export,
    methods,
    noise,
    predict,
    privacy,
    report,
    review,
    run,
)
from fedgsca.cli import paper_table as table
from fedgsca.cli import show_config as config
from fedgsca.cli import show_wire as wire
from fedgsca.errors import FedgscaError, RunFolderError
from fedgsca.support.console import print_error

MODULES = (
    demo,
    run,
    compare,
    table,
    deploy,
    report,
    audit,
    review,
    apply,
    exchange,
    predict,
    export,
    data,
    noise,
    wire,
    privacy,
    methods,
    config,
)
ORDER = (
    "demo", "run", "resume", "compare", "table", "ablation", "sensitivity", "stability", "efficiency", "deploy",
    "report", "audit", "review", "apply", "exchange", "predict", "export", "data", "noise", "wire", "privacy", "methods",
    "config",
)  # fmt: skip

STOPPED = 130  # what a shell reports for Ctrl-C
BUG = 70  # EX_SOFTWARE


class InOrder(TyperGroup):
    """Lists commands in the order in which a newcomer needs them; what ORDER does not name comes last."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(
            self.commands, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER)
        )


app = typer.Typer(
    name="fedgsca",
    cls=InOrder,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedgsca {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Train one image classifier across hospitals whose labels are partly wrong, without moving images.

    Start with [bold]fedgsca demo[/bold].
    """


for module in MODULES:
    module.add(app)


def main(argv: Sequence[str] | None = None) -> None:
    """The console script."""
    sys.exit(execute(argv))


def execute(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every kind of failure becomes one clear message on stderr."""
    try:
        code = app(
            args=None if argv is None else list(argv), prog_name="fedgsca", standalone_mode=False
        )
        return code if isinstance(code, int) else 0
    except FedgscaError as error:
        print_error(error.message, error.fix)
        return error.exit_code
    except click.ClickException as error:
        from typer.rich_utils import rich_format_error

        rich_format_error(error)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return STOPPED
    except PermissionError as error:  # the files of a kit are user fedgsca's, and closed to others
        print_error(
            f"{error.filename or error}: not allowed",
            "run it as a user who may: at a kit, sudo -u fedgsca; or change the modes",
        )
        return RunFolderError.exit_code
    except Exception:
        traceback.print_exc()  # without values of variables: they may be a patient's
        print(
            "\nThis is a bug in fedgsca, not your mistake. Please report it with the lines above.",
            file=sys.stderr,
        )
        return BUG
