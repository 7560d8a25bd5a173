"""Comparisons: methods x noises x networks x settings x seeds.

    OUT/plan.json          the plan; `fedgsca resume OUT` reads it
    OUT/cells/<cell>/      one run each: <method>-<noise>-s<seed>, ceiling-<noise>-s<seed>;
                           with several networks or settings,
                           <method>-<noise>-<network>-<settings>-s<seed>
    OUT/compare.json       the numbers of all finished runs, rewritten after each of them
    OUT/compare.md, compare.csv, compare.tex, report.html

The ceiling is FedAvg without the wrong labels, which no method can know. Recovery is the share of
the ceiling's advantage over FedAvg that a method regains.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedgsca.config import Config, Tree, build, differences, merge, read_toml, unflatten
from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.experiment.records import (
    Comparison,
    ComparisonCell,
    ComparisonVariant,
    RunResult,
    all_variants,
)
from fedgsca.experiment.run_folder import dumps
from fedgsca.experiment.samples import check_weights
from fedgsca.grid import runner
from fedgsca.grid.runner import (
    GridCell,
    GridObserver,
    Results,
    Role,
    SilentGridObserver,
    describe_changes,
    finished_cells,
    raise_failures,
    run_cells,
)
from fedgsca.grid.variation import (
    Variation,
    check_variation,
    folder_part,
    join_variations,
    unique_values,
)
from fedgsca.methods.base import load_methods, paper_methods
from fedgsca.noise import parse_noise
from fedgsca.report.comparison_tables import (
    BASELINE,
    ComparisonRow,
    compare_rows,
    intervals_to_markdown,
    to_csv,
    to_latex,
    to_markdown,
)
from fedgsca.report.seed_intervals import with_intervals
from fedgsca.support.files import write_atomic
from fedgsca.support.registry import is_import_path
from fedgsca.support.text import join_words, slug


@dataclass(frozen=True)
class ComparisonPlan:
    """What to compare."""

    methods: tuple[str, ...]
    noises: tuple[str, ...]
    seeds: tuple[int, ...]
    # the configuration that all runs share; options of a method apply to that method only
    tree: Tree = field(default_factory=dict)
    # whether to run the ceiling, and FedAvg without noise
    ceiling: bool = True
    clean: bool = False
    # empty: composed from the methods and the data
    title: str = ""
    # method -> settings for its runs only, such as its own learning rate; the ceiling and the
    # clean reference are FedAvg's
    method_settings: Mapping[str, Tree] = field(default_factory=dict)
    # networks to compare, as NAME, NAME+frozen or NAME=WEIGHTS; empty: the one of the tree
    models: tuple[str, ...] = ()
    # settings to vary: key -> values, such as {"data.sites": (4, 10, 20)}
    vary: Variation = field(default_factory=dict)
    # whether to write the time to accuracy, too (time_to_accuracy.py)
    is_timed: bool = False

    def __post_init__(self) -> None:
        """Varied settings are in the order of their keys.

        Names of folders and conditions contain them, and JSON files have sorted keys: in any other
        order, a plan that was read again would have other names.
        """
        object.__setattr__(self, "vary", dict(sorted(self.vary.items())))

    def cells(self) -> list[GridCell]:
        """All runs, each with a checked configuration.

        Seed by seed and noise by noise, so that an interrupted comparison has complete columns.
        """
        cells: list[GridCell] = []
        for seed in self.seeds:
            for noise in self.noises:
                for variant in self.variants:
                    cells += self._condition_cells(noise, variant, seed)
            if self.clean:
                cells.append(self._cell("clean", BASELINE, "0", seed, self.variants[0]))
        return cells

    @property
    def variants(self) -> list[ComparisonVariant]:
        """Every network with every combination of the varied settings."""
        return all_variants(self.models, self.vary)

    def _condition_cells(self, noise: str, variant: ComparisonVariant, seed: int) -> list[GridCell]:
        """All methods under one noise with one network and its settings, and the ceiling."""
        cells = [self._cell("method", method, noise, seed, variant) for method in self.methods]
        if self.ceiling and BASELINE in self.methods and not is_clean(noise):
            cells.append(self._cell("ceiling", BASELINE, noise, seed, variant))
        return cells

    def _cell(
        self, role: Role, method: str, noise: str, seed: int, variant: ComparisonVariant
    ) -> GridCell:
        run_tree: Tree = {"method": method, "seed": seed, "noise": {"spec": noise}}
        row = method
        if role == "ceiling":
            run_tree = merge(run_tree, {"noise": {"oracle": True}})
            row = "ceiling"
        run_tree = merge(run_tree, variant_tree(variant))
        config = build(merge(merge(self.tree, self.method_settings.get(method, {})), run_tree))
        if config.data.partition != "column":  # there the data decides the number of sites
            parse_noise(noise, config.data.sites)
        name = f"{row}-{slug(noise, keep=' %')}"
        if variant.model is not None:
            name += f"-{slug(variant.model)}"
        if variant.settings:
            name += f"-{folder_part(variant.settings)}"
        return GridCell(f"{name}-s{seed}", row, noise, seed, config, role, variant)

    def to_json(self) -> dict[str, Any]:
        """The content of plan.json."""
        optional: dict[str, Any] = {"models": list(self.models)} if self.models else {}
        if self.vary:
            optional["vary"] = {key: list(values) for key, values in self.vary.items()}
        if self.is_timed:
            optional["is_timed"] = True
        return optional | {
            "methods": list(self.methods),
            "noises": list(self.noises),
            "seeds": list(self.seeds),
            "tree": self.tree,
            "ceiling": self.ceiling,
            "clean": self.clean,
            "title": self.title,
            "tuned": dict(self.method_settings),
        }

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> ComparisonPlan:
        """The plan from the content of plan.json, of this version or of 0.2.0."""
        fields: dict[str, Any] = dict(tree)
        fields["method_settings"] = fields.pop("tuned", {})
        for name in ("methods", "noises", "seeds", "models"):
            fields[name] = tuple(fields.get(name, ()))
        fields["vary"] = {key: tuple(values) for key, values in fields.get("vary", {}).items()}
        return cls(**fields)


def read_tuned(path: Path) -> dict[str, Tree]:
    """Settings per method from a TOML file.

    [fedavg.train] lr = 0.003 is FedAvg's learning rate, [fedgp.fedgp] has FedGP's own options.
    """
    tree = read_toml(path)
    for name, section in tree.items():
        if name not in load_methods() or not isinstance(section, Mapping):
            raise ConfigError(
                "grid.unknown-tuned-method",
                f"{path}: {name} is not a method with settings",
                fix="name each table [METHOD.SECTION], for example [fedavg.train]",
            )
    return tree


def is_clean(noise: str) -> bool:
    """Whether a noise specification leaves all labels as they are."""
    return all(part.is_clean for part in parse_noise(noise, noise.count("-") + 1))


def parse_methods(text: str) -> tuple[str, ...]:
    """ "fedavg,fedgsca", "all" in the order of tables, or "paper": the eight that it compares.

    Names are checked with the configuration, which suggests a similar one.
    """
    if text.strip().lower() == "all":
        return tuple(load_methods())
    if text.strip().lower() == "paper":
        return paper_methods()
    names = [part.strip().lower() for part in text.split(",")]
    return _unique("--methods", names, "fedavg,fedgsca or all")


def parse_models(text: str) -> tuple[str, ...]:
    """Networks of a comparison: "cnn,efficientnet-lite0+frozen,resnet18+frozen=FILE"."""
    models = _unique("--models", [part.strip() for part in text.split(",")], "cnn,resnet18")
    folders: dict[str, str] = {}
    for model in models:
        model_tree(model)
        earlier_model = folders.setdefault(slug(model), model)
        if earlier_model != model:  # their runs would share a folder
            raise ConfigError(
                "grid.similar-models",
                f"--models: {earlier_model} and {model} differ in punctuation only",
                fix="rename one of the files or modules",
            )
    return models


def model_tree(text: str) -> Tree:
    """The settings of one network of a comparison: NAME, NAME+frozen, NAME=WEIGHTS."""
    from fedgsca.models.build import spec_of

    name, sign, weights = text.partition("=")
    name, plus, word = name.partition("+")
    if not name or (plus and word != "frozen") or (sign and not weights):
        raise ConfigError(
            "grid.invalid-model",
            f"--models: {text!r} is not a network",
            fix="write NAME, NAME+frozen, NAME=WEIGHTS or NAME+frozen=WEIGHTS, joined by commas",
        )
    if not is_import_path(name):
        spec_of(name)  # an unknown name is reported before any run
    model: Tree = {"name": name}
    if plus:
        model["frozen"] = True
    if weights:
        model["weights"] = weights
    return {"model": model}


def variant_tree(variant: ComparisonVariant) -> Tree:
    """The settings of one variant of a comparison."""
    tree = unflatten(variant.settings)
    return tree if variant.model is None else merge(tree, model_tree(variant.model))


def parse_seeds(text: str) -> tuple[int, ...]:
    """ "3" is a number of seeds: 0, 1, 2. A list is taken as it is: "0,4,7", or "5," for seed 5."""
    try:
        if "," in text:
            seeds = [int(part) for part in text.split(",") if part.strip()]
        else:
            seeds = list(range(int(text)))
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0:
        raise ConfigError(
            "grid.invalid-seeds",
            f"--seeds {text!r} is neither a number of seeds nor a list of seeds",
            fix="use --seeds 3 (for seeds 0, 1, 2) or a list such as --seeds 0,4,7",
        )
    return tuple(dict.fromkeys(seeds))


def parse_noises(specs: Iterable[str]) -> tuple[str, ...]:
    """Noise specifications in canonical spelling (s40% is S40), so that a run has one name."""
    names = []
    for spec in specs:
        parts = parse_noise(spec, spec.count("-") + 1)
        star = "*" if spec.rstrip().endswith("*") else ""
        names.append("-".join(map(str, parts)) + star)
    return _unique("--noise", names, "0-S40-P20-C20")


def _unique(flag: str, names: Iterable[str], example: str) -> tuple[str, ...]:
    unique_names = tuple(dict.fromkeys(name for name in names if name))
    if not unique_names:
        raise ConfigError(
            "grid.empty-list", f"{flag} is empty", fix=f"use, for example, {flag} {example}"
        )
    return unique_names


def save_plan(plan: ComparisonPlan, out: Path) -> None:
    """Write plan.json."""
    write_atomic(out / "plan.json", dumps(plan.to_json()))


def read_plan(out: Path) -> ComparisonPlan | None:
    """The plan of a comparison's folder; None if the folder is something else."""
    path = out / "plan.json"
    if not path.is_file():
        return None
    try:
        return ComparisonPlan.from_json(json.loads(path.read_bytes()))
    except (ValueError, TypeError, KeyError) as error:
        raise RunFolderError(
            "grid.damaged-plan",
            f"{path} is damaged: {error}",
            fix="start the comparison again with its command; finished runs are kept",
        ) from None


