"""Tuners as lines: one for each in a list, a tree for one. Pure; `now` in unix seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trimtab_operator.plugin.objects import AWAITING, ENDED, Json, Pod, Trial, Tuner, age, rows, table, text
from trimtab_operator.plugin.terminal import Line, Part, columns, line

_LOOKS: Final = {"Better": "good", "Worse": "bad", "Error": "bad", "Inconclusive": "warn"}
_PHASES: Final = {"Promoted": "good", "RolledBack": "warn", "Cancelled": "dim", AWAITING: "warn", "Failed": "bad",
                  "Pending": "warn", "Converged": "good", "Suspended": "warn"}  # fmt: skip
_LABEL: Final = 12


def fleet(found: Sequence[Tuner], now: float, width: int | None) -> list[Line]:
    """One line each: is it safe, what does it do, what did it find, why does it wait."""
    if not found:
        return [line("No VLLMTuner here. Look everywhere: kubectl trimtab status -A")]
    body: list[list[str | Part]] = [
        [
            t.namespace, Part(t.name, "bold"), t.target.name, t.mode, Part(t.phase, _PHASES.get(t.phase, "")),
            Part(t.ready, "good" if t.ready == "True" else "bad"), t.finding or "-", t.gain or "-", doing(t, now),
        ]
        for t in found
    ]  # fmt: skip
    head = ("NAMESPACE", "NAME", "TARGET", "MODE", "PHASE", "READY", "FINDING", "GAIN", "NOW")
    return columns(head, body, width)


def doing(tuner: Tuner, now: float) -> str:
    """What it does now, or why it does nothing."""
    active = tuner.active
    if active is not None and active.phase != AWAITING:
        return f"{active.name} {active.phase} for {age(active.since, now)}: {active.settings}"
    reason, message = tuner.waiting
    return f"{reason}: {message}" if message else reason or "-"


def tree(tuner: Tuner, now: float) -> list[Line]:
    """Target, pods, canary, trial, budget, why it waits, and what a person can do next."""
    looks = Part(tuner.phase, _PHASES.get(tuner.phase, "bold"))
    head = line(Part(f"{tuner.namespace}/{tuner.name}", "bold"), f"  mode {tuner.mode}  ", looks)
    if tuner.ready != "True":
        head.append(Part(f"  Ready={tuner.ready}", "bad"))
    branches: list[tuple[str, list[Line]]] = [("target", _target(tuner))]
    if tuner.finding:
        severity = f" ({tuner.severity})" if tuner.severity else ""
        branches.append(("finding", [line(Part(tuner.finding, "bold"), f"{severity} {tuner.seen}".rstrip())]))
    if tuner.active is not None:
        branches.append(("trial", _trial(tuner.active, now)))
    branches.append(("gain", [_gain(tuner)]))
    branches.append(("budget", [_budget(tuner)]))
    if tuner.waiting[0] or tuner.waiting[1]:
        branches.append(("waiting", [line(Part(tuner.waiting[0], "warn"), f"  {tuner.waiting[1]}")]))
    if tuner.recommendation:
        branches.append(("advice", [line(tuner.recommendation)]))
    branches += [("next", [line(step) for step in steps(tuner)])]
    return [head, *_branches(branches)]


def _branches(found: Sequence[tuple[str, list[Line]]]) -> list[Line]:
    out: list[Line] = []
    kept = [(name, lines) for name, lines in found if lines]
    for place, (name, lines) in enumerate(kept):
        last = place == len(kept) - 1
        for number, one in enumerate(lines):
            stem = ("└─ " if last else "├─ ") if number == 0 else ("   " if last else "│  ")
            out.append([Part(stem, "dim"), Part((name if number == 0 else "").ljust(_LABEL - 3), "dim"), *one])
    return out


def _target(tuner: Tuner) -> list[Line]:
    t = tuner.target
    if t.problem:
        return [line(f"Deployment {t.name} ", Part(f"({t.problem})", "bad"))]
    look = "good" if t.ready >= t.wanted else "bad"
    head = line(f"Deployment {t.name}  ", Part(f"{t.ready}/{t.wanted} ready", look))
    if t.paused:
        head.append(Part("  rollout paused" + (" by the trial" if tuner.active is not None else ""), "warn"))
    return [head, *(_pod(p) for p in t.pods)]


def _pod(pod: Pod) -> Line:
    state = Part("ready" if pod.ready else pod.phase if pod.phase != "Running" else "not ready",
                 "good" if pod.ready else "bad")  # fmt: skip
    restarts = f"  {pod.restarts} restarts" if pod.restarts else ""
    return line(f"pod {pod.name}  ", state, Part(f"  {pod.role}" if pod.role else "", "bold"), Part(restarts, "warn"))


def _trial(trial: Trial, now: float) -> list[Line]:
    phase = Part(trial.phase, _PHASES.get(trial.phase, "bold"))
    out = [line(Part(trial.name, "bold"), "  ", phase, f" for {age(trial.since, now)}  {trial.settings}")]
    if trial.verdict:
        seen = f"{trial.gain} ({trial.interval})" if trial.interval else trial.gain
        out.append(line("so far ", Part(trial.verdict, _LOOKS.get(trial.verdict, "")), f"  {trial.reason}  {seen}"))
    if trial.message:
        out.append(line(Part(trial.message, "dim")))
    if trial.phase == AWAITING and trial.origin:
        out.append(line(f"why: {trial.origin}"))
    return out


def _gain(tuner: Tuner) -> Line:
    done = tuner.outcomes
    parts = [f"{done[k]} {word}" for k, word in (("promoted", "kept"), ("rolledBack", "rolled back"),
             ("inconclusive", "unclear"), ("failed", "failed")) if done.get(k)]  # fmt: skip
    told = f"  of {done.get('total', 0)} finished trials: {', '.join(parts)}" if parts else "  no finished trial yet"
    return line(Part(tuner.gain or "none yet", "good" if tuner.gain else ""), told)


def _budget(tuner: Tuner) -> Line:
    most = f" of {tuner.restarts_allowed}" if tuner.restarts_allowed else ""
    trials = f"; {tuner.outcomes.get('total', 0)} of {tuner.trials_allowed} trials" if tuner.trials_allowed else ""
    return line(f"{tuner.restarts_today}{most} restarts in 24 h{trials}")


def steps(tuner: Tuner) -> list[str]:
    """Commands that make sense now."""
    own = f"-n {tuner.namespace}"
    active = tuner.active
    if active is not None and active.phase == AWAITING:
        return [f"kubectl trimtab approve {active.name} {own}", f"kubectl trimtab reject {active.name} {own}"]
    if tuner.suspended:
        return [f"kubectl trimtab resume {tuner.name} {own}"]
    if active is not None:
        return [f"kubectl trimtab rollback {tuner.name} {own}   (ends this trial)"]
    if tuner.recommendation:
        return [f"kubectl trimtab diff {tuner.name} {own}"]
    if tuner.ready != "True":
        return [f"kubectl trimtab doctor {tuner.name} {own}"]
    return []


def history(tuner: Tuner, width: int | None) -> list[Line]:
    """Every trial that is still there, oldest first."""
    if not tuner.trials:
        return [line(f"{tuner.namespace}/{tuner.name} has no trials.")]
    body: list[list[str | Part]] = [
        [
            str(t.number), t.name, t.started[:16].replace("T", " "), Part(t.phase, _PHASES.get(t.phase, "")),
            Part(t.verdict or "-", _LOOKS.get(t.verdict, "")), t.reason or "-", t.gain or "-", t.interval or "-",
            str(t.restarts), t.settings,
        ]
        for t in tuner.trials
    ]  # fmt: skip
    head = ("#", "NAME", "STARTED", "PHASE", "VERDICT", "REASON", "GAIN", "INTERVAL", "RESTARTS", "SETTINGS")
    return columns(head, body, width)


def diff(o: Json, trials: Sequence[Json]) -> list[dict[str, str]]:
    """Per setting: as found, now, recommended, on trial. "-" is the engine's default or unknown."""
    status = table(o.get("status"))
    own = sorted(trials, key=lambda t: table(t.get("spec")).get("number") or 0)
    first = table(table(own[0].get("spec")).get("baselineConfiguration")) if own else table(status.get("configuration"))
    active = next((t for t in own if table(t.get("status")).get("phase") not in ENDED), None)
    sides = {
        "found": first,
        "now": table(status.get("configuration")),
        "recommended": table(table(status.get("recommendation")).get("configuration")),
        "trial": table(table(active.get("spec")).get("configuration")) if active is not None else {},
    }
    names = sorted({n for side in sides.values() for n in side})
    return [{"setting": text(n), **{k: _value(side.get(n)) for k, side in sides.items()}} for n in names]


