"""The version of the package, apart from `__init__.py` so that every layer may import it."""

__version__ = "0.4.0"
