"""Settings that a comparison varies: the number of sites, the partition, or any other key.

Written as KEY=VALUE,VALUE,..., for example data.sites=4,10,20. Every combination of the values is a
condition of its own, with its own ranks and its own ceiling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedgsca.config import Tree, parse_set
from fedgsca.errors import ConfigError
from fedgsca.federation.records import setting_name, setting_value
from fedgsca.support.text import slug

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
    folders: dict[str, str] = {}
    for value in values:
        name = setting_value(value)
        if value not in unique:
            unique.append(value)
        earlier = folders.setdefault(slug(name), name)
        if earlier != name:  # their runs would share a folder
            raise ConfigError(
                "grid.similar-values",
                f"--vary {key}: {earlier} and {name} differ in punctuation only",
                fix="compare them in two comparisons",
            )
    if not unique:
        raise ConfigError(
            "grid.empty-variation",
            f"{key} has no values to vary",
            fix="give at least one value",
        )
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
        if has_key(tree, key):
            raise ConfigError(
                "grid.varied-and-set",
                f"{key} is both varied and set to one value",
                fix="leave one of the two out",
            )


def has_key(tree: Tree, key: str) -> bool:
    """Whether a tree sets a dotted key."""
    node: Any = tree
    for name in key.split("."):
        if not isinstance(node, Mapping) or name not in node:
            return False
        node = node[name]
    return True


def without_keys(tree: Tree, keys: Sequence[str]) -> Tree:
    """The tree without some dotted keys."""
    for key in keys:
        section, _, name_below = key.partition(".")
        if not name_below:
            tree = {name: value for name, value in tree.items() if name != section}
        elif isinstance(tree.get(section), Mapping):
            tree = {**tree, section: without_keys(tree[section], [name_below])}
    return tree


def folder_part(settings: Mapping[str, Any]) -> str:
    """The settings in the name of a run's folder: sites-10-participation-0.5."""
    parts = [f"{setting_name(key)}-{setting_value(value)}" for key, value in settings.items()]
    return slug("-".join(parts))


def join_variations(first: Variation, second: Variation) -> dict[str, tuple[Any, ...]]:
    """The values of both, for the same keys."""
    joint = {}
    for key, values in first.items():
        joint[key] = unique_values(key, [*values, *second[key]])  # a value may be a list
    return joint
