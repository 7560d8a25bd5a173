"""Names of files, patients and folders are planted at sites, and searched for in all that leaves.

That is every message in both directions, errors included, every file of the coordinator's run
folder, and every line that it prints.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("flwr")

from flwr.app import Context, Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedgsca.cli import execute
from fedgsca.config import Config, load_config
from fedgsca.federation.base import Reply
from fedgsca.federation.local import SiteRunner
from fedgsca.federation.run_folder import read_rounds
from fedgsca.hospital import answers
from fedgsca.hospital.settings import SiteSettings, read_settings
from fedgsca.lab.report.html_page import write_report
from fedgsca.labels.audit_table import read_audit
from fedgsca.labels.decisions import Decision, Decisions
from fedgsca.methods.base import load_methods
from fedgsca.wire import Payload
from tests.localgrid import FindSettings, LocalGrid, client_app, run_over_flower
from tests.toys import RecordingObserver, quick_options, toy_images

NAMES = ("berlin", "lyon")
CLASSES = ("class 0", "class 1", "class 2")
SIZE = 12
PLANTED_WORD = b"planted"  # compared in lower case
IMAGE = Path("PLANTED-WARD") / "PLANTED-PATIENT-0003.png"


def house_of(tmp_path: Path, name: str) -> Path:
    return tmp_path / f"PLANTED-HOUSE-{name}"


def write_hospital(folder: Path, seed: int) -> list[bytes]:
    """Images whose names, folder and groups are planted.

    Returns bytes that no message may contain: pixels and pieces of the files.
    """
    (folder / "PLANTED-WARD").mkdir(parents=True)
    labels = np.arange(36) % 3
    pictures = toy_images(labels, size=SIZE, seed=seed)
    secrets: list[bytes] = []
    rows = ["file,label,group,split"]
    for i, (label, picture) in enumerate(zip(labels, pictures, strict=True)):
        file = folder / "PLANTED-WARD" / f"PLANTED-PATIENT-{i:04d}.png"
        Image.fromarray(picture).save(file)
        # every sixth group has images in both splits, which causes a warning about groups
        split = "test" if i % 4 == 0 else "train"
        rows.append(f"PLANTED-WARD/{file.name},{CLASSES[label]},PLANTED-GROUP-{i % 6},{split}")
        pixels = picture[SIZE // 2]
        secrets += [pixels.tobytes(), pixels.astype(np.float32).tobytes()]
        secrets.append(file.read_bytes()[60:90])
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return secrets


def write_hospitals(tmp_path: Path) -> list[bytes]:
    secrets: list[bytes] = []
    for seed, name in enumerate(NAMES):
        secrets += write_hospital(house_of(tmp_path, name), seed)
    return secrets


def consortium(method: str, **sets: Any) -> Config:
    base: dict[str, Any] = {
        "method": method,
        "data__source": "sites",
        "data__classes": list(CLASSES),
        "data__image_size": SIZE,
        "federation__sites": list(NAMES),
        "federation__deadline": 60,
        "federation__quorum": 0.5,
        "evidence__backbone": "none",
        "train__rounds": 3,
        "train__threads": 1,
        "train__batch_size": 8,
        "train__device": "cpu",
    }
    base |= {f"{method}__{name}": value for name, value in quick_options(method).items()}
    return load_config(**(base | sets))


def hospital_places(tmp_path: Path) -> FindSettings:
    def find_settings(context: Context) -> SiteSettings:
        name = NAMES[int(context.node_config["partition-id"])]
        house = house_of(tmp_path, name)
        return SiteSettings(name=name, state=str(house / "state"), data=str(house))

    return find_settings


class WireTap:
    """Keeps the bytes of every message, as they are on the wire."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def __call__(self, site: int, message: Message, deliver: Callable[[], Message]) -> Message:
        reply = deliver()
        for item in (message, reply):
            self.parts += [part.deflate() for part in get_all_nested_objects(item).values()]
            if item.has_error():
                self.parts.append(str(item.error.reason).encode())
        return reply


def files_of(folder: Path) -> dict[str, bytes]:
    """The content of all files below a folder, by relative path."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def run_consortium(
    config: Config, tmp_path: Path, find_settings: FindSettings | None = None
) -> dict[str, bytes]:
    """All that is outside the sites after a run: messages, files, and printed lines."""
    out = tmp_path / "run"
    observer, tap = RecordingObserver(), WireTap()
    app = client_app(find_settings or hospital_places(tmp_path))
    grid = LocalGrid(app, len(NAMES), tap, NAMES)
    run_over_flower(config, grid, out, observer)
    write_report(out)
    contents = {f"message {i}": part for i, part in enumerate(tap.parts)}
    contents |= files_of(out)
    contents["printed"] = "\n".join(observer.messages).encode()
    return contents


def find_leaks(contents: dict[str, bytes], secrets: list[bytes] | None = None) -> list[str]:
    """Names of the contents that have a planted word or a secret in them."""
    leaks = []
    for name, content in contents.items():
        has_secret = any(secret in content for secret in secrets or ())
        if has_secret or PLANTED_WORD in content.lower():
            leaks.append(name)
    return leaks


@pytest.mark.parametrize("method", sorted(load_methods()))
def test_neither_messages_nor_files_of_the_coordinator_contain_a_name_or_a_pixel(
    method: str, tmp_path: Path
) -> None:
    secrets = write_hospitals(tmp_path)
    contents = run_consortium(consortium(method), tmp_path)
    assert find_leaks(contents, secrets) == []
    rounds = read_rounds(tmp_path / "run")
    assert len(rounds) == 3
    assert not any(record.refusals for record in rounds), "the sites did take part"
    files = {"config.toml", "metrics.jsonl", "status.json", "report.html", "model.safetensors"}
    assert files <= set(contents)


def test_a_hospital_audits_and_corrects_its_labels_and_the_coordinator_learns_nothing(
    tmp_path: Path,
) -> None:
    """With site.toml and nothing of the coordinator's: the list, a decision, corrected labels."""
    write_hospitals(tmp_path)
    run_consortium(consortium("fedavg", audit__enabled=True, train__rounds=6), tmp_path)
    coordinator_files = files_of(tmp_path / "run")
    for name in NAMES:
        house = house_of(tmp_path, name)
        (house / "site.toml").write_text(
            f'name = "{name}"\ndata = "{house}"\nstate = "{house / "state"}"\n'
        )
        assert execute(["audit", str(house / "site.toml"), "--quiet"]) == 0
        [audit] = (house / "state").glob(f"*/audit/{name}")
        first = next(read_audit(audit).ranked_labels())
        Decisions(audit).add(
            Decision(
                "anna", first.row, first.id, first.hash, first.given, "accept", first.suggestion
            )
        )
        assert execute(["apply", str(audit)]) == 0
        assert f"{first.id},{first.suggestion}" in (house / "labels.corrected.csv").read_text()
    assert files_of(tmp_path / "run") == coordinator_files
    assert find_leaks(coordinator_files) == []


