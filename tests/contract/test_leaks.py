"""Names of files, patients and folders are planted at the sites of a deployment, and looked for in all that leaves them.

All: every message in both directions, errors included, every file of the coordinator's run folder, and every line that it prints.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import Listener, quick_options, toy_images

pytest.importorskip("flwr")

from flwr.app import Context, Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from localgrid import LocalGrid, over_flower
from PIL import Image

from fedgsca.cli import execute
from fedgsca.config import Config, load_config
from fedgsca.engine import site_node as remote
from fedgsca.engine.flower import client_app, from_node_config
from fedgsca.engine.site_node import SiteSettings
from fedgsca.experiment.run_folder import read_lines
from fedgsca.label_audit.audit_table import read_audit
from fedgsca.label_audit.decisions import Decision, Decisions
from fedgsca.methods.base import load_methods
from fedgsca.report.html_page import write_report

NAMES, CLASSES, SIZE = ("berlin", "lyon"), ("class 0", "class 1", "class 2"), 12
PLANTED = b"planted"  # compared in small letters


def home(tmp_path: Path, name: str) -> Path:
    return tmp_path / f"PLANTED-HOUSE-{name}"


def hospital(folder: Path, seed: int) -> list[bytes]:
    """Images whose names, folder and groups are planted; returns what no message may contain: pixels and pieces of the files."""
    (folder / "PLANTED-WARD").mkdir(parents=True)
    labels, secrets, rows = np.arange(36) % 3, list[bytes](), ["file,label,group,split"]
    for i, (label, picture) in enumerate(
        zip(labels, toy_images(labels, size=SIZE, seed=seed), strict=True)
    ):
        file = folder / "PLANTED-WARD" / f"PLANTED-PATIENT-{i:04d}.png"
        Image.fromarray(picture).save(file)
        # every sixth group has images in both splits: that is worth a note, and the note has the group's name
        rows.append(
            f"PLANTED-WARD/{file.name},{CLASSES[label]},PLANTED-GROUP-{i % 6},{'test' if i % 4 == 0 else 'train'}"
        )
        line = picture[SIZE // 2]
        secrets += [line.tobytes(), line.astype(np.float32).tobytes(), file.read_bytes()[60:90]]
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return secrets


def consortium(method: str, **sets: Any) -> Config:
    base: dict[str, Any] = {
        "method": method, "data__source": "sites", "data__classes": list(CLASSES), "data__image_size": SIZE,
        "federation__sites": list(NAMES), "federation__deadline": 60, "federation__quorum": 0.5,
        "train__rounds": 3, "train__threads": 1, "train__batch_size": 8, "train__device": "cpu",
        **{f"{method}__{name}": value for name, value in quick_options(method).items()},
    }  # fmt: skip
    return load_config(**(base | sets))


def at_home(tmp_path: Path) -> Callable[[Context], tuple[SiteSettings, None]]:
    def place(context: Context) -> tuple[SiteSettings, None]:
        name = NAMES[int(context.node_config["partition-id"])]
        house = home(tmp_path, name)
        return SiteSettings(name=name, state=str(house / "state"), data=str(house)), None

    return place


class Tap:
    """Keeps the bytes of every message, as they are on the wire."""

    def __init__(self) -> None:
        self.crossed: list[bytes] = []

    def __call__(self, site: int, message: Message, do: Callable[[], Message]) -> Message:
        reply = do()
        for each in (message, reply):
            self.crossed += [thing.deflate() for thing in get_all_nested_objects(each).values()]
            self.crossed.append(str(each.error.reason).encode() if each.has_error() else b"")
        return reply


def outside(tap: Tap, out: Path, told: Listener) -> dict[str, bytes]:
    """All that is outside the sites, by where it was found."""
    found = {f"message {i}": data for i, data in enumerate(tap.crossed)}
    found |= {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }
    return {**found, "printed": "\n".join(told.messages).encode()}


def go(config: Config, tmp_path: Path, place: Any = None) -> dict[str, bytes]:
    out, told, tap = tmp_path / "run", Listener(), Tap()
    names = dict(enumerate(NAMES, start=1))
    over_flower(
        config, LocalGrid(client_app(place or at_home(tmp_path)), len(NAMES), tap, names), out, told
    )
    write_report(out)
    return outside(tap, out, told)


def where(found: dict[str, bytes], secrets: list[bytes] | None = None) -> list[str]:
    return [
        name for name, data in found.items()
        if PLANTED in data.lower() or any(secret in data for secret in secrets or ())
    ]  # fmt: skip


@pytest.mark.parametrize("method", sorted(load_methods()))
def test_no_message_and_no_file_of_the_coordinator_has_a_name_or_a_pixel(
    method: str, tmp_path: Path
) -> None:
    secrets = [
        secret for seed, name in enumerate(NAMES) for secret in hospital(home(tmp_path, name), seed)
    ]
    found = go(consortium(method), tmp_path)
    assert where(found, secrets) == []
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert len(lines) == 3 and not any(line["refused"] for line in lines), "the sites did take part"
    assert {
        "config.toml",
        "metrics.jsonl",
        "status.json",
        "report.html",
        "model.safetensors",
    } <= set(found)


def test_each_hospital_audits_and_corrects_its_own_labels_and_the_coordinator_learns_nothing(
    tmp_path: Path,
) -> None:
    """With site.toml and nothing of the coordinator's: the list, a decision, the corrected labels."""
    for seed, name in enumerate(NAMES):
        hospital(home(tmp_path, name), seed)
    before = go(consortium("fedavg"), tmp_path)
    for name in NAMES:
        house = home(tmp_path, name)
        (house / "site.toml").write_text(
            f'name = "{name}"\ndata = "{house}"\nstate = "{house / "state"}"\n'
        )
        assert execute(["audit", str(house / "site.toml"), "--quiet"]) == 0
        [audit] = (house / "state").glob(f"*/audit/{name}")
        first = next(read_audit(audit).suspects())
        Decisions(audit).add(
            Decision(
                "anna", first.row, first.id, first.hash, first.given, "accept", first.suggested
            )
        )
        assert execute(["apply", str(audit)]) == 0
        assert f"{first.id},{first.suggested}" in (house / "labels.corrected.csv").read_text()
    after = {
        name: data
        for name, data in outside(Tap(), tmp_path / "run", Listener()).items()
        if name != "printed"
    }
    assert after == {name: before[name] for name in after} and where(after) == []


