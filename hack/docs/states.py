"""Draws docs/pictures/trial.svg: the phases of a trial and what leads from one to the next.

Run `python hack/docs/states.py`; tests compare the picture with this file, and its arrows with plan/trial.py. The
picture is one file, in dark and light, with its text for screen readers.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

PICTURE: Final = Path(__file__).resolve().parents[2] / "docs/pictures/trial.svg"
START: Final = "[*]"
#: (from, to, why); [*] is the beginning and the end
EDGES: Final[tuple[tuple[str, str, str], ...]] = (
    (START, "AwaitingApproval", "mode Approve"),
    (START, "Starting", "mode Auto"),
    ("AwaitingApproval", "Starting", "approved"),
    ("Starting", "WarmingUp", "rollout paused, canary ready"),
    ("WarmingUp", "Measuring", "warmed up and settled"),
    ("Measuring", "Measuring", "samples were lost, at most twice"),
    ("Measuring", "Confirming", "Better"),
    ("Measuring", "Promoting", "Better, and confirmationSeconds is 0"),
    ("Confirming", "Measuring", "samples were lost"),
    ("Confirming", "Promoting", "Better again"),
    ("Promoting", "Verifying", "every pod runs it"),
    ("Verifying", "Promoted", "verificationSeconds are over"),
    ("Starting", "RollingBack", "crash, deadline"),
    ("WarmingUp", "RollingBack", "guardrail"),
    ("Measuring", "RollingBack", "guardrail, or not Better"),
    ("Confirming", "RollingBack", "guardrail, or not again"),
    ("Promoting", "RollingBack", "crash, deadline"),
    ("Verifying", "RollingBack", "guardrail"),
    ("RollingBack", "RolledBack", "the baseline is back"),
    ("AwaitingApproval", "Cancelled", "rejected, suspended"),
    ("Starting", "Cancelled", "target gone or changed"),
    ("WarmingUp", "Cancelled", "target gone"),
    ("Measuring", "Cancelled", "target gone"),
    ("Confirming", "Cancelled", "target gone"),
    ("Promoting", "Cancelled", "target gone"),
    ("Verifying", "Cancelled", "target gone or changed"),
    ("RollingBack", "Cancelled", "target gone or changed"),
    ("Promoted", START, ""),
    ("RolledBack", START, ""),
    ("Cancelled", START, ""),
)
_MAIN: Final = (
    "AwaitingApproval", "Starting", "WarmingUp", "Measuring", "Confirming", "Promoting", "Verifying", "Promoted",
)  # fmt: skip
_WIDTH, _HEIGHT = 800, 700
_TOP, _STEP, _X = 76, 74, 330
_BOX_WIDTH, _BOX_HEIGHT = 170, 36
_RIGHT, _BUS_RIGHT, _LEFT, _BUS_LEFT = 690, 590, 90, 196
#: centre of each box
PLACES: Final[dict[str, tuple[int, int]]] = {
    **{name: (_X, _TOP + _STEP * i) for i, name in enumerate(_MAIN)},
    "RollingBack": (_RIGHT, _TOP + _STEP * 4), "RolledBack": (_RIGHT, _TOP + _STEP * 7),
    "Cancelled": (_LEFT, _TOP + _STEP * 7),
}  # fmt: skip
_STYLE: Final = """
.card{fill:#fff;stroke:#d0d7de}.box{fill:#f3f6f8;stroke:#57606a}.good{fill:#dff3e6;stroke:#1a7f37}
.bad{fill:#fdeceb;stroke:#c0392b}.end{fill:#eef0f2;stroke:#57606a}text{fill:#1f2328;font:13px sans-serif}
.why{font-size:12px;fill:#3d444d}.name{font-weight:600}.line{stroke:#57606a;fill:none;stroke-width:1.5}
.back{stroke:#c0392b;fill:none;stroke-width:1.5}.gone{stroke:#6e7781;fill:none;stroke-width:1.2;stroke-dasharray:4 4}
@media(prefers-color-scheme:dark){.card{fill:#1b2026;stroke:#3d444d}.box{fill:#262c36;stroke:#9198a1}
.good{fill:#12331f;stroke:#3fb950}.bad{fill:#3c1a18;stroke:#f85149}.end{fill:#2a313c;stroke:#9198a1}
text{fill:#f0f6fc}.why{fill:#c9d1d9}.line{stroke:#9198a1}.back{stroke:#f85149}.gone{stroke:#9198a1}
.tip{fill:#9198a1}.red{fill:#f85149}}
"""


def svg() -> str:
    """The picture."""
    words = "; ".join(f"{a} to {b}: {why}" for a, b, why in EDGES if START not in (a, b))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-labelledby="t d">\n<title id="t">Phases of a trial</title>\n<desc id="d">{escape(words)}</desc>\n'
        f"<style>{_STYLE}</style>\n<defs>{_tip('tip', '#57606a')}{_tip('red', '#c0392b')}</defs>\n"
        f'<rect class="card" x="1" y="1" width="{_WIDTH - 2}" height="{_HEIGHT - 2}" rx="8"/>'
    )
    parts = [head, *_begin(), *_down(), *_back(), *_gone(), *_loops(), *(_box(name) for name in PLACES)]
    return "\n".join([*parts, "</svg>", ""])


def _tip(name: str, colour: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path class="{name}" fill="{colour}" d="M0 0L8 4L0 8z"/></marker>'
    )


def _why(start: str, to: str) -> str:
    return next(why for a, b, why in EDGES if (a, b) == (start, to))


def _text(x: float, y: float, text: str, kind: str = "why", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(path: str, kind: str = "line", tip: str = "tip") -> str:
    mark = f' marker-end="url(#{tip})"' if tip else ""
    return f'<path class="{kind}" d="{path}"{mark}/>'


def _box(name: str) -> str:
    x, y = PLACES[name]
    kind = {"Promoted": "good", "RolledBack": "end", "Cancelled": "end", "RollingBack": "bad"}.get(name, "box")
    width = _BOX_WIDTH if name in _MAIN else 130
    return (
        f'<rect class="{kind}" x="{x - width // 2}" y="{y - _BOX_HEIGHT // 2}" width="{width}" height="{_BOX_HEIGHT}" '
        f'rx="{_BOX_HEIGHT // 2 if kind in ("good", "end") else 6}"/>' + _text(x, y + 5, name, "name", "middle")
    )


def _begin() -> list[str]:
    """The two ways in."""
    x, y = PLACES["AwaitingApproval"]
    _, second = PLACES["Starting"]
    left = x - _BOX_WIDTH // 2
    return [
        f'<circle cx="{x}" cy="22" r="6" class="tip" fill="#57606a"/>',
        _line(f"M{x} 28V{y - _BOX_HEIGHT // 2}"),
        _text(x + 10, 46, _why(START, "AwaitingApproval")),
        _line(f"M{x - 6} 22H{left - 24}V{second - 8}H{left}"),
        _text(left - 16, 40, _why(START, "Starting")),
    ]


def _down() -> list[str]:
    """The way that everything goes well."""
    out: list[str] = []
    for start, to in pairwise(_MAIN):
        (x, y), (_, below) = PLACES[start], PLACES[to]
        out.append(_line(f"M{x} {y + _BOX_HEIGHT // 2}V{below - _BOX_HEIGHT // 2}"))
        out.append(_text(x + 10, (y + below) / 2 + 4, _why(start, to)))
    x, y = PLACES["RollingBack"]
    out.append(_line(f"M{x} {y + _BOX_HEIGHT // 2}V{PLACES['RolledBack'][1] - _BOX_HEIGHT // 2}", "back", "red"))
    out.append(_text(x - 8, y + _STEP * 2.5, _why("RollingBack", "RolledBack"), anchor="end"))
    return out


def _back() -> list[str]:
    """To RollingBack, by one rail."""
    starts = [a for a, b, _ in EDGES if b == "RollingBack"]
    ys = [PLACES[name][1] for name in starts]
    x, y = PLACES["RollingBack"]
    out = [_line(f"M{_BUS_RIGHT} {min(ys)}V{max(ys)}", "back", ""), _line(f"M{_BUS_RIGHT} {y}H{x - 65}", "back", "red")]
    for name, at in zip(starts, ys, strict=True):
        out.append(_line(f"M{_X + _BOX_WIDTH // 2} {at}H{_BUS_RIGHT}", "back", ""))
        out.append(_text(_X + _BOX_WIDTH // 2 + 10, at - 6, _why(name, "RollingBack")))
    return out


def _gone() -> list[str]:
    """To Cancelled, by one rail, and around the bottom."""
    starts = [a for a, b, _ in EDGES if b == "Cancelled" and a in _MAIN]
    ys = [PLACES[name][1] for name in starts]
    x, y = PLACES["Cancelled"]
    rx, ry = PLACES["RollingBack"]
    out = [_line(f"M{_BUS_LEFT} {min(ys)}V{y}H{x + 65}", "gone")]
    out += [_line(f"M{_X - _BOX_WIDTH // 2} {at}H{_BUS_LEFT}", "gone", "") for at in ys]
    out.append(_line(f"M{rx + 50} {ry + _BOX_HEIGHT // 2}V{_HEIGHT - 40}H{x}V{y + _BOX_HEIGHT // 2}", "gone"))
    out.append(
        _text(_BUS_LEFT - 8, PLACES["AwaitingApproval"][1] + 5, _why("AwaitingApproval", "Cancelled"), anchor="end")
    )
    out.append(_text(_BUS_LEFT - 8, PLACES["Starting"][1] + 5, "later: the target is", anchor="end"))
    out.append(_text(_BUS_LEFT - 8, PLACES["Starting"][1] + 21, "gone or changed", anchor="end"))
    out.append(_text(_WIDTH / 2 + 60, _HEIGHT - 46, _why("RollingBack", "Cancelled")))
    return out


def _loops() -> list[str]:
    """The arrows that have no room for words, numbered, with the words below."""
    (x, y), (_, confirming), (_, promoting) = (PLACES[n] for n in ("Measuring", "Confirming", "Promoting"))
    left = x - _BOX_WIDTH // 2
    pairs = (("Measuring", "Measuring"), ("Confirming", "Measuring"), ("Measuring", "Promoting"))
    notes = " · ".join(f"{n}: {_why(*pair)}" for n, pair in enumerate(pairs, 1))
    return [
        _line(f"M{left + 20} {y - 18}C{left + 10} {y - 48} {left + 60} {y - 48} {left + 50} {y - 18}"),
        _text(left + 22, y - 42, "1"),
        _line(f"M{x - 40} {confirming - 18}V{y + 18}"),
        _text(x - 56, (y + confirming) / 2 + 4, "2"),
        _line(f"M{left} {y + 8}C{left - 34} {y + 30} {left - 34} {promoting - 30} {left} {promoting - 8}"),
        _text(left - 40, confirming - 26, "3"),
        _text(_WIDTH / 2, _HEIGHT - 14, notes, anchor="middle"),
    ]


if __name__ == "__main__":
    PICTURE.write_text(svg())
