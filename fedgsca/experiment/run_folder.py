"""A run's folder: what is in it, who owns it, and how it is written so that nothing is ever half there.

config.toml        the experiment, every default filled in
setup.json         classes, sites, sizes, realised noise, fingerprints of data and configuration, warnings
noise/<site>.csv   simulations: file, true and given label
metrics.jsonl      one line per round; the same bytes whenever the same experiment is run
timing.jsonl       seconds per phase and site; differs from run to run
checkpoint/        the last two rounds
store/<site>/      each site's private memory
evidence/<site>/   what each site has seen of its own labels; audit/<site>/ what was made of it
losses/<site>.npz  simulations: per-sample losses of the newest selection, for the report
model.safetensors, result.json, report.html
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import json
import os
import platform
import resource
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from fedgsca import __version__
from fedgsca.config import Config, build, differences, read_toml, to_toml
from fedgsca.data.label_changes import labels_in_use
from fedgsca.errors import RunFolderError
from fedgsca.experiment.simulation import Experiment, weights_digest
from fedgsca.methods.base import ServerState
from fedgsca.metrics import headline, per_class
from fedgsca.noise import realised
from fedgsca.support.files import abandoned, no_room, remove_quietly, write_atomic
from fedgsca.wire import save_tensors


def dumps(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, indent=1).encode() + b"\n"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Whole JSON lines; a last line cut short by a crash is dropped."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_bytes().split(b"\n"):
        with contextlib.suppress(
            ValueError
        ):  # also a tail of zeros, which a power cut leaves and which is no text at all
            rows.append(json.loads(line))
    return rows


class RunFolder:
    """Opened for one experiment by one process at a time."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path, self.config = path, config
        self.checkpoints = path / "checkpoint"
        self._lock: int | None = None

    def __enter__(self) -> RunFolder:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                "todo.run-folder-1",
                f"cannot make the run folder {self.path}: {error.strerror}",
                fix="choose another --out",
            ) from None
        self._check_owner()
        try:
            self._lock = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR)
        except OSError as error:
            raise RunFolderError(
                "todo.run-folder-2",
                f"cannot write to {self.path}: {error.strerror}",
                fix="free some space there, or choose another --out",
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise RunFolderError(
                "todo.run-folder-3",
                f"another process is running in {self.path}",
                fix="wait for it, stop it, or choose another --out",
            ) from None
        for path in self.path.rglob("*.tmp"):  # half-written files of a run that was killed
            if abandoned(path):
                remove_quietly(path)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            if not (self.path / "config.toml").exists():  # nothing was begun: leave nothing behind
                with contextlib.suppress(OSError):
                    (self.path / ".lock").unlink()
                    self.path.rmdir()
            os.close(self._lock)

    def _check_owner(self) -> None:
        """A folder belongs to the experiment in its config.toml, and to no other."""
        if not (self.path / "config.toml").exists():
            if any(
                entry.name != ".lock" and entry.suffix != ".tmp" for entry in self.path.iterdir()
            ):
                raise RunFolderError(
                    "todo.run-folder-4",
                    f"{self.path} is not empty and not a run folder",
                    fix="choose a new folder with --out",
                )
            return
        other = read_config(self.path)
        changed = differences(self.config, other)
        if changed:
            rows = [f"{key}: {theirs!r} there, {mine!r} here" for key, mine, theirs in changed[:6]]
            raise RunFolderError(
                "todo.run-folder-5",
                f"{self.path} belongs to another experiment:\n  "
                + "\n  ".join(rows)
                + ("\n  ..." if len(changed) > 6 else ""),
                fix="choose another --out, or continue that experiment with `fedgsca resume`",
            )

    def result(self) -> dict[str, Any] | None:
        return self._json("result.json")

    def _json(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        try:
            return dict(json.loads(path.read_bytes())) if path.exists() else None
        except (OSError, ValueError) as error:
            raise RunFolderError(
                "todo.run-folder-6",
                f"{path} is damaged: {error}",
                fix="restore it from a backup, or start anew with another --out",
            ) from None

    def write_setup(self, experiment: Experiment) -> None:
        """Only an experiment whose data, labels and weights could be read takes possession of the folder: config.toml first."""
        if not (self.path / "config.toml").exists():
            write_atomic(self.path / "config.toml", to_toml(self.config).encode())
        table = experiment.table
        signature = experiment.signature()
        self._check_data(signature)
        sites: dict[str, dict[str, Any]] = {
            name: {} for name in experiment.names
        }  # what is elsewhere stays unknown here
        for name, samples in experiment.sites.items():
            rows, truth = experiment.rows[name], experiment.truth.get(name)
            counts = np.bincount(samples.labels, minlength=table.num_classes).tolist()
            sites[name] = {
                "num_samples": len(samples),
                "given_per_class": counts,
                "noise": str(experiment.noise[name]),
            }
            if truth is not None:
                sites[name]["realised"] = realised(truth, samples.labels, table.num_classes)
                text = io.StringIO()
                writer = csv.writer(text, lineterminator="\n")
                writer.writerow(["file", "true", "given"])
                for row, true, given in zip(rows, truth, samples.labels, strict=True):
                    writer.writerow([table.ids[row], table.classes[true], table.classes[given]])
                write_atomic(self.path / "noise" / f"{name}.csv", text.getvalue().encode())
        setup: dict[str, Any] = {
            "data": {
                "name": table.name, "fingerprint": table.fingerprint, "classes": list(table.classes),
                "shape": list(table.images.shape), "white": table.white,
            },
            "test": len(experiment.test) if experiment.test is not None else 0, "sites": sites, "warnings": list(experiment.warnings),
            "fingerprint": self.config.fingerprint(), "signature": signature, "weights": weights_digest(self.config), "version": __version__,
        }  # fmt: skip
        labels = labels_in_use(self.config.data.labels or self.config.noise.given, table)
        if labels is not None:
            setup["labels"] = labels
        write_atomic(self.path / "setup.json", dumps(setup))

    def _check_data(self, signature: str) -> None:
        """A run goes on only with the very images, sites, labels and weights it began with."""
        known = self._json("setup.json")
        if known is not None and known.get("signature") != signature:
            raise RunFolderError(
                "todo.run-folder-7",
                f"the data of {self.path} has changed since the run began (images, labels, sites or the weights file)",
                fix="restore them as they were, or start a new run with another --out",
            )

    def cut_metrics(self, rounds: int) -> None:
        """Forget lines of rounds that no checkpoint covers: they will be run again."""
        for name in ("metrics.jsonl", "timing.jsonl"):
            path = self.path / name
            kept = [line for line in read_lines(path) if line["round"] < rounds]
            if path.exists():
                write_atomic(
                    path,
                    b"".join(json.dumps(line, sort_keys=True).encode() + b"\n" for line in kept),
                )

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        try:
            with open(self.path / name, "ab") as handle:
                handle.write(json.dumps(line, sort_keys=True).encode() + b"\n")
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            where = "no space left" if no_room(error) else str(error.strerror)
            raise RunFolderError(
                "todo.run-folder-8",
                f"cannot write {self.path / name}: {where}; all rounds up to the last checkpoint are safe",
                fix=f"free some space under {self.path}, then `fedgsca resume {self.path}`",
            ) from error

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        self._append("metrics.jsonl", line)

    def note_startup(self, seconds: float) -> None:
        self.startup = seconds

    def append_timing(self, round: int, sites: Mapping[str, float], clock: Sequence[float]) -> None:
        exchange, evaluation, saving = (b - a for a, b in pairwise(clock))
        self._append(
            "timing.jsonl",
            {
                "round": round,
                "sites": dict(sites),
                "exchange": exchange,
                "evaluate": evaluation,
                "save": saving,
            },
        )

    def finish(self, state: ServerState, experiment: Experiment) -> dict[str, Any]:
        """model.safetensors and result.json, the latter last: its presence means that the run is complete."""
        meta = {
            "classes": json.dumps(experiment.table.classes),
            "model": self.config.model.name,
            "config": to_toml(self.config),
        }
        write_atomic(self.path / "model.safetensors", save_tensors(state.weights, meta))
        result = summarise(self.path, self.config, experiment)
        write_atomic(self.path / "result.json", dumps(result))
        return result


def summarise(path: Path, config: Config, experiment: Experiment) -> dict[str, Any]:
    lines = [line for line in read_lines(path / "metrics.jsonl") if "f1" in line]
    timing = read_lines(path / "timing.jsonl")
    if not lines:
        raise RunFolderError(
            "todo.run-folder-9",
            "the model is trained, but nobody tested it: neither the coordinator nor any site has test images",
            fix="give some site a test split, or the coordinator a source with federation.test; the last checkpoint has the model",
        )
    best = max(lines, key=lambda line: float(line["f1"]))
    rounds = [t["exchange"] + t["evaluate"] + t["save"] for t in timing]
    table = experiment.table
    return {
        **{name: headline([line[name] for line in lines]) for name in ("f1", "recall", "precision")},
        "best": {"round": best["round"], "f1": best["f1"]},
        "last": {name: lines[-1][name] for name in ("round", "f1", "recall", "precision", "confusion")},
        "per_class": dict(zip(table.classes, per_class(np.array(lines[-1]["confusion"])), strict=True)),
        "method": config.method, "noise": config.noise.spec, "seed": config.seed, "data": table.name, "rounds": config.train.rounds,
        "seconds": {
            "total": float(sum(rounds)), "per_round": float(np.median(rounds)), "exchange": float(np.median([t["exchange"] for t in timing])),
            "evaluate": float(np.median([t["evaluate"] for t in timing])), "save": float(np.median([t["save"] for t in timing])),
        },
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "bytes_per_round": {"up": lines[-1]["bytes_up"], "down": lines[-1]["bytes_down"]},
        "guard_events": sum(int(site.get("guard") or 0) for line in read_lines(path / "metrics.jsonl") for site in line["sites"].values()),
        "realised_noise": {name: float(np.mean(experiment.truth[name] != samples.labels)) if name in experiment.truth else None
                           for name, samples in experiment.sites.items()},
        **({"privacy": lines[-1]["privacy"]} if "privacy" in lines[-1] else {}),
        "fingerprint": config.fingerprint(), "data_fingerprint": table.fingerprint, "version": __version__,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }  # fmt: skip


def read_config(path: Path) -> Config:
    """The configuration of an existing run folder."""
    if not (path / "config.toml").exists():
        raise RunFolderError(
            "todo.run-folder-10",
            f"{path} is not a run folder: it has no config.toml",
            fix="give the folder that `fedgsca run --out` made",
        )
    return build(read_toml(path / "config.toml"))
