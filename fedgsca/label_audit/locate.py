"""Where the evidence is: in the folder of a run, or at a hospital, which knows its kit and its site.toml rather than that folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedgsca.engine.site_node import SiteSettings, read_settings, state_folder
from fedgsca.errors import RunFolderError

SETTINGS = "site.toml"


@dataclass(frozen=True)
class Place:
    folder: Path  # with `evidence` in it
    data: str | None = None  # a hospital's images
    labels: str | None = None


def find(given: Path) -> Place:
    """From a run, a kit, a site.toml, or the state folder that a site.toml names."""
    settings = given / SETTINGS if given.is_dir() else given
    if settings.is_file():
        site = read_settings(settings)
        return Place(
            _of_site(site, settings), site.data, site.labels and str(Path(site.labels).expanduser())
        )
    if not given.is_dir():
        raise RunFolderError(
            "todo.locate-1",
            f"there is no folder {given}",
            fix="give a folder that `fedgsca run --out` made, or a hospital's kit or site.toml",
        )
    if (given / "evidence").is_dir():
        return Place(given)
    _refuse_grid(given)
    return Place(_only(given) or given)


def _refuse_grid(given: Path) -> None:
    """A comparison or a table: evidence is in its cells, and a person says in which."""
    cells = sorted(path.parent for path in given.glob("cells/*/evidence"))
    if cells:
        cell = next((path for path in cells if path.name.startswith("fedgsca-")), cells[0])
        raise RunFolderError(
            "todo.locate-2",
            f"{given} is a comparison of {len(cells)} runs, and an audit is about one",
            fix=f"give the folder of one: `fedgsca audit {cell}`",
        )


def _of_site(site: SiteSettings, settings: Path) -> Path:
    state = Path(site.state).expanduser()
    folder = state_folder(site, site.fingerprint) if site.fingerprint else _only(state)
    if folder is None or not (folder / "evidence").is_dir():
        raise RunFolderError(
            "todo.locate-3",
            f"{settings}: {folder or state} holds no evidence about labels",
            fix="it comes with the training: start this site, or give the folder of an earlier experiment under `state` with --data",
        )
    return folder


def _only(state: Path) -> Path | None:
    """The one experiment that has left evidence in a state folder."""
    found = sorted(path.parent for path in state.glob("*/evidence"))
    if len(found) > 1:
        raise RunFolderError(
            "todo.locate-4",
            f"{state} has evidence of {len(found)} experiments",
            fix="give one of them: "
            + ", ".join(str(path) for path in found)
            + " (a site with images of its own: and --data)",
        )
    return found[0] if found else None
