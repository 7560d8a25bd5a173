"""The format of a run folder: one frozen record for every JSON file, documented by its fields.

    metrics.jsonl          RoundRecord per line      the same bytes for the same experiment
    timing.jsonl           TimingRecord per line     differs from run to run
    setup.json             Setup
    result.json            RunResult
    before.json            PreviousRun
    audit/<site>/audit.json     AuditSummary

label_evidence.py describes evidence/<site>/site.json, round_status.py status.json of a
deployment. Records are strict when written and tolerant when read (fedgsca.support.json_record), so
that unfinished and damaged runs can be read. Scores are percentages, rounds are counted from 0,
times are seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fedgsca.support.json_record import REMAINING_KEYS, Record, stored_as

Matrix: TypeAlias = tuple[tuple[int, ...], ...]
# a number, an array as nested lists, or None for "not available"
SiteValue: TypeAlias = int | float | list[Any] | None


def finite(value: object) -> float | None:
    """The value as a float if it is a finite number, else None."""
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


# ---- metrics.jsonl and timing.jsonl ----


@dataclass(frozen=True)
class SiteRecord(Record):
    """One site in one round, as far as its update was usable."""

    num_samples: int
    # what the method declares in `uploads`; in simulations the quality of its decisions; and
    # `coefficient`, its weight under the rule `mixing` relative to its share of the images: 1 is
    # as much as its images, near 0 its update is far from those of all others
    values: Mapping[str, SiteValue] = field(default_factory=dict, metadata=REMAINING_KEYS)

    def number(self, name: str) -> float | None:
        """One of the values as a finite number; None if the site has none."""
        return finite(self.values.get(name))

    def numbers(self, name: str) -> tuple[float | None, ...]:
        """One of the values as a list of numbers; empty if the site has none."""
        value = self.values.get(name)
        if not isinstance(value, list):
            return ()
        return tuple(finite(item) for item in value)


@dataclass(frozen=True)
class PrivacyBudget(Record):
    """What a site has spent so far: (epsilon, delta) for the site as a whole."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class RoundRecord(Record):
    """A line of metrics.jsonl. Rounds in which the model was not tested have no scores."""

    round: int
    lr: float
    stability: float | None  # mean change of the weights at the sites
    bytes_up: int  # from all sites to the coordinator
    bytes_down: int
    sites: Mapping[str, SiteRecord]
    # site -> why its update was not used
    refusals: Mapping[str, str] = field(metadata=stored_as("refused"))
    # sites that hardly any other site would listen to in most of their last rounds
    # (filters/distance.py); None: there are none
    distant_sites: tuple[str, ...] | None = field(default=None, metadata=stored_as("distant"))
    # the sites that were asked; None: all of them
    asked_sites: tuple[str, ...] | None = field(default=None, metadata=stored_as("asked"))
    # sites of `refusals` of which nothing arrived; None: there are none
    absent_sites: tuple[str, ...] | None = field(default=None, metadata=stored_as("absent"))
    f1: float | None = None
    recall: float | None = None
    precision: float | None = None
    loss: float | None = None
    confusion: Matrix | None = None  # rows: true class
    # site -> number of its test images, where the sites test the model
    test_counts: Mapping[str, int] | None = field(default=None, metadata=stored_as("tested"))
    # the confusion matrix of each of these sites; `confusion` is their sum
    site_confusions: Mapping[str, Matrix] | None = None
    val_f1: float | None = None
    # macro F1 that the evidence expects of the model that the sites received in this round, which
    # is that of the round before; only with held-out images
    expected_f1: float | None = None
    privacy: PrivacyBudget | None = None

    @property
    def test_set(self) -> tuple[tuple[str, int], ...]:
        """On whose images the model was tested, with their number; empty: the coordinator's."""
        return tuple(sorted((self.test_counts or {}).items()))

    @property
    def refused_sites(self) -> tuple[str, ...]:
        """Sites whose answer was not used; those of which nothing arrived are not among them."""
        absent = set(self.absent_sites or ())
        return tuple(site for site in self.refusals if site not in absent)


