"""Contact sheets: images of every class, or of copies, side by side.

Nobody should train on data they have not looked at.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.data.duplicates import CopyFinding
from fedgsca.data.table import ImageTable
from fedgsca.errors import DataError
from fedgsca.rng import stream
from fedgsca.support.csv_table import render_csv
from fedgsca.support.files import write_atomic

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont, ImageFont

_GAP = 2  # white pixels between images
_COPY_ROWS, _COPY_COLUMNS = 40, 6  # of a sheet of copies
_LETTERS = "fonts/ttf/DejaVuSans.ttf"  # in matplotlib's data


@cache
def label_font(size: int) -> FreeTypeFont | ImageFont:
    """A font with umlauts and the other letters of Europe; Pillow's own where it is missing."""
    from PIL import ImageFont as Fonts

    try:
        import matplotlib as mpl

        return Fonts.truetype(str(Path(mpl.get_data_path()) / _LETTERS), size)
    except (ImportError, OSError):
        return Fonts.load_default(size=size)


def contact_sheet(
    table: ImageTable, *, per_class: int = 8, seed: int = 0, gap: int = _GAP
) -> np.ndarray:
    """(height, width, 3) uint8: one row of randomly chosen training images per class.

    White gaps separate the images; a class with too few images fills its row only partly.
    """
    if not table.has_images:
        raise DataError(
            "data.no-images-to-show",
            f"{table.name} has features and no images to look at",
            fix="leave the contact sheet out",
        )
    height, width = table.images.shape[1:3]
    sheet = np.full(
        (table.num_classes * (height + gap) + gap, per_class * (width + gap) + gap, 3),
        255,
        dtype=np.uint8,
    )
    train = table.rows("train")
    for label in range(table.num_classes):
        members = train[table.labels[train] == label]
        sample = np.sort(stream(seed, "sheet", label).permutation(members)[:per_class])
        y = gap + label * (height + gap)
        for column, row in enumerate(sample):
            x = gap + column * (width + gap)
            sheet[y : y + height, x : x + width] = table.images[row]
    return sheet


def save_sheet(table: ImageTable, path: str | Path, *, per_class: int = 8, seed: int = 0) -> Path:
    """Write the sheet as an image file with the class names on the left.

    Small images are enlarged to about 64 pixels.
    """
    from PIL import Image, ImageDraw

    sheet = contact_sheet(table, per_class=per_class, seed=seed)
    height = int(table.images.shape[1])
    zoom = max(1, round(64 / height))
    # pixels are repeated, not interpolated: the sheet shows what the network sees
    sheet = sheet.repeat(zoom, axis=0).repeat(zoom, axis=1)
    font = label_font(14)
    margin = 16 + max(int(font.getlength(name)) for name in table.classes)
    page = Image.new("RGB", (margin + sheet.shape[1], sheet.shape[0]), "white")
    page.paste(Image.fromarray(sheet), (margin, 0))
    draw = ImageDraw.Draw(page)
    for label, name in enumerate(table.classes):
        middle = zoom * (_GAP + label * (height + _GAP) + height / 2)
        draw.text((margin - 8, middle), name, fill="black", font=font, anchor="rm")
    return _write_picture(page, Path(path))


def write_findings(findings: Sequence[CopyFinding], table: ImageTable, folder: Path) -> list[Path]:
    """Write copies.csv, and copies.png with one row of images for each finding."""
    lines: list[Sequence[object]] = [["set", "kind", "file", "split", "label"]]
    for number, finding in enumerate(findings, 1):
        for image in finding.images:
            lines.append([number, finding.kind, image.file, image.split, image.label])
    write_atomic(folder / "copies.csv", render_csv(lines).encode("utf-8", "surrogateescape"))
    _write_sheet(findings[:_COPY_ROWS], table, folder / "copies.png")
    return [folder / "copies.csv", folder / "copies.png"]


def _write_sheet(findings: Sequence[CopyFinding], table: ImageTable, path: Path) -> None:
    """Every finding is a row: its number, then up to six images with split and label."""
    from PIL import Image, ImageDraw

    size, gap, text_height = 128, 8, 18
    page_size = (40 + _COPY_COLUMNS * (size + gap), len(findings) * (size + text_height + gap))
    page = Image.new("RGB", (page_size[0], max(page_size[1], size)), "white")
    draw = ImageDraw.Draw(page)
    font = label_font(11)
    for number, finding in enumerate(findings):
        y = number * (size + text_height + gap)
        draw.text((4, y + size / 2), str(number + 1), fill="black", font=font)
        for column, image in enumerate(finding.images[:_COPY_COLUMNS]):
            x = 40 + column * (size + gap)
            picture = Image.fromarray(np.ascontiguousarray(table.images[image.row]))
            page.paste(picture.resize((size, size)), (x, y))
            caption = f"{image.split}: {image.label}"[:22]
            draw.text((x, y + size + 2), caption, fill="black", font=font)
    _write_picture(page, path)


def _write_picture(page: Image, path: Path) -> Path:
    """In the format of the name's suffix. Raises ValueError for one that Pillow does not know."""
    from PIL import Image as Pillow

    suffixes = Pillow.registered_extensions()
    if path.suffix.lower() not in suffixes:
        raise ValueError(f"unknown file extension: {path.suffix}")
    content = io.BytesIO()
    page.save(content, suffixes[path.suffix.lower()])
    write_atomic(path, content.getvalue())
    return path
