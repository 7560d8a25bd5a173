"""What Flower adds to a round: `python -m benchmarks.flower --model cnn --rounds 10 --sites 4`.

The same experiment in this process, in Flower's simulation (if Ray is installed) and deployed
on loopback with TLS and keys. Training is tiny on purpose, so that communication dominates. Medians
over the rounds after the first one. Memory of the coordinator (the process of the ServerApp) and of
the SuperLink is read from /proc while they run, and reported per round.
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
from fedgsca.experiment.run_folder import read_rounds, read_timing
from tests.deployment import Deployment, deployment, descendants, program

TICKS = os.sysconf("SC_CLK_TCK")


def summarise_timing(out: Path) -> dict[str, float]:
    """First round, median of the others, and the part of it in which the slowest site trained."""
    timing = read_timing(out)
    totals = [record.total for record in timing]
    slowest = [max(record.sites.values()) for record in timing]
    return {
        "first": totals[0],
        "median": median(totals[1:]),
        "slowest_site": median(slowest[1:]),
        "rounds": len(timing),
    }


def resident_memory(process_id: int) -> float:
    """MB of resident memory."""
    try:
        pages = int(Path(f"/proc/{process_id}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_seconds(process_id: int) -> float:
    """Processor time of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(value) for value in fields[11:15]) / TICKS


def measure_deployment(config: Config, folder: Path) -> dict[str, Any]:
    """Run the experiment on a SuperLink with one SuperNode per site."""
    out = folder / "deployed"
    names = [f"site-{k}" for k in range(1, config.data.sites + 1)]
    with deployment(folder / "link", keep=False) as link:
        superlink = link.superlink().handle.pid
        for name in names:
            link.register(name)
        nodes = [link.supernode(name).handle.pid for name in names]
        memory = measure_memory(link, write_app(config, out), out, superlink)
        seconds = 0.0
        for node in nodes:
            seconds += sum(cpu_seconds(process_id) for process_id in (node, *descendants(node)))
    messages = len(names) * (config.train.rounds + 1)  # each site sends one hello
    return {**summarise_timing(out), "site_cpu_per_message": seconds / messages, **memory}


def measure_memory(link: Deployment, app: Path, out: Path, superlink: int) -> dict[str, list[int]]:
    """Run the app; peak MB of coordinator and SuperLink per round."""
    process = link.run(app)
    coordinator_peaks: dict[int, float] = defaultdict(float)
    superlink_peaks: dict[int, float] = defaultdict(float)
    while process.running:
        rounds = len(read_rounds(out))
        for process_id in descendants(superlink):
            if "flwr-serverapp" in program(process_id):
                memory = resident_memory(process_id)
                coordinator_peaks[rounds] = max(coordinator_peaks[rounds], memory)
        superlink_peaks[rounds] = max(superlink_peaks[rounds], resident_memory(superlink))
        time.sleep(0.2)
    assert (out / "result.json").exists(), process.text[-3000:]
    return {
        "coordinator_mb": [round(peak) for _, peak in sorted(coordinator_peaks.items())],
        "superlink_mb": [round(peak) for _, peak in sorted(superlink_peaks.items())],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--only", choices=["local", "simulation", "deployment"])
    options = parser.parse_args()
    config = load_config(
        method="fedavg",
        model__name=options.model,
        train__rounds=options.rounds,
        data__sites=options.sites,
        data__train=16 * options.sites,
        data__test=20,
        train__batch_size=16,
        train__threads=1,
        train__device="cpu",
        federation__eval_every=5,
    )
    measurements: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base)
        if options.only in (None, "local"):
            run(config, folder / "local")
            measurements["local"] = summarise_timing(folder / "local")
        if options.only in (None, "simulation") and find_spec("ray"):
            from fedgsca.engine.flower import simulate

            simulate(config, folder / "simulated")
            measurements["simulation"] = summarise_timing(folder / "simulated")
        if options.only in (None, "deployment"):
            measurements["deployment"] = measure_deployment(config, folder)
        models = [path.read_bytes() for path in folder.glob("*/model.safetensors")]
        if len(models) > 1:
            measurements["same bytes"] = len(set(models)) == 1
    print(json.dumps(measurements, indent=1))


if __name__ == "__main__":
    main()
