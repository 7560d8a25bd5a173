"""One image file to one square of uint8 RGB pixels.

The rules, in order: EXIF rotation is applied; transparent pixels are laid over white; 16-bit grey
is divided by the white level of the data set (255, 4095 or 65535, see `white_level`) so that all
its files have one scale; the shorter side is resized to the requested size and the centre is
cropped. An image whose header claims an absurd size is refused before it is decoded. DICOM files
(an extra) are windowed instead of scaled, see dicom.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.data import dicom
from fedgsca.errors import FedgscaError

if TYPE_CHECKING:
    from PIL import Image

_PICTURES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp")
SUFFIXES = (*_PICTURES, *dicom.SUFFIXES)
FORMATS = ("JPEG", "PNG", "TIFF", "BMP")
VERSION = "decode-1"  # part of the cache key: raise it whenever the pixels that come out change

_ORIENTATION = 0x0112  # EXIF
_QUARTER_TURNS = (5, 6, 7, 8)  # orientations that exchange width and height
_TRANSPARENT_MODES = ("RGBA", "LA", "PA", "RGBa", "La")

# Shapes beyond these are a damaged header or a trap: a file of a hundred bytes can claim any size.
MAX_PIXELS = 2**26 + 2**24  # 84 million: four times a mammogram, 250 MB as RGB
_MAX_RATIO = 100  # of the longer to the shorter side


@dataclass(frozen=True)
class ImageFacts:
    """What the header says about an image; `problem` is empty when it can be opened."""

    width: int = 0  # as seen, after EXIF rotation
    height: int = 0
    mode: str = ""
    pages: int = 1
    peak: int = 0  # largest value of a 16-bit grey image, 0 for all others
    problem: str = ""
    needs_stretching: bool = False  # DICOM without a window: the image's own range is used


class UnreadableImageError(Exception):
    """An image that cannot be decoded; the message is the reason, without the file's name."""


def is_image(path: Path) -> bool:
    """By the suffix, or by DICOM's mark in files of any other name."""
    return path.suffix.lower() in SUFFIXES or dicom.is_dicom(path)


def _is_picture(path: Path) -> bool:
    """Whether Pillow reads the file; pydicom reads all others."""
    return path.suffix.lower() in _PICTURES


def inspect_image(path: Path) -> ImageFacts:
    """Read the header only, except for 16-bit grey: its largest value sets the data set's scale."""
    try:
        if _is_picture(path):
            return _inspect_picture(path)
        header = dicom.read_dicom_header(path)
        check_shape(header.width, header.height)
        return ImageFacts(
            header.width, header.height, header.kind, needs_stretching=header.needs_stretching
        )
    except FedgscaError:  # a package is missing: true of all files
        raise
    except Exception as error:  # Pillow's plugins raise many types for broken files
        return ImageFacts(problem=_reason(error))


def _inspect_picture(path: Path) -> ImageFacts:
    from PIL import Image

    with Image.open(path, formats=FORMATS) as image:
        check_shape(*image.size)
        width, height = image.size
        pages = 1
        if image.format == "TIFF":  # Pillow has applied its orientation already
            pages = int(getattr(image, "n_frames", 1))
        elif image.getexif().get(_ORIENTATION) in _QUARTER_TURNS:
            width, height = height, width
        peak = int(_read_deep(image).max()) if _is_deep(image.mode) else 0
        return ImageFacts(width, height, image.mode, pages, peak)


def white_level(peak: int) -> int:
    """The value that becomes white: the maximum of 8, 12 or 16 bit.

    `peak` is the largest value among all 16-bit grey images of a data set.
    """
    for level in (255, 4095):
        if peak <= level:
            return level
    return 65535


def decode(path: Path, size: int, white: int | None = 65535) -> np.ndarray:
    """(size, size, 3) uint8. Raises UnreadableImageError with the reason.

    `white` is the value of 16-bit grey that becomes white; None: by the image's own largest value.
    """
    return decode_with_patient(path, size, white)[0]


def decode_with_patient(path: Path, size: int, white: int | None = 65535) -> tuple[np.ndarray, str]:
    """The same with the patient's id where the file has one: for use in memory, not on disk."""
    with _unreadable_errors():
        if _is_picture(path):
            return _decode_picture(path, size, white), ""
        pixels, patient = _read_dicom(path)
        return fit(pixels, size), patient


