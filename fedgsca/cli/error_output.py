"""How an error reaches the user: two lines on stderr, or with --json one JSON object on stdout.

Error [data.duplicate-column]: labels.csv has more than one column 'label'
Fix: remove or rename one of them
"""

from __future__ import annotations

import os
import re
import sys

import click

from fedgsca.errors import ConfigError, DataError, FedgscaError, RunFolderError
from fedgsca.support.console import JsonOutput, print_error, print_json
from fedgsca.support.files import is_disk_full
from fedgsca.support.text import did_you_mean, one_line

BUG_EXIT_CODE = 70  # EX_SOFTWARE
_MAX_PATH_TEXT = 200  # characters of a path in a message
# options of other programs: what to write here
_OTHER_OPTIONS = {
    **dict.fromkeys(("--gpu", "--cuda"), "--device cuda"),
    **dict.fromkeys(("--lr", "--learning-rate"), "--set train.lr=0.01"),
    **dict.fromkeys(("--batch-size", "--batch"), "--set train.batch_size=32"),
    "--epochs": "--rounds, or --set train.epochs=2 for epochs within a round",
    "--output": "--out",
}


def show_error(error: FedgscaError, *, as_json: bool) -> int:
    """Print an error in one of the two forms; returns its exit code.

    If the command has already printed its JSON object, such as a comparison of which some runs
    failed, the error goes to stderr.
    """
    if as_json and not JsonOutput.is_printed:
        print_json({"error": error.to_json()})
    else:
        print_error(error.code, error.message, error.fix)
    return error.exit_code


def show_bug(error: Exception, *, as_json: bool) -> int:
    """Say that an unexpected error is not the user's fault; returns the exit code."""
    print("\nThis is a bug in fedgsca. Please report it with the lines above.", file=sys.stderr)
    if as_json and not JsonOutput.is_printed:
        fields = {
            "code": "cli.bug",
            "message": f"a bug in fedgsca: {type(error).__name__}",
            "fix": "report it with the text on stderr",
            "exit_code": BUG_EXIT_CODE,
        }
        print_json({"error": fields})
    return BUG_EXIT_CODE


def from_click(error: click.ClickException) -> FedgscaError:
    """A mistake on the command line, as the parser reports it, with a code and a fix."""
    context = getattr(error, "ctx", None)
    command = "fedgsca" if context is None else context.command_path
    message = error.format_message()
    hint = ""
    unknown_command = re.match(r"No such command '(.*?)'", message)
    if isinstance(error, click.NoSuchOption):
        message = f"{command} has no option {error.option_name}"
        parameters = [] if context is None else context.command.params
        names: list[str] = []
        for parameter in parameters:
            names += [*parameter.opts, *parameter.secondary_opts]
        option = _OTHER_OPTIONS.get(error.option_name, "")
        if option.partition(" ")[0].rstrip(",") in names:
            hint = f"use {option}; or "
        else:
            hint = did_you_mean(error.option_name, [name for name in names if name[:2] == "--"])
    elif unknown_command is not None:
        message = f"{command} has no command {unknown_command[1]}"
        commands = []
        if context is not None and isinstance(context.command, click.Group):
            commands = context.command.list_commands(context)
        hint = did_you_mean(unknown_command[1], commands)
    return ConfigError(
        "cli.usage",
        f"invalid command line: {message.rstrip('.')}",
        fix=f"{hint}run `{command} --help` to see how it is used",
    )


def from_exception(error: Exception) -> FedgscaError | None:
    """What the operating system or the machine refused, with a fix; None: a bug of ours."""
    if isinstance(error, PermissionError):  # the files of a kit belong to the user fedgsca
        return RunFolderError(
            "file.permission-denied",
            f"you do not have permission to use {error.filename or error}",
            fix="run the command as a user who has it (for a kit: sudo -u fedgsca),"
            " or change the permissions",
        )
    if isinstance(error, OSError) and is_disk_full(error) and error.filename is None:
        return RunFolderError(
            "file.output-full",
            "the output could not be written: no space is left",
            fix="send the output elsewhere, or free some space",
        )
    if isinstance(error, OSError):  # a name that is too long, links in a circle, no space
        place = "" if error.filename is None else f"{_shorten(os.fsdecode(error.filename))}: "
        return RunFolderError(
            "file.system-error",
            f"{place}{error.strerror or one_line(str(error)) or type(error).__name__}",
            fix="check the path and the permissions of its folders, then run the command again",
        )
    if isinstance(error, RecursionError):
        return DataError(
            "file.nested-too-deeply",
            "a file is nested too deeply to be read",
            fix="check the files that the command was given",
        )
    if isinstance(error, MemoryError):
        return DataError(
            "run.out-of-memory",
            "the memory of this machine is too small",
            fix="use smaller images, a smaller batch or a machine with more memory",
        )
    if _is_odd_text(error):
        return ConfigError(
            "file.invalid-name",
            f"a name contains a character that it cannot have: {one_line(str(error))}",
            fix="use names without control characters, in UTF-8",
        )
    return None


def _is_odd_text(error: Exception) -> bool:
    """Whether a name is one that no file can have: with a NUL character, or not UTF-8."""
    if isinstance(error, UnicodeEncodeError):
        return error.encoding.replace("-", "").lower() == "utf8"  # half characters
    return isinstance(error, ValueError) and "embedded null" in str(error)


def _shorten(path: str) -> str:
    return path if len(path) <= _MAX_PATH_TEXT else f"{path[:_MAX_PATH_TEXT]}..."
