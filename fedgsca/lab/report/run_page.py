"""The page of one run: a summary in sentences, tiles and sections.

A plot or another section is a function from a run to a `PageSection` (None: the run lacks what it
needs), named in SECTIONS. For example:

    from fedgsca.lab.report.elements import PageSection, PlotGallery, PlotImage
    from fedgsca.lab.report.plots import (
        MAIN, figure_svg, format_round_axis, make_axes, with_plot_style
    )
    from fedgsca.lab.report.run_reader import LoadedRun

    def loss_section(run: LoadedRun) -> PageSection | None:
        records = [record for record in run.test_rounds if record.loss is not None]
        if not records:
            return None
        alt = f"Loss on the test set, {records[-1].loss:.2f} in the last round."
        gallery = PlotGallery([PlotImage(draw_loss(run), alt)], "half")
        return PageSection("loss", "Loss on the test set", "Lower is better.", [gallery])

    @with_plot_style
    def draw_loss(run: LoadedRun) -> str:
        figure, axes = make_axes(490, 250)
        records = [record for record in run.test_rounds if record.loss is not None]
        axes.plot([r.round + 1 for r in records], [r.loss for r in records], color=MAIN)
        format_round_axis(axes, run.num_rounds)
        axes.set_title("Mean loss")
        return figure_svg(figure, "loss")
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from markupsafe import Markup

from fedgsca.federation.round_status import read_status
from fedgsca.lab.report.elements import (
    Page,
    PageSection,
    Tile,
    bounds_text,
    percent_text,
    score_number,
    seconds_text,
)
from fedgsca.lab.report.run_facts import (
    absent_sites,
    best_round,
    count_training_images,
    distant_rounds,
    event_rounds,
    flagged_labels,
    headline_scores,
    is_selector_idle,
    method_events,
    method_title,
    phase_seconds,
    refusal_rounds,
    selector_quality,
    site_noise,
    uses_site_data,
    wrong_share,
)
from fedgsca.lab.report.run_labels import corrected_label_section, quality_section, site_section
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.lab.report.run_record import configuration_section, cost_section, event_section
from fedgsca.lab.report.run_scores import class_section, final_model_section, learning_section
from fedgsca.lab.report.run_selection import selection_section
from fedgsca.metrics import HEADLINE_ROUNDS
from fedgsca.noise import read_site_noise
from fedgsca.support.text import NBSP, duration, join_words, one_line, plural

# in the order of the page
SECTIONS: tuple[Callable[[LoadedRun], PageSection | None], ...] = (
    learning_section,
    class_section,
    final_model_section,
    corrected_label_section,
    site_section,
    selection_section,
    quality_section,
    cost_section,
    event_section,
    configuration_section,
)


def build_run_page(run: LoadedRun) -> Page:
    """The page of a run, finished or not."""
    title = method_title(run.method)
    if run.data_name:
        title += f" on {run.data_name}"
    banner = ""
    if run.result is None:
        banner = f"Unfinished: {len(run.metrics)} of {run.num_rounds} rounds{_state_text(run)}"
    return Page(
        title=title,
        subtitle=_subtitle(run),
        lead=describe_run(run),
        tiles=_tiles(run),
        sections=[section for build in SECTIONS if (section := build(run))],
        banner=banner,
        footer=f"fedgsca {run.setup.version} · {run.path.resolve().name}",
    )


def _state_text(run: LoadedRun) -> str:
    """What the run says about itself at this moment, and how long it will take."""
    text = ""
    status = read_status(run.path)
    if status is not None and status.state:
        text = f"; {one_line(status.state, 200)}"
    remaining_rounds = run.num_rounds - len(run.metrics)
    if run.timing and remaining_rounds > 0:
        seconds = median(record.total for record in run.timing[-HEADLINE_ROUNDS:])
        text += f"; about {duration(remaining_rounds * seconds)} left at this pace"
    return text


def _subtitle(run: LoadedRun) -> str:
    settings = run.settings
    labels = "labels of the sites" if uses_site_data(run) else f"noise {settings.noise}"
    parts = [
        plural(len(run.sites), "site"),
        labels,
        plural(run.num_rounds, "round"),
        f"seed {settings.get_text('seed', '0')}",
    ]
    model = settings.get_text("model.name")
    if model:
        frozen = ", frozen backbone" if settings.values.get("model.frozen") else ""
        parts.append(f"{model}{frozen}")
    return " · ".join(parts)


def _tiles(run: LoadedRun) -> list[Tile]:
    return [*_score_tiles(run), *_label_tiles(run), *_time_tiles(run)]


def _score_tiles(run: LoadedRun) -> list[Tile]:
    tiles = []
    scores = headline_scores(run)
    if scores.f1 is not None:
        note = "one round"
        if scores.num_rounds > 1:
            note = f"mean of the last {scores.num_rounds} rounds"
        tiles.append(Tile("Macro F1", score_number(scores.f1), "%", note, strong=True))
    best = best_round(run)
    if best is not None:
        last = run.test_rounds[-1]
        note = f"round {best.round + 1}; last round {score_number(last.f1)}"
        tiles.append(Tile("Best round", score_number(best.f1), "%", note))
        note = f"precision {score_number(scores.precision)} %"
        tiles.append(Tile("Recall", score_number(scores.recall), "%", note))
    statistics = None if run.result is None else run.result.statistics
    if statistics is not None and statistics.auroc is not None:
        interval = statistics.auroc
        note = "" if interval.low is None else f"95 % interval {bounds_text(interval)}"
        tiles.append(Tile("AUROC", score_number(interval.value), "%", note))
    return tiles


def _label_tiles(run: LoadedRun) -> list[Tile]:
    wrong = wrong_share(run)
    share = flagged_labels(run.metrics, run.settings.noise_level)
    if share is not None:
        note = "in the last round" if wrong is None else f"{percent_text(wrong)} are wrong"
        return [Tile("Labels flagged", f"{100 * share:.0f}", "%", note)]
    if wrong:
        return [Tile("Wrong labels", f"{100 * wrong:.0f}", "%", "of the training labels")]
    return []


def _time_tiles(run: LoadedRun) -> list[Tile]:
    if not run.timing:
        return []
    per_round = median(map(sum, zip(*phase_seconds(run).values(), strict=True)))
    amount, unit = seconds_text(per_round).split(NBSP)
    return [Tile("Time per round", amount, unit, count_contributors(run))]


IDLE_SELECTOR = (
    "The selector has not started: every round used all given labels, because no label looked wrong"
    " or because the training was too short to tell."
)
# sites that are listed one by one
_MAX_LISTED_SITES = 6


def describe_run(run: LoadedRun) -> list[str]:
    """Sentences about result, noise, selector, events and privacy, as far as they apply."""
    sentences = [
        _result_sentence(run),
        absence_sentence(run),
        _noise_sentence(run),
        _selector_sentence(run),
        _event_sentence(run),
        _privacy_sentence(run),
    ]
    return [sentence for sentence in sentences if sentence]


def _result_sentence(run: LoadedRun) -> str:
    subject = f"{method_title(run.method)} trained one model on {count_contributors(run)}"
    num_images = count_training_images(run)
    if num_images and run.classes:
        subject += f" ({num_images:,} training images, {len(run.classes)} classes)"
    scores = headline_scores(run)
    if scores.f1 is None:
        return f"{subject}; no round has been evaluated yet."
    template = "{} and reached a macro F1 of <strong>{:.1f}&nbsp;%</strong> on the test set, {}."
    text = Markup(template).format(subject, scores.f1, _mean_clause(scores.num_rounds))
    best = best_round(run)
    last = run.test_rounds[-1] if run.test_rounds else None
    if best is not None and last is not None and len(run.test_rounds) > 1:
        template = " The best round was round {} with {:.1f}; the last round reached {:.1f}."
        text += Markup(template).format(best.round + 1, best.f1, last.f1)
    return text


def count_contributors(run: LoadedRun) -> str:
    """The sites whose updates were used: 4 sites, or 3 of 4 sites."""
    num_absent = len(absent_sites(run))
    text = plural(len(run.sites), "site")
    return f"{len(run.sites) - num_absent} of {text}" if num_absent else text


def absence_sentence(run: LoadedRun) -> str:
    """Names the sites that never contributed, for whatever reason; empty if there are none."""
    names = absent_sites(run)
    if not names:
        return ""
    text = join_words(names, "or")
    if len(names) > _MAX_LISTED_SITES:
        text = f"{len(names)} of the {plural(len(run.sites), 'site')}"
    return f"No round used an update of {text}."


def _refusal_clause(run: LoadedRun) -> str:
    """The updates that were left out: "5 updates of site-1 were left out"; empty if none."""
    rounds = refusal_rounds(run)
    total = sum(map(len, rounds.values()))
    names = join_words(sorted(rounds))
    if len(rounds) > _MAX_LISTED_SITES:
        names = plural(len(rounds), "site")
    verb = "was" if total == 1 else "were"
    return f"{plural(total, 'update')} of {names} {verb} left out" if rounds else ""


def _mean_clause(num_rounds: int) -> str:
    if num_rounds == HEADLINE_ROUNDS:
        return "averaged over its last five rounds"
    if num_rounds > 1:
        return f"averaged over {num_rounds} rounds"
    return "after one round"


def _noise_sentence(run: LoadedRun) -> str:
    share = wrong_share(run)
    if run.settings.values.get("noise.oracle"):
        return (
            f"The wrong labels of noise {run.settings.noise} were left out of the training: "
            "this run is a ceiling, because no method knows which labels are wrong."
        )
    if uses_site_data(run):
        return "The labels are those of the sites; how many of them are wrong is not known."
    if share is None:
        return "No label noise was added; how many of the given labels are wrong is not known."
    if not share:
        return "None of the training labels was wrong."
    template = "Of the training labels, <strong>{}</strong> {}: {}."
    return Markup(template).format(percent_text(share), _origin_clause(run), _site_list(run))


def _origin_clause(run: LoadedRun) -> str:
    """How the labels came to be wrong."""
    noises = [read_site_noise(site_noise(run, site) or "0") for site in run.setup.sites]
    if any(noise is not None and noise.definition.is_recorded for noise in noises):
        return "differ from the reference"
    return "were made wrong on purpose"


def _site_list(run: LoadedRun) -> str:
    """The share of wrong labels at every site, or the range over many sites."""
    rates: dict[str, float] = {}
    for site in run.sites:
        rate = run.noise_rate(site)
        if rate is not None:
            rates[site] = rate
    if len(rates) > _MAX_LISTED_SITES:
        low = percent_text(min(rates.values()))
        high = percent_text(max(rates.values()))
        return f"between {low} and {high} per site"
    clauses = []
    for site, rate in rates.items():
        noise = read_site_noise(site_noise(run, site) or "0")
        kind = site_noise(run, site) if noise is None else noise.definition.title
        clauses.append(f"{percent_text(rate)} at {site} ({kind})" if rate else f"none at {site}")
    return join_words(clauses)


def _selector_sentence(run: LoadedRun) -> str:
    if run.selection_start is None:
        return IDLE_SELECTOR if is_selector_idle(run) else ""
    share = flagged_labels(run.metrics, run.settings.noise_level)
    if share is None:
        return ""
    template = "<strong>{}</strong> of the given labels were flagged as noisy in the last round"
    text = Markup(template).format(percent_text(share))
    quality = selector_quality(run)
    if quality is None:
        return text + "."
    precision, recall = quality
    template = "; the selection took {} of the wrong labels as noisy, and {} of those were wrong."
    return text + Markup(template).format(percent_text(recall), percent_text(precision))


def _event_sentence(run: LoadedRun) -> str:
    clauses = []
    for event, clause in method_events(run).items():
        times = sum(map(len, event_rounds(run, event).values()))
        if times:
            clauses.append(f"{clause} {plural(times, 'time')}")
    clauses += [text for text in (_refusal_clause(run),) if text]
    distant_sites = sorted(distant_rounds(run))
    if distant_sites:
        clauses.append(f"the updates of {join_words(distant_sites)} are far from all others")
    if not clauses:
        return ""
    text = join_words(clauses)
    return f"{text[0].upper()}{text[1:]}."


def _privacy_sentence(run: LoadedRun) -> str:
    if "privacy" not in run.settings.sections:
        return ""
    budget = run.metrics[-1].privacy if run.metrics else None
    if budget is None:
        return "Updates were clipped but not noised, which does not guarantee any privacy."
    template = (
        "Updates were clipped and noised: <strong>ε = {:.3g}</strong> at δ = {:g} "
        "for each site as a whole"
    )
    text = Markup(template).format(budget.epsilon, budget.delta)
    if uses_site_data(run):
        return text + "."
    return text + ", if the noise were secret; in a simulation it is not."
