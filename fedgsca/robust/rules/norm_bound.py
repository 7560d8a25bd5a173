"""Norm bound (Sun et al., "Can You Really Backdoor Federated Learning?", 2019).

A change whose L2 norm is above `bound` times the usual one is scaled down to it. Updates stream:
one at a time is in memory, except in the first round, in which the usual norm is not known yet.
"""

from __future__ import annotations

from fedgsca.robust.base import Rule, register_rule


@register_rule
class NormBoundRule(Rule):
    """See the text of this module."""

    name = "norm-bound"
    description = "larger changes are scaled down to `bound` times the usual norm"
    needs_level = True

    def bound_change(self, norm: float, level: float) -> float:
        """bound * level / norm, at most 1."""
        limit = self.settings.bound * level
        return 1.0 if norm <= limit or norm == 0.0 else limit / norm
