"""The parts of a model card that are measured: label noise and results."""

from __future__ import annotations

import numpy as np

from fedgsca.metrics import per_class
from fedgsca.report.run_reader import LAST, Run, Tree, number
from fedgsca.report.sentences import count, headline, noise_name, percent, score
from fedgsca.support.markdown import table

_SCORES = ("precision", "recall", "f1")


def noise_section(run: Run) -> list[str]:
    """What was added (simulations) and what the method thinks it found; by the names of the numbers that sites reported."""
    last: Tree = run.metrics[-1].get("sites", {}) if run.metrics else {}
    chosen = run.last_selection
    injected = any(run.realised(name) for name in run.sites)
    flagged = {name: number(chosen.get(name, {}).get("delta")) for name in run.sites}
    estimated = {name: number(last.get(name, {}).get("noise_level")) for name in run.sites}
    head, columns = ["Site"], []
    if injected:
        head += ["Noise added", "Labels wrong"]
        columns.append(
            [
                noise_name(str(run.setup["sites"].get(name, {}).get("noise", "")))
                for name in run.sites
            ]
        )
        columns.append([percent((run.realised(name) or {}).get("rate"), 1) for name in run.sites])
    for title, found in (("Labels flagged", flagged), ("Estimated wrong", estimated)):
        if any(value is not None for value in found.values()):
            head.append(title)
            columns.append([percent(found[name], 1) for name in run.sites])
    lines = ["## Label noise", ""]
    lines += (
        ["This was a simulation: wrong labels were put into the training data on purpose.", ""]
        if injected
        else [
            "No labels were changed on purpose. How many of the given labels are wrong is not known.",
            "",
        ]
    )
    if any(title in head for title in ("Labels flagged", "Estimated wrong")):
        lines += [
            "What the method found is an estimate, not a finding about patients or people who label.",
            "",
        ]
    else:
        lines += [
            "No site reported how many of its labels look wrong: the method does not say so, or it was still warming up.",
            "",
        ]
    cells = [[name, *(column[i] for column in columns)] for i, name in enumerate(run.sites)]
    return [*lines, *(table(head, cells) if columns else [])]


def results_section(run: Run, rounds: int) -> list[str]:
    """Scores of the model after so many rounds."""
    tested = [line for line in run.evaluated if line["round"] < rounds and line.get("confusion")]
    if not tested:
        return ["## Results", "", "No round was tested.", ""]
    last = tested[-1]
    parts = per_class(np.array(last["confusion"]))
    rows = [
        [name, *(score(part[key]) for key in _SCORES), count(part["support"])]
        for name, part in zip(run.classes, parts, strict=True)
    ]
    rows.append(
        [
            "mean of the classes",
            *(score(last[key]) for key in _SCORES),
            count(sum(p["support"] for p in parts)),
        ]
    )
    return [
        "## Results",
        "",
        f"On the test set after round {last['round'] + 1}, in percent:",
        "",
        *table(["Class", "Precision", "Recall", "F1", "Test images"], rows),
        f"Macro F1, mean of the last {min(LAST, len(tested))} tested rounds: {score(headline(run))}.",
        "",
    ]
