"""What Flower adds to a round: `python -m benchmarks.flower --model cnn --rounds 10 --sites 4`.

The same experiment in this process, on Flower's simulation (if Ray is installed) and as a deployment on loopback with TLS and keys.
Training is made tiny on purpose, so that what remains is the carrying. Medians over the rounds after the first one. Memory of the
coordinator (the process of the ServerApp) and of the SuperLink is read from /proc while they run, and given per round.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from fedgsca.config import Config, load_config
from fedgsca.deploy.flower_app import write_app
from fedgsca.engine.rounds import run
from fedgsca.experiment.run_folder import read_lines
from tests.deployment import Deployment, deployment, descendants, program

TICKS = os.sysconf("SC_CLK_TCK")


def seconds(out: Path) -> dict[str, Any]:
    """First round, median of the others, and the part of it that the slowest site spent training."""
    rows = read_lines(out / "timing.jsonl")
    totals = [row["exchange"] + row["evaluate"] + row["save"] for row in rows]
    training = [max(row["sites"].values()) for row in rows]
    return {
        "first": totals[0],
        "median": median(totals[1:]),
        "slowest_site": median(training[1:]),
        "rounds": len(rows),
    }


def rss(number: int) -> float:
    """MB of resident memory."""
    try:
        pages = int(Path(f"/proc/{number}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu(number: int) -> float:
    """Seconds of processor time of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(value) for value in fields[11:15]) / TICKS


def deploy(config: Config, folder: Path) -> dict[str, Any]:
    out, names = folder / "deployed", [f"site-{k}" for k in range(1, config.data.sites + 1)]
    with deployment(folder / "link", keep=False) as link:
        superlink = link.superlink().handle.pid
        for name in names:
            link.register(name)
        nodes = [link.supernode(name).handle.pid for name in names]
        memory = watch(link, write_app(config, out), out, superlink)
        spent = sum(cpu(number) for node in nodes for number in (node, *descendants(node)))
    messages = len(names) * (config.train.rounds + 1)  # one hello each
    return {**seconds(out), "site_cpu_per_message": spent / messages, **memory}


def watch(link: Deployment, app: Path, out: Path, superlink: int) -> dict[str, Any]:
    process, peaks = (
        link.run(app),
        {"coordinator_mb": defaultdict(float), "superlink_mb": defaultdict(float)},
    )
    while process.running:
        done = len(read_lines(out / "metrics.jsonl"))
        for number in descendants(superlink):
            if "flwr-serverapp" in program(number):
                peaks["coordinator_mb"][done] = max(peaks["coordinator_mb"][done], rss(number))
        peaks["superlink_mb"][done] = max(peaks["superlink_mb"][done], rss(superlink))
        time.sleep(0.2)
    assert (out / "result.json").exists(), process.text[-3000:]
    return {name: [round(found[k]) for k in sorted(found)] for name, found in peaks.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--only", choices=["local", "simulation", "deployment"])
    asked = parser.parse_args()
    config = load_config(
        method="fedavg", model__name=asked.model, train__rounds=asked.rounds, data__sites=asked.sites, data__train=16 * asked.sites,
        data__test=20, train__batch_size=16, train__threads=1, train__device="cpu", federation__eval_every=5,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as base:
        folder, found = Path(base), dict[str, Any]()
        if asked.only in (None, "local"):
            run(config, folder / "local")
            found["local"] = seconds(folder / "local")
        if asked.only in (None, "simulation") and find_spec("ray"):
            from fedgsca.engine.flower import simulate

            simulate(config, folder / "simulated")
            found["simulation"] = seconds(folder / "simulated")
        if asked.only in (None, "deployment"):
            found["deployment"] = deploy(config, folder)
        models = [path.read_bytes() for path in folder.glob("*/model.safetensors")]
        if len(models) > 1:  # one model alone proves nothing
            found["same bytes"] = len(set(models)) == 1
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
