"""Train one image classifier across hospitals whose labels are partly wrong.

    import fedgsca

    config = fedgsca.Config.load(data="synthetic", noise="0-S40-P20-C20", rounds=20, frozen=True)
    run = fedgsca.run(config, out="runs/a")
    print(run.f1, run.report())

Names are imported when they are first used, so that `import fedgsca` takes no time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fedgsca.support.version import __version__ as __version__

if TYPE_CHECKING:
    from fedgsca import noise as noise
    from fedgsca.api import Run as Run
    from fedgsca.api import apply_decisions as apply_decisions
    from fedgsca.api import audit as audit
    from fedgsca.api import audit_folder as audit_folder
    from fedgsca.api import compare as compare
    from fedgsca.api import load_run as load_run
    from fedgsca.api import predict as predict
    from fedgsca.api import record_decisions as record_decisions
    from fedgsca.api import resume as resume
    from fedgsca.api import run as run
    from fedgsca.config import Config as Config
    from fedgsca.errors import FedgscaError as FedgscaError
    from fedgsca.labels.find_issues import find_label_issues as find_label_issues
    from fedgsca.methods.base import register as register

_MODULE_OF = {
    "Config": "fedgsca.config",
    "FedgscaError": "fedgsca.errors",
    "Run": "fedgsca.api",
    "apply_decisions": "fedgsca.api",
    "audit": "fedgsca.api",
    "audit_folder": "fedgsca.api",
    "compare": "fedgsca.api",
    "find_label_issues": "fedgsca.labels.find_issues",
    "load_run": "fedgsca.api",
    "predict": "fedgsca.api",
    "record_decisions": "fedgsca.api",
    "register": "fedgsca.methods.base",
    "resume": "fedgsca.api",
    "run": "fedgsca.api",
}
__all__ = [*sorted(_MODULE_OF), "noise"]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562)."""
    if name == "noise":
        return importlib.import_module("fedgsca.noise")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'fedgsca' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
