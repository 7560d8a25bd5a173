"""What the study of constants varies: half and twice each one, the most important first.

A constant belongs to fedgsca.evidence and takes a process of its own. An option belongs to FedGSCA
or is the learning rate; neither changes the evidence, so all of them share one process. Where half
or twice the value makes no sense (a share above 1), a value within the bounds is named instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MODULE = "fedgsca.evidence"
LEARNING_RATE = "train.lr"
Value = int | float | tuple[float, ...]

# name -> (half, twice)
CONSTANTS: Mapping[str, tuple[Value, Value]] = {
    "BALANCE": (0.25, 1.0),
    "STEP": (3.2, 12.8),
    "ROW_PRIOR": (10.0, 40.0),
    "NUM_HEADS": (2, 8),
    "MAX_DECLINE": (0.01, 0.04),
    "MIX_PRIOR": (5.0, 20.0),
    "MIN_USEFUL": (0.005, 0.02),
    # beyond 1 a rate has no meaning
    "MAX_RATE": (0.3, 0.9),
    "EM_STEPS": (20, 80),
    "START_RATE": (0.05, 0.2),
    "MAX_WEIGHT": (5.0, 20.0),
    # with four sites only the first matters
    "FEW_SITES": (2, 8),
    "MANY_SITES": (50, 200),
}
# options of FedGSCA, separated by commas where they belong together -> (half, twice)
OPTIONS: Mapping[str, tuple[Value, Value]] = {
    # a decade, because nobody can tune it without clean labels
    LEARNING_RATE: (0.005, 0.5),
    "noise_level": (0.05, 0.2),
    # probabilities: twice the value is cut at a bound; with beta = 1 no class joins the credal set
    "zeta": (0.4, 0.9),
    "alpha": (0.025, 0.1),
    "beta_start,beta_end": ((0.375, 0.275), (1.0, 1.0)),
}


@dataclass(frozen=True)
class Variant:
    """One constant or option with another value; the default has no name."""

    name: str = ""
    value: Value = 0

    @property
    def is_constant(self) -> bool:
        return self.name in CONSTANTS

    @property
    def folder(self) -> str:
        """The name of its folder, and of its row in the table."""
        return f"{self.name}={format_value(self.value)}" if self.name else "default"

    def option_values(self) -> dict[str, Value]:
        """Changed options of FedGSCA."""
        if self.name in ("", LEARNING_RATE) or self.is_constant:
            return {}
        names = self.name.split(",")
        if len(names) == 1:
            return {self.name: self.value}
        assert isinstance(self.value, tuple)
        return dict(zip(names, self.value, strict=True))


def format_value(value: Value) -> str:
    """As in the table: 0.5, or 10-20 for two numbers that belong together."""
    if isinstance(value, tuple):
        return "-".join(f"{number:g}" for number in value)
    return f"{value:g}"


DEFAULT = Variant()


def list_option_variants() -> list[Variant]:
    """All variants that need no process of their own, the default first."""
    variants = [DEFAULT]
    for name, values in OPTIONS.items():
        variants += [Variant(name, value) for value in values]
    return variants


def list_constant_variants() -> list[Variant]:
    """All variants that need a process of their own."""
    variants = []
    for name, values in CONSTANTS.items():
        variants += [Variant(name, value) for value in values]
    return variants
