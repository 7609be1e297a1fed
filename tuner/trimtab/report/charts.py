"""The page's pictures, by matplotlib (an extra: it is not imported unless a page is made). Each in a wide and a narrow
form, as text in an SVG that was shrunk to a phone cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from trimtab.judge.verdict import Kind
from trimtab.plan.record import Phase, TrialRecord
from trimtab.report.story import Report, arm
from trimtab.report.svg import INK, STYLE, inline
from trimtab.report.words import change_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: inches at 72 units each: what a desktop column and a phone show without shrinking
_WIDE, _NARROW = 9.4, 4.6
#: gains beyond this are cut in the picture: +300%
_MOST: Final = 3.0
#: characters of a trial's label in the wide and in the narrow form
_LABEL, _SHORT_LABEL = 54, 24
_MARKS: Final = {Kind.BETTER: ("better", "^"), Kind.WORSE: ("worse", "v"), Kind.ERROR: ("worse", "X"),
                 Kind.INCONCLUSIVE: ("same", "o")}  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """wide, narrow: <svg> elements; caption: what it shows and how to read it."""

    wide: str
    narrow: str
    caption: str


def available() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def picture(name: str, alt: str, caption: str, draw: Callable[[float], Figure]) -> Picture:
    """`draw(width in inches)` is asked twice."""
    import matplotlib as mpl

    # its type names every setting of matplotlib there is
    with mpl.rc_context(cast(Any, STYLE)):
        wide = inline(draw(_WIDE), f"{name}w", alt)
        narrow = inline(draw(_NARROW), f"{name}n", alt)
    return Picture(wide, narrow, caption)


def gains(report: Report) -> Picture | None:
    """Each trial's gain with its interval; None where none was measured."""
    shown = [t for t in report.trials if t.ended or t.verdict is not None]
    if not any(t.verdict is not None and t.verdict.gain is not None for t in shown):
        return None
    lines = [f"trial {t.number} {_percent(t)}" for t in shown]
    alt = f"Goodput gain of each trial with its interval: {'; '.join(lines)}."
    return picture("gain", alt, "Goodput of canary over control in each trial. The line is the interval: where it "
                   "crosses 0, the data cannot tell the two apart.", lambda width: _gains(shown, width))  # fmt: skip


def _percent(trial: TrialRecord) -> str:
    verdict = trial.verdict
    return "not measured" if verdict is None or verdict.gain is None else f"{verdict.gain * 100:+.1f}%"