def damaged(house: Path) -> None:
    (house / "PLANTED-WARD" / "PLANTED-PATIENT-0003.png").write_bytes(b"damaged")


def missing(house: Path) -> None:
    (house / "PLANTED-WARD" / "PLANTED-PATIENT-0003.png").unlink()


def unlabelled(house: Path) -> None:
    sheet = house / "labels.csv"
    sheet.write_text(
        sheet.read_text().replace(
            "PLANTED-PATIENT-0003.png,class 0", "PLANTED-PATIENT-0003.png,PLANTED-DISEASE"
        )
    )


def torn(house: Path) -> None:
    (house / "labels.csv").write_text('file,label\n"PLANTED-PATIENT-0003.png')


def gone(house: Path) -> None:
    (house / "labels.csv").rename(house / "PLANTED-ELSEWHERE.csv")


@pytest.mark.parametrize("spoil", [damaged, missing, unlabelled, torn, gone])
def test_trouble_with_a_file_is_told_without_its_name(
    spoil: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for seed, name in enumerate(NAMES):
        hospital(home(tmp_path, name), seed)
    spoil(home(tmp_path, "lyon"))
    found = go(consortium("fedavg", train__rounds=1), tmp_path)
    assert where(found) == []
    assert list(read_lines(tmp_path / "run" / "metrics.jsonl")[0]["refused"]) == ["lyon"]
    assert PLANTED in caplog.text.lower().encode(), "the hospital's own log has the details"


def test_a_bug_or_a_broken_setting_at_a_site_is_told_without_details(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, name in enumerate(NAMES):
        hospital(home(tmp_path, name), seed)
    real = remote.SiteRunner.run_round

    def buggy(self: Any, name: str, payload: Any) -> Any:
        if name == "lyon":
            raise ValueError(f"cannot index {home(tmp_path, name)}/PLANTED-PATIENT-0007.png")
        return real(self, name, payload)

    monkeypatch.setattr(remote.SiteRunner, "run_round", buggy)
    found = go(consortium("fedavg", train__rounds=1), tmp_path / "a", at_home(tmp_path))
    assert where(found) == [] and b"it failed with ValueError" in found["metrics.jsonl"]

    def unreadable(context: Context) -> Any:
        if context.node_config["partition-id"] == 1:
            raise PermissionError(
                13, "Permission denied", "/PLANTED-HOUSE/site.toml"
            )  # nothing that read_settings foresees
        return at_home(tmp_path)(context)

    found = go(
        consortium("fedavg", train__rounds=1, federation__deadline=1), tmp_path / "b", unreadable
    )
    assert where(found) == [] and b"it failed with PermissionError" in found["metrics.jsonl"]


def test_a_file_of_settings_that_is_not_there_is_not_named(tmp_path: Path) -> None:
    hospital(home(tmp_path, "berlin"), 0)

    def place(context: Context) -> Any:
        if context.node_config["partition-id"] == 0:
            return at_home(tmp_path)(context)
        context.node_config["settings"] = str(home(tmp_path, "lyon") / "site.toml")
        return from_node_config(context)

    found = go(consortium("fedavg", train__rounds=1, federation__deadline=1), tmp_path, place)
    assert (
        where(found) == [] and b"the configuration cannot be used there" in found["metrics.jsonl"]
    )


def test_a_leak_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tap sees through Flower's encoding: a name that a site puts into its reason is found in message, log and report."""
    for seed, name in enumerate(NAMES):
        hospital(home(tmp_path, name), seed)
    damaged(home(tmp_path, "lyon"))
    monkeypatch.setattr(remote, "public_reason", str)
    found = where(go(consortium("fedavg", train__rounds=1), tmp_path))
    assert {"metrics.jsonl", "report.html", "printed"} <= set(found) and any(
        name.startswith("message") for name in found
    )
    buffer = io.BytesIO()
    np.save(buffer, np.frombuffer(b"planted", np.uint8))
    assert (
        where({"array": buffer.getvalue()}) == ["array"]
        and logging.getLogger("fedgsca.engine.site_node").disabled is False
    )
