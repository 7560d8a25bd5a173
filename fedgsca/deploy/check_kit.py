"""`fedgsca deploy check`: everything that can go wrong at a hospital, tested before the start.

Nothing is started, nothing is changed. The images are read exactly as the training reads them, so
the cache that it needs exists afterwards. check_coordinator.py checks the kit of the coordinator.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from fedgsca.config import OWN_FEATURES, Config, load_config
from fedgsca.data.table import ImageTable
from fedgsca.deploy.check import (
    RESERVE,
    CheckResult,
    check_disk,
    check_experiment,
    check_processor,
    check_versions,
    failed,
    passed,
    skipped,
)
from fedgsca.deploy.check_connection import check_connection
from fedgsca.deploy.check_coordinator import check_coordinator
from fedgsca.deploy.flower_probe import SiteIdentity
from fedgsca.deploy.kit_files import KEY_FILE, KIT_FILE, CoordinatorKit, HospitalKit
from fedgsca.engine.site_node import SiteSettings, read_settings
from fedgsca.errors import ClassListError, ConfigError, FedgscaError
from fedgsca.support.registry import is_import_path


def check_kit(kit: Path) -> Iterator[CheckResult]:
    """All results for a hospital's or the coordinator's kit, those of quick checks first."""
    info = read_kit(kit)
    config = load_config(kit / "experiment.toml")
    if isinstance(info, CoordinatorKit):
        yield from check_coordinator(kit, info, config)
        return
    yield from check_versions(info.versions)
    yield check_experiment(config, info.fingerprint)
    key = check_hospital_key(kit / KEY_FILE)
    yield key
    settings: SiteSettings | None = None
    try:
        settings = read_settings(kit / "site.toml")
    except ConfigError as error:
        yield failed("site.toml", error.message, error.fix)
    else:
        yield check_site_name(settings, info.hospital)
    identity = None if key.state == "FAIL" else _read_identity(kit)
    yield from check_connection(info.address, info.port, kit / "ca.crt", identity)
    yield check_processor(config)
    if settings is not None:
        yield from check_site_data(config, settings)


def read_kit(kit: Path) -> HospitalKit | CoordinatorKit:
    """kit.json of a kit's folder."""
    try:
        fields = dict(json.loads((kit / KIT_FILE).read_bytes()))
    except (OSError, ValueError):
        raise ConfigError(
            "deploy.not-a-kit",
            f"{kit} is not a kit: it has no readable {KIT_FILE}",
            fix="give the folder that was in the zip file, or the coordinator's folder",
        ) from None
    if "hospital" in fields:
        return HospitalKit.from_json(fields)
    return CoordinatorKit.from_json(fields)


def check_hospital_key(path: Path) -> CheckResult:
    """Whether the hospital's key is complete and closed to other users."""
    from fedgsca.deploy.certificates import read_node_key

    again = f"take {path.name} out of the kit again"
    try:
        data = path.read_bytes()
        mode = path.stat().st_mode & 0o777
        key = read_node_key(data)
    except OSError as error:
        return failed("key", f"{path.name} cannot be read: {error.strerror}", again)
    except FedgscaError as error:
        return failed("key", f"{path.name}: {error.message}", error.fix)
    public = path.with_name(f"{path.name}.pub")
    if public.exists() and not key.fits(public.read_bytes()):
        return failed("key", f"{public.name} does not belong to {path.name}", again)
    if mode & 0o077:
        return failed(
            "key",
            f"other users of this machine can read {path.name} (mode {mode:o})",
            f"chmod 600 {shlex.quote(str(path))}",
        )
    return passed("key", "complete, and readable by this user only")


def check_site_name(settings: SiteSettings, hospital: str) -> CheckResult:
    """Whether site.toml has the name that the key was made for."""
    if settings.name == hospital:
        return passed("site.toml", f"has the name {hospital}")
    return failed(
        "site.toml",
        f"it has the name {settings.name}, but the key is that of {hospital}",
        f'set name = "{hospital}"',
    )


def _read_identity(kit: Path) -> SiteIdentity | None:
    from fedgsca.deploy.certificates import read_node_key

    try:
        key = read_node_key((kit / KEY_FILE).read_bytes())
    except (OSError, FedgscaError):
        return None
    return SiteIdentity(key.public, key.sign)


def _check_features(table: ImageTable) -> CheckResult:
    """Whether the features that the experiment trains on are there; their width was checked."""
    if table.features is None:
        return failed(
            "features",
            "the experiment trains on features, and the data has none",
            "add features.npz (arrays features and files) to the folder, or name an .npz file with"
            " features and labels as data in site.toml",
        )
    return passed("features", f"{table.features.shape[1]} per image")


def _check_network(name: str, settings: SiteSettings) -> CheckResult:
    """Whether the hospital has decided about the code that the experiment would import."""
    if name in settings.networks:
        return passed("network", f"{name} is allowed in site.toml")
    return failed(
        "network",
        f"the experiment imports {name}, which site.toml does not allow",
        f'read that code; if you trust it, install it and add networks = ["{name}"] to site.toml',
    )


def _check_agreement(config: Config, site: str, num_train: int) -> Iterator[CheckResult]:
    """Whether the site has more training images than the consortium agreed on."""
    max_images = config.aggregation.agreed_images(site)
    if max_images is None:
        return
    if num_train <= max_images:
        yield passed("images agreed", f"{num_train:,} of at most {max_images:,} images")
        return
    yield failed(
        "images agreed",
        f"{num_train:,} images to train on, but the consortium agreed on {max_images:,} at most:"
        " every update would be refused",
        "use the agreed images only, or ask the coordinator for a new agreement",
    )


def check_site_data(config: Config, settings: SiteSettings) -> Iterator[CheckResult]:
    """Images and class names as the training reads them, and disk space for what it writes."""
    from fedgsca.data.cache import cache_folder
    from fedgsca.experiment.deployment import site_table

    num_images = 0
    if settings.data is None:
        yield failed("data", "site.toml does not say where the images are", "set data in site.toml")
    else:
        labels = Path(settings.labels) if settings.labels else None
        try:
            table = site_table(config, settings.data, labels, settings.classes)
        except ClassListError as error:
            yield passed("data", f"{settings.data} can be read")
            yield failed("classes", error.message, error.fix)
        except FedgscaError as error:
            yield failed("data", error.message, error.fix)
            yield skipped(
                "classes", "not compared with the consortium's list", "fix the data first"
            )
        else:
            num_images = len(table)
            num_train = len(table.rows("train"))
            num_test = len(table.rows("test"))
            yield passed("data", f"{num_train} images to train on, {num_test} to test on")
            yield from _check_agreement(config, settings.name, num_train)
            present = {table.classes[label] for label in table.labels}
            total = len(table.classes)
            yield passed(
                "classes", f"{len(present)} of the consortium's {total} classes, no others"
            )
            if config.model.name == OWN_FEATURES:
                yield _check_features(table)
    if is_import_path(config.model.name):
        yield _check_network(config.model.name, settings)
    num_bytes = num_images * (config.data.image_size or 0) ** 2 * 3
    yield check_disk("disk for state", Path(settings.state).expanduser(), RESERVE)
    yield check_disk("disk for decoded images", cache_folder(), num_bytes)
