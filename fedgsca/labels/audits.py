"""The two ways to an audit: of the sites of a run (or a hospital's state), and of one folder.

A folder needs no run and no other hospitals: every label is judged by the site's other images, on
features of a frozen backbone (evidence.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedgsca.config import OWN_FEATURES, Config, load_config, parse_set
from fedgsca.data.readers.features_npz import FILE_NAME, has_features
from fedgsca.data.table import ImageTable
from fedgsca.errors import DataError, RunFolderError
from fedgsca.evidence import (
    SiteEvidence,
    judge_alone,
    layer_normalise,
    number_contents,
)
from fedgsca.federation.deployment import prepare_site
from fedgsca.federation.label_evidence import (
    EvidenceHeader,
    read_header,
    write_evidence,
    write_header,
)
from fedgsca.federation.samples import frozen_features
from fedgsca.federation.simulation import Division, divide
from fedgsca.federation.site_rows import SiteRows, write_site_rows
from fedgsca.hospital.answers import with_own_weights
from fedgsca.hospital.settings import read_settings, state_folder
from fedgsca.labels.audit_images import AuditImages
from fedgsca.labels.audit_table import Audit
from fedgsca.labels.build_audit import audit_site
from fedgsca.labels.find_issues import check_quota
from fedgsca.labels.gallery import write_gallery
from fedgsca.labels.site_data import (
    SETTINGS,
    EvidenceLocation,
    locate_evidence,
    open_sites,
    select_site,
)
from fedgsca.methods.site_store import Store
from fedgsca.support.text import plural

LATE_WARNING = (
    "the training left this site no evidence about its labels: it came too late, or the experiment"
    " collects none (fedgsca-e does). They are judged by its own images alone"
)
UNFINISHED_WARNING = "the run is not finished: this audit is based on the rounds so far"
# fewer labels cannot be judged by a regression on the others
MIN_LABELS = 20


def audit_run(
    run_folder: Path | str,
    *,
    sites: Sequence[str] = (),
    out: Path | str | None = None,
    data: str | None = None,
    labels: str | None = None,
    quota: float = 0.1,
    review: int | None = None,
    second_opinions: Sequence[str] = (),
    on_site: Callable[[str, int], None] | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> list[Audit]:
    """Rank the labels of a run's sites by how wrong they look, and write one audit folder per site.

    Parameters
    ----------
    run_folder
        Folder of a run, finished or not; at a hospital its kit or its site.toml.
    sites
        Names of the sites to audit; default: all sites with evidence.
    out
        Folder for the audits; default: `audit` in the run's folder.
    data, labels
        Where the images and the csv of labels are now, if they were moved since the run.
    quota, review
        Share of the labels on the priority list, 0 to 1; or exactly so many, the first ones.
    second_opinions
        "neighbours", "regression" or both.
    on_site, on_warning
        Called with the name and number of labels of each site before its audit, and with warnings.
    """
    check_quota(quota)
    location = _locate(Path(run_folder), on_warning)
    run = location.folder
    all_sites = open_sites(
        run,
        source=data or location.data,
        labels=labels or location.labels,
        class_names=location.class_names,
    )
    chosen_sites = [select_site(run, all_sites, name) for name in (sites or sorted(all_sites))]
    # the state folder of a hospital does not record whether the run has ended
    is_finished = (run / "result.json").exists() or not (run / "config.toml").exists()
    banner = "" if is_finished else UNFINISHED_WARNING
    if banner and on_warning is not None:
        on_warning(banner)
    target = run / "audit" if out is None else Path(out)
    audits = []
    for site_data in chosen_sites:
        if on_site is not None:
            on_site(site_data.site, len(site_data))
        folder = target / site_data.site
        audit = audit_site(
            run, site_data, folder, quota=quota, review=review, opinions=second_opinions
        )
        write_gallery(AuditImages(site_data, audit), banner=banner)
        audits.append(audit)
    return audits


def _locate(path: Path, on_warning: Callable[[str], None] | None) -> EvidenceLocation:
    """The evidence of a run or site; a site that came back too late for it judges alone."""
    try:
        return locate_evidence(path)
    except RunFolderError as error:
        location = judge_late_site(path) if error.code == "audit.no-evidence" else None
        if location is None:
            raise
    if on_warning is not None:
        on_warning(LATE_WARNING)
    return location


# ---- one folder of images ----


def audit_folder(
    source: Path | str,
    out: Path | str,
    *,
    labels: Path | str | None = None,
    quota: float = 0.1,
    review: int | None = None,
    second_opinions: Sequence[str] = (),
    skip_unreadable: bool = False,
    settings: Sequence[str] = (),
    on_division: Callable[[Division], None] | None = None,
) -> Audit:
    """Rank all labels of a folder of images by how wrong they look, and write the audit.

    Parameters
    ----------
    source
        Any data source: a folder, an .npz file, or kind:PATH. Images that a split column calls
        test images are left out: their labels decide how good every model looks.
    out
        A folder for the evidence and the audit; the audit is in `audit/site-1`. The same call
        continues after an interruption: features and evidence are not computed again.
    labels
        A csv of corrected labels that replaces those of the source.
    quota, review, second_opinions
        As for `audit_run`.
    skip_unreadable
        Leave out images that cannot be decoded.
    settings
        Further settings as `section.key=value`, such as "model.feature_size=224".
    on_division
        Called with the data as soon as it is read, before the features are computed.
    """
    check_quota(quota)
    config = _make_config(str(source), labels, skip_unreadable, settings)
    division = divide(config)
    (name,) = division.rows
    _check_size(division.table, division.given[name])
    if on_division is not None:
        on_division(division)
    folder = Path(out)
    if not _has_evidence(folder, name, config, division):
        given = division.given[name]
        _write_evidence(folder, name, config, division.table, division.rows[name], given)
    (audit,) = audit_run(folder, quota=quota, review=review, second_opinions=second_opinions)
    return audit


def judge_late_site(path: Path) -> EvidenceLocation | None:
    """Evidence for a hospital (its kit) to which the training left none, by its images alone.

    None where this cannot be: no kit, no data, or a network without frozen features. The folder
    `alone` keeps it apart from what a training may still leave.
    """
    site_file, plan = path / SETTINGS, path / "experiment.toml"
    if not (site_file.is_file() and plan.is_file()):
        return None
    settings, config = read_settings(site_file), load_config(plan)
    if settings.data is None or not config.model.frozen:
        return None
    folder = state_folder(settings, config.fingerprint()) / "alone"
    config = with_own_weights(config, settings)
    labels = Path(settings.labels).expanduser() if settings.labels else None
    experiment = prepare_site(config, settings.name, settings.data, labels, settings.classes)
    rows, given = experiment.rows[settings.name], experiment.sites[settings.name].labels
    _check_size(experiment.table, given)
    if not (folder / "evidence" / settings.name / "site.json").exists():
        _write_evidence(folder, settings.name, config, experiment.table, rows, given)
    place = None if labels is None else str(labels)
    return EvidenceLocation(folder, settings.data, place, settings.classes)


def is_folder_audit(folder: Path) -> bool:
    """Whether this folder was written by `audit_folder`, not by a run or at a site."""
    for path in sorted((folder / "evidence").glob("*/site.json")):
        return read_header(folder, path.parent.name).is_alone
    return False


def _make_config(
    source: str, labels: Path | str | None, skip_unreadable: bool, settings: Sequence[str]
) -> Config:
    """One site that has all images, and features: the user's own, or of a frozen backbone."""
    wishes = parse_set(settings)
    model_settings: dict[str, str] = {}
    if "name" not in wishes.get("model", {}):
        location = Path(source.rpartition(":")[2]).expanduser()
        has_file = has_features(location) or (location / FILE_NAME).is_file()
        has_own = has_file or "features" in wishes.get("data", {})
        model_settings["model__name"] = OWN_FEATURES if has_own else "efficientnet-lite0"
    return load_config(
        None,
        settings,
        data__source=source,
        data__labels=None if labels is None else str(labels),
        data__sites=1,
        data__partition="stratified",
        data__test_share=0.0,
        data__skip_unreadable=skip_unreadable,
        model__frozen=True,
        **model_settings,
    )


