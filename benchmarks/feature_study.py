"""Which frozen features are best: networks, stages, their statistics and weights, flips.

    python -m benchmarks.feature_study --out DIR --data pathmnist_small.npz ham10000_small
    python -m benchmarks.feature_study --out DIR --write benchmarks/studies/features.md

Every choice is a set of vectors that the product's own runs are trained on: FedAvg, FedGSCA-E with
its audit, and the ceiling, at four sites. They are judged on validation images, a quarter of the
training images where a source has none; test images are not read. Averages of stages and finished
rows stay in DIR, so the study can be interrupted. One thread; the cost is CPU time per image.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import lru_cache
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from benchmarks.generalisation.measure import evidence_alone, judge
from benchmarks.generalisation.sources import RECIPES, choose_rows, cut_validation
from docs.generate import make_table
from fedgsca.config import OWN_FEATURES, Config, ModelConfig, build
from fedgsca.data.load import load
from fedgsca.federation.label_evidence import read_evidence
from fedgsca.federation.rounds import run
from fedgsca.federation.simulation import Experiment, prepare
from fedgsca.models.build import build_frozen, spec_of
from fedgsca.models.features import BATCH, FeaturePass
from fedgsca.models.weights import packaged_weights
from fedgsca.rng import stream
from fedgsca.support.files import write_atomic

LITE, RESNET = "efficientnet-lite0", "resnet50"
NOISES = ("0-S40-P20-C20", "S40")
ROUNDS = 40
LAST, STAGES = "Lite0, last layer", "Lite0, all stages"
LARGE, BOTH = "ResNet-50, all stages", "both networks, all stages"
# how a set of images is seen: network, pixels, mirrored
View = tuple[str, int, bool]


@dataclass(frozen=True)
class Row:
    """One choice on one data set with one noise and seed; scores and shares in percent."""

    data: str
    choice: str
    noise: str
    seed: int
    width: int
    fedavg: float
    ours: float
    ceiling: float
    # of the audit of the run, means over sites with wrong labels
    auroc: float
    precision: float
    # mean over sites of what a site's own regression explains of labels that it has not seen
    explained: float


# ---- averages of stages ----


@dataclass(frozen=True)
class Images:
    """The images that the study may see, under the names that a feature file has."""

    images: np.ndarray
    columns: dict[str, np.ndarray]


@lru_cache(maxsize=1)
def read_images(source: str) -> Images:
    """At most 1,400 training images, and the validation images in the place of test images."""
    table = load(source)
    split = cut_validation(table)
    rows, names = choose_rows(table.labels, split, "validation", RECIPES["pathmnist"])
    columns = {"labels": np.array(table.classes)[table.labels[rows]], "split": names}
    if table.groups is not None:
        columns["groups"] = table.groups[rows].astype(str)
    return Images(np.asarray(table.images[rows]), columns)


class Vectors:
    """Means and standard deviations of every stage of a data set's images, kept in a folder."""

    def __init__(self, source: str, folder: Path) -> None:
        self.source = source
        self.folder = folder

    def parts(self, view: View, statistic: str = "mean") -> list[np.ndarray]:
        """(n, D_s) of every stage s, the last layer's at the end (which has no std)."""
        name, size, is_mirrored = view
        path = self.folder / f"{source_name(self.source)}-{name}-{size}-{int(is_mirrored)}.npz"
        if not path.exists():
            arrays = compute_stages(read_images(self.source).images, view)
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".tmp.npz")
            np.savez(temporary, allow_pickle=False, **arrays)
            temporary.replace(path)
        with np.load(path) as archive:
            count = sum(key.startswith(statistic) for key in archive)
            return [archive[f"{statistic}{index}"] for index in range(count)]


