"""A patient leaves a deployment that is running, with real processes over TLS."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from fedgsca.hospital.coordinator import write_app
from fedgsca.hospital.ledger import Ledger
from fedgsca.hospital.settings import read_settings
from tests.contract.test_withdrawal import (
    SECRET,
    consortium_config,
    files_below,
    mentions,
    write_images,
)
from tests.deployment import BIN, deployment

pytest.importorskip("flwr")


@pytest.mark.slow
def test_a_patient_leaves_between_two_rounds(tmp_path: Path) -> None:
    config = consortium_config(
        federation__quorum=1.0, federation__deadline=240, train__rounds=8, train__epochs=2
    )
    out = tmp_path / "run"
    with deployment(tmp_path / "deployment", FEDGSCA_CACHE=str(tmp_path / "cache")) as link:
        link.superlink()
        files = {}
        for name in ("north", "south"):
            link.register(name)
            data = write_images(tmp_path / name)
            files[name] = link.site_file(name, data=str(data), state=str(tmp_path / "state" / name))
            ledger = Ledger(read_settings(files[name]))
            ledger.append("agreed", config.fingerprint(), "Dr. A", until="9999-12-31")
        nodes = {name: link.supernode(name, settings=path) for name, path in files.items()}
        process = link.run(write_app(config, out))
        wait_for_rounds(out, 3)
        nodes["north"].stop()  # as `systemctl stop` does; the run waits for a quorum
        command = ["withdraw", SECRET, "--from", str(files["north"]), "--json"]
        result = subprocess.run(
            [str(BIN / "fedgsca"), *command],
            env=link.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["images"] == 6
        node = link.supernode("north", settings=files["north"])
        end = time.monotonic() + 400
        while not (out / "result.json").exists():
            assert time.monotonic() < end and process.running, process.text[-3000:]
            if not node.running:  # rejected while the SuperLink thinks that the old one lives
                node = link.supernode("north", settings=files["north"])
            time.sleep(5)
        process.wait(60)
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    sizes = [line["sites"]["north"]["num_samples"] for line in records]
    assert len(records) == 8 and sizes[0] > sizes[-1]
    assert not any("changed" in reason for line in records for reason in line["refused"].values())
    for folder in (tmp_path / "state" / "north", tmp_path / "cache"):
        assert not [path for path in files_below(folder) if mentions(path, SECRET)]


def wait_for_rounds(out: Path, count: int, seconds: float = 180) -> None:
    path = out / "metrics.jsonl"
    end = time.monotonic() + seconds
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < end, "no round ends"
        time.sleep(0.05)
