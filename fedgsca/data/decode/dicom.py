"""DICOM files as images: the only file that imports the optional pydicom.

Only the elements in `_TAGS` are ever read. Of the patient that is the id, which stays in memory: the caller turns it into numbers
(`numbered`), so that nothing derived from it reaches a disk. Messages name types of errors, never what a patient element says.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgsca.data.decode.dicom_windowing import Look, Window, grey
from fedgsca.errors import FedgscaError, MissingExtraError

if TYPE_CHECKING:
    from pydicom import Dataset

SUFFIXES = (".dcm", ".dicom")
_GREY = ("MONOCHROME1", "MONOCHROME2")
_COLOUR = (
    "RGB",
    "YBR_FULL",
    "YBR_FULL_422",
    "YBR_ICT",
    "YBR_RCT",
)  # pydicom turns the last four into RGB
_TAGS = [
    "SpecificCharacterSet", "PatientID", "IssuerOfPatientID", "NumberOfFrames", "SharedFunctionalGroupsSequence",
    "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "Rows", "Columns",
    "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelPaddingValue", "PixelPaddingRangeLimit",
    "WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence", "RescaleIntercept", "RescaleSlope", "ModalityLUTSequence",
    "RedPaletteColorLookupTableDescriptor", "GreenPaletteColorLookupTableDescriptor", "BluePaletteColorLookupTableDescriptor",
    "RedPaletteColorLookupTableData", "GreenPaletteColorLookupTableData", "BluePaletteColorLookupTableData",
    "SegmentedRedPaletteColorLookupTableData", "SegmentedGreenPaletteColorLookupTableData",
    "SegmentedBluePaletteColorLookupTableData", "ExtendedOffsetTable", "ExtendedOffsetTableLengths", "PixelData",
]  # fmt: skip


class NoImage(Exception):
    """A DICOM file that holds no usable image; the message is the reason, without the file's name."""


def is_dicom(path: Path) -> bool:
    """By the mark at byte 128: archives like to export files without an ending. DICOMDIR has it, too, and is no image."""
    if path.name.upper() == "DICOMDIR":
        return False
    try:
        with open(path, "rb") as handle:
            return handle.read(132)[128:] == b"DICM"
    except OSError:
        return False


def size_and_kind(path: Path) -> tuple[int, int, str, bool]:
    """Width, height, photometric interpretation, and whether the image must be stretched for want of a window. Header only."""
    with _discreet():
        data = _read(path, pixels=False)
        kind = str(data.PhotometricInterpretation)
        return int(data.Columns), int(data.Rows), kind, kind in _GREY and _tone(data) is None


def read_image(path: Path) -> tuple[np.ndarray, str]:
    """(H, W, 3) uint8 and the patient's id, "" if there is none."""
    with _discreet():
        data = _read(path, pixels=True)
        pixels = _pixels(_stored(data), data)
        issuer, patient = (
            str(data.get(name) or "").strip() for name in ("IssuerOfPatientID", "PatientID")
        )
        return pixels, f"{issuer}\\{patient}" if patient else ""


def numbered(patients: Sequence[str]) -> list[int]:
    """Patients as numbers in order of first appearance, -1 for none: what may be stored. Not a hash, which one could try out."""
    known: dict[str, int] = {}
    return [known.setdefault(patient, len(known)) if patient else -1 for patient in patients]


