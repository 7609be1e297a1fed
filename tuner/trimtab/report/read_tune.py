"""A result or a state file of `trimtab tune` as a `Report`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from trimtab.engine.settings import Configuration
from trimtab.errors import InputError
from trimtab.plan.record import TrialRecord
from trimtab.report.fields import number, numbers, rows, table, text, whole
from trimtab.report.story import Cause, Forecast, Limits, Report, Sample
from trimtab.tune.state import record_of

Json = dict[str, Any]
_ARM_FIGURES = ("goodput", "goodput_tokens_per_second", "ttft_p99_seconds", "tpot_p99_seconds")


def from_result(data: Mapping[str, Any], name: str) -> Report:
    command = data["command"]
    as_list = isinstance(command, list)
    given = shlex.join(map(str, command)) if as_list else text(data.get("given"))
    trials = tuple(_trial(t, f"{name}.trials[{i}]") for i, t in enumerate(rows(data["trials"])))
    return Report(
        title=_title(given or text(command)),
        where="this machine",
        state=_state(data, trials),
        trials=tuple(sorted(trials, key=lambda t: t.number)),
        given=given,
        result="" if as_list else text(command),
        before=numbers(data.get("before")) or None,
        after=numbers(data.get("after")) or None,
        shares_before=_shares(data.get("before")),
        shares_after=_shares(data.get("after")),
        findings=tuple(cause(f) for f in rows(data.get("findings"))),
        limits=limits(table(data.get("spec"))),
        forecasts=tuple(_forecast(f, name) for f in rows(data.get("screen"))),
        samples=tuple(_sample(s) for s in rows(data.get("series"))),
        replicas=whole(data.get("replicas")) or max((t.replicas for t in trials), default=0) or None,
        load=table(data.get("load")) or None,
        screened=text(data.get("screened")),
    )


def limits(spec: Mapping[str, Any]) -> Limits:
    """Of a spec, in Python's spelling or in the CRD's."""

    def pick(where: Mapping[str, Any], snake: str, camel: str) -> float | None:
        return number(where.get(snake, where.get(camel)))

    objective, guard = table(spec.get("objective")), table(spec.get("guardrails"))
    slo = table(objective.get("slo"))
    return Limits(
        ttft_seconds=pick(slo, "ttft_seconds", "ttftSeconds"),
        tpot_seconds=pick(slo, "tpot_seconds", "tpotSeconds"),
        latency_ratio=pick(guard, "max_latency_ratio", "maxLatencyRatio"),
        min_gain_percent=pick(objective, "min_gain_percent", "minGainPercent"),
    )


def cause(data: Mapping[str, Any]) -> Cause:
    """A finding as `trimtab diagnose -o json` and as status.findings write it."""
    tunable = data.get("tunable")
    return Cause(
        name=text(data.get("cause") or data.get("name")),
        severity=text(data.get("severity")),
        confidence=number(data.get("confidence")) or 0.0,
        message=text(data.get("message")),
        advice=text(data.get("advice")),
        evidence=numbers(data.get("evidence")),
        avoid=text(data.get("avoid")),
        tunable=tunable if isinstance(tunable, bool) else None,
        role=text(data.get("role")),
    )


def _shares(figures: object) -> dict[str, list[tuple[float, float]]]:
    """Of both latencies; what is not a row of rising seconds and shares is unknown."""
    out = {}
    for name, points in table(table(figures).get("shares")).items():
        pairs = [p for p in points if isinstance(p, list | tuple) and len(p) == 2] if isinstance(points, list) else []
        known = [(x, y) for a, b in pairs if (x := number(a)) is not None and (y := number(b)) is not None]
        if len(known) > 1 and known == sorted(known) and known[0][1] >= 0 and known[-1][1] <= 1:
            out[text(name)] = known
    return out


def _trial(data: Json, where: str) -> TrialRecord:
    try:
        return record_of(data)
    except (ValueError, KeyError, TypeError, AttributeError, InputError) as error:
        raise InputError(where, f"is no trial of trimtab tune ({error})", "Write the file anew.") from error


def _forecast(data: Json, name: str) -> Forecast:
    try:
        configuration = Configuration.of(table(data.get("configuration")))
    except InputError as error:
        raise InputError(f"{name}.screen.configuration", error.problem, error.fix) from error
    gain = number(data.get("predicted_gain"))
    return Forecast(
        configuration, 0.0 if gain is None else gain, number(data.get("low")), number(data.get("high")),
        text(data.get("dropped")),
    )  # fmt: skip


def _sample(data: Json) -> Sample:
    figures = {k: number(data.get(k)) for k in _ARM_FIGURES}
    goodput = figures.pop("goodput_tokens_per_second")
    figures["goodput"] = figures["goodput"] if goodput is None else goodput
    return Sample(number(data.get("at")) or 0.0, whole(data.get("trial")), text(data.get("arm")), figures)


def _title(command: str) -> str:
    """The model, which is the first word after `serve` that is no flag; else the command itself, shortened."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    after = words[words.index("serve") + 1 :] if "serve" in words else words[:1]
    return next((w for w in after if not w.startswith("-")), command)[:120] or "an engine"


def _state(data: Mapping[str, Any], trials: tuple[TrialRecord, ...]) -> str:
    if data.get("done"):
        why = text(data.get("stopped"))
        return f"finished: {why}" if why else "finished"
    active = next((t for t in trials if not t.ended), None)
    return f"in the middle of trial {active.number}" if active is not None else "stopped before the search was over"
