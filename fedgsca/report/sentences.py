"""Numbers and facts in plain words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

from fedgsca.config import SITES_SOURCE
from fedgsca.report.run_reader import LAST, Run, Tree, number

NAMES = {
    name.lower(): name
    for name in (
        "FedAvg",
        "FedProx",
        "FedRobust",
        "FedCorr",
        "FedGP",
        "FedFixer",
        "FedNoRo",
        "FedGSCA",
    )
}
NBSP = "\N{NO-BREAK SPACE}"
MINUS = "−"
KINDS = {"S": "symmetric", "P": "pairflip", "C": "CK-asymmetric"}


def method_name(method: str) -> str:
    return NAMES.get(method.lower(), method)


def percent(share: Any, digits: int = 0) -> str:
    """0.204 -> 20 %, with a space that does not break."""
    value = number(share)
    return "–" if value is None else f"{100 * value:.{digits}f}{NBSP}%"


def ratio(value: Any) -> str:
    found = number(value)
    return "–" if found is None else f"{found:.2f}"


def score(value: Any) -> str:
    found = number(value)
    return "–" if found is None else f"{found:.1f}"


def signed(value: float, digits: int) -> str:
    """+0.12, −0.12, 0.00."""
    text = f"{value:+.{digits}f}".replace("-", MINUS)
    return text[1:] if not float(f"{value:.{digits}f}") else text


def count(value: Any) -> str:
    found = number(value)
    return "–" if found is None else f"{found:,.0f}"


def seconds(value: Any) -> str:
    found = number(value)
    if found is None:
        return "–"
    if found < 120:
        return f"{found:.2g}{NBSP}s" if found < 1 else f"{found:.1f}{NBSP}s"
    return f"{found / 60:.1f}{NBSP}min" if found < 7200 else f"{found / 3600:.1f}{NBSP}h"


def plural(number_of: int, word: str) -> str:
    return f"{number_of:,} {word}{'' if number_of == 1 else 's'}"


def listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def spans(rounds: Iterable[int]) -> str:
    """1, 2, 3, 7 -> 1–3, 7."""
    parts: list[list[int]] = []
    for value in sorted(set(rounds)):
        if parts and value == parts[-1][1] + 1:
            parts[-1][1] = value
        else:
            parts.append([value, value])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in parts)


def noise_kind(noise: str) -> str:
    """S40 -> symmetric."""
    if noise in ("0", ""):
        return "none"
    return {"M": "own matrix", "F": "from a file"}.get(noise) or KINDS.get(noise[0], noise)


def noise_name(noise: str) -> str:
    """S40 -> symmetric 40 %."""
    return f"{noise_kind(noise)} {noise[1:]}{NBSP}%" if noise[:1] in KINDS else noise_kind(noise)


def headline(run: Run, key: str = "f1") -> float | None:
    """Mean of the last five evaluated rounds; from the log, so that an unfinished run has one, too."""
    kept = number((run.result or {}).get(key))
    values = [
        value for line in run.evaluated[-LAST:] if (value := number(line.get(key))) is not None
    ]
    return kept if kept is not None else sum(values) / len(values) if values else None


def wrong_share(run: Run) -> float | None:
    """Share of all training labels that is wrong; None if unknown."""
    known = [truth for site in run.sites if (truth := run.realised(site)) is not None]
    size = sum(sum(map(sum, truth["counts"])) if "counts" in truth else 0 for truth in known)
    return (
        sum(truth["rate"] * sum(map(sum, truth["counts"])) for truth in known) / size
        if size
        else None
    )


def found(run: Run) -> dict[str, float | None]:
    """The selector over all sites together: share flagged, and precision and recall of the flags where the truth is known."""
    flagged = hits = wrong = size = 0.0
    judged = False
    for name, site in run.last_selection.items():
        n, delta = float(site.get("num_samples") or 0), number(site.get("delta"))
        if delta is None:
            continue
        size += n
        flagged += n * delta
        truth = run.realised(name)
        if truth is not None and "noisy_precision" in site:
            judged = True
            hits += n * delta * (number(site["noisy_precision"]) or 0.0)
            wrong += n * float(truth["rate"])
    return {
        "flagged": flagged / size if size else None,
        "precision": hits / flagged if judged and flagged else None,
        "recall": hits / wrong if judged and wrong else None,
    }


def lead(run: Run) -> list[str]:
    """The report in a few sentences."""
    sentences = [
        _result_sentence(run),
        _noise_sentence(run),
        _selector_sentence(run),
        _event_sentence(run),
        _privacy_sentence(run),
    ]
    return [sentence for sentence in sentences if sentence]


def training_images(run: Run) -> int:
    """Of all sites together. The coordinator of a deployment knows it from the updates only."""
    told = {name: site for line in run.metrics for name, site in line.get("sites", {}).items()}
    sites = told if own_data(run) else run.setup.get("sites", {})
    return sum(int(site.get("num_samples", 0)) for site in sites.values())


def own_data(run: Run) -> bool:
    """Whether this is a deployment in which each site has images and labels of its own."""
    return bool(run.config.get("data", {}).get("source") == SITES_SOURCE)


def _result_sentence(run: Run) -> str:
    who, images = (
        f"{method_name(run.method)} trained one model over {plural(len(run.sites), 'site')}",
        training_images(run),
    )
    if images and run.classes:
        who += f" ({images:,} training images, {len(run.classes)} classes)"
    value, lines = headline(run), run.evaluated
    if value is None:
        return f"{who}; no round has been evaluated yet."
    best = max(lines, key=lambda line: float(line["f1"])) if lines else None
    tail = min(LAST, len(lines)) or LAST
    mean = (
        "the mean of its last five rounds"
        if tail == LAST
        else f"the mean of {tail} rounds"
        if tail > 1
        else "after one round"
    )
    text = Markup(
        "{} and reached a macro F1 of <strong>{:.1f}&nbsp;%</strong> on the test set, {}."
    ).format(who, value, mean)
    if best is not None and len(lines) > 1:
        text += Markup(" The best round, number {}, reached {:.1f}; the last one {:.1f}.").format(
            int(best["round"]) + 1, best["f1"], lines[-1]["f1"]
        )
    return text


def _noise_sentence(run: Run) -> str:
    share, spec = wrong_share(run), str(run.config.get("noise", {}).get("spec", "0"))
    if run.config.get("noise", {}).get("oracle"):
        return f"The wrong labels of noise {spec} were left out of the training: this run is a ceiling, which no method can know."
    if own_data(run):
        return "The labels are those of the sites; how many of them are wrong is not known."
    if share is None:
        return "No label noise was added; how many of the given labels are wrong is not known."
    if not share:
        return "None of the labels it learned from was wrong."
    rates = [(site, truth) for site in run.sites if (truth := run.realised(site)) is not None]
    if len(rates) <= 6:
        each = listed([_site_noise(run, site, truth) for site, truth in rates])
    else:
        each = f"between {percent(min(t['rate'] for _, t in rates))} and {percent(max(t['rate'] for _, t in rates))} per site"
    read = any(
        site.get("noise") == "F" for site in run.setup["sites"].values()
    )  # given labels from a file: nobody drew them
    why = "differ from the reference" if read else "were wrong on purpose"
    return Markup("Of the labels it learned from, <strong>{}</strong> {}: {}.").format(
        percent(share), why, each
    )


def _site_noise(run: Run, site: str, truth: Tree) -> str:
    kind = noise_kind(str(run.setup["sites"][site].get("noise", "")))
    return (
        f"none at {site}" if not truth["rate"] else f"{percent(truth['rate'])} at {site} ({kind})"
    )


def idle_selector(run: Run) -> str:
    """A selector that has divided no labels yet; empty if it has, and for methods without one."""
    waits = run.metrics and any(
        "selector" in site for site in run.metrics[-1].get("sites", {}).values()
    )
    idle = "The selector has not started: all given labels were used in every round."
    return idle if waits and run.selecting_from is None else ""


def _selector_sentence(run: Run) -> str:
    if run.selecting_from is None:
        return idle_selector(run)
    facts = found(run)
    if facts["flagged"] is None:
        return ""
    text = Markup("The selector doubted <strong>{}</strong> of the labels").format(
        percent(facts["flagged"])
    )
    if facts["precision"] is None or facts["recall"] is None:
        return text + "."
    return text + Markup(
        ": it found <strong>{}</strong> of the wrong ones, and {} of its doubts were justified."
    ).format(percent(facts["recall"]), percent(facts["precision"]))


def _event_sentence(run: Run) -> str:
    guards = sum(
        bool(site.get("guard")) for line in run.metrics for site in line.get("sites", {}).values()
    )
    refused = sum(len(line.get("refused") or {}) for line in run.metrics)
    said = []
    if guards:
        said.append(f"the guard against collapse stepped in {plural(guards, 'time')}")
    if refused:
        said.append(f"{plural(refused, 'update')} {'was' if refused == 1 else 'were'} refused")
    if not said:
        return ""
    text = listed(said)
    return f"{text[0].upper()}{text[1:]}."


def _privacy_sentence(run: Run) -> str:
    if "privacy" not in run.config:
        return ""
    budget = run.metrics[-1].get("privacy") if run.metrics else None
    if budget is None:
        return "What a site sent was clipped, without noise: that is no promise of privacy."
    text = Markup(
        "What a site sent was clipped and noised: <strong>ε = {:.3g}</strong> at δ = {:g} for a site as a whole"
    ).format(budget["epsilon"], budget["delta"])
    return text + (
        "." if own_data(run) else ", if the noise were secret; in a simulation it is not."
    )
