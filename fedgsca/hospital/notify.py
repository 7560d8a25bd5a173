"""Tell somebody: a command of the coordinator's machine receives a message on its standard input.

FEDGSCA_NOTIFY="mail -s fedgsca admin@example.org" sends a mail; a script can call a webhook. It is
an environment variable and not a key of the experiment, because it concerns one machine only.
"""

from __future__ import annotations

import os
import shlex
import subprocess

VARIABLE = "FEDGSCA_NOTIFY"
_TIMEOUT = 60.0  # seconds


def notify(text: str) -> str | None:
    """Run the command, if there is one; returns why it failed, or None."""
    command = os.environ.get(VARIABLE)
    if not command:
        return None
    try:
        subprocess.run(
            shlex.split(command), input=text + "\n", text=True, check=True, timeout=_TIMEOUT
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"the command in {VARIABLE} failed: {error}"
    return None
