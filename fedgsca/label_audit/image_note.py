"""A small picture with a note, in the place of an image that does not exist."""

from __future__ import annotations

import numpy as np

from fedgsca.support.text import one_line

SIZE = 192  # pixels
_MAX_LETTERS = 24  # of a line


def draw_note(title: str, text: str) -> np.ndarray:
    """(SIZE, SIZE, 3) uint8: two lines on grey; of a long text the end, which differs most."""
    from PIL import Image, ImageDraw, ImageFont

    page = Image.new("RGB", (SIZE, SIZE), (236, 236, 236))
    draw = ImageDraw.Draw(page)
    line = one_line(text)
    if len(line) > _MAX_LETTERS:
        line = "\N{HORIZONTAL ELLIPSIS}" + line[-_MAX_LETTERS:]
    middle = SIZE / 2
    for shift, words, size in ((-18, title, 22), (16, line, 13)):
        font = ImageFont.load_default(size=size)
        draw.text((middle, middle + shift), words, fill=(70, 70, 70), font=font, anchor="mm")
    return np.asarray(page)
