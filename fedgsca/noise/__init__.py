"""Label noise for simulations: what a site's labels became, and how."""

from fedgsca.noise.transition import (
    EXAMPLE,
    Candidates,
    Kind,
    SiteNoise,
    corrupt,
    corrupt_with,
    parse_noise,
    realised,
    transition_matrix,
)

__all__ = [
    "EXAMPLE",
    "Candidates",
    "Kind",
    "SiteNoise",
    "corrupt",
    "corrupt_with",
    "parse_noise",
    "realised",
    "transition_matrix",
]
