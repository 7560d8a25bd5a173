"""Input that nobody sends by mistake: a clear error, bounded memory and time, no traceback."""

from __future__ import annotations

import asyncio
import io
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fedgsca import cli
from fedgsca.data import image_files
from fedgsca.data.file_list import FileList, ImageRow, linked_outside
from fedgsca.data.image_files import UnreadableImageError, decode, inspect_image
from fedgsca.data.readers.folder import list_folder
from fedgsca.data.readers.npz import read_npz
from fedgsca.errors import ConfigError, DataError
from fedgsca.federation.base import Reply
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds
from fedgsca.hospital.messages import SiteMessage, read_message
from fedgsca.labels.audit_table import Audit
from fedgsca.labels.decisions import Decisions
from fedgsca.labels.exchange import import_verdicts
from fedgsca.noise.base import parse_noise
from fedgsca.support.console import console, make_table
from fedgsca.support.csv_table import write_cells
from fedgsca.support.markdown import markdown_table
from fedgsca.support.text import one_line, printable
from tests.audits import toy_audit
from tests.toys import toy_config, toy_npz

# ---- memory and time ----


def test_a_long_thin_picture_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "thin.png"
    Image.new("L", (1, 6000)).save(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnreadableImageError, match="1 x 6,000"):
        decode(path, 224)
    assert "1 x 6,000" in inspect_image(path).problem
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_picture_that_claims_a_huge_size_is_not_decoded(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    Image.new("1", (10_000, 10_000)).save(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnreadableImageError, match="too large"):
        decode(path, 64)
    assert "too large" in inspect_image(path).problem
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_ordinary_shapes_pass() -> None:
    for width, height in ((1, 1), (1, 100), (6000, 4000), (28, 28)):
        image_files.check_shape(width, height)


def test_a_dicom_file_that_claims_a_huge_size_is_not_decoded(tmp_path: Path) -> None:
    pytest.importorskip("pydicom")
    from tests.dicoms import write_dicom

    pixels = np.zeros((4, 4), np.uint16)
    path = write_dicom(tmp_path / "a.dcm", pixels, Rows=60_000, Columns=60_000)
    with pytest.raises(UnreadableImageError, match="too large"):
        decode(path, 64)
    assert "too large" in inspect_image(path).problem


def test_a_deflated_dicom_file_is_inflated_within_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pydicom")
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    from fedgsca.data import dicom
    from tests.dicoms import write_dicom

    pixels = np.zeros((2000, 2000), np.uint16)
    path = write_dicom(tmp_path / "a.dcm", pixels, syntax=DeflatedExplicitVRLittleEndian)
    assert decode(path, 16).shape == (16, 16, 3)
    monkeypatch.setattr(dicom, "_MAX_DATASET", 2**20)
    with pytest.raises(UnreadableImageError, match="inflates"):
        decode(path, 16)


def write_npz(path: Path, **changes: np.ndarray) -> Path:
    images = np.zeros((4, 8, 8), np.uint8)
    labels = np.array([0, 1, 0, 1])
    arrays = {f"{split}_images": images for split in ("train", "test")}
    arrays |= {f"{split}_labels": labels for split in ("train", "test")}
    np.savez(path, **{**arrays, **changes})  # type: ignore[arg-type]
    return path


def test_an_absurd_label_does_not_make_as_many_classes(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", train_labels=np.array([0, 1, 10**15, 1]))
    start = time.thread_time()  # of this thread: other work of the machine does not count
    with pytest.raises(DataError) as error:
        read_npz(path, cache_dir=tmp_path)
    assert error.value.code == "data.too-many-classes" and time.thread_time() - start < 5


HEADERS = {
    "deep": "{'descr': " + "(" * 3000 + ")" * 3000 + "}",
    "unfinished": "{'descr'",
    "odd type": "{'descr': [('a', 1, 2, 3)], 'fortran_order': False, 'shape': (4, 8, 8)}",
    "negative": "{'descr': '|u1', 'fortran_order': False, 'shape': (-4, 8, 8)}",
    "huge": "{'descr': '|u1', 'fortran_order': False, 'shape': (4, 10000000000, 8)}",
    "empty": "{'descr': '|u1', 'fortran_order': False, 'shape': (4, 0, 8)}",
    "wrong keys": "{'a': 1}",
    "more than there is": "{'descr': '|u1', 'fortran_order': True, 'shape': (4, 999, 999)}",
}


@pytest.mark.parametrize("name", HEADERS)
def test_broken_headers_of_an_npz(name: str, tmp_path: Path) -> None:
    good = write_npz(tmp_path / "good.npz")
    path = tmp_path / "bad.npz"
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(path, "w") as target:
        for member in source.namelist():
            content = source.read(member)
            if member == "train_images.npy":
                header = HEADERS[name].encode() + b"\n"
                content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
            target.writestr(member, content)
    with pytest.raises(DataError):
        read_npz(path, cache_dir=tmp_path / "cache")


def test_a_device_is_not_read_as_an_archive() -> None:
    """It would fill the memory."""
    with pytest.raises(DataError) as error:
        read_npz(Path("/dev/zero"))
    assert error.value.code == "data.npz-not-a-file"


@pytest.mark.parametrize(
    ("labels", "code"),
    [
        (["a", "x" * 201], "data.class-name-too-long"),
        ([f"label {i}" for i in range(10_001)], "data.too-many-labels"),
    ],
)
def test_labels_that_are_no_names_of_classes(labels: list[str], code: str, tmp_path: Path) -> None:
    rows = [ImageRow(f"{i}.png", label) for i, label in enumerate(labels)]
    file_list = FileList(tmp_path, rows)
    file_list.check_classes()
    assert [problem.code for problem in file_list.problems] == [code]
    assert len(file_list.problems[0].message) < 1000
    csv_lines = ["file,label", *(f"{row.file},{row.label}" for row in rows)]
    (tmp_path / "labels.csv").write_text("\n".join(csv_lines) + "\n")
    codes = [problem.code for problem in list_folder(tmp_path).problems]
    assert code in codes, "a person's own list is checked"


def test_a_list_of_endless_paths_is_checked_in_linear_time(tmp_path: Path) -> None:
    lines = ["file,label"]
    for i in range(20):
        lines += [f"{'a/' * 60_000}{i}.png,a", f"/{'b/' * 60_000}{i}.png,b"]
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    start = time.process_time()
    problems = list_folder(tmp_path).problems
    assert time.process_time() - start < 5
    codes = {problem.code for problem in problems}
    assert codes == {"data.path-outside-folder", "data.file-not-found"}
    assert all(len(problem.message) < 3000 for problem in problems)


# ---- names of files ----


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    for name in "ab":
        (folder / name).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (16, 16), (i, 9, 9)).save(folder / name / f"{i}.png")
    return folder


def test_links_that_leave_the_folder_are_not_read(pictures: Path, tmp_path: Path) -> None:
    Image.new("RGB", (16, 16)).save(tmp_path / "secret.png")
    (pictures / "a" / "link.png").symlink_to(tmp_path / "secret.png")
    (pictures / "a" / "inside.png").symlink_to("0.png")
    listed = {row.file for row in list_folder(pictures).rows}
    assert "a/link.png" not in listed and "a/inside.png" in listed
    assert linked_outside(pictures, ["a/link.png", "a/inside.png"]) == ["a/link.png"]
    (pictures / "labels.csv").write_text("file,label\na/0.png,x\na/link.png,y\n")
    (problem,) = list_folder(pictures).problems
    assert problem.code == "data.link-outside-folder" and "a/link.png" in problem.message


def test_a_folder_behind_a_link_is_outside_too(pictures: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    Image.new("RGB", (16, 16)).save(other / "x.png")
    (pictures / "c").symlink_to(other)
    (pictures / "labels.csv").write_text("file,label\na/0.png,x\nc/x.png,y\n")
    (problem,) = list_folder(pictures).problems
    assert problem.code == "data.link-outside-folder"


def test_a_linked_data_folder_itself_is_fine(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(pictures)
    assert len(list_folder(tmp_path / "link").rows) == 6


ODD_NAMES = {"NUL": "a\0b.png", "too long": "x" * 300 + ".png", "loop": "loop.png"}


@pytest.mark.parametrize("kind", ODD_NAMES)
def test_names_that_no_file_can_have(kind: str, pictures: Path) -> None:
    (pictures / "loop.png").symlink_to("loop.png")
    (pictures / "labels.csv").write_text(f"file,label\na/0.png,x\n{ODD_NAMES[kind]},y\n")
    (problem,) = list_folder(pictures).problems
    assert problem.code == "data.file-not-found"


def test_names_that_are_not_utf8(pictures: Path) -> None:
    odd_name = os.fsencode(pictures) + b"/a/\xff.png"
    try:
        (pictures / "a" / "0.png").rename(os.fsdecode(odd_name))
    except OSError:
        pytest.skip("this file system refuses such names")
    (problem,) = list_folder(pictures).problems
    assert problem.code == "data.name-not-utf8"


# ---- the command line ----


def fails(capfd: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """The code of the error of a command that must fail without a traceback."""
    exit_code = cli.execute([str(word) for word in words])
    text = capfd.readouterr().err
    assert exit_code not in (0, cli.error_output.BUG_EXIT_CODE), text[-2000:]
    assert "Traceback" not in text and "\nFix: " in text
    return text.partition("[")[2].partition("]")[0]


LONG = "x" * 300


@pytest.mark.parametrize(
    "words",
    [
        ["data", "check", LONG],
        ["data", "check", "y/" * 3000],
        ["data", "check", "loop"],
        ["config", "--config", LONG],
        ["config", "--config", "loop"],
        ["resume", LONG],
        ["resume", "loop"],
        ["report", LONG],
        ["audit", LONG],
        ["apply", LONG],
        ["predict", LONG, LONG],
        ["export", LONG, "--out", "e"],
        ["deploy", "check", LONG],
        ["deploy", "status", LONG],
        ["deploy", "init", LONG, "--out", "k"],
        ["run", "--data", "synthetic", "--model", "cnn", "--out", LONG],
        ["run", "--data", "synthetic", "--model", "cnn", "--out", "loop"],
        ["run", "--data", "synthetic", "--model", "cnn", "--out", "y/" * 3000],
    ],
    ids=lambda words: " ".join(words)[:30],
)
def test_overlong_and_circular_paths(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    assert fails(capfd, *words)


TOML = {
    "deep lists": "a = " + "[" * 5000 + "]" * 5000,
    "deep tables": "a = " + "{a=" * 2000 + "1" + "}" * 2000,
    "long keys": "a" + ".a" * 3000 + " = 1",
    "a huge number": "seed = " + "9" * 5000,
    "binary": "\x00\x01",
    "wrong types": 'method = 3\npreset = []\ndata = 5\ntrain = "x"\nmodel = []',
}


@pytest.mark.parametrize("name", TOML)
def test_hostile_toml(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.toml"
    path.write_text(TOML[name])
    assert fails(capfd, "config", "--config", path).startswith("config.")
    assert fails(capfd, "deploy", "init", path, "--out", tmp_path / "kit")


def test_a_nul_in_a_path_of_the_configuration(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.toml"
    source = json.dumps(str(toy_npz()))
    weights = f'[data]\nsource = {source}\n[model]\nweights = "a\\u0000b"'
    for text in ('[data]\nsource = "a\\u0000b"', weights):
        path.write_text(text)
        assert fails(capfd, "run", "--config", path, "--out", tmp_path / "run")


@pytest.mark.parametrize("key", ["data.source", "model.name", "noise.spec", "fedgsca.x"])
def test_half_characters_in_the_configuration(key: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A name that is not UTF-8 becomes such a text on the command line."""
    assert fails(capfd, "config", "--set", f"{key}=a\udcffb").startswith("config.")


@pytest.mark.parametrize("spec", ["S" * 100_000, "-".join(["S40"] * 50_000), "S40-Q" * 9000])
def test_an_endless_noise_is_not_repeated_in_the_error(spec: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_noise(spec, 4)
    assert len(error.value.message) + len(error.value.fix) < 3000


@pytest.mark.parametrize("words", [["methods"], ["config", "--json"]])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_a_full_output(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "fedgsca", *words]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 7 and "[file.output-full]" in result.stderr
    assert "Traceback" not in result.stderr and "Exception ignored" not in result.stderr


# ---- texts of others ----

HOSTILE = "\x1b]0;owned\x07\x1b[2Jred\u202etxt\ud800 end\r\nnext" + "x" * 10_000


def test_printable_text() -> None:
    assert printable("a\x1b[31mb\tc\nd\x00\u202e\ud800") == "a[31mb\tc\nd\N{REPLACEMENT CHARACTER}"
    assert printable("Größe – 日本語 \N{GRINNING FACE}") == "Größe – 日本語 \N{GRINNING FACE}"
    line = one_line(HOSTILE)
    assert len(line) == 500 and line.isprintable() and line.encode()


def test_the_reason_of_a_site_is_filtered_and_capped() -> None:
    reply = Reply("north", None, HOSTILE)
    assert reply.error is not None and reply.error.isprintable() and len(reply.error) <= 500
    header = {"kind": "hello", "round": 0, "site": HOSTILE, "error": HOSTILE}
    reply = read_message(SiteMessage("1", header), "", "hello", 0)
    assert reply.error is not None and reply.error.isprintable() and len(reply.error) <= 500
    assert reply.site.isprintable() and len(reply.site) <= 200


def test_a_hostile_reason_reaches_neither_the_log_nor_the_observer(tmp_path: Path) -> None:
    from dataclasses import replace

    from fedgsca.federation.base import RunObserver
    from fedgsca.federation.local import LocalEngine, open_runner
    from fedgsca.wire import Update

    config = toy_config("fedavg", frozen=True, train__rounds=1)
    runner = open_runner(config, tmp_path / "run")
    messages: list[str] = []

    class Observer(RunObserver):
        def on_message(self, message: str) -> None:
            messages.append(message)

    class HostileEngine(LocalEngine):
        def exchange(self, payload, sites=None):  # type: ignore[no-untyped-def]
            first, second, *others = super().exchange(payload, sites)
            yield Reply(first.site, None, HOSTILE)
            assert second.update is not None
            weights = {**second.update.weights, HOSTILE: np.zeros(2, np.float32)}
            update = Update(second.site, second.update.num_samples, weights, {})
            yield replace(second, update=update)
            yield from others

    run(config, tmp_path / "run", engine=HostileEngine(runner), observer=Observer())
    (record,) = read_rounds(tmp_path / "run")
    assert set(record.refusals) == {"site-1", "site-2"}
    for text in [*record.refusals.values(), *messages]:
        assert text.isprintable() and len(text) < 600


def test_the_terminal_obeys_no_name(capfd: pytest.CaptureFixture[str]) -> None:
    hostile = "cl\x1b[2Jass\x9b\u202e"
    output = console()
    output.print(f"line {hostile}")
    output.print(make_table(["site", hostile], [[hostile, "1"]]))
    text = capfd.readouterr().out
    assert "\x1b" not in text and "\x9b" not in text and "\u202e" not in text
    assert "cl[2Jass" in text


def test_a_narrow_terminal_keeps_names_and_numbers() -> None:
    """Long headings wrap; before, the column with the names was dropped."""
    header = ["method", "F1 at the end", "time of a round", "time to FedAvg's best", "reached"]
    header += ["time to 95 % of the ceiling", "reached"]
    cells = ["MaskedOptim", "71.2", "12.34", "123.45 s", "3/3", "67.89 s", "2/3"]
    output = Console(width=80, file=io.StringIO())
    with output.capture() as capture:
        output.print(make_table(header, [cells]))
    lines = [line.split("  ") for line in capture.get().splitlines() if "MaskedOptim" in line]
    (line,) = lines
    assert [cell.strip() for cell in line if cell.strip()] == cells


def test_formulas_and_html_are_harmless() -> None:
    sheet = io.BytesIO()
    write_cells(sheet, ["=cmd()", "@x", "a=b"])
    assert sheet.getvalue() == b"'=cmd(),'@x,a=b\n"
    lines = markdown_table(["<script>"], [["<img src=x>"]])
    assert not any("<" in line for line in lines)


def test_the_csv_of_the_noise_contains_no_formula(tmp_path: Path) -> None:
    labels = ["=1+1", "@cmd"]
    lines = ["file,label,split"]
    folder = tmp_path / "data"
    folder.mkdir()
    for i in range(24):
        Image.new("RGB", (12, 12), (i, 2, 3)).save(folder / f"=x{i}.png")
        lines.append(f"=x{i}.png,{labels[i % 2]},{'test' if i % 6 == 5 else 'train'}")
    (folder / "labels.csv").write_text("\n".join(lines))
    config = toy_config(
        "fedavg",
        source=folder,
        data__sites=2,
        noise__spec="S40",
        data__partition="stratified",
        train__rounds=1,
    )
    run(config, tmp_path / "run")
    for path in (tmp_path / "run" / "noise").iterdir():
        cells = path.read_text().replace("\n", ",").split(",")
        assert not any(cell.startswith(("=", "@")) for cell in cells)


def test_predictions_contain_no_formula() -> None:
    from fedgsca.lab.export.prediction import _write_rows

    sheet = io.BytesIO()
    _write_rows(sheet, [["=x.png", "@class", "0.500000"], ["caf\udce9.png", "a", "1.000000"]])
    assert sheet.getvalue() == b"'=x.png,'@class,0.500000\ncaf\xe9.png,a,1.000000\n"


def test_a_table_as_csv_contains_no_formula() -> None:
    from fedgsca.lab.table import Cell, Table, to_csv

    cell = Cell("@cmd", data={"label": "@cmd"})
    table = Table("", ["Method", "x"], [[cell, "=1+1"]], data={"noise": "=1+1"})
    assert to_csv([table]).splitlines()[1] == "'=1+1,'@cmd,'=1+1"


def test_the_list_of_copies_contains_no_formula(tmp_path: Path) -> None:
    from fedgsca.data.duplicates import CopyFinding, ImageCopy
    from fedgsca.data.load import load
    from fedgsca.data.sheets import write_findings

    table = load(str(toy_npz()), image_size=12)
    finding = CopyFinding("copy", (ImageCopy("=x.png", "train", "@class", 0),))
    path = write_findings([finding], table, tmp_path)[0]
    assert path.read_text().splitlines()[1] == "1,copy,'=x.png,train,'@class"


def test_a_model_card_contains_no_html(tmp_path: Path) -> None:
    from fedgsca.lab.export.write_export import export

    run(toy_config("fedavg", frozen=True, train__rounds=1), tmp_path / "run")
    for name in ("setup.json", "result.json"):
        path = tmp_path / "run" / name
        text = path.read_text().replace("toy-124-30-12-12", "<img src=x onerror=alert(1)>")
        path.write_text(text.replace("class 1", "<b>class</b>"))
    card = export(tmp_path / "run", "safetensors", tmp_path / "out").path / "MODEL_CARD.md"
    text = card.read_text()
    assert "<img" not in text and "<b>" not in text and "&lt;img" in text


# ---- model.json and imports ----

JSON_TEXTS = ["{", "[]", "null", '"x"', '{"classes": 3}', "[" * 100_000, '{"a": ' * 50_000]


@pytest.mark.parametrize("text", JSON_TEXTS, ids=range(len(JSON_TEXTS)))
def test_a_hostile_model_json(text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.json").write_text(text)
    assert fails(capfd, "predict", tmp_path / "model", tmp_path)


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    return toy_audit(tmp_path_factory.mktemp("audited") / "run")


@pytest.mark.parametrize("text", JSON_TEXTS, ids=range(len(JSON_TEXTS)))
def test_a_label_studio_file_that_is_none(text: str, audit: Audit, tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    path.write_text(text)
    if text == "[]":
        assert import_verdicts(audit, "label-studio", path) == {}
        return
    with pytest.raises(DataError) as error:
        import_verdicts(audit, "label-studio", path)
    assert error.value.code == "audit.unreadable-import"


def test_hostile_texts_of_a_label_studio_file(audit: Audit, tmp_path: Path) -> None:
    (suspect,) = audit.at([0])
    result = [
        {"type": "choices", "value": {"choices": [suspect.given]}},
        {"type": "textarea", "value": {"text": [HOSTILE]}},
    ]
    annotation = {"completed_by": {"email": HOSTILE}, "result": result, "lead_time": 1e400}
    data = {"id": suspect.id, "hash": suspect.hash}
    path = tmp_path / "export.json"
    path.write_text(json.dumps([{"data": data, "annotations": [annotation]}]))
    (name,) = import_verdicts(audit, "label-studio", path)
    assert name.isprintable() and len(name) <= 60
    (decision,) = Decisions(audit.path).by_reviewer(name).values()
    assert decision.seconds is None and "\x1b" not in decision.reason


def test_a_damaged_setup_of_a_finished_run(audit: Audit, capfd: pytest.CaptureFixture[str]) -> None:
    folder = audit.path.parents[1]
    content = (folder / "setup.json").read_bytes()
    try:
        for text in ("{", "[1]", "[" * 100_000):
            (folder / "setup.json").write_text(text)
            assert fails(capfd, "resume", folder) == "run.damaged-file"
    finally:
        (folder / "setup.json").write_bytes(content)


# ---- the review server ----


def test_a_connection_that_only_waits_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    uvicorn = pytest.importorskip("uvicorn")

    from fedgsca.labels.review import security

    monkeypatch.setattr(security, "HEAD_SECONDS", 0.5)

    async def app(scope: object, receive: object, send: object) -> None:
        raise AssertionError("no complete request arrives")

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=security.TimedProtocol, lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True
    )
    thread.start()
    try:
        for beginning in (b"", b"GET / HTTP/1.1\r\nHost: a\r\n"):
            with socket.create_connection(listener.getsockname(), timeout=120) as client:
                client.sendall(beginning)
                assert client.recv(100) == b""  # a server without a limit never closes it
    finally:
        server.should_exit = True
        thread.join()


def test_wrong_values_give_config_errors_of_bounded_size() -> None:
    from fedgsca.config import build

    with pytest.raises(ConfigError) as error:
        build({"seed": "x" * 100_000, "train": {"lr": ["\x1b[2J"] * 10_000}})
    assert len(error.value.message) < 2000 and "\x1b" not in error.value.message
    assert json.dumps(error.value.to_json())
