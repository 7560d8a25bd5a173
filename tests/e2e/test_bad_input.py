"""What goes wrong in practice: a stable error code, an exit code, a fix, and no loss of data."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgsca import cli
from fedgsca.config import Config, to_toml
from fedgsca.federation import rounds as federation
from fedgsca.federation.run_folder import RunFolder
from tests.toys import digest, outcome, toy_config, toy_folder, toy_images, toy_npz, toy_weights

CONFIG, DATA, WEIGHTS, QUORUM, FOLDER = 2, 3, 4, 6, 7


class Shell:
    """Runs commands with --quiet."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: str | Path) -> tuple[int, str]:
        code = cli.execute([*map(str, words), "--quiet"])
        output = self.capsys.readouterr()
        assert "Traceback" not in output.err
        return code, output.err

    def fails(self, exit_code: int, code: str, *words: str | Path) -> str:
        """The message of a command that must fail with these codes and offer a fix."""
        actual_exit_code, text = self(*words)
        assert text.startswith(f"Error [{code}]: "), text
        assert actual_exit_code == exit_code, text
        assert len(text.split("\nFix: ")[1].strip()) > 5
        return text


@pytest.fixture
def shell(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(capsys)


def tree(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): digest(p)
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != ".lock"
    }


def write_config(folder: Path, config: Config) -> Path:
    path = folder / "experiment.toml"
    path.write_text(to_toml(config))
    return path


# ---- data ----


def small(source: Path) -> list[str | Path]:
    return [
        "run",
        "--data",
        source,
        "--method",
        "fedavg",
        "--rounds",
        "1",
        "--sites",
        "2",
        "--set",
        "train.threads=1",
        "--out",
        "out",
    ]


def make_folder(root: Path, rows: list[str], header: str = "file,label", count: int = 24) -> Path:
    root.mkdir()
    for i, picture in enumerate(toy_images(np.arange(count) % 3)):
        Image.fromarray(picture).save(root / f"{i:02d}.jpg")
    (root / "labels.csv").write_text("\n".join([header, *rows]) + "\n")
    return root


GOOD = [f"{i:02d}.jpg,class {i % 3}" for i in range(24)]

