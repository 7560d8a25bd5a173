"""site.toml: a hospital's own decisions about its part of a federation."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from fedgsca.config import Section, read_toml, validation_problems
from fedgsca.errors import ConfigError


class SiteSettings(Section):
    """site.toml: a hospital's own decisions. Only the name leaves the hospital."""

    name: str = Field(min_length=1)
    state: str = Field(description="folder for the site's private memory")
    data: str | None = Field(
        default=None,
        description="its own images; without them, a rehearsal with its part of the shared source",
    )
    labels: str | None = Field(
        default=None, description="csv (file,label) that replaces the given training labels"
    )
    classes: dict[str, str] = Field(
        default_factory=dict,
        description="its own class names -> those of the consortium",
    )
    weights: str | None = Field(
        default=None, description="its own copy of the frozen backbone's weights"
    )
    networks: tuple[str, ...] = Field(
        default=(),
        description="import paths of networks (package.module:function) that an experiment may"
        " use; without them, no message can make this site import code",
    )
    diagnostics: bool = Field(
        default=False,
        description="send numbers about its labels, such as the share that looks wrong; the"
        " coordinator shows them beside its name",
    )


def read_settings(path: Path) -> SiteSettings:
    """Read and check site.toml."""
    try:
        return SiteSettings.model_validate(read_toml(path))
    except ValidationError as error:
        raise ConfigError(
            "site.invalid-settings",
            f"{path} is not valid:",
            fix="correct the keys above",
            problems=validation_problems(error, SiteSettings),
        ) from None


def state_folder(settings: SiteSettings, fingerprint: str) -> Path:
    """The folder of a site for one experiment."""
    return Path(settings.state).expanduser() / fingerprint[:16]
