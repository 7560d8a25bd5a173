"""From a configuration to sites with data: load, split among sites, inject noise, compute frozen features.

Deterministic and cached, so that a worker process or a resumed run calls it again and gets the same sites. Truth is kept apart from
the sites: only metrics read it.

This is the view of a simulation, which has everything on one machine. views.py has those of a deployment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.config import SITES_SOURCE, Config
from fedgsca.data.cache import cached_array
from fedgsca.data.file_facts import sha256_file
from fedgsca.data.load import load
from fedgsca.data.partition import describe, leakage, partition
from fedgsca.data.table import Table
from fedgsca.errors import ConfigError
from fedgsca.noise import SiteNoise, corrupt, corrupt_with, parse_noise
from fedgsca.noise import candidates as candidate_tables
from fedgsca.noise.label_files import read_given, read_matrix
from fedgsca.rng import stream
from fedgsca.site import Samples


@dataclass(frozen=True)
class Experiment:
    """Everything an engine needs to run; nothing here depends on the method."""

    config: Config
    table: Table
    names: tuple[str, ...]  # all sites of the experiment
    rows: Mapping[str, np.ndarray]  # site -> table rows
    sites: Mapping[str, Samples]  # given labels, of the sites whose data is on this machine
    truth: Mapping[str, np.ndarray]  # site -> true labels; empty where no noise was injected
    noise: Mapping[str, SiteNoise]
    test: Samples | None  # None: a coordinator without images, or a hospital that only trains
    val: Samples | None
    feature_width: int
    warnings: tuple[str, ...] = field(default=())

    def signature(self) -> str:
        """Names everything the sites start from: images, who holds which, the given labels, the weights file."""
        sha = hashlib.sha256(self.table.fingerprint.encode())
        for name in sorted(set(self.names) - set(self.sites)):
            sha.update(f"{name}\0elsewhere".encode())
        for name in sorted(self.sites):
            sha.update("\0".join([name, *map(str, self.table.ids[self.rows[name]])]).encode())
            sha.update(self.sites[name].labels.tobytes())
        path = weights_path(self.config)
        sha.update(path.read_bytes() if path is not None and path.is_file() else b"")
        return sha.hexdigest()

    @property
    def dims(self) -> dict[str, int]:
        """What the symbols of a wire declaration stand for."""
        return {"C": self.table.num_classes, "D": self.feature_width, "K": len(self.names)}


def load_table(config: Config) -> Table:
    """The images and labels that the configuration names, before they are divided among sites."""
    data = config.data
    if data.source == SITES_SOURCE:
        raise ConfigError(
            "todo.simulation-1",
            "data.source is 'sites': every site has its own images, so there is nothing to simulate here",
            fix="run it as a deployment (docs/deployment.md), or name a data source with --data",
        )
    labels = Path(data.labels) if data.labels else None
    seed = config.seed if data.source != "synthetic" else 0
    return read_source(
        config, data.source, seed=seed, labels=labels, train=data.train, test=data.test
    )


def read_source(config: Config, source: str, **more: Any) -> Table:
    """A source read as the configuration says: the size, unreadable files, which split and labels of a published data set.

    `more` is what differs between those who read: see fedgsca.data.load.load.
    """
    data = config.data
    return load(
        source,
        image_size=data.image_size,
        skip_unreadable=data.skip_unreadable,
        split=data.split,
        label=data.label,
        splits=data.splits,
        **{"seed": config.seed, **more},
    )


@dataclass(frozen=True)
class Division:
    """Who holds which images under which labels; no pixel has been touched yet."""

    table: Table
    rows: Mapping[str, np.ndarray]  # site -> table rows
    given: Mapping[str, np.ndarray]  # site -> given labels
    noise: Mapping[str, SiteNoise]
    warnings: tuple[str, ...]

    @property
    def truth(self) -> dict[str, np.ndarray]:
        """site -> true labels; empty where no noise was injected."""
        noisy = any(n.kind != "none" for n in self.noise.values())
        return (
            {name: self.table.labels[which] for name, which in self.rows.items()} if noisy else {}
        )


def divide(config: Config) -> Division:
    """Load, split among sites, inject noise."""
    data, table = config.data, load_table(config)
    # corrected labels move no image to another site: divided by the labels of the source, so that before and after compare
    source = (
        table
        if table.replaced is None or table.given is not None
        else replace(table, labels=table.replaced)
    )
    rows = partition(
        source,
        sites=0 if data.partition == "column" else data.sites,
        scheme=data.partition,
        alpha=data.alpha,
        seed=config.seed,
    )
    warnings = [*table.notes, *leakage(table), *describe(table, rows)]
    if table.site is not None and data.partition != "column":
        warnings.append(
            "the source says which hospital each image is from; --partition column makes those the sites"
        )
    noise, given, said = _inject(config, table, rows)
    warnings += said
    if data.labels and any(n.kind not in ("none", "F") for n in noise.values()):
        warnings.append(
            f"noise {config.noise.spec} is injected into the labels of {Path(data.labels).name}"
        )
    if config.noise.oracle:  # the ceiling: somebody told every site which of its labels are wrong
        right = {name: given[name] == table.labels[which] for name, which in rows.items()}
        rows = {name: which[right[name]] for name, which in rows.items()}
        given = {name: labels[right[name]] for name, labels in given.items()}
    return Division(table, rows, given, noise, tuple(warnings))


def prepare(config: Config, only: str | None = None) -> Experiment:
    """All sites on this machine. `only`: leave the samples of the other sites and the test images where they are."""
    division = divide(config)
    table, rows, given = division.table, division.rows, division.given
    samples = sampler(config, table)
    apart = held_out(table, samples) if only is None else {"test": None, "val": None}
    if only is None and apart["test"] is None:
        raise ConfigError(
            "todo.simulation-2",
            f"{table.name} has no test split",
            fix="add a split column, or let the reader make one",
        )
    return Experiment(
        config=config,
        table=table,
        names=tuple(rows),
        rows=rows,
        sites={
            name: samples(which, given[name])
            for name, which in rows.items()
            if only in (None, name)
        },
        truth=division.truth,
        noise=division.noise,
        **apart,
        feature_width=width(config),
        warnings=division.warnings,
    )


def width(config: Config) -> int:
    from fedgsca.models.build import feature_width

    return feature_width(config.model.name)


Sampler = Callable[[np.ndarray, np.ndarray], Samples]  # table rows, labels -> samples


def sampler(config: Config, table: Table) -> Sampler:
    from fedgsca.models.build import spec_of

    spec = spec_of(config.model.name)
    inputs = frozen_features(config, table) if config.model.frozen else table.images

    def samples(which: np.ndarray, labels: np.ndarray) -> Samples:
        # a contiguous copy for features (small); images stay in the memory map and are gathered per batch
        return Samples(
            _Rows(inputs, which).materialise(),
            labels.astype(np.int64),
            table.num_classes,
            spec.mean,
            spec.std,
        )

    return samples


def held_out(table: Table, samples: Sampler) -> dict[str, Samples | None]:
    found = {split: table.rows(split) for split in ("test", "val")}
    return {
        split: samples(rows, table.labels[rows]) if len(rows) else None
        for split, rows in found.items()
    }


@dataclass(frozen=True)
class _Rows:
    """Rows of a large array: copied into memory when small (fast), gathered lazily from the memory map when large."""

    source: np.ndarray
    rows: np.ndarray

    def materialise(self, limit: int = 1 << 30) -> np.ndarray:
        per_row = int(np.prod(self.source.shape[1:])) * self.source.dtype.itemsize
        if len(self.rows) * per_row <= limit:
            return np.ascontiguousarray(self.source[self.rows])
        return RowView(self.source, self.rows)  # type: ignore[return-value]


class RowView:
    """The part of an array's interface that training needs, without copying the rows: shape, ndim and gathering."""

    def __init__(self, source: np.ndarray, rows: np.ndarray) -> None:
        self._source, self._rows = source, rows
        self.shape = (len(rows), *source.shape[1:])
        self.ndim, self.dtype = source.ndim, source.dtype

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        return np.asarray(self._source[self._rows[index]])