def extend(plan: ComparisonPlan, out: Path) -> ComparisonPlan:
    """The plan together with the earlier plan of the folder.

    Both must belong to one comparison: the same settings for all runs.
    """
    try:
        earlier = read_plan(out)
    except RunFolderError:  # damaged: this command replaces it
        earlier = None
    if earlier is None:
        return plan
    if bool(earlier.models) != bool(plan.models):
        raise RunFolderError(
            "grid.other-models",
            f"{out} holds another comparison: only one of the two varies the network",
            fix="choose another --out",
        )
    if set(earlier.vary) != set(plan.vary):
        raise RunFolderError(
            "grid.other-variation",
            f"{out} holds another comparison: only one of the two varies "
            + join_words(sorted(set(earlier.vary) ^ set(plan.vary))),
            fix="choose another --out",
        )
    joint_plan = ComparisonPlan(
        vary=join_variations(earlier.vary, plan.vary),
        models=tuple(dict.fromkeys((*earlier.models, *plan.models))),
        methods=tuple(dict.fromkeys((*earlier.methods, *plan.methods))),
        noises=tuple(dict.fromkeys((*earlier.noises, *plan.noises))),
        seeds=tuple(dict.fromkeys((*earlier.seeds, *plan.seeds))),
        tree=merge(earlier.tree, plan.tree),
        ceiling=earlier.ceiling or plan.ceiling,
        clean=earlier.clean or plan.clean,
        title=plan.title or earlier.title,
        method_settings=merge(earlier.method_settings, plan.method_settings),
        is_timed=earlier.is_timed or plan.is_timed,
    )
    configs = {cell.name: cell.config for cell in joint_plan.cells()}
    for cell in earlier.cells():
        _check_same(cell, configs[cell.name], cell.config, out)
    for cell in plan.cells():
        _check_same(cell, cell.config, configs[cell.name], out)
    return joint_plan


