"""What a hospital has: images with labels, some of them wrong, and an unpacked kit."""

from __future__ import annotations

import csv
import json
import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedgsca.data.readers.synthetic.images import CLASSES, render
from fedgsca.noise import corrupt, parse_noise
from fedgsca.rng import stream
from fedgsca.support.text import DASH, percent

TrueClasses = dict[str, str]  # file -> true class


def write_images(
    folder: Path, party: str, seed: int, noise: str, *, train: int, test: int
) -> TrueClasses:
    """Write images and a labels.csv with wrong labels in the training part.

    Returns the true classes, which no hospital has.
    """
    from PIL import Image

    table = render(seed=seed, train=train, test=test, size=64)
    noisy_labels = corrupt(
        table.labels,
        parse_noise(noise, 1)[0],
        num_classes=len(CLASSES),
        rng=stream(seed, "example", "noise"),
    )
    folder.mkdir(parents=True)
    true_classes = {}
    with open(folder / "labels.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "label", "split"])
        for i, image in enumerate(table.images):
            name = f"{party}-{i:04d}.png"
            split = table.split[i]
            label = noisy_labels[i] if split == "train" else table.labels[i]
            Image.fromarray(image).save(folder / name)
            writer.writerow([name, CLASSES[label], split])
            true_classes[name] = CLASSES[table.labels[i]]
    return true_classes


def unpack_kit(kit: Path, home: Path) -> Path:
    """What a hospital does with its kit: `unzip`, then edit `data` and `state` in site.toml."""
    with zipfile.ZipFile(kit) as archive:
        for entry in archive.infolist():
            Path(archive.extract(entry, home)).chmod(entry.external_attr >> 16 & 0o777)
    site = home / kit.stem / "site.toml"
    text = site.read_text()
    for key in ("data", "state"):
        [line] = [line for line in text.splitlines() if line.startswith(f"{key} = ")]
        text = text.replace(line, f"{key} = {json.dumps(str(home / key))}")
    site.write_text(text)
    return site.parent


@dataclass(frozen=True)
class AuditQuality:
    """How good a hospital's list of suspects is.

    Only this example can compute it, because it has put the wrong labels there.
    """

    num_labels: int
    num_wrong: int
    num_suspects: int  # to review
    num_wrong_suspects: int

    @property
    def precision(self) -> str:
        """The share of suspects that are wrong; a dash if the hospital has no wrong labels."""
        if not self.num_wrong or not self.num_suspects:
            return DASH
        return percent(self.num_wrong_suspects / self.num_suspects, 0)


def measure_audit(state: Path, true_classes: TrueClasses) -> AuditQuality:
    """Compare the audit in a hospital's state folder with the truth."""
    [path] = state.glob("*/audit/*/audit.csv")
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    num_wrong = num_suspects = num_wrong_suspects = 0
    for row in rows:
        is_wrong = row["given"] != true_classes[row["id"]]
        is_suspect = row["priority"] == "yes"
        num_wrong += is_wrong
        num_suspects += is_suspect
        num_wrong_suspects += is_wrong and is_suspect
    return AuditQuality(len(rows), num_wrong, num_suspects, num_wrong_suspects)


def find_leaks(coordinator: Path, names: Iterable[str]) -> tuple[int, list[Path]]:
    """How many files the coordinator has, and those with data about single images of a hospital."""
    files = [path for path in coordinator.rglob("*") if path.is_file()]
    image_name = re.compile(rf"({'|'.join(names)})-\d{{4}}\.png".encode())
    leaks = []
    for path in files:
        folders = set(path.relative_to(coordinator).parts)
        if folders & {"evidence", "audit"} or image_name.search(path.read_bytes()):
            leaks.append(path)
    return len(files), leaks