def damage_image(house: Path) -> None:
    (house / IMAGE).write_bytes(b"damaged")


def delete_image(house: Path) -> None:
    (house / IMAGE).unlink()


def give_unknown_label(house: Path) -> None:
    path = house / "labels.csv"
    old_label, new_label = f"{IMAGE.name},class 0", f"{IMAGE.name},PLANTED-DISEASE"
    path.write_text(path.read_text().replace(old_label, new_label))


def truncate_labels(house: Path) -> None:
    (house / "labels.csv").write_text(f'file,label\n"{IMAGE.name}')


def rename_labels(house: Path) -> None:
    (house / "labels.csv").rename(house / "PLANTED-ELSEWHERE.csv")


@pytest.mark.parametrize(
    "spoil", [damage_image, delete_image, give_unknown_label, truncate_labels, rename_labels]
)
def test_a_problem_with_a_file_is_reported_without_its_name(
    spoil: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_hospitals(tmp_path)
    spoil(house_of(tmp_path, "lyon"))
    contents = run_consortium(consortium("fedavg", train__rounds=1), tmp_path)
    assert find_leaks(contents) == []
    assert list(read_rounds(tmp_path / "run")[0].refusals) == ["lyon"]
    assert PLANTED_WORD in caplog.text.lower().encode(), "the hospital's own log has the details"


def test_a_bug_at_a_site_is_reported_without_details(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hospitals(tmp_path)
    genuine_run_round = SiteRunner.run_round

    def run_round(self: SiteRunner, name: str, payload: Payload) -> Reply:
        if name == "lyon":
            raise ValueError(f"cannot index {house_of(tmp_path, name)}/{IMAGE.name}")
        return genuine_run_round(self, name, payload)

    monkeypatch.setattr(SiteRunner, "run_round", run_round)
    contents = run_consortium(consortium("fedavg", train__rounds=1), tmp_path)
    assert find_leaks(contents) == []
    assert b"it failed with ValueError" in contents["metrics.jsonl"]


def test_unreadable_settings_are_reported_without_details(tmp_path: Path) -> None:
    write_hospitals(tmp_path)

    def find_settings(context: Context) -> SiteSettings:
        if context.node_config["partition-id"] == 1:
            # not an error that read_settings expects
            raise PermissionError(13, "Permission denied", "/PLANTED-HOUSE/site.toml")
        return hospital_places(tmp_path)(context)

    config = consortium("fedavg", train__rounds=1, federation__deadline=1)
    contents = run_consortium(config, tmp_path, find_settings)
    assert find_leaks(contents) == []
    assert b"it failed with PermissionError" in contents["metrics.jsonl"]


def test_a_missing_settings_file_is_not_named(tmp_path: Path) -> None:
    write_hospital(house_of(tmp_path, "berlin"), 0)

    def find_settings(context: Context) -> SiteSettings:
        if context.node_config["partition-id"] == 0:
            return hospital_places(tmp_path)(context)
        return read_settings(house_of(tmp_path, "lyon") / "site.toml")

    config = consortium("fedavg", train__rounds=1, federation__deadline=1)
    contents = run_consortium(config, tmp_path, find_settings)
    assert find_leaks(contents) == []
    assert b"the configuration cannot be used there" in contents["metrics.jsonl"]


def test_a_leak_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that a site puts into its reason is found in message, log and report."""
    write_hospitals(tmp_path)
    damage_image(house_of(tmp_path, "lyon"))
    monkeypatch.setattr(answers, "public_reason", str)
    leaks = find_leaks(run_consortium(consortium("fedavg", train__rounds=1), tmp_path))
    assert {"metrics.jsonl", "report.html", "printed"} <= set(leaks)
    assert any(name.startswith("message") for name in leaks)
    buffer = io.BytesIO()
    np.save(buffer, np.frombuffer(PLANTED_WORD, np.uint8))
    assert find_leaks({"array": buffer.getvalue()}) == ["array"]
    assert logging.getLogger("fedgsca.hospital.answers").disabled is False
