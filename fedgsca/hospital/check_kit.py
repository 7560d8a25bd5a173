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
    CheckError,
    CheckResult,
    check,
    check_connection,
    inspect_certificate_of,
)
from fedgsca.hospital.kits import KEY_FILE, Kit, installed_versions, read_kit
from fedgsca.hospital.ledger import Ledger
from fedgsca.hospital.settings import SiteSettings, read_settings
from fedgsca.support.registry import is_import_path
from fedgsca.support.text import join_words, plural, size_text

RESERVE = 1_000_000_000  # bytes for the method's memory, Flower's files and logs
_RENEW = (
    "fedgsca deploy init consortium.toml --renew-server, where the authority's key is;"
    " then copy server.pem and server.key here"
)


def check_kit(folder: Path) -> Iterator[CheckResult]:
    """All results for a hospital's or the coordinator's kit, those of quick checks first."""
    kit = read_kit(folder)
    config = load_config(folder / "experiment.toml")
    if kit.hospital:
        yield from _check_hospital(folder, kit, config)
    else:
        yield from _check_coordinator(folder, kit, config)


def _check_hospital(folder: Path, kit: Kit, config: Config) -> Iterator[CheckResult]:
    from fedgsca.hospital.certificates import read_key_file

    yield from check_versions(kit.versions, "the coordinator has")
    if (folder / "wheelhouse").is_dir():
        yield check("wheelhouse", inspect_wheels, folder)
    key_result = check("key", inspect_key, folder / KEY_FILE)
    yield key_result
    settings: SiteSettings | None = None
    try:
        settings = read_settings(folder / "site.toml")
    except ConfigError as error:
        yield CheckResult("site.toml", "FAIL", error.message, error.fix)
    else:
        yield check("site.toml", _inspect_name, settings, kit.hospital)
        yield check("agreement", _inspect_agreement, config, settings)
    public_key = read_key_file(folder / KEY_FILE).public if key_result.ok else b""
    yield from check_connection(kit.address, kit.port, folder / "ca.crt", public_key)
    yield check("processor", _inspect_processor, config)
    if settings is not None:
        yield from check_site_data(config, settings)


def _check_coordinator(folder: Path, kit: Kit, config: Config) -> Iterator[CheckResult]:
    authority = folder / "ca.crt"
    yield from check_versions(kit.versions, "the kits were made with")
    yield check("experiment", _inspect_experiment, config, kit.fingerprint)
    yield check("certificate", inspect_server_files, folder, kit.hosts)
    yield from _check_public_keys(folder / "keys", config.federation.sites or ())
    yield check("port", inspect_port, kit.listen, kit.local, kit.port, authority)
    loopback = "127.0.0.1"
    yield check("port for commands", inspect_port, loopback, loopback, kit.control_port, authority)
    yield check("processor", _inspect_processor, config)
    yield check("test images", inspect_test_images, config)
    if config.privacy is not None and config.privacy.noise > 0:
        yield check("privacy", _inspect_budget, config)
    yield check("disk for run and messages", inspect_disk, folder, RESERVE)


# ---- at every party ----


def check_versions(versions: Mapping[str, str], owner: str) -> Iterator[CheckResult]:
    """Whether this machine has the versions of the kit; `owner` is part of the message."""
    own_versions = installed_versions()
    for name in ("fedgsca", "flwr", "torch"):
        own_version, version = own_versions[name], versions.get(name)
        text, fix = own_version, ""
        if own_version != version:
            text = f"{own_version or 'not installed'}; {owner} {version}"
            fix = f"pip install '{name}=={version}'"
            if name == "fedgsca":
                fix = "repeat step 1 of README.md, with the wheel of the kit"
        yield CheckResult(f"version of {name}", "FAIL" if fix else "ok", text, fix)


def _inspect_processor(config: Config) -> str:
    """Which processor the training would use."""
    import torch

    from fedgsca.models.device import prepare_device

    device = prepare_device(config.train)
    name = f"{os.cpu_count()} cores, no GPU is used"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return f"{device.type}: {name}"


def inspect_disk(folder: Path, num_bytes: int) -> str:
    """The folder, which need not exist yet, must be writable and have enough space."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not os.access(place, os.W_OK) or not place.is_dir():
        raise CheckError(
            f"this user cannot write to {folder}",
            f"create it and give it to this user, or choose another folder ({place} is closed)",
        )
    free = shutil.disk_usage(place).free
    text = f"{folder}: {size_text(free)} free, {size_text(num_bytes)} needed"
    if free < num_bytes:
        raise CheckError(text, f"free some space under {place}, or choose another disk")
    return text


def _require_private(path: Path) -> None:
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise CheckError(
            f"other users of this machine can read {path.name} (mode {mode:o})",
            f"chmod 600 {shlex.quote(str(path))}",
        )


# ---- a hospital's kit ----


def inspect_wheels(folder: Path) -> str:
    """The packages beside the kit must be those that the consortium's authority signed."""
    from fedgsca.hospital.wheelhouse import wheels_problem

    problem = wheels_problem(folder / "wheelhouse", folder / "ca.crt")
    if problem:
        fix = "do not install from it; ask the coordinator for the wheelhouse again"
        raise CheckError(problem, fix)
    return "all packages are those that the consortium's authority signed"


