"""The method's own weighted mean: no rule at all."""

from __future__ import annotations

from fedgsca.robust.base import Rule, register_rule


@register_rule
class MeanRule(Rule):
    """See the text of this module."""

    name = "mean"
    description = "the method's own weighted mean"
