"""What privacy costs: F1 without it, with clipping alone, and with the noise of several epsilons.

    python -m benchmarks.privacy --out DIR [--data FILE.npz] [--sites 4] [--seeds 1,2,3] \
        [--epsilons 1000,100] [--clip 0.1]

The study behind docs/privacy.md. Built-in images (the demo's recipe: 1,200 for four sites, 40 per
site for more) or a MedMNIST-style file; frozen EfficientNet-Lite0 features; the sites have the
noises 0, S40, P20 and C20 in turn; a constant learning rate, because with a falling one the last
rounds would add little but noise. "Norm" is the usual norm of a site's change without privacy: the
median over rounds of the quadratic mean over sites. Finished runs are stored in DIR.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from docs.generate import find_page, make_table, write_block
from fedgsca.config import Tree, build, merge
from fedgsca.federation.privacy import noise_for
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds
from fedgsca.lab.demo_plan import RECIPE
from fedgsca.lab.plan import parse_seeds
from fedgsca.methods.base import load_methods

METHODS = ("fedavg", "fedgsca")
KINDS = ("0", "S40", "P20", "C20")
ROUNDS = 30
DELTA = 1e-5


def make_recipe(method: str, data: str | None, sites: int, seed: int) -> Tree:
    """The configuration of a run without privacy."""
    tree: Tree = {
        "method": method,
        "seed": seed,
        "noise": {"spec": "-".join(KINDS[i % 4] for i in range(sites))},
        "data": {"sites": sites},
        "model": {"frozen": True},
        "audit": {"enabled": False},
        "train": {"rounds": ROUNDS, "threads": 1, "lr_steps": []},
        "federation": {"eval_every": ROUNDS, "keep_losses": False},
    }
    if data is not None:
        return merge({"data": {"source": data}}, tree)
    return merge(merge({}, RECIPE), merge(tree, {"data": {"train": max(1200, 40 * sites)}}))


def noise_of(method: str, epsilon: float) -> float:
    """The noise that gives this epsilon."""
    return noise_for(epsilon, load_methods()[method].uploads, ROUNDS, DELTA)


def run_f1(tree: Tree, folder: Path) -> float:
    result = run(build(tree), folder)
    assert result is not None  # the run is not stopped early
    return result.f1


def measure_cost(base: Tree, clip: float, epsilons: Sequence[float], out: Path) -> list[float]:
    """The usual norm of a change; F1 without privacy, with clipping alone, and at each epsilon."""
    scores = [run_f1(base, out / "none")]
    norms = [math.sqrt(record.stability or 0.0) for record in read_rounds(out / "none")]
    for epsilon in (None, *epsilons):
        noise = 0.0 if epsilon is None else noise_of(base["method"], epsilon)
        privacy = {"clip": clip, "noise": noise, "delta": DELTA}
        folder = out / f"clip {clip:g} epsilon {epsilon}"
        scores.append(run_f1(merge(base, {"privacy": privacy}), folder))
    return [median(norms), *scores]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="MedMNIST-style .npz; default: built-in images")
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--epsilons", default="1000,300,100,30,10")
    parser.add_argument("--clip", type=float, default=0.1)
    parser.add_argument("--block", help="write the table to this block of docs/privacy.md")
    options = parser.parse_args()
    data = str(options.data.resolve()) if options.data else None
    epsilons = [float(text) for text in options.epsilons.split(",")]
    heads = ["method", "norm", "no privacy", "clip only"]
    heads += [f"epsilon {epsilon:g}" for epsilon in epsilons]
    table = [heads]
    print(*heads, sep="  ")
    for method in METHODS:
        rows = []
        for seed in parse_seeds(options.seeds):
            stem = Path(data or "synthetic").stem
            out = options.out / f"{stem}_{options.sites}_{method}_{seed}"
            base = make_recipe(method, data, options.sites, seed)
            rows.append(measure_cost(base, options.clip, epsilons, out))
        norm, *scores = np.mean(rows, axis=0).tolist()
        cells = [method, f"{norm:.2f}", *(f"{score:.1f}" for score in scores)]
        table.append(cells)
        print(*cells, sep="  ", flush=True)
    for method in METHODS:
        noises = [f"{noise_of(method, epsilon):g}" for epsilon in epsilons]
        print(f"noise of {method}: {', '.join(noises)}")
    if options.block:
        write_block(find_page(options.block), options.block, make_table(heads, table[1:]))


if __name__ == "__main__":
    main()