def inspect_key(path: Path) -> str:
    """The hospital's key must be complete and closed to other users."""
    from fedgsca.hospital.certificates import read_key_file

    key = read_key_file(path)
    public = path.with_name(f"{path.name}.pub")
    if public.exists() and not key.fits(public.read_bytes()):
        fix = f"take {path.name} out of the kit again"
        raise CheckError(f"{public.name} does not belong to {path.name}", fix)
    _require_private(path)
    return "complete, and readable by this user only"


def _inspect_name(settings: SiteSettings, hospital: str) -> str:
    """site.toml must have the name that the key was made for."""
    if settings.name != hospital:
        text = f"it has the name {settings.name}, but the key is that of {hospital}"
        raise CheckError(text, f'set name = "{hospital}"')
    return f"has the name {hospital}"


def _inspect_agreement(config: Config, settings: SiteSettings) -> str:
    """Somebody here must have agreed to the experiment of the kit."""
    agreement = Ledger(settings).agreement(config.fingerprint())
    text = f"{config.method}, {plural(config.train.rounds, 'round')}"
    if agreement is None:
        raise CheckError(
            f"nobody here has agreed to the experiment ({text}), or the agreement has ended",
            './agree.sh --person "NAME, ROLE" --until YYYY-MM-DD',
        )
    return f"{text}: {agreement.person} agreed until {agreement.until}"


def check_site_data(config: Config, settings: SiteSettings) -> Iterator[CheckResult]:
    """Images and class names as the training reads them, and disk space for what it writes."""
    from fedgsca.data.cache import cache_folder
    from fedgsca.federation.deployment import site_table

    table: ImageTable | None = None
    labels = Path(settings.labels) if settings.labels else None
    try:
        if settings.data is None:
            raise CheckError("site.toml does not say where the images are", "set data in site.toml")
        table = site_table(config, settings.data, labels, settings.classes)
    except ClassListError as error:
        yield CheckResult("data", "ok", f"{settings.data} can be read")
        yield CheckResult("classes", "FAIL", error.message, error.fix)
    except CheckError as error:
        yield CheckResult("data", error.state, error.text, error.fix)
    except FedgscaError as error:
        yield CheckResult("data", "FAIL", error.message, error.fix)
    else:
        yield from _check_table(table, config, settings)
    if is_import_path(config.model.name):
        yield check("network", _inspect_network, config.model.name, settings)
    num_bytes = (0 if table is None else len(table)) * (config.data.image_size or 0) ** 2 * 3
    yield check("disk for state", inspect_disk, Path(settings.state).expanduser(), RESERVE)
    yield check("disk for decoded images", inspect_disk, cache_folder(), num_bytes)


def _check_table(
    table: ImageTable, config: Config, settings: SiteSettings
) -> Iterator[CheckResult]:
    num_train, num_test = len(table.rows("train")), len(table.rows("test"))
    text = f"{num_train} images to train on, {num_test} to test on"
    yield CheckResult("data", "ok", text)
    max_images = config.aggregation.agreed_images(settings.name)
    if max_images is not None:
        yield check("images agreed", _inspect_num_images, num_train, max_images)
    num_classes = len({int(label) for label in table.labels})
    text = f"{num_classes} of the consortium's {len(table.classes)} classes, no others"
    yield CheckResult("classes", "ok", text)
    if config.model.name == OWN_FEATURES:
        yield check("features", _inspect_features, table)


def _inspect_num_images(num_train: int, max_images: int) -> str:
    if num_train > max_images:
        raise CheckError(
            f"{num_train:,} images to train on, but the consortium agreed on {max_images:,} at"
            " most: every update would be refused",
            "use the agreed images only, or ask the coordinator for a new agreement",
        )
    return f"{num_train:,} of at most {max_images:,} images"


def _inspect_features(table: ImageTable) -> str:
    """The features that the experiment trains on; their width was checked."""
    if table.features is None:
        raise CheckError(
            "the experiment trains on features, and the data has none",
            "add features.npz (arrays features and files) to the folder, or name an .npz file with"
            " features and labels as data in site.toml",
        )
    return f"{table.features.shape[1]} per image"


