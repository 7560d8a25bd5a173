"""DICOM files as images: the only file that imports the optional pydicom.

Only the elements in `_TAGS` are ever read, and three UIDs for a link to a viewer. Of the patient
that is the id, which stays in memory: the caller turns it into numbers (`number_patients`), so that
nothing derived from it reaches a disk. Messages name types of errors, never the value of a patient
element.
"""

from __future__ import annotations

import logging
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgsca.errors import FedgscaError, MissingExtraError

if TYPE_CHECKING:
    from pydicom import Dataset

SUFFIXES = (".dcm", ".dicom")
_GREY = ("MONOCHROME1", "MONOCHROME2")
# pydicom turns the last four into RGB
_COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
_IMAGE_TAGS = ("Rows", "Columns", "BitsAllocated", "PhotometricInterpretation")
_TAGS = [
    "SpecificCharacterSet",
    "PatientID",
    "StudyInstanceUID",
    "IssuerOfPatientID",
    "NumberOfFrames",
    "SharedFunctionalGroupsSequence",
    "SamplesPerPixel",
    "PhotometricInterpretation",
    "PlanarConfiguration",
    "Rows",
    "Columns",
    "BitsAllocated",
    "BitsStored",
    "HighBit",
    "PixelRepresentation",
    "PixelPaddingValue",
    "PixelPaddingRangeLimit",
    "WindowCenter",
    "WindowWidth",
    "VOILUTFunction",
    "VOILUTSequence",
    "RescaleIntercept",
    "RescaleSlope",
    "ModalityLUTSequence",
    "RedPaletteColorLookupTableDescriptor",
    "RedPaletteColorLookupTableData",
    "GreenPaletteColorLookupTableDescriptor",
    "GreenPaletteColorLookupTableData",
    "BluePaletteColorLookupTableDescriptor",
    "BluePaletteColorLookupTableData",
    "SegmentedRedPaletteColorLookupTableData",
    "SegmentedGreenPaletteColorLookupTableData",
    "SegmentedBluePaletteColorLookupTableData",
    "ExtendedOffsetTable",
    "ExtendedOffsetTableLengths",
    "PixelData",
]


_PLACEHOLDER = re.compile(r"(anon\w*|unknown|none|removed|x+|0*)", re.IGNORECASE)  # patient ids
_PIECE = 2**20
_MAX_DATASET = 2**30  # bytes of a deflated file after inflating


class NoImageError(Exception):
    """A DICOM file without a usable image; the message is the reason, without the file's name."""


@dataclass(frozen=True)
class DicomHeader:
    """What the header says about an image."""

    width: int
    height: int
    # photometric interpretation
    kind: str
    # grey values without a window: the image's own range must be stretched
    needs_stretching: bool


def is_dicom(path: Path) -> bool:
    """Whether the file has DICOM's mark at byte 128; archives often export without a suffix.

    DICOMDIR has the mark, too, but is not an image.
    """
    if path.name.upper() == "DICOMDIR":
        return False
    try:
        with open(path, "rb") as handle:
            return handle.read(132)[128:] == b"DICM"
    except OSError:
        return False


def read_dicom_header(path: Path) -> DicomHeader:
    """Read size and kind, without the pixels."""
    with _hide_values():
        data = _read_dataset(path, pixels=False)
        kind = str(data.PhotometricInterpretation)
        needs_stretching = kind in _GREY and _tone(data) is None
        return DicomHeader(int(data.Columns), int(data.Rows), kind, needs_stretching)


def read_image(path: Path) -> tuple[np.ndarray, str]:
    """(H, W, 3) uint8 and the patient's id, an empty text if there is none."""
    with _hide_values():
        data = _read_dataset(path, pixels=True)
        return _to_rgb(_decode_pixels(data), data), _patient_of(data)


def read_patient(path: Path) -> str:
    """The issuer and id of the patient, with a backslash between them; empty if there is none."""
    with _hide_values():
        return _patient_of(_read_dataset(path, pixels=False))


def read_uids(path: Path) -> dict[str, str]:
    """The UIDs of the "study", "series" and "instance" of an image; empty for other files."""
    if not is_dicom(path):
        return {}
    tags = {"study": "StudyInstanceUID", "series": "SeriesInstanceUID"}
    tags["instance"] = "SOPInstanceUID"
    with _hide_values():
        data = _import_pydicom().dcmread(
            path, stop_before_pixels=True, specific_tags=list(tags.values())
        )
        return {name: str(data[tag].value) for name, tag in tags.items() if data.get(tag)}


