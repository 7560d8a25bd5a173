"""From a configuration to the method that an engine runs: with or without evidence heads."""

from __future__ import annotations

from fedgsca.config import Config
from fedgsca.methods.base import Method, make_method


def compose_method(config: Config) -> Method:
    """The configured method, with evidence heads beside it unless they are off.

    Under `privacy` they are off: four heads and class masses per round would need noise of their
    own, which would leave nothing of the evidence.
    """
    method = make_method(config.method, config.options, config.train.rounds)
    collection_rounds = config.evidence.collection_rounds(config.train.rounds)
    if config.privacy is not None or not collection_rounds:
        return method
    from fedgsca.methods.parts.evidence_heads import add_evidence_heads

    # a site that is asked for the first time after the heads' training still needs them
    keeps_heads = config.federation.is_partial
    return add_evidence_heads(
        method, collection_rounds, config.evidence.holdout, keeps_heads=keeps_heads
    )