@torch.inference_mode()
def compute_stages(images: np.ndarray, view: View) -> dict[str, np.ndarray]:
    """mean0, mean1, ... and std0, std1, ...: (n, D_s), and the CPU milliseconds per image."""
    name, size, is_mirrored = view
    model = ModelConfig(name=name, frozen=True, features="last", feature_size=size)
    network = build_frozen(model, seed=0, weights=packaged_weights(name))
    feature_pass = FeaturePass(network, model)
    outputs: dict[str, torch.Tensor] = {}

    def watch(layer: str) -> None:
        network.get_submodule(layer).register_forward_hook(
            lambda module, inputs, output: outputs.update({layer: output})
        )

    layers = list(spec_of(name).stages)
    for layer in layers:
        watch(layer)
    blocks: list[dict[str, np.ndarray]] = []
    start = time.process_time()
    for first in range(0, len(images), BATCH):
        batch = images[first : first + BATCH]
        batch = batch[:, :, ::-1] if is_mirrored else batch
        last = feature_pass.backbone(feature_pass.prepare(batch))
        block = {f"mean{len(layers)}": last.numpy()}
        for index, layer in enumerate(layers):
            block[f"mean{index}"] = outputs[layer].mean(dim=(2, 3)).numpy()
            block[f"std{index}"] = outputs[layer].std(dim=(2, 3)).numpy()
        blocks.append(block)
    seconds = time.process_time() - start
    arrays = {key: np.concatenate([block[key] for block in blocks]) for key in blocks[0]}
    return {**arrays, "milliseconds": np.array(1000 * seconds / len(images))}


# ---- choices ----


def normalise(part: np.ndarray) -> np.ndarray:
    """(n, D): every vector with mean 0 and variance 1."""
    centre = part - part.mean(axis=1, keepdims=True)
    return np.asarray(centre / np.sqrt(centre.var(axis=1, keepdims=True) + 1e-5))


def join(parts: Sequence[np.ndarray], *, by_width: bool = False) -> np.ndarray:
    """All parts, each normalised; with the same weight, or in proportion to their numbers."""
    weights = [1.0 if by_width else part.shape[1] ** -0.5 for part in parts]
    scaled = [weight * normalise(part) for weight, part in zip(weights, parts, strict=True)]
    return np.concatenate(scaled, axis=1)


def project(features: np.ndarray, width: int) -> np.ndarray:
    """A fixed random projection, the same at all sites, which makes messages short."""
    matrix = stream(0, "projection").standard_normal((features.shape[1], width))
    return np.asarray(normalise(features) @ matrix.astype(np.float32))


def join_networks(vectors: Vectors) -> np.ndarray:
    """As the model efficientnet-lite0-resnet50: its two last layers are one part."""
    lite, resnet = vectors.parts(VIEW), vectors.parts(RESNET_VIEW)
    last = np.concatenate([normalise(lite[-1]), normalise(resnet[-1])], axis=1)
    return join([*lite[:-1], *resnet[:-1], last])


def average_flips(vectors: Vectors) -> np.ndarray:
    """The mean over an image and its mirror image."""
    mirror = vectors.parts(MIRROR_VIEW)
    return join([0.5 * (a + b) for a, b in zip(vectors.parts(VIEW), mirror, strict=True)])


def standardise_columns(vectors: Vectors) -> np.ndarray:
    """Every number with mean 0 and variance 1 over all images: sites would have to share these."""
    parts = []
    for part in vectors.parts(VIEW):
        parts.append((part - part.mean(axis=0)) / (part.std(axis=0) + 1e-6))
    return join(parts)


def take_roots(vectors: Vectors) -> np.ndarray:
    """Square roots before normalisation, so that single large numbers do not rule a stage."""
    return join([np.sign(part) * np.sqrt(np.abs(part)) for part in vectors.parts(VIEW)])


VIEW: View = (LITE, 96, False)
RESNET_VIEW: View = (RESNET, 96, False)
MIRROR_VIEW: View = (LITE, 96, True)


@dataclass(frozen=True)
class Choice:
    """Features of a kind, and the passes that they need."""

    make: Callable[[Vectors], np.ndarray]
    views: tuple[View, ...] = (VIEW,)


CHOICES: dict[str, Choice] = {
    LAST: Choice(lambda vectors: vectors.parts(VIEW)[-1]),
    STAGES: Choice(lambda vectors: join(vectors.parts(VIEW))),
    LARGE: Choice(lambda vectors: join(vectors.parts(RESNET_VIEW)), (RESNET_VIEW,)),
    BOTH: Choice(join_networks, (VIEW, RESNET_VIEW)),
    "Lite0, weight of stages by width": Choice(
        lambda vectors: join(vectors.parts(VIEW), by_width=True)
    ),
    "Lite0, standard deviations beside means": Choice(
        lambda vectors: join([*vectors.parts(VIEW), *vectors.parts(VIEW, "std")])
    ),
    "Lite0, square roots": Choice(take_roots),
    "Lite0, every number standardised": Choice(standardise_columns),
    "Lite0, flips averaged": Choice(average_flips, (VIEW, MIRROR_VIEW)),
    "Lite0, projected to 1,024": Choice(lambda vectors: project(join(vectors.parts(VIEW)), 1024)),
    "both networks, projected to 2,064": Choice(
        lambda vectors: project(join_networks(vectors), 2064), (VIEW, RESNET_VIEW)
    ),
}
CANDIDATES = (LAST, STAGES, LARGE, BOTH)


