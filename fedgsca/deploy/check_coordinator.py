"""`fedgsca deploy check` at the coordinator: certificate, keys, port, test images, disk.

Nothing is started.
"""

from __future__ import annotations

import errno
import shlex
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedgsca.config import Config
from fedgsca.deploy.check import (
    RESERVE,
    CheckResult,
    check_disk,
    check_experiment,
    check_processor,
    check_versions,
    failed,
    passed,
    undetermined,
)
from fedgsca.deploy.check_connection import MIN_DAYS_LEFT, check_certificate
from fedgsca.deploy.kit_files import CoordinatorKit
from fedgsca.errors import FedgscaError
from fedgsca.support.text import join_words

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
    from fedgsca.deploy.certificates import host_text, inspect_certificate

    try:
        pem = (kit / "server.pem").read_bytes()
        key = (kit / "server.key").read_bytes()
        authority = (kit / "ca.crt").read_bytes()
        mode = (kit / "server.key").stat().st_mode & 0o777
        certificate = inspect_certificate(pem, key, authority)
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
    from fedgsca.deploy.certificates import is_public_key

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
    from fedgsca.experiment.deployment import prepare_coordinator

    try:
        test = prepare_coordinator(config).test
    except FedgscaError as error:
        return failed("test images", error.message, error.fix)
    if test is None:
        return passed("test images", "none here, each hospital tests on its own")
    return passed("test images", f"{len(test)} in {config.federation.test}")


def check_privacy(config: Config) -> Iterator[CheckResult]:
    """The budget that the experiment spends under `privacy`; nothing without `privacy`."""
    from fedgsca.privacy.accountant import spent_epsilon

    rounds = config.train.rounds
    try:
        epsilon = spent_epsilon(config, rounds)
    except FedgscaError as error:
        yield failed("privacy", error.message, error.fix)
        return
    if epsilon is not None and config.privacy is not None:
        budget = f"epsilon {epsilon:.3g} at delta {config.privacy.delta:g} after {rounds} rounds"
        yield passed("privacy", f"{budget}, for a site as a whole")
