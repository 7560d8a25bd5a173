"""Small copies of the paper's three data sets, in the published layouts, with images drawn here."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedgsca.data.readers.kvasir import CLASSES, IMAGES
from fedgsca.rng import stream

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "kvasir_capsule_splits"
HEADER = ["ID", "Patient Age", "Patient Sex", "Left-Fundus", "Right-Fundus"]
HEADER += ["Left-Diagnostic Keywords", "Right-Diagnostic Keywords", *"NDGCAHMO"]


def picture(path: Path, label: int, number: int, size: tuple[int, int] = (20, 20)) -> None:
    """A grainy JPEG whose colour depends on the label."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = stream(number, "papers", label).normal(120, 40, (size[1], size[0], 3))
    pixels += 60 * np.array([label & 1, label >> 1 & 1, label >> 2 & 1]) - 5 * label
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path, quality=90, format="JPEG")


# ---- Kvasir-Capsule ----


def kvasir(
    root: Path, per_class: int = 20, classes: Sequence[str] = tuple(IMAGES), videos: int = 5
) -> Path:
    """`<Class>/<video>_<frame>.jpg`; the frames of a class come from the same videos in turn."""
    for label, name in enumerate(classes):
        for i in range(per_class):
            picture(root / name / f"{i % videos:016x}_{100 * label + i}.jpg", label, i)
    (root / "metadata.csv").write_text(
        "filename;video_id;frame_number;finding_category;finding_class\n"
    )
    return root


def fedgp(root: Path, folder: Path | None = None, noisy: str = "") -> Path:
    """FedGP's csv files: of ten frames 7 for training (clients in turn), 1 valid, 2 test.

    `noisy` adds files with wrong labels.
    """
    folder = folder or root
    folder.mkdir(exist_ok=True)
    lists: dict[str, list[list[str]]] = {"valid-shuffle.csv": [], "test-shuffle.csv": []}
    for label, name in enumerate(CLASSES):
        for i, path in enumerate(sorted((root / name).iterdir())):
            file = "test-shuffle.csv"
            if i % 10 < 7:
                file = f"train-4clients-{'ABCD'[i % 4]}-shuffle.csv"
            elif i % 10 == 7:
                file = "valid-shuffle.csv"
            lists.setdefault(file, []).append([f"{label}_{path.name}", name, str(label)])
    for file, rows in lists.items():
        write_csv(folder / file, ["imgname", "category", "clean_label"], rows)
        if noisy and file.startswith("train"):
            noisy_rows = []
            for i, row in enumerate(rows):
                is_wrong = i % 5 == 0
                noisy_label = (int(row[2]) + is_wrong) % 10
                noisy_rows.append([*row, str(noisy_label), str(is_wrong)])
            name = f"noisy-{file.removesuffix('.csv')}-{noisy}.csv"
            header = ["imgname", "category", "clean_label", "noisy_label", "noisy_flag"]
            write_csv(folder / name, header, noisy_rows)
    return folder


def write_csv(
    path: Path, header: Sequence[str], rows: Iterable[Sequence[str]], bom: bool = False
) -> None:
    """With the line ends of the published files."""
    with open(path, "w", newline="", encoding="utf-8-sig" if bom else "utf-8") as handle:
        csv.writer(handle, lineterminator="\r\n").writerows([header, *rows])


# ---- OIA-ODIR ----

WORDS = (
    "normal fundus",
    "moderate non proliferative retinopathy",
    "glaucoma",
    "cataract",
    "dry age-related macular degeneration",
    "hypertensive retinopathy",
    "pathological myopia",
    "epiretinal membrane",
)


def patients(count: int, first: int = 0) -> list[list[object]]:
    """Rows of the table: the left eye has the class; every second patient's right eye is normal."""
    rows: list[list[object]] = []
    for i in range(first, first + count):
        c = i % 8
        right = WORDS[c] if i % 2 else "normal fundus"
        row = [i, 60, "Female", f"{i}_left.jpg", f"{i}_right.jpg", f"lens dust，{WORDS[c]}", right]
        rows.append([*row, *(int(k == c) for k in range(8))])
    return rows


def workbook(
    path: Path, rows: Sequence[Sequence[object]], header: Sequence[str] = tuple(HEADER)
) -> None:
    import openpyxl

    path.parent.mkdir(parents=True, exist_ok=True)
    book = openpyxl.Workbook()
    for row in (header, *rows):
        book.active.append(list(row))
    book.save(path)


def _eyes(folder: Path, rows: Sequence[Sequence[object]]) -> None:
    for row in rows:
        for eye in (3, 4):
            picture(
                folder / str(row[eye]), int(str(row[0])) % 8, 2 * int(str(row[0])) + eye, (26, 17)
            )


def odir(root: Path, train: int = 48, off: int = 8, on: int = 16) -> Path:
    """The authors' layout."""
    first = 0
    for name, count in (
        ("Training Set", train),
        ("Off-site Test Set", off),
        ("On-site Test Set", on),
    ):
        short = name.removesuffix(" Set").lower()
        rows = patients(count, first)
        workbook(root / name / "Annotation" / f"{short} annotation (English).xlsx", rows)
        _eyes(root / name / "Images", rows)
        first += count
    return root


def odir_kaggle(root: Path, count: int = 48) -> Path:
    """Kaggle's layout: images of the test set without labels."""
    rows = patients(count)
    workbook(root / "ODIR-5K" / "data.xlsx", rows)
    _eyes(root / "ODIR-5K" / "Training Images", rows)
    picture(root / "ODIR-5K" / "Testing Images" / "9001_left.jpg", 0, 0)
    return root


# ---- Chaoyang ----


def chaoyang(
    root: Path, train: int = 96, test: int = 32, annotators: bool = True, bom: bool = False
) -> Path:
    """In every second block of four images one pathologist disagrees with the other two.

    `annotators` writes a list with the labels of all three.
    """
    encoding = "utf-8-sig" if bom else "utf-8"
    for split, count, slides in (("train", train, 100), ("test", test, 200)):
        entries: list[dict[str, object]] = []
        votes: list[dict[str, object]] = []
        for i in range(count):
            label = i % 4
            name = f"{split}/{slides + i // 8}_4-IMG{i:03d}x014-{label}.JPG"
            picture(root / name, label, i)
            entries.append({"name": name, "label": label})
            second_label = (i + 1) % 4 if i // 4 % 2 else label
            labels = {"label_A": label, "label_B": second_label, "label_C": label}
            votes.append({**entries[-1], **labels})
        (root / f"{split}.json").write_text(json.dumps(entries), encoding=encoding)
        if annotators and split == "train":
            (root / "train_annotators.json").write_text(json.dumps(votes), encoding=encoding)
    return root