def decode_full_size(path: Path, white: int = 65535) -> np.ndarray:
    """(H, W, 3) uint8 in the file's own size and shape, for a person to look at.

    Raises UnreadableImageError with the reason.
    """
    with _unreadable_errors():
        if _is_picture(path):
            return _decode_picture(path, None, white)
        return _read_dicom(path)[0]


def _read_dicom(path: Path) -> tuple[np.ndarray, str]:
    header = dicom.read_dicom_header(path)
    check_shape(header.width, header.height)
    return dicom.read_image(path)


def check_shape(width: int, height: int) -> None:
    """Refuse, before any pixel is decoded, a size that would need absurdly much memory.

    Raises UnreadableImageError.
    """
    short, long = sorted((width, height))
    if short < 1:
        raise UnreadableImageError(f"an image of {width:,} x {height:,} pixels is empty")
    if width * height > MAX_PIXELS:
        raise UnreadableImageError(
            f"an image of {width:,} x {height:,} pixels is too large (at most"
            f" {MAX_PIXELS // 10**6} million pixels): cut or reduce it"
        )
    if long > _MAX_RATIO * short:
        raise UnreadableImageError(
            f"an image of {width:,} x {height:,} pixels is too long and thin (at most"
            f" {_MAX_RATIO} times as long as wide): cut it"
        )


@contextmanager
def _unreadable_errors() -> Iterator[None]:
    """Turn the many types of errors that decoders raise into one."""
    try:
        yield
    except FedgscaError:  # a package is missing: true of all files
        raise
    except Exception as error:
        raise UnreadableImageError(_reason(error)) from error


def _decode_picture(path: Path, size: int | None, white: int | None) -> np.ndarray:
    """Any file that Pillow reads; `size` None: as large as it is."""
    from PIL import Image, ImageOps

    with Image.open(path, formats=FORMATS) as image:
        check_shape(*image.size)
        if image.format == "JPEG" and size is not None:
            # libjpeg decodes at 1/2, 1/4 or 1/8: twice as fast for large photographs
            shrink = size / min(image.size)
            image.draft(None, (round(image.width * shrink), round(image.height * shrink)))
        upright = ImageOps.exif_transpose(image)
        if _is_deep(image.mode):
            pixels = _to_eight_bit(_read_deep(upright), white)
        else:
            pixels = _to_rgb(upright)
    return pixels if size is None else fit(pixels, size)


def fit(pixels: np.ndarray, size: int) -> np.ndarray:
    """(H, W, 3) uint8 with the shorter side resized to `size` and the centre cropped."""
    from PIL import Image

    height, width = pixels.shape[:2]
    short = min(height, width)
    if short != size:
        shape = (max(size, round(width * size / short)), max(size, round(height * size / short)))
        pixels = np.asarray(Image.fromarray(pixels).resize(shape, Image.Resampling.BILINEAR))
    y = (pixels.shape[0] - size) // 2
    x = (pixels.shape[1] - size) // 2
    return pixels[y : y + size, x : x + size]


def _is_deep(mode: str) -> bool:
    return mode.startswith("I") or mode == "F"


def _read_deep(image: Image.Image) -> np.ndarray:
    """(H, W) values of a grey image with more than 8 bits."""
    if image.mode == "F":
        raise UnreadableImageError("floating-point pixels: convert to 8 or 16 bit integers")
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise UnreadableImageError("32-bit pixel values: convert to 8 or 16 bit")
    return values


def _to_eight_bit(values: np.ndarray, white: int | None) -> np.ndarray:
    white = white or white_level(int(values.max()))
    grey = np.rint(np.minimum(values, white) * (255.0 / white)).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=-1)


def _to_rgb(image: Image.Image) -> np.ndarray:
    """RGB pixels of any 8-bit mode; transparency becomes white, as on a slide."""
    from PIL import Image as Pillow

    if image.mode in _TRANSPARENT_MODES or "transparency" in image.info:
        colour = image.convert("RGBA")
        white = Pillow.new("RGBA", colour.size, (255, 255, 255, 255))
        image = Pillow.alpha_composite(white, colour)
    return np.asarray(image.convert("RGB"))


def _reason(error: Exception) -> str:
    """One line for a person."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not a JPEG, PNG, TIFF or BMP image"
    if isinstance(error, dicom.NoImageError):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None:
        return error.strerror or str(error)
    return str(error).split("\n")[0][:120] or type(error).__name__
