"""What a comparison runs: methods x noises x networks x settings x seeds, and how it is typed.

    OUT/plan.json          the plan; `fedgsca resume OUT` reads it
    OUT/cells/<cell>/      one run each: <row>-<noise>-s<seed>, ceiling-<noise>-s<seed>;
                           with several networks or settings,
                           <row>-<noise>-<network>-<settings>-s<seed>

A row is a method, or a variant of one: settings of its own with the key `method`. The ceiling is
FedAvg without the wrong labels, which no method can know. Settings that vary are written as
KEY=VALUE,VALUE,..., for example data.sites=4,10,20; every combination is a condition of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedgsca.config import (
    SHORT_NAMES,
    Config,
    Tree,
    build,
    differences,
    flatten,
    merge,
    parse_set,
    read_toml,
    unflatten,
)
from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.federation.run_folder import dumps
from fedgsca.lab.records import (
    ComparisonVariant,
    PrintedNumbers,
    all_variants,
    setting_name,
    setting_value,
)
from fedgsca.lab.report.comparison_rows import BASELINE, CEILING
from fedgsca.lab.report.run_facts import method_title
from fedgsca.lab.runner import GridCell, Role, describe_changes
from fedgsca.methods.base import load_methods, paper_methods
from fedgsca.noise import parse_noise
from fedgsca.support.files import write_atomic
from fedgsca.support.registry import is_import_path
from fedgsca.support.text import join_words, slug

# the method of the paper; that of the configuration's default may be another
PAPER_METHOD = "fedgsca"


@dataclass(frozen=True)
class ComparisonPlan:
    """What to compare."""

    # rows: methods, or names of variants that `method_settings` defines
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
    # row -> settings for its runs only, such as its own learning rate; `method` makes it a variant.
    # The ceiling and the clean reference are FedAvg's
    method_settings: Mapping[str, Tree] = field(default_factory=dict)
    # networks to compare, as NAME, NAME+frozen or NAME=WEIGHTS; empty: the one of the tree
    models: tuple[str, ...] = ()
    # settings to vary: key -> values, such as {"data.sites": (4, 10, 20)}
    vary: Variation = field(default_factory=dict)
    # whether to measure the time to accuracy, too (time_to_accuracy.py)
    is_timed: bool = False
    # names of rows for people; a method that is not named here has its title
    labels: Mapping[str, str] = field(default_factory=dict)
    # the row that the others are compared with; empty: FedAvg, or else the first
    reference: str = ""
    # numbers of a publication to stand beside ours
    publication: PrintedNumbers | None = None
    # sentences about all tables
    notes: tuple[str, ...] = ()

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
        return list(self._cells)

    @cached_property
    def _cells(self) -> tuple[GridCell, ...]:
        """Checked once: a comparison may have hundreds."""
        cells: list[GridCell] = []
        for seed in self.seeds:
            for noise in self.noises:
                for variant in self.variants:
                    for row in self.methods:
                        cells.append(self._cell("method", row, noise, seed, variant))
                    if self.ceiling and BASELINE in self.methods and not is_clean(noise):
                        cells.append(self._cell("ceiling", BASELINE, noise, seed, variant))
            if self.clean:
                cells.append(self._cell("clean", BASELINE, "0", seed, self.variants[0]))
        return tuple(cells)

    @property
    def variants(self) -> list[ComparisonVariant]:
        """Every network with every combination of the varied settings."""
        return all_variants(self.models, self.vary)

    def label_of(self, row: str) -> str:
        """The name of a row for people."""
        return self.labels.get(row) or method_title(row)

    def _cell(
        self, role: Role, row: str, noise: str, seed: int, variant: ComparisonVariant
    ) -> GridCell:
        settings = merge({"method": row}, dict(self.method_settings.get(row, {})))
        run_tree: Tree = {"seed": seed, "noise": {"spec": noise}}
        if role == "ceiling":
            run_tree = merge(run_tree, {"noise": {"oracle": True}})
            row = CEILING
        run_tree = merge(run_tree, variant_tree(variant))
        config = build(merge(merge(self.tree, settings), run_tree))
        if config.data.partition != "column":  # there the data decides the number of sites
            parse_noise(noise, config.data.sites)
        name = f"{row}-{slug(noise, keep=' %')}"
        if variant.model is not None:
            name += f"-{slug(variant.model)}"
        if variant.settings:  # sites-10-participation-0.5
            items = variant.settings.items()
            parts = [f"{setting_name(key)}-{setting_value(value)}" for key, value in items]
            name += f"-{slug('-'.join(parts))}"
        return GridCell(f"{name}-s{seed}", row, noise, seed, config, role, variant)

    def to_json(self) -> dict[str, Any]:
        """The content of plan.json: what differs from an empty plan."""
        tree = asdict(self)
        tree["publication"] = None if self.publication is None else self.publication.to_json()
        empty = asdict(ComparisonPlan((), (), ()))
        return {key: value for key, value in tree.items() if value != empty[key]}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> ComparisonPlan:
        """The plan from the content of plan.json."""
        fields: dict[str, Any] = {"methods": (), "noises": (), "seeds": (), **tree}
        for name in ("methods", "noises", "seeds", "models", "notes"):
            fields[name] = tuple(fields.get(name, ()))
        fields["vary"] = {key: tuple(values) for key, values in fields.get("vary", {}).items()}
        if "publication" in fields:
            fields["publication"] = PrintedNumbers.from_json(fields["publication"])
        return cls(**fields)


def default_methods() -> tuple[str, ...]:
    """FedAvg, the paper's method, and the method that runs where none is named."""
    return tuple(dict.fromkeys((BASELINE, PAPER_METHOD, build({}).method)))