def _value(value: object) -> str:
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else text(value, 40)


def diff_lines(found: Sequence[dict[str, str]]) -> list[Line]:
    if not found:
        return [line("No settings are known yet.")]
    body: list[list[str | Part]] = []
    for row in found:
        now, wanted = row["now"], row["recommended"]
        marked = Part(wanted, "warn" if wanted not in ("-", now) else "")
        body.append(
            [row["setting"], row["found"], Part(now, "bold" if now != row["found"] else ""), marked, row["trial"]]
        )
    return columns(("SETTING", "AS FOUND", "NOW", "RECOMMENDED", "ON TRIAL"), body)


def explain(o: Json) -> list[Line]:
    """Findings and conditions in full: what was seen, what to do, what to leave alone."""
    status = table(o.get("status"))
    out: list[Line] = []
    for f in rows(status.get("findings")):
        lever = "" if f.get("tunable") is not False else "  no setting mends it"
        sure = f.get("confidence")
        told = f"  {text(f.get('severity'))}" + (f", confidence {sure:.0%}" if isinstance(sure, int | float) else "")
        out.append(line(Part(text(f.get("name")), "bold"), told, Part(lever, "warn")))
        for label, key in (("seen", "message"), ("do", "advice"), ("leave alone", "avoid")):
            if f.get(key):
                out.append(line(Part(f"  {label}: ", "dim"), text(f[key], 2000)))
        numbers = ", ".join(
            f"{text(k)} {v:g}" for k, v in table(f.get("evidence")).items() if isinstance(v, int | float)
        )
        if numbers:
            out.append(line(Part("  numbers: ", "dim"), numbers))
    if not out:
        out.append(line("No findings: the target was not measured yet, or nothing holds it back."))
    for c in rows(status.get("conditions")):
        name = f"{text(c.get('type'))}={text(c.get('status'))}"
        out.append(line(Part(name, "bold"), f"  {text(c.get('reason'))}  {text(c.get('message'), 2000)}"))
    return out
