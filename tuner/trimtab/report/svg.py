"""Matplotlib's figures as SVG that takes the page's colours: dark and light are one picture.

Colours are drawn as stand-ins and written as CSS variables, so `prefers-color-scheme` and print reach into the picture.
Ids are made unique by picture, as a page holds several.
"""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: role -> stand-in; no other colour may be drawn. page.css gives each variable a value for light and for dark
INK: Final = {
    "text": "#010101", "muted": "#020202", "grid": "#030303", "canary": "#040404", "control": "#050505",
    "better": "#060606", "worse": "#070707", "same": "#080808", "limit": "#090909", "bar": "#0a0a0a",
}  # fmt: skip
STYLE: Final[dict[str, Any]] = {
    "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "axes.titlesize": 10.5, "axes.titlelocation": "left", "legend.frameon": False, "svg.fonttype": "none",
    "svg.hashsalt": "trimtab", "text.parse_math": False, "axes.titleweight": "bold", "legend.fontsize": 9,
    "text.color": INK["text"], "axes.labelcolor": INK["muted"], "axes.titlecolor": INK["text"],
    "xtick.color": INK["muted"], "ytick.color": INK["muted"], "xtick.labelcolor": INK["muted"],
    "ytick.labelcolor": INK["text"], "axes.edgecolor": INK["muted"], "grid.color": INK["grid"],
    "legend.labelcolor": INK["text"], "xtick.labelsize": 9, "ytick.labelsize": 9,
}  # fmt: skip
#: pixels per unit at most: a picture that is narrower than the column keeps its size, else its letters would grow
_LARGEST: Final = 1.15
_NO_METADATA: Final = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_FONT: Final = re.compile(r"font(-family)?:([^;\"]*)'DejaVu Sans'[^;\"]*")


def inline(figure: Figure, name: str, alt: str) -> str:
    """The figure as an <svg> element for a page. `name`: a prefix of ids, letters only. `alt`: for screen readers."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=_NO_METADATA, transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(url\(#|href="#)', rf"\1{name}-", text)
    text = _FONT.sub(r"font\1:\2inherit-font", text)
    for role, colour in INK.items():
        text = text.replace(colour, f"var(--{role})")
    return re.sub(r"<svg [^>]*>", lambda m: _head(m.group(), alt), text, count=1)


def _head(tag: str, alt: str) -> str:
    box = re.search(r'viewBox="[^"]*"', tag)
    assert box is not None  # matplotlib writes one
    label = html.escape(alt, quote=True)
    width = float(box.group().split()[2])
    links = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f'<svg {box.group()} role="img" aria-label="{label}" style="max-width:{width * _LARGEST:.0f}px" {links}>'
