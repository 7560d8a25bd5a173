"""Errors at the coordinator of a deployment: the right command in the fix, and no traceback.

A fix says `fedgsca resume`, which is right for a run on one machine. A deployment is continued by
the script that started it. And Flower prints every exception of its app as a traceback followed by
"an unhandled exception occurred"; an error that the user can solve is two lines instead.
"""

from __future__ import annotations

import logging
import re

from fedgsca.engine.notify import notify
from fedgsca.errors import FedgscaError

_RESUME = re.compile(r"`fedgsca resume[^`]*`")
_RUN_SCRIPT = "`./run.sh` of the coordinator's kit"
_EXIT_LINE = "Exit Code: "  # how Flower's last message begins


def report_stop(error: FedgscaError) -> None:
    """Name the command that continues a deployment in the fix, and notify somebody."""
    error.fix = _RESUME.sub(_RUN_SCRIPT, error.fix)
    notify(f"the run has stopped: {error.message}\nFix: {error.fix}")


class TracebackFilter(logging.Filter):
    """For Flower's logger: an error of ours becomes two lines, and Flower's remark on it none."""

    def __init__(self) -> None:
        super().__init__()
        self.has_seen_error = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record of an error of ours; False drops a record."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, FedgscaError):
            self.has_seen_error = True
            record.msg = f"Error [{error.code}]: {error.message}\nFix: {error.fix}"
            record.args = ()
            record.exc_info = None
            return True
        return not (self.has_seen_error and str(record.msg).startswith(_EXIT_LINE))


def install_filter() -> None:
    """Let Flower's logger of this process print our errors as they are meant."""
    logging.getLogger("flwr").addFilter(TracebackFilter())
