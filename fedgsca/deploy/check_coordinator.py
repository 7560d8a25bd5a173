"""`fedgsca deploy check` at the coordinator: certificate, keys of the hospitals, port, test images, disk. Nothing is started."""

from __future__ import annotations

import errno
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedgsca.config import Config
from fedgsca.deploy.check_connection import SOON, certificate
from fedgsca.deploy.check_kit import RESERVE, processor, room, same_versions, terms
from fedgsca.deploy.check_result import Finding, failed, passed, unknown
from fedgsca.errors import FedgscaError

RENEW = "fedgsca deploy init consortium.toml --renew-server, where the authority's key is; then copy server.pem and server.key here"


def check_coordinator(kit: Path, about: dict[str, Any], config: Config) -> Iterator[Finding]:
    """All findings, the cheap ones first."""
    yield from same_versions(about["versions"], "the kits were made with")
    yield terms(config, about)
    yield server_certificate(kit, about["hosts"])
    yield from hospital_keys(kit / "keys", config.federation.sites or ())
    yield port(about["listen"], about["local"], int(about["port"]), kit / "ca.crt")
    yield processor(config)
    yield judging(config)
    yield from budget(config)
    yield room("disk for run and messages", kit, RESERVE)


def server_certificate(kit: Path, hosts: list[str]) -> Finding:
    from fedgsca.deploy.certificates import examine, host_text

    try:
        pem, key, authority = (
            (kit / name).read_bytes() for name in ("server.pem", "server.key", "ca.crt")
        )
        mode = (kit / "server.key").stat().st_mode & 0o777
        seen = examine(pem, key, authority)
    except OSError as error:
        return failed(
            "certificate", f"{Path(error.filename).name} cannot be read: {error.strerror}", RENEW
        )
    except FedgscaError as error:
        return failed("certificate", error.message, RENEW)
    if missing := [host for host in hosts if host_text(host) not in seen.hosts]:
        return failed("certificate", f"it is not for {', '.join(missing)}", RENEW)
    if seen.age < 0:
        return failed(
            "certificate",
            "not valid yet: this machine's clock is behind",
            "set the clock: timedatectl set-ntp true",
        )
    text = f"signed by the consortium, for {', '.join(hosts)}, until {seen.until:%Y-%m-%d}"
    if seen.days < SOON:
        return failed("certificate", f"{text}: {seen.days} days left", RENEW)
    if mode & 0o077:
        fix = f"chmod 600 {shlex.quote(str(kit / 'server.key'))}"
        return failed(
            "certificate", f"others on this machine can read server.key (mode {mode:o})", fix
        )
    return passed("certificate", text)


def hospital_keys(folder: Path, names: tuple[str, ...]) -> Iterator[Finding]:
    """One usable public key for each hospital, and no other's. Whether the SuperLink knows them, register-keys.sh tells."""
    from fedgsca.deploy.certificates import is_public_key

    found = {path.stem: path.read_bytes() for path in sorted(folder.glob("*.pub"))}
    problems = [f"{name} has none" for name in names if name not in found]
    problems += [
        f"that of {name} is not of type ECDSA P-384"
        for name, key in found.items()
        if not is_public_key(key)
    ]
    words = {name: key.split()[1:2] for name, key in found.items()}
    twice = [
        name for name, key in words.items() if sum(key == other for other in words.values()) > 1
    ]
    problems += [f"{' and '.join(twice)} have the same one"] if twice else []
    if problems:
        yield failed(
            "hospitals' keys",
            "; ".join(problems),
            f"ask for hospital.key.pub, save it as {folder}/NAME.pub, ./register-keys.sh",
        )
    else:
        yield passed("hospitals' keys", ", ".join(names))
    if strangers := sorted(set(found) - set(names)):
        yield unknown(
            "further keys",
            f"{', '.join(strangers)}: not in the experiment",
            "remove them if nobody should connect with them",
        )


def port(listen: str, local: str, number: int, authority: Path) -> Finding:
    """Free, or taken by a SuperLink of this consortium."""
    try:
        socket.create_connection((local, number), 2).close()
    except OSError:
        return free(listen, number)
    found = certificate(local, number, authority)
    if found.state == "ok":
        return passed("port", f"the SuperLink listens on {number}")
    return failed(
        "port",
        f"{number} is taken, and not by a SuperLink with this certificate: {found.text}",
        "if it is the SuperLink, restart it; else end that program, or make new kits with another port",
    )


def free(listen: str, number: int) -> Finding:
    """Whether a SuperLink could listen there."""
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((listen, number))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return failed(
                    "port",
                    f"{listen} is no address of this machine",
                    "correct `listen` in consortium.toml, and superlink.sh",
                )
            return failed(
                "port",
                f"{listen}:{number}: {error.strerror}",
                "choose a port from 1024 on, or another user",
            )
    return passed("port", f"{number} is free; no SuperLink runs yet")


def judging(config: Config) -> Finding:
    """The coordinator's own test images, read as the training reads them."""
    from fedgsca.experiment.deployment import prepare_coordinator

    try:
        test = prepare_coordinator(config).test
    except FedgscaError as error:
        return failed("test images", error.message, error.fix)
    if test is None:
        return passed("test images", "none here, each hospital tests on its own")
    return passed("test images", f"{len(test)} in {config.federation.test}")


def budget(config: Config) -> Iterator[Finding]:
    """What the experiment promises under `privacy`; it takes a package that nothing else needs."""
    from fedgsca.privacy.accountant import spent

    try:
        found = spent(config, config.train.rounds)
    except FedgscaError as error:
        yield failed("privacy", error.message, error.fix)
        return
    if found is not None:
        text = f"epsilon {found['epsilon']:.3g} at delta {found['delta']:g} after {config.train.rounds} rounds"
        yield passed("privacy", f"{text}, for a site as a whole")
