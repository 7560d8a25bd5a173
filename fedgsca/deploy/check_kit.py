"""`fedgsca deploy check`: all that can go wrong at a hospital, tested before the start. Nothing is started, nothing is changed.
check_coordinator.py does the same for the kit of the coordinator.

The images are read exactly as the training reads them, so the cache that it needs is there afterwards.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedgsca.config import Config, load_config
from fedgsca.deploy.check_result import Finding, failed, passed, unknown
from fedgsca.deploy.kit_files import KEY, KIT, versions
from fedgsca.engine.site_node import SiteSettings, read_settings
from fedgsca.errors import ClassListError, ConfigError, FedgscaError
from fedgsca.support.text import size_text

RESERVE = 1_000_000_000  # bytes for the method's memory, Flower's files and logs


def check_kit(kit: Path) -> Iterator[Finding]:
    """All findings, the cheap ones first."""
    about = read_about(kit)
    config = load_config(kit / "experiment.toml")
    if "hospital" not in about:
        from fedgsca.deploy.check_coordinator import check_coordinator

        yield from check_coordinator(kit, about, config)
        return
    yield from same_versions(about["versions"])
    yield terms(config, about)
    key = hospital_key(kit / KEY)
    yield key
    settings: SiteSettings | None = None
    try:
        settings = read_settings(kit / "site.toml")
    except ConfigError as error:
        yield failed("site.toml", error.message, error.fix)
    else:
        yield site_name(settings, about["hospital"])
    yield from _network(kit, about, key.state != "FAIL")
    yield processor(config)
    if settings is not None:
        yield from own_data(config, settings)


def read_about(kit: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((kit / KIT).read_bytes()))
    except (OSError, ValueError):
        raise ConfigError(
            "todo.check-kit-1",
            f"{kit} is not a kit (no readable {KIT})",
            fix="give the folder that was in the zip, or the coordinator's",
        ) from None


def same_versions(wanted: dict[str, str], whose: str = "the coordinator has") -> Iterator[Finding]:
    here = versions()
    for name in ("fedgsca", "flwr", "torch"):
        if here[name] == wanted.get(name):
            yield passed(f"version of {name}", here[name])
        else:
            text = f"{here[name] or 'not installed'}; {whose} {wanted.get(name)}"
            index = f"pip install '{name}=={wanted.get(name)}'"
            yield failed(
                f"version of {name}",
                text,
                index if name != "fedgsca" else "step 1 of README.md, with its wheel",
            )


def terms(config: Config, about: dict[str, Any]) -> Finding:
    if config.fingerprint() == about["fingerprint"]:
        return passed("experiment", f"{config.method}, {config.train.rounds} rounds, as agreed")
    return failed(
        "experiment",
        "experiment.toml is not that of this kit",
        "take the file out of the kit again, or ask for a new kit",
    )


def hospital_key(path: Path) -> Finding:
    from fedgsca.deploy.certificates import read_key

    again = f"take {path.name} out of the kit again"
    try:
        data, mode = path.read_bytes(), path.stat().st_mode & 0o777
        key = read_key(data)
    except OSError as error:
        return failed("key", f"{path.name} cannot be read: {error.strerror}", again)
    except FedgscaError as error:
        return failed("key", f"{path.name} is {error.message}", error.fix)
    public = path.with_name(f"{path.name}.pub")
    if public.exists() and not key.fits(public.read_bytes()):
        return failed("key", f"{public.name} is not the other half of {path.name}", again)
    if mode & 0o077:
        return failed(
            "key",
            f"others on this machine can read {path.name} (mode {mode:o})",
            f"chmod 600 {shlex.quote(str(path))}",
        )
    return passed("key", "there, and readable by this user only")


def site_name(settings: SiteSettings, name: str) -> Finding:
    if settings.name == name:
        return passed("site.toml", f"speaks for {name}")
    return failed(
        "site.toml",
        f"calls itself {settings.name}, but the key is that of {name}",
        f'set name = "{name}"',
    )


def _network(kit: Path, about: dict[str, Any], usable: bool) -> Iterator[Finding]:
    from fedgsca.deploy.certificates import read_key
    from fedgsca.deploy.check_connection import reach

    try:
        key = read_key((kit / KEY).read_bytes()) if usable else None
    except (OSError, FedgscaError):
        key = None
    yield from reach(
        about["address"],
        int(about["port"]),
        kit / "ca.crt",
        key.sign if key else None,
        key.public if key else b"",
    )


def processor(config: Config) -> Finding:
    import torch

    from fedgsca.models.device import prepare_device

    try:
        device = prepare_device(config.train)
    except ConfigError as error:
        return failed("processor", error.message, error.fix)
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{os.cpu_count()} cores, no GPU is used"
    )
    return passed("processor", f"{device.type}: {name}")


def own_data(config: Config, settings: SiteSettings) -> Iterator[Finding]:
    """Images and class names as the training sees them, and room for what it writes."""
    from fedgsca.data.cache import cache_folder
    from fedgsca.experiment.deployment import site_table

    count = 0
    if settings.data is None:
        yield failed("data", "site.toml names no images", "set data in site.toml")
    else:
        try:
            table = site_table(
                config, settings.data, Path(settings.labels) if settings.labels else None
            )
        except ClassListError as error:
            yield passed("data", f"{settings.data} can be read")
            yield failed("classes", error.message, error.fix)
        except FedgscaError as error:
            yield failed("data", error.message, error.fix)
            yield unknown("classes", "not compared", "mend the data first")
        else:
            count = len(table)
            yield passed(
                "data",
                f"{len(table.rows('train'))} images to train on, {len(table.rows('test'))} to test on",
            )
            present = {table.classes[label] for label in table.labels}
            yield passed(
                "classes",
                f"{len(present)} of the consortium's {len(table.classes)} classes, no others",
            )
    images = count * (config.data.image_size or 0) ** 2 * 3
    yield room("disk for state", Path(settings.state).expanduser(), RESERVE)
    yield room("disk for decoded images", cache_folder(), images)


def room(what: str, folder: Path, need: int) -> Finding:
    """Free space where the folder is or will be, and whether it may be written to."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not os.access(place, os.W_OK) or not place.is_dir():
        return failed(
            what,
            f"{folder} cannot be written to by this user",
            f"create it and give it to this user, or choose another: {place} is closed",
        )
    free = shutil.disk_usage(place).free
    text = f"{folder}: {size_text(free)} free, {size_text(need)} needed"
    return (
        passed(what, text)
        if free >= need
        else failed(what, text, f"free some space under {place}, or choose another disk")
    )
