"""Small DICOM files for tests, with a patient whose name and id must not appear in any output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import UID, ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

NAME, BIRTH = "Zwolakowska^Quirina", "19310517"


def write_dicom(
    path: Path, pixels: np.ndarray | None, *, syntax: UID = ExplicitVRLittleEndian, **elements: Any
) -> Path:
    """Write grey (H, W) or colour (H, W, 3) pixels.

    `elements` are DICOM keywords with values to add or replace, or None to remove.
    """
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = syntax
    data.SOPClassUID = SecondaryCaptureImageStorage
    data.SOPInstanceUID = generate_uid(entropy_srcs=[path.name])
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID
    data.PatientName, data.PatientBirthDate, data.StudyDate = NAME, BIRTH, "20231109"
    if pixels is not None:
        colour = pixels.ndim == 3
        data.Rows, data.Columns = pixels.shape[:2]
        data.SamplesPerPixel = 3 if colour else 1
        data.PhotometricInterpretation = "RGB" if colour else "MONOCHROME2"
        if colour:
            data.PlanarConfiguration = 0
        data.BitsAllocated = data.BitsStored = 8 * pixels.dtype.itemsize
        data.PixelRepresentation = int(pixels.dtype.kind == "i")
    for keyword, value in elements.items():
        if value is None:
            data.pop(keyword, None)
        else:
            setattr(data, keyword, value)
    if pixels is not None:
        data.HighBit = int(data.BitsStored) - 1
        if "PixelData" not in elements:
            data.PixelData = pixels.astype(pixels.dtype.newbyteorder("<")).tobytes()
        if "PixelData" in data:
            data["PixelData"].VR = "OB" if data.BitsAllocated == 8 else "OW"
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path, enforce_file_format=True)
    return path


def dicom_folder(
    root: Path, labels: np.ndarray, images: np.ndarray, *, split: list[str] | None = None
) -> Path:
    """12-bit grey files with a window and a labels.csv; two images for each patient."""
    lines = ["file,label" + (",split" if split else "")]
    for i, (label, image) in enumerate(zip(labels, images, strict=True)):
        values = (image.mean(axis=-1) * 16).astype(np.uint16)
        elements: dict[str, Any] = {
            "BitsStored": 12,
            "WindowCenter": 2048,
            "WindowWidth": 4096,
            "PatientID": f"MRN-77{i // 2:04d}",
        }
        write_dicom(root / f"{i:03d}.dcm", values, **elements)
        lines.append(f"{i:03d}.dcm,class {label}" + (f",{split[i]}" if split else ""))
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root
