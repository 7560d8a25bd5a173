"""The views that the parties of a deployment have of an experiment.

The coordinator knows the names of sites and classes, and perhaps has test images of its own. A site
has its own images and nothing else. In a rehearsal everybody can read the shared source of the
configuration: then the parties see what a simulation sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedgsca.config import OWN_FEATURES, SITES_SOURCE, Config
from fedgsca.data.class_names import align_classes, order_classes
from fedgsca.data.partition import leakage_warnings
from fedgsca.data.table import ImageTable, empty_table
from fedgsca.errors import ClassListError, ConfigError, ConfigProblem
from fedgsca.federation.data_source import read_source
from fedgsca.federation.samples import make_sampler, split_samples
from fedgsca.federation.simulation import Experiment, check_model, feature_width_of, prepare
from fedgsca.federation.site_rows import keep_split
from fedgsca.noise import CLEAN
from fedgsca.support.text import did_you_mean


def prepare_coordinator(config: Config) -> Experiment:
    """The coordinator's view: names, and the test images of `federation.test`, if it is set."""
    data, names = config.data, config.federation.sites
    if data.source != SITES_SOURCE:
        return prepare(config)
    problems = _deployment_problems(config)
    if problems or data.classes is None or names is None:
        raise ConfigError(
            "deploy.invalid-configuration",
            "data.source is 'sites', but the configuration does not fit a deployment:",
            fix="correct these keys: the coordinator decides them for all sites",
            problems=problems,
        )
    table = empty_table("the sites' own images", data.classes, data.image_size or 0)
    table = _with_order(config, table)
    check_model(config, table)
    test = val = None
    if config.federation.test is not None:
        table = align_classes(read_source(config, config.federation.test), data.classes)
        table = _with_order(config, table)
        sampler = make_sampler(config, table)
        test = split_samples(table, "test", sampler)
        val = split_samples(table, "val", sampler)
    return Experiment(
        config=config,
        table=table,
        names=tuple(sorted(names)),
        test=test,
        val=val,
        feature_width=feature_width_of(config, table),
        warnings=table.notes,
    )


def _deployment_problems(config: Config) -> list[ConfigProblem]:
    """What the configuration lacks, or must not have, when every site has its own images."""
    classes, sites = config.data.classes, config.federation.sites
    keys: dict[str, object] = {
        "data.classes": classes,
        "federation.sites": sites,
    }
    if config.model.name == OWN_FEATURES:
        keys["model.feature_width"] = config.model.feature_width
    else:
        keys["data.image_size"] = config.data.image_size
    problems = []
    for key, value in keys.items():
        if value is None:
            problems.append(ConfigProblem("deploy.missing-key", f"{key} is not set"))
    for key, names in (("data.classes", classes), ("federation.sites", sites)):
        if names and len(set(names)) < len(names):
            message = f"{key} contains a name twice"
            problems.append(ConfigProblem("deploy.duplicate-name", message))
    if config.noise.model_dump(exclude_defaults=True) or config.data.shift != "none":
        message = "noise or data.shift is set, but they are only for simulations"
        problems.append(ConfigProblem("deploy.noise-in-deployment", message))
    return problems


def site_table(
    config: Config,
    source: str,
    labels: Path | None = None,
    class_names: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> ImageTable:
    """A site's own images and labels, with the class numbers of the consortium.

    `class_names` translates the site's own class names into those of the consortium. `folder` is
    that of the site's memory: in a study that has begun, images stay in their splits.
    """
    if config.data.classes is not None and class_names:
        _check_targets(class_names, config.data.classes)
        # the consortium's own names need no line in [classes]
        class_names = {**{name: name for name in config.data.classes}, **class_names}
    table = read_source(config, source, labels=labels, need_test=False, class_names=class_names)
    if config.data.classes is not None:
        table = _with_order(config, align_classes(table, config.data.classes))
    return keep_split(table, folder, config.data.test_share, config.seed)


def _with_order(config: Config, table: ImageTable) -> ImageTable:
    """The classes of the consortium with its grades first; without an order as they are.

    A hospital's own order must not change the numbers of the classes.
    """
    return order_classes(table, config.data.order) if config.data.order else table


def _check_targets(class_names: Mapping[str, str], classes: Sequence[str]) -> None:
    for own_name, name in class_names.items():
        if name not in classes:
            raise ClassListError(
                "site.unknown-class-name",
                f"[classes] in site.toml gives {own_name!r} the name {name!r}, which is not a class"
                " of the consortium",
                fix=f"{did_you_mean(name, classes)}use one of: {', '.join(classes)}",
            )


def prepare_site(
    config: Config,
    name: str,
    source: str,
    labels: Path | None = None,
    class_names: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Experiment:
    """The view of one site of a deployment; `folder` is that of its memory."""
    table = site_table(config, source, labels, class_names, folder)
    check_model(config, table)
    sampler = make_sampler(config, table)
    rows = table.rows("train")
    return Experiment(
        config=config,
        table=table,
        names=tuple(sorted(config.federation.sites or (name,))),
        rows={name: rows},
        sites={name: sampler(rows, table.trained_on[rows])},
        noise={name: CLEAN},
        test=split_samples(table, "test", sampler),
        val=split_samples(table, "val", sampler),
        feature_width=feature_width_of(config, table),
        warnings=(*table.notes, *leakage_warnings(table)),
    )
