"""Extension points: named implementations that are found by import, so that no list has to be edited.

A registry knows the package whose modules hold the built-in implementations. It also loads what
other installed packages offer through an entry point of the same name, and the modules named in
the environment variable FEDGSCA_PLUGINS (comma separated), which worker processes inherit.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Generic, TypeVar

T = TypeVar("T")

PLUGINS_VARIABLE = "FEDGSCA_PLUGINS"


class Registry(Generic[T]):
    """Named implementations of one extension point, such as methods or noise kinds."""

    def __init__(self, package: str) -> None:
        """`package` holds the built-in implementations and names the entry point group."""
        self.package = package
        self._items: dict[str, T] = {}
        self._is_loaded = False

    def register(self, name: str, item: T) -> T:
        """Add an implementation. A second one with the same name replaces the first."""
        self._items[name] = item
        return item

    def unregister(self, name: str) -> None:
        """Forget an implementation, for tests that register one for a while."""
        self._items.pop(name, None)

    def load(self) -> Mapping[str, T]:
        """All implementations by name, after importing every module that can register one."""
        if not self._is_loaded:
            self._is_loaded = True
            self._import_builtin()
            self._import_plugins()
        return self._items

    def _import_builtin(self) -> None:
        """Import the modules of the package. Its sub-packages hold shared parts and are skipped."""
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            if not module.ispkg:
                importlib.import_module(f"{self.package}.{module.name}")

    def _import_plugins(self) -> None:
        for entry_point in entry_points(group=self.package):
            entry_point.load()
        for module in os.environ.get(PLUGINS_VARIABLE, "").split(","):
            if module.strip():
                importlib.import_module(module.strip())
