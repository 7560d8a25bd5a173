"""compare.json and paired.json: the runs of a comparison, and what their differences say.

Scores are percentages, as in a run folder (fedgsca.federation.records).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedgsca.support.json_record import Record


@dataclass(frozen=True)
class PairedDifference(Record):
    """Macro F1 of a method minus that of its reference: the means that tables print, in points.

    The interval is over the seeds that both have and over the test images (lab/statistic.py).
    Also the content of paired.json: a run on corrected labels and the run before it.
    """

    noise: str  # the condition; empty for two single runs
    method: str
    reference: str
    seeds: int
    images: int | None  # None: the runs have no probabilities of their test images
    points: float
    low: float | None = None  # of the 95 % interval
    high: float | None = None
    p: float | None = None  # of "no difference", corrected for the rows of the table (Holm)
    # share of the draws in which the difference is zero or has the other sign: the probability that
    # whoever claims a win is wrong
    reversal: float | None = None

    @property
    def is_clear(self) -> bool:
        """Whether the two can be told apart."""
        if self.p is None or self.low is None or self.high is None:
            return False
        return self.p < 0.05 and not self.low <= 0.0 <= self.high


@dataclass(frozen=True)
class ComparisonCell(Record):
    """One finished run of a comparison."""

    method: str
    label: str  # the method's name for people
    noise: str
    seed: int
    path: str  # relative to the comparison's folder
    f1: float
    recall: float
    precision: float
    best_f1: float
    seconds_per_round: float
    bytes_up: int | None
    bytes_down: int | None
    # of the last model, percent; None where the coordinator has no test images
    auroc: float | None = None
    average_precision: float | None = None
    ece: float | None = None
    # mean of the last five rounds that the evidence expects, without a true label (held-out images)
    expected_f1: float | None = None
    # share of the given labels that the method flagged as noisy, in the last round; None: no log
    flagged_labels: float | None = None
    # mean change of the weights at the sites over all rounds
    stability: float | None = None
    # seconds until FedAvg's best F1, and until 95 % of the ceiling; None: never, or not measured
    seconds_to_best: float | None = None
    seconds_to_goal: float | None = None
    # what touched this run, each a clause for a footnote
    notes: tuple[str, ...] = ()
    # the network, in a comparison of several
    model: str | None = None
    # the values of the settings that the comparison varies, by key
    settings: Mapping[str, Any] | None = None
    # class -> recall in the last round
    class_recall: Mapping[str, float] | None = None
    # where there are validation images: F1 on the test images in the round that early stopping on
    # them would have chosen
    stopped_f1: float | None = None
    # quadratic kappa in the last round, where classes have an order
    kappa: float | None = None

    @property
    def variant(self) -> ComparisonVariant:
        """The network and the varied settings of the run."""
        return ComparisonVariant(self.model, self.settings or {})

    @property
    def condition(self) -> str:
        """What methods are compared under: the noise and, where they vary, network and settings."""
        return self.variant.join(self.noise)


# varied settings that tables call by a shorter name than their key
SHORT_KEYS = {
    "data.sites": "sites",
    "data.partition": "partition",
    "federation.participation": "participation",
}


def setting_name(key: str) -> str:
    """The name of a varied setting in tables: "sites" for data.sites, else the key."""
    return SHORT_KEYS.get(key, key)


def setting_value(value: Any) -> str:
    """A value as one writes it after --vary KEY=."""
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class ComparisonVariant:
    """What a comparison varies beside method, noise and seed: the network, and any settings."""

    model: str | None = None
    # key -> value, such as {"data.sites": 10}
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """For people: "cnn, sites=10"; empty if nothing varies."""
        parts = [self.model] if self.model else []
        for key, value in self.settings.items():
            parts.append(f"{setting_name(key)}={setting_value(value)}")
        return ", ".join(parts)

    def join(self, noise: str) -> str:
        """The condition: the noise, and what varies beside it."""
        return f"{noise} with {self.text}" if self.text else noise


# of a run in a comparison that varies neither network nor settings
NO_VARIANT = ComparisonVariant()


@dataclass(frozen=True)
class PrintedScore(Record):
    """A number of a publication; the standard deviation over its seeds where it has one."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class PrintedNumbers(Record):
    """What a publication prints for the same comparison, to stand beside our numbers."""

    source: str  # such as "Table 4"
    # [method][noise][score]
    rows: Mapping[str, Mapping[str, Mapping[str, PrintedScore]]]


@dataclass(frozen=True)
class Comparison(Record):
    """Methods x noises x variants x seeds, as far as the runs are finished."""

    title: str
    data: str
    noises: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    cells: tuple[ComparisonCell, ...]
    # condition (the noise, with network and settings where they vary) -> seed -> F1 without the
    # wrong labels
    ceiling: Mapping[str, Mapping[str, float]]
    clean: Mapping[str, float] | None = None  # seed -> F1 of FedAvg without noise
    # to the reference, one for each other method and condition; None before tables are written
    differences: tuple[PairedDifference, ...] | None = None
    # condition -> the method that is better than every other one; conditions without one are absent
    winners: Mapping[str, str] | None = None
    # the method that the others are compared with; None: FedAvg, or else the first
    reference: str | None = None
    # what a publication prints for the same rows
    publication: PrintedNumbers | None = None
    # sentences about all tables, such as the scale of a reproduction
    notes: tuple[str, ...] = ()
    models: tuple[str, ...] | None = None  # networks, if there are several
    # settings that vary: key -> values
    vary: Mapping[str, tuple[Any, ...]] | None = None
    classes: tuple[str, ...] | None = None  # in the order of the data, of which JSON knows nothing

    @property
    def variants(self) -> list[ComparisonVariant]:
        """Every network with every combination of the varied settings, in the order of tables."""
        return all_variants(self.models or (), self.vary or {})

    @property
    def conditions(self) -> tuple[str, ...]:
        """Every noise with every variant, in the order of tables."""
        conditions = []
        for noise in self.noises:
            conditions += [variant.join(noise) for variant in self.variants]
        return tuple(conditions)


def all_variants(
    models: Sequence[str], vary: Mapping[str, Sequence[Any]]
) -> list[ComparisonVariant]:
    """Every network with every combination of settings; one empty variant if nothing varies."""
    variants = []
    for model in models or (None,):
        for values in itertools.product(*vary.values()):
            variants.append(ComparisonVariant(model, dict(zip(vary, values, strict=True))))
    return variants
