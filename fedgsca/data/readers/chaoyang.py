"""Chaoyang: patches of colon slides, `<root>/train.json` and `test.json` with entries {"name": "train/<slide>-IMG...-1.JPG", "label": 1}.

A list of the training images with label_A, label_B and label_C tells what each of three pathologists said. The label that a site
trains on is then one of

    drawn      what one pathologist, drawn for every image with the experiment's seed, said; the majority is the reference
    released   the label in train.json; nothing is known about its errors
    majority   what two of three said

The digit at the end of a file's name is the released label: ids are made without it, so that nothing can read it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from fedgsca.data.file_list import Branch, Listing, Row
from fedgsca.data.readers.published import drop_missing, images_in, lists_folder, open_root
from fedgsca.errors import DataError
from fedgsca.rng import stream

if TYPE_CHECKING:
    from fedgsca.data.load import Options

CLASSES = ("normal", "serrated", "adenocarcinoma", "adenoma")
PUBLISHED = {"train": (1111, 842, 1404, 664), "test": (705, 321, 840, 273)}  # by the released label
VOICES = ("label_A", "label_B", "label_C")
_WANTED = "train.json, test.json and the folders train and test"


@dataclass(frozen=True)
class Entry:
    name: str
    label: int | None
    voices: tuple[int, ...] = ()  # of the three pathologists, or nothing

    def majority(self) -> int | None:
        """What two of three said; the released label where all differ."""
        label, count = Counter(self.voices).most_common(1)[0]
        return label if count > 1 else self.label


def list_chaoyang(root: Path, options: Options) -> Listing:
    """One row per patch; problems are inside, not raised."""
    listing = Listing(
        root, source=f"chaoyang:{root}", name="chaoyang", classes=CLASSES, group_word="slide"
    )
    listing.columns = ("file", "label", "group", "split")
    try:
        open_root(root, listing.source, lambda place: _fits(place, options.splits), _WANTED)
        places = [options.splits] if options.splits else [root, root / "json"]
        folder = lists_folder(places, lambda place: any(place.glob("*.json")))
        if folder is None:
            raise DataError(
                "todo.chaoyang-1",
                f"no .json file in {' or '.join(map(str, places))}",
                fix="copy train.json and test.json there",
            )
        train, test = _training(listing, folder), _entries(listing, folder / "test.json")
        listing.rows = [
            Row(e.name, CLASSES[e.label], _slide(e.name), "test")
            for e in test
            if e.label is not None
        ]
        listing.rows = _label(listing, train, options) + listing.rows
        _finish(listing, options)
    except DataError as error:
        listing.stopped(error)
    return listing


def _fits(root: Path, lists: Path | None) -> bool:
    has_lists = lists is not None or any(
        (root / place).is_file() for place in ("train.json", "json/train.json", "test.json")
    )
    return has_lists and ((root / "train").is_dir() or (root / "test").is_dir())


def _slide(name: str) -> str:
    return PurePosixPath(name).name.partition("-IMG")[0]


# ---- the lists ----


def _training(listing: Listing, folder: Path) -> list[Entry]:
    """train.json, joined with the pathologists' labels from whichever list has them."""
    other = [p for p in sorted(folder.glob("*.json")) if p.name not in ("train.json", "test.json")]
    lists = {
        p: _entries(listing, p)
        for p in [folder / "train.json", *other]
        if p in other or p.is_file()
    }
    lists = {
        p: entries
        for p, entries in lists.items()
        if p.name == "train.json" or any(e.voices for e in entries)
    }
    heard = {e.name: e.voices for entries in lists.values() for e in entries if e.voices}
    base = lists.get(folder / "train.json") or next(iter(lists.values()), [])
    if not base:
        raise DataError(
            "todo.chaoyang-2",
            f"{folder / 'train.json'} does not exist or is empty",
            fix="copy the published train.json there",
        )
    listing.lists[:0] = list(lists)
    strange = sorted(set(heard) - {e.name for e in base})
    listing.problem(
        "images with pathologists' labels are not in train.json",
        strange,
        "copy both lists from the same release",
    )
    return [replace(e, voices=heard.get(e.name, ())) for e in base]


