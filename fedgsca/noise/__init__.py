"""Label noise for simulations: which labels a site was given, and how they came to be wrong.

A specification has one part per site, joined by "-": "0-S40-P20-C20" is a clean site, 40 %
symmetric, 20 % pairflip and 20 % CK-asymmetric noise; "S40" alone is for every site. The kinds are
classes in `fedgsca.noise.kinds`.
"""

from fedgsca.noise.base import (
    CLEAN,
    KINDS,
    NO_CLASS,
    NO_CLASS_NAME,
    Candidates,
    NoiseContext,
    NoiseKind,
    SiteNoise,
    explain_specification,
    fixed_sites,
    list_kinds,
    load_kinds,
    parse_noise,
    read_site_noise,
    register_kind,
)
from fedgsca.noise.transition import (
    RealisedNoise,
    corrupt,
    corrupt_site,
    corrupt_with,
    realised,
    transition_matrix,
)

__all__ = [
    "CLEAN",
    "KINDS",
    "NO_CLASS",
    "NO_CLASS_NAME",
    "Candidates",
    "NoiseContext",
    "NoiseKind",
    "RealisedNoise",
    "SiteNoise",
    "corrupt",
    "corrupt_site",
    "corrupt_with",
    "explain_specification",
    "fixed_sites",
    "list_kinds",
    "load_kinds",
    "parse_noise",
    "read_site_noise",
    "realised",
    "register_kind",
    "transition_matrix",
]
