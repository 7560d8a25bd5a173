"""Sections of facts: the sites, the noise that was added, time and traffic, events, and how to repeat the run."""

from __future__ import annotations

from statistics import median

from fedgsca.report.elements import (
    MANY,
    Block,
    Bullets,
    Cell,
    Fold,
    Heat,
    Heats,
    Section,
    Table,
    folded,
    heat_of,
    heats_width,
)
from fedgsca.report.run_reader import Run, number
from fedgsca.report.sentences import count, noise_name, percent, plural, seconds, spans
from fedgsca.support.text import size_text

MATRICES, SMALL_MATRIX = (
    4,
    8,
)  # matrices on the open page, the rest is folded; classes in one that fits beside another
PHASES = {
    "exchange": "Sites train and reply",
    "evaluate": "Test the global model",
    "save": "Save the checkpoint",
}


def sites_section(run: Run) -> Section | None:
    sites = run.setup.get("sites", {})
    if not sites:
        return None
    known, chosen = any(run.realised(name) for name in sites), run.last_selection
    head = [
        "Site",
        "Images",
        *(["Noise added", "Labels wrong"] if known else []),
        *(["Labels flagged"] if chosen else []),
    ]
    rows: list[list[str | Cell]] = []
    for name, site in sites.items():
        row: list[str | Cell] = [name, count(site.get("num_samples"))]
        if known:
            row += [
                noise_name(str(site.get("noise", ""))),
                percent((run.realised(name) or {}).get("rate"), 1),
            ]
        if chosen:
            row.append(percent(chosen.get(name, {}).get("delta"), 1))
        rows.append(row)
    blocks: list[Block] = [
        folded(
            Table("Sites, in the order of the experiment", head, rows, words=(2,) if known else ())
        )
    ]
    mix = [[int(value) for value in site.get("given_per_class", [])] for site in sites.values()]
    if all(mix) and run.classes:
        shares = [[value / max(sum(row), 1) for value in row] for row in mix]
        heat = Heat(
            "Given labels by site and class",
            list(sites),
            run.classes,
            shares,
            mix,
            "site ↓ label →",
        )
        note = "Percent of the site's images, with the number below."
        blocks.append(Fold("Which classes each site holds", [Heats([heat], note=note)]))
    said = "Images never leave their site; only model weights and a few numbers do."
    return Section("sites", "The sites and their labels", said, blocks)


def transitions_section(run: Run) -> Section | None:
    heats: list[Heat] = []
    for name in run.sites:
        truth = run.realised(name)
        if truth and truth.get("rate") and len(truth.get("counts", ())) == len(run.classes):
            noise = noise_name(str(run.setup["sites"][name].get("noise", "")))
            caption = f"{name}: {noise}, {percent(truth['rate'], 1)} wrong"
            heats.append(heat_of(caption, run.classes, truth["counts"], "true ↓ given →"))
    if not heats:
        return None
    shown = MATRICES if len(run.classes) <= SMALL_MATRIX else 1
    blocks: list[Block] = [Heats(heats[:shown], heats_width(len(run.classes)))]
    if heats[shown:]:
        more = heats[shown:MANY]
        blocks.append(
            Fold(
                f"{len(more)} more of {plural(len(heats), 'noisy site')}",
                [Heats(more, heats_width(len(run.classes)))],
            )
        )
    intro = "What the noise did to the labels of every noisy site: rows are true classes, columns the labels that were given."
    return Section("transitions", "The noise that was added", intro, blocks)


def cost_section(run: Run) -> Section | None:
    blocks = [*_time(run), *_traffic(run)]
    return Section("cost", "Time and traffic", "", blocks) if blocks else None


