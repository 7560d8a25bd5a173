"""A real deployment on loopback: SuperLink, four nodes with their workers, TLS, keys.

Failures are real: processes are killed with -9, certificates and keys are wrong, versions and
classes differ. Slow: a minute until everything is started, and Flower notices a dead node after
another one.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.toys import outcome, toy_config

pytest.importorskip("flwr")

from fedgsca.cli import execute
from fedgsca.config import Config, load_config
from fedgsca.errors import RunFolderError
from fedgsca.federation.round_status import read_status
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_lines
from fedgsca.hospital.coordinator import write_app
from fedgsca.hospital.delivery import read_delivered
from fedgsca.hospital.ledger import NO_AGREEMENT, Ledger
from fedgsca.hospital.settings import SiteSettings, read_settings
from tests.deployment import (
    Deployment,
    Process,
    cpu_seconds,
    deployment,
    descendants,
    make_certificates,
    make_key,
    program,
    site_workers,
)

pytestmark = pytest.mark.slow
NAMES = [f"site-{k}" for k in range(1, 5)]
TIME_LIMIT = 900  # seconds for a run on a busy machine; alone it takes a tenth of that


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """SuperLink and four nodes that run during the whole module, as in a hospital."""
    with deployment(tmp_path_factory.mktemp("deployment")) as parties:
        parties.superlink()
        for name in NAMES:
            parties.register(name)
            parties.supernode(name)
        yield parties


def wait_until(
    condition: Callable[[], Any], seconds: float = TIME_LIMIT, run: Process | None = None
) -> None:
    """`run` is a process that must not end meanwhile; if it does, its output is the failure."""
    end = time.monotonic() + seconds
    while not condition():
        output = run.text[-3000:] if run is not None else ""
        assert time.monotonic() < end, f"waited in vain\n{output}"
        assert run is None or run.running or condition(), f"the run has ended\n{output}"
        time.sleep(0.2)


def lines(out: Path) -> list[dict[str, Any]]:
    return read_lines(out / "metrics.jsonl")


def is_unlocked(out: Path, config: Config) -> bool:
    """Whether no coordinator holds the run folder: two of them never work in one."""
    try:
        write_app(config, out)
    except RunFolderError as error:
        assert error.code == "run.folder-in-use"
        return False
    return True


def complete(link: Deployment, config: Config, out: Path) -> str:
    process = link.run(write_app(config, out))
    process.wait(TIME_LIMIT)
    assert (out / "result.json").exists(), process.text[-3000:]
    return process.text


@pytest.mark.parametrize("method", ["fedgsca", "fednoro"])
def test_a_deployment_ends_in_the_bytes_of_one_process(
    method: str, link: Deployment, tmp_path: Path
) -> None:
    config = toy_config(method, train__rounds=3)
    run(config, tmp_path / "here")
    complete(link, config, tmp_path / "deployed")
    assert outcome(tmp_path / "deployed") == outcome(tmp_path / "here")
    assert (tmp_path / "deployed" / "report.html").exists()


def test_a_killed_coordinator_resumes_from_its_checkpoint(link: Deployment, tmp_path: Path) -> None:
    config, out = toy_config("fedcorr", train__rounds=4), tmp_path / "deployed"
    run(config, tmp_path / "here")
    first = link.run(write_app(config, out))
    wait_until(lambda: len(lines(out)) >= 2)
    coordinators = [
        n for n in descendants(link.processes[0].handle.pid) if "flwr-serverapp" in program(n)
    ]
    assert coordinators
    for number in coordinators:
        os.kill(number, 9)
    first.wait(TIME_LIMIT)
    assert not (out / "result.json").exists()
    complete(link, config, out)
    assert outcome(out) == outcome(tmp_path / "here")


def test_a_killed_superlink_loses_no_finished_round(link: Deployment, tmp_path: Path) -> None:
    config, out = toy_config("fedavg", train__rounds=3), tmp_path / "deployed"
    run(config, tmp_path / "here")
    first = link.run(write_app(config, out))
    wait_until(lambda: len(lines(out)) >= 1)
    link.processes[0].kill()
    first.wait(TIME_LIMIT)
    assert not (out / "result.json").exists()
    superlink = link.superlink()
    link.processes.remove(superlink)
    link.processes.append(link.processes[0])
    link.processes[0] = superlink
    # the old coordinator soon notices that its SuperLink is gone
    wait_until(lambda: is_unlocked(out, config), 120)
    complete(link, config, out)
    assert outcome(out) == outcome(tmp_path / "here")


def test_workers_killed_in_the_middle_of_a_round_change_nothing(
    link: Deployment, tmp_path: Path
) -> None:
    """Each time, a worker is killed as soon as it has begun to train."""
    config = toy_config("fedgsca", train__rounds=4, train__epochs=30)
    out = tmp_path / "deployed"
    run(config, tmp_path / "here")
    process = link.run(write_app(config, out))
    for finished_rounds, name in ((1, "site-1"), (2, "site-4")):
        wait_until(partial(has_rounds, out, finished_rounds), run=process)
        (worker,) = site_workers(link.folder, name)
        begin = cpu_seconds(worker)
        wait_until(partial(has_worked, worker, begin + 0.15), run=process)
        os.kill(worker, signal.SIGKILL)
    process.wait(TIME_LIMIT)
    assert outcome(out) == outcome(tmp_path / "here")
    assert all(not line["refused"] for line in lines(out))
    for name in ("site-1", "site-4"):
        node = next(p for p in link.processes if p.name == name and p.running)
        assert "the site worker ended during a message" in node.text


def has_rounds(out: Path, count: int) -> bool:
    return len(lines(out)) >= count


def has_worked(process_id: int, seconds: float) -> bool:
    return cpu_seconds(process_id) >= seconds


def test_a_killed_node_that_returns_changes_nothing(link: Deployment, tmp_path: Path) -> None:
    """With a quorum of all sites the round is repeated until the node is back."""
    config = toy_config("fedavg", train__rounds=3, federation__quorum=1.0)
    out = tmp_path / "deployed"
    run(config, tmp_path / "here")
    process = link.run(write_app(config, out))
    wait_until(lambda: len(lines(out)) >= 1, run=process)
    node = next(p for p in link.processes if p.name == "site-4" and p.running)
    workers = site_workers(link.folder, "site-4")
    node.kill()
    wait_until(lambda: not set(workers) & set(site_workers(link.folder, "site-4")), 30)
    new_node = link.supernode("site-4")

    def is_finished() -> bool:
        nonlocal new_node
        if not new_node.running:  # rejected while the SuperLink thinks that the old one lives
            time.sleep(5)
            new_node = link.supernode("site-4")
        return (out / "result.json").exists()

    wait_until(is_finished, run=process)
    process.wait(TIME_LIMIT)
    assert outcome(out) == outcome(tmp_path / "here")


def test_a_killed_site_is_named_and_comes_back(link: Deployment, tmp_path: Path) -> None:
    """The rounds continue with three sites; the fourth tries until the SuperLink accepts it."""
    # the deadline is for a machine on which a round takes minutes; Flower notices a dead node
    # after one
    config = toy_config("fedavg", train__rounds=400, federation__deadline=600)
    out = tmp_path / "deployed"
    process = link.run(write_app(config, out))
    wait_until(lambda: len(lines(out)) >= 1, run=process)
    node = next(p for p in link.processes if p.name == "site-2" and p.running)
    node.kill()
    wait_until(lambda: any("site-2" in line["refused"] for line in lines(out)), run=process)
    refusal = next(line for line in lines(out) if "site-2" in line["refused"])
    assert sorted(refusal["sites"]) == ["site-1", "site-3", "site-4"]
    new_node = link.supernode("site-2")

    def is_back() -> bool:
        nonlocal new_node
        if not new_node.running:  # rejected while the SuperLink thinks that the old one lives
            time.sleep(5)
            new_node = link.supernode("site-2")
        later = [line for line in lines(out) if line["round"] > refusal["round"]]
        return any("site-2" in line["sites"] for line in later)

    wait_until(is_back, run=process)
    status = read_status(out)
    assert status is not None and status.state == "running"
    assert len(lines(out)) - status.round in (0, 1)  # the line of a round is written first
    process.stop()
    link.command("stop", run_number(process.text), "here")


def run_number(text: str) -> str:
    return text.partition("Successfully started run ")[2].split()[0]


def test_a_wrong_certificate_and_an_unknown_key_are_rejected(
    link: Deployment, tmp_path: Path
) -> None:
    make_certificates(tmp_path, name="other")
    distrustful = link.supernode("site-1", ca=tmp_path / "other.crt")
    make_key(tmp_path / "stranger")
    stranger = link.supernode("site-1", key=tmp_path / "stranger")
    assert stranger.wait(90) != 0
    assert "the coordinator does not admit this node" in stranger.text
    wait_until(
        lambda: "CERTIFICATE_VERIFY_FAILED" in distrustful.text or not distrustful.running, 90
    )
    assert "not signed by the authority of this consortium" in distrustful.text
    distrustful.stop()


# ---- hospitals with their own images ----


def hospital(folder: Path, classes: tuple[str, ...]) -> Path:
    import numpy as np
    from PIL import Image

    from tests.toys import toy_images

    folder.mkdir(parents=True)
    labels = np.arange(30) % len(classes)
    rows = ["file,label,split"]
    for i, (label, picture) in enumerate(zip(labels, toy_images(labels), strict=True)):
        Image.fromarray(picture).save(folder / f"{i}.png")
        rows.append(f"{i}.png,{classes[label]},{'test' if i % 5 == 0 else 'train'}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one page, where mounting is allowed."""
    path = tmp_path / "tiny"
    path.mkdir()
    process = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(path)],
        capture_output=True,
        check=False,
    )
    if process.returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_problems_of_a_hospital_are_reported(tmp_path: Path, tiny_disk: Path) -> None:
    """Six hospitals: other classes, another version, a full disk, no agreement; two train.

    In the end these two have the model, and what left them is in their ledgers.
    """
    names = ("a-good", "b-good", "c-classes", "d-version", "e-disk", "f-undecided")
    config = load_config(
        method="fedgsca",
        data__source="sites",
        data__classes=["x", "y"],
        data__image_size=12,
        federation__sites=list(names),
        federation__quorum=0.3,
        federation__deadline=240,
        train__rounds=1,
        train__threads=1,
        train__device="cpu",
        fedgsca__warmup=0,
    )
    older = tmp_path / "older"
    older.mkdir()
    (older / "sitecustomize.py").write_text(
        "from fedgsca.support import version\n\nversion.__version__ = '0.0.9'\n"
    )
    out = tmp_path / "run"
    with deployment(tmp_path / "deployment") as link:
        link.superlink()
        python_path = link.env["PYTHONPATH"]
        for name in names:
            link.register(name)
            data = hospital(tmp_path / name, ("x", "z") if name == "c-classes" else ("x", "y"))
            state = tiny_disk if name == "e-disk" else tmp_path / "state" / name
            link.env["PYTHONPATH"] = (
                f"{older}:{python_path}" if name == "d-version" else python_path
            )
            site_file = link.site_file(name, data=str(data), state=str(state))
            if name != "f-undecided":
                ledger = Ledger(read_settings(site_file))
                ledger.append("agreed", config.fingerprint(), "Dr. A", until="9999-12-31")
            link.supernode(name, settings=site_file)
        link.env["PYTHONPATH"] = python_path
        complete(link, config, out)
    line = lines(out)[0]
    assert sorted(line["sites"]) == ["a-good", "b-good"] and set(line["tested"]) >= {
        "a-good",
        "b-good",
    }
    assert "class list" in line["refused"]["c-classes"]
    assert "it has fedgsca 0.0.9" in line["refused"]["d-version"]
    assert "cannot write to its disk" in line["refused"]["e-disk"]
    assert line["refused"]["f-undecided"] == NO_AGREEMENT
    assert set(read_delivered(out)) == {"a-good", "b-good"}
    check_homecoming(tmp_path / "state" / "a-good", out, tmp_path / "a-good")


