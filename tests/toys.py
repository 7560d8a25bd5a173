"""Very small experiments that use the real readers and the real engine, and faulty engines."""

from __future__ import annotations

import functools
import hashlib
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgsca.config import Config, load_config
from fedgsca.federation.base import Reply, RunObserver
from fedgsca.federation.local import SiteRunner, open_runner
from fedgsca.federation.records import RoundRecord
from fedgsca.rng import stream
from fedgsca.wire import Payload

CLASSES = 3
SITES = 4
SIZE = 12  # pixels
ROUNDS = 6
NOISE = "0-S40-P20-C20"


def inputs_folder() -> Path:
    """A folder of this test session for inputs that many tests share."""
    folder = Path(os.environ["FEDGSCA_CACHE"]).parent / "inputs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def toy_images(labels: np.ndarray, *, size: int = SIZE, seed: int = 0) -> np.ndarray:
    """(n, size, size, 3) uint8: one class is red, one is striped, one is dark; all are grainy."""
    rng = stream(seed, "toy", size)
    images = rng.normal(130, 30, (len(labels), size, size, 3))
    images[labels == 0, :, :, 0] += 45
    images[labels == 1, ::2] -= 50
    images[labels == 2] -= 35
    return np.asarray(np.clip(images, 0, 255), dtype=np.uint8)


@functools.cache
def toy_npz(train: int = 124, test: int = 30, val: int = 12, size: int = SIZE) -> Path:
    """A MedMNIST-style file with three uneven classes."""
    path = inputs_folder() / f"toy-{train}-{test}-{val}-{size}.npz"
    arrays: dict[str, np.ndarray] = {}
    for seed, (split, count) in enumerate((("train", train), ("val", val), ("test", test))):
        labels = np.sort(np.arange(count) % 7 % CLASSES)  # 3 : 2 : 2
        arrays[f"{split}_images"] = toy_images(labels, size=size, seed=seed)
        arrays[f"{split}_labels"] = labels[:, None].astype(np.uint8)
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


@functools.cache
def toy_folder(odd_site: str) -> Path:
    """Images with labels.csv and a site column.

    `odd_site` says what is special about d: "one_class" or "five_samples"; with "both", c has one
    class and d five samples. The other sites are ordinary.
    """
    from PIL import Image

    root = inputs_folder() / f"folder-{odd_site}"
    root.mkdir(exist_ok=True)
    rows: list[tuple[str, str, int]] = []
    one_class = {"one_class": "d", "five_samples": "", "both": "c"}[odd_site]
    for site in "abc":
        rows += [(site, "train", 1 if site == one_class else i % CLASSES) for i in range(24)]
        rows += [(site, "test", i % CLASSES) for i in range(8)]
    if one_class == "d":
        rows += [("d", "train", 1)] * 24
    else:
        rows += [("d", "train", i % CLASSES) for i in range(5)]
    pictures = toy_images(np.array([label for _, _, label in rows]), seed=9)
    lines = ["file,label,site,split"]
    for i, ((site, split, label), picture) in enumerate(zip(rows, pictures, strict=True)):
        Image.fromarray(picture).save(root / f"{i:03d}.png")
        lines.append(f"{i:03d}.png,class {label},{site},{split}")
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root


@functools.cache
def toy_weights(model: str = "cnn") -> Path:
    """Weights of a backbone that somebody else trained: another seed than the tests use."""
    from safetensors.torch import save_file

    from fedgsca.models.build import build_backbone

    path = inputs_folder() / f"{model}.safetensors"
    save_file(dict(build_backbone(model, seed=77).state_dict()), path)
    return path


def quick_options(method: str) -> dict[str, Any]:
    """Values under which a few rounds pass through every stage of a method, whichever it is.

    Names of methods do not belong in contract tests, so this depends on the names of options:
    whatever counts rounds of a first stage becomes one, or zero where that switches off waiting for
    a condition that a toy may never meet.
    """
    from fedgsca.methods.base import load_methods

    options: dict[str, Any] = {}
    for name, info in load_methods()[method].Options.model_fields.items():
        is_number = isinstance(info.default, int) and not isinstance(info.default, bool)
        if is_number and _counts_rounds(name):
            waits = "no waiting" in (info.description or "")
            options[name] = 0 if waits else min(info.default, 1)
    return options


def _counts_rounds(option: str) -> bool:
    return any(word in option for word in ("warmup", "rounds", "start"))


