"""Contact sheets: a few images of every class side by side.

Nobody should train on data they have not looked at.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedgsca.data.table import ImageTable
from fedgsca.errors import DataError
from fedgsca.rng import stream

_GAP = 2  # white pixels between images


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
    from PIL import Image, ImageDraw, ImageFont

    sheet = contact_sheet(table, per_class=per_class, seed=seed)
    height = int(table.images.shape[1])
    zoom = max(1, round(64 / height))
    # pixels are repeated, not interpolated: the sheet shows what the network sees
    sheet = sheet.repeat(zoom, axis=0).repeat(zoom, axis=1)
    font = ImageFont.load_default(size=14)
    margin = 16 + max(int(font.getlength(name)) for name in table.classes)
    page = Image.new("RGB", (margin + sheet.shape[1], sheet.shape[0]), "white")
    page.paste(Image.fromarray(sheet), (margin, 0))
    draw = ImageDraw.Draw(page)
    for label, name in enumerate(table.classes):
        middle = zoom * (_GAP + label * (height + _GAP) + height / 2)
        draw.text((margin - 8, middle), name, fill="black", font=font, anchor="rm")
    path = Path(path)
    page.save(path)
    return path
