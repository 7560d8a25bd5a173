"""Whether the packages of the [monai] extra are there."""

from __future__ import annotations

from importlib.util import find_spec

from fedgsca.errors import MissingExtraError

_PACKAGES = ("monai", "einops")


def need_monai(model: str) -> None:
    """Raise an error with the line that installs the extra, if a package of it is missing."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            "extra.monai-missing",
            f"the model {model} needs packages that are not installed: {', '.join(missing)}",
            fix="pip install 'fedgsca[monai]'",
        )