def check_homecoming(state: Path, out: Path, images: Path) -> None:
    """A hospital predicts with its own copy of the model, and its ledger says what left it."""
    (folder,) = state.glob("*/model")
    content = (folder / "model.safetensors").read_bytes()
    assert content == (out / "model.safetensors").read_bytes()
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=True)
    assert "Macro F1" in (folder / "export" / "MODEL_CARD.md").read_text()
    for model in (folder, folder / "export"):
        command = ["predict", str(model), str(images), "--out", str(folder / "predicted.csv")]
        assert execute(command) == 0
        assert len((folder / "predicted.csv").read_text().splitlines()) == 31
    shared = b"".join(path.read_bytes() for path in folder.glob("*.json*"))
    assert b'num_samples": 2' not in shared and b"no answer within" not in shared
    settings = SiteSettings(name="a-good", state=str(state))
    entries = Ledger(settings).entries()
    assert [(entry.event, entry.kind) for entry in entries] == [
        ("agreed", ""),
        ("sent", "hello"),
        ("sent", "train"),
        ("sent", "test"),
        ("received", "model"),
    ]
    assert {entry.person for entry in entries} == {"Dr. A"}
    assert entries[-1].sha256 == hashlib.sha256(content).hexdigest()
    if find_spec("onnxruntime") and find_spec("onnxscript"):
        assert (
            execute(["export", str(folder), "--format", "onnx", "--out", str(folder / "onnx")]) == 0
        )
