"""What Flower adds to a round: `python -m benchmarks.flower --model cnn --rounds 10 --sites 4`.

The same experiment in this process and deployed
on loopback with TLS and keys. Training is tiny on purpose, so that communication dominates. Medians
over the rounds after the first one. Processor time and memory are read from /proc: all processes of
coordinator and sites, per round after the first; memory of the coordinator (the process of the
ServerApp) and of the SuperLink, per round; memory of a site's node and of its worker.

The load of the machine is printed, because other programs slow everything down.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from fedgsca.config import Config, load_config
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds, read_timing
from fedgsca.hospital.coordinator import write_app
from tests.deployment import (
    Deployment,
    cpu_seconds,
    deployment,
    descendants,
    program,
    site_workers,
)


def summarise_timing(out: Path) -> dict[str, float]:
    """First round, median of the others, and the part of it in which the slowest site trained."""
    timing = read_timing(out)
    totals = [record.total for record in timing]
    slowest = [max(record.sites.values()) for record in timing]
    return {
        "first": totals[0],
        "median": median(totals[1:]),
        "fastest": min(totals[1:]),
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


@dataclass
class Usage:
    """What the processes of a deployment use while it runs."""

    link: Deployment
    superlink: int
    nodes: list[int]
    cpu_marks: list[tuple[int, float]] = field(default_factory=list)  # finished rounds, seconds
    coordinator_peaks: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    superlink_peaks: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    loads: list[float] = field(default_factory=list)
    site_memory: list[float] = field(default_factory=lambda: [0.0, 0.0])  # MB: node, worker

    def look(self, rounds: int) -> None:
        """Note what is used after so many finished rounds."""
        for process_id in descendants(self.superlink):
            if "flwr-serverapp" in program(process_id):
                memory = resident_memory(process_id)
                self.coordinator_peaks[rounds] = max(self.coordinator_peaks[rounds], memory)
        peak = max(self.superlink_peaks[rounds], resident_memory(self.superlink))
        self.superlink_peaks[rounds] = peak
        if rounds and (not self.cpu_marks or self.cpu_marks[-1][0] < rounds):
            self.cpu_marks.append((rounds, self._cpu_seconds()))
            self.loads.append(os.getloadavg()[0])
            memories = [resident_memory(node) for node in self.nodes]
            worker_memories = [resident_memory(worker) for worker in site_workers(self.link.folder)]
            self.site_memory = [max(memories), max(worker_memories, default=0.0)]

    def _cpu_seconds(self) -> float:
        process_ids = {self.superlink, *self.nodes, *site_workers(self.link.folder)}
        for parent in (self.superlink, *self.nodes):
            process_ids |= set(descendants(parent))
        return sum(cpu_seconds(process_id) for process_id in process_ids)

    def summary(self) -> dict[str, Any]:
        (first, start), (last, end) = self.cpu_marks[0], self.cpu_marks[-1]
        return {
            "cpu_seconds_per_round": (end - start) / max(last - first, 1),
            "load": [round(load, 1) for load in (min(self.loads), max(self.loads))],
            "coordinator_mb": [round(peak) for _, peak in sorted(self.coordinator_peaks.items())],
            "superlink_mb": [round(peak) for _, peak in sorted(self.superlink_peaks.items())],
            "node_and_worker_mb": [round(memory) for memory in self.site_memory],
        }


def measure_deployment(config: Config, folder: Path) -> dict[str, Any]:
    """Run the experiment on a SuperLink with one node per site."""
    out = folder / "deployed"
    names = [f"site-{k}" for k in range(1, config.data.sites + 1)]
    with deployment(folder / "link", keep=False) as link:
        superlink = link.superlink().handle.pid
        for name in names:
            link.register(name)
        nodes = [link.supernode(name).handle.pid for name in names]
        usage = Usage(link, superlink, nodes)
        process = link.run(write_app(config, out))
        while process.running:
            usage.look(len(read_rounds(out)))
            time.sleep(0.2)
        assert (out / "result.json").exists(), process.text[-3000:]
    return {**summarise_timing(out), **usage.summary()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--only", choices=["local", "deployment"])
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
        if options.only in (None, "deployment"):
            measurements["deployment"] = measure_deployment(config, folder)
        models = [path.read_bytes() for path in folder.glob("*/model.safetensors")]
        if len(models) > 1:
            measurements["same bytes"] = len(set(models)) == 1
    print(json.dumps(measurements, indent=1))


if __name__ == "__main__":
    main()
