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

Truth = dict[str, str]  # file -> true class


def write_images(
    folder: Path, party: str, seed: int, noise: str, *, train: int, test: int
) -> Truth:
    """Images and labels.csv with wrong labels in the training part, and the truth, which no hospital has."""
    from PIL import Image

    table = render(seed=seed, train=train, test=test, size=64)
    wrong = corrupt(
        table.labels,
        parse_noise(noise, 1)[0],
        num_classes=len(CLASSES),
        rng=stream(seed, "example", "noise"),
    )
    given = [
        w if split == "train" else label
        for w, label, split in zip(wrong, table.labels, table.split, strict=True)
    ]
    names = [f"{party}-{i:04d}.png" for i in range(len(table.images))]
    folder.mkdir(parents=True)
    for name, image in zip(names, table.images, strict=True):
        Image.fromarray(image).save(folder / name)
    with open(folder / "labels.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "label", "split"])
        rows.writerows(zip(names, (CLASSES[label] for label in given), table.split, strict=True))
    return {name: CLASSES[label] for name, label in zip(names, table.labels, strict=True)}


def unpack(kit: Path, home: Path) -> Path:
    """What a hospital does with its kit: `unzip`, then say in site.toml where its images and its memory are."""
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
class Worth:
    """What a hospital's list of suspects is worth. Only this example can tell: it has put the wrong labels there."""

    labels: int
    wrong: int
    listed: int  # to review
    found: int  # of these wrong

    @property
    def precision(self) -> str:
        return f"{100 * self.found / self.listed:.0f} %" if self.wrong and self.listed else "–"


def judge(state: Path, truth: Truth) -> Worth:
    [path] = state.glob("*/audit/*/audit.csv")
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    wrong = [row["given"] != truth[row["id"]] for row in rows]
    listed = [bad for bad, row in zip(wrong, rows, strict=True) if row["priority"] == "yes"]
    return Worth(len(rows), sum(wrong), len(listed), sum(listed))


def traces(coordinator: Path, names: Iterable[str]) -> tuple[int, list[Path]]:
    """How many files the coordinator has, and those with something about single images of a hospital in them."""
    files = [path for path in coordinator.rglob("*") if path.is_file()]
    pattern = re.compile(rf"({'|'.join(names)})-\d{{4}}\.png".encode())
    folders = {path: set(path.relative_to(coordinator).parts) for path in files}
    return len(files), [
        p for p in files if folders[p] & {"evidence", "audit"} or pattern.search(p.read_bytes())
    ]
