"""`fedgsca deploy check`: everything that can go wrong at a party, tested before the start.

Nothing is started, nothing is changed. The images are read exactly as the training reads them, so
the cache that it needs exists afterwards.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedgsca.config import OWN_FEATURES, Config, load_config
from fedgsca.data.table import ImageTable
from fedgsca.errors import ClassListError, ConfigError, FedgscaError
from fedgsca.hospital.check_connection import (
    MIN_DAYS_LEFT,
    CheckResult,
    check_certificate,
    check_connection,
    failed,
    passed,
    undetermined,
)
from fedgsca.hospital.kits import (
    KEY_FILE,
    Kit,
    installed_versions,
    read_kit,
)
from fedgsca.hospital.ledger import Ledger
from fedgsca.hospital.settings import SiteSettings, read_settings
from fedgsca.support.registry import is_import_path
from fedgsca.support.text import join_words, plural, size_text

RESERVE = 1_000_000_000  # bytes for the method's memory, Flower's files and logs


def check_kit(kit: Path) -> Iterator[CheckResult]:
    """All results for a hospital's or the coordinator's kit, those of quick checks first."""
    from fedgsca.hospital.certificates import read_key_file

    info = read_kit(kit)
    config = load_config(kit / "experiment.toml")
    if not info.hospital:
        yield from check_coordinator(kit, info, config)
        return
    yield from check_versions(info.versions)
    yield from check_wheels(kit)
    key_result = check_hospital_key(kit / KEY_FILE)
    yield key_result
    settings: SiteSettings | None = None
    try:
        settings = read_settings(kit / "site.toml")
    except ConfigError as error:
        yield failed("site.toml", error.message, error.fix)
    else:
        yield check_site_name(settings, info.hospital)
        yield check_agreement(config, settings)
    key = read_key_file(kit / KEY_FILE) if key_result.ok else None
    yield from check_connection(info.address, info.port, kit / "ca.crt", key)
    yield check_processor(config)
    if settings is not None:
        yield from check_site_data(config, settings)


def check_wheels(kit: Path) -> Iterator[CheckResult]:
    """Whether the packages beside the kit are those that the consortium's authority signed."""
    from fedgsca.hospital.wheelhouse import wheels_problem

    folder = kit / "wheelhouse"
    if not folder.is_dir():
        return
    problem = wheels_problem(folder, kit / "ca.crt")
    if problem:
        again = "do not install from it; ask the coordinator for the wheelhouse again"
        yield failed("wheelhouse", problem, again)
    else:
        yield passed("wheelhouse", "all packages are those that the consortium's authority signed")


def check_hospital_key(path: Path) -> CheckResult:
    """Whether the hospital's key is complete and closed to other users."""
    from fedgsca.hospital.certificates import read_key_file

    try:
        key = read_key_file(path)
    except FedgscaError as error:
        return failed("key", f"{path.name}: {error.message}", error.fix)
    public = path.with_name(f"{path.name}.pub")
    if public.exists() and not key.fits(public.read_bytes()):
        fix = f"take {path.name} out of the kit again"
        return failed("key", f"{public.name} does not belong to {path.name}", fix)
    mode = path.stat().st_mode & 0o777
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


def check_agreement(config: Config, settings: SiteSettings) -> CheckResult:
    """Whether somebody here has agreed to the experiment of the kit."""
    try:
        agreement = Ledger(settings).agreement(config.fingerprint())
    except FedgscaError as error:
        return failed("agreement", error.message, error.fix)
    text = f"{config.method}, {plural(config.train.rounds, 'round')}"
    if agreement is None:
        return failed(
            "agreement",
            f"nobody here has agreed to the experiment ({text}), or the agreement has ended",
            './agree.sh --person "NAME, ROLE" --until YYYY-MM-DD',
        )
    return passed("agreement", f"{text}: {agreement.person} agreed until {agreement.until}")


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


def _check_num_images(config: Config, site: str, num_train: int) -> Iterator[CheckResult]:
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
        else:
            num_images = len(table)
            num_train = len(table.rows("train"))
            num_test = len(table.rows("test"))
            yield passed("data", f"{num_train} images to train on, {num_test} to test on")
            yield from _check_num_images(config, settings.name, num_train)
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


