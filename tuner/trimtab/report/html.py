"""`write_report`: one HTML file, story first. Everything from the file is escaped by jinja2; no script, and a policy in
the page that forbids any request.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trimtab import __version__
from trimtab.errors import InputError
from trimtab.plan.record import TrialRecord
from trimtab.report import charts, control, costs, words
from trimtab.report.costs import Price
from trimtab.report.read import read
from trimtab.report.story import Report, by_latency, simulated_gain

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = ["Price", "render", "write_report"]

_NO_PICTURES: Final = "Pictures are missing, as matplotlib is not installed: pip install 'trimtab[plot]'."


@dataclass(frozen=True)
class _Row:
    """One trial in the table."""

    number: int
    change: str
    outcome: str
    look: str
    interval: str
    reason: str
    message: str
    origin: str
    minutes: str
    restarts: int


def write_report(result: Mapping[str, Any], path: Path, price: Price = Price()) -> None:  # noqa: B008, it is frozen
    """`result`: what `trimtab tune` writes (--json, --state), or objects of kubectl. Replaces `path` in one step.

    InputError where the result cannot be read or the file cannot be written.
    """
    save(render(read(result), price), path)


def save(page: str, path: Path) -> None:
    try:
        handle, half = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(page)
        Path(half).chmod(0o644)
        Path(half).replace(path)
    except OSError as error:
        problem = f"{path} cannot be written ({error.strerror})"
        raise InputError("--report", problem, "Name a file in a folder that can be written.") from error


def render(report: Report, price: Price = Price()) -> str:  # noqa: B008
    """The page. Same report, same bytes."""
    pictures = _pictures(report) if charts.available() else {}
    warnings = (*report.warnings, *([] if charts.available() else [_NO_PICTURES]))
    shares, why_not = _importance(report)
    if shares and charts.available():
        pictures["importance"] = charts.importance(shares)
    return _template().render(
        report=report, version=__version__, css=_text("page.css"), warnings=warnings, pictures=pictures,
        headline=words.headline(report), began=_time(report.began), ended=_time(report.ended),
        as_found=words.as_found(report), wrong=words.wrong(report), main=words.main_cause(report.findings),
        helpless=words.helpless(report.findings),
        sure=words.sure(report), changed=_changed(report), figures=_figures(report),
        rows=[_row(t) for t in report.trials],
        cost=costs.cost_lines(report, price), waste=costs.waste_lines(report, price), saved=costs.saved(report, price),
        shares=shares, why_no_shares=why_not, control=control.beside(report), tiles=_tiles(report),
        forecasts=_forecasts(report), ends_are_arms=report.where.startswith("Kubernetes"),
    )  # fmt: skip


def _pictures(report: Report) -> dict[str, charts.Picture]:
    found = {"gains": charts.gains(report), "timeline": charts.timeline(report), "ends": charts.before_after(report),
             "spread": charts.spread(report)}  # fmt: skip
    pairs = [(n, guess, seen) for n, _, guess, seen in _forecasts(report) if seen is not None]
    if pairs:
        found["predicted"] = charts.predicted(pairs)
    return {name: made for name, made in found.items() if made is not None}


def _importance(report: Report) -> tuple[list[tuple[str, float]], str]:
    from trimtab.report.importance import shares  # Optuna takes a second to load

    return shares(report)


def _forecasts(report: Report) -> list[tuple[int, str, float, float | None]]:
    """(trial, change, simulated gain, measured gain) of the trials that were simulated before."""
    by_key = {f.configuration.key(): f.gain for f in report.forecasts}
    out = []
    for t in report.trials:
        gain = by_key.get(t.configuration.key(), simulated_gain(t))
        if gain is not None:
            measured = t.verdict.gain if t.verdict is not None else None
            out.append((t.number, words.change_text(t), gain, measured))
    return out


def _tiles(report: Report) -> list[tuple[str, str, str]]:
    """(label, value, note): what a person takes in at a glance."""
    counts, last = report.counts, report.promoted[-1] if report.promoted else None
    gain = counts.best or ("0%" if report.tried else "–")
    surely = words.interval(last) if last is not None and not by_latency(last) else ""
    tiles = [
        ("Gain", "over ten times" if (counts.best_gain or 0) > 9 else gain, f"last kept: {surely}" if surely else "")
    ]
    tiles.append(("Trials", str(len(report.trials)), f"{counts.promoted} kept, {counts.rolled_back} rolled back"))
    tiles.append(("Restarts", str(report.restarts), "of single replicas"))
    span = (report.ended or 0) - (report.began or 0)
    tiles.append(("Time", costs.duration(span), "from first trial to last"))
    return tiles


def _changed(report: Report) -> list[tuple[str, str, str]]:
    return [(words.flag(n), words.value_text(a), words.value_text(b)) for n, a, b in report.changed()]


def _figures(report: Report) -> list[tuple[str, str, str, str, str]]:
    """(label, before, after, change, look) for each figure that is known on either side."""
    if report.before is None:
        return []
    out, after = [], report.after or {}
    for key, (label, *_) in words.FIGURES.items():
        a, b = report.before.get(key), after.get(key)
        if a is None and b is None:
            continue
        change, look = words.compared(key, a, b)
        now = words.figure_text(key, b) if report.after is not None else "–"
        out.append((label, words.figure_text(key, a), now, change, look))
    return out


def _row(trial: TrialRecord) -> _Row:
    shown, look = words.outcome(trial)
    verdict = trial.verdict
    seconds = (trial.finished_at or trial.phase_since) - trial.started_at
    return _Row(
        number=trial.number, change=words.change_text(trial), outcome=shown, look=look, interval=words.interval(trial),
        reason=verdict.reason if verdict is not None else trial.phase.value,
        message=verdict.message if verdict is not None and verdict.message else trial.message,
        origin=trial.origin, minutes=costs.duration(max(0.0, seconds)), restarts=trial.restarts,
    )  # fmt: skip


def _time(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_text("page.html.j2"))
