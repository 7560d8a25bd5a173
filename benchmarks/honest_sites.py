"""How far honest sites are from the limits of the guard, and how often it refuses one.

    python -m benchmarks.honest_sites --out FILE.json [--methods fedavg,fedgsca] [--seeds 0,1] \
        [--scenes demo,demo-dirichlet-0.1]

The study behind "False alarms" in docs/robustness.md. Every site is honest. For each run it writes
the largest norm of a change as a multiple of the usual one (in the first round and later), the
smallest cosine of a model that was sent with the one received, the largest response, and how many
updates were refused. Finished runs are read from FILE, so the same call continues.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import ClassVar

from benchmarks.robustness import prepare_once
from fedgsca.config import Config, Tree, build, merge
from fedgsca.engine import rounds
from fedgsca.engine.guard import UpdateFacts, UpdateGuard
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
    "cnn": CNN,
    "cnn-dirichlet-0.1": merge(CNN, _division("dirichlet", 0.1)),
}


class Extremes(UpdateGuard):
    """A guard that keeps the extreme values of the honest sites it sees."""

    values: ClassVar[dict[str, float]] = {}  # of the newest run

    def remember(
        self,
        round_index: int,
        facts: Sequence[UpdateFacts],
        accepted_sites: Collection[str],
        strikes: Collection[str],
        reversed_sites: Collection[str] = (),
    ) -> None:
        """Note the extremes of the round, then remember as usual."""
        for item in facts:
            for part in item.parts:
                self._note(round_index, item, part, facts)
        super().remember(round_index, facts, accepted_sites, strikes, reversed_sites)

    def _note(
        self, round_index: int, item: UpdateFacts, part: str, facts: Sequence[UpdateFacts]
    ) -> None:
        norms = [row.parts[part].norm for row in facts if row is not item and part in row.parts]
        ratio = self.norm_ratio(item, part, norms)
        period = "first" if round_index == 0 else "later"
        self._keep(f"{part} norm {period}", ratio)
        part_facts = item.parts[part]
        if part_facts.resemblance is not None:
            self._keep(f"{part} cosine", -part_facts.resemblance)
        if part_facts.response is not None:
            self._keep(f"{part} response", part_facts.response)

    def _keep(self, key: str, value: float) -> None:
        self.values[key] = max(value, self.values.get(key, value))


def make_config(method: str, scene: str, seed: int) -> Config:
    """The configuration of a run."""
    tree: Tree = {
        "method": method,
        "seed": seed,
        "noise": {"spec": NOISE},
        "audit": {"enabled": False},
        "train": {"threads": 1, "device": "cpu"},
        "federation": {"keep_losses": False, "eval_every": 20},
    }
    return build(merge(tree, SCENES[scene]))


def run_once(method: str, scene: str, seed: int) -> dict[str, object]:
    """The extremes of a run, its site-rounds and its refusals."""
    config = make_config(method, scene, seed)
    Extremes.values.clear()
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
    return {
        "site_rounds": sum(len(record.sites) for record in records) + len(reasons),
        "refusals": reasons,
        "extremes": dict(Extremes.values),
    }


def print_table(cells: dict[str, dict[str, object]]) -> None:
    """One line per scene: extremes over methods and seeds."""
    scenes: dict[str, dict[str, float]] = {}
    for key, cell in cells.items():
        row = scenes.setdefault(key.split("|")[1], {"runs": 0, "site-rounds": 0, "refused": 0})
        row["runs"] += 1
        row["site-rounds"] += int(str(cell["site_rounds"]))
        reasons, extremes = cell["refusals"], cell["extremes"]
        assert isinstance(reasons, list) and isinstance(extremes, dict)
        row["refused"] += len(reasons)
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
    options = parser.parse_args()
    cells: dict[str, dict[str, object]] = {}
    if options.out.exists():
        cells = json.loads(options.out.read_text())
    for scene in options.scenes.split(","):
        for seed in options.seeds.split(","):
            for method in options.methods.split(","):
                key = f"{method}|{scene}|{seed}"
                if key not in cells:
                    cells[key] = run_once(method, scene, int(seed))
                    print(key, cells[key], flush=True)
                    write_atomic(options.out, json.dumps(cells, indent=1).encode())
    print_table(cells)


if __name__ == "__main__":
    main()