# rows, header, error code, what the message must contain
FOLDERS: dict[str, tuple[list[str], str, str, tuple[str, ...]]] = {
    "one image": (GOOD[:1], "file,label", "data.too-few-for-test-set", ()),
    "one class": (
        [f"{i:02d}.jpg,tumour" for i in range(24)],
        "file,label",
        "data.one-class",
        ("tumour",),
    ),
    "no rows": ([], "file,label", "data.empty-list", ("labels.csv",)),
    "missing file": ([*GOOD, "99.jpg,class 1"], "file,label", "data.file-not-found", ("99.jpg",)),
    "duplicate": ([*GOOD, GOOD[3]], "file,label", "data.duplicate-file", ("03.jpg",)),
    "unknown column": (
        [f"{row},7" for row in GOOD],
        "file,label,hospitl",
        "data.unknown-column",
        ("hospitl",),
    ),
    "no label column": (GOOD, "file,diagnosis", "data.several-problems", ("label",)),
    "more sites than images": (GOOD[:2], "file,label", "data.too-few-for-test-set", ()),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_that_cannot_be_used(case: str, shell: Shell, tmp_path: Path) -> None:
    rows, header, code, details = FOLDERS[case]
    root = make_folder(tmp_path / "images", rows, header)
    before = tree(root)
    sites = ["--sites", "9"] if case.startswith("more") else []
    message = shell.fails(DATA, code, *small(root), *sites)
    assert all(detail in message for detail in details), message
    assert tree(root) == before and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("empty", "data.no-images"),
        ("nowhere", "data.unknown-source"),
        ("nowhere.npz", "data.npz-not-found"),
    ],
)
def test_no_data(source: str, code: str, shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert source in shell.fails(DATA, code, *small(Path(source)))
    assert not (tmp_path / "out").exists()


def test_a_corrupt_jpeg_is_named_and_can_be_skipped(shell: Shell, tmp_path: Path) -> None:
    root = make_folder(tmp_path / "images", GOOD)
    (root / "07.jpg").write_bytes((root / "07.jpg").read_bytes()[:200])
    assert "07.jpg" in shell.fails(DATA, "data.unreadable-images", *small(root))
    assert not (tmp_path / "out").exists()
    assert shell(*small(root), "--skip-unreadable")[0] == 0
    assert "1" in str(json.loads((tmp_path / "out" / "setup.json").read_text())["warnings"])


def test_a_class_that_a_site_lacks_is_warned_about_and_runs(shell: Shell, tmp_path: Path) -> None:
    path = write_config(
        tmp_path,
        toy_config("fedavg", source=toy_folder("one_class"), noise__spec="0", train__rounds=1),
    )
    assert shell("run", "--config", path, "--out", "out")[0] == 0
    warnings = json.loads((tmp_path / "out" / "setup.json").read_text())["warnings"]
    assert any("class 1" in warning for warning in warnings)


@pytest.mark.parametrize("cut", [0, 100, -1])
def test_half_an_npz(cut: int, shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "half.npz").write_bytes(toy_npz().read_bytes()[:cut])
    assert "half.npz" in shell.fails(DATA, "data.damaged-npz", *small(tmp_path / "half.npz"))


# ---- configuration, noise, weights ----


@pytest.mark.parametrize(
    ("spec", "code", "detail"),
    [
        ("0-S40", "noise.wrong-number-of-parts", "2"),
        ("S40-P20-C20-0-S10", "noise.wrong-number-of-parts", "5"),
        ("X40", "noise.invalid-specification", "X40"),
        ("S140", "noise.invalid-specification", "S140"),
        ("S", "noise.invalid-specification", "S"),
        ("", "noise.invalid-specification", ""),
        ("0--S40-0", "noise.invalid-specification", ""),
        ("M", "noise.missing-matrix", "matrix"),
    ],
)
def test_noise_that_makes_no_sense(
    spec: str, code: str, detail: str, shell: Shell, tmp_path: Path
) -> None:
    words = ("run", "--data", toy_npz(), "--noise", spec, "--out", "out")
    assert detail in shell.fails(CONFIG, code, *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("noise.matrix", "0.5,0.5\n0.5,0.5\n", "noise.matrix-shape"),
        ("noise.matrix", "a,b,c\n", "noise.unreadable-matrix"),
        ("noise.matrix", "0.5,0.5,0.5\n1,0,0\n0,1,0\n", "noise.matrix-not-probabilities"),
        ("noise.given", "image,label\n", "noise.unreadable-labels-file"),
        ("noise.given", "file,label\ntrain/9999,class 1\n", "noise.invalid-labels-file"),
        ("noise.given", "file,label\ntrain/1,tumour\n", "noise.invalid-labels-file"),
    ],
)
def test_noise_files_that_do_not_fit(
    name: str, text: str, code: str, shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "n.csv").write_text(text)
    spec = "M" if name == "noise.matrix" else "0"
    words = ("run", "--data", toy_npz(), "--noise", spec, "--set", f"{name}=n.csv", "--out", "out")
    shell.fails(CONFIG, code, *words)
    assert not (tmp_path / "out").exists()


def test_weights_that_do_not_fit_are_listed(shell: Shell, tmp_path: Path) -> None:
    words: list[str | Path] = [
        "run",
        "--data",
        toy_npz(),
        "--model",
        "cnn-groupnorm",
        "--set",
        f"model.weights={toy_weights()}",
        "--out",
        "out",
    ]
    for frozen in ([], ["--frozen"]):
        message = shell.fails(WEIGHTS, "weights.wrong-network", *words, *frozen)
        assert "layers.1.running_mean" in message and "model.name" in message
    assert not (tmp_path / "out").exists()


