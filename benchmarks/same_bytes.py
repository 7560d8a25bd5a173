"""Whether two checkouts compute the same bytes: a short run of every method with each of them.

    python -m benchmarks.same_bytes --old ../fedgsca-0.2.0 [--new .] [--methods fedavg,fedgsca]

Every run is a process of its own (`python -m fedgsca run`) with its checkout on PYTHONPATH and a
cache of its own, on the built-in images: a small CNN and, if the extra `weights` is installed, a
linear head on frozen features. Only the command line, the files of a run folder and two import
paths that no version changes (fedgsca.wire, fedgsca.methods.NAME) are used. Digests:

    config      bytes of config.toml
    setup       signature of setup.json (images, sites, labels, weights) and the sites' facts
    noise       bytes of noise/*.csv
    payloads    encoded bytes of every message to the sites
    updates     encoded bytes of every message of a site
    store       arrays of store/: what the sites remember between rounds
    evidence    arrays of evidence/: what the audit of the labels uses
    checkpoint  arrays of checkpoint/
    metrics     bytes of metrics.jsonl
    model       arrays of model.safetensors
    result      scores, traffic and fingerprints of result.json

The exit code is 1 if any digest differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

from safetensors.numpy import load_file

ROUNDS = 6
# options that bring every stage of a method into a few rounds
OPTIONS = {
    "fedcorr": ("fedcorr.stage1=0.34", "fedcorr.stage2=0.34"),
    "fedgp": ("fedgp.warmup=0.34",),
    "fedfixer": ("fedfixer.warmup=2",),
    "fednoro": ("fednoro.warmup=2",),
    "fedgsca": ("fedgsca.warmup=0",),
}
COMMON = (
    "data.train=320",
    "data.test=40",
    "train.batch_size=16",
    "train.threads=1",
    "train.device=cpu",
    "audit.enabled=true",
)
SETTINGS = {
    "cnn": ("model.name=cnn", "data.image_size=28"),
    "frozen": ("model.frozen=true", "model.name=efficientnet-lite0", "data.image_size=64"),
}
# the digest of no files
NOTHING = hashlib.sha256().hexdigest()
# without what differs between runs: times, memory, version
RESULT_KEYS = (
    "f1",
    "recall",
    "precision",
    "best",
    "last",
    "per_class",
    "bytes_per_round",
    "guard_events",
    "realised_noise",
    "fingerprint",
    "data_fingerprint",
)
# Runs the command line with the method's two messages recorded. The first arguments are the method
# and the folder for the records; the others are those of the command.
LAUNCHER = """
import hashlib, importlib, pathlib, runpy, sys
from fedgsca import wire

name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
module = importlib.import_module("fedgsca.methods." + name.replace("-", "_"))
method = next(item for item in vars(module).values() if getattr(item, "name", None) == name)

def record(name, encode):
    original = getattr(method, name)
    def recorded(self, *args, **kwargs):
        message = original(self, *args, **kwargs)
        with open(folder / (name + ".txt"), "a") as file:
            print(hashlib.sha256(encode(message)).hexdigest(), file=file)
        return message
    setattr(method, name, recorded)

