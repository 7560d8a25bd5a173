"""MODEL_CARD.md: what the model is, what it was trained on, how good it is, and its limits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fedgsca.config import flatten
from fedgsca.federation.changed_samples import SampleChange, read_changes
from fedgsca.lab.export.model_json import ExportCheck, ModelDescription
from fedgsca.lab.export.temperature import GIVEN_LABELS_CAUTION, TemperatureFit, describe_fit
from fedgsca.lab.export.trained_model import TrainedModel
from fedgsca.lab.report.elements import count_text, score_number
from fedgsca.lab.report.run_facts import (
    headline_scores,
    knows_truth,
    method_title,
)
from fedgsca.lab.report.run_labels import column_table, label_columns
from fedgsca.lab.report.run_reader import LoadedRun, read_run
from fedgsca.lab.report.run_scores import (
    class_table,
    describe_statistics,
    group_sentences,
    round_table,
    score_table,
    site_score_table,
)
from fedgsca.lab.table import to_markdown
from fedgsca.metrics import HEADLINE_ROUNDS
from fedgsca.support.markdown import escape_text, markdown_table
from fedgsca.support.text import one_line, plural
from fedgsca.support.version import __version__

TO_FILL = "**TO FILL IN**"


def model_card(
    trained_model: TrainedModel, description: ModelDescription, check: ExportCheck
) -> str:
    """The card as Markdown."""
    run = read_run(trained_model.path, with_losses=False)
    sections = [
        _title_section(run),
        _model_section(trained_model, description, check),
        _data_section(run, read_changes(trained_model.path)),
        noise_section(run),
        results_section(run, trained_model.rounds),
        calibration_section(run, trained_model.rounds, description.calibration),
        _settings_section(trained_model),
        _use_section(run, description),
    ]
    return "\n".join("\n".join(lines) for lines in sections)


def _title_section(run: LoadedRun) -> list[str]:
    data_name = escape_text(one_line(run.data_name or "unknown data"))
    title = f"# Model card: {escape_text(method_title(run.method))} on {data_name}"
    text = (
        f"Written by fedgsca {__version__}. Lines marked {TO_FILL} must be completed by a person."
    )
    return [title, "", text, ""]


def _model_section(
    trained_model: TrainedModel, description: ModelDescription, check: ExportCheck
) -> list[str]:
    height, width = description.image_size
    network = description.architecture
    if description.frozen:
        network += f", frozen; it sees images of {description.feature_size} pixels"
    inputs = (
        f"uint8 RGB images, (n, {height}, {width}, 3); `model.json` describes how to read and crop"
        " files"
    )
    if description.feature_width is not None:
        network = "none; a head on features of the user's own network"
        inputs = (
            f"float32 features, (n, {description.feature_width}), of the network that computed"
            " those of the training images"
        )
    rows = [
        ["File", f"`{description.file}` ({description.format}), sha256 `{description.sha256}`"],
        ["Network", f"{network}; {description.head} head"],
        ["Input", inputs],
        [
            "Output",
            f"probabilities of {len(description.classes)} classes: "
            f"{', '.join(description.classes)}",
        ],
        ["Rounds", f"{trained_model.rounds} of {trained_model.config.train.rounds}"],
        ["Configuration", f"sha256 `{description.training.fingerprint}`"],
        ["Check", _describe_check(check)],
    ]
    lines = ["## Model", "", *markdown_table(["", ""], rows)]
    if not trained_model.is_finished:
        lines += ["**The run was not finished when this model was exported.**", ""]
    return lines


def _describe_check(check: ExportCheck) -> str:
    inputs = f"{check.images} {check.inputs}"
    if check.fallback_reason:
        inputs += f" ({check.fallback_reason})"
    return (
        f"{inputs}: the probabilities of the file and of the run's model differ by at most "
        f"{check.largest_difference:.1e}; both name the same class for {check.same_class} images"
    )


def _data_section(run: LoadedRun, changes: Sequence[SampleChange]) -> list[str]:
    data = run.setup.data
    origin = f"{escape_text(one_line(data.name))}, sha256 `{data.fingerprint}`."
    return [
        "## Data",
        "",
        f"{origin} {count_text(run.setup.test)} test images, not used for training.",
        "",
        *_site_table(run),
        *(_withdrawal_lines(changes) or _fewer_images(run)),
        "Remove the numbers that a site does not want to publish.",
        "",
        f"- Where the data comes from, and who labelled it: {TO_FILL}",
        f"- Licence and consent: {TO_FILL}",
        f"- Patients (age, sex, devices, centres): {TO_FILL}",
        "",
    ]


def _withdrawal_lines(changes: Sequence[SampleChange]) -> list[str]:
    """That the model was trained with data of patients who have left since."""
    lines = []
    for change in changes:
        if change.num_removed and change.rounds:
            people = plural(change.patients, "withdrawn patient") if change.patients else "patients"
            lines.append(
                f"- **Trained in rounds 1 to {change.rounds} with data of {people}**"
                f" ({plural(change.num_removed, 'image')}, withdrawn on {change.time[:10]}). Later"
                " rounds had none of it; nothing subtracts it from the model."
            )
    return [*lines, ""] if lines else []


def _fewer_images(run: LoadedRun) -> list[str]:
    """What a coordinator knows of withdrawals: rounds after which a site trains with less."""
    lines = []
    for name in run.sites:
        sizes = []
        for record in run.metrics:
            if name in record.sites:
                sizes.append((record.round + 1, record.sites[name].num_samples or 0))
        for (rounds, old_size), (_, new_size) in pairwise(sizes):
            if new_size < old_size:
                lines.append(
                    f"- **{name}: trained in rounds 1 to {rounds} with"
                    f" {plural(old_size - new_size, 'image')} that the site has withdrawn since.**"
                    " Later rounds had none of them; nothing subtracts them from the model."
                )
    return [*lines, ""] if lines else []


def _site_table(run: LoadedRun) -> list[str]:
    """Images by site and, where the class counts are not kept at the sites, by label."""
    counts = {name: site.given_per_class or () for name, site in run.setup.sites.items()}
    if not all(counts.values()) or set(run.sites) - set(counts):
        counts = dict.fromkeys(run.sites, ())
    totals = [sum(column) for column in zip(*counts.values(), strict=True)]
    sizes = {name: _count_images(run, name) for name in run.sites}
    rows = []
    for name in run.sites:
        rows.append([name, count_text(sizes[name]), *map(count_text, counts[name])])
    total = sum(size or 0 for size in sizes.values())
    rows.append(["all", count_text(total), *map(count_text, totals)])
    text = "Training images by site:"
    header = ["Site", "Images"]
    if totals:
        text = "Training images by site and by given label, which may be wrong:"
        header += run.classes
    return [text, "", *markdown_table(header, rows)]


def _count_images(run: LoadedRun, site: str) -> int | None:
    """From the setup; in a deployment, from the last update of the site."""
    setup = run.setup.sites.get(site)
    if setup is not None and setup.num_samples is not None:
        return setup.num_samples
    if run.metrics and site in run.metrics[-1].sites:
        return run.metrics[-1].sites[site].num_samples
    return None


def _settings_section(trained_model: TrainedModel) -> list[str]:
    config = trained_model.config
    train = config.train
    frozen = ", frozen" if config.model.frozen else ""
    rows = [
        ["method", f"{config.method}, preset {config.preset}, seed {config.seed}"],
        ["model", f"{config.model.name}{frozen}"],
        ["partition", f"{config.data.partition}, {len(trained_model.setup.sites)} sites"],
        ["rounds", str(train.rounds)],
        ["epochs", str(train.epochs)],
        ["batch_size", str(train.batch_size)],
        ["lr", str(train.lr)],
        ["momentum", str(train.momentum)],
        ["weight_decay", str(train.weight_decay)],
        ["augment", str(train.augment)],
    ]
    for key, value in flatten(config.options, f"{config.method}.").items():
        rows.append([key, str(value)])
    return ["## Training settings", "", *markdown_table(["Setting", "Value"], rows)]


def _use_section(run: LoadedRun, description: ModelDescription) -> list[str]:
    probabilities = "- Probabilities are those of the softmax. They are not calibrated."
    if description.calibration is not None:
        probabilities = (
            "- Probabilities are calibrated by one temperature for images like those that it was "
            "fitted on. For other images they may be too high or too low."
        )
    lines = [
        "## Intended use",
        "",
        "Research on the classification of images like those it was trained on, into the classes "
        "above and no others.",
        f"Purpose, users and setting: {TO_FILL}",
        "",
        "## Limits",
        "",
        "- Not a medical device. It has not been validated for diagnosis or treatment; a person "
        "must check every prediction.",
        "- It always names one of its classes, even for an image that shows none of them.",
        probabilities,
        "- It may perform worse on images from other scanners, stains or patients than those in "
        "training; test it on your own images first.",
        "- The test labels were assumed to be correct. Where they are wrong, so are the results "
        "above.",
    ]
    if knows_truth(run, run.sites):
        lines.append(
            "- The wrong labels were simulated. Real ones may be harder to find, and results will "
            "differ."
        )
    return [
        *lines,
        "- This is the global model. What a method keeps at single sites (personal models or maps) "
        "is not included.",
        "- A model trained on patient images may reveal something about them. Decide who may have "
        "it.",
        f"- Known failures and groups that were not tested: {TO_FILL}",
        "",
    ]


def noise_section(run: LoadedRun) -> list[str]:
    """The noise that was added (simulations), and what the method estimates."""
    lines = ["## Label noise", ""]
    if knows_truth(run, run.sites):
        lines += ["This was a simulation: labels were made wrong on purpose for training.", ""]
    else:
        text = "No labels were changed on purpose. How many of the given labels are wrong is not"
        lines += [f"{text} known.", ""]
    columns = label_columns(run)
    del columns["Images"]
    if not columns.keys() <= {"Noise added", "Labels wrong"}:
        text = "What the method found is an estimate, not a statement about patients or annotators."
    else:
        text = (
            "No site reported how many of its labels look wrong: either the method does not "
            "estimate it, or it was still in its warm-up."
        )
    lines += [text, ""]
    return [*lines, to_markdown([column_table("", run.sites, columns)])] if columns else lines


def results_section(run: LoadedRun, rounds: int) -> list[str]:
    """Scores of the model after this many rounds."""
    records = [record for record in run.test_rounds if record.round < rounds and record.confusion]
    if not records:
        return ["## Results", "", "No round was tested.", ""]
    num_rounds = min(HEADLINE_ROUNDS, len(records))
    f1 = score_number(headline_scores(run).f1)
    return [
        "## Results",
        "",
        f"On the test set after round {records[-1].round + 1}, in percent:",
        "",
        to_markdown([round_table(run, records[-1])]),
        f"Macro F1, mean of the last {num_rounds} tested rounds: {f1}.",
        "",
        *_statistics_lines(run, rounds),
    ]


def _statistics_lines(run: LoadedRun, rounds: int) -> list[str]:
    """Intervals and ranking, as in the report; only of the model of a finished run."""
    statistics = None if run.result is None else run.result.statistics
    if statistics is None or statistics.round + 1 != rounds:
        return []
    tables = [score_table(statistics), class_table(statistics, run.classes)]
    if statistics.per_site:
        tables.append(site_score_table(statistics))
    lines = ["### Confidence intervals", "", describe_statistics(statistics), ""]
    lines.append(to_markdown(tables))
    if statistics.groups is not None:
        lines += [*group_sentences(statistics.groups), ""]
    return lines


def calibration_section(run: LoadedRun, rounds: int, fit: TemperatureFit | None) -> list[str]:
    """How far the probabilities can be trusted, before and after temperature scaling."""
    lines = ["## Calibration", ""]
    statistics = None if run.result is None else run.result.statistics
    if statistics is None or statistics.round + 1 != rounds or statistics.calibration is None:
        lines.append("The calibration of the run's model was not measured.")
    else:
        calibration = statistics.calibration
        lines.append(
            f"The run's model, on the test set: expected calibration error "
            f"{score_number(calibration.ece)} % (10 bins; 95 % of perfectly calibrated models stay "
            f"below {score_number(calibration.chance_ece)} % with as many images), mean confidence "
            f"{score_number(calibration.confidence)} %, accuracy "
            f"{score_number(statistics.accuracy.value)} %, Brier score {calibration.brier:.3f}."
        )
    lines.append("")
    if fit is None:
        return [*lines, "The probabilities of this file are not scaled.", ""]
    lines += [f"The probabilities of this file are scaled: {describe_fit(fit)}.", ""]
    if fit.has_given_labels:
        lines += [f"Note: {GIVEN_LABELS_CAUTION}.", ""]
    return lines
