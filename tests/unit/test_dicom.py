"""DICOM: every step from stored values to pixels by hand, and no patient in any output."""

from __future__ import annotations

import builtins
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pydicom")

from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate
from pydicom.pixels.processing import apply_modality_lut, apply_windowing
from pydicom.uid import MPEG2MPML, JPEG2000Lossless, JPEGBaseline8Bit, JPEGLosslessSV1, RLELossless

from fedgsca.cli import execute
from fedgsca.data import checks, dicom
from fedgsca.data.dicom import VoiWindow, number_patients, read_image
from fedgsca.data.image_files import UnreadableImageError, decode, inspect_image
from fedgsca.data.load import load
from fedgsca.errors import DataError, MissingExtraError
from tests.dicoms import BIRTH, NAME, dicom_folder, write_dicom
from tests.toys import toy_images


def shown(tmp_path: Path, values: Any, dtype: str = "uint16", **elements: Any) -> list[int]:
    """The grey levels that a row of stored values becomes."""
    pixels = read_image(
        write_dicom(tmp_path / "x.dcm", np.array([values], dtype=dtype), **elements)
    )[0]
    assert (
        pixels.dtype == np.uint8
        and (pixels[..., 0] == pixels[..., 1]).all()
        and (pixels[..., 0] == pixels[..., 2]).all()
    )
    return [int(value) for value in pixels[0, :, 0]]


# ---- grey ----


def test_linear_window(tmp_path: Path) -> None:
    # c = 100, w = 101: black up to 49.5, white from 149.5 on (PS3.3 C.11.2.1.2.1)
    levels = shown(tmp_path, [0, 49, 50, 100, 149, 150, 4000], WindowCenter=100, WindowWidth=101)
    assert levels == [0, 0, round(255 * 0.005), round(255 * 0.505), round(255 * 0.995), 255, 255]


def test_exact_window(tmp_path: Path) -> None:
    levels = shown(
        tmp_path,
        [50, 75, 100, 150, 151],
        WindowCenter=100,
        WindowWidth=100,
        VOILUTFunction="LINEAR_EXACT",
    )
    assert levels == [0, 64, 128, 255, 255]


def test_sigmoid_window(tmp_path: Path) -> None:
    levels = shown(
        tmp_path,
        [0, 75, 100, 125, 9000],
        WindowCenter=100,
        WindowWidth=100,
        VOILUTFunction="SIGMOID",
    )
    assert levels == [
        round(255 / (1 + np.exp(4.0))),
        round(255 / (1 + np.e)),
        128,
        round(255 / (1 + np.exp(-1))),
        255,
    ]


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
@pytest.mark.parametrize("dtype", ["uint16", "int16"])
@pytest.mark.parametrize(("slope", "intercept"), [(1, 0), (1, -1024), (0.5, 12)])
@pytest.mark.parametrize(("centre", "width"), [(40, 400), (300, 1), (-600, 1500), (2000.5, 4096)])
def test_windows_agree_with_pydicom(
    function: str, dtype: str, slope: float, intercept: float, centre: float, width: float
) -> None:
    """pydicom maps to the range of the rescaled values, we map to 0..1."""
    low, high = (0, 65535) if dtype == "uint16" else (-32768, 32767)
    stored_values = np.arange(low, high + 1, 7).astype(dtype)
    data = Dataset()
    data.PhotometricInterpretation = "MONOCHROME2"
    data.BitsStored = 16
    data.PixelRepresentation = int(dtype == "int16")
    data.RescaleSlope, data.RescaleIntercept = slope, intercept
    data.WindowCenter, data.WindowWidth, data.VOILUTFunction = centre, width, function
    values = apply_modality_lut(stored_values, data)
    black, white = low * slope + intercept, high * slope + intercept
    with np.errstate(over="ignore"):  # pydicom's sigmoid
        expected = (apply_windowing(values, data) - black) / (white - black)
    np.testing.assert_allclose(VoiWindow(centre, width, function)(values), expected, atol=1e-9)


def test_a_window_of_width_one_is_a_step(tmp_path: Path) -> None:
    assert shown(tmp_path, [9, 10, 11], WindowCenter=10.5, WindowWidth=1) == [0, 0, 255]


def test_of_several_windows_the_first(tmp_path: Path) -> None:
    assert shown(tmp_path, [0, 50, 100], WindowCenter=[50, 400], WindowWidth=[101, 2000]) == [
        1,
        129,
        255,
    ]


