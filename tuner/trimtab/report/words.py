"""The page's sentences: what was wrong, what changed, what it gained, how sure. Plain text; the page escapes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trimtab.engine.settings import SETTINGS, Value
from trimtab.judge.verdict import Kind
from trimtab.plan.record import NOT_TRIED, Phase, TrialRecord
from trimtab.plan.summary import percent
from trimtab.report.story import Cause, Report, by_latency

#: figure -> (label, unit, digits, whether more is better; None: neither)
FIGURES: Final = {
    "goodput_tokens_per_second": ("Goodput, tokens/s per replica", "", 0, True),
    "useful_tokens_per_second": ("Useful tokens/s per replica", "", 0, True),
    "slo_attainment": ("Requests inside the SLO", "%", 0, True),
    "ttft_p50_seconds": ("Time to first token, p50", "s", 2, False),
    "ttft_p99_seconds": ("Time to first token, p99", "s", 2, False),
    "tpot_p50_seconds": ("Time per output token, p50", "s", 3, False),
    "tpot_p99_seconds": ("Time per output token, p99", "s", 3, False),
    "preemptions_per_second": ("Preemptions/s per replica", "", 2, False),
    "useful_token_ratio": ("Useful tokens of those reserved", "%", 0, None),
    "prefix_hit_ratio": ("Prefix cache hits", "%", 0, None),
    "error_ratio": ("Failed requests", "%", 1, False),
    "waiting": ("Requests waiting, per replica", "", 1, False),
}


def value_text(value: Value | None) -> str:
    if value is None:
        return "engine's default"
    return str(value).lower() if isinstance(value, bool) else str(value)


def flag(setting: str) -> str:
    return SETTINGS[setting].flag if setting in SETTINGS else setting


def change_text(trial: TrialRecord) -> str:
    """What the candidate changes, short."""
    changes = trial.baseline.changes_to(trial.configuration)
    return trial.change or ", ".join(f"{n} = {value_text(v)}" for n, v in changes.items()) or "nothing"


def figure_text(key: str, value: float | None) -> str:
    if value is None:
        return "not known"
    _, unit, digits, _ = FIGURES[key]
    if unit == "%":
        return f"{value:.{digits}%}"
    return f"{value:,.{digits}f}{' s' if unit == 's' else ''}"


def compared(key: str, before: float | None, after: float | None) -> tuple[str, str]:
    """(the change in words, better | worse | same) for the table of before and after."""
    if before is None or after is None:
        return "", "same"
    more_is_better = FIGURES[key][3]
    if figure_text(key, before) == figure_text(key, after):
        return "the same", "same"
    if FIGURES[key][1] == "%":
        change, moved = f"{(after - before) * 100:+.1f} points", after - before
    elif before == 0:
        return ("none before" if after else ""), "same"
    else:
        change, moved = percent(after / before - 1), after - before
    if more_is_better is None:
        return change, "same"
    return change, "better" if (moved > 0) is more_is_better else "worse"


def headline(report: Report) -> str:
    """The one sentence at the top."""
    counts, won = report.counts, report.promoted
    if counts.best_gain is not None and counts.best_gain > 0:
        by = " and ".join(shown_flag(n, v) for n, _, v in report.changed()) or won[-1].change
        return f"{gain_words(counts.best_gain)} goodput{_between(won)}, by {by}"
    if won:
        return f"Lower latency at equal goodput ({counts.best}), by {change_text(won[-1])}"
    if not report.trials:
        return "Nothing was tried yet"
    if not counts.total:
        return "The first trial is still running"
    measured = [t for t in report.tried if t.verdict is not None]
    if not measured:
        return "No trial could be measured; the configuration stays as it was found"
    return f"Nothing better was found in {len(measured)} trial{'s' * (len(measured) != 1)}; everything is as it was"


def shown_flag(setting: str, value: Value | None) -> str:
    """As on the command line: --max-num-seqs 12, --no-enable-prefix-caching."""
    name = flag(setting)
    if isinstance(value, bool):
        return name if value else name.replace("--", "--no-", 1)
    return f"{name} {value}" if value is not None else f"{name} left to the engine"


def _between(won: Sequence[TrialRecord]) -> str:
    """The interval, where one trial made the whole gain."""
    v = won[0].verdict
    if len(won) != 1 or v is None or v.gain_low is None or v.gain_high is None:
        return ""
    return f" (interval {v.gain_low:+.0%} to {v.gain_high:+.0%})"


def as_found(report: Report) -> str:
    """The worst of the figures before, in one sentence; "" where they are not known."""
    known = {k: v for k, v in (report.before or {}).items() if v is not None}
    parts = [
        text.format(known[key])
        for key, text in (
            ("slo_attainment", "{:.0%} of requests were inside the SLO"),
            ("ttft_p99_seconds", "1 of 100 waited {:.2g} s or more for the first token"),
            ("preemptions_per_second", "each replica preempted {:.2g} requests per second"),
            ("waiting", "{:.1f} requests waited per replica"),
        )
        if key in known
    ]
    return f"As found: {'; '.join(parts)}." if parts else ""


def gain_words(gain: float) -> str:
    """Beyond ten times as much a number says no more (a control that served next to nothing)."""
    return "over ten times the" if gain > 9 else f"{gain:+.0%}"


def wrong(report: Report) -> str:
    """What held the target back, or why that is not told."""
    main = main_cause(report.findings)
    if main is not None:
        return main.message
    origins = [t.origin for t in report.trials if t.origin]
    if origins:
        return f"The file holds no finding. The first trial was proposed because: {origins[0]}"
    return "The file holds no finding."


def main_cause(findings: Sequence[Cause]) -> Cause | None:
    return next((f for f in findings if f.role == "main"), findings[0] if findings else None)


def helpless(findings: Sequence[Cause]) -> list[Cause]:
    """Findings that no setting mends."""
    return [f for f in findings if f.tunable is False]


def sure(report: Report) -> list[str]:
    """How far the gain can be trusted, one sentence each."""
    out: list[str] = []
    for t in report.promoted:
        v = t.verdict
        if v is None:
            continue
        windows = v.numbers.get("windows")
        over = f" over {windows:.0f} windows of paired minutes" if windows else ""
        if v.gain is not None and v.gain_low is not None and v.gain_high is not None and not by_latency(t):
            span = f"{percent(v.gain_low)} to {percent(v.gain_high)}"
            out.append(f"Trial {t.number}: {percent(v.gain)} ({span}){over}, canary against control at the same time.")
        else:
            out.append(f"Trial {t.number}: {v.message}")
        if t.confirm_from is not None:
            out.append(f"Trial {t.number} was measured a second time after it had looked better, before it was kept.")
    if not out:
        unclear = sum(t.verdict is not None and t.verdict.kind is Kind.INCONCLUSIVE for t in report.tried)
        worse = sum(t.verdict is not None and t.verdict.kind is Kind.WORSE for t in report.tried)
        if unclear or worse:
            out.append(
                f"{worse} trials were clearly worse, {unclear} could not be told apart from noise or gained too little."
            )
    return out


def outcome(trial: TrialRecord) -> tuple[str, str]:
    """(symbol with word, class) of a trial. The symbol is for those who see no colour."""
    v = trial.verdict
    if not trial.ended:
        return f"… {trial.phase.value}", "open"
    if trial.phase is Phase.PROMOTED:
        return "✓ kept", "better"
    if v is None or v.reason in NOT_TRIED:
        return "– not tried to the end", "open"
    if v.kind is Kind.ERROR:
        return "✕ failed", "worse"
    return {Kind.WORSE: ("▼ worse", "worse"), Kind.BETTER: ("▲ better, not kept", "open")}.get(
        v.kind, ("= unclear", "same")
    )


def interval(trial: TrialRecord) -> str:
    v = trial.verdict
    if v is None or v.gain is None:
        return ""
    gain = "over +900%" if v.gain > 9 else percent(v.gain)
    if v.gain_low is None or v.gain_high is None:
        return gain
    high = "over +900%" if v.gain_high > 9 else percent(v.gain_high)
    return f"{gain} ({percent(v.gain_low)} to {high})"
