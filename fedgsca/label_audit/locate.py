"""Find the evidence of a run from its folder or, at a hospital, from its kit or site.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedgsca.engine.site_settings import SiteSettings, read_settings, state_folder
from fedgsca.errors import RunFolderError

SETTINGS = "site.toml"


@dataclass(frozen=True)
class EvidenceLocation:
    """The folder with `evidence` in it and, at a hospital, its images and labels."""

    folder: Path
    data: str | None = None
    labels: str | None = None
    class_names: Mapping[str, str] = field(default_factory=dict)


def locate_evidence(path: Path) -> EvidenceLocation:
    """Find the evidence of a run, a kit, a site.toml, or the state folder of a site."""
    settings = path / SETTINGS if path.is_dir() else path
    if settings.is_file():
        site = read_settings(settings)
        labels = str(Path(site.labels).expanduser()) if site.labels else site.labels
        folder = _folder_of_site(site, settings)
        return EvidenceLocation(folder, site.data, labels, site.classes)
    if not path.is_dir():
        raise RunFolderError(
            "run.folder-not-found",
            f"there is no folder {path}",
            fix="give a folder written by `fedgsca run --out`, or a hospital's kit or site.toml",
        )
    if (path / "evidence").is_dir():
        return EvidenceLocation(path)
    _refuse_comparison(path)
    return EvidenceLocation(_only_experiment(path) or path)


def _refuse_comparison(path: Path) -> None:
    """The evidence of a comparison or a table is in its runs, and the user must choose one."""
    runs = sorted(folder.parent for folder in path.glob("cells/*/evidence"))
    if not runs:
        return
    fedgsca_runs = [run for run in runs if run.name.startswith("fedgsca-")]
    example = (fedgsca_runs or runs)[0]
    raise RunFolderError(
        "audit.several-runs",
        f"{path} is a comparison of {len(runs)} runs, but an audit is about one run",
        fix=f"give the folder of one run: `fedgsca audit {example}`",
    )


def _folder_of_site(site: SiteSettings, settings: Path) -> Path:
    state = Path(site.state).expanduser()
    if site.fingerprint:
        folder: Path | None = state_folder(site, site.fingerprint)
    else:
        folder = _only_experiment(state)
    if folder is None or not (folder / "evidence").is_dir():
        raise RunFolderError(
            "audit.no-evidence",
            f"{folder or state}, the state folder named in {settings}, contains no evidence about"
            " labels",
            fix="train first: start this site; or give the folder of an earlier experiment below"
            " `state`, with --data",
        )
    return folder


def _only_experiment(state: Path) -> Path | None:
    """The one experiment with evidence in a state folder; None if there is none."""
    folders = sorted(path.parent for path in state.glob("*/evidence"))
    if len(folders) > 1:
        names = ", ".join(str(path) for path in folders)
        raise RunFolderError(
            "audit.several-experiments",
            f"{state} contains evidence of {len(folders)} experiments",
            fix=f"give one of them: {names} (for a site with its own images, add --data)",
        )
    return folders[0] if folders else None
