"""The class of one eye in OIA-ODIR, from its diagnostic keywords.

Keywords are separated by full-width commas (rarely by plain ones) and not always spelt alike. Every finding that belongs to none of
the seven named classes is "Other"; remarks about the picture are no findings.
"""

from __future__ import annotations

import difflib
import re

CLASSES = ("Normal", "Diabetes", "Glaucoma", "Cataract", "AMD", "Hypertension", "Myopia", "Other")

# a keyword belongs to the first class whose pattern occurs in it; "suspected ..." counts as the disease
_PATTERNS = {
    "Normal": r"\bnormal fundus",
    "Diabetes": r"diabet|proliferative retinopathy",
    "Glaucoma": r"glaucoma",
    "Cataract": r"cataract",
    "AMD": r"age related macular",
    "Hypertension": r"hypertens",
    "Myopia": r"myopi[ac]",
}
# words whose misspellings are recognised: one or two letters off
_WORDS = [
    "normal",
    "fundus",
    "abnormal",
    "diabetic",
    "proliferative",
    "nonproliferative",
    "retinopathy",
    "glaucoma",
    "cataract",
    "macular",
    "hypertensive",
    "pathological",
    "myopia",
    "myopic",
]
_NO_FINDING = {
    "lens dust",
    "low image quality",
    "no fundus image",
    "anterior segment image",
    "image offset",
    "optic disk photographically invisible",
    "optic disc photographically invisible",
}


def class_of_eye(keywords: str) -> str:
    """The first class in the order of the keywords; nothing if they hold no diagnosis."""
    found = (_class_of(keyword) for keyword in re.split(r"[,，;；、]", keywords))
    return next((name for name in found if name), "")


def _class_of(keyword: str) -> str:
    text = " ".join(keyword.casefold().replace("-", " ").split())
    if not text or text in _NO_FINDING:
        return ""
    words = " ".join(_spelt(word) for word in text.split())
    return next((name for name, pattern in _PATTERNS.items() if re.search(pattern, words)), "Other")


def _spelt(word: str) -> str:
    return next(iter(difflib.get_close_matches(word, _WORDS, n=1, cutoff=0.86)), word)