def _check_size(table: ImageTable, given: np.ndarray) -> None:
    if len(given) < MIN_LABELS or len(np.unique(given)) < 2:
        raise DataError(
            "audit.too-few-labels",
            f"{table.name} has {plural(len(given), 'label')} of"
            f" {plural(len(np.unique(given)), 'class', 'classes')}: too few to judge one by the"
            " others",
            fix=f"an audit needs at least {MIN_LABELS} labels and two classes",
        )


def _has_evidence(folder: Path, name: str, config: Config, division: Division) -> bool:
    """Whether the folder has the evidence about these labels; it must not have any other."""
    place = folder / "evidence" / name
    if not (place / "site.json").exists():
        if folder.exists() and any(folder.iterdir()):
            raise RunFolderError(
                "audit.folder-not-empty",
                f"{folder} exists and contains other files",
                fix="choose another --out",
            )
        return False
    header = read_header(folder, name)
    config_text, header_text = (
        json.dumps(tree, sort_keys=True, default=str) for tree in (config.to_tree(), header.config)
    )
    if header.fingerprint != division.table.fingerprint or config_text != header_text:
        raise RunFolderError(
            "audit.other-folder",
            f"{folder} contains the audit of other images, labels or settings",
            fix="choose another --out",
        )
    return True


def _write_evidence(
    folder: Path, name: str, config: Config, table: ImageTable, rows: np.ndarray, given: np.ndarray
) -> None:
    """Compute the evidence; the header is written last, so that it exists only when all does.

    `rows` (n,) are those of the table with the labels to judge, `given` (n,) their class indices.
    """
    features = np.asarray(frozen_features(config, table)[rows])
    contents = [vector.tobytes() for vector in features]
    if table.groups is not None:
        contents = [str(group).encode() for group in table.groups[rows]]
    checked = None if table.checked is None else table.checked.part(rows)
    judgement = judge_alone(
        layer_normalise(features.astype(np.float64)),
        given,
        number_contents(contents),
        table.num_classes,
        checked=checked,
    )
    place = folder / "evidence" / name
    write_evidence(Store(place), 0, SiteEvidence.of(judgement))
    header = EvidenceHeader(
        site=name,
        samples=len(rows),
        classes=tuple(table.classes),
        fingerprint=table.fingerprint,
        config=config.to_tree(),
        is_alone=True,
    )
    write_site_rows(folder, name, SiteRows(rows, given, checked))
    write_header(place, header)