# ---- training ----


def test_training_that_diverges_stops_with_the_names_of_the_sites(
    shell: Shell, tmp_path: Path
) -> None:
    """Every update is NaN or infinite and refused; the round does not count, earlier ones stay."""
    good = toy_config("fedavg", train__rounds=3)
    path = write_config(
        tmp_path, good.model_copy(update={"train": good.train.model_copy(update={"lr": 1e30})})
    )
    message = shell.fails(
        QUORUM, "round.quorum-not-reached", "run", "--config", path, "--out", "out"
    )
    assert "0 of 4 sites" in message and "site-1" in message and "resume" in message
    assert not (tmp_path / "out" / "result.json").exists()


# ---- the run folder ----


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Path]:
    config = toy_config("fedgsca", frozen=True)
    folder = tmp_path_factory.mktemp("reference") / "run"
    federation.run(config, folder)
    return config, folder


def test_a_folder_of_another_experiment(
    shell: Shell, reference: tuple[Config, Path], tmp_path: Path
) -> None:
    config, finished = reference
    before = tree(finished)
    path = write_config(tmp_path, config.model_copy(update={"seed": 5}))
    words = ("run", "--config", path, "--out", finished)
    message = shell.fails(FOLDER, "run.other-experiment", *words)
    assert "seed: 0 there, 5 here" in message and tree(finished) == before


