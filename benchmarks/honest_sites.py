"""How far honest sites are from the limits of the guard, and how often it refuses one.

    python -m benchmarks.honest_sites --out FILE.json [--methods fedavg,fedgsca] [--seeds 0,1] \
        [--scenes demo,demo-dirichlet-0.1] [--data FILE.npz] [--traces FOLDER]

The study behind "False alarms" in docs/robustness.md. Every site is honest. For each run it writes
the largest norm of a change as a multiple of the usual one (in the first round and later), the
smallest cosine of a model that was sent with the one received, the largest response, the largest
unity of sites that one site opposed and outweighed, and how many updates were refused or scaled
down, and how many sites were reported as opposed. Finished runs are read from FILE, so the same
call continues. `--data` are the images of the scenes "file" and "file-dirichlet-0.1". FOLDER gets
one npz file a run with the facts about each update and its sketches, from which other limits can be
tried without training again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from fedgsca.engine.guard import UpdateGuard
from fedgsca.engine.update_facts import RoundFacts, UpdateFacts, comparable_rounds
from fedgsca.robust.motion import SKETCH_SIZE
from fedgsca.robust.opposition import MIN_WEIGHT

from benchmarks.robustness import prepare_once
from fedgsca.config import Config, Tree, build, merge
from fedgsca.engine import rounds
from fedgsca.experiment.run_folder import read_rounds
from fedgsca.grid.demo_plan import RECIPE
from fedgsca.methods.base import load_methods
from fedgsca.support.files import write_atomic

NOISE = "0-S40-P20-C20"
FROZEN: Tree = merge({"data": {}}, merge(RECIPE, {"data": {"test": 400}}))
CNN: Tree = {
    "data": {"source": "synthetic", "sites": 4, "train": 400, "test": 100, "image_size": 32},
    "model": {"name": "cnn"},
    "train": {"rounds": 15, "lr": 0.05, "augment": "none"},
}


def _division(kind: str, alpha: float | None = None) -> Tree:
    data: Tree = {"partition": kind}
    if alpha is not None:
        data["alpha"] = alpha
    return {"data": data}


SCENES: dict[str, Tree] = {
    "demo": FROZEN,
    "demo-group": merge(FROZEN, _division("group")),
    "demo-dirichlet-0.5": merge(FROZEN, _division("dirichlet", 0.5)),
    "demo-dirichlet-0.1": merge(FROZEN, _division("dirichlet", 0.1)),
    "demo-ten": merge(FROZEN, {"data": {"sites": 10}, "noise": {"spec": "S20"}}),
    "demo-clean": merge(FROZEN, {"noise": {"spec": "0"}}),
    "demo-epochs-5": merge(FROZEN, {"train": {"epochs": 5, "rounds": 20}}),
    "demo-lr-0.5": merge(FROZEN, {"train": {"lr": 0.5}}),
    "demo-lr-0.005": merge(FROZEN, {"train": {"lr": 0.005}}),
    "demo-lr-0.01": merge(FROZEN, {"train": {"lr": 0.01}}),
    "demo-ten-dirichlet-0.1": merge(
        merge(FROZEN, {"data": {"sites": 10}, "noise": {"spec": NOISE + "*"}}),
        _division("dirichlet", 0.1),
    ),
    "demo-partial": merge(
        merge(
            FROZEN,
            {
                "data": {"sites": 20},
                "noise": {"spec": NOISE + "*"},
                "federation": {"participation": 0.3},
            },
        ),
        _division("dirichlet", 0.5),
    ),
    # one of the three has most images at Dirichlet 0.5, and labels of another kind
    "demo-three": merge(
        merge(FROZEN, {"data": {"sites": 3}, "noise": {"spec": "S40-P20-C20"}}),
        _division("dirichlet", 0.5),
    ),
    "demo-tiny-sites": merge(FROZEN, {"data": {"train": 100}, "noise": {"spec": "S20"}}),
    "cnn": CNN,
    "cnn-dirichlet-0.1": merge(CNN, _division("dirichlet", 0.1)),
    "file": FROZEN,
    "file-dirichlet-0.1": merge(FROZEN, _division("dirichlet", 0.1)),
}


class Extremes(UpdateGuard):
    """A guard that keeps the extreme values of the honest sites it sees."""

    values: ClassVar[dict[str, float]] = {}  # of the newest run
    # of the newest run, one entry per part of an update: numbers, change, received model
    trace: ClassVar[list[tuple[dict[str, object], np.ndarray, np.ndarray]]] = []
    scaled_updates: ClassVar[list[str]] = []
    alarms: ClassVar[list[str]] = []

    def remember(
        self,
        round_index: int,
        facts: Sequence[UpdateFacts],
        accepted_sites: Collection[str],
        strikes: Collection[str],
        reversed_sites: Collection[str] = (),
        malformed_sites: Collection[str] = (),
    ) -> None:
        """Note the extremes of the round, then remember as usual."""
        round_facts = RoundFacts(facts)
        for item in facts:
            if any(row.factor < 1.0 for row in item.parts.values()):
                self.scaled_updates.append(f"{item.site} in round {round_index + 1}")
            for part in item.parts:
                self._note(round_index, item, part, round_facts)
        super().remember(
            round_index, facts, accepted_sites, strikes, reversed_sites, malformed_sites
        )
        balance = self.opposition.balance
        if balance.weight > MIN_WEIGHT:
            self._keep("unity of a rest that is outweighed", balance.unity)
        new_alarms = [f"{site} in round {round_index + 1}" for site in self.opposition.messages]
        self.alarms.extend(new_alarms)

    def _note(
        self, round_index: int, item: UpdateFacts, part: str, round_facts: RoundFacts
    ) -> None:
        ratio = self.norms.ratio(item, part, round_facts)
        period = "first" if round_index == 0 else "later"
        self._keep(f"{part} norm {period}", ratio)
        part_facts = item.parts[part]
        numbers: dict[str, object] = {
            "round": round_index,
            "site": item.site,
            "part": part,
            "num_samples": item.num_samples,
            "norm": part_facts.norm,
            "resemblance": part_facts.resemblance,
            "response": part_facts.response,
        }
        zeros = np.zeros(SKETCH_SIZE)
        change = zeros if part_facts.change is None else part_facts.change
        model = zeros if part_facts.model is None else part_facts.model
        self.trace.append((numbers, change, model))
        if part_facts.resemblance is not None:
            self._keep(f"{part} cosine", -part_facts.resemblance)
        rounds = comparable_rounds(item.num_samples)
        self._keep(f"{part} excess", self.memory.parts[part].excess(item.site, rounds))
        if part_facts.response is not None:
            self._keep(f"{part} response", part_facts.response)
        self._keep(f"{part} retreat", self.directions.retreat(item, part, round_facts))

    def _keep(self, key: str, value: float) -> None:
        self.values[key] = max(value, self.values.get(key, value))


def make_config(method: str, scene: str, seed: int, data: Path | None = None) -> Config:
    """The configuration of a run."""
    tree: Tree = {
        "method": method,
        "seed": seed,
        "noise": {"spec": NOISE},
        "audit": {"enabled": False},
        "train": {"threads": 1, "device": "cpu"},
        "federation": {"keep_losses": False, "eval_every": 20},
    }
    tree = merge(tree, SCENES[scene])
    if scene.startswith("file"):
        if data is None:
            raise SystemExit(f"the scene {scene} needs --data")
        tree = merge(tree, {"data": {"source": str(data), "train": None, "test": None}})
    return build(tree)


def run_once(
    method: str, scene: str, seed: int, data: Path | None = None, traces: Path | None = None
) -> dict[str, object]:
    """The extremes of a run, its site-rounds, its refusals and changes that were scaled down."""
    config = make_config(method, scene, seed, data)
    Extremes.values.clear()
    Extremes.trace.clear()
    Extremes.scaled_updates.clear()
    Extremes.alarms.clear()
    setattr(rounds, "UpdateGuard", Extremes)  # noqa: B010
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        rounds.run(config, folder, experiment=prepare_once(config))
        records = read_rounds(folder)
    reasons = []
    for record in records:
        reasons += [
            f"{site} in round {record.round + 1}: {why}" for site, why in record.refusals.items()
        ]
    if traces is not None:
        traces.mkdir(exist_ok=True)
        np.savez_compressed(
            traces / f"{method}-{scene}-{seed}.npz",
            rows=json.dumps([row for row, _, _ in Extremes.trace]),
            changes=np.array([change for _, change, _ in Extremes.trace], np.float32),
            models=np.array([model for _, _, model in Extremes.trace], np.float32),
        )
    return {
        "site_rounds": sum(len(record.sites) for record in records) + len(reasons),
        "refusals": reasons,
        "scaled": list(Extremes.scaled_updates),
        "opposed": list(Extremes.alarms),
        "extremes": dict(Extremes.values),
    }


_COUNTS = ("runs", "site-rounds", "refused", "scaled", "opposed")


def print_table(cells: dict[str, dict[str, object]]) -> None:
    """One line per scene: extremes over methods and seeds."""
    scenes: dict[str, dict[str, float]] = {}
    for key, cell in cells.items():
        row = scenes.setdefault(key.split("|")[1], dict.fromkeys(_COUNTS, 0))
        row["runs"] += 1
        row["site-rounds"] += int(str(cell["site_rounds"]))
        reasons, scaled_updates = cell["refusals"], cell["scaled"]
        extremes, alarms = cell["extremes"], cell.get("opposed", [])
        assert isinstance(reasons, list) and isinstance(scaled_updates, list)
        assert isinstance(alarms, list)
        assert isinstance(extremes, dict)
        row["refused"] += len(reasons)
        row["scaled"] += len(scaled_updates)
        row["opposed"] += len(alarms)
        for name, value in extremes.items():
            row[name] = max(float(value), row.get(name, float(value)))
    for scene, row in scenes.items():
        print(scene, {name: round(value, 2) for name, value in row.items()})


def main() -> None:
    """Run what is missing, then print the extremes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", default=",".join(load_methods()))
    parser.add_argument("--scenes", default=",".join(SCENES))
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--traces", type=Path)
    options = parser.parse_args()
    cells: dict[str, dict[str, object]] = {}
    if options.out.exists():
        cells = json.loads(options.out.read_text())
    for scene in options.scenes.split(","):
        for seed in options.seeds.split(","):
            for method in options.methods.split(","):
                key = f"{method}|{scene}|{seed}"
                if key not in cells:
                    cells[key] = run_once(method, scene, int(seed), options.data, options.traces)
                    print(key, cells[key], flush=True)
                    write_atomic(options.out, json.dumps(cells, indent=1).encode())
    print_table(cells)


if __name__ == "__main__":
    main()