@dataclass(frozen=True)
class PlanRow:
    """A method with settings of its own under a name of the user's."""

    label: str
    # has the key `method`
    tree: Tree


def parse_rows(items: Iterable[str]) -> dict[str, PlanRow]:
    """Rows by the names of their folders, from "FedGSCA literal=fedgsca,preset=paper".

    A key is a short name of a setting, section.key, or an option of the method.
    """
    rows: dict[str, PlanRow] = {}
    for item in items:
        label, sign, text = item.partition("=")
        method, *settings = [part.strip() for part in text.split(",")]
        name = slug(label.strip()).lower()
        if not sign or not label.strip() or not all("=" in part for part in settings):
            raise ConfigError(
                "grid.invalid-row",
                f"--row {item!r} does not have the form NAME=METHOD,KEY=VALUE,...",
                fix="write for example --row 'FedGSCA literal=fedgsca,preset=paper'",
            )
        if name in rows or name in (*load_methods(), CEILING):
            raise ConfigError(
                "grid.repeated-row",
                f"--row {item!r}: there is another row {name}",
                fix="choose another name",
            )
        tree: Tree = {"method": method.lower()}
        for part in settings:
            key, _, value = part.partition("=")
            key = SHORT_NAMES.get(key, key if "." in key else f"{method.lower()}.{key}")
            tree = merge(tree, parse_set([f"{key}={value}"]))
        rows[name] = PlanRow(label.strip(), tree)
    return rows


def choose_methods(text: str | None, rows: Mapping[str, PlanRow]) -> tuple[str, ...]:
    """The methods of --methods, then the rows of --row; without --methods, FedAvg or the usual."""
    methods = parse_methods(text) if text is not None else default_methods()
    if text is None and rows:
        methods = (BASELINE,)
    return (*methods, *(name for name in rows if name not in methods))