def test_rescale_comes_before_the_window(tmp_path: Path) -> None:
    """Hounsfield units: 1024 stored is 0 HU, the middle of the window."""
    elements: dict[str, Any] = {
        "RescaleSlope": 1,
        "RescaleIntercept": -1024,
        "WindowCenter": 0.5,
        "WindowWidth": 401,
    }
    assert shown(tmp_path, [0, 824, 1024, 1224], **elements) == [0, 0, 128, 255]


def test_signed_values(tmp_path: Path) -> None:
    assert shown(tmp_path, [-1000, -100, 0, 100], "int16", WindowCenter=0.5, WindowWidth=201) == [
        0,
        0,
        128,
        255,
    ]


@pytest.mark.parametrize("bits", [10, 12, 14, 15])
def test_bits_above_the_stored_ones_do_not_count(tmp_path: Path, bits: int) -> None:
    """Old files keep overlays there."""
    top = (1 << bits) - 1
    elements: dict[str, Any] = {
        "BitsStored": bits,
        "WindowCenter": top / 2,
        "WindowWidth": top,
        "VOILUTFunction": "LINEAR_EXACT",
    }
    assert shown(tmp_path, [0, top, 1 << bits, top | (1 << bits)], **elements) == [0, 255, 0, 255]


def test_monochrome1_is_inverted(tmp_path: Path) -> None:
    elements: dict[str, Any] = {
        "WindowCenter": 50,
        "WindowWidth": 100,
        "VOILUTFunction": "LINEAR_EXACT",
    }
    plain = shown(tmp_path, [0, 20, 100], **elements)
    assert shown(tmp_path, [0, 20, 100], PhotometricInterpretation="MONOCHROME1", **elements) == [
        255 - v for v in plain
    ]


def test_eight_bits_without_a_window_are_shown_as_they_are(tmp_path: Path) -> None:
    assert shown(tmp_path, [7, 100, 200], "uint8") == [7, 100, 200]
    assert shown(tmp_path, [-128, 0, 127], "int8") == [0, 128, 255]
    assert shown(tmp_path, [7, 100, 200], "uint8", RescaleSlope=2, RescaleIntercept=-1000) == [
        7,
        100,
        200,
    ]


def test_deep_images_without_a_window_are_stretched_over_their_middle(tmp_path: Path) -> None:
    """One hot pixel in a thousand does not darken the others, and padding does not count."""
    values = [60000, *([100] * 500), *([300] * 499)]
    levels = shown(tmp_path, values)
    assert levels[0] == 255 and levels[1] == 0 and levels[-1] == 255
    levels_with_padding = shown(tmp_path, [*([0] * 3000), *values], PixelPaddingValue=0)
    assert levels_with_padding[3000:] == levels and set(levels_with_padding[:3000]) == {0}
    assert dicom.read_dicom_header(tmp_path / "x.dcm").needs_stretching


def test_a_flat_image_is_black(tmp_path: Path) -> None:
    assert shown(tmp_path, [500, 500]) == [0, 0]


@pytest.mark.parametrize("kind", ["MONOCHROME1", "MONOCHROME2"])
def test_padding_is_black_in_both_polarities(tmp_path: Path, kind: str) -> None:
    elements: dict[str, Any] = {"WindowCenter": 0.5, "WindowWidth": 3001}
    elements["PhotometricInterpretation"] = kind
    levels = shown(
        tmp_path,
        [-2000, -1500, 0],
        "int16",
        PixelPaddingValue=-2000,
        PixelPaddingRangeLimit=-1500,
        **elements,
    )
    assert levels == [0, 0, 128]


def lut(first: int, bits: int, entries: list[int]) -> Dataset:
    item = Dataset()
    item.add_new("LUTDescriptor", "US", [len(entries), first, bits])
    item.add_new("LUTData", "US", entries)
    item.ModalityLUTType = "US"
    return item


def test_modality_table(tmp_path: Path) -> None:
    """Stored 10, 11, 12 mean 0, 400, 100; what is below or above takes the first or last entry."""
    item = lut(10, 16, [0, 400, 100])
    elements: dict[str, Any] = {
        "WindowCenter": 200,
        "WindowWidth": 400,
        "VOILUTFunction": "LINEAR_EXACT",
    }
    assert shown(tmp_path, [3, 10, 11, 12, 99], ModalityLUTSequence=[item], **elements) == [
        0,
        0,
        255,
        64,
        64,
    ]


def test_tone_table_beats_the_window(tmp_path: Path) -> None:
    item = lut(5, 8, [10, 20, 255])
    assert shown(
        tmp_path, [0, 5, 6, 7, 99], VOILUTSequence=[item], WindowCenter=1, WindowWidth=1
    ) == [10, 10, 20, 255, 255]


