"""Where the time goes when frozen features of a folder of images are computed.

    python -m benchmarks.feature_cost [--count 64] [--network-pixels 96]

Milliseconds of CPU time per image with one thread, the median of three repetitions, for small
pictures and for photographs.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.speed import NETWORK, PICTURES, cpu_seconds_of, write_pictures
from fedgsca.data.image_files import decode, inspect_image
from fedgsca.models.build import build_frozen
from fedgsca.models.features import FeaturePass
from fedgsca.support.files import sha256_file
from fedgsca.support.markdown import markdown_table


def check_files(paths: list[Path]) -> None:
    """What is done with every file before it is decoded."""
    for path in paths:
        sha256_file(path)
        inspect_image(path)


def decode_files(paths: list[Path], size: int) -> np.ndarray:
    """(n, size, size, 3) uint8"""
    return np.stack([decode(path, size) for path in paths])


def milliseconds(function: Callable[[], object], count: int) -> float:
    """CPU time per image; the first call, which sets up libraries, does not count."""
    function()
    return 1000 * median(cpu_seconds_of(function) for _ in range(3)) / count


def measure_steps(root: Path, size: int, pixels: int) -> dict[str, float]:
    """Step -> milliseconds of CPU time per image."""
    paths = sorted(root.rglob("*.jpg"))
    count = len(paths)
    model = NETWORK.model_copy(update={"feature_size": pixels})
    feature_pass = FeaturePass(build_frozen(model, seed=0), model)
    images = decode_files(paths, size)
    x = feature_pass.prepare(images)  # the same batch as in the extraction

    def pass_forward() -> None:
        with torch.inference_mode():
            feature_pass.backbone(x)

    steps = {
        "checksum and header": milliseconds(partial(check_files, paths), count),
        "decode and crop": milliseconds(partial(decode_files, paths, size), count),
        "resize for the network": milliseconds(partial(feature_pass.prepare, images), count),
        "forward pass": milliseconds(pass_forward, count),
    }
    return steps | {"speed / forward passes": steps["forward pass"] / sum(steps.values())}


def main() -> None:
    """Print one column per kind of picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=64, help="images of each kind")
    parser.add_argument("--network-pixels", type=int, default=96, help="at the network's input")
    options = parser.parse_args()
    torch.set_num_threads(1)
    columns = {}
    with tempfile.TemporaryDirectory(prefix="feature-cost-") as folder:
        for title, (width, height, size) in PICTURES.items():
            root = Path(folder) / str(width)
            write_pictures(root, options.count, width, height)
            columns[title] = measure_steps(root, size, options.network_pixels)
    steps = next(iter(columns.values()))
    rows = [[step, *(f"{column[step]:.2f}" for column in columns.values())] for step in steps]
    header = ["CPU milliseconds per image", *columns]
    print("\n".join(markdown_table(header, rows, text_columns=1)))


if __name__ == "__main__":
    main()
