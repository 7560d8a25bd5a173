"""The privacy budget of a run. The only file that imports opacus (extra [privacy])."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

from fedgsca.config import Config
from fedgsca.errors import ConfigError, MissingExtraError
from fedgsca.federation.privacy.mechanism import noise_multiplier
from fedgsca.methods.base import load_methods
from fedgsca.wire import Extra

# Renyi orders: fine where large budgets have their optimum, far out for small ones
ORDERS = (
    [1 + x / 100 for x in range(1, 100)]
    + [1 + x / 10 for x in range(10, 110)]
    + [float(x) for x in range(12, 1025, 4)]
)


def epsilon(noise: float, uploads: Mapping[str, Extra], rounds: int, delta: float) -> float:
    """Upper bound for a site that took part in so many rounds.

    Every round counts in full. With partial participation a site takes part in fewer rounds, but
    the coordinator knows in which: no credit is taken for the draw.
    """
    try:
        from opacus.accountants import RDPAccountant
    except ImportError as error:
        raise MissingExtraError(
            "extra.privacy-missing",
            "the privacy accountant is not installed",
            fix="pip install 'fedgsca[privacy]'",
        ) from error
    accountant = RDPAccountant()
    accountant.history = [(noise_multiplier(noise, uploads), 1.0, rounds)]
    # it recommends other orders if the best is the first or the last of ours; the bound holds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta=delta, alphas=ORDERS))


def noise_for(target: float, uploads: Mapping[str, Extra], rounds: int, delta: float) -> float:
    """The smallest noise, rounded up to three digits, that stays within this epsilon."""
    low, high = 1e-3, 1e6
    if epsilon(high, uploads, rounds, delta) > target:
        raise ConfigError(
            "privacy.unreachable-epsilon",
            f"no noise reaches epsilon {target:g} at delta {delta:g}",
            fix="choose a larger epsilon or delta",
        )
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        if epsilon(middle, uploads, rounds, delta) > target:
            low = middle
        else:
            high = middle
    step = 10.0 ** (math.floor(math.log10(high)) - 2)
    return float(f"{math.ceil(high / step) * step:.3g}")


def spent_epsilon(config: Config, rounds: int) -> float | None:
    """Epsilon after so many rounds, at the delta of the configuration; None without a promise.

    Nothing is promised without `privacy`, and by clipping without noise.
    """
    privacy = config.privacy
    if privacy is None or privacy.noise == 0:
        return None
    uploads = load_methods()[config.method].uploads
    return epsilon(privacy.noise, uploads, rounds, privacy.delta)