def comparable_rounds(rounds: Sequence[RoundRecord]) -> list[RoundRecord]:
    """The rounds with a score on the test images of the last one: scores that can be compared.

    Where the sites test the model, a site that is absent takes its images with it.
    """
    scores = [record for record in rounds if record.f1 is not None]
    return [record for record in scores if record.test_set == scores[-1].test_set]


@dataclass(frozen=True)
class TimingRecord(Record):
    """A line of timing.jsonl."""

    round: int
    sites: Mapping[str, float]
    exchange: float  # broadcast, training at the sites, aggregation
    evaluate: float
    save: float
    # CPU time of the exchange; None where the sites were trained in other processes
    cpu: float | None = None

    @property
    def total(self) -> float:
        """The whole round."""
        return self.exchange + self.evaluate + self.save


# ---- result.json ----


@dataclass(frozen=True)
class BestRound(Record):
    """The round with the highest F1 on the test images."""

    round: int
    f1: float


@dataclass(frozen=True)
class UnseenChoice(Record):
    """What held-out images with given labels say: no true label was looked at.

    `round` is the end of the five rounds with the highest mean of the expected F1, `expected_f1`
    that mean, `f1` the mean on the test images in the same rounds (None: not tested); `last` is the
    mean of the expected F1 in the last five rounds.
    """

    round: int
    expected_f1: float
    f1: float | None
    last: float


@dataclass(frozen=True)
class LastRound(Record):
    """The scores of the last round that was tested."""

    round: int
    f1: float
    recall: float
    precision: float
    confusion: Matrix


@dataclass(frozen=True)
class ClassResult(Record):
    """One class in the last round; `support` is the number of its test images."""

    f1: float
    recall: float
    precision: float
    support: int


