"""Facts about a run: headline scores, wrong labels, quality of the selector, events, time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from fedgsca.config import SITES_SOURCE, Config
from fedgsca.federation.records import RoundRecord, Setup, SiteRecord, finite
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.methods.base import load_methods
from fedgsca.metrics import HEADLINE_ROUNDS, quadratic_kappa
from fedgsca.noise import read_site_noise
from fedgsca.support.text import NBSP, join_words, plural


def method_title(method: str) -> str:
    """The name of a method for people; the name itself if the method is not installed."""
    definition = load_methods().get(method.lower())
    return method if definition is None else definition.card.title


def noise_title(noise: str) -> str:
    """A site's noise: S40 -> symmetric 40 %."""
    site_noise = read_site_noise(noise or "0")
    if site_noise is None:
        return noise
    return site_noise.title.replace(" %", f"{NBSP}%")


def describe_noises(specs: Iterable[str]) -> str:
    """What the parts of noise specifications mean: "Noise S40: symmetric 40 %; P20: ..."."""
    titles: dict[str, str] = {}
    is_mixed = False
    for spec in specs:
        parts = spec.split("-")
        is_mixed = is_mixed or len(parts) > 1
        for part in parts:
            titles.setdefault(part, noise_title(part))
    legend = "; ".join(f"{part}: {title}" for part, title in titles.items() if title != part)
    if not legend:
        return ""
    ending = " A noise of several parts has one part for each site." if is_mixed else ""
    return f"Noise {legend}.{ending}"


def site_noise(run: LoadedRun, site: str) -> str:
    """The nominal noise of a site, such as S40; empty if there is none."""
    setup = run.setup.sites.get(site)
    if setup is None or setup.noise is None:
        return ""
    return setup.noise


# ---- scores ----


@dataclass(frozen=True)
class HeadlineScores:
    """Means over the last rounds that were tested, in percent; None if there are none."""

    f1: float | None
    recall: float | None
    precision: float | None
    # over which the means are taken
    num_rounds: int


def headline_scores(run: LoadedRun) -> HeadlineScores:
    """The scores of the result; for an unfinished run, those of the log so far."""
    records = run.test_rounds[-HEADLINE_ROUNDS:]
    scores: dict[str, float | None] = {}
    for name in ("f1", "recall", "precision"):
        numbers = [getattr(record, name) for record in records]
        numbers = [number for number in numbers if number is not None]
        mean = fmean(numbers) if numbers else None
        score = None if run.result is None else finite(getattr(run.result, name))
        scores[name] = mean if score is None else score
    return HeadlineScores(**scores, num_rounds=len(records) or HEADLINE_ROUNDS)


def grade_kappa(setup: Setup, confusion: Sequence[Sequence[int]]) -> float | None:
    """Quadratic kappa over the images of ordered classes; None where classes have no order."""
    classes = setup.data.classes
    places = [classes.index(name) for name in setup.data.order or () if name in classes]
    if len(places) < 2 or not confusion:
        return None
    return quadratic_kappa(np.array(confusion)[np.ix_(places, places)])


def best_round(run: LoadedRun) -> RoundRecord | None:
    """The round with the highest F1; None if no round was tested."""
    return max(run.test_rounds, key=lambda record: record.f1 or 0.0, default=None)


# ---- labels ----


def uses_site_data(run: LoadedRun) -> bool:
    """Whether this is a deployment in which every site has images and labels of its own."""
    return run.settings.source == SITES_SOURCE


def count_training_images(run: LoadedRun) -> int:
    """Of all sites that contributed. A coordinator knows them only from the updates."""
    sizes: dict[str, int] = {}
    if uses_site_data(run):
        for record in run.metrics:
            for name, site in record.sites.items():
                sizes[name] = site.num_samples
    else:
        for name, setup in run.setup.sites.items():
            sizes[name] = setup.num_samples or 0
        for name in absent_sites(run):
            sizes.pop(name, None)
    return sum(sizes.values())


def wrong_share(run: LoadedRun) -> float | None:
    """The share of wrong labels among all training labels; None if it is not known."""
    total = 0
    wrong = 0.0
    for site in run.sites:
        noise = run.realised_noise(site)
        if noise is not None:
            size = sum(map(sum, noise.counts))
            total += size
            wrong += (noise.rate or 0.0) * size
    return wrong / total if total else None


def knows_truth(run: LoadedRun, sites: Iterable[str]) -> bool:
    """Whether the share of wrong labels is known for any of the sites."""
    return any(run.noise_rate(site) is not None for site in sites)


def flagged_share(site: SiteRecord, noise_level: float) -> float | None:
    """The share of a site's given labels that its method flagged as noisy; None: not logged.

    `clean` is the number of labels that were taken as clean. What a method does with a flagged
    label is its own matter: replace it, leave it out, or show it less often. A site flags no label
    if it estimates fewer wrong ones than `noise_level` (Eq. 13), or if its selection was set aside
    in the round (`guard`, `fallback`).
    """
    num_clean = site.number("clean")
    if num_clean is None or not site.num_samples:
        return None
    is_set_aside = site.number("guard") or site.number("fallback")
    if is_set_aside or (site.number("delta") or 0.0) < noise_level:
        return 0.0
    return 1.0 - num_clean / site.num_samples


def flagged_shares(rounds: Sequence[RoundRecord], noise_level: float) -> dict[str, float]:
    """Site -> the share of labels flagged, in the site's last round.

    `noise_level` is the option of the method; 0 if it has none.
    """
    shares: dict[str, float] = {}
    for name, site in _last_records(rounds).items():
        share = flagged_share(site, noise_level)
        if share is not None:
            shares[name] = share
    return shares


