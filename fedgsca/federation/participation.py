"""Which sites a round asks: all of them, or some that are drawn anew in every round.

    n      <- federation.sites_per_round, or round(federation.participation K), at least 1
    asked  <- n of the sites, without replacement, from stream(seed, "participation", round)

The draw depends on the seed, the round and the names of the sites only, so a resumed run, worker
processes and Flower ask the same sites. A round that is repeated because too few sites answered
draws again: the same sites may be away for long. A method can ask for all sites in a round
(`Method.asks_all_sites`).
"""

from __future__ import annotations

from collections.abc import Sequence

from fedgsca.config import Config, FederationConfig
from fedgsca.rng import stream


def num_asked(federation: FederationConfig, num_sites: int) -> int:
    """How many of `num_sites` sites a round asks."""
    return federation.num_asked(num_sites)


def draw_sites(
    config: Config, names: Sequence[str], round_index: int, *, attempt: int = 0
) -> tuple[str, ...]:
    """The sites that a round asks, in the order of their names.

    `attempt` counts the repetitions of a round.
    """
    candidates = sorted(names)
    count = num_asked(config.federation, len(names))
    address: tuple[str | int, ...] = ("participation", round_index)
    if attempt:
        address = (*address, attempt)
    positions = stream(config.seed, *address).permutation(len(candidates))[:count]
    return tuple(candidates[position] for position in sorted(positions))
