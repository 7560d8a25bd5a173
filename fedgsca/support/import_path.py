"""model.name as an import path, and who may import what.

Importing code is a decision of the person in front of the machine. A configuration that arrives in
a message or in a model file never imports anything by itself: a site names the networks that it
allows in site.toml, and a person those of a model file in FEDGSCA_NETWORKS.

Without torch, for programs that must start fast.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from fedgsca.errors import ConfigError
from fedgsca.support.text import one_line

NETWORKS_VARIABLE = "FEDGSCA_NETWORKS"


class _Permissions:
    """What this process may import; None: whatever its user configures."""

    names: frozenset[str] | None = None
    past_imports: frozenset[str] = frozenset()


def is_import_path(name: str) -> bool:
    """Whether a model's name means code of the user: package.module:function."""
    return ":" in name


def restrict_imports(names: Iterable[str] | None) -> None:
    """From now on this process imports these networks and no others; None: no restriction."""
    _Permissions.names = None if names is None else frozenset(names)


def check_import(name: str) -> None:
    """Refuse to import a network that the settings of this site do not name."""
    if _Permissions.names is not None and name not in _Permissions.names:
        raise ConfigError(
            "model.network-not-in-settings",
            f"the experiment names the network {one_line(name)}, which site.toml does not allow",
            fix=f'read that code; if you trust it, add networks = ["{one_line(name)}"] to'
            " site.toml",
        )


def remember_import(name: str) -> None:
    """The user of this process has configured this network, so its own files may name it, too."""
    _Permissions.past_imports |= {name}


def require_permission(name: str, origin: str) -> None:
    """Refuse a network that `origin`, a file from anywhere, names and that nobody here allowed."""
    names = [entry.strip() for entry in os.environ.get(NETWORKS_VARIABLE, "").split(",")]
    if name in names or name in _Permissions.past_imports:
        return
    raise ConfigError(
        "model.import-not-allowed",
        f"{origin} names the network {one_line(name)}, which would import code",
        fix=f"if you trust that module, set {NETWORKS_VARIABLE}={one_line(name)}; a model in the"
        " formats onnx or torchscript needs no import",
    )
