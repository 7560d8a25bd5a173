"""Which classes are mistaken for which: the misdiagnosis sets S(y) of CK-asymmetric noise.

Three sources, in this order of trust: a table for known classes (`table_for`), a file
(`from_file`), or, for data nobody has described, the classes that look most alike
(`by_similarity`, `by_features`). All give class index -> candidate indices; () is "any other".
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedgsca.errors import ConfigError, ConfigProblem
from fedgsca.support.text import fold_name, suggestion_note

__all__ = ["KVASIR", "ODIR", "TABLES", "by_features", "by_similarity", "from_file", "table_for"]

Table = dict[int, tuple[int, ...]]

# images per class for a mean: it needs no more, and large images cost seconds
_MAX_IMAGES = 200
# side of the reduced images that are compared
_REDUCED_SIDE = 8
# images that are converted to floating point at a time
_CHUNK = 32


def table_for(classes: Sequence[str]) -> Table | None:
    """The built-in table for exactly these classes, in any order and case; None without one."""
    for rows in TABLES.values():
        table = _match_table(rows, classes)
        if table is not None:
            return table
    return None


def _match_table(rows: Mapping[str, str], classes: Sequence[str]) -> Table | None:
    """A built-in table in the indices of `classes`; None if it has other classes."""
    row_of = {}
    for row, names in enumerate(rows):
        for name in names.split("|"):
            row_of[fold_name(name)] = row
    class_rows = [row_of.get(fold_name(name), -1) for name in classes]
    if sorted(class_rows) != list(range(len(rows))):
        return None  # a class is unknown, missing, or there twice
    candidates = list(rows.values())
    table: Table = {}
    for c, row in enumerate(class_rows):
        wrong = [name for name in candidates[row].split(", ") if name]
        table[c] = tuple(class_rows.index(row_of[fold_name(name)]) for name in wrong)
    return table


def by_similarity(images: np.ndarray, labels: np.ndarray, num_classes: int, k: int = 2) -> Table:
    """The k classes whose mean image is nearest: a guess at what people would confuse.

    Images (n, H, W, channels) are averaged down to 8 x 8, which leaves colour and coarse layout,
    and every value is standardised over the set. A class without samples, or with no other class
    to compare with, gets () = any other class.
    """
    samples = {}
    for c in np.intersect1d(labels, np.arange(num_classes)).tolist():
        rows = np.flatnonzero(labels == c)
        count = min(rows.size, _MAX_IMAGES)
        selection = rows[np.linspace(0, rows.size - 1, count).astype(np.int64)]
        samples[c] = _reduce_images(images[selection])
    return _nearest_means(samples, num_classes, k)


def by_features(features: np.ndarray, labels: np.ndarray, num_classes: int, k: int = 2) -> Table:
    """As `by_similarity`, for features (n, D): the classes that a pretrained network confuses."""
    present = np.intersect1d(labels, np.arange(num_classes)).tolist()
    samples = {c: np.asarray(features[labels == c], np.float64) for c in present}
    return _nearest_means(samples, num_classes, k)


def _nearest_means(samples: Mapping[int, np.ndarray], num_classes: int, k: int) -> Table:
    """The k other classes with the nearest mean, from samples (n_c, D) of each class."""
    scale = np.maximum(np.concatenate(list(samples.values())).std(axis=0), 1e-9)
    # the common mean would cancel in the distances
    means = np.stack([x.mean(axis=0) / scale for x in samples.values()])
    distance = ((means[:, None] - means[None]) ** 2).sum(axis=-1)
    np.fill_diagonal(distance, np.inf)
    nearest = np.argsort(distance, axis=1, kind="stable")[:, : min(k, len(samples) - 1)]
    classes = list(samples)
    table: Table = dict.fromkeys(range(num_classes), ())
    for c, positions in zip(classes, nearest, strict=True):
        table[c] = tuple(classes[position] for position in positions)
    return table


def _reduce_images(images: np.ndarray) -> np.ndarray:
    """(n, 8 * 8 * channels) float64: the mean over each of 8 x 8 equal areas, at any image size."""
    row_weights = _area_weights(images.shape[1])
    column_weights = _area_weights(images.shape[2])
    parts = []
    # a float copy of all images at once would be large
    for start in range(0, len(images), _CHUNK):
        batch = np.asarray(images[start : start + _CHUNK], dtype=np.float64)
        by_rows = np.tensordot(batch, row_weights, axes=(1, 1))
        areas = np.tensordot(by_rows, column_weights, axes=(1, 1))  # (b, channels, 8, 8)
        parts.append(areas.reshape(len(batch), -1))
    return np.concatenate(parts)


def _area_weights(length: int) -> np.ndarray:
    """(8, length): the share of each pixel in each of 8 equal intervals; rows sum to one."""
    size = _REDUCED_SIDE
    edges = np.linspace(0, length, size + 1)
    pixel = np.arange(length)
    overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    return np.asarray(np.maximum(overlap, 0.0) * size / length)


def from_file(path: Path | str, classes: Sequence[str]) -> Table:
    """Candidates from a TOML file with a line `"class" = ["class", ...]` for every class.

    [] or "any" means any other class. All problems are reported at once.
    """
    try:
        entries = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            "noise.unreadable-candidates",
            f"the candidates file {path} cannot be read: {error}",
            fix='give a TOML file with lines like  "Ulcer" = ["Pylorus", "Foreign body"]',
        ) from None
    table: Table = {}
    problems: list[ConfigProblem] = []
    for name, value in entries.items():
        problems += _read_entry(name, value, classes, table)
    for c, name in enumerate(classes):
        if c not in table:
            message = f"class {name!r} has no candidates"
            problems.append(ConfigProblem("noise.missing-class", message))
    if problems:
        raise ConfigError(
            "noise.invalid-candidates-file",
            f"the candidates file {path} has {len(problems)} problem(s):",
            fix=f"list every class once; the classes are: {', '.join(classes)}",
            problems=problems,
        )
    return table


def _read_entry(
    name: str, value: object, classes: Sequence[str], table: Table
) -> list[ConfigProblem]:
    """Add one line of a candidates file to the table; the problems that prevent it."""
    c = _class_index(name, classes)
    labels = [] if value == "any" else value
    if c is None:
        message = f"unknown class {name!r}{suggestion_note(name, classes)}"
        return [ConfigProblem("noise.unknown-class", message)]
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        message = f"the candidates of {name!r} must be a list of class names, got {value!r}"
        return [ConfigProblem("noise.not-a-list", message)]
    problems = []
    if c in table:
        message = f"class {name!r} has more than one line"
        problems.append(ConfigProblem("noise.duplicate-class", message))
    candidates = []
    for label in labels:
        candidate = _class_index(label, classes)
        if candidate is None:
            note = suggestion_note(label, classes)
            message = f"{name!r} lists the unknown class {label!r}{note}"
            problems.append(ConfigProblem("noise.unknown-class", message))
        elif candidate == c:
            problems.append(ConfigProblem("noise.lists-itself", f"{name!r} lists itself"))
        else:
            candidates.append(candidate)
    table[c] = tuple(candidates)
    return problems


def _class_index(name: str, classes: Sequence[str]) -> int | None:
    """The class with this name; capitals, spaces and hyphens count only if two classes need it."""
    if name in classes:
        return list(classes).index(name)
    names = [fold_name(c) for c in classes]
    folded_name = fold_name(name)
    return names.index(folded_name) if folded_name in names else None


# ---- built-in tables: which classes of published data sets are mistaken for which ----
# Each line has the accepted spellings of a class, separated by "|" (the first is its name in this
# table), and the names of its candidates, separated by ", ". No candidates means any other class.


_ANY = ""

# The paper's table for Kvasir-Capsule; its "Mucosal Atrophy" is "Reduced mucosal view" in the data.
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
# The paper's table for OIA-ODIR, read by position N, D, G, C, A, H, M, O. What the paper calls
# "Hypertensive Retinopathy" has the position of diabetes in the data set, so that spelling is
# accepted only in PAPER_ODIR, together with "Hypertension Complications".
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
_PAPER_SPELLINGS = {"D": "D|Hypertensive retinopathy", "H": "H|Hypertension complications"}
PAPER_ODIR = {_PAPER_SPELLINGS.get(names[0], names): wrong for names, wrong in ODIR.items()}
# Colorectal tissue (PathMNIST / NCT-CRC-HE): ours, argued from how the patches look at this
# magnification.
PATHMNIST = {
    # empty fat cells: mostly white, thin septa
    "adipose|ADI": "background, mucus",
    # glass beside fat; pale mucus without texture
    "background|BACK": "adipose, mucus",
    # floats in mucus; "dirty" necrosis fills tumour glands
    "debris|DEB": "mucus, colorectal adenocarcinoma epithelium",
    # the lamina propria is full of them; nuclear dust imitates them
    "lymphocytes|LYM": "normal colon mucosa, debris",
    # holds cell debris; myxoid stroma is as pale and streaky
    "mucus|MUC": "debris, cancer-associated stroma",
    # pink parallel fibres; muscularis mucosae
    "smooth muscle|MUS": "cancer-associated stroma, normal colon mucosa",
    # glands; lymphoid lamina propria
    "normal colon mucosa|NORM": "colorectal adenocarcinoma epithelium, lymphocytes",
    # spindle cells and collagen; necrosis at its border
    "cancer-associated stroma|STR": "smooth muscle, debris",
    # well differentiated glands; necrosis
    "colorectal adenocarcinoma epithelium|TUM": "normal colon mucosa, debris",
}
# The built-in synthetic tissue: neighbours on the way from normal to cancer, and the two fibrous
# tissues.
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