def _gains(trials: Sequence[TrialRecord], width: float) -> Figure:
    figure, (axes,) = _figure(width, 0.42 * len(trials) + 0.9, 1)
    names = []
    for place, trial in enumerate(reversed(trials)):
        names.append(_short(f"{trial.number}: {change_text(trial)}", _LABEL if width > _NARROW else _SHORT_LABEL))
        verdict = trial.verdict
        if verdict is None or verdict.gain is None:
            why = verdict.reason if verdict is not None else trial.phase.value
            axes.annotate(f" ended early: {why}", (0, place), va="center", color=INK["muted"], fontsize=9)
            continue
        role, mark = _MARKS[verdict.kind]
        low, high = (_cut(v if v is not None else verdict.gain) for v in (verdict.gain_low, verdict.gain_high))
        axes.plot([100 * low, 100 * high], [place, place], color=INK[role], lw=2.4, solid_capstyle="butt")
        axes.plot([100 * _cut(verdict.gain)], [place], color=INK[role], marker=mark, ms=8)
    axes.axvline(0, color=INK["text"], lw=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("goodput, canary over control, %" + (" (cut at +300%)" if _beyond(trials) else ""))
    return figure


def _beyond(trials: Sequence[TrialRecord]) -> bool:
    return any(t.verdict is not None and (t.verdict.gain_high or t.verdict.gain or 0) > _MOST for t in trials)


def _cut(gain: float) -> float:
    return min(gain, _MOST)


#: figure of an arm -> (title, limit's name)
_PANELS: Final = (
    ("goodput", "Goodput, tokens/s per replica", ""),
    ("ttft_p99_seconds", "Time to first token, p99, s", "ttft_seconds"),
    ("tpot_p99_seconds", "Time per output token, p99, s", "tpot_seconds"),
)


def timeline(report: Report) -> Picture | None:
    """Trials over time, canary against control, with the guardrail and the SLO; None where nothing was measured."""
    shown = [t for t in report.trials if arm(t, "canary") or arm(t, "control")]
    panels = [p for p in _PANELS if any(p[0] in arm(t, a) for t in shown for a in ("canary", "control"))]
    if not panels:
        return None
    parts = [
        f"trial {t.number}: goodput {_of(t, 'canary', 'goodput')} against {_of(t, 'control', 'goodput')}" for t in shown
    ]
    alt = f"Timeline of trials, canary against control. {'; '.join(parts)}."
    caption = (
        "Each grey band is one trial with its restarts and warm-up; the lines are as long as it was measured: the "
        "canary (thick) beside the control (thin) over the same minutes."
    )
    if report.limits.latency_ratio is not None:
        caption += " Dashed: where the guardrail would have ended the trial."
    if report.limits.ttft_seconds is not None or report.limits.tpot_seconds is not None:
        caption += " Dotted: the SLO."
    return picture("time", alt, caption, lambda width: _timeline(report, shown, panels, width))


def _of(trial: TrialRecord, name: str, key: str) -> str:
    value = arm(trial, name).get(key)
    return "unknown" if value is None else f"{value:.3g}"


def _timeline(
    report: Report, trials: Sequence[TrialRecord], panels: Sequence[tuple[str, str, str]], width: float
) -> Figure:
    figure, axes = _figure(width, 1.75 * len(panels) + 0.7, len(panels))
    zero = report.began or 0.0
    for one, (key, title, limit) in zip(axes, panels, strict=True):
        for trial in report.trials:
            _span(one, trial, zero, named=one is axes[0])
        for trial in trials:
            _trial_bars(one, report, trial, key, zero)
        slo = getattr(report.limits, limit) if limit else None
        if slo is not None:
            one.axhline(slo, color=INK["limit"], ls=":", lw=1.4)
        _samples(one, report, key, zero)
        one.set_title(title)
        one.set_ylim(0, (1.25 if one is axes[0] else 1.1) * one.dataLim.y1)
        one.sharex(axes[-1])
        one.tick_params(labelbottom=one is axes[-1])
    axes[-1].set_xlabel("minutes since the first trial")
    _legend(figure if width <= _NARROW else axes[0], report)
    return figure


def _trial_bars(axes: Axes, report: Report, trial: TrialRecord, key: str, zero: float) -> None:
    begin = ((trial.measure_from or trial.started_at) - zero) / 60
    end = max(begin + 0.05, ((trial.finished_at or trial.phase_since) - zero) / 60)
    ours, theirs = arm(trial, "canary").get(key), arm(trial, "control").get(key)
    if theirs is not None:
        axes.plot([begin, end], [theirs, theirs], color=INK["control"], lw=1.8, solid_capstyle="butt")
        ratio = report.limits.latency_ratio
        if key != "goodput" and ratio is not None and ours is not None and ours > 0.5 * ratio * theirs:
            axes.plot([begin, end], [ratio * theirs] * 2, color=INK["worse"], lw=1.2, ls="--")
    if ours is not None:
        axes.plot([begin, end], [ours, ours], color=INK["canary"], lw=4.5, solid_capstyle="butt")


def _span(axes: Axes, trial: TrialRecord, zero: float, *, named: bool) -> None:
    """The whole trial as a band, restarts and warm-up included."""
    begin, end = (trial.started_at - zero) / 60, ((trial.finished_at or trial.phase_since) - zero) / 60
    axes.axvspan(begin, end, color=INK["grid"], alpha=0.45, lw=0)
    if named:
        kept = trial.phase is Phase.PROMOTED
        axes.annotate(f"{trial.number}{' kept' if kept else ''}", ((begin + end) / 2, 0.97), ha="center", va="top",
                      xycoords=("data", "axes fraction"), color=INK["better" if kept else "muted"],
                      fontsize=9)  # fmt: skip


def _samples(axes: Axes, report: Report, key: str, zero: float) -> None:
    for number in sorted({s.trial for s in report.samples}):
        for name in ("control", "canary"):
            seen = [(s.at, s.figures.get(key)) for s in report.samples if s.trial == number and s.arm == name]
            known = [((at - zero) / 60, value) for at, value in seen if value is not None]
            if known:
                axes.plot(*zip(*known, strict=True), color=INK[name], lw=0.9, alpha=0.7)


def _legend(of: Axes | Figure, report: Report) -> None:
    """Beside the first title; a narrow figure has no room there, so there it gets a row of its own."""
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=INK["canary"], lw=4.5, label="canary"),
               Line2D([], [], color=INK["control"], lw=1.8, label="control")]  # fmt: skip
    if report.limits.latency_ratio is not None:
        handles.append(Line2D([], [], color=INK["worse"], ls="--", lw=1.2, label="guardrail"))
    if report.limits.ttft_seconds is not None or report.limits.tpot_seconds is not None:
        handles.append(Line2D([], [], color=INK["limit"], ls=":", lw=1.4, label="SLO"))
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.02)}
    if not isinstance(of, Axes):
        place = {"loc": "outside upper left"}
    of.legend(handles=handles, ncols=len(handles), handlelength=1.6, borderpad=0, columnspacing=1.0, **place)


