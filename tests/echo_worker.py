"""A worker without a site, for tests of the protocol: `python -m tests.echo_worker FOLDER PROCESS`.

It answers a request with its process id and the request reversed. Some requests are special.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from fedgsca.engine.site_worker import OutdatedWorkerError, WorkerServer, end_with


def main() -> None:
    folder = Path(sys.argv[1])
    end_with(int(sys.argv[2]))
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
            time.sleep(30)
        if request == b"fail":
            raise ValueError("a bug")
        num_answers += 1
        return f"{os.getpid()} ".encode() + request[::-1]

    WorkerServer(folder, lambda: handle).serve()


if __name__ == "__main__":
    main()
