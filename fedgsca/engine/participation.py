"""Which sites a round asks: all of them, or some that are drawn anew in every round.

    n      <- federation.sites_per_round, or round(federation.participation K), at least 1
    asked  <- n of the sites, without replacement, from stream(seed, "participation", round)

The draw depends on the seed, the round and the names of the sites only, so a resumed run, worker
processes and Flower ask the same sites. Sites that the guard has put aside are not drawn. A round
that is repeated because too few sites answered draws again: the same sites may be away for long.
A method can ask for all sites in a round (`Method.asks_all_sites`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fedgsca.config import Config, FederationConfig
from fedgsca.rng import stream


def num_asked(federation: FederationConfig, num_sites: int) -> int:
    """How many of `num_sites` sites a round asks."""
    return federation.num_asked(num_sites)


def draw_sites(
    config: Config,
    names: Sequence[str],
    round_index: int,
    *,
    excluded_sites: Collection[str] = (),
    attempt: int = 0,
) -> tuple[str, ...]:
    """The sites that a round asks, in the order of their names.

    `attempt` counts the repetitions of a round. Excluded sites are drawn only if no other exists.
    """
    candidates = sorted(name for name in names if name not in excluded_sites) or sorted(names)
    count = min(num_asked(config.federation, len(names)), len(candidates))
    address: tuple[str | int, ...] = ("participation", round_index)
    if attempt:
        address = (*address, attempt)
    positions = stream(config.seed, *address).permutation(len(candidates))[:count]
    return tuple(candidates[position] for position in sorted(positions))
