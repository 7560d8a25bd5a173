"""Contact sheets: a few images of every class side by side, because nobody should train on data they have not looked at."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedgsca.data.table import Table
from fedgsca.rng import stream


def contact_sheet(table: Table, *, per_class: int = 8, seed: int = 0, gap: int = 2) -> np.ndarray:
    """(height, width, 3) uint8: one row of randomly chosen training images per class, white gaps between them."""
    height, width = table.images.shape[1:3]
    sheet = np.full(
        (table.num_classes * (height + gap) + gap, per_class * (width + gap) + gap, 3),
        255,
        dtype=np.uint8,
    )
    train = table.rows("train")
    for label in range(table.num_classes):
        rows = train[table.labels[train] == label]
        chosen = np.sort(
            stream(seed, "sheet", label).permutation(rows)[:per_class]
        )  # a rare class may fill its row only partly
        top = gap + label * (height + gap)
        for column, row in enumerate(chosen):
            left = gap + column * (width + gap)
            sheet[top : top + height, left : left + width] = table.images[row]
    return sheet


def save_sheet(table: Table, path: str | Path, *, per_class: int = 8, seed: int = 0) -> Path:
    """Write the sheet as an image with class names at the left; small images are enlarged to about 64 pixels."""
    from PIL import Image, ImageDraw, ImageFont

    height, gap = int(table.images.shape[1]), 2
    sheet = contact_sheet(table, per_class=per_class, seed=seed, gap=gap)
    zoom = max(1, round(64 / height))
    sheet = sheet.repeat(zoom, axis=0).repeat(
        zoom, axis=1
    )  # whole pixels: what is shown is what the network sees
    font = ImageFont.load_default(size=14)
    margin = 16 + max(int(font.getlength(name)) for name in table.classes)
    page = Image.new("RGB", (margin + sheet.shape[1], sheet.shape[0]), "white")
    page.paste(Image.fromarray(sheet), (margin, 0))
    draw = ImageDraw.Draw(page)
    for label, name in enumerate(table.classes):
        middle = zoom * (gap + label * (height + gap) + height / 2)
        draw.text((margin - 8, middle), name, fill="black", font=font, anchor="rm")
    path = Path(path)
    page.save(path)
    return path