def _inject(
    config: Config, table: Table, rows: Mapping[str, np.ndarray]
) -> tuple[dict[str, SiteNoise], dict[str, np.ndarray], list[str]]:
    """Given labels of every site. The stream is addressed by site name: adding a site changes no other site's noise."""
    names = list(rows)
    noise = dict(zip(names, parse_noise(config.noise.spec, len(names)), strict=True))
    if table.given is not None:
        if config.noise.given or any(n.kind != "none" for n in noise.values()):
            raise ConfigError(
                "todo.simulation-3",
                f"the labels of {table.name} are wrong in places already (data.label): no noise can be added to them",
                fix="leave noise.spec at 0 and noise.given out, or choose another data.label: clean, majority or released",
            )
        return *_from_file(table, table.given, rows), []
    said: list[str] = []
    table_of_candidates = None
    if any(n.kind == "C" for n in noise.values()):
        table_of_candidates, where = find_candidates(config, table)
        said.append(f"CK-asymmetric candidates: {where}")
    matrix = read_matrix(config.noise.matrix, table.num_classes) if config.noise.matrix else None
    given = {}
    for name, which in rows.items():
        rng = stream(config.seed, "noise", name)
        if noise[name].kind == "M":
            if matrix is None:
                raise ConfigError(
                    "todo.simulation-4",
                    f"{name} has noise M but no matrix was given",
                    fix="--set noise.matrix=matrix.csv",
                )
            given[name] = corrupt_with(table.labels[which], matrix, rng)
        else:
            given[name] = corrupt(
                table.labels[which],
                noise[name],
                num_classes=table.num_classes,
                candidates=table_of_candidates,
                rng=rng,
            )
    if config.noise.given:
        if any(n.kind != "none" for n in noise.values()):
            raise ConfigError(
                "todo.simulation-5",
                "noise.given and noise.spec are both set",
                fix="leave noise.spec at 0: the file has the labels as given",
            )
        replaced = read_given(Path(config.noise.given), table.ids, table.classes, table.labels)
        noise, given = _from_file(table, replaced, rows)
    return noise, given, said


