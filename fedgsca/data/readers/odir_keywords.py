"""The class of one eye in OIA-ODIR, from its diagnostic keywords.

Keywords are separated by full-width commas (rarely by plain ones), and their spelling varies. Every
finding outside the seven named classes is "Other"; remarks about the picture are not findings.
"""

from __future__ import annotations

import difflib
import re

CLASSES = ("Normal", "Diabetes", "Glaucoma", "Cataract", "AMD", "Hypertension", "Myopia", "Other")

# A keyword belongs to the first class whose pattern occurs in it; "suspected ..." counts as the
# disease.
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
    """The first class in the order of the keywords; an empty text if there is no diagnosis."""
    for keyword in re.split(r"[,，;；、]", keywords):
        name = _class_of(keyword)
        if name:
            return name
    return ""


def _class_of(keyword: str) -> str:
    text = " ".join(keyword.casefold().replace("-", " ").split())
    if not text or text in _NO_FINDING:
        return ""
    words = " ".join(_correct_spelling(word) for word in text.split())
    for name, pattern in _PATTERNS.items():
        if re.search(pattern, words):
            return name
    return "Other"


def _correct_spelling(word: str) -> str:
    # a fixed cut-off, not support.text.suggest: the labels of a data set must never change
    matches = difflib.get_close_matches(word, _WORDS, n=1, cutoff=0.86)
    return matches[0] if matches else word