def check_coordinator(kit: Path, info: Kit, config: Config) -> Iterator[CheckResult]:
    """All results, those of quick checks first."""
    yield from check_versions(info.versions, "the kits were made with")
    yield check_experiment(config, info.fingerprint)
    yield check_server_certificate(kit, info.hosts)
    yield from check_hospital_keys(kit / "keys", config.federation.sites or ())
    yield check_port("port", info.listen, info.local, info.port, kit / "ca.crt")
    control = ("127.0.0.1", "127.0.0.1", info.control_port)
    yield check_port("port for commands", *control, kit / "ca.crt")
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
    """Whether there is one usable public key for each hospital, and none besides."""
    keys = {path.stem: path.read_bytes() for path in sorted(folder.glob("*.pub"))}
    problems = _key_problems(keys, names)
    if problems:
        yield failed(
            "hospitals' keys",
            "; ".join(problems),
            f"ask for hospital.key.pub, and save it as {folder}/NAME.pub",
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
    from fedgsca.hospital.certificates import public_pem

    problems = [f"{name} has no key" for name in names if name not in keys]
    for name, key in keys.items():
        if public_pem(key) is None:
            problems.append(f"the key of {name} is not of type ECDSA P-384")
    bodies = {name: b" ".join(key.split()[1:2]) for name, key in keys.items()}
    frequency = Counter(bodies.values())
    sharing = [name for name, body in bodies.items() if frequency[body] > 1]
    if sharing:
        problems.append(f"{join_words(sharing)} have the same key")
    return problems


def check_port(topic: str, listen: str, local: str, port: int, authority: Path) -> CheckResult:
    """Whether the port is free, or in use by a SuperLink of this consortium."""
    try:
        socket.create_connection((local, port), 2).close()
    except OSError:
        return check_free_port(topic, listen, port)
    certificate = check_certificate(local, port, authority)
    if certificate.ok:
        return passed(topic, f"the SuperLink is listening on {port}")
    return failed(
        topic,
        f"{port} is in use by a program without this certificate: {certificate.text}",
        "if it is the SuperLink, restart it; otherwise end that program,"
        " or make new kits with another port",
    )


def check_free_port(topic: str, listen: str, port: int) -> CheckResult:
    """Whether a SuperLink could listen there."""
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((listen, port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return failed(
                    topic,
                    f"this machine does not have the address {listen}",
                    "correct `listen` in consortium.toml, and superlink.sh",
                )
            return failed(
                topic,
                f"{listen}:{port}: {error.strerror}",
                "choose a port of at least 1024, or another user",
            )
    return passed(topic, f"{port} is free; no SuperLink is running yet")


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


# ---- at every party ----


def check_versions(
    versions: Mapping[str, str], owner: str = "the coordinator has"
) -> Iterator[CheckResult]:
    """Whether this machine has the versions of the kit; `owner` is part of the message."""
    own_versions = installed_versions()
    for name in ("fedgsca", "flwr", "torch"):
        version = versions.get(name)
        if own_versions[name] == version:
            yield passed(f"version of {name}", own_versions[name])
            continue
        fix = f"pip install '{name}=={version}'"
        if name == "fedgsca":
            fix = "repeat step 1 of README.md, with the wheel of the kit"
        text = f"{own_versions[name] or 'not installed'}; {owner} {version}"
        yield failed(f"version of {name}", text, fix)


def check_experiment(config: Config, fingerprint: str) -> CheckResult:
    """Whether experiment.toml is the one that the kit was made with."""
    if config.fingerprint() == fingerprint:
        rounds = plural(config.train.rounds, "round")
        return passed("experiment", f"{config.method}, {rounds}, as agreed")
    return failed(
        "experiment",
        "experiment.toml is not the one that this kit was made with",
        "take the file out of the kit again, or ask for a new kit",
    )


def check_processor(config: Config) -> CheckResult:
    """Which processor the training would use."""
    import torch

    from fedgsca.models.device import prepare_device

    try:
        device = prepare_device(config.train)
    except ConfigError as error:
        return failed("processor", error.message, error.fix)
    name = f"{os.cpu_count()} cores, no GPU is used"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return passed("processor", f"{device.type}: {name}")


def check_disk(topic: str, folder: Path, num_bytes: int) -> CheckResult:
    """Whether the folder, which need not exist yet, can be written to and has enough space."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not os.access(place, os.W_OK) or not place.is_dir():
        return failed(
            topic,
            f"this user cannot write to {folder}",
            f"create it and give it to this user, or choose another folder ({place} is closed)",
        )
    free = shutil.disk_usage(place).free
    text = f"{folder}: {size_text(free)} free, {size_text(num_bytes)} needed"
    if free < num_bytes:
        return failed(topic, text, f"free some space under {place}, or choose another disk")
    return passed(topic, text)
