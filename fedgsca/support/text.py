"""Numbers and lists as text, and the nearest name for a misspelled one."""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence

NBSP = "\N{NO-BREAK SPACE}"
MINUS = "\N{MINUS SIGN}"
DASH = "\N{EN DASH}"  # a value that is missing

# What fold_name removes: spaces, tabs, underscores, and hyphens in their several forms.
_SEPARATORS = frozenset(" \t\n_-\N{NO-BREAK SPACE}\N{HYPHEN}\N{NON-BREAKING HYPHEN}\N{EN DASH}")


# What a terminal obeys instead of showing: control characters, and marks that reverse the writing
# direction or hide text. Surrogates are halves of a character, which no file can contain.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# joins letters in several scripts; harmless
_JOINERS = frozenset("\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}\N{SOFT HYPHEN}")
_SIMILAR = 0.8  # share of the letters that a misspelled word has in common with what was meant
MAX_REASON = 500  # characters of a text that another machine sent


def printable(text: str, keep: str = "\n\t") -> str:
    """Text that a terminal shows and does not obey: without escape sequences and the like.

    Characters in `keep` stay. Half characters become a replacement character.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_printable_character(character, keep) for character in text)


def one_line(text: str, limit: int = MAX_REASON) -> str:
    """Foreign text as one printable line of at most `limit` characters."""
    line = " ".join(printable(text[: 4 * limit].replace("\0", " ")).split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def _printable_character(character: str, keep: str) -> str:
    if character in keep or character in _JOINERS:
        return character
    category = unicodedata.category(character)
    if category == "Cs":
        return "\N{REPLACEMENT CHARACTER}"
    return "" if category in _HIDDEN_CATEGORIES else character


def number(value: float | None, digits: int = 1) -> str:
    """A number with a fixed count of digits after the point: 71.3; a dash if there is none."""
    return DASH if value is None else f"{value:.{digits}f}"


def percent(share: float | None, digits: int = 1, space: str = " ") -> str:
    """A share of 1 as a percentage: 0.204 -> 20.4 %; a dash if there is none."""
    return DASH if share is None else f"{100 * share:.{digits}f}{space}%"


def signed(value: float, digits: int = 1) -> str:
    """A difference with its sign: +0.12, −0.12; a difference that rounds to zero has no sign."""
    text = f"{value:+.{digits}f}".replace("-", MINUS)
    is_zero = float(f"{value:.{digits}f}") == 0
    return text[1:] if is_zero else text


def count(value: int) -> str:
    """A count with separators: 12,345."""
    return f"{value:,d}"


def natural_key(text: str) -> tuple[tuple[str, int], ...]:
    """A key that sorts names by the numbers in them: site-2 before site-10."""
    return tuple((word, int(digits or 0)) for word, digits in re.findall(r"(\D*)(\d*)", text))


def plural(quantity: int, noun: str, nouns: str | None = None) -> str:
    """A count with its noun: 1 site, 1,200 sites. `nouns` is an irregular plural."""
    if quantity == 1:
        return f"1 {noun}"
    return f"{count(quantity)} {nouns or noun + 's'}"


def join_words(words: Sequence[str], conjunction: str = "and") -> str:
    """Words as a list in a sentence: a; a and b; a, b and c. No words give an empty text."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {conjunction} {words[-1]}"


def duration(seconds: float) -> str:
    """A time span: 4.2 s, 48 s, 3 min 20 s, 2 h 5 min; a dash if it is not known."""
    if not math.isfinite(seconds):
        return DASH
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    full = round(seconds)
    if full < 60:
        return f"{full} s"
    if full < 3600:
        return f"{full // 60} min {full % 60} s"
    return f"{full // 3600} h {full % 3600 // 60} min"


def size_text(size: float) -> str:
    """A number of bytes: 812 B, 3.4 MB, 6.0 GB (powers of 1000)."""
    if size < 1000:
        return f"{size:.0f} B"
    value = size / 1000
    for unit in ("KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def slug(text: str, keep: str = "") -> str:
    """The text with only those characters that are safe in a file name: D30/10 -> D30-10.

    `keep` are more characters to leave as they are.
    """
    return re.sub(rf"[^\w.+{re.escape(keep)}-]+", "-", text).strip("-") or "x"


def fold_name(name: str) -> str:
    """A name without the differences people do not see: capitals, spaces, hyphens, underscores.

    For comparing spellings. Two different names can fold to the same text ("HER2" and "HER2-"), so
    look for an exact match first. A name of nothing but such characters stays as it is.
    """
    text = name.casefold()
    letters = [character for character in text if character not in _SEPARATORS]
    return "".join(letters) or text


def suggest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that a misspelled or shortened word most likely meant, or None.

    A candidate must be really similar, because a wrong suggestion misleads: it differs only in
    capitals, spaces and hyphens, it is the only one that begins with the word (2 letters or more),
    nearly all letters are the same, or it is the only one that contains the word (3 or more).
    """
    key = fold_name(word)
    names: dict[str, str] = {}
    for candidate in candidates:
        names.setdefault(fold_name(candidate), candidate)
    completions = [name for name in names if len(key) >= 2 and name.startswith(key)]
    containers = [name for name in names if len(key) >= 3 and key in name]
    nearest = difflib.get_close_matches(key, names, 1, _SIMILAR)
    for matches in ([key] if key in names else [], completions, nearest, containers):
        if len(matches) == 1:
            return names[matches[0]]
    return None


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """The beginning of a fix: "did you mean 'fedavg'? ", or an empty text."""
    suggestion = suggest(word, candidates)
    return "" if suggestion is None else f"did you mean {suggestion!r}? "


def suggestion_note(word: str, candidates: Iterable[str]) -> str:
    """What to append to a misspelled name: " (did you mean 'fedavg'?)", or an empty text."""
    suggestion = suggest(word, candidates)
    return "" if suggestion is None else f" (did you mean {suggestion!r}?)"


def strip_slash(source: str) -> str:
    """A folder is the same with and without a slash at its end; `/` alone stays."""
    return re.sub(r"(?<=[^/:])/+$", "", source)