def _check_same(cell: GridCell, new: Config, old: Config, out: Path) -> None:
    changes = differences(new, old)
    if changes:
        raise RunFolderError(
            "grid.other-settings",
            f"{out} holds another comparison; with its settings, cell {cell.name} would differ:\n  "
            + "\n  ".join(describe_changes(changes)),
            fix=f"choose another --out, or continue that comparison with `fedgsca resume {out}`",
        )


def check_folder(cells: Iterable[GridCell], out: Path) -> None:
    """Check before anything runs that the folder is new, or holds this comparison."""
    runner.check_folder(cells, out, marker="plan.json", kind="comparison")


@dataclass(frozen=True)
class ComparisonResult:
    """A comparison as far as its runs are finished."""

    path: Path
    # the content of compare.json
    comparison: Comparison
    # cell -> reason
    failures: Mapping[str, str]

    @property
    def rows(self) -> list[ComparisonRow]:
        """Mean and standard deviation over seeds per method and noise, with ranks and recovery."""
        return compare_rows(self.comparison)

    def row(self, method: str, noise: str | None = None) -> ComparisonRow:
        """The row of one method; `noise` may be left out if there is only one."""
        for row in self.rows:
            if row.method == method and noise in (None, row.noise):
                return row
        raise KeyError(f"the comparison has no finished run of {method!r} under {noise!r}")


