"""How far FedGSCA moves a linear head on frozen features: not too far, whatever `train.lr` is."""

from __future__ import annotations

from fedgsca.config import TrainConfig
from fedgsca.evidence import FEW_SITES, site_factor

# sum over a run of a label's steps in the model of all sites
STEP_BOUNDS = (5.0, 10.0)
# lr D to which a learning rate is raised at most
MAX_RAISE = 40.0


def bound_rate(
    train: TrainConfig,
    rounds: int,
    width: int,
    num_sites: int,
    bounds: tuple[float, float] = STEP_BOUNDS,
) -> float:
    """The learning rate for a linear head on frozen features of this width.

    In one pass over one of four sites a label moves its own logit, in the model of all sites, by at
    most lr D / ((1 - momentum) 4 batch): D is the squared norm of a normalised feature vector. The
    sum over all passes of the run is kept within `bounds`; for more sites see `site_factor`. A
    larger one memorises the wrong labels that every selection keeps, and a head with more features
    than images never forgets them; with a smaller one rare classes are not learnt in time.
    """
    distance = width / (1.0 - train.momentum)
    passes = rounds * train.epochs
    divisor = train.batch_size * FEW_SITES * site_factor(num_sites)
    total = distance * passes / divisor
    least_rate = min(bounds[0] / total, MAX_RAISE / distance)
    return min(max(train.lr, least_rate), bounds[1] / total)