@dataclass(frozen=True)
class ScoreInterval(Record):
    """A score in percent and its 95 % interval; no interval where there are too few images."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class ClassStatistics(Record):
    """One class of the final model; the last two compare it with all others together.

    None: the test set has no image of the class, or no other.
    """

    f1: ScoreInterval
    recall: ScoreInterval
    precision: ScoreInterval
    auroc: ScoreInterval | None
    average_precision: ScoreInterval | None


@dataclass(frozen=True)
class CalibrationBin(Record):
    """Test images whose largest probability is above `low` and at most `high`, all in percent."""

    low: float
    high: float
    images: int
    confidence: float | None  # mean of the largest probability; None without images
    accuracy: float | None


@dataclass(frozen=True)
class CalibrationResult(Record):
    """How far the probabilities can be taken at their word.

    `chance_ece`: 95 % of perfectly calibrated models have a smaller ECE with as many images.
    """

    ece: float  # expected calibration error, percent
    chance_ece: float
    confidence: float  # mean of the largest probability, percent
    brier: float  # 0 to 2
    log_loss: float
    bins: tuple[CalibrationBin, ...]


@dataclass(frozen=True)
class SubsetScores(Record):
    """The test images of one site. Macro F1 is over the classes that occur among them."""

    images: int
    accuracy: ScoreInterval
    f1: ScoreInterval


@dataclass(frozen=True)
class GroupStatistics(Record):
    """Patients, slides or videos of the test set; none is named.

    A group's own prediction is the class with the largest mean probability of its images; `f1` is
    the macro F1 of these predictions, over the `same_label` groups whose images have one label.
    """

    word: str  # what a group is
    groups: int
    images_per_group: float  # median
    mean_accuracy: float  # percent of right images, averaged over the groups
    worst_tenth: float  # percent: one group in ten is below
    all_wrong: int  # groups without any right image
    same_label: int
    f1: float | None


@dataclass(frozen=True)
class FinalStatistics(Record):
    """The model of the last round on the test images, with 95 % bootstrap intervals.

    `unit` is what was drawn: "image", or a group such as "patient". Without test images at the
    coordinator, only the counts of the sites are known: then there are no probabilities, and
    `auroc`, `average_precision` and `calibration` are missing.
    """

    round: int
    images: int
    unit: str
    units: int
    draws: int
    accuracy: ScoreInterval
    f1: ScoreInterval
    recall: ScoreInterval
    precision: ScoreInterval
    per_class: Mapping[str, ClassStatistics]
    per_site: Mapping[str, SubsetScores]  # empty where test images belong to no site
    auroc: ScoreInterval | None = None
    average_precision: ScoreInterval | None = None
    calibration: CalibrationResult | None = None
    groups: GroupStatistics | None = None


@dataclass(frozen=True)
class Timing(Record):
    """Seconds: in total, and the median over rounds as a whole and of its three phases."""

    total: float
    per_round: float
    exchange: float
    evaluate: float
    save: float


@dataclass(frozen=True)
class Traffic(Record):
    """Bytes of a round, all sites together: the mean over the rounds."""

    up: int
    down: int


@dataclass(frozen=True)
class RunResult(Record):
    """The outcome of a finished run. `f1`, `recall`, `precision`: mean of the last five rounds."""

    f1: float
    recall: float
    precision: float
    best: BestRound
    last: LastRound
    per_class: Mapping[str, ClassResult]
    method: str
    noise: str
    seed: int
    data: str
    rounds: int
    seconds: Timing
    peak_memory_mb: float
    bytes_per_round: Traffic
    guard_events: int  # how often a guard of the method stepped in, over all sites and rounds
    realised_noise: Mapping[str, float | None]  # site -> share of wrong labels, if it is known
    fingerprint: str  # of the configuration
    data_fingerprint: str
    version: str
    machine: str
    # only with held-out images (`evidence.holdout`)
    unseen: UnseenChoice | None = None
    privacy: PrivacyBudget | None = None
    # of the last round's model; None: there were no test images
    statistics: FinalStatistics | None = None


@dataclass(frozen=True)
class PreviousRun(Record):
    """before.json: the run with which a run on corrected labels is compared."""

    run: str
    f1: float
    recall: float
    precision: float
    per_class: Mapping[str, ClassResult]
    # share of wrong labels, if it is known
    wrong_share: float | None = field(metadata=stored_as("wrong"))
    config: Mapping[str, Any]  # flat: section.key -> value


# ---- setup.json ----


@dataclass(frozen=True)
class RealisedSiteNoise(Record):
    """What the injected noise did to a site's labels."""

    samples: int
    rate: float | None  # share of wrong labels
    # [true class][given class]; a last row for images of none of the classes, if there are any
    counts: Matrix


@dataclass(frozen=True)
class SiteSetup(Record):
    """A site at the start of a run; empty for a site whose data is on another machine."""

    num_samples: int | None = None
    given_per_class: tuple[int, ...] | None = None
    noise: str | None = None  # nominal, such as S40
    # only where noise was injected
    realised_noise: RealisedSiteNoise | None = field(default=None, metadata=stored_as("realised"))


@dataclass(frozen=True)
class DataSetup(Record):
    """The images of the run."""

    name: str
    fingerprint: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]  # (n, height, width, channels)
    # the grey value that became white: 16-bit values were divided by it; None: 8-bit images only
    white: int | None
    # grades from the lowest to the highest, where the classes have an order
    order: tuple[str, ...] | None = None
    # numbers per image, where the model is a head on the user's own features
    feature_width: int | None = None


@dataclass(frozen=True)
class LabelPair(Record):
    """How many labels were changed from one class to another."""

    old: str = field(metadata=stored_as("from"))
    new: str = field(metadata=stored_as("to"))
    count: int


@dataclass(frozen=True)
class LabelReview(Record):
    """What the log beside a corrected labels file says about the review."""

    counts: Mapping[str, int]
    reviewers: tuple[str, ...]
    pairs: tuple[LabelPair, ...]
    previous_run: PreviousRun | None = field(metadata=stored_as("before"))


@dataclass(frozen=True)
class LabelsInUse(Record):
    """The labels file that replaces the labels of the source."""

    file: str
    num_labels: int = field(metadata=stored_as("of"))
    # by pair, the labels that the file changes; None: the labels of the source are not known
    differ: tuple[LabelPair, ...] | None = None
    review: LabelReview | None = None


