"""Errors a user can act on: a stable code, what is wrong and where, and how to fix it.

`assert` and plain exceptions are left for our own bugs. The command line prints these without a
traceback and exits with the class's exit code, so that a script can tell a typo from a full disk.

A code such as `data.duplicate-column` never changes its meaning; the wording of a message may.
docs/errors.md lists all codes. It is generated from the source, so a code is always a literal:

    raise DataError(
        "data.duplicate-column", f"{path} has two columns {name!r}", fix="rename one of them"
    )
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass


class FedgscaError(Exception):
    """Base of every error that is the user's to solve.

    `code` is `group.what-is-wrong`, `message` the problem as a sentence, `fix` an imperative.
    """

    exit_code = 1

    def __init__(self, code: str, message: str, *, fix: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}\nFix: {self.fix}"

    def to_json(self) -> dict[str, object]:
        """The error as `--json` prints it."""
        return {
            "code": self.code,
            "message": self.message,
            "fix": self.fix,
            "exit_code": self.exit_code,
        }

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle all attributes: errors travel from worker processes to the main one."""
        return (_restore_error, (type(self), self.__dict__.copy()))


def _restore_error(kind: type[FedgscaError], attributes: dict[str, object]) -> FedgscaError:
    error = kind.__new__(kind, attributes["message"])
    error.__dict__.update(attributes)
    return error


@dataclass(frozen=True)
class ConfigProblem:
    """One of several problems that are reported together, with a code of its own."""

    code: str
    message: str


class ConfigError(FedgscaError):
    """A configuration value, command line option or noise specification that makes no sense.

    `problems` are single problems that were collected and are reported together, one line each;
    they are appended to the message, so do not repeat them in it.
    """

    exit_code = 2

    def __init__(
        self, code: str, message: str, *, fix: str, problems: Sequence[ConfigProblem] = ()
    ) -> None:
        lines = [f"\n  {problem.message}" for problem in problems]
        super().__init__(code, message + "".join(lines), fix=fix)
        self.problems = tuple(problems)

    def to_json(self) -> dict[str, object]:
        """The error as `--json` prints it, with `problems` as a list where there are several."""
        fields = super().to_json()
        if self.problems:
            fields["problems"] = [asdict(problem) for problem in self.problems]
        return fields


class DataError(FedgscaError):
    """Images, labels or splits that cannot be used as they are."""

    exit_code = 3


class ClassListError(DataError):
    """A site whose classes are not those of the consortium."""


class WeightsError(FedgscaError):
    """A weights file that does not fit the network."""

    exit_code = 4


class UpdateError(FedgscaError):
    """An update of a site, or a model made from updates, that is not finite or not as declared."""

    exit_code = 5


class QuorumError(FedgscaError):
    """Too few usable updates arrived in a round."""

    exit_code = 6


class RunFolderError(FedgscaError):
    """A run folder that belongs to another experiment, is damaged, or cannot be written."""

    exit_code = 7


class MissingExtraError(FedgscaError):
    """An optional dependency that is not installed."""

    exit_code = 8
