"""Time and memory of `fedgsca audit` at one site with many labels.

    python -m benchmarks.audit_size --out DIR [--labels 100000]

The images are noise and the evidence is made up: what counts is their number.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from fedgsca.config import load_config
from fedgsca.data.load import load
from fedgsca.engine.label_evidence import add_round
from fedgsca.label_audit.audit_table import read_audit
from fedgsca.rng import stream
from fedgsca.site_store import Store
from fedgsca.support.files import write_atomic

CLASSES, SIDE = 9, 28


def make(out: Path, count: int) -> Path:
    """A run folder with evidence about `count` labels and nothing else."""
    source = out / f"noise-{count}.npz"
    rng = stream(0, "size")
    labels = rng.integers(0, CLASSES, count)
    if not source.exists():
        out.mkdir(parents=True, exist_ok=True)
        test = np.arange(2 * CLASSES) % CLASSES
        images = rng.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
        np.savez(
            source,
            train_images=images,
            train_labels=labels[:, None],
            test_images=images[: len(test)],
            test_labels=test[:, None],
        )
    config = load_config(data__source=str(source), data__sites=1, model__name="cnn")
    probs = rng.dirichlet(np.full(CLASSES, 0.3), count)
    sums = add_round({}, probs, -np.log(np.maximum(probs[np.arange(count), labels], 1e-9)), None)
    place = out / "run" / "evidence" / "site-1"
    Store(place).write(3, sums)
    table = load(str(source))
    about = {
        "site": "site-1",
        "samples": count,
        "classes": list(table.classes),
        "fingerprint": table.fingerprint,
    }
    write_atomic(place / "site.json", json.dumps({**about, "config": config.to_tree()}).encode())
    return out / "run"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--labels", type=int, default=100_000)
    options = parser.parse_args()
    run = make(options.out, options.labels)
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "fedgsca", "audit", str(run), "--quiet"], check=True)
    seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak, cpu = used.ru_maxrss / 1024, used.ru_utime + used.ru_stime
    began = time.perf_counter()
    audit = read_audit(run)
    shown = audit.window(0, 50)
    opened = time.perf_counter() - began
    sizes = {path.name: path.stat().st_size / 1e6 for path in sorted(audit.path.iterdir())}
    print(f"{len(audit)} labels: audit in {seconds:.1f} s ({cpu:.1f} s of CPU) with {peak:.0f} MB")
    print(f"a window of {len(shown)} opens in {opened:.3f} s")
    print(", ".join(f"{name} {size:.1f} MB" for name, size in sizes.items()))


if __name__ == "__main__":
    main()