def _patient_of(data: Dataset) -> str:
    patient = str(data.get("PatientID") or "").strip()
    study = str(data.get("StudyInstanceUID") or "").strip()
    if study and _PLACEHOLDER.fullmatch(patient):
        return study  # of an anonymised export, the studies tell patients apart
    issuer = str(data.get("IssuerOfPatientID") or "").strip()
    return f"{issuer}\\{patient}" if patient else ""


def number_patients(patients: Sequence[str]) -> list[int]:
    """Patients as numbers in order of first appearance, -1 for none: this may be stored.

    Not hashes, because one could try all ids.
    """
    numbers: dict[str, int] = {"": -1}
    for patient in patients:
        numbers.setdefault(patient, len(numbers) - 1)
    return [numbers[patient] for patient in patients]


@contextmanager
def _hide_values() -> Iterator[None]:
    """Pass on only the type of pydicom's errors: their texts contain values of elements."""
    try:
        yield
    except (NoImageError, FedgscaError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # no permission, failing disk
            raise
        raise NoImageError(f"damaged DICOM file ({type(error).__name__})") from None


def _read_dataset(path: Path, *, pixels: bool) -> Dataset:
    """The elements in _TAGS of a file that holds one image."""
    pydicom = _import_pydicom()
    _check_deflated(path)
    try:
        data: Dataset = pydicom.dcmread(path, stop_before_pixels=not pixels, specific_tags=_TAGS)
    except pydicom.errors.InvalidDicomError:
        raise NoImageError("not a DICOM file") from None
    if "SharedFunctionalGroupsSequence" in data:
        raise NoImageError(
            "an enhanced multi-frame DICOM object: convert it to one classic file per image"
        )
    frames = int(data.get("NumberOfFrames") or 1)
    if frames > 1:
        raise NoImageError(
            f"a DICOM file of {frames} frames: write the labelled frame to a file of its own"
        )
    if any(name not in data for name in _IMAGE_TAGS):
        raise NoImageError(
            "a DICOM file without an image (a report, a directory or a structure set)"
        )
    kind = str(data.PhotometricInterpretation)
    if kind not in (*_GREY, *_COLOUR, "PALETTE COLOR"):
        raise NoImageError(
            f"photometric interpretation {kind} is not supported: convert to RGB or MONOCHROME2"
        )
    if _bits(data) > 16:
        raise NoImageError(f"{_bits(data)} bits per value: convert to 8 or 16")
    if pixels and "PixelData" not in data:
        raise NoImageError("a DICOM file without integer pixel data")
    return data


def _check_deflated(path: Path) -> None:
    """Refuse a deflated file that would fill the memory: pydicom inflates it at once."""
    try:
        meta = _import_pydicom().filereader.read_file_meta_info(path)
    except Exception:  # reading the file itself gives the reason
        return
    if not getattr(meta.get("TransferSyntaxUID"), "is_deflated", False):
        return
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    size = 0
    with open(path, "rb") as handle:
        handle.seek(132 + 12 + int(meta.get("FileMetaInformationGroupLength", 0)))
        while piece := handle.read(_PIECE):
            while piece:
                size += len(inflater.decompress(piece, _MAX_DATASET // 16))
                if size > _MAX_DATASET:
                    raise NoImageError("a deflated DICOM file that inflates to more than 1 GB")
                piece = inflater.unconsumed_tail


def _bits(data: Dataset) -> int:
    return int(data.get("BitsStored") or data.BitsAllocated)


# ---- pixels ----


def _decode_pixels(data: Dataset) -> np.ndarray:
    """Stored values; YBR is converted to RGB, colour planes are interleaved."""
    _check_decoder(data)
    try:
        return np.asarray(_import_pydicom().pixels.pixel_array(data))
    except Exception as error:
        syntax = data.file_meta.TransferSyntaxUID
        compression = f", compressed as {syntax.name}" if syntax.is_compressed else ""
        raise NoImageError(
            "damaged, truncated or not decodable DICOM pixels "
            f"({type(error).__name__}{compression})"
        ) from None


def _check_decoder(data: Dataset) -> None:
    """Raise NoImageError if no installed package decodes the pixels."""
    syntax = data.file_meta.get("TransferSyntaxUID")
    if syntax is None:
        raise NoImageError(
            "a DICOM file that does not say how its pixels are stored (no transfer syntax)"
        )
    try:
        decoder = _import_pydicom().pixels.get_decoder(syntax)
    except NotImplementedError:
        raise NoImageError(
            f"transfer syntax {syntax.name} ({syntax}) is not one of a still image that pydicom "
            "decodes"
        ) from None
    if not decoder.is_available:
        commands = [f"pip install {_packages(text)}" for text in decoder.missing_dependencies]
        raise NoImageError(
            f"compressed as {syntax.name} ({syntax}); to decode it, {', or '.join(commands)}"
        )


def _packages(plugin: str) -> str:
    """pydicom's "x - requires a>=1 and b>=2" as one types it: "a b".

    A shell takes > for the name of a file.
    """
    packages = []
    for requirement in plugin.partition(" - requires ")[2].split(" and "):
        name = requirement.partition(">=")[0].strip()
        if name == "gdcm":
            name = "python-gdcm"
        if name != "numpy":
            packages.append(name)
    return " ".join(packages)


def _to_rgb(values: np.ndarray, data: Dataset) -> np.ndarray:
    """Stored values -> (H, W, 3) uint8."""
    kind = str(data.PhotometricInterpretation)
    if kind in _GREY:
        return np.repeat(to_grey(values, _grey_mapping(data))[..., None], 3, axis=-1)
    if kind == "PALETTE COLOR":
        colour = np.asarray(_import_pydicom().pixels.apply_color_lut(values, data))[..., :3]
        entry_bits = int(data.RedPaletteColorLookupTableDescriptor[2])
        # 8-bit entries may be stored as 16-bit ones
        white = 255 if entry_bits == 8 and int(colour.max()) <= 255 else 65535
    else:
        colour = values
        white = (1 << int(data.BitsStored)) - 1
    return np.ascontiguousarray(np.rint(colour * (255.0 / white)).clip(0, 255).astype(np.uint8))


# ---- grey values ----


def _grey_mapping(data: Dataset) -> GreyMapping:
    return GreyMapping(
        modality=lambda values: _apply_modality(values, data),
        tone=_tone(data),
        is_inverted=str(data.PhotometricInterpretation) == "MONOCHROME1",
        padding=_padding(data),
    )


def _apply_modality(values: np.ndarray, data: Dataset) -> np.ndarray:
    return np.asarray(_import_pydicom().pixels.apply_modality_lut(values, data))


def _tone(data: Dataset) -> Curve | None:
    """The file's table or first window.

    Without either, 8-bit images are shown as they are, and deeper ones (None) are stretched.
    """
    if data.get("VOILUTSequence"):
        return _voi_table(data)
    centre = _first_value(data.get("WindowCenter"))
    width = _first_value(data.get("WindowWidth"))
    if centre is not None and width is not None and width > 0:
        return VoiWindow(centre, width, str(data.get("VOILUTFunction") or "LINEAR"))
    bits = _bits(data)
    if bits <= 8 and not data.get("ModalityLUTSequence"):
        smallest = -(1 << (bits - 1)) if data.get("PixelRepresentation") else 0
        ends = _apply_modality(np.array([smallest, smallest + (1 << bits) - 1]), data)
        return VoiWindow(float(ends.mean()), float(ends.max() - ends.min()), "LINEAR_EXACT")
    return None


def _voi_table(data: Dataset) -> Curve:
    white = (1 << int(data.VOILUTSequence[0].LUTDescriptor[2])) - 1

    def look_up(values: np.ndarray) -> np.ndarray:
        indices = np.rint(values).astype(np.int64)
        return np.asarray(_import_pydicom().pixels.apply_voi(indices, data)) / white

    return look_up


def _first_value(value: Any) -> float | None:
    """Of several windows the first, which is the one that viewers show."""
    if value is None or value == "":
        return None
    if isinstance(value, str | int | float):
        return float(value)
    return float(value[0]) if len(value) else None


def _padding(data: Dataset) -> tuple[int, int] | None:
    """The range of stored values that mark pixels outside the image."""
    value = data.get("PixelPaddingValue")
    if value is None:
        return None
    limit = data.get("PixelPaddingRangeLimit")
    if limit is None:
        limit = value
    first, last = sorted((_to_signed(int(value), data), _to_signed(int(limit), data)))
    return first, last


def _to_signed(value: int, data: Dataset) -> int:
    """Writers often store the padding of signed images as an unsigned number: 63536 for -2000."""
    return value - 65536 if data.get("PixelRepresentation") and value > 32767 else value


@cache
def _import_pydicom() -> Any:
    try:
        import pydicom.pixels
    except ImportError:
        raise MissingExtraError(
            "extra.dicom-missing",
            "a package that is needed to read DICOM files is not installed",
            fix="run pip install 'fedgsca[dicom]'",
        ) from None
    # its warnings quote values of elements
    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
    logging.getLogger("pydicom").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module="pydicom")
    return pydicom


# ---- from stored grey values to what a radiologist sees: modality, window, polarity ----
#
# PS3.3 C.11, in numpy alone. All steps work value by value, so they are computed once for each
# value between the smallest and the largest and then looked up.
#
# pydicom computes the modality step and VOI tables. Windows are computed here and not by
# `pydicom.pixels.apply_windowing`, because that function also needs windows to be in the file
# (8-bit images without a window are shown through one of our own), maps to the range of the stored
# values, which a negative rescale slope turns upside down, and refuses unknown VOI functions and
# widths below 1 that viewers show. Where both apply they agree: tests/unit/test_dicom.py.


# Without a window, the middle 99 % of the pixels get the grey scale, so that a metal clip or a
# burnt-in letter does not darken the image.
_TAILS = (0.005, 0.995)

Curve = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class VoiWindow:
    """Which values, after the modality step, get the grey scale."""

    centre: float
    width: float
    function: str = "LINEAR"

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Values between 0 (black) and 1 (white)."""
        if self.function == "SIGMOID":
            exponent = np.clip(-4.0 * (values - self.centre) / self.width, -700, 700)
            return np.asarray(1.0 / (1.0 + np.exp(exponent)))
        if self.function == "LINEAR_EXACT":
            low = self.centre - self.width / 2
            high = self.centre + self.width / 2
        else:
            low = self.centre - 0.5 - (self.width - 1) / 2
            high = self.centre - 0.5 + (self.width - 1) / 2
        return _ramp(values, low, high)


@dataclass(frozen=True)
class GreyMapping:
    """How the stored values of one image become grey."""

    # stored values -> values with a meaning (Hounsfield units, optical density)
    modality: Curve
    # these -> 0..1, by window or table; None: stretch the image's own range
    tone: Curve | None
    # MONOCHROME1: the smallest value is white
    is_inverted: bool = False
    # stored values, both included, that mark pixels outside the image; shown black
    padding: tuple[int, int] | None = None


def to_grey(values: np.ndarray, mapping: GreyMapping) -> np.ndarray:
    """(H, W) stored integers -> (H, W) uint8."""
    low = int(values.min())
    high = int(values.max())
    steps = (values.astype(np.int64) - low).astype(np.uint32)
    levels = np.arange(low, high + 1, dtype=np.int64)
    first, last = mapping.padding or (1, 0)
    is_padding = (levels >= first) & (levels <= last)
    meanings = np.asarray(mapping.modality(levels), dtype=np.float64)
    if mapping.tone is not None:
        shades = mapping.tone(meanings)
    else:
        counts = np.bincount(steps.ravel(), minlength=len(levels))
        shades = stretch(meanings, np.where(is_padding, 0, counts))
    if mapping.is_inverted:
        shades = 1.0 - shades
    table = np.rint(255.0 * np.clip(shades, 0.0, 1.0)).astype(np.uint8)
    table[is_padding] = 0
    return np.asarray(table[steps])


def stretch(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """0..1 between the 0.5 and the 99.5 percentile of an image.

    values[i] occurs counts[i] times in the image.
    """
    order = np.argsort(values, kind="stable")
    share = np.cumsum(counts[order]) / max(int(counts.sum()), 1)
    positions = np.minimum(np.searchsorted(share, _TAILS), len(order) - 1)
    low, high = values[order][positions].tolist()
    return _ramp(values, float(low), float(high))


def _ramp(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """0 up to `low`, 1 from `high` on, linear between; a step where they are equal."""
    if high <= low:
        return np.asarray(values > low, dtype=np.float64)
    return np.asarray(np.clip((values - low) / (high - low), 0.0, 1.0))