# ---- colour ----

RED = (np.array([[[254, 0, 0], [0, 254, 0]]], dtype=np.uint8)).repeat(2, axis=1)  # (1, 4, 3)
RED_YBR = np.array([[[76, 85, 255], [149, 43, 21]]], dtype=np.uint8).repeat(2, axis=1)


def colours(path: Path) -> np.ndarray:
    return read_image(path)[0].astype(int)


def test_rgb_by_pixel_and_by_plane(tmp_path: Path) -> None:
    assert (colours(write_dicom(tmp_path / "a.dcm", RED)) == RED).all()
    planes = RED.transpose(2, 0, 1).tobytes()
    assert (
        colours(write_dicom(tmp_path / "b.dcm", RED, PlanarConfiguration=1, PixelData=planes))
        == RED
    ).all()


def test_sixteen_bit_rgb(tmp_path: Path) -> None:
    assert (colours(write_dicom(tmp_path / "a.dcm", RED.astype(np.uint16) * 257)) == RED).all()


def test_ybr_full(tmp_path: Path) -> None:
    levels = colours(write_dicom(tmp_path / "a.dcm", RED_YBR, PhotometricInterpretation="YBR_FULL"))
    assert np.abs(levels - RED).max() <= 2


def test_ybr_full_422(tmp_path: Path) -> None:
    """Two pixels share their colour: Y Y Cb Cr."""
    buffer = b"".join(
        bytes([p[0][0], p[1][0], p[0][1], p[0][2]]) for p in (RED_YBR[0, :2], RED_YBR[0, 2:])
    )
    levels = colours(
        write_dicom(
            tmp_path / "a.dcm", RED_YBR, PhotometricInterpretation="YBR_FULL_422", PixelData=buffer
        )
    )
    assert np.abs(levels - RED).max() <= 2


@pytest.mark.parametrize("bits, scale, dtype", [(8, 1, "uint8"), (16, 257, "<u2"), (8, 1, "<u2")])
def test_palette(tmp_path: Path, bits: int, scale: int, dtype: str) -> None:
    """Also eight bits an entry, stored in sixteen."""
    elements: dict[str, Any] = {"PhotometricInterpretation": "PALETTE COLOR"}
    for name, entries in {
        "Red": [0, 255, 10, 9],
        "Green": [0, 128, 20, 8],
        "Blue": [0, 0, 30, 7],
    }.items():
        elements[f"{name}PaletteColorLookupTableDescriptor"] = [4, 0, bits]
        elements[f"{name}PaletteColorLookupTableData"] = (
            (np.array(entries) * scale).astype(dtype).tobytes()
        )
    levels = colours(
        write_dicom(tmp_path / "a.dcm", np.array([[0, 1, 2, 200]], dtype=np.uint8), **elements)
    )
    assert levels.tolist() == [[[0, 0, 0], [255, 128, 0], [10, 20, 30], [9, 8, 7]]]


def test_jpeg_inside(tmp_path: Path) -> None:
    import io

    from PIL import Image

    buffer = io.BytesIO()
    grey = np.full((16, 16), 90, dtype=np.uint8)
    Image.fromarray(grey).save(buffer, "JPEG", quality=95)
    frames = encapsulate([buffer.getvalue()])
    levels = colours(
        write_dicom(tmp_path / "a.dcm", grey, syntax=JPEGBaseline8Bit, PixelData=frames)
    )
    assert np.abs(levels - 90).max() <= 1


