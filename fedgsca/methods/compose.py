"""From a configuration to the method that an engine runs: with or without evidence heads."""

from __future__ import annotations

from fedgsca.config import Config
from fedgsca.methods.base import Method, load_methods, make_method


def head_rounds(config: Config) -> range:
    """The rounds in which opinions of evidence heads are collected; empty: there are no heads.

    They run where something reads them: the method, an audit, or a score on held-out images. Under
    `privacy` they are off: four heads per round would need noise of their own,
    which would leave nothing of the evidence.
    """
    reads_evidence = load_methods()[config.method].reads_evidence
    is_wanted = reads_evidence or config.audit.enabled or config.evidence.holdout > 0
    if config.privacy is not None or not is_wanted:
        return range(0)
    return config.evidence.collection_rounds(config.train.rounds)


def compose_method(config: Config) -> Method:
    """The configured method, with evidence heads beside it where something reads them."""
    method = make_method(config.method, config.options, config.train.rounds)
    if config.aggregation.server != "mean":
        from fedgsca.methods.parts.server_steps import MethodWithServerSteps

        method = MethodWithServerSteps(
            method, config.aggregation.server, config.aggregation.server_rate
        )
    collection_rounds = head_rounds(config)
    if not collection_rounds:
        return method
    from fedgsca.methods.parts.evidence_heads import MethodWithHeads

    # a site that is asked for the first time after the heads' training still needs them
    keeps_heads = config.federation.is_partial
    return MethodWithHeads(
        method, collection_rounds, config.evidence.holdout, keeps_heads=keeps_heads
    )
