"""Time and memory of `fedgsca audit` at one site with many labels.

    python -m benchmarks.audit_size --out DIR [--labels 100000]

The images are noise and the evidence is made up: only their number matters.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from fedgsca.config import load_config
from fedgsca.data.load import load
from fedgsca.evidence import SiteEvidence, judge_labels
from fedgsca.federation.label_evidence import EvidenceHeader, write_evidence, write_header
from fedgsca.labels.audit_table import read_audit
from fedgsca.methods.site_store import Store
from fedgsca.rng import stream

NUM_CLASSES = 9
SIDE = 28
# getrusage counts bytes on macOS and kilobytes elsewhere
RSS_UNIT = 1e6 if sys.platform == "darwin" else 1e3


def make_run(out: Path, count: int) -> Path:
    """A run folder with evidence about `count` labels and nothing else."""
    source = out / f"noise-{count}.npz"
    rng = stream(0, "size")
    labels = rng.integers(0, NUM_CLASSES, count)
    if not source.exists():
        out.mkdir(parents=True, exist_ok=True)
        test_labels = np.arange(2 * NUM_CLASSES) % NUM_CLASSES
        images = rng.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
        np.savez(
            source,
            train_images=images,
            train_labels=labels[:, None],
            test_images=images[: len(test_labels)],
            test_labels=test_labels[:, None],
        )
    config = load_config(data__source=str(source), data__sites=1, model__name="cnn")
    probs = rng.dirichlet(np.full(NUM_CLASSES, 0.3), count)
    folder = out / "run" / "evidence" / "site-1"
    judgement = judge_labels(probs, labels, np.arange(count) % 2)
    write_evidence(Store(folder), 3, SiteEvidence.of(judgement))
    table = load(str(source))
    header = EvidenceHeader(
        site="site-1",
        samples=count,
        classes=tuple(table.classes),
        fingerprint=table.fingerprint,
        config=config.to_tree(),
    )
    write_header(folder, header)
    return out / "run"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--labels", type=int, default=100_000)
    options = parser.parse_args()
    run = make_run(options.out, options.labels)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "fedgsca", "audit", str(run), "--quiet"], check=True)
    seconds = time.perf_counter() - start
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = usage.ru_maxrss / RSS_UNIT
    cpu = usage.ru_utime + usage.ru_stime
    start = time.perf_counter()
    audit = read_audit(run)
    window = audit.window(0, 50)
    open_seconds = time.perf_counter() - start
    print(f"{len(audit)} labels: audit in {seconds:.1f} s ({cpu:.1f} s of CPU) with {peak:.0f} MB")
    print(f"a window of {len(window)} opens in {open_seconds:.3f} s")
    for path in sorted(audit.path.iterdir()):
        print(f"{path.name} {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