def before_after(report: Report) -> Picture | None:
    """p50 and p99 of both latencies before and after; None unless both were measured."""
    before, after = report.before or {}, report.after or {}
    rows = [
        (title, (before.get(f"{key}_p50_seconds"), before.get(f"{key}_p99_seconds")),
         (after.get(f"{key}_p50_seconds"), after.get(f"{key}_p99_seconds")), getattr(report.limits, f"{key}_seconds"))
        for key, title in (("ttft", "Time to first token, s"), ("tpot", "Time per output token, s"))
    ]  # fmt: skip
    known = [(t, b, a, limit) for t, b, a, limit in rows if None not in b and None not in a]
    if not known:
        return None
    said = "; ".join(f"{t}: p50 to p99 {b[0]:.3g} to {b[1]:.3g} before, {a[0]:.3g} to {a[1]:.3g} after"
                     for t, b, a, _ in known)  # fmt: skip
    slo = " Dotted: the SLO." if any(limit is not None for *_, limit in known) else ""
    caption = f"From the median (dot) to the slowest of 100 requests (bar's end), before and after.{slo}"
    return picture("ends", f"Latency before and after. {said}.", caption, lambda width: _before_after(known, width))


def _before_after(rows: Sequence[tuple[str, Any, Any, float | None]], width: float) -> Figure:
    figure, axes = _figure(width, 1.35 * len(rows) + 0.2, len(rows))
    for one, (title, before, after, limit) in zip(axes, rows, strict=True):
        for place, (median, slow), role in ((1, before, "control"), (0, after, "canary")):
            one.plot([median, slow], [place, place], color=INK[role], lw=5, solid_capstyle="butt")
            one.plot([median], [place], color=INK[role], marker="o", ms=9)
            one.annotate(f"{slow:.3g} s", (slow, place), xytext=(5, 0), textcoords="offset points", va="center",
                         fontsize=9)  # fmt: skip
        if limit is not None:
            one.axvline(limit, color=INK["limit"], ls=":", lw=1.4)
        one.set_yticks([1, 0], ["before", "after"])
        one.set_ylim(-0.6, 1.6)
        one.set_xlim(0, 1.18 * max(before[1], after[1], limit or 0.0))
        one.set_title(title)
        one.grid(axis="y", visible=False)
    return figure


#: latency -> title
_SPREADS: Final = {"ttft": "Time to first token, s", "tpot": "Time per output token, s"}
#: requests at both ends that may lie outside of the picture
_TAIL: Final = 0.005


def spread(report: Report) -> Picture | None:
    """All requests by latency, before and after; None unless both distributions are known."""
    rows = [
        (title, report.shares_before[key], report.shares_after[key], getattr(report.limits, f"{key}_seconds"))
        for key, title in _SPREADS.items()
        if report.shares_before.get(key) and report.shares_after.get(key)
    ]
    if not rows:
        return None
    slo = " Dotted: the SLO." if any(limit is not None for *_, limit in rows) else ""
    said = "; ".join(f"{title}: half of the requests by {_by(b, 0.5):.3g} before, {_by(a, 0.5):.3g} after; 9 of 10 by "
                     f"{_by(b, 0.9):.3g} before, {_by(a, 0.9):.3g} after" for title, b, a, _ in rows)  # fmt: skip
    caption = f"How many requests took no longer than the time below: further left is better.{slo}"
    return picture("all", f"All requests by latency. {said}.", caption, lambda width: _spread(rows, width))