# ---- runs ----


def make_config(file: Path, noise: str, seed: int, method: str, *, is_ceiling: bool) -> Config:
    """A run on a file of features; with the model's rate and the same balance for every method."""
    with np.load(file) as archive:
        partition = "group" if "groups" in archive else "stratified"
    return build(
        {
            "method": method,
            "seed": seed,
            "data": {"source": str(file), "partition": partition, "sites": 4},
            "noise": {"spec": noise, "oracle": is_ceiling},
            "model": {"name": OWN_FEATURES, "frozen": True},
            "train": {"rounds": ROUNDS, "threads": 1},
            "federation": {"eval_every": ROUNDS, "keep_losses": False},
        }
    )


def measure(source: str, choice: str, file: Path, noise: str, seed: int) -> Row:
    """Three runs and the audits of the second."""
    f1 = {}
    with tempfile.TemporaryDirectory(prefix="feature-study-") as scratch:
        for name in ("fedavg", "fedgsca-e", "ceiling"):
            method = "fedavg" if name == "ceiling" else name
            config = make_config(file, noise, seed, method, is_ceiling=name == "ceiling")
            experiment = prepare(config)
            outcome = run(config, Path(scratch) / name, experiment=experiment)
            assert outcome is not None  # the run is not stopped early
            f1[name] = outcome.f1
            if name == "fedgsca-e":
                rankings = list(audit_sites(experiment, Path(scratch) / name))
                sites = experiment.sites.values()
                explained = fmean(evidence_alone(site).share_explained for site in sites)
                width = experiment.feature_width
    return Row(
        source_name(source),
        choice,
        noise,
        seed,
        width,
        f1["fedavg"],
        f1["fedgsca-e"],
        f1["ceiling"],
        100 * fmean(area for area, _ in rankings),
        100 * fmean(precision for _, precision in rankings),
        100 * explained,
    )


def audit_sites(experiment: Experiment, folder: Path) -> Iterator[tuple[float, float]]:
    """AUROC and precision in the first tenth, of every site with wrong labels."""
    for name, samples in experiment.sites.items():
        wrong = samples.labels != experiment.table.labels[experiment.rows[name]]
        ranking = judge(read_evidence(folder, name), samples.labels, wrong)
        if ranking.auroc is not None and ranking.precision is not None:
            yield ranking.auroc, ranking.precision


def source_name(source: str) -> str:
    """A short name of the data."""
    return Path(source).name.partition(".")[0]


def study(source: str, folder: Path, choices: Sequence[str], noise: str, seed: int) -> None:
    """Measure what is missing of a source with one noise."""
    vectors = Vectors(source, folder / "stages")
    for choice in choices:
        stem = f"{source_name(source)}-{list(CHOICES).index(choice)}-{noise}-{seed}"
        target = folder / "rows" / f"{stem}.json"
        if target.exists():
            continue
        file = folder / f"{source_name(source)}.npz"
        features = CHOICES[choice].make(vectors).astype(np.float32)
        columns = read_images(source).columns
        np.savez(file, allow_pickle=False, features=features, **columns)
        row = measure(source, choice, file, noise, seed)
        target.parent.mkdir(exist_ok=True)
        write_atomic(target, json.dumps(asdict(row), indent=1).encode())
        print(row, flush=True)


# ---- the page ----

INTRODUCTION = """Written by `python -m benchmarks.feature_study`; do not edit. Runs of the product
on vectors: at most 1,400 training images at four sites (groups stay together), noise 0-S40-P20-C20
and S40, 40 rounds, validation images. F1 is macro F1 in percent; AUROC and precision (first tenth)
are those of the audit of FedGSCA-E's run, means over sites with wrong labels; *explained* is the
mean over sites of `judge_alone(...).share_explained`, which needs no true label. In brackets: the
difference to all stages of Lite0 in the same runs. *KB a class*: what a linear head sends; *ms*:
CPU time per image with one thread, without decoding."""
COLUMNS = ("fedavg", "ours", "ceiling", "auroc", "precision", "explained")
HEADER = ("FedAvg", "FedGSCA-E", "ceiling", "AUROC", "precision", "explained")


