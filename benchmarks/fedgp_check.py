"""Is FedGP weak from random weights because of us? Ours beside the published main loop.

    python -m benchmarks.fedgp_check --data FILE [--noise SPEC] [--seeds 0] [--rounds 24]
        [--images 800] [--set KEY=VALUE ...] [--only NAME ...]

For every seed: FedAvg, our FedGP, our FedGP as published (`official`), and the main loop of
benchmarks/oracles/fedgp_loop.py as published and with one choice of ours at a time. All use the
same images, sites, wrong labels, small CNN with the same initial weights, learning rate, momentum,
epochs and length of the warm-up. Beside each macro F1 (test, last five rounds): the best round, and
the share of samples in the purified sets at the end, and |S|, the size of the global centroids
after the first round and at the end (published loop). VARIANTS change one thing of ours at a time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.oracles.fedgp_loop import Client, Hyper, MainLoop, Outcome
from fedgsca.config import Config, load_config
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds
from fedgsca.federation.simulation import Experiment, prepare
from fedgsca.methods.base import rounds_of
from fedgsca.methods.site import Samples
from fedgsca.methods.train import to_tensor
from fedgsca.models.build import build_classifier

# what our program does otherwise in the warm-up, beside the mean of the graph networks
OUR_CHOICES: dict[str, Any] = {
    "new_centroids": False,
    "shuffle": True,
    "train_w": True,
    "centroid_std": None,
}
# name -> changes of the published loop, one at a time towards ours
LOOPS: dict[str, dict[str, Any]] = {
    "published loop": {},
    "loop, mean graph": {"graph_in_turn": False},
    "mean graph, rate 4": {"graph_in_turn": False, "graph_rate": 4.0},
    "loop, old stack": {"new_centroids": False},
    "loop, shuffled": {"shuffle": True},
    "loop, W trained": {"train_w": True},
    "loop, our W": {"centroid_std": None},
    "loop, all but mean": OUR_CHOICES,
    "loop, all of these": {**OUR_CHOICES, "graph_in_turn": False},
}
OURS: dict[str, tuple[str, ...]] = {
    "FedAvg": (),
    "FedGP": (),
    "FedGP official": ("fedgp.official=true",),
}
VARIANTS: dict[str, tuple[str, ...]] = {
    "graph rate 1": ("fedgp.graph_rate=1",),
    "official, rate 1": ("fedgp.official=true", "fedgp.graph_rate=1"),
    "no pull of W": ("fedgp.w_pull=0",),
    "no global loss": ("fedgp.w_pull=0", "fedgp.rho=0"),
    "no norms": ("fedgp.norm=0",),
    "only warm-up": ("fedgp.warmup=1",),
    # FedAvg with FedGP's head: neither purification nor any of its losses
    "head alone": (
        "fedgp.warmup=1",
        "fedgp.w_pull=0",
        "fedgp.rho=0",
        "fedgp.norm=0",
        "fedgp.negative=0",
    ),
}


def make_config(args: argparse.Namespace, seed: int, method: str, *sets: str) -> Config:
    """The common settings of all runs: a small CNN from scratch, four equal sites."""
    common = ["data.partition=stratified", "train.augment=none"]
    return load_config(
        sets=[*common, *args.set, *sets],
        data__source=args.data,
        data__train=args.images,
        method=method,
        seed=seed,
        noise__spec=args.noise,
        model__name="cnn",
        train__rounds=args.rounds,
        train__threads=1,
    )


def tensor_of(samples: Samples) -> torch.Tensor:
    """All inputs of a site as the network expects them."""
    return to_tensor(samples, np.arange(len(samples)), torch.device("cpu"))


def run_loop(experiment: Experiment, changes: Mapping[str, Any]) -> Outcome:
    """The published loop on the arrays and the initial network of an experiment."""
    config = experiment.config
    train = config.train
    hyper = Hyper(
        train.rounds,
        rounds_of(config.options["warmup"], train.rounds),
        epochs=train.epochs,
        lr=train.rate,
        momentum=train.momentum,
        weight_decay=train.weight_decay,
        batch=train.batch_size,
        lr_steps=train.lr_steps,
        **changes,
    )
    clients = []
    for name in sorted(experiment.sites):
        samples = experiment.sites[name]
        # one fixed order: the warm-up does not shuffle, and the authors' files are in random order
        order = np.random.default_rng(config.seed).permutation(len(samples))
        given = torch.from_numpy(samples.labels[order])
        truth = torch.from_numpy(experiment.truth[name][order])
        clients.append(Client(tensor_of(samples)[order], given, truth))
    model = build_classifier("cnn", experiment.table.num_classes, seed=config.seed, head="centroid")
    assert experiment.test is not None
    loop = MainLoop(clients, model, hyper, config.seed)
    return loop.run(tensor_of(experiment.test), experiment.test.labels)


def run_ours(config: Config) -> Outcome:
    """The same record of a run of ours."""
    with tempfile.TemporaryDirectory() as folder:
        run(config, Path(folder))
        rounds = read_rounds(Path(folder))
    outcome = Outcome()
    for record in rounds:
        outcome.f1.append(record.f1 or 0.0)
        sizes = [site.number("purified") for site in record.sites.values()]
        counts = [size for size in sizes if size is not None]
        outcome.purified.append(sum(counts) / (config.data.train or 1) if counts else 1.0)
    return outcome


def line(name: str, seed: int, outcome: Outcome) -> str:
    """One run in one line, with macro F1 in every fourth round."""
    curve = " ".join(f"{value:.0f}" for value in outcome.f1[3::4])
    correct = f", {outcome.correct[-1]:.2f} of them correct" if outcome.correct else ""
    size = ""
    if outcome.sizes:
        size = f"  |S| {outcome.sizes[0]:.1f} to {outcome.sizes[-1]:.1f}"
    return (
        f"seed {seed} {name:18} {outcome.score:5.1f}  best {max(outcome.f1):5.1f}  "
        f"purified {outcome.purified[-1]:.2f}{correct}{size}  [{curve}]"
    )


def main() -> None:
    """Print one line per run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--noise", default="0-S40-P20-C20")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--images", type=int, default=800)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--only", action="append", help="of the runs, by name")
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = args.only or [*OURS, *LOOPS, *VARIANTS]
    for seed in map(int, args.seeds.split(",")):
        for name in names:
            if name in LOOPS:
                experiment = prepare(make_config(args, seed, "fedgp"))
                outcome = run_loop(experiment, LOOPS[name])
            else:
                method = "fedavg" if name == "FedAvg" else "fedgp"
                sets = {**OURS, **VARIANTS}[name]
                outcome = run_ours(make_config(args, seed, method, *sets))
            print(line(name, seed, outcome), flush=True)


if __name__ == "__main__":
    main()
