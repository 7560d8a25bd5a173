"""Very small experiments that go through the real readers and the real engine, and engines that misbehave on purpose."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.config import Config, load_config
from fedgsca.engine.local import Reply, SiteRunner, open_runner
from fedgsca.rng import stream
from fedgsca.wire import Payload

CLASSES = 3
SITES = 4
SIZE = 12  # pixels
ROUNDS = 6
NOISE = "0-S40-P20-C20"


def workshop() -> Path:
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
    path = workshop() / f"toy-{train}-{test}-{val}-{size}.npz"
    arrays: dict[str, np.ndarray] = {}
    for seed, (split, count) in enumerate((("train", train), ("val", val), ("test", test))):
        labels = np.sort(np.arange(count) % 7 % CLASSES)  # 3 : 2 : 2
        arrays[f"{split}_images"] = toy_images(labels, size=size, seed=seed)
        arrays[f"{split}_labels"] = labels[:, None].astype(np.uint8)
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


@functools.cache
def toy_folder(odd: str) -> Path:
    """Images with labels.csv and a site column. Sites a, b and c are ordinary; `odd` says what is special about d."""
    from PIL import Image

    root = workshop() / f"folder-{odd}"
    root.mkdir(exist_ok=True)
    ordinary = [
        (site, split, i % CLASSES)
        for site in "abc"
        for split, n in (("train", 24), ("test", 8))
        for i in range(n)
    ]
    special = {
        "one_class": [("d", "train", 1)] * 24,
        "five_samples": [("d", "train", i % CLASSES) for i in range(5)],
    }[odd]
    rows = ordinary + special
    pictures = toy_images(np.array([label for _, _, label in rows]), seed=9)
    lines = ["file,label,site,split"]
    for i, ((site, split, label), picture) in enumerate(zip(rows, pictures, strict=True)):
        Image.fromarray(picture).save(root / f"{i:03d}.png")
        lines.append(f"{i:03d}.png,class {label},{site},{split}")
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root


@functools.cache
def toy_weights(model: str = "cnn") -> Path:
    """Weights of a backbone as somebody else might have trained it: another seed than the tests use."""
    from safetensors.torch import save_file

    from fedgsca.models.build import build_backbone

    path = workshop() / f"{model}.safetensors"
    save_file(dict(build_backbone(model, seed=77).state_dict()), path)
    return path


def quick_options(method: str) -> dict[str, Any]:
    """Values under which a few rounds pass through every stage of a method, whichever it is.

    Names of methods do not belong in contract tests, so this goes by the names of options: whatever counts rounds of a first
    stage becomes one, and waiting for a condition that a toy may never meet is switched off.
    """
    from fedgsca.methods.base import load_methods

    short: dict[str, Any] = {}
    for name, info in load_methods()[method].Options.model_fields.items():
        if isinstance(info.default, bool):
            if name.startswith("wait_"):
                short[name] = False
        elif isinstance(info.default, int) and any(
            word in name for word in ("warmup", "rounds", "start")
        ):
            short[name] = min(info.default, 1)
    return short


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


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def outcome(folder: Path) -> dict[str, str]:
    """What must be the same whenever the same experiment is run: the bytes of the model and of the metrics."""
    return {
        name: digest(folder / name)
        for name in ("model.safetensors", "metrics.jsonl", "config.toml", "setup.json")
    }


Change = Callable[[int, Reply], Reply]


@dataclass
class Meddler:
    """A local engine in which a test may watch, change or lose what passes."""

    config: Config
    folder: Path
    change: Change = lambda round, reply: reply
    absent: Mapping[int, str] = field(
        default_factory=dict
    )  # round -> a site that is not reached at all
    payloads: list[Payload] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    _bench: SiteRunner | None = None

    def exchange(self, payload: Payload) -> Iterator[Reply]:
        self._bench = self._bench or open_runner(self.config, self.folder)
        self.payloads.append(payload)
        for name in sorted(self._bench.experiment.sites):
            if self.absent.get(payload.round) == name:
                continue
            reply = self.change(payload.round, self._bench.run_round(name, payload))
            self.replies.append(reply)
            yield reply

    def close(self) -> None:
        self._bench = None


@dataclass
class Listener:
    """An observer that keeps what it was told."""

    messages: list[str] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)

    def on_start(self, experiment: object, first: int) -> None: ...
    def on_site_done(self, round: int, reply: Reply) -> None: ...

    def on_round_done(self, line: dict[str, Any], seconds: float) -> None:
        self.rounds.append(line)

    def on_message(self, message: str) -> None:
        self.messages.append(message)