def _entries(listing: Listing, path: Path) -> list[Entry]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise DataError(
            "todo.chaoyang-3", f"{path} does not exist", fix=f"copy the published {path.name} there"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(
            "todo.chaoyang-4",
            f"{path} cannot be read: {error}",
            fix=f"copy the published {path.name} again",
        ) from None
    if not isinstance(content, list) or not all(
        isinstance(item, dict) and "name" in item for item in content
    ):
        raise DataError(
            "todo.chaoyang-5",
            f"{path} is not a list of images",
            fix='entries look like {"name": "train/x-IMG001x001-0.JPG", "label": 0}',
        )
    if path.name == "test.json":
        listing.lists.append(path)
    odd = [
        f"{item['name']}: {item}"
        for item in content
        if not all(_number(item.get(k)) for k in _keys(item))
    ]
    listing.problem(
        f"entries of {path.name} whose label is not 0, 1, 2 or 3",
        odd,
        f"copy the published {path.name} again",
    )
    good = [item for item in content if all(_number(item.get(key)) for key in _keys(item))]
    return [_entry(item) for item in good]


def _keys(item: Mapping[str, Any]) -> list[str]:
    return [key for key in ("label", *VOICES) if key in item] or ["label"]


def _number(value: object) -> bool:
    return isinstance(value, int | str) and str(value) in {"0", "1", "2", "3"}


def _entry(item: Mapping[str, Any]) -> Entry:
    voices = tuple(int(item[key]) for key in VOICES) if all(key in item for key in VOICES) else ()
    name = str(PurePosixPath(str(item["name"]).replace("\\", "/")))
    return Entry(name, int(item["label"]) if "label" in item else None, voices)


# ---- which label ----


def _label(listing: Listing, train: list[Entry], options: Options) -> list[Row]:
    """Rows of the training images with the label that was asked for."""
    complete = all(e.voices for e in train)
    rule = options.label or ("drawn" if complete else "released")
    if rule != "released" and not complete:
        lacking = sum(not e.voices for e in train)
        raise DataError(
            "todo.chaoyang-6",
            f"{lacking} of {len(train)} training images have no labels of three pathologists ({', '.join(VOICES)})",
            fix="put the list that has them beside train.json, or --set data.label=released",
        )
    labels = [e.label if rule == "released" else e.majority() for e in train]
    unknown = [e.name for e, label in zip(train, labels, strict=True) if label is None]
    listing.problem(
        "training images without a label", unknown, "copy the published train.json there"
    )
    rows = [
        Row(e.name, CLASSES[label], _slide(e.name), "train")
        for e, label in zip(train, labels, strict=True)
        if label is not None
    ]
    if rule == "drawn":
        rows = _draw(listing, rows, {e.name: e.voices for e in train}, options.seed)
    elif rule == "majority":
        listing.notes.append(f"label majority: two of three pathologists; {_split_votes(train)}")
    else:
        listing.notes.append(
            "label released: the one in train.json; how many of them are wrong is not known"
        )
    listing.published = {s: {"all": sum(n)} for s, n in PUBLISHED.items()}
    listing.published["test"] |= dict(zip(CLASSES, PUBLISHED["test"], strict=True))
    if rule == "released":
        listing.published["train"] |= dict(zip(CLASSES, PUBLISHED["train"], strict=True))
    return rows


def _draw(
    listing: Listing, rows: list[Row], voices: Mapping[str, tuple[int, ...]], seed: int
) -> list[Row]:
    """One voice per image. Drawn in the order of names, so that the order of the list does not matter."""
    names = sorted(row.file for row in rows)
    picks = stream(seed, "chaoyang", "pathologist").integers(len(VOICES), size=len(names))
    given = {
        name: CLASSES[voices[name][pick]] for name, pick in zip(names, picks.tolist(), strict=True)
    }
    listing.columns += ("given",)
    rows = [replace(row, given=given[row.file]) for row in rows]
    differ = sum(row.given != row.label for row in rows)
    listing.notes.append(
        f"label drawn: one pathologist per image, seed {seed}; {differ} of {len(rows)} differ from the majority of three, which is the "
        "reference for numbers about labels, not a proven truth"
    )
    return rows


def _split_votes(train: list[Entry]) -> str:
    split = sum(len(set(e.voices)) == len(VOICES) for e in train)
    return f"{split} images where all three differ have the released label"


# ---- files ----


def _finish(listing: Listing, options: Options) -> None:
    """Ids without the digit that gives the label away; missing images."""
    have = {folder: images_in(listing.root / folder) for folder in ("train", "test")}
    listing.tree = [
        Branch(f"{f}/", len(names), sum(PUBLISHED[f]))
        for f, names in have.items()
        if (listing.root / f).is_dir()
    ]
    odd = [
        row.file
        for row in listing.rows
        if row.file.partition("/")[0] not in have or ".." in row.file
    ]
    listing.problem(
        "names outside the folders train and test",
        odd,
        "names in the lists look like train/x-IMG001x001-0.JPG",
    )
    twice = [name for name, count in Counter(row.file for row in listing.rows).items() if count > 1]
    listing.problem("images are listed more than once", twice, "copy the published lists again")
    bare = [re.sub(r"-\d\.\w+$", "", row.file) for row in listing.rows]
    counts: Counter[str] = Counter()
    named = []
    for row, name in zip(listing.rows, bare, strict=True):
        counts[name] += 1
        named.append(
            replace(
                row,
                name=name if counts[name] == 1 else f"{name}#{counts[name]}",
                given=row.given or row.label,
            )
        )
    listing.rows = named
    drop_missing(
        listing, {folder: set(names) for folder, names in have.items()}, options.skip_unreadable
    )