def read_tuned(path: Path) -> dict[str, Tree]:
    """Settings per method from a TOML file.

    [fedavg.train] lr = 0.003 is FedAvg's learning rate, [fedgp.fedgp] has FedGP's own options. A
    table with the key `method` is a variant, a row of its own that --methods can name.
    """
    tree = read_toml(path)
    for name, section in tree.items():
        is_row = isinstance(section, Mapping) and (name in load_methods() or "method" in section)
        if not is_row:
            raise ConfigError(
                "grid.unknown-tuned-method",
                f"{path}: {name} is not a method with settings",
                fix="name each table [METHOD.SECTION], such as [fedavg.train]; a variant needs the"
                " key method",
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
    for model in models:
        model_tree(model)
    _refuse_similar("--models", models)
    return models


def _refuse_similar(flag: str, names: Iterable[str]) -> None:
    """Names that differ in punctuation only: their runs would share a folder."""
    folders: dict[str, str] = {}
    for name in names:
        earlier = folders.setdefault(slug(name), name)
        if earlier != name:
            raise ConfigError(
                "grid.similar-names",
                f"{flag}: {earlier} and {name} differ in punctuation only",
                fix="rename one of them, or compare them in two comparisons",
            )


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
    old_keys = {*earlier.vary, *(["the network"] if earlier.models else ())}
    new_keys = {*plan.vary, *(["the network"] if plan.models else ())}
    if old_keys != new_keys:
        raise RunFolderError(
            "grid.other-variation",
            f"{out} holds another comparison: only one of the two varies "
            + join_words(sorted(old_keys ^ new_keys)),
            fix="choose another --out",
        )
    lists: dict[str, Any] = {}
    for name in ("methods", "noises", "seeds", "models"):
        lists[name] = tuple(dict.fromkeys((*getattr(earlier, name), *getattr(plan, name))))
    variation = {}
    for key, values in earlier.vary.items():
        variation[key] = unique_values(key, [*values, *plan.vary[key]])  # a value may be a list
    joint_plan = replace(
        plan,
        **lists,
        vary=variation,
        tree=merge(earlier.tree, plan.tree),
        ceiling=earlier.ceiling or plan.ceiling,
        clean=earlier.clean or plan.clean,
        title=plan.title or earlier.title,
        method_settings=merge(earlier.method_settings, plan.method_settings),
        is_timed=earlier.is_timed or plan.is_timed,
        labels={**earlier.labels, **plan.labels},
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


# key -> values, whose order is that of tables; a plan sorts the keys
Variation = Mapping[str, tuple[Any, ...]]

# keys that a comparison has other flags for
_OTHER_FLAGS = {
    "method": "--methods",
    "seed": "--seeds",
    "noise.spec": "--noise",
    "noise.oracle": "--ceiling",
    "track": "--track",
    "model.name": "--models",
    "model.frozen": "--models",
    "model.weights": "--models",
}


def parse_variation(items: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """The varied settings of --vary KEY=VALUE,VALUE items, each key once."""
    variation: dict[str, tuple[Any, ...]] = {}
    for item in items:
        key, sign, text = item.partition("=")
        key = key.strip()
        values = [part.strip() for part in text.split(",") if part.strip()]
        if not sign or not key or not values:
            raise ConfigError(
                "grid.invalid-variation",
                f"--vary {item!r} does not have the form section.key=value,value",
                fix="write for example --vary data.sites=4,10,20",
            )
        if key in variation:
            raise ConfigError(
                "grid.repeated-variation",
                f"--vary: {key} occurs twice",
                fix=f"write all values in one list: --vary {key}=VALUE,VALUE",
            )
        # in TOML syntax; a bare word is a string
        variation[key] = unique_values(key, [parse_set([f"v={part}"])["v"] for part in values])
    return variation


def unique_values(key: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """The values of a varied setting, each once."""
    unique: list[Any] = []
    for value in values:
        if value not in unique:
            unique.append(value)
    if not unique:
        raise ConfigError(
            "grid.empty-variation",
            f"{key} has no values to vary",
            fix="give at least one value",
        )
    _refuse_similar(f"--vary {key}", [setting_value(value) for value in unique])
    return tuple(unique)


def check_variation(variation: Variation, tree: Tree) -> None:
    """Refuse keys that have a flag of their own, and keys that the shared settings also set."""
    for key in variation:
        if key in _OTHER_FLAGS:
            raise ConfigError(
                "grid.variation-has-a-flag",
                f"--vary cannot vary {key}",
                fix=f"use {_OTHER_FLAGS[key]}",
            )
        if any(name == key or name.startswith(f"{key}.") for name in flatten(dict(tree))):
            raise ConfigError(
                "grid.varied-and-set",
                f"{key} is both varied and set to one value",
                fix="leave one of the two out",
            )


def without_keys(tree: Tree, keys: Sequence[str]) -> Tree:
    """The tree without some dotted keys."""
    for key in keys:
        section, _, name_below = key.partition(".")
        if not name_below:
            tree = {name: value for name, value in tree.items() if name != section}
        elif isinstance(tree.get(section), Mapping):
            tree = {**tree, section: without_keys(tree[section], [name_below])}
    return tree