def _inspect_network(name: str, settings: SiteSettings) -> str:
    """The hospital must have decided about the code that the experiment would import."""
    if name not in settings.networks:
        raise CheckError(
            f"the experiment imports {name}, which site.toml does not allow",
            "read that code; if you trust it, install it and add"
            f' networks = ["{name}"] to site.toml',
        )
    return f"{name} is allowed in site.toml"


# ---- the coordinator's kit ----


def _inspect_experiment(config: Config, fingerprint: str) -> str:
    """experiment.toml must be the one that the kit was made with."""
    if config.fingerprint() != fingerprint:
        raise CheckError(
            "experiment.toml is not the one that this kit was made with",
            "take the file out of the kit again, or ask for a new kit",
        )
    return f"{config.method}, {plural(config.train.rounds, 'round')}, as agreed"


def inspect_server_files(folder: Path, hosts: Sequence[str]) -> str:
    """The server's certificate must fit its key and the authority, and be valid for `hosts`."""
    from fedgsca.hospital.certificates import check_issuer, host_text, inspect_certificate

    try:
        pem = (folder / "server.pem").read_bytes()
        certificate = inspect_certificate(pem, (folder / "server.key").read_bytes())
        check_issuer(pem, (folder / "ca.crt").read_bytes())
    except OSError as error:
        name = Path(error.filename).name
        raise CheckError(f"{name} cannot be read: {error.strerror}", _RENEW) from None
    except FedgscaError as error:
        raise CheckError(error.message, _RENEW) from None
    missing_hosts = [host for host in hosts if host_text(host) not in certificate.hosts]
    if missing_hosts:
        raise CheckError(f"it is not for {', '.join(missing_hosts)}", _RENEW)
    if certificate.age < 0:
        raise CheckError(
            "not valid yet: the clock of this machine is behind",
            "set the clock: timedatectl set-ntp true",
        )
    text = f"signed by the consortium, for {', '.join(hosts)}, until {certificate.end:%Y-%m-%d}"
    if certificate.days_left < MIN_DAYS_LEFT:
        raise CheckError(f"{text}: {certificate.days_left} days left", _RENEW)
    _require_private(folder / "server.key")
    return text


def _check_public_keys(folder: Path, names: Sequence[str]) -> Iterator[CheckResult]:
    """One usable public key for each hospital, and none besides."""
    keys = {path.stem: path.read_bytes() for path in sorted(folder.glob("*.pub"))}
    yield check("hospitals' keys", _inspect_public_keys, keys, names, folder)
    surplus = sorted(set(keys) - set(names))
    if surplus:
        text = f"{', '.join(surplus)}: not part of the experiment"
        fix = "remove them if nobody should connect with them"
        yield CheckResult("further keys", "unknown", text, fix)


def _inspect_public_keys(keys: Mapping[str, bytes], names: Sequence[str], folder: Path) -> str:
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
    if problems:
        fix = f"ask for hospital.key.pub, and save it as {folder}/NAME.pub"
        raise CheckError("; ".join(problems), fix)
    return ", ".join(names)


def inspect_port(listen: str, local: str, port: int, authority: Path) -> str:
    """The port must be free, or in use by a SuperLink of this consortium."""
    try:
        socket.create_connection((local, port), 2).close()
    except OSError:
        return inspect_free_port(listen, port)
    try:
        inspect_certificate_of(local, port, authority)
    except CheckError as error:
        raise CheckError(
            f"{port} is in use by a program without this certificate: {error.text}",
            "if it is the SuperLink, restart it; otherwise end that program,"
            " or make new kits with another port",
        ) from None
    return f"the SuperLink is listening on {port}"


def inspect_free_port(listen: str, port: int) -> str:
    """A SuperLink must be able to listen there."""
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((listen, port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                text = f"this machine does not have the address {listen}"
                fix = "correct `listen` in consortium.toml, and superlink.sh"
            else:
                text = f"{listen}:{port}: {error.strerror}"
                fix = "choose a port of at least 1024, or another user"
            raise CheckError(text, fix) from None
    return f"{port} is free; no SuperLink is running yet"


def inspect_test_images(config: Config) -> str:
    """The coordinator's own test images, read as the training reads them."""
    from fedgsca.federation.deployment import prepare_coordinator

    test = prepare_coordinator(config).test
    if test is None:
        return "none here, each hospital tests on its own"
    return f"{len(test)} in {config.federation.test}"


def _inspect_budget(config: Config) -> str:
    """The budget that the experiment spends under `privacy`."""
    from fedgsca.federation.privacy import spent_epsilon

    rounds = config.train.rounds
    epsilon = spent_epsilon(config, rounds)
    assert epsilon is not None and config.privacy is not None, "only with noise"
    budget = f"epsilon {epsilon:.3g} at delta {config.privacy.delta:g} after {rounds} rounds"
    return f"{budget}, for a site as a whole"
