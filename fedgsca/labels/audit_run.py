"""Audit the labels of a run: all its sites, or some of them, into one folder per site."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.federation.label_evidence import sites_with_evidence
from fedgsca.labels.audit_images import AuditImages
from fedgsca.labels.audit_table import Audit
from fedgsca.labels.build_audit import audit_site
from fedgsca.labels.find_issues import check_quota
from fedgsca.labels.gallery import write_gallery
from fedgsca.labels.site_data import (
    EvidenceLocation,
    SiteData,
    locate_evidence,
    open_sites,
    select_site,
    select_test_split,
)
from fedgsca.support.text import did_you_mean

SPLITS = ("train", "test")
LATE_WARNING = (
    "the training left this site no evidence, because it came too late: its labels are judged by"
    " its own images alone, without those of the other hospitals"
)
UNFINISHED_WARNING = "the run is not finished: this audit is based on the rounds so far"


def audit_run(
    run_folder: Path | str,
    *,
    sites: Sequence[str] = (),
    out: Path | str | None = None,
    data: str | None = None,
    labels: str | None = None,
    quota: float = 0.1,
    second_opinions: Sequence[str] = (),
    split: str = "train",
    unlock_test: bool = False,
    on_site: Callable[[str, int], None] | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> list[Audit]:
    """Rank the labels of a run's sites by how wrong they look, and write one audit folder per site.

    Each audit has its folder (`path`), the number of labels to review (`num_suspects`), numbers
    about all labels (`summary`), and `suspects()`, which reads them from the disk one at a time.

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
    quota
        Share of the labels on the priority list, 0 to 1.
    second_opinions
        "neighbours", "cleanlab" (needs the extra) or both.
    split
        "train", or "test" for the labels that score every model; these need `unlock_test`.
    on_site, on_warning
        Called with the name and number of labels of each site before its audit, and with warnings.
    """
    _check_split(split, unlock_test)
    check_quota(quota)
    location = _locate(Path(run_folder), on_warning)
    run = location.folder
    source = data or location.data
    chosen_sites = _open_chosen_sites(
        run, sites, source, labels or location.labels, location.class_names
    )
    if split == "test":
        chosen_sites = [select_test_split(chosen_sites[0])]
    banner = "" if _is_finished(run) else UNFINISHED_WARNING
    if banner and on_warning is not None:
        on_warning(banner)
    target = run / "audit" if out is None else Path(out)
    audits = []
    for site_data in chosen_sites:
        if on_site is not None:
            on_site(site_data.site, len(site_data))
        audit = audit_site(
            run,
            site_data,
            target / site_data.site,
            quota=quota,
            opinions=second_opinions,
            split=split,
        )
        write_gallery(AuditImages(site_data, audit), banner=banner)
        audits.append(audit)
    return audits


def _locate(path: Path, on_warning: Callable[[str], None] | None) -> EvidenceLocation:
    """The evidence of a run or site; a site that came back too late for it judges alone."""
    from fedgsca.labels.audit_folder import judge_late_site

    try:
        return locate_evidence(path)
    except RunFolderError as error:
        location = judge_late_site(path) if error.code == "audit.no-evidence" else None
        if location is None:
            raise
    if on_warning is not None:
        on_warning(LATE_WARNING)
    return location


def _open_chosen_sites(
    run: Path,
    names: Sequence[str],
    source: str | None,
    labels: str | None,
    class_names: Mapping[str, str],
) -> list[SiteData]:
    """The data of these sites, or of all sites; a misspelled name is reported first."""
    unknown_names = sorted(set(names) - set(sites_with_evidence(run)))
    sites = open_sites(run, source=source, labels=labels, class_names=class_names)
    return [select_site(run, sites, name) for name in (unknown_names or names or sorted(sites))]


def _check_split(split: str, unlock_test: bool) -> None:
    if split not in SPLITS:
        raise ConfigError(
            "audit.unknown-split",
            f"there is no split named {split!r} to audit",
            fix=f"{did_you_mean(split, SPLITS)}use one of: {', '.join(SPLITS)}",
        )
    if split == "test" and not unlock_test:
        raise ConfigError(
            "audit.test-labels-locked",
            "the test labels are locked, because they decide how good every model looks: correcting"
            " only the labels that a model doubts improves its score without making it better, and"
            " later scores cannot be compared with earlier ones",
            fix="audit the training labels; if you must inspect the test labels, add"
            " --split test --unlock-test (Python: unlock_test=True)",
        )


def _is_finished(run: Path) -> bool:
    """Whether the run has its result; the state folder of a hospital does not record it."""
    return (run / "result.json").exists() or not (run / "config.toml").exists()