RAMP = np.add.outer(np.arange(16) * 200, np.arange(20)).astype(np.uint16)  # 12 bits
COMPRESSION_INPUTS: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
    "8 bits": ((RAMP // 16).astype(np.uint8), {}),
    "12 bits": (RAMP, {"BitsStored": 12, "WindowCenter": 2048, "WindowWidth": 4096}),
    "colour": (np.stack([RAMP // 16, 255 - RAMP // 16, RAMP // 32], axis=-1).astype(np.uint8), {}),
}


@pytest.mark.parametrize("kind", COMPRESSION_INPUTS)
def test_run_length_encoding_and_jpeg_2000_lose_nothing(tmp_path: Path, kind: str) -> None:
    import io

    from PIL import Image

    pixels, elements = COMPRESSION_INPUTS[kind]
    plain = write_dicom(tmp_path / "a.dcm", pixels, **elements)
    reference = colours(plain)
    data = dcmread(plain)
    data.compress(RLELossless)
    data.save_as(tmp_path / "rle.dcm")
    assert np.array_equal(colours(tmp_path / "rle.dcm"), reference)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG2000", no_jp2=True)
    if kind == "colour":
        elements = {**elements, "PhotometricInterpretation": "YBR_RCT"}
    frames = encapsulate([buffer.getvalue()])
    assert np.array_equal(
        colours(
            write_dicom(
                tmp_path / "j2k.dcm", pixels, syntax=JPEG2000Lossless, PixelData=frames, **elements
            )
        ),
        reference,
    )


# ---- what cannot be read ----


def reason(path: Path) -> str:
    with pytest.raises(UnreadableImageError) as caught:
        decode(path, 8)
    return str(caught.value)


IMAGE = np.arange(64, dtype=np.uint16).reshape(8, 8)


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        ({"NumberOfFrames": 2, "PixelData": IMAGE.tobytes() * 2}, "2 frames"),
        ({"SharedFunctionalGroupsSequence": [Dataset()]}, "enhanced multi-frame"),
        ({"PhotometricInterpretation": "HSV"}, "HSV is not supported"),
        ({"PixelData": None}, "without integer pixel data"),
        ({"Rows": None}, "without an image"),
        ({"syntax": JPEGLosslessSV1, "PixelData": encapsulate([b"\xff\xd8"])}, "pylibjpeg-libjpeg"),
        ({"syntax": MPEG2MPML, "PixelData": encapsulate([b"\0\0"])}, "not one of a still image"),
        (
            {"syntax": JPEGBaseline8Bit, "PixelData": encapsulate([b"\xff\xd8\xff\xd9"])},
            "JPEG Baseline",
        ),
        ({"WindowCenter": [], "Rows": 9}, "truncated"),
    ],
)
def test_the_reason_is_given(tmp_path: Path, elements: dict[str, Any], expected: str) -> None:
    assert expected in reason(write_dicom(tmp_path / "a.dcm", IMAGE, **elements))


def test_the_missing_decoder_and_the_syntax_are_named(tmp_path: Path) -> None:
    path = write_dicom(
        tmp_path / "a.dcm", IMAGE, syntax=JPEGLosslessSV1, PixelData=encapsulate([b"\xff\xd8"])
    )
    assert "1.2.840.10008.1.2.4.70" in reason(path)
    assert reason(path).endswith(
        "pip install python-gdcm, or pip install pylibjpeg pylibjpeg-libjpeg"
    )


def test_files_that_are_cut_off_or_something_else(tmp_path: Path) -> None:
    content = write_dicom(tmp_path / "a.dcm", IMAGE).read_bytes()
    for length in (0, 100, 140, 200, len(content) // 2, len(content) - 40):
        (tmp_path / "cut.dcm").write_bytes(content[:length])
        assert any(
            word in reason(tmp_path / "cut.dcm")
            for word in ("not a DICOM file", "damaged", "without")
        )
    (tmp_path / "b.dcm").write_bytes(b"\x89PNG is not DICOM" * 40)
    assert (
        reason(tmp_path / "b.dcm")
        == "not a DICOM file"
        == inspect_image(tmp_path / "b.dcm").problem
    )


def test_reading_is_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """pydicom's warnings quote the values they complain about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = write_dicom(
            tmp_path / "a.dcm", IMAGE, PatientBirthDate="1931-05-17 or so", PatientID="x" * 100
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dicom._import_pydicom.cache_clear()
        read_image(path)
    assert not caplog.records


def test_the_extra_is_named_when_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_dicom(tmp_path / "a.dcm", IMAGE)
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("pydicom"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    dicom._import_pydicom.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    for look in (inspect_image, lambda p: decode(p, 8)):
        with pytest.raises(MissingExtraError) as caught:
            look(path)
        assert caught.value.code == "extra.dicom-missing" and "fedgsca[dicom]" in caught.value.fix


# ---- folders ----


def grey_set(tmp_path: Path, count: int = 24, **options: Any) -> Path:
    labels = np.arange(count) % 3
    return dicom_folder(tmp_path / "scans", labels, toy_images(labels), **options)


@pytest.mark.parametrize("prefix", ["", "dicom:"])
def test_a_folder_of_dicom_files_is_a_data_set(tmp_path: Path, prefix: str) -> None:
    table = load(f"{prefix}{grey_set(tmp_path)}")
    assert table.images.shape == (24, 12, 12, 3) and table.classes == (
        "class 0",
        "class 1",
        "class 2",
    )
    assert table.groups is not None and len(set(table.groups)) == 12
    for group in set(table.groups):
        assert len(set(table.split[table.groups == group])) == 1, "a patient is in one split only"
    assert checks.check_source(f"{prefix}{tmp_path / 'scans'}").ok


def test_the_check_names_files_without_a_window_but_a_run_only_counts_them(tmp_path: Path) -> None:
    root = grey_set(tmp_path)
    names = sorted(path.name for path in root.rglob("*.dcm"))[:4]
    for name in names:
        write_dicom(root / name, np.arange(144, dtype=np.uint16).reshape(12, 12) * 9)
    notes = checks.check_source(str(root)).notes
    assert f"DICOM files without a window: {', '.join(names[:3])} and 1 more" in notes
    assert checks.check_source(str(root), fast=True).ok
    [note] = [note for note in load(str(root)).notes if "window" in note]
    assert note.startswith("4 DICOM files without a window: shown between")


def test_a_group_column_beats_the_patient(tmp_path: Path) -> None:
    root = grey_set(tmp_path)
    lines = (root / "labels.csv").read_text().splitlines()
    (root / "labels.csv").write_text(
        "\n".join([lines[0] + ",group", *(f"{line},g{i % 4}" for i, line in enumerate(lines[1:]))])
    )
    table = load(str(root))
    assert table.groups is not None and set(table.groups) == {"g0", "g1", "g2", "g3"}


def test_one_id_for_all_is_no_group(tmp_path: Path) -> None:
    root = tmp_path / "scans"
    for i in range(12):
        write_dicom(root / str(i % 2) / f"{i}.dcm", IMAGE + np.uint16(i), PatientID="ANON")
    table = load(str(root))
    assert table.groups is None and any("same patient" in note for note in table.notes)


def test_names_without_an_ending_and_the_directory_file(tmp_path: Path) -> None:
    root = tmp_path / "export"
    for i in range(12):
        write_dicom(root / str(i % 2) / f"1.2.840.{i}", IMAGE + np.uint16(i), PatientID=str(i))
    write_dicom(root / "DICOMDIR", None)
    (root / "0" / "notes.txt").write_text("no image")
    table = load(str(root))
    assert len(table) == 12 and any("2 files ignored" in note for note in table.notes)
    (root / "labels.csv").write_text("file,label\n0/1.2.840.0,a\n0/notes.txt,b\n")
    with pytest.raises(DataError) as caught:
        load(str(root))
    assert caught.value.code == "data.unknown-file-type"
    assert "0/notes.txt" in caught.value.message


def test_numbers_for_patients() -> None:
    assert number_patients(["b", "a", "", "b", "c"]) == [0, 1, -1, 0, 2]


# ---- nothing of the patient ----


def planted(*folders: Path) -> list[str]:
    """Files that hold the patient's name, date of birth, id, or a usual hash of the id."""
    import hashlib

    words = [NAME, NAME.split("^")[0], BIRTH, *(f"MRN-77{i:04d}" for i in range(12))]
    words += [
        digest(word.encode()).hexdigest()[:12]
        for word in words[3:]
        for digest in (hashlib.md5, hashlib.sha256)
    ]
    needles = [word.encode(code) for word in words for code in ("utf-8", "utf-16-le")]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    return [str(path) for path in files if any(needle in path.read_bytes() for needle in needles)]


def test_no_patient_in_any_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDGSCA_CACHE", str(tmp_path / "cache"))
    root = grey_set(tmp_path)
    assert len(planted(root)) == 24, "the search finds what was planted"
    (root / "003.dcm").write_bytes((root / "003.dcm").read_bytes()[:-100])
    run = [
        "run",
        "--data",
        f"dicom:{root}",
        "--rounds",
        "2",
        "--noise",
        "S40",
        "--skip-unreadable",
        "--partition",
        "group",
    ]
    run += ["--set", "train.threads=1", "--set", "fedgsca.warmup=0", "--out", str(tmp_path / "run")]
    run += ["--set", "model.feature_size=32"]
    use = [
        "predict",
        str(tmp_path / "run"),
        str(root),
        "--out",
        str(tmp_path / "run" / "predicted.csv"),
    ]
    look = [["data", "check", str(root)], ["data", "check", str(root), "--list-bad"]]
    for command in (*look, run, use, ["export", str(tmp_path / "run"), "--format", "torchscript"]):
        execute(command)
    assert (tmp_path / "run" / "predicted.csv").is_file() and (
        tmp_path / "run" / "export-torchscript"
    ).is_dir()
    output = capsys.readouterr()
    assert (tmp_path / "run" / "report.html").is_file() and "003.dcm" in output.out
    assert NAME not in output.out + output.err and "MRN-" not in output.out + output.err
    assert planted(tmp_path / "run", tmp_path / "cache") == []
