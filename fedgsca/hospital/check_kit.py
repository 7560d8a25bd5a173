"""`fedgsca deploy check`: everything that can go wrong at a party, tested before the start.

Nothing is started, nothing is changed. The images are read exactly as the training reads them, so
the cache that it needs exists afterwards.
"""

from __future__ import annotations

import errno
import json
import shlex
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedgsca.config import OWN_FEATURES, Config, load_config
from fedgsca.data.table import ImageTable
from fedgsca.errors import ClassListError, ConfigError, FedgscaError
from fedgsca.hospital.check import (
    RESERVE,
    CheckResult,
    check_disk,
    check_experiment,
    check_processor,
    check_versions,
    failed,
    passed,
    skipped,
    undetermined,
)
from fedgsca.hospital.check_connection import (
    MIN_DAYS_LEFT,
    SiteIdentity,
    check_certificate,
    check_connection,
)
from fedgsca.hospital.kit_files import KEY_FILE, KIT_FILE, CoordinatorKit, HospitalKit
from fedgsca.hospital.site_settings import SiteSettings, read_settings
from fedgsca.support.registry import is_import_path
from fedgsca.support.text import join_words


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
    from fedgsca.hospital.certificates import read_node_key

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
    from fedgsca.hospital.certificates import read_node_key

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
    from fedgsca.federation.deployment import site_table

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


# ---- the coordinator's kit ----


RENEW = (
    "fedgsca deploy init consortium.toml --renew-server, where the authority's key is;"
    " then copy server.pem and server.key here"
)


def check_coordinator(kit: Path, info: CoordinatorKit, config: Config) -> Iterator[CheckResult]:
    """All results, those of quick checks first."""
    yield from check_versions(info.versions, "the kits were made with")
    yield check_experiment(config, info.fingerprint)
    yield check_server_certificate(kit, info.hosts)
    yield from check_hospital_keys(kit / "keys", config.federation.sites or ())
    yield check_port(info.listen, info.local, info.port, kit / "ca.crt")
    yield check_processor(config)
    yield check_test_images(config)
    yield from check_privacy(config)
    yield check_disk("disk for run and messages", kit, RESERVE)


def check_server_certificate(kit: Path, hosts: Sequence[str]) -> CheckResult:
    """Whether the server's certificate fits its key and the authority, and is valid for `hosts`."""
    from fedgsca.hospital.certificates import check_issuer, host_text, inspect_certificate

    try:
        pem = (kit / "server.pem").read_bytes()
        key = (kit / "server.key").read_bytes()
        authority = (kit / "ca.crt").read_bytes()
        mode = (kit / "server.key").stat().st_mode & 0o777
        certificate = inspect_certificate(pem, key)
        check_issuer(pem, authority)
    except OSError as error:
        name = Path(error.filename).name
        return failed("certificate", f"{name} cannot be read: {error.strerror}", RENEW)
    except FedgscaError as error:
        return failed("certificate", error.message, RENEW)
    missing = [host for host in hosts if host_text(host) not in certificate.hosts]
    if missing:
        return failed("certificate", f"it is not for {', '.join(missing)}", RENEW)
    if certificate.age < 0:
        return failed(
            "certificate",
            "not valid yet: the clock of this machine is behind",
            "set the clock: timedatectl set-ntp true",
        )
    text = f"signed by the consortium, for {', '.join(hosts)}, until {certificate.end:%Y-%m-%d}"
    if certificate.days_left < MIN_DAYS_LEFT:
        return failed("certificate", f"{text}: {certificate.days_left} days left", RENEW)
    if mode & 0o077:
        return failed(
            "certificate",
            f"other users of this machine can read server.key (mode {mode:o})",
            f"chmod 600 {shlex.quote(str(kit / 'server.key'))}",
        )
    return passed("certificate", text)


def check_hospital_keys(folder: Path, names: Sequence[str]) -> Iterator[CheckResult]:
    """Whether there is one usable public key for each hospital, and none besides.

    Whether the SuperLink knows them is reported by register-keys.sh.
    """
    keys = {path.stem: path.read_bytes() for path in sorted(folder.glob("*.pub"))}
    problems = _key_problems(keys, names)
    if problems:
        yield failed(
            "hospitals' keys",
            "; ".join(problems),
            f"ask for hospital.key.pub, save it as {folder}/NAME.pub, then run ./register-keys.sh",
        )
    else:
        yield passed("hospitals' keys", ", ".join(names))
    surplus = sorted(set(keys) - set(names))
    if surplus:
        yield undetermined(
            "further keys",
            f"{', '.join(surplus)}: not part of the experiment",
            "remove them if nobody should connect with them",
        )


def _key_problems(keys: dict[str, bytes], names: Sequence[str]) -> list[str]:
    from fedgsca.hospital.certificates import is_public_key

    problems = [f"{name} has no key" for name in names if name not in keys]
    for name, key in keys.items():
        if not is_public_key(key):
            problems.append(f"the key of {name} is not of type ECDSA P-384")
    bodies = {name: b" ".join(key.split()[1:2]) for name, key in keys.items()}
    frequency = Counter(bodies.values())
    sharing = [name for name, body in bodies.items() if frequency[body] > 1]
    if sharing:
        problems.append(f"{join_words(sharing)} have the same key")
    return problems


def check_port(listen: str, local: str, port: int, authority: Path) -> CheckResult:
    """Whether the port is free, or in use by a SuperLink of this consortium."""
    try:
        socket.create_connection((local, port), 2).close()
    except OSError:
        return check_free_port(listen, port)
    certificate = check_certificate(local, port, authority)
    if certificate.ok:
        return passed("port", f"the SuperLink is listening on {port}")
    return failed(
        "port",
        f"{port} is in use by a program without this certificate: {certificate.text}",
        "if it is the SuperLink, restart it; otherwise end that program,"
        " or make new kits with another port",
    )


def check_free_port(listen: str, port: int) -> CheckResult:
    """Whether a SuperLink could listen there."""
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((listen, port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return failed(
                    "port",
                    f"this machine does not have the address {listen}",
                    "correct `listen` in consortium.toml, and superlink.sh",
                )
            return failed(
                "port",
                f"{listen}:{port}: {error.strerror}",
                "choose a port of at least 1024, or another user",
            )
    return passed("port", f"{port} is free; no SuperLink is running yet")


def check_test_images(config: Config) -> CheckResult:
    """The coordinator's own test images, read as the training reads them."""
    from fedgsca.federation.deployment import prepare_coordinator

    try:
        test = prepare_coordinator(config).test
    except FedgscaError as error:
        return failed("test images", error.message, error.fix)
    if test is None:
        return passed("test images", "none here, each hospital tests on its own")
    return passed("test images", f"{len(test)} in {config.federation.test}")


def check_privacy(config: Config) -> Iterator[CheckResult]:
    """The budget that the experiment spends under `privacy`; nothing without `privacy`."""
    from fedgsca.federation.privacy import spent_epsilon

    rounds = config.train.rounds
    try:
        epsilon = spent_epsilon(config, rounds)
    except FedgscaError as error:
        yield failed("privacy", error.message, error.fix)
        return
    if epsilon is not None and config.privacy is not None:
        budget = f"epsilon {epsilon:.3g} at delta {config.privacy.delta:g} after {rounds} rounds"
        yield passed("privacy", f"{budget}, for a site as a whole")
