"""All methods under other kinds of noise, numbers of sites and divisions: docs/results.md.

    python -m benchmarks.settings tissue-28 --data pathmnist_small.npz --out DIR
    python -m benchmarks.settings skin-96 --data ham10000_small --out DIR
    python -m benchmarks.settings tissue-28 --out DIR --tables      print what is finished

Everything but the setting is that of the benchmark protocol: images, network, rounds, seeds. Each
method has the learning rate that it chose there on validation images (`--submissions`, by default
the published files), so no method is tuned on these settings. An interrupted study is resumed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.generalisation.summary import rank_methods
from benchmarks.protocols.conditions import protocol_config
from benchmarks.protocols.protocol import PROTOCOLS, Protocol
from benchmarks.protocols.submission import Submission, read_submission
from fedgsca.config import Tree, build, merge, unflatten
from fedgsca.engine.rounds import run
from fedgsca.errors import FedgscaError
from fedgsca.grid.plan import parse_methods, parse_seeds
from fedgsca.methods.base import load_methods
from fedgsca.support.files import write_atomic
from fedgsca.support.text import plural

PUBLISHED = Path(__file__).parent.parent / "docs" / "benchmark"
MIXED = "0-S40-P20-C20"
# the parts repeat over any number of sites
MIXED_EVERYWHERE = "0-S40-P20-C20*"


@dataclass(frozen=True)
class Setting:
    """One row of the table: a noise, and what else differs from the protocol."""

    name: str
    noise: str
    tree: Tree = field(default_factory=dict)


def _sites(count: int, **federation: float) -> Setting:
    name = f"{count} sites"
    tree: Tree = {"data": {"sites": count}}
    if federation:
        name += f", {federation['participation']:.0%} of them in a round"
        tree["federation"] = dict(federation)
    return Setting(name, MIXED_EVERYWHERE, tree)


_NOISES = (
    Setting("mixed", MIXED),
    Setting("symmetric", "S40"),
    Setting("instance-dependent", "I30"),
    Setting("by class", "R60/10"),
    Setting("one of three annotators", "A40x3"),
    Setting("vote of three annotators", "V40x3"),
    Setting("open-set", "O20"),
)
_BY_GROUP = Setting("by group", "G30")
_DIVISIONS = (
    _sites(10),
    _sites(20),
    _sites(50),
    _sites(20, participation=0.25),
    Setting("Dirichlet 0.5", MIXED, {"data": {"partition": "dirichlet"}}),
    Setting("Dirichlet 0.1", MIXED, {"data": {"partition": "dirichlet", "alpha": 0.1}}),
    Setting("a third of the classes missing", MIXED, {"data": {"partition": "missing"}}),
)
SETTINGS = {
    "tissue-28": (*_NOISES, *_DIVISIONS),
    "skin-96": (*_NOISES, _BY_GROUP, *_DIVISIONS),  # its lesions are groups
}


@dataclass(frozen=True)
class Score:
    """The result of one run."""

    setting: str
    method: str
    seed: int
    f1: float


def chosen_settings(folder: Path, protocol: Protocol) -> dict[str, Tree]:
    """Method -> what it chose on the validation images of the protocol."""
    settings = {}
    for path in sorted(folder.glob(f"{protocol.name}-v{protocol.version}-*.json")):
        submission: Submission = read_submission(path)
        settings[submission.method] = unflatten(submission.chosen_setting)
    return settings


def run_cell(
    protocol: Protocol, data: str, setting: Setting, method: str, tuned: Tree, seed: int, out: Path
) -> Score:
    """One run; the engine resumes an interrupted one."""
    folder = out / "cells" / f"{_file_name(setting.name)}-{method}-s{seed}"
    file = folder.with_suffix(".json")
    if file.is_file():
        return Score(**json.loads(file.read_text()))
    shared = protocol_config(protocol, data, method, tuned, seed).to_tree()
    config = build(merge(merge(shared, setting.tree), {"noise": {"spec": setting.noise}}))
    result = run(config, folder)
    assert result is not None  # nobody stops it before its last round
    score = Score(setting.name, method, seed, result.f1)
    write_atomic(file, json.dumps(asdict(score)).encode())
    return score


def _file_name(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text)


def read_scores(out: Path) -> list[Score]:
    """All finished runs of a study."""
    return [
        Score(**json.loads(path.read_text())) for path in sorted((out / "cells").glob("*.json"))
    ]


def to_markdown(protocol: Protocol, scores: Sequence[Score], methods: Sequence[str]) -> str:
    """A row per setting: mean ± standard deviation over seeds; the mean rank in the last row."""
    titles = [load_methods()[method].title for method in methods]
    lines = [f"| setting | noise | {' | '.join(titles)} |", "|---|---|" + "--:|" * len(methods)]
    ranks: list[Mapping[str, float]] = []
    for setting in SETTINGS[protocol.name]:
        by_method = {
            method: [s.f1 for s in scores if (s.setting, s.method) == (setting.name, method)]
            for method in methods
        }
        means = {method: fmean(values) for method, values in by_method.items() if values}
        if not means:
            continue
        cells = [_cell(by_method[method], max(means.values())) for method in methods]
        lines.append(f"| {setting.name} | `{setting.noise}` | {' | '.join(cells)} |")
        if len(means) == len(methods):
            ranks.append(rank_methods(means))
    if ranks:
        mean_ranks = [fmean(row[method] for row in ranks) for method in methods]
        cells = [f"**{rank:.1f}**" for rank in mean_ranks]
        lines.append(f"| **mean rank, {plural(len(ranks), 'setting')}** | | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: Sequence[float], best: float) -> str:
    if not values:
        return "–"
    mean = fmean(values)
    text = f"{mean:.1f}"
    if mean == best:
        text = f"**{text}**"
    if len(values) > 1:
        text += f" ± {stdev(values):.1f}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("protocol", choices=list(SETTINGS))
    parser.add_argument("--data", help="the protocol's images")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", default="all")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", nargs="*", help="names of settings")
    parser.add_argument("--submissions", type=Path, default=PUBLISHED)
    parser.add_argument("--tables", action="store_true", help="run nothing")
    options = parser.parse_args()
    protocol = PROTOCOLS[options.protocol]
    methods = parse_methods(options.methods)
    if not options.tables:
        if options.data is None:
            parser.error("give --data, or --tables to print what is finished")
        tuned = chosen_settings(options.submissions, protocol)
        absent = [method for method in methods if method not in tuned]
        if absent:
            parser.error(f"{options.submissions} has no submission of {', '.join(absent)}")
        try:
            _run_all(protocol, methods, tuned, options)
        except FedgscaError as error:
            sys.exit(str(error))
    print(to_markdown(protocol, read_scores(options.out), methods))


def _run_all(
    protocol: Protocol,
    methods: Sequence[str],
    tuned: Mapping[str, Tree],
    options: argparse.Namespace,
) -> None:
    """Seed by seed, so that an interrupted study has complete rows."""
    for seed in parse_seeds(options.seeds):
        for setting in SETTINGS[protocol.name]:
            if options.only and setting.name not in options.only:
                continue
            for method in methods:
                score = run_cell(
                    protocol, options.data, setting, method, tuned[method], seed, options.out
                )
                print(f"seed {seed}  {setting.name}  {method}  {score.f1:.1f}", file=sys.stderr)


if __name__ == "__main__":
    main()
