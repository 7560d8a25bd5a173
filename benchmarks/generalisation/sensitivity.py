"""Does a conclusion depend on a constant? Each one halved and doubled, on a few settings.

The list is not written down: constants of the modules in constants.MODULES, numeric options of
FedGSCA and of the evidence heads are found by looking. Values outside an option's bounds are moved
to the bound. Every variant of a constant runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from benchmarks.generalisation.constants import MODULES, list_constants
from benchmarks.generalisation.plan import (
    FROZEN,
    FULL,
    MIXED,
    OURS,
    QUICK,
    SEEDS,
    Cell,
    Setting,
    default_lr,
    find_datasets,
)
from benchmarks.generalisation.results import CellResult, ResultFolder
from fedgsca.config import EvidenceConfig
from fedgsca.methods.base import load_methods
from fedgsca.support.files import write_atomic

DEFAULT = "default"


@dataclass(frozen=True)
class Variant:
    """One constant or option with another value; the default has no name."""

    name: str = ""
    value: float | int = 0
    default: float | int = 0
    is_constant: bool = False

    @property
    def folder(self) -> str:
        return f"{self.name}={self.value:g}" if self.name else DEFAULT

    def arguments(self) -> list[str]:
        """For the command line of the suite."""
        if not self.name:
            return []
        return ["--constant" if self.is_constant else "--set", f"{self.name}={self.value!r}"]


def half_and_double(
    value: float | int, low: float | None = None, high: float | None = None
) -> list[float | int]:
    """Half and twice the value, within bounds, as the same type; without the value itself."""
    values: list[float | int] = []
    for factor in (0.5, 2.0):
        other = value * factor
        if low is not None:
            other = max(other, low)
        if high is not None:
            other = min(other, high)
        if isinstance(value, int):
            other = round(other)
        if other != value and other not in values:
            values.append(other)
    return values


def option_bounds(model: type[BaseModel], name: str) -> tuple[float | None, float | None]:
    """Lowest and highest value of a field; an open bound is approached to a hundredth."""
    low: float | None = None
    high: float | None = None
    for rule in model.model_fields[name].metadata:
        low = getattr(rule, "ge", low)
        high = getattr(rule, "le", high)
        if getattr(rule, "lt", None) is not None:
            high = rule.lt - 0.01
    return low, high


def option_variants(model: type[BaseModel], prefix: str) -> Iterator[Variant]:
    """Variants of all numeric options of a section and of the sections in it."""
    for name, information in model.model_fields.items():
        value = information.default
        key = f"{prefix}.{name}"
        if isinstance(value, BaseModel):
            yield from option_variants(type(value), key)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            for other in half_and_double(value, *option_bounds(model, name)):
                yield Variant(key, other, value)


def list_variants() -> list[Variant]:
    """The default, then all variants of constants and options."""
    variants = [Variant()]
    for module in MODULES:
        for name, value in list_constants(module).items():
            for other in half_and_double(value):
                variants.append(Variant(name, other, value, is_constant=True))
    variants += option_variants(EvidenceConfig, "evidence")
    variants += option_variants(load_methods()[OURS].Options, OURS)
    return variants


def sensitivity_settings(names: Sequence[str]) -> list[Setting]:
    """Few settings that differ: skin with mixed noise, a hard long tail with uniform noise."""
    candidates = [
        Setting("ham10000", FROZEN, MIXED, "stratified"),
        Setting("built-in-long-tail", FROZEN, "S40", "stratified"),
        Setting("tiny", FROZEN, MIXED, "stratified"),
    ]
    return [setting for setting in candidates if setting.data in names]


@dataclass(frozen=True)
class Effect:
    """Means over the settings; shares between 0 and 1."""

    f1: float
    auroc: float
    precision: float
    # mean distance of the estimated from the true share of wrong labels
    count_error: float


def measure_effect(results: Sequence[CellResult]) -> Effect:
    """The four numbers of a variant."""
    audits: list[Any] = []
    for result in results:
        audits += result.sites
    noisy_sites = [audit for audit in audits if audit.wrong]
    gaps = [abs(audit.estimate - audit.wrong) / audit.labels for audit in audits]
    return Effect(
        f1=float(np.mean([result.f1 for result in results])),
        auroc=float(np.mean([audit.auroc for audit in noisy_sites])),
        precision=float(np.mean([audit.precision for audit in noisy_sites])),
        count_error=float(np.mean(gaps)),
    )


def sensitivity_table(effects: Mapping[Variant, Effect]) -> list[str]:
    """A line per variant: values, and differences to the default."""
    base = effects[Variant()]
    lines = [
        "| constant or option | default | tried | F1 | AUROC | precision | error of the count |",
        "|---" * 7 + "|",
        f"| (default) | | | {base.f1:.1f} | {base.auroc:.3f} | {base.precision:.3f} "
        f"| {base.count_error:.3f} |",
    ]
    for variant, effect in effects.items():
        if variant.name:
            lines.append(
                f"| `{variant.name}` | {variant.default:g} | {variant.value:g} "
                f"| {effect.f1 - base.f1:+.1f} | {effect.auroc - base.auroc:+.3f} "
                f"| {effect.precision - base.precision:+.3f} "
                f"| {effect.count_error - base.count_error:+.3f} |"
            )
    return lines


def run_sensitivity(options: argparse.Namespace) -> None:
    """The study "sensitivity"; --only NAME restricts it to constants whose names contain NAME."""
    folder = options.out / "sensitivity"
    datasets = find_datasets(
        options.part, pathmnist=options.pathmnist, ham=options.ham, quick=options.quick
    )
    settings = sensitivity_settings([dataset.name for dataset in datasets])
    size = QUICK if options.quick else FULL
    seeds = SEEDS[options.part][:1]
    cells = []
    for setting in settings:
        cells += [Cell(setting, OURS, default_lr(setting.model), seed) for seed in seeds]
    effects: dict[Variant, Effect] = {}
    variants = list_variants()
    print(f"{len(variants)} variants in {len(settings)} settings, rounds: {size.rounds[FROZEN]}")
    for variant in variants:
        is_chosen = not options.only or any(text in variant.name for text in options.only)
        if variant.name and not is_chosen:
            continue
        place = folder / variant.folder
        results = _finished_results(place, options.part, cells)
        if results is None:
            _run_variant(variant, cells, place, options)
            results = _finished_results(place, options.part, cells)
        assert results is not None
        effects[variant] = measure_effect(results)
        text = "\n".join(sensitivity_table(effects)) + "\n"
        write_atomic(folder / "table.md", text.encode())
        write_atomic(folder / "settings.json", json.dumps([cell.name for cell in cells]).encode())
        print(text.splitlines()[-1], flush=True)


def _finished_results(place: Path, part: str, cells: Sequence[Cell]) -> list[CellResult] | None:
    results = ResultFolder(place / part).read_all(cells)
    return results if len(results) == len(cells) else None


def _run_variant(
    variant: Variant, cells: Sequence[Cell], place: Path, options: argparse.Namespace
) -> None:
    """The runs of a variant, in a process of their own."""
    command = [sys.executable, "-m", "benchmarks.generalisation", "--out", str(place)]
    command += ["--part", options.part, *variant.arguments()]
    for flag, path in (("--pathmnist", options.pathmnist), ("--ham", options.ham)):
        command += [flag, str(path)] if path is not None else []
    command += ["--quick"] if options.quick else []
    names = ",".join(cell.name for cell in cells)
    subprocess.run([*command, "--only", f"name={names}"], check=True, stdout=subprocess.DEVNULL)
