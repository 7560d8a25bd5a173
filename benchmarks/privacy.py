"""What privacy costs: F1 without it, with clipping alone, and with the noise of several epsilons. The study behind docs/privacy.md.

    python -m benchmarks.privacy --out DIR [--data FILE.npz] [--sites 4] [--seeds 1,2,3] [--epsilons 1000,100] [--clip 0.1]

Built-in images (the demo's recipe, 1,200 for four sites, 40 a site for more) or a MedMNIST-style file; frozen EfficientNet-Lite0 features;
every fourth site has the noise 0, S40, P20 or C20; a constant learning rate: with a falling one the last rounds would add little but noise.
"Norm" is the usual norm of a site's change without privacy: the median over rounds of the quadratic mean over sites. Finished runs are
kept in DIR.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedgsca.config import Tree, build, merge
from fedgsca.engine.rounds import run
from fedgsca.experiment.run_folder import read_lines
from fedgsca.grid.comparison import parse_seeds
from fedgsca.grid.demo_plan import RECIPE
from fedgsca.methods.base import load_methods
from fedgsca.privacy.accountant import noise_for

METHODS, KINDS, ROUNDS, DELTA = ("fedavg", "fedgsca"), ("0", "S40", "P20", "C20"), 30, 1e-5


def recipe(method: str, data: str | None, sites: int, seed: int) -> Tree:
    own: Tree = {
        "method": method, "seed": seed, "noise": {"spec": "-".join(KINDS[i % 4] for i in range(sites))},
        "data": {"sites": sites}, "model": {"frozen": True}, "audit": {"enabled": False},
        "train": {"rounds": ROUNDS, "threads": 1, "lr_steps": []}, "federation": {"eval_every": ROUNDS, "keep_losses": False},
    }  # fmt: skip
    if data is not None:
        return merge({"data": {"source": data}}, own)
    return merge(merge({}, RECIPE), merge(own, {"data": {"train": max(1200, 40 * sites)}}))


def cost(base: Tree, clip: float, epsilons: Sequence[float], out: Path) -> list[float]:
    """The usual norm of a change; F1 without privacy, with clipping alone, and at each epsilon."""
    found = [run(build(base), out / "none")["f1"]]
    moved = [math.sqrt(line["stability"]) for line in read_lines(out / "none" / "metrics.jsonl")]
    for epsilon in (None, *epsilons):
        noise = (
            noise_for(epsilon, load_methods()[base["method"]].uploads, ROUNDS, DELTA)
            if epsilon
            else 0.0
        )
        private = merge(base, {"privacy": {"clip": clip, "noise": noise, "delta": DELTA}})
        found.append(run(build(private), out / f"clip {clip:g} epsilon {epsilon}")["f1"])
    return [float(np.median(moved)), *found]


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
    options = parser.parse_args()
    data, epsilons = (
        str(options.data.resolve()) if options.data else None,
        [float(e) for e in options.epsilons.split(",")],
    )
    print(
        "| method | norm | no privacy | clip only | "
        + " | ".join(f"epsilon {e:g}" for e in epsilons)
        + " |"
    )
    print("|---" * (4 + len(epsilons)) + "|")
    for method in METHODS:
        rows = []
        for seed in parse_seeds(options.seeds):
            out = options.out / f"{Path(data or 'synthetic').stem}_{options.sites}_{method}_{seed}"
            rows.append(
                cost(recipe(method, data, options.sites, seed), options.clip, epsilons, out)
            )
        norm, *f1 = np.mean(rows, axis=0).tolist()
        print(
            f"| {method} | {norm:.2f} | " + " | ".join(f"{value:.1f}" for value in f1) + " |",
            flush=True,
        )
    for method in METHODS:
        noises = [
            f"{noise_for(e, load_methods()[method].uploads, ROUNDS, DELTA):g}" for e in epsilons
        ]
        print(f"noise of {method}: {', '.join(noises)}")


if __name__ == "__main__":
    main()
