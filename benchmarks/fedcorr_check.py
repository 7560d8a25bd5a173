"""Is FedCorr below FedAvg because of us? Ours beside the published main loop on the same arrays.

    python -m benchmarks.fedcorr_check --data FILE [--noise SPEC ...] [--seeds 0,1,2] [--rounds 60]

For every noise and seed: FedAvg, our FedCorr, our FedCorr as published (`official`), and the main
loop of benchmarks/oracles/fedcorr_loop.py with clients one after the other (published) and in
parallel. All use the same frozen features, sites, wrong labels, initial head, learning rate and
lengths of stages. Beside each macro F1 (test, last five rounds): the sites that it takes for noisy
at the end of stage 1.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch
from torch import nn

from benchmarks.oracles.fedcorr_loop import Client, Hyper, MainLoop, Outcome
from fedgsca.config import Config, load_config
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds
from fedgsca.federation.simulation import Experiment, prepare
from fedgsca.methods.base import rounds_of
from fedgsca.models.build import build_head_only

OURS = {"FedAvg": "fedavg", "FedCorr": "fedcorr", "FedCorr official": "fedcorr"}


def make_config(source: str, noise: str, seed: int, rounds: int, method: str, *sets: str) -> Config:
    """The common settings of all runs: frozen features, four equal sites, no evidence heads."""
    return load_config(
        sets=["data.partition=stratified", *sets],
        data__source=source,
        method=method,
        seed=seed,
        noise__spec=noise,
        model__frozen=True,
        train__rounds=rounds,
        train__threads=1,
    )


def run_loop(experiment: Experiment, *, at_once: int) -> Outcome:
    """The published loop on the arrays of an experiment."""
    config = experiment.config
    rounds = config.train.rounds
    stages = [rounds_of(config.options[name], rounds) for name in ("stage1", "stage2")]
    hyper = Hyper(
        stages[0],
        stages[1],
        rounds - sum(stages),
        lr=config.train.rate,
        batch=config.train.batch_size,
        clients_at_once=at_once,
    )
    clients = []
    for samples in experiment.sites.values():
        inputs = torch.from_numpy(np.asarray(samples.inputs))
        clients.append(Client(inputs, samples.labels.copy()))
    width = clients[0].x.shape[1]
    head = build_head_only(width, experiment.table.num_classes, seed=config.seed).head
    assert isinstance(head, nn.Linear) and experiment.test is not None
    loop = MainLoop(clients, head, hyper, config.seed)
    test = experiment.test
    return loop.run(torch.from_numpy(np.asarray(test.inputs)), test.labels)


def verdict(levels: np.ndarray) -> str:
    """ "0 0.31 0 0.12": the estimated share of wrong labels of every site."""
    return " ".join(f"{level:.2g}" for level in levels)


def run_ours(config: Config) -> tuple[float, str]:
    """Macro F1 of our run, and the noise levels at the end of stage 1."""
    with tempfile.TemporaryDirectory() as folder:
        result = run(config, Path(folder))
        rounds = read_rounds(Path(folder))
    assert result is not None
    levels = ""
    if config.method == "fedcorr":
        first = rounds_of(config.options["stage1"], config.train.rounds)
        sites = rounds[first].sites
        numbers = [sites[name].number("noise_level") or 0.0 for name in sorted(sites)]
        levels = verdict(np.array(numbers))
    return result.f1, levels


def main() -> None:
    """Print one line per run and the means."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--noise", action="append")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for noise in args.noise or ["0-S40-P20-C20", "S40"]:
        scores: dict[str, list[float]] = {}
        for seed in map(int, args.seeds.split(",")):
            outcomes: dict[str, tuple[float, str]] = {}
            for name, method in OURS.items():
                sets = ["fedcorr.official=true"] if "official" in name else []
                config = make_config(args.data, noise, seed, args.rounds, method, *sets)
                outcomes[name] = run_ours(config)
            experiment = prepare(make_config(args.data, noise, seed, args.rounds, "fedcorr"))
            for name, at_once in (("published loop", 1), ("published, parallel", 99)):
                outcome = run_loop(experiment, at_once=at_once)
                outcomes[name] = (outcome.score, verdict(outcome.levels[-1]))
            for name, (score, levels) in outcomes.items():
                scores.setdefault(name, []).append(score)
                print(f"{noise} seed {seed} {name:20} {score:5.1f}  {levels}", flush=True)
        for name, values in scores.items():
            spread = stdev(values) if len(values) > 1 else 0.0
            print(f"{noise} mean   {name:20} {fmean(values):5.1f} ± {spread:.1f}", flush=True)


if __name__ == "__main__":
    main()
