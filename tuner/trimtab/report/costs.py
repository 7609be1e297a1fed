"""What tuning cost and what the target wastes, in restarts, minutes, tokens, GPU-hours and money. Pure.

Hazard: these are estimates by proportion: a GPU is taken to work on a token that nobody received as long as on any
other. Each figure carries its assumption as words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trimtab.report.story import Figures, Report

_HOUR: Final = 3600.0
_DAY_HOURS: Final = 24.0


@dataclass(frozen=True)
class Price:
    """gpus: of one replica. per_hour: of one GPU, in `currency`; None: no money is told."""

    gpus: float | None = None
    per_hour: float | None = None
    currency: str = "$"

    def money(self, gpu_hours: float) -> str:
        return "" if self.per_hour is None else f"{self.currency}{gpu_hours * self.per_hour:,.2f}"


@dataclass(frozen=True)
class Line:
    """One row of a table: what, how much, by which reckoning."""

    name: str
    value: str
    how: str


def cost_lines(report: Report, price: Price) -> list[Line]:
    """What the trials themselves cost."""
    lines = [
        Line("Restarts", str(report.restarts), "replicas that trials started anew, on the way there and back"),
        Line("Time with a canary", duration(report.trial_seconds), "from the start of each trial to its end"),
        Line(
            "Time on worse settings", duration(worse_seconds(report)), "trials that were rolled back as Worse or Error"
        ),
    ]
    gpus = price.gpus or report.gpus
    if gpus is None:
        lines.append(Line("GPU-hours on canaries", "not known", "say how many GPUs a replica has: --gpus"))
        return lines
    hours = report.trial_seconds / _HOUR * gpus
    lines.append(
        Line("GPU-hours on canaries", f"{hours:.2f}", f"one replica of {gpus:g} GPU(s) for that time; it served")
    )
    if price.per_hour is not None:
        lines.append(
            Line("Money on canaries", price.money(hours), f"at {price.currency}{price.per_hour:g} per GPU-hour")
        )
    return lines


def worse_seconds(report: Report) -> float:
    """Time in which a canary that turned out Worse or Error stood in the target."""
    bad = [t for t in report.trials if t.verdict is not None and t.verdict.kind in ("Worse", "Error")]
    return sum(max(0.0, (t.finished_at or t.phase_since) - t.started_at) for t in bad)


def wasted_share(figures: Figures | None) -> float | None:
    """Share of generated tokens that no finished request received; None where it is not known."""
    made, useful = ((figures or {}).get(f"{k}_tokens_per_second") for k in ("generated", "useful"))
    return None if made is None or useful is None or made <= 0 else min(1.0, max(0.0, 1.0 - useful / made))


def waste_lines(report: Report, price: Price) -> list[tuple[str, str, str]]:
    """(what, before, after) of tokens that nobody received, per hour and day of the whole target."""
    shares = [wasted_share(f) for f in (report.before, report.after)]
    if all(s is None for s in shares):
        return []
    replicas, gpus = report.replicas, price.gpus or report.gpus
    rows = [("Generated tokens that nobody received", *(_percent(s) for s in shares))]
    if replicas is not None:
        tokens = [_tokens_per_hour(f, s, replicas) for f, s in zip((report.before, report.after), shares, strict=True)]
        rows.append(("... in tokens per hour, whole target", *(_number(t) for t in tokens)))
    if replicas is not None and gpus is not None:
        hours = [None if s is None else s * replicas * gpus * _DAY_HOURS for s in shares]
        rows.append(("... in GPU-hours per day", *(_number(h, 1) for h in hours)))
        if price.per_hour is not None:
            rows.append(("... in money per day", *("not known" if h is None else price.money(h) for h in hours)))
    return [(a, b, c) for a, b, c in rows]


def saved(report: Report, price: Price) -> str:
    """What the gain is worth where the load fills the target, in words; "" where nothing was gained or is known."""
    gain, gpus = report.counts.best_gain, price.gpus or report.gpus
    if gain is None or gain <= 0 or report.replicas is None:
        return ""
    share = 1.0 - 1.0 / (1.0 + gain)
    text = f"The same good tokens need {share:.0%} less engine time, if the load fills the target"
    if gpus is None:
        return f"{text}."
    hours = share * report.replicas * gpus * _DAY_HOURS
    money = f" ({price.money(hours)})" if price.per_hour is not None else ""
    return f"{text}: {hours:.1f} GPU-hours per day of {report.replicas} replicas{money}."


def _tokens_per_hour(figures: Figures | None, share: float | None, replicas: int) -> float | None:
    made = (figures or {}).get("generated_tokens_per_second")
    return None if made is None or share is None else made * share * replicas * _HOUR


def duration(seconds: float) -> str:
    """45 s, 12.5 min, 3.2 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"


def _percent(share: float | None) -> str:
    return "not known" if share is None else f"{share:.1%}"


def _number(value: float | None, digits: int = 0) -> str:
    return "not known" if value is None else f"{value:,.{digits}f}"