def test_a_folder_that_is_not_a_run(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work")
    shell.fails(FOLDER, "run.folder-not-empty", "run", "--data", toy_npz(), "--out", "thesis")
    shell.fails(FOLDER, "run.not-a-run-folder", "resume", "thesis")
    assert tree(tmp_path / "thesis").keys() == {"chapter1.tex"}
    (tmp_path / "file").write_text("")
    words = ("run", "--data", toy_npz(), "--out", tmp_path / "file" / "run")
    shell.fails(FOLDER, "run.cannot-create-folder", *words)


def test_two_processes_in_one_folder(
    shell: Shell, reference: tuple[Config, Path], tmp_path: Path
) -> None:
    config, finished = reference
    folder, path = tmp_path / "out", write_config(tmp_path, config)
    federation.run(config, folder, stop_after=2)
    before = tree(folder)
    ready, release = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:  # the first process holds the folder until it is released
        with RunFolder(folder, config):
            os.write(ready[1], b"x")
            os.read(release[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    try:
        shell.fails(FOLDER, "run.folder-in-use", "run", "--config", path, "--out", folder)
        assert tree(folder) == before
    finally:
        os.write(release[1], b"x")
        os.waitpid(pid, 0)
    federation.run(config, folder)
    assert outcome(folder) == outcome(finished)


# ---- damage ----

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut in half": lambda data: data[: len(data) // 2],
    "one bit": lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
    "zeros": lambda data: bytes(len(data)),
    "empty": lambda data: b"",
    "another format": lambda data: b"PK\x03\x04" + data,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_skipped(
    damage: str, reference: tuple[Config, Path], tmp_path: Path
) -> None:
    config, finished = reference
    folder = tmp_path / "run"
    federation.run(config, folder, stop_after=4)
    newest = max((folder / "checkpoint").iterdir())
    newest.write_bytes(DAMAGE[damage](newest.read_bytes()))
    federation.run(config, folder)
    assert outcome(folder) == outcome(finished)


def test_without_a_readable_checkpoint_nothing_is_deleted(
    shell: Shell, reference: tuple[Config, Path], tmp_path: Path
) -> None:
    config, _ = reference
    folder = tmp_path / "run"
    federation.run(config, folder, stop_after=3)
    for path in (folder / "checkpoint").iterdir():
        path.write_bytes(path.read_bytes()[:-9])
    before = tree(folder)
    shell.fails(FOLDER, "run.no-readable-checkpoint", "resume", folder)
    assert tree(folder) == before


@pytest.mark.parametrize("tail", [b'{"round": 3, "f1', b"\x00" * 512, b"\xff\xfe", b"\n\n"])
def test_a_log_with_an_incomplete_end_is_repaired(
    tail: bytes, reference: tuple[Config, Path], tmp_path: Path
) -> None:
    config, finished = reference
    folder = tmp_path / "run"
    federation.run(config, folder, stop_after=3)
    with open(folder / "metrics.jsonl", "ab") as handle:
        handle.write(tail)
    federation.run(config, folder)
    assert outcome(folder) == outcome(finished)


def test_a_half_written_cache_is_rebuilt(
    reference: tuple[Config, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, finished = reference
    monkeypatch.setenv("FEDGSCA_CACHE", str(tmp_path / "cache"))
    federation.run(config, tmp_path / "first")
    arrays = list((tmp_path / "cache").glob("*.npy"))
    assert len(arrays) == 2, "decoded images and features"
    for path in arrays:
        path.write_bytes(path.read_bytes()[:-100])
    federation.run(config, tmp_path / "second")
    for folder in (tmp_path / "first", tmp_path / "second"):
        assert all(
            digest(folder / n) == digest(finished / n)
            for n in ("model.safetensors", "metrics.jsonl")
        )


# ---- a full disk ----


@contextlib.contextmanager
def no_space_for(part: str, which: int) -> Iterator[None]:
    """The disk is full exactly when the `which`-th file whose path contains `part` is written."""
    genuine, count = os.fsync, iter(range(1, 10**6))

    def full(handle: int) -> None:
        if part in str(Path(f"/proc/self/fd/{handle}").readlink()) and next(count) >= which:
            raise OSError(errno.ENOSPC, "No space left on device")
        genuine(handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", full)
        yield


FILES = [
    "config.toml",
    "setup.json",
    "/noise/",
    "metrics.jsonl",
    "timing.jsonl",
    "/checkpoint/",
    "/store/",
    "/losses/",
    "model.safetensors",
]


@pytest.mark.parametrize("part", [*FILES, "result.json"])
def test_a_full_disk_loses_nothing(
    part: str, shell: Shell, reference: tuple[Config, Path], tmp_path: Path
) -> None:
    config, finished = reference
    path = write_config(tmp_path, config)
    late = 3 if part in ("metrics.jsonl", "timing.jsonl", "/checkpoint/", "/store/") else 1
    with no_space_for(f"/out{part}" if part.startswith("/") else f"/out/{part}", late):
        code = "run.cannot-append" if part.endswith(".jsonl") else "file.disk-full"
        message = shell.fails(FOLDER, code, "run", "--config", path, "--out", "out")
    assert "no space is left" in message and "free some space" in message
    assert not (tmp_path / "out" / "result.json").exists()
    federation.run(config, tmp_path / "out")
    assert outcome(tmp_path / "out") == outcome(finished)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes, where we may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], capture_output=True
        ).returncode
    ):
        pytest.skip("mounting needs root")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_disk_that_is_really_full(tiny_disk: Path, tmp_path: Path) -> None:
    from fedgsca.errors import RunFolderError

    config = toy_config("fedgsca", train__rounds=4)  # checkpoints of 370 KB
    federation.run(config, tmp_path / "whole")
    federation.run(config, tiny_disk / "run", stop_after=2)
    filler = tiny_disk / "filler"
    with contextlib.suppress(OSError), open(filler, "wb") as handle:
        while True:
            handle.write(bytes(1 << 14))
    with pytest.raises(RunFolderError) as caught:
        federation.run(config, tiny_disk / "run")
    assert caught.value.code == "file.disk-full"
    filler.unlink()
    federation.run(config, tiny_disk / "run")
    assert outcome(tiny_disk / "run") == outcome(tmp_path / "whole")