def compare(
    methods: Sequence[str],
    config: Config,
    *,
    noises: Sequence[str] | None = None,
    models: Sequence[str] = (),
    vary: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | Sequence[int] = 3,
    out: str | Path,
    ceiling: bool = True,
    clean: bool = False,
    title: str = "",
    jobs: int = 1,
    observer: GridObserver | None = None,
) -> ComparisonResult:
    """Train every method under every noise with every seed, and write the tables.

    With `models` and `vary`, also with every network and every combination of settings.

    methods   names such as ["fedavg", "fedgsca"]
    config    the settings of all runs; its method, seed and noise are replaced
    noises    such as ["S40", "0-S40-P20-C20"]; default: the noise of `config`
    models    networks to compare: NAME, NAME+frozen, NAME=WEIGHTS; default: that of `config`
    vary      settings with several values each, such as {"data.sites": [4, 10, 20]}
    seeds     a number of seeds (3: 0, 1, 2) or the seeds themselves
    out       folder for the runs; the same call resumes an interrupted comparison
    ceiling   also train FedAvg without the wrong labels, which recovery needs
    clean     also train FedAvg without noise
    jobs      processes that train the sites of a run

    Raises FedgscaError after the other runs have finished if a run failed.
    """
    out = Path(out)
    plan = ComparisonPlan(
        methods=tuple(dict.fromkeys(methods)),
        noises=parse_noises(noises or [config.noise.spec]),
        seeds=tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds),
        tree=_without_model(config.to_tree()) if models else config.to_tree(),
        ceiling=ceiling,
        clean=clean,
        title=title,
        models=parse_models(",".join(models)) if models else (),
        vary={key: unique_values(key, values) for key, values in (vary or {}).items()},
    )
    check_variation(plan.vary, {})
    result = run_plan(plan, out, observer or SilentGridObserver(), jobs=jobs)
    if result.comparison.cells:
        result = replace(result, comparison=write_tables(out, result.comparison))
    raise_failures(result.failures, len(plan.cells()), out)
    return result


def _without_model(tree: Tree) -> Tree:
    """The tree without the network, and without the training settings that depend on it.

    These are the defaults of every network again, unless they differ from the defaults here.
    """
    defaults = build({key: tree[key] for key in ("method", "model")}).to_tree()["train"]
    changes = {key: value for key, value in tree["train"].items() if value != defaults.get(key)}
    model = {key: tree["model"][key] for key in ("feature_size",) if key in tree["model"]}
    return {**tree, "train": changes, "model": model}