def toy_config(
    method: str, *, frozen: bool = False, source: Path | None = None, **sets: Any
) -> Config:
    """A run of a second or less. `sets` as for load_config: train__rounds=3, noise__spec="S40"."""
    base: dict[str, Any] = {
        "method": method,
        "data__source": str(source or toy_npz()),
        "data__sites": SITES,
        "noise__spec": NOISE,
        "train__rounds": ROUNDS,
        "train__batch_size": 8,
        "train__threads": 1,
        "train__device": "cpu",
        # as a word, because None is the default: a network that takes longer than all the rest
        "evidence__backbone": "none",
    }
    if source is not None and source.is_dir():
        base["data__partition"] = "column"
    if frozen:
        base |= {
            "model__name": "cnn",
            "model__frozen": True,
            "model__weights": str(toy_weights()),
            "model__feature_size": 16,
        }
    base |= {f"{method}__{name}": value for name, value in quick_options(method).items()}
    return load_config(**(base | sets))


# by configuration: the folder of a finished run, and the sizes and times of its files
_FINISHED_RUNS: dict[str, tuple[Path, dict[str, tuple[int, int]]]] = {}


def finished_run(config: Config) -> Path:
    """The folder of an uninterrupted run, which is trained once and shared by all tests.

    It is for reading only; `copy_run` is for tests that continue, change or damage a run. The same
    configuration gives the same bytes, so no test can tell whether another one was first.
    """
    from fedgsca.federation.rounds import run

    key = config.model_dump_json()
    if key not in _FINISHED_RUNS:
        # a test's own processes have the same inputs, but other runs
        folder = inputs_folder() / "runs" / f"{os.getpid()}-{len(_FINISHED_RUNS)}" / "run"
        run(config, folder)
        _FINISHED_RUNS[key] = (folder, file_states(folder))
    folder, states = _FINISHED_RUNS[key]
    assert file_states(folder) == states, "an earlier test has changed a run that tests share"
    return folder


def copy_run(config: Config, folder: Path) -> Path:
    """A finished run of a test's own in `folder`, which is returned."""
    shutil.copytree(finished_run(config), folder)
    return folder


def file_states(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of every file below a folder."""
    states = {}
    for path in folder.rglob("*"):
        if path.is_file():
            status = path.stat()
            states[str(path.relative_to(folder))] = (status.st_size, status.st_mtime_ns)
    return states


def digest(path: Path) -> str:
    """sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def outcome(folder: Path) -> dict[str, str]:
    """Digests of the files that must be the same whenever the same experiment is run."""
    names = ("model.safetensors", "metrics.jsonl", "config.toml", "setup.json")
    return {name: digest(folder / name) for name in names}


def generator_states() -> dict[str, object]:
    """Where the three global generators are: whoever draws from one moves it."""
    # numpy's is the one that must not be used
    numpy_state = repr(np.random.get_state(legacy=False))  # noqa: NPY002
    torch_state = torch.get_rng_state().numpy().tobytes()
    return {"torch": torch_state, "numpy": numpy_state, "random": random.getstate()}


def keep_reply(round_index: int, reply: Reply) -> Reply:
    """The change of an engine that changes nothing."""
    return reply


@dataclass
class FaultyEngine:
    """A local engine in which a test can watch, change or lose messages."""

    config: Config
    folder: Path
    change: Callable[[int, Reply], Reply] = keep_reply
    # round -> a site that is not reached at all
    absent: Mapping[int, str] = field(default_factory=dict)
    payloads: list[Payload] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    _runner: SiteRunner | None = None

    def exchange(self, payload: Payload, sites: Sequence[str] | None = None) -> Iterator[Reply]:
        self._runner = self._runner or open_runner(self.config, self.folder)
        self.payloads.append(payload)
        for name in sorted(self._runner.experiment.sites if sites is None else sites):
            if self.absent.get(payload.round) == name:
                continue
            reply = self.change(payload.round, self._runner.run_round(name, payload))
            self.replies.append(reply)
            yield reply

    def close(self) -> None:
        self._runner = None


@dataclass
class RecordingObserver(RunObserver):
    """An observer that keeps messages and records."""

    messages: list[str] = field(default_factory=list)
    rounds: list[RoundRecord] = field(default_factory=list)

    def on_round_done(self, record: RoundRecord, seconds: float) -> None:
        self.rounds.append(record)

    def on_message(self, message: str) -> None:
        self.messages.append(message)