def flagged_labels(rounds: Sequence[RoundRecord], noise_level: float) -> float | None:
    """The same over the labels of all sites together; None for a method that does not log it."""
    records = _last_records(rounds)
    shares = flagged_shares(rounds, noise_level)
    total = sum(records[name].num_samples for name in shares)
    if not total:
        return None
    return sum(share * records[name].num_samples for name, share in shares.items()) / total


def _last_records(rounds: Sequence[RoundRecord]) -> dict[str, SiteRecord]:
    records: dict[str, SiteRecord] = {}
    for record in rounds:
        records.update(record.sites)
    return records


def selector_quality(run: LoadedRun) -> tuple[float, float] | None:
    """Precision and recall of "noisy" over all sites together; None where it is not known.

    Precision is the share of labels taken as noisy that are wrong, recall the share of wrong labels
    that are taken as noisy, both in the last selection of every site of a simulation.
    """
    num_noisy = hits = wrong = 0.0
    for name, site in run.last_selection.items():
        rate = run.noise_rate(name)
        num_clean = site.number("clean")
        if rate is None or num_clean is None or "noisy_precision" not in site.values:
            continue
        num_noisy += site.num_samples - num_clean
        hits += (site.num_samples - num_clean) * (site.number("noisy_precision") or 0.0)
        wrong += site.num_samples * rate
    return (hits / num_noisy, hits / wrong) if num_noisy and wrong else None


def is_selector_idle(run: LoadedRun) -> bool:
    """Whether the method has a selector that has not divided any labels yet."""
    if not run.metrics or run.selection_start is not None:
        return False
    return any("selector" in site.values for site in run.metrics[-1].sites.values())


# ---- what touched a result ----


def result_notes(config: Config, rounds: Sequence[RoundRecord]) -> tuple[str, ...]:
    """What a reader must know about the number of a run, each a clause for a footnote.

    The learning rate in use, class balance, updates that were left out, a stage that never ran,
    and evidence heads that only the audit reads.
    """
    notes = []
    if rounds and finite(rounds[0].lr) is not None:
        origin = "auto" if str(config.train.lr) == "auto" else "set"
        notes.append(f"learning rate {rounds[0].lr:g} ({origin})")
    balance = getattr(config.train, "class_balance", 0.0)
    if balance:
        notes.append(f"class balance {balance:g}")
    left_out, absences = Counter[str](), Counter[str]()
    for record in rounds:
        left_out.update(record.refused_sites)
        absences.update(record.absent_sites or ())
    if left_out:
        names = join_words(sorted(left_out))
        notes.append(f"{plural(left_out.total(), 'update')} of {names} left out")
    if absences:
        names = join_words(sorted(absences))
        notes.append(f"{names} absent in {plural(absences.total(), 'round')}")
    stage = find_idle_stage(config.method, rounds)
    if stage:
        notes.append(f"the {stage} never ran: the number is that of training on all given labels")
    method = load_methods().get(config.method)
    if method is not None and not method.reads_evidence and config.audit.enabled:
        notes.append("seconds and bytes include evidence heads that only the audit reads")
    return tuple(notes)


def find_idle_stage(method: str, rounds: Sequence[RoundRecord]) -> str:
    """The stage that makes a method what it is, if it ran at no site in no round; else empty."""
    definition = load_methods().get(method)
    if definition is None or definition.logged.stage_ran is None or not rounds:
        return ""
    for record in rounds:
        for site in record.sites.values():
            if definition.logged.stage_ran(site.values, site.num_samples):
                return ""
    return definition.logged.stage


# ---- events ----


def method_events(run: LoadedRun) -> Mapping[str, str]:
    """Events that the method declares: the value that is 1 -> a clause that describes it."""
    definition = load_methods().get(run.method)
    return {} if definition is None else definition.logged.events


def describe_event(run: LoadedRun, event: str) -> str:
    """What the method says about the value that marks an event; empty if it says nothing."""
    definition = load_methods().get(run.method)
    if definition is None or event not in definition.uploads:
        return ""
    return f"In the log, {event} is {definition.uploads[event].description}."


def find_rounds(
    run: LoadedRun, sites_of: Callable[[RoundRecord], Iterable[str]]
) -> dict[str, list[int]]:
    """Site -> rounds, from 1, in which `sites_of` names it."""
    rounds: dict[str, list[int]] = {}
    for record in run.metrics:
        for site in sites_of(record):
            rounds.setdefault(site, []).append(record.round + 1)
    return rounds


def event_rounds(run: LoadedRun, event: str) -> dict[str, list[int]]:
    """Every site at which the event happened, with the rounds, from 1."""
    return find_rounds(
        run, lambda record: [name for name, site in record.sites.items() if site.number(event)]
    )


def distant_rounds(run: LoadedRun) -> dict[str, list[int]]:
    """Sites whose updates were far from those of all others, with the rounds, from 1."""
    return find_rounds(run, lambda record: record.distant_sites or ())


def refusal_rounds(run: LoadedRun) -> dict[str, list[int]]:
    """Sites of which an update was refused, with the rounds, from 1."""
    return find_rounds(run, lambda record: record.refused_sites)


def absent_sites(run: LoadedRun) -> list[str]:
    """Sites of which no round used an update; empty if there is no round yet."""
    contributors = find_rounds(run, lambda record: record.sites)
    return [name for name in run.sites if name not in contributors] if contributors else []


# ---- time ----


def phase_seconds(run: LoadedRun) -> dict[str, list[float]]:
    """Every phase of a round with the seconds that it took in each round; 0 where unknown."""
    phases = {
        "Sites train and reply": [finite(record.exchange) or 0.0 for record in run.timing],
        "Test the global model": [finite(record.evaluate) or 0.0 for record in run.timing],
        "Save the checkpoint": [finite(record.save) or 0.0 for record in run.timing],
    }
    return phases if run.timing else {}
