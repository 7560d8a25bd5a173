"""Which classes are mistaken for which: the misdiagnosis sets S(y) of CK-asymmetric noise.

Three sources, in this order of trust: a table for known classes (`table_for`), a file (`from_file`), or, for data nobody has
described, the classes that look most alike (`by_similarity`). All give class index -> candidate indices; () is "any other".
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedgsca.errors import ConfigError

Table = dict[int, tuple[int, ...]]
_ANY = ""

# Each line: accepted spellings of the class, separated by "|" (the first is its name here) -> the names of its candidates.
# The paper's table for Kvasir-Capsule; its "Mucosal Atrophy" is the data set's "Reduced mucosal view".
KVASIR = {
    "Normal|Normal clean mucosa": _ANY,
    "Ileocecal valve|Ileo-cecal valve": "Mucosal atrophy, Pylorus",
    "Mucosal atrophy|Reduced mucosal view": "Ileocecal valve, Erosion",
    "Pylorus": "Ulcer, Foreign body",
    "Angiectasia": "Erosion, Blood",
    "Ulcer": "Pylorus, Foreign body",
    "Foreign body|Foreign bodies": "Ulcer, Lymphangiectasia",
    "Lymphangiectasia": "Erosion, Foreign body",
    "Erosion": "Mucosal atrophy, Angiectasia",
    "Blood|Blood - fresh": "Angiectasia, Erosion",
}
# The paper's table for OIA-ODIR, read by position N, D, G, C, A, H, M, O: what it calls "Hypertensive Retinopathy" stands where
# the data set has diabetes, so that spelling is accepted only in PAPER_ODIR, beside "Hypertension Complications".
ODIR = {
    "N|Normal": _ANY,
    "D|Diabetes|Diabetic retinopathy": "G, H",
    "G|Glaucoma": "C, D",
    "C|Cataract": "A, G",
    "A|AMD|Age-related macular degeneration": "C, D",
    "H|Hypertension|Hypertensive retinopathy": "M, A",
    "M|Myopia|Pathologic myopia|Pathological myopia": "H, O",
    "O|Other|Others|Other diseases|Other diseases/abnormalities": "M, H",
}
PAPER_ODIR = {
    {"D": "D|Hypertensive retinopathy", "H": "H|Hypertension complications"}.get(
        names[0], names
    ): wrong
    for names, wrong in ODIR.items()
}
# Colorectal tissue (PathMNIST / NCT-CRC-HE), ours, argued from how the patches look at this magnification.
PATHMNIST = {
    "adipose|ADI": "background, mucus",  # empty fat cells: mostly white, thin septa
    "background|BACK": "adipose, mucus",  # glass beside fat; pale mucus without texture
    "debris|DEB": "mucus, colorectal adenocarcinoma epithelium",  # floats in mucus; "dirty" necrosis fills tumour glands
    "lymphocytes|LYM": "normal colon mucosa, debris",  # the lamina propria is full of them; nuclear dust imitates them
    "mucus|MUC": "debris, cancer-associated stroma",  # holds cell debris; myxoid stroma is as pale and streaky
    "smooth muscle|MUS": "cancer-associated stroma, normal colon mucosa",  # pink parallel fibres; muscularis mucosae
    "normal colon mucosa|NORM": "colorectal adenocarcinoma epithelium, lymphocytes",  # glands; lymphoid lamina propria
    "cancer-associated stroma|STR": "smooth muscle, debris",  # spindle cells and collagen; necrosis at its border
    "colorectal adenocarcinoma epithelium|TUM": "normal colon mucosa, debris",  # well differentiated glands; necrosis
}
# The built-in synthetic tissue: neighbours on the way from normal to cancer, and the two fibrous tissues.
SYNTHETIC = {
    "normal mucosa": "adenoma, lymphoid",
    "adenoma": "normal mucosa, adenocarcinoma",
    "adenocarcinoma": "adenoma, stroma",
    "lymphoid": "normal mucosa, adenocarcinoma",
    "stroma": "muscle, adenocarcinoma",
    "muscle": "stroma, normal mucosa",
}
TABLES = {
    "kvasir": KVASIR,
    "odir": ODIR,
    "odir (paper's names)": PAPER_ODIR,
    "pathmnist": PATHMNIST,
    "synthetic": SYNTHETIC,
}


def table_for(classes: Sequence[str]) -> Table | None:
    """The built-in table whose classes are exactly these, in any order and case; None if there is none."""
    for rows in TABLES.values():
        row_of = {name: row for row, names in enumerate(rows) for name in _fold(names).split("|")}
        placed = [row_of.get(_fold(name), -1) for name in classes]
        if sorted(placed) != list(range(len(rows))):
            continue  # an unknown class, one missing, or one twice
        wrong = [
            [row_of[_fold(name)] for name in names.split(", ") if name] for names in rows.values()
        ]
        return {
            c: tuple(placed.index(other) for other in wrong[row]) for c, row in enumerate(placed)
        }
    return None


def _fold(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").split())


def by_similarity(images: np.ndarray, labels: np.ndarray, num_classes: int, k: int = 2) -> Table:
    """The k classes whose mean image is nearest, for images (n, H, W, channels): a guess at what people would confuse.

    Images are averaged down to 8 x 8 (what remains is colour and coarse layout) and every value is standardised over the set.
    A class without samples, or with nobody to compare, gets () = any other class.
    """
    present = _present(labels, num_classes)
    return _nearest_means(
        [_downsample(images[_spread(rows)]) for rows in present.values()],
        list(present),
        num_classes,
        k,
    )


def by_features(features: np.ndarray, labels: np.ndarray, num_classes: int, k: int = 2) -> Table:
    """The same for features (n, D) of a pretrained network, of all samples: what such a network would confuse."""
    present = _present(labels, num_classes)
    return _nearest_means(
        [np.asarray(features[rows], np.float64) for rows in present.values()],
        list(present),
        num_classes,
        k,
    )


def _present(labels: np.ndarray, num_classes: int) -> dict[int, np.ndarray]:
    """The rows of every class that has any."""
    return {c: np.flatnonzero(labels == c) for c in range(num_classes) if np.any(labels == c)}


def _nearest_means(
    samples: Sequence[np.ndarray], present: Sequence[int], num_classes: int, k: int
) -> Table:
    """From (n_c, D) of each present class: the k others with the nearest mean, every value standardised over the set."""
    scale = np.maximum(np.concatenate(samples).std(axis=0), 1e-9)
    means = np.stack(
        [x.mean(axis=0) / scale for x in samples]
    )  # the common mean would cancel in the distances
    distance = ((means[:, None] - means[None]) ** 2).sum(axis=-1)
    np.fill_diagonal(distance, np.inf)
    nearest = np.argsort(distance, axis=1, kind="stable")[:, : min(k, len(present) - 1)]
    table: Table = dict.fromkeys(range(num_classes), ())
    return table | {
        c: tuple(present[j] for j in row) for c, row in zip(present, nearest, strict=True)
    }


def _spread(rows: np.ndarray, most: int = 200) -> np.ndarray:
    """At most 200 rows, evenly spaced: a class mean needs no more, and large images cost seconds."""
    return rows[np.linspace(0, rows.size - 1, min(rows.size, most)).astype(np.int64)]


def _downsample(images: np.ndarray, size: int = 8, chunk: int = 32) -> np.ndarray:
    """(n, size * size * channels) float64: the mean over each of size x size equal areas, whatever the image size."""
    rows, columns = _area_weights(images.shape[1], size), _area_weights(images.shape[2], size)
    parts = []
    for start in range(0, len(images), chunk):  # a float copy of all images at once would be large
        batch = np.asarray(images[start : start + chunk], dtype=np.float64)
        reduced = np.tensordot(
            np.tensordot(batch, rows, axes=(1, 1)), columns, axes=(1, 1)
        )  # (b, channels, size, size)
        parts.append(reduced.reshape(len(batch), -1))
    return np.concatenate(parts)


def _area_weights(length: int, size: int) -> np.ndarray:
    """(size, length): the share of each pixel in each of `size` equal intervals, rows sum to one."""
    edges = np.linspace(0, length, size + 1)
    pixel = np.arange(length)
    overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    return np.asarray(np.maximum(overlap, 0.0) * size / length)


def from_file(path: Path | str, classes: Sequence[str]) -> Table:
    """A TOML file of  "class" = ["class", ...]  for every class; [] or "any" means any other class. All problems at once."""
    try:
        entries = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            "todo.candidates-1",
            f"candidates {path} cannot be read: {error}",
            fix='a TOML file with lines like  "Ulcer" = ["Pylorus", "Foreign body"]',
        ) from None
    index = {_fold(name): c for c, name in enumerate(classes)}
    table: Table = {}
    problems: list[str] = []
    for name, value in entries.items():
        if _fold(name) not in index:
            problems.append(f"{name!r} is no class of this data{_nearest(name, classes)}")
            continue
        c = index[_fold(name)]
        wrong = [] if value == "any" else value
        if not isinstance(wrong, list) or not all(isinstance(other, str) for other in wrong):
            problems.append(f"{name!r} must be a list of class names, found {value!r}")
            continue
        unknown = [other for other in wrong if _fold(other) not in index]
        problems += [
            f"{name!r} lists {other!r}, no class of this data{_nearest(other, classes)}"
            for other in unknown
        ]
        if any(index.get(_fold(other)) == c for other in wrong):
            problems.append(f"{name!r} lists itself")
        if c in table:
            problems.append(f"{name!r} appears twice (capitals do not count)")
        table[c] = tuple(index[_fold(other)] for other in wrong if _fold(other) in index)
    problems += [f"class {name!r} is missing" for c, name in enumerate(classes) if c not in table]
    if problems:
        raise ConfigError(
            "todo.candidates-2",
            f"candidates {path} has {len(problems)} problems:\n  " + "\n  ".join(problems),
            fix=f"the classes are: {', '.join(classes)}",
        )
    return table


def _nearest(name: str, classes: Sequence[str]) -> str:
    folded = {_fold(c): c for c in classes}
    close = difflib.get_close_matches(_fold(name), folded, n=1)
    return f" (did you mean {folded[close[0]]!r}?)" if close else ""
