"""Text in LaTeX."""

from __future__ import annotations

import re

_LATEX_SIGNS = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "*": "$^{*}$",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "—": "---",
    "→": r"$\rightarrow$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≥": r"$\ge$",
    "≤": r"$\le$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "ζ": r"$\zeta$",
    "θ": r"$\theta$",
    "ρ": r"$\rho$",
    "τ": r"$\tau$",
    "₀": "$_0$",
    "₁": "$_1$",
    "…": r"\dots{}",
    "\N{NO-BREAK SPACE}": "~",
    "‖": r"$\|$",
    "²": "$^2$",
}


def escape(text: str) -> str:
    """Text as LaTeX prints it; a character that the default font lacks becomes a question mark."""
    characters = []
    for character in re.sub(r"[ \t\r\n]+", " ", text):
        fallback = character if ord(character) < 0x180 else "?"
        characters.append(_LATEX_SIGNS.get(character, fallback))
    return "".join(characters).replace("$^{*}$$^{*}$", "$^{**}$")
