"""A worker that computes frozen features: see feature_workers.py, which starts it.

python -m fedgsca.models.feature_worker
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import IO

from fedgsca.models.feature_workers import (
    decode_array,
    encode_array,
    receive_message,
    send_message,
)


def serve(source: IO[bytes], target: IO[bytes]) -> None:
    """Answer batches of images with their features until the input ends."""
    from safetensors.torch import load

    from fedgsca.models.build import build_backbone, spec_of
    from fedgsca.models.features import FeaturePass, feature_threads

    task = json.loads(receive_message(source))
    backbone = build_backbone(task["network"], seed=0)
    backbone.load_state_dict(load(receive_message(source)))
    feature_pass = FeaturePass(backbone, spec_of(task["network"]), task["size"])
    with feature_threads():
        while True:
            try:
                images = decode_array(receive_message(source))
            except EOFError:
                return
            send_message(target, encode_array(feature_pass.compute(images)))


def main() -> None:
    """Serve on the standard streams."""
    # Ctrl-C reaches all processes of a terminal; the one that started this worker ends it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is not a reply
    try:
        serve(sys.stdin.buffer, target)
    except (EOFError, BrokenPipeError):
        sys.exit(1)


if __name__ == "__main__":
    main()
