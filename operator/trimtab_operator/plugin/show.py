"""Tuners as lines: one for each in a list, a tree for one. Pure; `now` in unix seconds; width: columns of the terminal,
None where nothing is broken or cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trimtab_operator.plugin.objects import AWAITING, ENDED, Json, Pod, Trial, Tuner, age, rows, table, text
from trimtab_operator.plugin.safety import URGENCY, Safety, safety, silence
from trimtab_operator.plugin.terminal import Line, Part, columns, line, wrapped

_LOOKS: Final = {"Better": "good", "Worse": "bad", "Error": "bad", "Inconclusive": "warn"}
_PHASES: Final = {"Promoted": "good", "RolledBack": "warn", "Cancelled": "dim", AWAITING: "warn", "Failed": "bad",
                  "Pending": "warn", "Converged": "good", "Suspended": "warn"}  # fmt: skip
_LABEL: Final = 9
#: lines that one entry of the tree may take where lines are broken; `explain` has findings in full
_FINDING_LINES, _MESSAGE_LINES = 2, 4
#: pods named one by one besides the canary; the others are counted
_MOST_PODS: Final = 4
#: labels of commands
_ACTIONS: Final = frozenset({"next", "wait", "yes", "no", "check", "undo", "stop"})
#: below this a list keeps its NOW on a line of its own
_ROOM_FOR_NOW: Final = 40


def fleet(found: Sequence[Tuner], now: float, width: int | None, *, namespaces: bool = True) -> list[Line]:
    """Each: is it safe, what does it do, what did it find, why does it wait. One line, two where there is no room.

    Those that need somebody come first.
    """
    if not found:
        return [line("No VLLMTuner here. Look everywhere: kubectl trimtab status -A")]
    found = sorted(found, key=lambda t: URGENCY.index(safety(t, now).word))
    names = [([t.namespace] if namespaces else []) for t in found]
    body: list[list[str | Part]] = [
        [
            *name, Part(t.name, "bold"), _badge(safety(t, now)), _ready(t), Part(t.phase, _PHASES.get(t.phase, "")),
            t.finding or "-", t.gain or "-", t.mode, doing(t, now),
        ]
        for name, t in zip(names, found, strict=True)
    ]  # fmt: skip
    head = [*(["NAMESPACE"] if namespaces else []), "NAME", "SAFE", "PODS", "PHASE", "FINDING", "GAIN", "MODE", "NOW"]
    one = columns(head, body)
    fixed = min(sum(len(p.text) for p in row[:-1]) for row in one)
    if width is None or width - fixed >= _ROOM_FOR_NOW:
        return columns(head, body, width)
    more = [f"{t.mode}{f', gain {t.gain}' if t.gain else ''}: {doing(t, now)}" for t in found]
    return _stacked(head[:-3], [row[:-3] for row in body], more, width)


def _stacked(head: Sequence[str], body: Sequence[list[str | Part]], more: Sequence[str], width: int) -> list[Line]:
    """A table in which the rest of each row stands below it, indented."""
    first, *rows_ = columns(head, body, width)
    out = [first]
    for row, told in zip(rows_, more, strict=True):
        out += [row, *([Part("  "), *one] for one in wrapped(line(told), width - 2, _FINDING_LINES))]
    return out


def _badge(found: Safety) -> Part:
    return Part(found.word, found.look)


def _ready(tuner: Tuner) -> Part:
    """Pods, "-" where they were not looked at."""
    t = tuner.target
    if t.problem or not t.wanted:
        return Part("-")
    return Part(f"{t.ready}/{t.wanted}", "" if t.ready >= t.wanted else "bad")


def doing(tuner: Tuner, now: float) -> str:
    """What it does now, or why it does nothing."""
    active = tuner.active
    if active is not None and active.phase != AWAITING:
        return f"{active.name} {active.phase} for {age(active.since, now)}: {active.settings}"
    reason, message = tuner.waiting
    return f"{reason}: {message}" if message else reason or "-"


def tree(tuner: Tuner, now: float, width: int | None = None) -> list[Line]:
    """Is it safe; target, pods, trial, finding, budget, why it waits; what to do next, and how to stop it."""
    looks = Part(tuner.phase, _PHASES.get(tuner.phase, "bold"))
    out = [line(Part(f"{tuner.namespace}/{tuner.name}", "bold"), "  ", looks, f"  mode {tuner.mode}")]
    found = safety(tuner, now)
    out += wrapped(line(_badge(found), f" {found.text}"), width)
    branches: list[tuple[str, list[Line], int | None]] = [("target", _target(tuner), None)]
    if tuner.active is not None:
        branches.append(("trial", _trial(tuner.active, now), _MESSAGE_LINES))
    elif tuner.waiting[0] or tuner.waiting[1]:
        branches.append(("now", [line(Part(tuner.waiting[0], "bold"), f"  {tuner.waiting[1]}")], None))
    if tuner.finding:
        branches.append(("finding", [_finding(tuner)], _FINDING_LINES))
    if tuner.recommendation:
        branches.append(("advice", [line(tuner.recommendation)], _MESSAGE_LINES))
    if tuner.active is None and tuner.last is not None:
        branches.append(("last", [_last(tuner.last, now)], _FINDING_LINES))
    branches += [("gain", [_gain(tuner)], None), ("budget", [_budget(tuner)], None)]
    branches += [
        (name, [line(Part(command, "command"), f"   {why}")], None) for name, command, why in steps(tuner, now)
    ]
    return [*out, *_branches(branches, width)]


def _branches(found: Sequence[tuple[str, list[Line], int | None]], width: int | None) -> list[Line]:
    out: list[Line] = []
    inner = None if width is None else max(20, width - 3 - _LABEL)
    for place, (name, lines, most) in enumerate(found):
        last = place == len(found) - 1
        broken = [piece for one in lines for piece in wrapped(one, inner, most)]
        for number, one in enumerate(broken):
            stem = ("└─ " if last else "├─ ") if number == 0 else ("   " if last else "│  ")
            label = Part((name if number == 0 else "").ljust(_LABEL), "bold" if name in _ACTIONS else "")
            out.append([Part(stem, "dim"), label, *one])
    return out


def _finding(tuner: Tuner) -> Line:
    if tuner.finding == "None":
        return line("none: nothing is known that holds it back")
    severity = f" ({tuner.severity})" if tuner.severity else ""
    return line(Part(tuner.finding, "bold"), f"{severity}  {tuner.seen}".rstrip())


def _target(tuner: Tuner) -> list[Line]:
    t = tuner.target
    if t.problem:
        return [line(f"Deployment {t.name} ", Part(f"({t.problem})", "bad"))]
    look = "good" if t.ready >= t.wanted else "bad"
    head = line(f"Deployment {t.name}  ", Part(f"{t.ready}/{t.wanted} ready", look))
    if t.paused:
        ours = tuner.active is not None
        head.append(Part("  rollout paused by the trial" if ours else "  rollout paused", "" if ours else "warn"))
    few = len(t.pods) <= _MOST_PODS
    named = [p for p in t.pods if few or p.role == "canary" or not p.ready][: _MOST_PODS + 1]
    return [head, *(_pod(p) for p in named), *_others([p for p in t.pods if p not in named], alone=not named)]


def _pod(pod: Pod) -> Line:
    state = Part("ready" if pod.ready else pod.phase if pod.phase != "Running" else "not ready",
                 "good" if pod.ready else "bad")  # fmt: skip
    role = [Part(pod.role, "bold"), Part(" ")] if pod.role else []
    return line(*role, f"pod {pod.name}  ", state, _restarts(pod.restarts))


def _others(pods: Sequence[Pod], *, alone: bool) -> list[Line]:
    """Many pods in one line, or none where they say nothing that the line above has not said."""
    if not pods or (alone and all(p.ready and not p.restarts for p in pods)):
        return []
    ready = sum(p.ready for p in pods)
    state = Part("all ready" if ready == len(pods) else f"{ready} ready", "good" if ready == len(pods) else "bad")
    role = [Part("control", "bold"), Part(" ")] if pods[0].role == "control" else []
    count = f"{len(pods)} {'' if alone or role else 'other '}pod{'' if len(pods) == 1 else 's'}  "
    return [line(*role, count, state,
                 _restarts(sum(p.restarts for p in pods)))]  # fmt: skip


def _restarts(count: int) -> Part:
    """Of containers: the kubelet's own count, not the trials'."""
    return Part(f"  {count} container restart{'' if count == 1 else 's'}" if count else "", "warn")


def _trial(trial: Trial, now: float) -> list[Line]:
    phase = Part(trial.phase, _PHASES.get(trial.phase, "bold"))
    out = [line(Part(trial.name, "bold"), "  ", phase, f" for {age(trial.since, now)}  ", Part(trial.settings, "bold"))]
    if trial.verdict:
        seen = f"{trial.gain} ({trial.interval})" if trial.interval else trial.gain
        out.append(line("so far ", Part(trial.verdict, _LOOKS.get(trial.verdict, "")), f"  {trial.reason}  {seen}"))
    if trial.phase == AWAITING and trial.origin:
        out.append(line(f"why: {trial.origin}"))
    elif trial.message:
        out.append(line(trial.message))
    return out


def _last(trial: Trial, now: float) -> Line:
    ended = f" {age(trial.finished, now)} ago" if trial.finished else ""
    seen = f"{trial.gain} ({trial.interval})" if trial.interval else trial.gain
    return line(
        f"{trial.name} ", Part(trial.phase, _PHASES.get(trial.phase, "")), f"{ended}  {trial.reason}  {seen}  ",
        trial.settings,
    )  # fmt: skip


def _gain(tuner: Tuner) -> Line:
    done = tuner.outcomes
    parts = [f"{done[k]} {word}" for k, word in (("promoted", "kept"), ("rolledBack", "rolled back"),
             ("inconclusive", "unclear"), ("failed", "failed")) if done.get(k)]  # fmt: skip
    told = f"  {done.get('total', 0)} finished: {', '.join(parts)}" if parts else "  no finished trial yet"
    return line(Part(tuner.gain or "none yet", "good" if tuner.gain else ""), told)


def _budget(tuner: Tuner) -> Line:
    most = f" of {tuner.restarts_allowed}" if tuner.restarts_allowed else ""
    trials = f"; {tuner.outcomes.get('total', 0)} of {tuner.trials_allowed} trials" if tuner.trials_allowed else ""
    return line(f"{tuner.restarts_today}{most} restarts in 24 h{trials}")


def steps(tuner: Tuner, now: float) -> list[tuple[str, str, str]]:
    """(label, command, what it does) that make sense now; the last one stops it."""
    own = f"-n {tuner.namespace}"
    active, name = tuner.active, tuner.name

    def command(verb: str, what: str = name) -> str:
        return f"kubectl trimtab {verb} {what} {own}"

    if tuner.suspended:
        first = [("next", command("resume"), "it goes on")]
        return first if active is None else [("wait", command("watch"), f"{active.name} is being rolled back"), *first]
    out: list[tuple[str, str, str]] = []
    if active is not None and active.phase == AWAITING:
        out += [("yes", command("approve", active.name), "one canary starts"),
                ("no", command("reject", active.name), "not proposed again")]  # fmt: skip
    elif active is not None and active.phase == "RollingBack":
        return [("stop", command("pause"), "no other trial begins after it")]
    elif active is not None and silence(tuner, now):
        return [("check", command("doctor"), "is the operator running?"),
                ("stop", command("rollback"), "needs it; without it: docs/safety.md")]  # fmt: skip
    elif active is not None:
        return [("stop", command("rollback"), "ends this trial, then pauses")]
    if tuner.stalled[0] in tuner.found:
        out.append(("check", command("explain"), "what was seen, what to do"))
    elif not tuner.looked or tuner.stalled[0]:
        out.append(("check", command("doctor"), "tells what is missing"))
    elif tuner.recommendation:
        out.append(("next", command("diff"), "the patch to apply"))
    if tuner.kept is not None:
        out.append(("undo", command("rollback"), f"back to before {tuner.kept.name}; restarts every pod"))
    if tuner.mode != "Recommend":
        out.append(("stop", command("pause"), "no other trial begins"))
    return out


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
    fits = max(sum(len(p.text) for p in row) for row in columns(head, body))
    if width is None or fits <= width:
        return columns(head, body, width)
    short: list[list[str | Part]] = [[row[0], row[1], row[3], row[4], row[6], t.reason or "-"]
                                     for row, t in zip(body, tuner.trials, strict=True)]  # fmt: skip
    more = [
        f"{t.settings}; {f'{t.interval}, ' if t.interval else ''}{t.restarts} restart{'' if t.restarts == 1 else 's'}, "
        f"{t.started[:16].replace('T', ' ')}"
        for t in tuner.trials
    ]
    return _stacked(("#", "NAME", "PHASE", "VERDICT", "GAIN", "REASON"), short, more, width)


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