@dataclass(frozen=True)
class Setup(Record):
    """What a run starts from."""

    data: DataSetup
    test: int  # number of test images at the coordinator
    sites: Mapping[str, SiteSetup]
    warnings: tuple[str, ...]
    fingerprint: str  # of the configuration
    signature: str  # of images, sites, labels and weights: a run resumes only with the same
    weights: str | None  # sha256 of the weights file
    version: str
    labels: LabelsInUse | None = None


# ---- audit ----


@dataclass(frozen=True)
class AuditData(Record):
    """Where the audited images and labels come from."""

    source: str
    labels: str | None
    fingerprint: str
    # [classes] of a hospital's site.toml
    class_names: Mapping[str, str] | None = None


@dataclass(frozen=True)
class WrongEstimate(Record):
    """How many labels are probably wrong, with an interval."""

    count: int
    low: int
    high: int
    # True: the images say too little about the labels, or the interval is too wide for a number
    is_unsure: bool | None = None

    @property
    def can_tell(self) -> bool:
        """Whether `count` means anything."""
        return not self.is_unsure

    @property
    def text(self) -> str:
        """The number, or all that can be said about it."""
        if self.can_tell:
            return f"{self.count:,}"
        return f"at least {self.low:,}" if self.low else CANNOT_TELL


# what an audit can say about a class: `estimated_wrong` counts wrong labels; nothing; or nearly all
# labels look wrong, which is a sign that this site differs from the others and no count
COUNT_HOLDS = "judged"
CANNOT_TELL = "cannot tell"
SITES_DIFFER = "sites differ"


@dataclass(frozen=True)
class ClassAudit(Record):
    """The labels of one class."""

    class_name: str = field(metadata=stored_as("class"))
    labels: int
    estimated_wrong: WrongEstimate
    suspects: int
    # COUNT_HOLDS, CANNOT_TELL or SITES_DIFFER
    verdict: str = COUNT_HOLDS


@dataclass(frozen=True)
class SuspectPair(Record):
    """How many probably wrong labels say `given` where the model suggests `suggestion`."""

    given: str
    suggestion: str = field(metadata=stored_as("suggested"))
    count: int


@dataclass(frozen=True)
class RankingTruth(Record):
    """Quality of the ranking in a simulation, which knows the wrong labels."""

    num_wrong: int = field(metadata=stored_as("wrong"))
    auroc: float | None
    precision_at: Mapping[str, float | None]
    recall_at: Mapping[str, float | None]


@dataclass(frozen=True)
class CopySummary(Record):
    """Identical and near-identical images with different labels, whatever the evidence says."""

    pairs: int
    # on the list, first of all
    labels: int
    # of these, wrong at least
    least_wrong: int


@dataclass(frozen=True)
class EvidenceSource(Record):
    """Whose images the labels were judged by: "federation", "site" or "alone"; and why."""

    source: str
    reason: str


@dataclass(frozen=True)
class LabelSummary(Record):
    """The labels of a site as a whole."""

    labels: int
    estimated_wrong: WrongEstimate
    suspects: int
    per_class: tuple[ClassAudit, ...]
    confusions: tuple[SuspectPair, ...]
    truth: RankingTruth | None = None
    # None: there are no contradicting copies
    copies: CopySummary | None = None


@dataclass(frozen=True)
class AuditSummary(Record):
    """audit.json: what was audited, and the summary."""

    run: str  # relative to the audit's folder
    site: str
    data: AuditData
    classes: tuple[str, ...]
    method: str
    warning: str | None
    summary: LabelSummary
    version: int
    num_labels: int = field(metadata=stored_as("scored"))  # in the list
    columns: tuple[str, ...]
    # labels that a person had checked before and that are not in the list; None: none of them
    num_checked: int | None = field(default=None, metadata=stored_as("checked"))
    # None: as the method does it
    evidence: EvidenceSource | None = None
    # class names from the lowest grade to the highest; (): classes have no order
    order: tuple[str, ...] = ()
