"""A matplotlib figure as a small inline SVG whose colours are decided by the page.

Text stays text: it can be selected and searched. One unit is one CSS pixel.
"""

from __future__ import annotations

import re
from io import StringIO
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from fedgsca.lab.report.palette import TOKENS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# parts of matplotlib's SVG that a page does not need
_SUPERFLUOUS_TAGS = ("metadata", "style")
_COORDINATES = ("d", "x", "y", "transform")
_TOKEN_OF_COLOUR = {colour: token for token, colour in TOKENS.items()}
_HEX_COLOUR = re.compile("#[0-9a-f]{6}")
_DECIMALS = re.compile(r"(\.\d)\d+")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def figure_svg(figure: Figure, name: str) -> str:
    """The figure as an <svg> element: no header, no fixed size, no address of another file.

    `name` must be unique within the page, because the ids of the drawing are derived from it.
    """
    import matplotlib as mpl

    text = StringIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata=no_metadata)
    return _simplify(text.getvalue())


def standalone_svg(drawing: str) -> str:
    """An inline drawing as a file of its own: light colours, a typeface, white behind it."""
    for token, colour in TOKENS.items():
        drawing = drawing.replace(f"var(--{token})", colour)
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        ' font-family="DejaVu Sans, Verdana, Arial, sans-serif"'
    )
    start, _, content = drawing.partition(">")
    background = '<rect width="100%" height="100%" fill="#ffffff"/>'
    text = start.replace("<svg", head, 1) + ">" + background + content
    return text.replace(" href=", " xlink:href=") + "\n"


def _simplify(drawing: str) -> str:
    root = ElementTree.fromstring(drawing)
    for element in root.iter():
        _remove_namespaces(element)
    for element in root.iter():
        _remove_superfluous_children(element)
        _remove_indentation(element)
    references = _find_references(root)
    for element in root.iter():
        _simplify_attributes(element, references)
    _set_head(root)
    return ElementTree.tostring(root, encoding="unicode")


def _remove_namespaces(element: ElementTree.Element) -> None:
    """Plain names: within a page of HTML, SVG needs no namespace."""
    element.tag = _local_name(element.tag)
    element.attrib = {_local_name(name): value for name, value in element.attrib.items()}


def _local_name(name: str) -> str:
    return name.rpartition("}")[2]


def _remove_superfluous_children(element: ElementTree.Element) -> None:
    for child in list(element):
        if child.tag in _SUPERFLUOUS_TAGS or _is_invisible(child):
            element.remove(child)


def _is_invisible(element: ElementTree.Element) -> bool:
    """The backgrounds of the figure and of its axes, which have neither a fill nor a stroke."""
    return element.tag == "path" and element.attrib.get("style") == "fill: none"


def _remove_indentation(element: ElementTree.Element) -> None:
    """Line breaks between elements; the text of an element stays."""
    if element.text is not None and not element.text.strip():
        element.text = None
    element.tail = None


def _find_references(root: ElementTree.Element) -> set[str]:
    """The ids to which an element of the drawing refers."""
    references = set()
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "href":
                references.add(value.removeprefix("#"))
            references.update(_REFERENCE.findall(value))
    return references


def _simplify_attributes(element: ElementTree.Element, references: set[str]) -> None:
    if element.attrib.get("id") not in references:
        element.attrib.pop("id", None)
    for name, value in element.attrib.items():
        if name in _COORDINATES:
            element.attrib[name] = " ".join(_DECIMALS.sub(r"\1", value).split())
        elif name == "style":
            element.attrib[name] = _simplify_style(value)


def _simplify_style(style: str) -> str:
    """Tokens instead of colours, and the typeface of the page.

    DejaVu, which matplotlib used for measuring the text, is wider than almost all other typefaces,
    so that nothing overflows.
    """
    declarations = []
    for declaration in style.split(";"):
        if declaration.strip() and not declaration.strip().startswith("font-family:"):
            declarations.append(_HEX_COLOUR.sub(_to_token, declaration.strip()))
    return "; ".join(declarations)


def _to_token(match: re.Match[str]) -> str:
    token = _TOKEN_OF_COLOUR.get(match.group())
    return match.group() if token is None else f"var(--{token})"


def _set_head(root: ElementTree.Element) -> None:
    """The size in units, from which the browser takes the proportions, and a maximal width."""
    view_box = root.attrib["viewBox"]
    width = float(view_box.split()[2])
    root.attrib = {
        "viewBox": view_box,
        "style": f"max-width:{1.2 * width:.0f}px",
        "aria-hidden": "true",
    }
