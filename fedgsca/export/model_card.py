"""MODEL_CARD.md: what the model is, what it learnt from, how well it does, and what it is not for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedgsca import __version__
from fedgsca.export.card_results import noise_section, results_section
from fedgsca.export.model_json import Description
from fedgsca.export.self_check import Check
from fedgsca.export.trained_model import Trained
from fedgsca.report.run_reader import Run, read_run
from fedgsca.report.sentences import count, method_name
from fedgsca.support.markdown import table

TO_FILL = "**TO FILL IN**"
_SETTINGS = ("rounds", "epochs", "batch_size", "lr", "momentum", "weight_decay", "augment")


def model_card(trained: Trained, about: Description, check: Check) -> str:
    run = read_run(trained.path, with_losses=False)
    sections = [
        _title(run, about),
        _model(trained, about, check),
        _data(run),
        noise_section(run),
        results_section(run, trained.rounds),
        _settings(trained),
        _use(run),
    ]
    return "\n".join("\n".join(lines) for lines in sections)


def _title(run: Run, about: Description) -> list[str]:
    data = str(run.setup.get("data", {}).get("name", "unknown data"))
    text = f"Written by fedgsca {__version__}. Lines marked {TO_FILL} need a person."
    return [f"# Model card: {method_name(run.method)} on {data}", "", text, ""]


def _model(trained: Trained, about: Description, check: Check) -> list[str]:
    height, width = about.image_size
    frozen = f", frozen; it sees {about.feature_size} pixels" if about.frozen else ""
    rows = [
        ["File", f"`{about.file}` ({about.format}), sha256 `{about.sha256}`"],
        ["Network", f"{about.architecture}{frozen}; {about.head} head"],
        [
            "Input",
            f"uint8 RGB images, (n, {height}, {width}, 3); reading and cropping are described in `model.json`",
        ],
        ["Output", f"probabilities of {len(about.classes)} classes: {', '.join(about.classes)}"],
        ["Rounds", f"{trained.rounds} of {trained.config.train.rounds}"],
        ["Configuration", f"sha256 `{about.training['fingerprint']}`"],
        ["Check", _checked(check)],
    ]
    unfinished = ["**The run was not finished when this was exported.**", ""]
    more = unfinished if trained.rounds < trained.config.train.rounds else []
    return ["## Model", "", *table(["", ""], rows), *more]


def _checked(check: Check) -> str:
    why = f" ({check.why})" if check.why else ""
    return (
        f"{check.images} {check.inputs}{why}: the file and the run's model differ by at most {check.largest_difference:.1e} "
        f"in a probability; same class for {check.same_class}"
    )


def _data(run: Run) -> list[str]:
    data, sites = run.setup.get("data", {}), run.setup.get("sites", {})
    last = run.metrics[-1].get("sites", {}) if run.metrics else {}
    known = all(
        site.get("given_per_class") for site in sites.values()
    )  # in a deployment class counts stay at the sites
    sizes = {name: (sites.get(name) or last.get(name, {})).get("num_samples") for name in run.sites}
    counts = {name: sites[name]["given_per_class"] if known else [] for name in run.sites}
    totals = [sum(column) for column in zip(*counts.values(), strict=True)]
    rows = [[name, count(sizes[name]), *map(count, counts[name])] for name in run.sites]
    rows.append(["all", count(sum(size or 0 for size in sizes.values())), *map(count, totals)])
    return [
        "## Data",
        "",
        f"{data.get('name')}, sha256 `{data.get('fingerprint')}`. {count(run.setup.get('test'))} test images, not used for training.",
        "",
        f"Training images by site{' and by label as given, which may be wrong' if known else ''}:",
        "",
        *table(["Site", "Images", *(run.classes if known else [])], rows),
        "Take out the numbers that a site does not want known.",
        "",
        f"- Where the data comes from, and who labelled it: {TO_FILL}",
        f"- Licence and consent: {TO_FILL}",
        f"- Patients (age, sex, devices, centres): {TO_FILL}",
        "",
    ]


def _settings(trained: Trained) -> list[str]:
    config = trained.config
    rows = [
        ["method", f"{config.method}, preset {config.preset}, seed {config.seed}"],
        ["model", f"{config.model.name}{', frozen' if config.model.frozen else ''}"],
        ["partition", f"{config.data.partition}, {len(trained.setup.get('sites', {}))} sites"],
        *([key, str(getattr(config.train, key))] for key in _SETTINGS),
        *([key, str(value)] for key, value in _flat(config.options, config.method)),
    ]
    return ["## Training settings", "", *table(["Setting", "Value"], rows)]


def _flat(options: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, object]]:
    """Options of sections within sections, as --set spells them."""
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}.{key}")
        else:
            yield f"{prefix}.{key}", value


def _use(run: Run) -> list[str]:
    injected = any(run.realised(name) for name in run.sites)
    simulated = (
        [
            "- The wrong labels were simulated. Real ones may be harder to find, and results will differ."
        ]
        if injected
        else []
    )
    return [
        "## Intended use",
        "",
        "Research on classifying images like those it was trained on, into the classes above and no others.",
        f"Purpose, users and setting: {TO_FILL}",
        "",
        "## Limits",
        "",
        "- Not a medical device. It has not been validated for diagnosis or treatment; a person must check every answer.",
        "- It always names one of its classes, also for an image that shows none of them.",
        "- Probabilities are those of the softmax. They are not calibrated.",
        "- Images from other scanners, stains or patients than those in training may be answered worse; test on your own first.",
        "- Test labels were taken as right. If they are not, the results above are not, either.",
        *simulated,
        "- This is the global model. What a method keeps at single sites (personal models or maps) is not in it.",
        "- A model trained on patient images may reveal something about them. Decide who may have it.",
        f"- Known failures and groups that were not tested: {TO_FILL}",
        "",
    ]
