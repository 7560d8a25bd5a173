"""One image file to one square of uint8 RGB pixels.

The rules, in order: EXIF rotation is applied; transparent pixels are laid over white; 16-bit grey is divided by the white level
of the data set (255, 4095 or 65535, see `white_level`) so that all its files keep one scale; the shorter side is resized to the
wanted size and the middle is cut out. DICOM files (extra) are windowed instead of scaled, see dicom.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.data.decode import dicom
from fedgsca.errors import FedgscaError

if TYPE_CHECKING:
    from PIL import Image

_PICTURES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp")
SUFFIXES = (*_PICTURES, *dicom.SUFFIXES)
FORMATS = ("JPEG", "PNG", "TIFF", "BMP")
VERSION = "decode-1"  # part of the cache key: raise it whenever the pixels that come out change


@dataclass(frozen=True)
class Facts:
    """What the header says about an image; `problem` is empty when it can be opened."""

    width: int = 0  # as seen, after EXIF rotation
    height: int = 0
    mode: str = ""
    pages: int = 1
    peak: int = 0  # largest value of a 16-bit grey image, 0 for all others
    problem: str = ""
    stretched: bool = False  # DICOM without a window: the image's own range is used


class Unreadable(Exception):
    """An image that cannot be decoded; the message is the reason, without the file's name."""


def is_image(path: Path) -> bool:
    """By the ending, or by DICOM's mark in files of any other name."""
    return path.suffix.lower() in SUFFIXES or dicom.is_dicom(path)


def inspect(path: Path) -> Facts:
    """Read the header only, except for 16-bit grey, whose largest value decides the scale of the data set."""
    from PIL import Image

    try:
        if path.suffix.lower() not in _PICTURES:
            columns, rows, kind, stretched = dicom.size_and_kind(path)
            return Facts(columns, rows, kind, stretched=stretched)
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            # orientations that exchange width and height; for TIFF Pillow has done it already
            if image.format != "TIFF" and image.getexif().get(0x0112) in (5, 6, 7, 8):
                width, height = height, width
            pages = int(getattr(image, "n_frames", 1)) if image.format == "TIFF" else 1
            peak = int(_sixteen_bit(image).max()) if _is_deep(image.mode) else 0
            return Facts(width, height, image.mode, pages, peak)
    except FedgscaError:  # a package is missing: true of all files
        raise
    except Exception as error:  # Pillow's plugins raise many types for broken files
        return Facts(problem=_reason(error))


def white_level(peak: int) -> int:
    """The value that becomes white: 8, 12 or 16 bit, by the largest value among all 16-bit grey images of a data set."""
    return 255 if peak <= 255 else 4095 if peak <= 4095 else 65535


def decode(path: Path, size: int, white: int | None = 65535) -> np.ndarray:
    """(size, size, 3) uint8; `white` None: 16-bit grey by the image's own largest value. Raises Unreadable with the reason."""
    return decode_for(path, size, white)[0]


def decode_for(path: Path, size: int, white: int | None = 65535) -> tuple[np.ndarray, str]:
    """The same with the patient's id where the file has one: for grouping in memory, not to be stored."""
    try:
        if path.suffix.lower() not in _PICTURES:
            pixels, patient = dicom.read_image(path)
            return fit(pixels, size), patient
        return _picture(path, size, white), ""
    except FedgscaError:
        raise
    except Exception as error:
        raise Unreadable(_reason(error)) from error


def decode_whole(path: Path, white: int = 65535) -> np.ndarray:
    """(H, W, 3) uint8 in the file's own size and shape, for a person to look at; raises Unreadable with the reason."""
    try:
        return (
            _picture(path, None, white)
            if path.suffix.lower() in _PICTURES
            else dicom.read_image(path)[0]
        )
    except FedgscaError:
        raise
    except Exception as error:
        raise Unreadable(_reason(error)) from error


def _picture(path: Path, size: int | None, white: int | None) -> np.ndarray:
    from PIL import Image, ImageOps

    with Image.open(path, formats=FORMATS) as image:
        if image.format == "JPEG" and size is not None:
            shrink = size / min(
                image.size
            )  # libjpeg decodes at 1/2, 1/4 or 1/8: twice as fast for large photographs
            image.draft(None, (round(image.width * shrink), round(image.height * shrink)))
        turned = ImageOps.exif_transpose(image)
        pixels = _eight_bit(_sixteen_bit(turned), white) if _is_deep(image.mode) else _flat(turned)
    return pixels if size is None else fit(pixels, size)


def fit(pixels: np.ndarray, size: int) -> np.ndarray:
    """(H, W, 3) uint8 with the shorter side resized to `size` and the middle cut out."""
    from PIL import Image

    height, width = pixels.shape[:2]
    short = min(height, width)
    if short != size:
        scaled = (max(size, round(width * size / short)), max(size, round(height * size / short)))
        pixels = np.asarray(Image.fromarray(pixels).resize(scaled, Image.Resampling.BILINEAR))
    top, left = (pixels.shape[0] - size) // 2, (pixels.shape[1] - size) // 2
    return pixels[top : top + size, left : left + size]


def _is_deep(mode: str) -> bool:
    return mode.startswith("I") or mode == "F"


def _sixteen_bit(image: Image.Image) -> np.ndarray:
    if image.mode == "F":
        raise Unreadable("floating-point pixels: convert to 8 or 16 bit integers")
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise Unreadable("32-bit pixel values: convert to 8 or 16 bit")
    return values


def _eight_bit(values: np.ndarray, white: int | None) -> np.ndarray:
    white = white or white_level(int(values.max()))
    grey = np.rint(np.minimum(values, white) * (255.0 / white)).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=-1)


def _flat(image: Image.Image) -> np.ndarray:
    """RGB pixels of any 8-bit mode; transparency becomes white, as on a slide."""
    from PIL import Image as Pillow

    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        colour = image.convert("RGBA")
        white = Pillow.new("RGBA", colour.size, (255, 255, 255, 255))
        image = Pillow.alpha_composite(white, colour)
    return np.asarray(image.convert("RGB"))


def _reason(error: Exception) -> str:
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not a JPEG, PNG, TIFF or BMP image"
    if isinstance(error, dicom.NoImage):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None:
        return error.strerror or str(error)
    return str(error).split("\n")[0][:120] or type(error).__name__
