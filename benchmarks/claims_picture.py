"""Line charts as SVG, by hand: no plotting library is worth a dependency for three of them."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

from claims_base import Picture

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 48, 56
#: told apart by people who see no red or green (Okabe and Ito), and by their marks
COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7")
LEGEND_LINE = 18


def svg(picture: Picture) -> str:
    """A white picture with its legend below the title; bars are 95% intervals."""
    low, high = _range(picture)
    top = TOP + LEGEND_LINE * len(picture.lines)
    x_low, x_high = min(picture.x), max(picture.x)

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        return round(across, 1), round(HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - BOTTOM - top), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        _text(LEFT, 24, picture.title, "start", 16),
    ]
    for y in _ticks(low, high):
        _, down = place(x_low, y)
        parts.append(f'<path d="M{LEFT} {down}H{WIDTH - RIGHT}" stroke="{"#777" if y == 0 else "#ddd"}"/>')
        parts.append(_text(LEFT - 8, down + 4, f"{y:g}", "end"))
    shown = _spaced(picture.x, (x_high - x_low) * 36 / (WIDTH - LEFT - RIGHT))
    parts += [_text(place(x, low)[0], HEIGHT - BOTTOM + 20, f"{x:g}", "middle") for x in shown]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, picture.x_label, "middle"))
    middle = (top + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text transform="translate(18 {middle}) rotate(-90)" text-anchor="middle">{escape(picture.y_label)}</text>'
    )
    for n, (name, values, halves) in enumerate(picture.lines):
        colour = COLOURS[n % len(COLOURS)]
        points = [place(x, y) for x, y in zip(picture.x, values, strict=True)]
        down = TOP + LEGEND_LINE * n
        parts.append(f'<path d="M{LEFT} {down - 4}h24" stroke="{colour}" stroke-width="2"/>')
        parts += [_mark(n, LEFT + 12, down - 4, colour), _text(LEFT + 32, down, name, "start")]
        parts.append(
            f'<path d="M{" L".join(f"{a} {b}" for a, b in points)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        for x, y, half in zip(picture.x, values, halves, strict=False):
            (across, bottom), (_, over) = place(x, y - half), place(x, y + half)
            parts.append(f'<path d="M{across} {bottom}V{over}" stroke="{colour}"/>')
        parts += [_mark(n, a, b, colour) for a, b in points]
    return "\n".join([*parts, "</svg>", ""])


def _range(picture: Picture) -> tuple[float, float]:
    values = [v for _, line, _ in picture.lines for v in line]
    low, high = min(0.0, *values), max(0.0, *values)
    room = 0.05 * (high - low or 1.0)
    return (low - room if low < 0 else 0.0), (high + room if high > 0 else 0.0)


def _ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / 6
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= raw)
    return [round(step * k, 10) for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _spaced(values: tuple[float, ...], least: float) -> list[float]:
    """Those with room for a number between them."""
    kept: list[float] = []
    for value in sorted(values):
        if not kept or value - kept[-1] >= least:
            kept.append(value)
    return kept


def _text(x: float, y: float, words: str, anchor: str, size: int = 13) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'


def _mark(n: int, x: float, y: float, colour: str) -> str:
    shapes = (
        f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>',
        f'<rect x="{x - 4}" y="{y - 4}" width="8" height="8" fill="{colour}"/>',
        f'<path d="M{x} {y - 5}l5 9h-10z" fill="{colour}"/>',
        f'<path d="M{x} {y - 5}l5 5l-5 5l-5 -5z" fill="{colour}"/>',
    )
    return shapes[n % len(shapes)]
