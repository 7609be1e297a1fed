"""What a person must know first: is it safe, and if not, who has to do what. Pure; `now` in unix seconds."""

from __future__ import annotations

from typing import Final, NamedTuple

from trimtab_operator.plugin.objects import AWAITING, Target, Trial, Tuner, age, unix

#: phases in which the operator reads metrics all the time, so that a long silence means that nobody watches
WATCHED: Final = frozenset({"WarmingUp", "Measuring", "Confirming", "Verifying", "MeasuringBefore", "MeasuringAfter"})
#: beyond the gap of metrics after which the operator itself ends a trial: it writes what it saw every 15 s, and a new
#: process needs the lease of the old one (15 s) and its start
SILENCE_SECONDS: Final = 60.0
#: phases in which pods restart one by one, so that one that is not ready is no trouble
_RESTARTING: Final = frozenset({"Starting", "Promoting", "RollingBack", "Returning"})
#: of a Switchback: phases in which every pod runs the settings tried
_WHOLE_TARGET: Final = frozenset({"Starting", "WarmingUp", "Measuring", "Confirming"})
#: words of a Safety, the most urgent first
URGENCY: Final = ("LOOK", "ASKS", "UNKNOWN", "OK")


class Safety(NamedTuple):
    """word: OK, LOOK (something is wrong now), ASKS (safe, but a person has to act) or UNKNOWN. look: of a badge."""

    word: str
    look: str
    text: str


def ok(text: str) -> Safety:
    return Safety("OK", "badge-good", text)


def wrong(text: str) -> Safety:
    return Safety("LOOK", "badge-bad", text)


def asks(text: str) -> Safety:
    return Safety("ASKS", "badge-ask", text)


def unknown(text: str) -> Safety:
    return Safety("UNKNOWN", "badge-dim", text)


def safety(tuner: Tuner, now: float) -> Safety:
    """The worst that is known."""
    active, target = tuner.active, tuner.target
    if active is not None and (silent := silence(tuner, now)) is not None:
        return wrong(
            f"Nobody watches {active.name}: the operator has not looked for {silent}. Is it running? "
            f"{_mixed(active, target)}"
        )
    if trouble := _pods(tuner):
        return wrong(f"{trouble} {_doing(tuner) if active is not None else 'No trial is under way.'}")
    if active is not None and active.phase == AWAITING:
        return asks(f"{active.name} waits for your yes or no. Nothing changes before that.")
    if not tuner.looked:
        return unknown("No operator has looked at it yet; nothing was changed.")
    if active is None and tuner.stalled[0]:
        reason = tuner.stalled[0]
        if reason in tuner.found:  # the operator refuses to tune an engine that is broken
            return wrong(f"The engine is broken ({reason}), which no setting mends. Nothing is tuned.")
        return asks(f"Nothing is on trial. It cannot go on without a person ({reason}).")
    if target.problem:
        return unknown(f"{_doing(tuner)} The pods cannot be seen: {target.problem}")
    return ok(_doing(tuner))


def silence(tuner: Tuner, now: float) -> str | None:
    """How long nobody has looked at a trial that must be watched; None where it is watched or need not be."""
    trial = tuner.active
    if trial is None or trial.phase not in WATCHED:
        return None
    last = trial.seen if unix(trial.seen) > unix(trial.since) else trial.since
    quiet = now - unix(last)
    return age(last, now) if unix(last) and quiet > tuner.metrics_gap_seconds + SILENCE_SECONDS else None


def _pods(tuner: Tuner) -> str:
    """What is wrong with the target's pods, "" where nothing is or nothing is known."""
    target, active = tuner.target, tuner.active
    if target.problem == "not found":
        return f"Deployment {target.name} does not exist."
    missing = target.wanted - target.ready
    expected = 1 if active is not None and active.phase in _RESTARTING else 0
    if target.problem or missing <= expected:
        return ""
    return f"{missing} of {target.wanted} pods {'is' if missing == 1 else 'are'} not ready."


def _doing(tuner: Tuner) -> str:
    """What differs from what ran before, in one sentence."""
    active, target = tuner.active, tuner.target
    if active is not None:
        return f"{_mixed(active, target)}{_guard(active)}"
    if tuner.suspended:
        return "Paused: nothing is changed."
    if tuner.mode == "Recommend":
        return "Mode Recommend only tells: the target is never changed."
    pods = f"All {target.wanted} pods serve" if target.wanted and not target.problem else "The target serves"
    if target.wanted == 1 and not target.problem:
        pods = "The pod serves"
    return f"{pods}; no trial is under way."


def _mixed(trial: Trial, target: Target) -> str:
    """Which pods run what."""
    total = target.wanted
    if trial.phase == "RollingBack":
        why = f" ({trial.reason})" if trial.reason else ""
        return f"{trial.name} is rolled back{why}: the target gets back what ran before."
    if trial.phase == "Verifying":
        return f"{trial.name} was better and is on all pods; they are watched, and restored if it gets worse."
    if trial.phase == "Promoting":
        done = f", {target.updated} of {total} done" if total else ""
        return f"{trial.name} was better: pod by pod it is rolled out{done}."
    if trial.strategy == "Switchback":
        what = "the settings tried" if trial.phase in _WHOLE_TARGET else "what they ran before"
        return f"The pods run {what} (Switchback)."
    rest = f"the other {total - 1} run" if total > 2 else "the other runs" if total == 2 else "the others run"
    one = f"1 of {total} pods" if total else "One pod"
    verb = "starts with" if trial.phase == "Starting" else "tries"
    return f"{one} {verb} other settings, {rest} what ran before."


def _guard(trial: Trial) -> str:
    return " Guardrails end it by themselves." if trial.phase in WATCHED - {"MeasuringBefore", "MeasuringAfter"} else ""
