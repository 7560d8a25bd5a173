"""The numbers of a round under the names that trackers show."""

from __future__ import annotations

from collections.abc import Mapping

from fedgsca.federation.records import RoundRecord, SiteRecord, finite
from fedgsca.lab.tracking.base import safe_name

# fields of RoundRecord -> names; a slash makes a group in both tools
_SCORES = {
    "f1": "test/f1",
    "recall": "test/recall",
    "precision": "test/precision",
    "loss": "test/loss",
    "val_f1": "val/f1",
    "expected_f1": "holdout/expected_f1",
    "lr": "train/lr",
    "stability": "train/stability",
    "bytes_up": "traffic/bytes_up",
    "bytes_down": "traffic/bytes_down",
}
_MAX_ITEMS = 16  # of a list that a site sends, such as one threshold per class


def round_values(record: RoundRecord) -> dict[str, float]:
    """All finite numbers of a round: scores, traffic, and what every site reported."""
    values: dict[str, float] = {}
    for field_name, name in _SCORES.items():
        value = finite(getattr(record, field_name))
        if value is not None:
            values[name] = value
    values["sites/answered"] = float(len(record.sites))
    values["sites/refused"] = float(len(record.refusals))
    if record.privacy is not None:
        values["privacy/epsilon"] = record.privacy.epsilon
    for site, site_record in record.sites.items():
        values |= _site_values(site, site_record)
    for site in record.refusals:
        values[safe_name(f"site/{site}/refused")] = 1.0
    return values


def _site_values(site: str, record: SiteRecord) -> Mapping[str, float]:
    values: dict[str, float] = {}
    for name in record.values:
        key = safe_name(f"site/{site}/{name}")
        number = record.number(name)
        if number is not None:
            values[key] = number
            continue
        items = record.numbers(name)
        if len(items) <= _MAX_ITEMS:
            for i, item in enumerate(items):
                if item is not None:
                    values[f"{key}/{i}"] = item
    return values