def run_plan(
    plan: ComparisonPlan, out: Path, observer: GridObserver, *, jobs: int = 1
) -> ComparisonResult:
    """Run what the plan requests and is not finished yet.

    The result has these runs and those that the folder had before.
    """
    requested_cells = plan.cells()
    check_folder(requested_cells, out)
    finished_names = finished_cells(requested_cells, out)
    for cell in requested_cells:
        if cell.name not in finished_names:  # a finished run may come from another machine
            check_weights(cell.config)
    joint_plan = extend(plan, out)
    save_plan(joint_plan, out)
    cells = joint_plan.cells()
    results = finished_cells(cells, out)

    def save_numbers(_: GridCell) -> None:
        save_comparison(out, collect(joint_plan, cells, results))

    failures = run_cells(requested_cells, out, observer, results, jobs=jobs, on_result=save_numbers)
    return ComparisonResult(out, collect(joint_plan, cells, results), failures)


def collect(plan: ComparisonPlan, cells: Iterable[GridCell], results: Results) -> Comparison:
    """The content of compare.json from the finished runs."""
    rows: list[ComparisonCell] = []
    ceiling: dict[str, dict[str, float]] = {}
    clean: dict[str, float] = {}
    data = ""
    for cell in cells:
        if cell.name not in results:
            continue
        result = results[cell.name]
        data = data or result.data
        if cell.role == "method":
            rows.append(_comparison_cell(cell, result))
        elif cell.role == "ceiling":
            condition = cell.variant.join(cell.noise)
            ceiling.setdefault(condition, {})[str(cell.seed)] = result.f1
        else:
            clean[str(cell.seed)] = result.f1
    return Comparison(
        title=plan.title or f"{method_titles(plan.methods)} on {data}",
        data=data,
        noises=plan.noises,
        methods=plan.methods,
        seeds=plan.seeds,
        cells=tuple(rows),
        ceiling=ceiling,
        clean=clean or None,
        models=plan.models or None,
        vary=plan.vary or None,
    )


def method_titles(methods: Iterable[str]) -> str:
    """FedAvg, FedProx and FedGSCA."""
    return join_words([load_methods()[name].card.title for name in methods])


def _comparison_cell(cell: GridCell, result: RunResult) -> ComparisonCell:
    return ComparisonCell(
        **final_qualities(result),
        method=cell.config.method,
        label=load_methods()[cell.config.method].card.title,
        noise=cell.noise,
        seed=cell.seed,
        path=f"cells/{cell.name}",
        f1=result.f1,
        recall=result.recall,
        precision=result.precision,
        best_f1=result.best.f1,
        seconds_per_round=result.seconds.per_round,
        bytes_up=result.bytes_per_round.up,
        bytes_down=result.bytes_per_round.down,
        model=cell.variant.model,
        settings=cell.variant.settings or None,
    )


def final_qualities(result: RunResult) -> dict[str, float | None]:
    """The fields of a ComparisonCell about the probabilities of the last model."""
    statistics = result.statistics
    if statistics is None:
        return {}
    auroc, area = statistics.auroc, statistics.average_precision
    return {
        "auroc": None if auroc is None else auroc.value,
        "average_precision": None if area is None else area.value,
        "ece": None if statistics.calibration is None else statistics.calibration.ece,
    }


def save_comparison(out: Path, comparison: Comparison) -> None:
    """Write compare.json."""
    write_atomic(out / "compare.json", dumps(comparison.to_json()))


def read_comparison(out: Path) -> Comparison:
    """Read the compare.json of a folder, of this version or of 0.2.0."""
    path = out / "compare.json"
    try:
        return Comparison.from_json(json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise RunFolderError(
            "grid.damaged-comparison",
            f"{path} cannot be read: {error}",
            fix=f"run `fedgsca resume {out}`, which writes it again from the finished runs",
        ) from None


def write_tables(out: Path, comparison: Comparison) -> Comparison:
    """Write compare.json, and the table as compare.md, compare.csv and compare.tex.

    Returns the comparison with the intervals that these have.
    """
    comparison = with_intervals(out, comparison)
    rows = compare_rows(comparison)
    intervals = comparison.intervals or ()
    save_comparison(out, comparison)
    markdown = to_markdown(rows) + intervals_to_markdown(intervals, rows)
    write_atomic(out / "compare.md", markdown.encode())
    write_atomic(out / "compare.csv", to_csv(rows, intervals).encode())
    write_atomic(out / "compare.tex", to_latex(rows).encode())
    return comparison
