"""When a trial is looked at, which minutes are compared, and with which pods. Pure.

The judge's intervals hold at any number of looks, so a measurement is looked at whenever a window is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from trimtab.judge.bias import Start
from trimtab.judge.verdict import MIN_WINDOWS
from trimtab.plan.record import Peer, Phase, PodView, TargetView, TrialKind, TrialRecord
from trimtab.plan.spec import TunerSpec

#: windows in `measurementSeconds`; more gives the judge more of them, fewer gives each more requests
WINDOWS: Final = 10
#: no window shorter than this, or than three scrapes where those are faster
MIN_WINDOW_SECONDS: Final = 6.0
_MIN_SCRAPES: Final = 3.0
#: a warm-up that does not settle ends after so many times `warmupSeconds`
_LONGEST_WARMUP: Final = 3.0
#: a process older than this may have slowed by its age: latency was seen to step up after about 7 h (vllm#44175)
AGED_SECONDS: Final = 6 * 3600.0
_HOUR: Final = 3600.0


def window_seconds(spec: TunerSpec) -> float:
    direct = spec.metrics.direct
    least = MIN_WINDOW_SECONDS if direct is None else min(MIN_WINDOW_SECONDS, _MIN_SCRAPES * direct.interval_seconds)
    return max(least, spec.rollout.measurement_seconds / WINDOWS)


def windows(spec: TunerSpec, start: float, end: float) -> list[tuple[float, float]]:
    """The paired windows of [start, end], oldest first; the rest that does not fill a window is left out."""
    length = window_seconds(spec)
    return [(start + i * length, start + (i + 1) * length) for i in range(count(spec, start, end))]


def count(spec: TunerSpec, start: float, end: float) -> int:
    """Full windows in [start, end]."""
    return max(0, int((end - start + 1e-6) / window_seconds(spec)))


# --- when -------------------------------------------------------------------------------------------------------------
def evaluation_start(spec: TunerSpec, record: TrialRecord, now: float) -> float | None:
    """Since when pairs are needed, if the phase looks at them now; None when it does not.

    `record.evaluations` is the number of windows at the latest look.
    """
    rollout = spec.rollout
    if record.phase is Phase.WARMING_UP:
        since = record.phase_since
        due = now - since >= rollout.warmup_seconds and count(spec, since, now) > record.evaluations
        return since if due else None
    start = record.measure_from if record.measure_from is not None else record.phase_since
    if record.phase is Phase.MEASURING:
        full = count(spec, start, now) >= max(MIN_WINDOWS, record.evaluations + 1)
        return start if full or now - start >= rollout.max_measurement_seconds else None
    if record.phase is Phase.CONFIRMING:
        since = record.confirm_from if record.confirm_from is not None else record.phase_since
        return start if now - since >= rollout.confirmation_seconds else None
    return None


def longest_warmup(spec: TunerSpec) -> float:
    rollout = spec.rollout
    most = rollout.max_warmup_seconds
    return _LONGEST_WARMUP * rollout.warmup_seconds if most is None else most


# --- before the trial -------------------------------------------------------------------------------------------------
def baseline_seconds(spec: TunerSpec, *, again: bool = False) -> float:
    """A/A windows that a trial waits for; more of them before another start of what is nearly decided: waiting restarts
    nothing and harms nobody."""
    rollout = spec.rollout
    if rollout.baseline_seconds is not None:
        return rollout.baseline_seconds
    return rollout.max_measurement_seconds if again else rollout.measurement_seconds


def rest_seconds(spec: TunerSpec, *, again: bool = False) -> float:
    """How long a target must be unchanged, so that its pods are warm and their own differences can be measured."""
    baseline = baseline_seconds(spec, again=again)
    return spec.rollout.warmup_seconds + baseline if baseline > 0 else 0.0


def undisturbed_since(spec: TunerSpec, stable_seconds: float, now: float) -> float:
    """Since when the pods are warm, for a target that is unchanged for `stable_seconds`."""
    return now - max(0.0, stable_seconds - spec.rollout.warmup_seconds)


def before_spans(spec: TunerSpec, record: TrialRecord) -> list[tuple[float, float]]:
    """The windows before the trial that are compared (A/A); none where nothing is known of the pods then."""
    if record.undisturbed_since is None or baseline_seconds(spec) <= 0:
        return []
    end = record.started_at
    start = max(record.undisturbed_since, end - spec.rollout.max_measurement_seconds)
    full = count(spec, start, end)
    return windows(spec, end - full * window_seconds(spec), end)


def predecessor(record: TrialRecord, view: TargetView) -> tuple[Peer | None, bool]:
    """The pod of before that is compared with the control, and whether it tells the canary's own difference.

    A policy is tried in a pod that stays: it is its own predecessor. Other trials start a new pod: it has the
    difference of the old one only as far as that came from the place (node, slot of this machine), not the process.
    """
    if not view.canary:
        return None, False
    canary = view.canary[0]
    if record.kind is TrialKind.POLICY:
        return Peer(canary.name, canary.place), True
    there = {p.name for p in view.control}
    gone = [p for p in record.peers if p.name not in there and p.name != canary.name]
    same = [p for p in gone if p.place and p.place == canary.place]
    return (same[0], True) if same else (gone[0] if gone else None, False)


# --- with which pods --------------------------------------------------------------------------------------------------
def compared(record: TrialRecord, view: TargetView) -> tuple[PodView, ...]:
    """The control pods that the canary is compared with: where there are enough, not those that are old beside it."""
    ready = tuple(p for p in view.control if p.health.ready)
    if record.kind is TrialKind.POLICY:
        return ready  # nothing was restarted
    young = tuple(p for p in ready if (age := _age(record, p)) is not None and age < AGED_SECONDS)
    return young if len(young) >= 2 else ready


def age_remark(record: TrialRecord, view: TargetView) -> str:
    """What is to be said where a fresh canary is compared with old processes only; "" where it is not."""
    if record.kind is TrialKind.POLICY:
        return ""
    ages = [age for p in compared(record, view) if (age := _age(record, p)) is not None]
    if not ages or min(ages) < AGED_SECONDS:
        return ""
    return f"the control's processes ran for {median(ages) / _HOUR:.0f} h: the fresh start may be part of a gain"


def _age(record: TrialRecord, pod: PodView) -> float | None:
    return None if pod.started_at is None else record.started_at - pod.started_at


# --- several starts of one configuration ------------------------------------------------------------------------------
def earlier_starts(record: TrialRecord, trials: Sequence[TrialRecord]) -> tuple[Start, ...]:
    """What earlier trials of the same configuration against the same baseline have shown, oldest first.

    Only those that asked for another start: what ended otherwise had its answer.
    """
    out = []
    for trial in sorted(trials, key=lambda t: t.number):
        same = trial.configuration == record.configuration and trial.baseline == record.baseline
        if not same or trial.number >= record.number or trial.kind is not record.kind or trial.verdict is None:
            continue
        if trial.verdict.reason == "AnotherStartNeeded" and trial.verdict.start is not None:
            out.append(trial.verdict.start)
    return tuple(out)