@contextmanager
def _discreet() -> Iterator[None]:
    """pydicom raises many types for broken files, with values of elements in their texts: only the type is passed on."""
    try:
        yield
    except (NoImage, FedgscaError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # no permission, failing disk
            raise
        raise NoImage(f"damaged DICOM file ({type(error).__name__})") from None


def _read(path: Path, *, pixels: bool) -> Dataset:
    pydicom = _pydicom()
    try:
        data: Dataset = pydicom.dcmread(path, stop_before_pixels=not pixels, specific_tags=_TAGS)
    except pydicom.errors.InvalidDicomError:
        raise NoImage("not a DICOM file") from None
    if "SharedFunctionalGroupsSequence" in data:
        raise NoImage(
            "an enhanced multi-frame DICOM object: convert it to one classic file per image"
        )
    if int(data.get("NumberOfFrames") or 1) > 1:
        raise NoImage(
            f"a DICOM file of {int(data.NumberOfFrames)} frames: write the labelled frame to a file of its own"
        )
    if any(
        name not in data
        for name in ("Rows", "Columns", "BitsAllocated", "PhotometricInterpretation")
    ):
        raise NoImage("a DICOM file without an image (a report, a directory or a structure set)")
    kind, bits = (
        str(data.PhotometricInterpretation),
        int(data.get("BitsStored") or data.BitsAllocated),
    )
    if kind not in (*_GREY, *_COLOUR, "PALETTE COLOR"):
        raise NoImage(
            f"photometric interpretation {kind} is not supported: convert to RGB or MONOCHROME2"
        )
    if bits > 16:
        raise NoImage(f"{bits} bits per value: convert to 8 or 16")
    if pixels and "PixelData" not in data:
        raise NoImage("a DICOM file without integer pixel data")
    return data


def _stored(data: Dataset) -> np.ndarray:
    """Stored values; YBR is RGB afterwards, colour planes are interleaved, bits above BitsStored are gone."""
    _need_decoder(data)
    try:
        return np.asarray(_pydicom().pixels.pixel_array(data))
    except Exception as error:
        syntax = data.file_meta.TransferSyntaxUID
        more = f", compressed as {syntax.name}" if syntax.is_compressed else ""
        raise NoImage(
            f"damaged, cut off or not decodable DICOM pixels ({type(error).__name__}{more})"
        ) from None


def _need_decoder(data: Dataset) -> None:
    syntax = data.file_meta.get("TransferSyntaxUID")
    if syntax is None:
        raise NoImage(
            "a DICOM file that does not say how its pixels are stored (no transfer syntax)"
        )
    try:
        decoder = _pydicom().pixels.get_decoder(syntax)
    except NotImplementedError:
        raise NoImage(
            f"transfer syntax {syntax.name} ({syntax}) is not one of a still image that pydicom decodes"
        ) from None
    if not decoder.is_available:
        ways = ", or ".join(
            f"pip install {_packages(text)}" for text in decoder.missing_dependencies
        )
        raise NoImage(f"compressed as {syntax.name} ({syntax}); to decode it, {ways}")


def _packages(plugin: str) -> str:
    """What pydicom writes as x - requires a>=1 and b>=2, as one would type it: a shell takes > for the name of a file."""
    needs = [
        need.partition(">=")[0].strip()
        for need in plugin.partition(" - requires ")[2].split(" and ")
    ]
    return " ".join({"gdcm": "python-gdcm"}.get(need, need) for need in needs if need != "numpy")


def _pixels(stored: np.ndarray, data: Dataset) -> np.ndarray:
    kind = str(data.PhotometricInterpretation)
    if kind in _GREY:
        return np.repeat(grey(stored, _look(data))[..., None], 3, axis=-1)
    if kind == "PALETTE COLOR":
        colour = np.asarray(_pydicom().pixels.apply_color_lut(stored, data))[..., :3]
        small = (
            int(data.RedPaletteColorLookupTableDescriptor[2]) == 8 and int(colour.max()) <= 255
        )  # also 8 bits stored as 16
        white = 255 if small else 65535
    else:
        colour, white = stored, (1 << int(data.BitsStored)) - 1
    return np.ascontiguousarray(np.rint(colour * (255.0 / white)).clip(0, 255).astype(np.uint8))


def _look(data: Dataset) -> Look:
    return Look(
        modality=lambda values: np.asarray(_pydicom().pixels.apply_modality_lut(values, data)),
        tone=_tone(data),
        inverted=str(data.PhotometricInterpretation) == "MONOCHROME1",
        padding=_padding(data),
    )


def _tone(data: Dataset) -> Any:
    """The table or the first window of the file; 8-bit images without either are shown as they are, deeper ones stretched."""
    if data.get("VOILUTSequence"):
        white = (1 << int(data.VOILUTSequence[0].LUTDescriptor[2])) - 1
        return lambda x: (
            np.asarray(_pydicom().pixels.apply_voi(np.rint(x).astype(np.int64), data)) / white
        )
    centre, width = (_first(data.get(name)) for name in ("WindowCenter", "WindowWidth"))
    if centre is not None and width is not None and width > 0:
        return Window(centre, width, str(data.get("VOILUTFunction") or "LINEAR"))
    bits = int(data.get("BitsStored") or data.BitsAllocated)
    if bits <= 8 and not data.get("ModalityLUTSequence"):
        smallest = -(1 << (bits - 1)) if data.get("PixelRepresentation") else 0
        ends = np.asarray(
            _pydicom().pixels.apply_modality_lut(
                np.array([smallest, smallest + (1 << bits) - 1]), data
            )
        )
        return Window(float(ends.mean()), float(ends.max() - ends.min()), "LINEAR_EXACT")
    return None


def _first(value: Any) -> float | None:
    """Of several windows the first, which is the one that viewers show."""
    if value is None or value == "":
        return None
    return (
        float(value)
        if isinstance(value, str | int | float)
        else float(value[0])
        if len(value)
        else None
    )


def _padding(data: Dataset) -> tuple[int, int] | None:
    value, limit = data.get("PixelPaddingValue"), data.get("PixelPaddingRangeLimit")
    if value is None:
        return None
    ends = sorted(_signed(int(v), data) for v in (value, value if limit is None else limit))
    return ends[0], ends[1]


def _signed(value: int, data: Dataset) -> int:
    """Writers often store the padding of signed images as an unsigned number: 63536 for -2000."""
    return value - 65536 if data.get("PixelRepresentation") and value > 32767 else value


@cache
def _pydicom() -> Any:
    try:
        import pydicom.pixels
    except ImportError:
        raise MissingExtraError(
            "todo.dicom-1",
            "DICOM files need a package that is not installed",
            fix="pip install -c constraints.txt 'fedgsca[dicom]'",
        ) from None
    # its complaints quote values of elements
    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
    logging.getLogger("pydicom").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module="pydicom")
    return pydicom