def _by(points: Sequence[tuple[float, float]], share: float) -> float:
    """The first edge by which so many are through."""
    return next((x for x, y in points if y >= share), points[-1][0])


def _spread(rows: Sequence[tuple[str, Any, Any, float | None]], width: float) -> Figure:
    side_by_side = width > _NARROW
    figure, axes = _figure(width, 2.5 if side_by_side else 2.2 * len(rows), 1 if side_by_side else len(rows),
                           len(rows) if side_by_side else 1)  # fmt: skip
    for one, (title, before, after, limit) in zip(axes, rows, strict=True):
        for points, role, label, line in ((before, "control", "before", 1.8), (after, "canary", "after", 3.0)):
            one.plot([x for x, _ in points], [100 * y for _, y in points], color=INK[role], lw=line, label=label)
        if limit is not None:
            one.axvline(limit, color=INK["limit"], ls=":", lw=1.4)
        low = min(max((x for x, y in p if y <= _TAIL), default=p[0][0]) for p in (before, after))
        high = max(_by(p, 1 - _TAIL) for p in (before, after))
        one.set_xscale("log")
        one.set_xlim(max(low, 1e-4), max(high, limit or 0.0) * 1.1)
        one.xaxis.set_major_formatter("{x:g}")
        one.xaxis.set_minor_formatter("")
        one.set_ylim(0, 102)
        one.set_ylabel("requests, %")
        one.set_title(title)
    axes[0].legend(loc="lower right")
    return figure


def importance(shares: Sequence[tuple[str, float]]) -> Picture:
    """Shares of settings, largest first."""
    alt = "Importance of settings: " + ", ".join(f"{n} {v:.0%}" for n, v in shares) + "."
    caption = "How much of the difference between good and other trials goes with each setting (PED-ANOVA, Optuna)."
    return picture("part", alt, caption, lambda width: _importance(shares, width))


def _importance(shares: Sequence[tuple[str, float]], width: float) -> Figure:
    figure, (axes,) = _figure(width, 0.4 * len(shares) + 0.8, 1)
    places = range(len(shares), 0, -1)
    axes.barh(places, [100 * v for _, v in shares], color=INK["bar"], height=0.6)
    axes.set_yticks(list(places), [n for n, _ in shares])
    axes.set_xlabel("share, %")
    axes.set_xlim(0, 100)
    axes.grid(axis="y", visible=False)
    return figure


def predicted(pairs: Sequence[tuple[int, float, float]]) -> Picture:
    """(trial, predicted gain, measured gain)."""
    alt = "Simulated against measured gain: " + "; ".join(
        f"trial {n}: simulated {p:+.0%}, measured {m:+.0%}" for n, p, m in pairs) + "."  # fmt: skip
    caption = (
        "Each point is a trial: what the simulation said before it, and what was measured. On the line both agree."
    )
    return picture("sim", alt, caption, lambda width: _predicted(pairs, width))


def _predicted(pairs: Sequence[tuple[int, float, float]], width: float) -> Figure:
    figure, (axes,) = _figure(min(width, 5.2), 4.0, 1)
    ends = [100 * v for _, *both in pairs for v in both] + [0.0]
    low, high = min(ends) - 8, max(ends) + 8
    axes.plot([low, high], [low, high], color=INK["muted"], lw=1, ls=":")
    for number, guess, found in pairs:
        axes.plot([100 * guess], [100 * found], color=INK["canary"], marker="o", ms=7)
        axes.annotate(str(number), (100 * guess, 100 * found), xytext=(6, 4), textcoords="offset points", fontsize=9)
    axes.set_xlabel("simulated gain, %")
    axes.set_ylabel("measured gain, %")
    return figure


def _figure(width: float, height: float, rows: int, columns: int = 1) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
