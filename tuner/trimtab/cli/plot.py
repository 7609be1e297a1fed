"""Pictures of simulated runs, by matplotlib (an extra: it is not imported unless a picture is asked for).

SVG and PNG as matplotlib writes them, HTML as one file with the SVG in it: nothing is loaded from elsewhere.
"""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from trimtab.errors import InputError
from trimtab.simulate.series import Series
from trimtab.simulate.summary import Figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS: Final = (".html", ".png", ".svg")
#: runs drawn over time, the best first: more lines cannot be told apart
RUNS: Final = 4
_BARS: Final = 12
#: colours that people with any of the common colour blindnesses can tell apart (Okabe and Ito)
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_STYLE: Final[dict[str, Any]] = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e4e4e4",
    "axes.axisbelow": True, "axes.titlesize": 10, "axes.titlelocation": "left", "legend.frameon": False,
    "svg.fonttype": "none", "svg.hashsalt": "trimtab",
}  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """One run: what it is called in the ranking, whose bar has its colour; its figures, its course."""

    name: str
    figures: Figures
    series: Series


def check_plot_file(path: Path | None) -> None:
    """Before anything is simulated: a kind that can be written, and the library."""
    if path is None:
        return
    if path.suffix.lower() not in KINDS:
        raise InputError("--plot", f"{path.name!r} is no known kind of picture", f"End it with {', '.join(KINDS)}.")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        fix = "Install it: pip install 'trimtab[plot]'."
        raise InputError("--plot", "needs matplotlib, which is not installed", fix) from None


def write_plot(path: Path, title: str, ranked: Sequence[tuple[str, Figures]], runs: Sequence[Drawn]) -> None:
    """`ranked`: every configuration, best first. `runs`: those drawn over time. InputError where writing fails."""
    import matplotlib as mpl

    # its type names every setting of matplotlib there is
    with mpl.rc_context(cast(Any, _STYLE)):
        figure = _figure(title, ranked, runs)
        kind = "svg" if path.suffix.lower() == ".html" else path.suffix.lower()[1:]
        buffer = io.BytesIO()
        # no date in it: the same run gives the same bytes
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    raw = buffer.getvalue() if path.suffix.lower() != ".html" else _page(title, buffer.getvalue().decode("utf-8"))
    try:
        path.write_bytes(raw)
    except OSError as error:
        problem = f"{path} cannot be written ({error.strerror})"
        raise InputError("--plot", problem, "Name a file in a folder that can be written.") from error


def _page(title: str, svg: str) -> bytes:
    picture = svg[svg.index("<svg") :]
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
    style = "<style>body{margin:1rem;font-family:sans-serif}svg{max-width:100%;height:auto}</style>"
    return f"{head}{style}<body>{picture}</body></html>\n".encode()


def _figure(title: str, ranked: Sequence[tuple[str, Figures]], runs: Sequence[Drawn]) -> Figure:
    from matplotlib.figure import Figure

    bars = min(len(ranked), _BARS) if len(ranked) > 1 else 0
    top = 0.35 * bars + 0.9 if bars else 0.0
    heights = ([top] if bars else []) + [1.9, 1.9, 1.6, 1.3]
    figure = Figure(figsize=(9.0, sum(heights) + 1.2), layout="constrained")
    axes = list(figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    if bars:
        _ranking(axes.pop(0), ranked[:bars], len(ranked), [run.name for run in runs])
    kv, requests, tokens, preemptions = axes
    for run, colour in zip(runs, _COLOURS, strict=False):
        s = run.series
        kv.plot(s.at_seconds, 100 * s.kv_usage, color=colour, lw=1.3)
        requests.plot(s.at_seconds, s.running, color=colour, lw=1.3)
        requests.plot(s.at_seconds, s.waiting, color=colour, lw=1.1, ls=":")
        tokens.plot(s.at_seconds, s.tokens_per_second, color=colour, lw=1.1)
        preemptions.plot(s.at_seconds, s.preemptions_per_second, color=colour, lw=1.1)
    _label(kv, "KV cache in use", "%", ylim=(0, 104))
    _label(requests, "Requests running (solid) and waiting (dotted)", "requests")
    _label(tokens, "Tokens generated", "tokens/s")
    _label(preemptions, "Preemptions", "per second")
    for one in (kv, requests, tokens):
        one.sharex(preemptions)
        one.tick_params(labelbottom=False)
    preemptions.set_xlabel("virtual seconds since the first arrival")
    return figure


def _label(axes: Axes, title: str, unit: str, ylim: tuple[float, float] | None = None) -> None:
    axes.set_title(title)
    axes.set_ylabel(unit)
    axes.set_ylim(*(ylim or (0, max(1.0, axes.get_ylim()[1]))))
    axes.margins(x=0.01)


def _ranking(axes: Axes, ranked: Sequence[tuple[str, Figures]], of: int, drawn: Sequence[str]) -> None:
    """Goodput as bars, best on top; the runs drawn below have their colour."""
    values = [f.goodput_tokens_per_second for _, f in ranked]
    places = range(len(ranked), 0, -1)
    colours = [_COLOURS[drawn.index(name)] if name in drawn else "#bdbdbd" for name, _ in ranked]
    axes.barh(places, values, color=colours, height=0.7)
    for place, value, (_, f) in zip(places, values, ranked, strict=True):
        share = "" if f.slo_attainment is None else f", {f.slo_attainment:.0%} in SLO"
        axes.annotate(f" {value:.0f}{share}", (value, place), va="center", fontsize=8)
    axes.set_yticks(list(places), [name for name, _ in ranked])
    axes.set_xlim(0, 1.2 * max([*values, 1e-9]))
    axes.grid(axis="y", visible=False)
    more = "" if of == len(ranked) else f" (the best {len(ranked)} of {of})"
    axes.set_title(f"Goodput by configuration, tokens/s{more}")
