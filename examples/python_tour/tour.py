"""Train, plot, audit, correct and retrain from Python, on the built-in images.

    python examples/python_tour/tour.py [FOLDER]

The cells (# %%) can be run one by one in an editor that knows notebooks. It takes about half a
minute on two cores. FOLDER is where the runs go, by default runs/tour.
"""

# %% Set up: four hospitals, three of them with wrong labels
from __future__ import annotations

import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import fedgsca

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/tour")
config = fedgsca.Config.load(
    data="synthetic",
    noise="0-S40-P20-C20",
    frozen=True,  # train a linear head on a pretrained network: quick on a CPU
    rounds=15,
    set={"data.train": 480, "data.test": 240},
)

# %% Train two methods on the same labels
table = fedgsca.compare(
    ["fedavg", "fedgsca"], config, seeds=1, ceiling=False, out=folder / "compare"
)
for row in table.rows:
    assert row.f1 is not None
    print(f"{row.label:10} macro F1 {row.f1.mean:.1f}")

# %% Train once more, this time for the audit, and plot the learning curve
run = fedgsca.run(config, out=folder / "first")
figure, axis = plt.subplots(figsize=(6, 3.5))
scores = {record.round + 1: record.f1 for record in run.rounds if record.f1 is not None}
axis.plot(list(scores), list(scores.values()))
axis.set_xlabel("round")
axis.set_ylabel("macro F1 on the test images, %")
figure.savefig(folder / "curve.png", bbox_inches="tight")
print(f"first run: {run.f1:.1f}, report in {run.report()}")

# %% Audit: which labels of each hospital are suspicious?
audits = fedgsca.audit(run)
for audit in audits:
    estimate = audit.summary.estimated_wrong
    print(f"{audit.site}: {audit.num_suspects} labels to check, about {estimate.count} wrong")


# %% Correct: in a simulation the file with the true labels plays the pathologist
def read_true_labels(site: str) -> dict[str, str]:
    """Image -> true class, from the noise file that a simulation writes."""
    with open(run.folder / "noise" / f"{site}.csv", newline="", encoding="utf-8") as handle:
        return {row["file"]: row["true"] for row in csv.DictReader(handle)}


for audit in audits:
    true_labels = read_true_labels(audit.site)
    decisions = {suspect.id: true_labels[suspect.id] for suspect in audit.suspects()}
    fedgsca.record_decisions(audit, decisions, reviewer="tour")
corrected = fedgsca.apply_decisions(run)
print(f"{len(corrected.changes)} labels corrected in {corrected.file}")

# %% Retrain on the corrected labels; they already contain the noise, so none is injected
assert corrected.file is not None
retraining = fedgsca.Config.load(run.folder / "config.toml", labels=str(corrected.file), noise="0")
second_run = fedgsca.run(retraining, out=folder / "second")
print(f"macro F1 before {run.f1:.1f}, after {second_run.f1:.1f}")

# %% The same ranking for any classifier's probabilities, without a federation
import numpy as np  # noqa: E402

probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.95, 0.05], [0.1, 0.9]] * 10)
labels = np.array([0, 1, 1, 1] * 10)
print("suspicious rows:", fedgsca.find_label_issues(labels, probs))