def _time(run: Run) -> list[Block]:
    if not run.timing:
        return []
    spent = {key: [float(line.get(key) or 0) for line in run.timing] for key in PHASES}
    whole = sum(map(sum, spent.values())) or 1.0
    rows: list[list[str | Cell]] = [
        [
            PHASES[key],
            seconds(median(each)),
            seconds(sum(each)),
            Cell(percent(sum(each) / whole), sum(each) / whole),
        ]
        for key, each in spent.items()
    ]
    peak = number((run.result or {}).get("peak_memory_mb"))
    note = (f"Peak memory {peak:,.0f} MB. " if peak else "") + _slowest(run)
    return [
        Table(
            "Where the time goes",
            ["Phase", "Median per round", "All rounds", "Share"],
            rows,
            bars=(3,),
            note=note,
        )
    ]


def _traffic(run: Run) -> list[Block]:
    rows = []
    for key, text in (("bytes_down", "Server to sites"), ("bytes_up", "Sites to server")):
        values = [
            int(value) for line in run.metrics if (value := number(line.get(key))) is not None
        ]
        if values:
            usual = int(median(values))
            rows.append(
                [
                    text,
                    size_text(usual // max(len(run.sites), 1)),
                    size_text(usual),
                    size_text(sum(values)),
                ]
            )
    head = ["Direction", "One site, one round", "All sites, one round", "All rounds"]
    return [Table("What travels", head, rows)] if rows else []


def _slowest(run: Run) -> str:
    names = {name for line in run.timing for name in line.get("sites", {})}
    if len(names) < 2:
        return ""
    each = {
        name: median(float(line["sites"][name]) for line in run.timing if name in line["sites"])
        for name in sorted(names)
    }
    slowest = max(each, key=each.__getitem__)
    usual = seconds(median(each.values()))
    return f"Slowest site: {slowest}, {seconds(each[slowest])} per round; the median over the sites is {usual}."


def events_section(run: Run) -> Section | None:
    blocks: list[Block] = []
    guards: dict[str, list[int]] = {}
    refused: dict[tuple[str, str], list[int]] = {}
    for line in run.metrics:
        at = int(line["round"]) + 1
        for name, site in line.get("sites", {}).items():
            if site.get("guard"):
                guards.setdefault(name, []).append(at)
        for name, reason in (line.get("refused") or {}).items():
            refused.setdefault((name, str(reason)), []).append(at)
    if guards:
        note = "What these sites had selected looked like a collapse; in these rounds they trained on all given labels instead."
        rows = [
            [name, spans(rounds), count(len(rounds))] for name, rounds in sorted(guards.items())
        ]
        blocks.append(
            Table(
                "Where the guard stepped in",
                ["Site", "Rounds", "Times"],
                rows,
                words=(1,),
                note=note,
            )
        )
    if refused:
        rows = [[name, reason, spans(rounds)] for (name, reason), rounds in sorted(refused.items())]
        note = "A refused update is left out of the mean; the round goes on with the others."
        blocks.append(
            Table("Refused updates", ["Site", "Reason", "Rounds"], rows, words=(1, 2), note=note)
        )
    warnings = [str(text) for text in run.setup.get("warnings", [])]
    if warnings:
        blocks.append(Bullets(warnings, "Warnings and notes about the data"))
    return Section("events", "Events and warnings", "", blocks) if blocks else None


def configuration_section(run: Run) -> Section | None:
    data, result = run.setup.get("data", {}), run.result or {}
    facts = {
        "Configuration": run.setup.get("fingerprint") or result.get("fingerprint"),
        "Data": data.get("fingerprint") or result.get("data_fingerprint"),
        "Images": " × ".join(map(str, data.get("shape", ()))),
        "Test images": count(run.setup["test"])
        if number(run.setup.get("test")) is not None
        else "",
        "fedgsca": run.setup.get("version") or result.get("version"),
        "Machine": result.get("machine"),
    }
    rows = [[name, str(value)] for name, value in facts.items() if value]
    blocks: list[Block] = (
        [Table("Fingerprints and versions", ["What", "Value"], rows, words=(1,))] if rows else []
    )
    if run.config_text:
        blocks.append(Fold("Full configuration (config.toml)", text=run.config_text))
    intro = (
        "The same configuration and data give the same model, byte for byte, on the same machine."
    )
    return Section("configuration", "To repeat this run", intro, blocks) if blocks else None