record("broadcast", wire.encode_payload)
record("local_update", wire.encode_update)
sys.argv = ["fedgsca", *sys.argv[3:]]
runpy.run_module("fedgsca", run_name="__main__")
"""


def train(checkout: Path, method: str, setting: str, out: Path, cache: Path) -> None:
    """One run of a method with the code of a checkout."""
    out.mkdir(parents=True)
    arguments = ["run", "--method", method, "--noise", "0-S40-P20-C20", "--rounds", str(ROUNDS)]
    arguments += ["--out", str(out / "run"), "--quiet"]
    for item in (*COMMON, *SETTINGS[setting], *OPTIONS.get(method, ())):
        arguments += ["--set", item]
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "PYTHONDONTWRITEBYTECODE": "1",
        "FEDGSCA_CACHE": str(cache),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", LAUNCHER, method, str(out), *arguments]
    process = subprocess.run(command, cwd=out, env=environment, capture_output=True, text=True)
    if process.returncode != 0:
        raise SystemExit(f"{checkout}: {method}, {setting} failed:\n{process.stderr[-3000:]}")


# ---- digests of a run ----


def digest_files(folder: Path, paths: Iterable[Path]) -> str:
    """SHA-256 of the names and bytes of files."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(folder)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def digest_arrays(folder: Path, paths: Iterable[Path]) -> str:
    """SHA-256 of the names, types, shapes and bytes of all arrays in safetensors files."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        for name, array in sorted(load_file(path).items()):
            head = f"{path.relative_to(folder)}\0{name}\0{array.dtype}\0{array.shape}\0"
            digest.update(head.encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


def digest_values(path: Path, keys: Iterable[str]) -> str:
    """SHA-256 of some values of a JSON file."""
    tree = json.loads(path.read_bytes())
    values = {key: tree.get(key) for key in keys}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def files_of(pattern: str) -> Callable[[Path], str]:
    """A digest of the bytes of files; pattern relative to the folder of the run."""
    return lambda out: digest_files(out, out.glob(pattern))


def arrays_of(pattern: str) -> Callable[[Path], str]:
    """A digest of the arrays of files; pattern relative to the folder of the run."""
    return lambda out: digest_arrays(out, out.glob(pattern))


DIGESTS: dict[str, Callable[[Path], str]] = {
    "config": files_of("run/config.toml"),
    "setup": lambda out: digest_values(out / "run" / "setup.json", ("signature", "sites")),
    "noise": files_of("run/noise/*.csv"),
    "payloads": files_of("broadcast.txt"),
    "updates": files_of("local_update.txt"),
    "store": arrays_of("run/store/**/*.safetensors"),
    "evidence": arrays_of("run/evidence/**/*.safetensors"),
    "checkpoint": arrays_of("run/checkpoint/*.safetensors"),
    "metrics": files_of("run/metrics.jsonl"),
    "model": arrays_of("run/model.safetensors"),
    "result": lambda out: digest_values(out / "run" / "result.json", RESULT_KEYS),
}


# ---- the comparison ----


def compare_run(
    checkouts: dict[str, Path], method: str, setting: str, work: Path
) -> dict[str, tuple[str, str]]:
    """The digests of one method under one setting: name -> (old, new)."""
    folders = {}
    for side, checkout in checkouts.items():
        folders[side] = work / f"{setting}-{method}-{side}"
        train(checkout, method, setting, folders[side], work / f"cache-{side}")
    digests = {}
    for name, compute in DIGESTS.items():
        digests[name] = (compute(folders["old"]), compute(folders["new"]))
    return digests


def method_names(checkout: Path) -> list[str]:
    """All methods of a checkout: one module each."""
    paths = sorted((checkout / "fedgsca" / "methods").glob("*.py"))
    return [path.stem.replace("_", "-") for path in paths if "\n@register\n" in path.read_text()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--old", type=Path, required=True, help="checkout to compare with")
    parser.add_argument("--new", type=Path, default=Path(__file__).parents[1], help="checkout")
    parser.add_argument(
        "--methods", help="names joined by commas; default: all of the old checkout"
    )
    parser.add_argument("--settings", help="cnn,frozen; default: all that can run")
    parser.add_argument("--keep", type=Path, help="folder for the runs, to look at differences")
    options = parser.parse_args()
    checkouts = {"old": options.old.resolve(), "new": options.new.resolve()}
    methods = method_names(checkouts["old"])
    if options.methods:
        methods = options.methods.split(",")
    settings = list(SETTINGS)
    if options.settings:
        settings = options.settings.split(",")
    elif find_spec("efficientnet_lite_pytorch") is None:
        settings.remove("frozen")
    num_different = 0
    print("first digits of the SHA-256 of the new checkout; –: no files; ≠: the old one differs")
    print(" ".join(["setting", "method   ", *(f"{name:10}" for name in DIGESTS)]))
    with tempfile.TemporaryDirectory() as folder:
        work = (options.keep or Path(folder)).resolve()
        for setting in settings:
            for method in methods:
                line = [f"{setting:7}", f"{method:9}"]
                for old, new in compare_run(checkouts, method, setting, work).values():
                    num_different += old != new
                    text = "–" if new == NOTHING else new[:8]
                    line.append(f"{text:8}{'  ' if old == new else ' ≠'}")
                print(" ".join(line), flush=True)
    print(f"{num_different} digests differ")
    sys.exit(1 if num_different else 0)


if __name__ == "__main__":
    main()