def make_page(rows: Sequence[Row], folder: Path) -> str:
    """Markdown of all tables."""
    seeds = ", ".join(map(str, sorted({row.seed for row in rows})))
    lines = ["# Frozen features", "", INTRODUCTION, "", f"{date.today()}; seeds {seeds}."]
    for data in dict.fromkeys(row.data for row in rows):
        lines += ["", f"## {data}", "", choice_table([row for row in rows if row.data == data])]
    lines += ["", "## Cost", "", cost_table(rows, folder / "stages")]
    lines += ["", "## Chosen by what the evidence explains", "", chosen_table(rows)]
    return "\n".join(lines) + "\n"


def choice_table(rows: Sequence[Row]) -> str:
    """Means over noises and seeds; behind each score the difference to all stages of Lite0."""
    base = {(row.noise, row.seed): row for row in rows if row.choice == STAGES}
    lines = []
    for choice in CHOICES:
        part = [row for row in rows if row.choice == choice and (row.noise, row.seed) in base]
        if not part:
            continue
        cells = []
        for column in COLUMNS:
            value = fmean(getattr(row, column) for row in part)
            reference = fmean(getattr(base[row.noise, row.seed], column) for row in part)
            difference = "" if choice == STAGES else f" ({value - reference:+.1f})"
            cells.append(f"{value:.1f}{difference}")
        lines.append([choice, len(part), *cells])
    return make_table(["features", "runs", *HEADER], lines)


def cost_table(rows: Sequence[Row], folder: Path) -> str:
    """Width, message and time of every choice; the time on the largest images of the study."""
    milliseconds: dict[View, float] = {}
    for view in {view for choice in CHOICES.values() for view in choice.views}:
        name, size, is_mirrored = view
        times = []
        for path in folder.glob(f"*-{name}-{size}-{int(is_mirrored)}.npz"):
            with np.load(path) as archive:
                times.append(float(archive["milliseconds"]))
        if times:
            milliseconds[view] = max(times)
    lines = []
    for name, choice in CHOICES.items():
        widths = {row.width for row in rows if row.choice == name}
        if widths and milliseconds.keys() >= set(choice.views):
            width = widths.pop()
            total = sum(milliseconds[view] for view in choice.views)
            lines.append([name, f"{width:,}", f"{4 * (width + 1) / 1024:.1f}", f"{total:.0f}"])
    return make_table(["features", "width", "KB a class", "ms"], lines)


def chosen_table(rows: Sequence[Row]) -> str:
    """What a choice among the candidates by `explained` gives, beside choices for all data."""
    settings: dict[tuple[str, str, int], dict[str, Row]] = {}
    for row in rows:
        if row.choice in CANDIDATES:
            settings.setdefault((row.data, row.noise, row.seed), {})[row.choice] = row
    complete = [part for part in settings.values() if len(part) == len(CANDIDATES)]
    rules: dict[str, Callable[[dict[str, Row]], Row]] = {
        name: lambda part, name=name: part[name]  # type: ignore[misc]
        for name in CANDIDATES
    }
    rules["the most explained"] = lambda part: max(part.values(), key=lambda row: row.explained)
    rules["the best F1 (nobody knows it)"] = lambda part: max(
        part.values(), key=lambda row: row.ours
    )
    lines = []
    for name, rule in rules.items():
        picks = [rule(part) for part in complete]
        cells = [f"{fmean(getattr(row, column) for row in picks):.1f}" for column in COLUMNS]
        counts = [sum(row.choice == candidate for row in picks) for candidate in CANDIDATES]
        lines.append([name, "/".join(map(str, counts)), *cells])
    return make_table(["rule", f"picks of {len(complete)} settings", *HEADER], lines)


def main() -> None:
    """Measure what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of finished rows")
    parser.add_argument("--data", nargs="*", default=[], help="sources")
    parser.add_argument("--choices", nargs="*", default=list(CHOICES), choices=list(CHOICES))
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--write", type=Path, metavar="FILE.md", help="write the page here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed, noise, source in product(options.seeds, NOISES, options.data):
        study(source, options.out, options.choices, noise, seed)
    paths = sorted((options.out / "rows").glob("*.json"))
    page = make_page([Row(**json.loads(path.read_bytes())) for path in paths], options.out)
    print(page)
    if options.write:
        write_atomic(options.write, page.encode())


if __name__ == "__main__":
    main()
