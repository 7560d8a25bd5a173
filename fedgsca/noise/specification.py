"""Noise specifications as people type them: "0-S40-P20-C20", one part per site, or "S40" for all.

"0-S40-P20-C20*" repeats its parts over any number of sites.

The letters are those of the registered kinds (`fedgsca/noise/kinds`).
"""

from __future__ import annotations

import re

from fedgsca.errors import ConfigError
from fedgsca.noise.base import SiteNoise, list_kinds
from fedgsca.support.text import one_line


def parse_noise(spec: str, sites: int) -> list[SiteNoise]:
    """One SiteNoise per site from "0-S40-P20-C20" or, the same at every site, "S40".

    "0-S40*" repeats its parts in order. Decimals, percent signs and lower case are accepted.
    """
    text, star, end = spec.partition("*")
    is_repeated = bool(star) and not end.strip()
    parts = [part.strip() for part in (text if is_repeated else spec).split("-")]
    noises = []
    problems = []
    for position, part in enumerate(parts, start=1):
        noise = read_site_noise(part)
        if noise is None or noise.definition.is_recorded:
            problems.append(f"part {position} is {part!r}{_explain_problem(part)}")
        else:
            noises.append(noise)
    if problems:
        raise ConfigError(
            "noise.invalid-specification",
            f"the noise specification {one_line(spec)!r} is not valid: "
            f"{one_line(', '.join(problems))}",
            fix=f"write for example {explain_specification()}",
        )
    if is_repeated:
        return [noises[k % len(noises)] for k in range(sites)]
    if len(parts) not in (1, sites):
        example = "-".join(["0", *["S40"] * (sites - 1)])
        raise ConfigError(
            "noise.wrong-number-of-parts",
            f"the noise specification {one_line(spec)!r} has {len(parts)} parts for {sites} "
            "site(s)",
            fix=f"repeat the parts with {one_line(spec)}*, or write one part for all sites, or one "
            f"part per site such as {example}",
        )
    return noises * sites if len(noises) == 1 else noises


def _explain_problem(part: str) -> str:
    """Why a part is not a noise, in brackets; empty if there is no simple reason."""
    match = re.fullmatch(r"([A-Z]+)\s*(\d+(?:\.\d+)?|\.\d+)?\s*%?", part.strip().upper())
    if match is None:
        return ""
    letters, rate = match[1], match[2]
    kinds = {kind.letter: kind for kind in list_kinds()}
    if letters not in kinds:
        return f" (unknown kind {letters})"
    if kinds[letters].is_recorded or not kinds[letters].has_rate:
        return ""
    if rate is None:
        return " (without a rate in percent)"
    return f" ({rate} % is above 100 %)" if float(rate) > 100 else ""


def fixed_sites(spec: str) -> int | None:
    """The number of sites that a specification fixes by its parts; None for S40 and for 0-S40*."""
    if "-" not in spec or spec.rstrip().endswith("*"):
        return None
    return spec.count("-") + 1


def read_site_noise(text: str) -> SiteNoise | None:
    """The noise of one site as `str(SiteNoise)` writes it, or as a person types it; None if none.

    Unlike `parse_noise` it also reads F, which run folders contain and specifications do not.
    """
    word = text.strip().upper()
    for kind in list_kinds():
        noise = kind.parse(word)
        if noise is not None:
            return noise
    return None


def explain_specification() -> str:
    """What a specification means, in one line for help texts and errors."""
    letters = ["0 = clean"]
    for kind in list_kinds():
        if not kind.is_clean and not kind.is_recorded:
            letters.append(f"{kind.letter} = {kind.title}")
    meaning = ", ".join(letters)
    return (
        f"0-S40-P20-C20, one part per site: {meaning}; rates are in percent; "
        "a * at the end repeats the parts"
    )
