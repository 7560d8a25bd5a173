"""What the parties of a deployment see of an experiment.

The coordinator knows the names of sites and classes, and perhaps a test set of its own. A site has its own images and nothing else.
In a rehearsal everybody can read the shared source of the configuration: then the parties see what a simulation sees.
"""

from __future__ import annotations

from pathlib import Path

from fedgsca.config import SITES_SOURCE, Config
from fedgsca.data.align_classes import with_classes
from fedgsca.data.partition import leakage
from fedgsca.data.table import Table, empty
from fedgsca.errors import ConfigError
from fedgsca.experiment.simulation import Experiment, held_out, prepare, read_source, sampler, width
from fedgsca.noise import SiteNoise
from fedgsca.site import Samples


def prepare_coordinator(config: Config) -> Experiment:
    """What the coordinator of a deployment has: names, and the test images of its own if `federation.test` says where they are."""
    data, names = config.data, config.federation.sites
    if data.source != SITES_SOURCE:
        return prepare(config)
    missing = {
        "data.classes": data.classes,
        "data.image_size": data.image_size,
        "federation.sites": names,
    }
    problems = [f"{key} is not set" for key, value in missing.items() if value is None]
    problems += [f"{key} has a name twice" for key, value in (("data.classes", data.classes), ("federation.sites", names))
                 if value and len(set(value)) < len(value)]  # fmt: skip
    problems += (
        ["noise is for simulations"] if config.noise.model_dump(exclude_defaults=True) else []
    )
    if problems or data.classes is None or data.image_size is None or names is None:
        raise ConfigError(
            "todo.deployment-1",
            "data.source is 'sites', but " + "; ".join(problems),
            fix="the coordinator decides these for all sites: set them",
        )
    table, apart = (
        empty("the sites' own images", data.classes, data.image_size),
        dict[str, Samples | None](),
    )
    if config.federation.test is not None:
        table = with_classes(read_source(config, config.federation.test), data.classes)
        apart = held_out(table, sampler(config, table))
    return Experiment(
        config=config,
        table=table,
        names=tuple(sorted(names)),
        rows={},
        sites={},
        truth={},
        noise={},
        test=apart.get("test"),
        val=apart.get("val"),
        feature_width=width(config),
        warnings=table.notes,
    )


def site_table(config: Config, source: str, labels: Path | None = None) -> Table:
    """A site's own images with its own labels, numbered as the consortium numbers the classes."""
    table = read_source(config, source, labels=labels, need_test=False)
    return table if config.data.classes is None else with_classes(table, config.data.classes)


def prepare_site(config: Config, name: str, source: str, labels: Path | None = None) -> Experiment:
    """What one site of a deployment has."""
    table = site_table(config, source, labels)
    samples, rows = sampler(config, table), table.rows("train")
    return Experiment(
        config=config,
        table=table,
        names=tuple(sorted(config.federation.sites or (name,))),
        rows={name: rows},
        sites={name: samples(rows, table.trained_on[rows])},
        truth={},
        noise={name: SiteNoise("none", 0.0)},
        **held_out(table, samples),
        feature_width=width(config),
        warnings=(*table.notes, *leakage(table)),
    )
