"""A worker without a site, for tests of the protocol: `python -m tests.echo_worker FOLDER`.

It answers a request with its process id and the request reversed. Some requests are special.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from fedgsca.hospital.worker import Handler, OutdatedWorkerError, serve


def open_echo(folder: Path) -> Handler:
    num_answers = 0

    def handle(request: bytes) -> bytes:
        nonlocal num_answers
        marker = folder / "died"
        if request == b"die always" or (request == b"die once" and not marker.exists()):
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if request == b"new experiment" and num_answers:
            raise OutdatedWorkerError
        if request == b"slow":
            (folder / "slow").touch()
            time.sleep(30)
        if request == b"fail":
            raise ValueError("a bug")
        print("a library prints something", flush=True)
        num_answers += 1
        return f"{os.getpid()} ".encode() + request[::-1]

    return handle


if __name__ == "__main__":
    idle_seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 600.0
    serve(lambda: open_echo(Path(sys.argv[1])), idle_seconds=idle_seconds)
