"""Extension points: named implementations that are found by import, so that no list is edited.

A registry knows the package or module that holds the built-in implementations. It also loads what
other installed packages offer through an entry point of the same name, and the modules named in
the environment variable FEDGSCA_PLUGINS (comma separated), which worker processes inherit.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from fedgsca.errors import ConfigError, FedgscaError
from fedgsca.support.text import one_line

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
        """Add an implementation. Another one with the same name is refused.

        The same definition may be registered again: a module that is reloaded, a notebook cell that
        is executed twice, a class that a worker process unpickles.
        """
        previous = self._items.get(name)
        if previous is not None and _origin_of(previous) != _origin_of(item):
            raise ConfigError(
                "plugin.duplicate-name",
                f"{name!r} is offered twice in {self.package}: by {_origin_of(previous)} and by"
                f" {_origin_of(item)}",
                fix="rename one of the two, or remove the plugin",
            )
        self._items[name] = item
        return item

    def unregister(self, name: str) -> None:
        """Remove an implementation, for tests that register one temporarily."""
        self._items.pop(name, None)

    def load(self) -> Mapping[str, T]:
        """All implementations by name, after importing every module that can register one."""
        if not self._is_loaded:
            self._is_loaded = True  # before importing: a module that is loaded may call load()
            try:
                self._import_builtin()
                self._import_plugins()
            except BaseException:
                self._is_loaded = False  # the next call reports the problem again
                raise
        return self._items

    def _import_builtin(self) -> None:
        """Import the module, or the modules of the package; its sub-packages hold shared parts."""
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
            if not module.ispkg:
                importlib.import_module(f"{self.package}.{module.name}")

    def _import_plugins(self) -> None:
        from importlib.metadata import entry_points  # slow to import, and not needed for --help

        for entry_point in entry_points(group=self.package):
            _load_plugin(
                f"the entry point {entry_point.name} = {entry_point.value}", entry_point.load
            )
        for module in os.environ.get(PLUGINS_VARIABLE, "").split(","):
            import_plugin(module.strip())


def _origin_of(item: object) -> str:
    """Module and name of a class, of a function, or of what an object was made from.

    An object such as a reader was made from its first function, any other object from its class.
    A plain value, such as a text, is described by itself.
    """
    definition: object = item
    if not hasattr(item, "__qualname__"):
        functions = [value for value in getattr(item, "__dict__", {}).values() if callable(value)]
        definition = functions[0] if functions else type(item)
    module = getattr(definition, "__module__", "builtins")
    name = getattr(definition, "__qualname__", type(definition).__qualname__)
    return repr(item) if module == "builtins" else f"{module}.{name}"


def import_plugin(module: str) -> None:
    """Import a module by its dotted name, so that it registers its implementations."""
    if module:
        _load_plugin(f"the module {module}", lambda: importlib.import_module(module))


def _load_plugin(plugin: str, load: Callable[[], object]) -> None:
    try:
        load()
    except FedgscaError:
        raise
    except Exception as error:
        raise ConfigError(
            "plugin.cannot-load",
            f"{plugin} cannot be loaded as a plugin: {type(error).__name__}: {error}",
            fix="check that it is installed and can be imported, or remove it"
            f" (modules are named in {PLUGINS_VARIABLE})",
        ) from error


# ---- networks of the user by import path, and who may import what ----
# Importing code is a decision of the person in front of the machine. A configuration that arrives
# in a message or in a model file never imports anything by itself: a site names the networks that
# it allows in site.toml, and a person those of a model file in FEDGSCA_NETWORKS.


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