def _from_file(
    table: Table, labels: np.ndarray, rows: Mapping[str, np.ndarray]
) -> tuple[dict[str, SiteNoise], dict[str, np.ndarray]]:
    """Labels that were not drawn here: who holds which of them, and how often they differ from the table's."""
    given = {name: labels[which] for name, which in rows.items()}
    noise = {
        name: SiteNoise("F", float(np.mean(given[name] != table.labels[which])))
        for name, which in rows.items()
    }
    return noise, given


def find_candidates(config: Config, table: Table) -> tuple[dict[int, tuple[int, ...]], str]:
    """Misdiagnosis candidates from a file, a known table, or class similarity; and which of them it was."""
    if config.noise.candidates not in ("auto", "features"):
        return candidate_tables.from_file(
            Path(config.noise.candidates), table.classes
        ), f"from {config.noise.candidates}"
    known = candidate_tables.table_for(table.classes)
    if known is not None:
        return known, "the built-in table for these classes"
    train = table.rows("train")
    if config.noise.candidates == "features":
        if not config.model.frozen:
            raise ConfigError(
                "todo.simulation-6",
                "noise.candidates=features needs a frozen network: only that has features before training",
                fix="add --frozen, or leave noise.candidates at auto, which compares the images",
            )
        features = frozen_features(config, table)[train]
        found = candidate_tables.by_features(features, table.labels[train], table.num_classes)
        return (
            found,
            f"the two most similar classes, measured on clean {config.model.name} features",
        )
    train = np.concatenate(
        [train[table.labels[train] == c][:200] for c in range(table.num_classes)]
    )
    found = candidate_tables.by_similarity(
        table.images[train], table.labels[train], table.num_classes
    )
    return found, "the two most similar classes, measured on the clean images"


def frozen_features(config: Config, table: Table) -> np.ndarray:
    """Backbone features of every image, once, cached by content of images and weights."""
    from fedgsca.models.build import build_backbone, spec_of
    from fedgsca.models.features import extract
    from fedgsca.models.weights import load_backbone

    path = weights_path(config)
    if path is None:
        raise ConfigError(
            "todo.simulation-7",
            f"a frozen {config.model.name} without weights would give random features",
            fix="--set model.weights=FILE, or use model.name=efficientnet-lite0 with its packaged weights",
        )
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else str(path)
    size = config.model.feature_size
    key = hashlib.sha256(
        f"features-2|{table.fingerprint}|{config.model.name}|{digest}|{size}".encode()
    ).hexdigest()

    def fill(out: np.ndarray) -> None:
        backbone = build_backbone(config.model.name, seed=config.seed)
        load_backbone(backbone, path)
        extract(backbone, spec_of(config.model.name), table.images, size, out)

    return cached_array(key, (len(table), spec_of(config.model.name).width), np.float32, fill)


def weights_digest(config: Config) -> str | None:
    """sha256 of the weights file that the model starts from."""
    path = weights_path(config)
    return sha256_file(path) if path is not None and path.is_file() else None


def weights_path(config: Config) -> Path | None:
    if config.model.weights == "packaged":
        from fedgsca.models.efficientnet import packaged_weights

        if config.model.name != "efficientnet-lite0":
            raise ConfigError(
                "todo.simulation-8",
                f"no weights are packaged for {config.model.name}",
                fix="--set model.weights=FILE",
            )
        return packaged_weights()
    return Path(config.model.weights).expanduser() if config.model.weights else None
