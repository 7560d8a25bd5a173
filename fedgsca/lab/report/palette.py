"""Colours and dashes of all plots.

Every colour is a token of templates/style.css. matplotlib draws with its light value; svg_output
replaces that value by var(--token), so that one drawing serves light, dark and print.

A method has a slot: a colour and a dash that are the same in every plot. Slots are assigned
automatically, also to methods of other packages; only the methods of the paper have fixed ones.
"""

from __future__ import annotations

from zlib import crc32

from fedgsca.lab.table import LegendEntry

# Light values, each unique because it identifies its token in a drawing. Dark ones: style.css.
TOKENS = {
    "ink": "#1a2531",
    "muted": "#586474",
    "grid": "#e2e7ed",
    "paper": "#ffffff",
    "shade": "#eef2f6",
    "clean": "#0f6cb4",
    "noisy": "#d35f0b",
    "s0": "#0a5fa5",
    "s1": "#77818d",
    "s2": "#c58700",
    "s3": "#0a7a50",
    "s4": "#c2246e",
    "s5": "#3f9fd1",
    "s6": "#8f2a14",
    "s7": "#43216b",
}
INK = TOKENS["ink"]
GREY = TOKENS["muted"]
GRID = TOKENS["grid"]
PAPER = TOKENS["paper"]
SHADE = TOKENS["shade"]
CLEAN = TOKENS["clean"]
NOISY = TOKENS["noisy"]
MAIN = TOKENS["s0"]

# The colours s0 to s7 differ in lightness as well, so that colour-blind readers can distinguish
# them (CIELAB distance >= 9 in simulation), and contrast with the page by 3:1.
NUM_COLOURS = 8
DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (6, 2),
    (1.5, 1.8),
    (6, 2, 1.5, 2),
    (3, 1.5),
    (8, 2, 1.5, 2, 1.5, 2),
    (4, 3),
    (10, 3),
)

# The methods of the paper keep their colours: blue is FedGSCA, grey is the baseline. A method that
# is not named here needs no entry.
_FIXED_SLOTS = {
    "fedgsca": 0,
    "fedavg": 1,
    "fedprox": 2,
    "fedcorr": 3,
    "fednoro": 4,
    "fedgp": 5,
    "fedrobust": 6,
    "fedfixer": 7,
}


def method_slot(method: str) -> int:
    """The slot of a method, the same in every plot.

    Other registered methods follow those of the paper, in table order. A method that is not
    installed gets a slot from its name.
    """
    name = method.lower()
    if name in _FIXED_SLOTS:
        return _FIXED_SLOTS[name]
    other_methods = _other_methods()
    if name in other_methods:
        return NUM_COLOURS + other_methods.index(name)
    return NUM_COLOURS + len(other_methods) + crc32(name.encode()) % NUM_COLOURS


def _other_methods() -> list[str]:
    """Registered methods without a fixed slot, in table order."""
    from fedgsca.methods.base import load_methods

    return [name for name in load_methods() if name not in _FIXED_SLOTS]


def slot_token(slot: int) -> str:
    """The colour of a slot, as a token of style.css."""
    return f"s{slot % NUM_COLOURS}"


def slot_colour(slot: int) -> str:
    """The colour of a slot, as its light value."""
    return TOKENS[slot_token(slot)]


def slot_dashes(slot: int) -> tuple[float, ...]:
    """The dash pattern of a slot. When colours repeat, the patterns are shifted by one."""
    return DASHES[(slot + slot // NUM_COLOURS) % len(DASHES)]


def slot_line_style(slot: int) -> tuple[int, tuple[float, ...] | None]:
    """The dash pattern of a slot as a line style of matplotlib."""
    return (0, slot_dashes(slot) or None)


def method_entry(method: str, label: str) -> LegendEntry:
    """A method in a legend or a table, with its colour and dash."""
    slot = method_slot(method)
    return LegendEntry(label, slot_token(slot), "line", slot_dashes(slot))
