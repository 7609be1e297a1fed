"""From a metrics source to the state machine's `Evidence` and the fleet's Observation. Fetching is here, meaning is in
observe/. Blocking: call from a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from trimtab.diagnose.finding import Limits
from trimtab.diagnose.from_observation import case_of
from trimtab.diagnose.rules import examine
from trimtab.errors import MetricsError
from trimtab.judge.verdict import Pair
from trimtab.observe.mapping import fleet, has_gap, observe
from trimtab.observe.observation import Observation, combine
from trimtab.observe.samples import MetricsSource, PodRef, Samples
from trimtab.plan.looks import before_spans, compared, evaluation_start, predecessor, window_seconds, windows
from trimtab.plan.preconditions import FleetView
from trimtab.plan.record import Evidence, Phase, PodView, TargetView, TrialRecord
from trimtab.plan.spec import TunerSpec

#: samples per evaluated window: enough to see a counter reset, few enough for a small query
_SAMPLES_PER_WINDOW: Final = 5
#: a source's sample may be this old and still count as fresh (three scrapes at the common 15 s, with room)
FRESH_SECONDS: Final = 45.0
#: enough to see a trend; each still holds some samples of a scrape interval of 30 s
_LOOK_WINDOWS: Final = 3


def trial_evidence(
    source: MetricsSource,
    spec: TunerSpec,
    record: TrialRecord,
    view: TargetView,
    where: Callable[[PodView], PodRef],
    now: float,
) -> Evidence:
    """Samples of canary and control for the phase at hand; `where` says how to find a pod's metrics.

    A source that fails is evidence too: the gap guardrail counts it.
    """
    against = compared(record, view)
    canary, control = [p.name for p in view.canary if p.health.ready], [p.name for p in against]
    pods = [where(p) for p in (*view.canary, *against) if p.health.ready]
    start = evaluation_start(spec, record, now)
    recent = now - spec.guardrails.window_seconds
    step = max(1.0, window_seconds(spec) / _SAMPLES_PER_WINDOW)
    judged = start is not None and record.phase is not Phase.WARMING_UP
    try:
        samples = source.fetch(pods, recent if start is None else min(start, recent), now, step)
        before, own = _before(source, spec, record, view, where, step) if judged else ((), False)
    except MetricsError as error:
        return Evidence(problem=str(error))
    watched = canary if record.phase in (Phase.PROMOTING, Phase.VERIFYING) else canary + control
    missing = [name for name in watched if has_gap(samples, name, now, FRESH_SECONDS)]
    return Evidence(
        metrics_ok=bool(canary) and not missing,
        problem=f"no fresh samples of {', '.join(missing)}" if missing else "",
        recent_canary=fleet(samples, canary, recent, now),
        recent_control=fleet(samples, control, recent, now),
        pairs=_pairs(samples, canary, control, windows(spec, start, now)) if start is not None else (),
        canary=fleet(samples, canary, start, now) if start is not None else None,
        control=fleet(samples, control, start, now) if start is not None else None,
        before=before,
        own=own,
    )


def _before(
    source: MetricsSource,
    spec: TunerSpec,
    record: TrialRecord,
    view: TargetView,
    where: Callable[[PodView], PodRef],
    step: float,
) -> tuple[tuple[Pair, ...], bool]:
    """Windows before the trial: the pod that was there then beside the control; and whether it tells of the canary.

    A source that no longer has them has none: then less is known of the pods.
    """
    spans = before_spans(spec, record)
    peer, own = predecessor(record, view)
    against = compared(record, view)
    if not spans or peer is None or not against:
        return (), False
    there = next((where(p) for p in view.canary if p.name == peer.name), None)
    # a pod that is gone is asked for by its name only: its address may be another's by now
    old = there or replace(where(against[0]), name=peer.name, ip=None)
    samples = source.fetch([old, *(where(p) for p in against)], spans[0][0], spans[-1][1], step)
    return _pairs(samples, [peer.name], [p.name for p in against], spans), own


def _pairs(
    samples: Samples, canary: Sequence[str], control: Sequence[str], spans: Sequence[tuple[float, float]]
) -> tuple[Pair, ...]:
    """Canary and control over the same minutes; a span in which either is unknown is left out."""
    out: list[Pair] = []
    for start, end in spans:
        ours = fleet(samples, canary, start, end)
        each = [seen for pod in sorted(set(control)) if (seen := observe(samples, pod, start, end)) is not None]
        theirs = combine(each)
        if ours is not None and theirs is not None:
            out.append(Pair(start, end, ours, theirs, tuple(each)))
    return tuple(out)


@dataclass(frozen=True)
class Look:
    """The target over some seconds: as a whole, cut into windows, and each pod's windows where there are several pods.

    trouble: what is wrong with the metrics, "" when nothing is.
    """

    observation: Observation | None = None
    trouble: str = ""
    windows: tuple[Observation, ...] = ()
    by_pod: Mapping[str, tuple[Observation, ...]] = field(default_factory=dict)


def look_at(source: MetricsSource, pods: Sequence[PodRef], seconds: float, now: float) -> Look:
    """The whole target over the last `seconds`."""
    try:
        samples = source.fetch(pods, now - seconds, now, max(1.0, seconds / 30))
    except MetricsError as error:
        return Look(trouble=error.told)
    names = [p.name for p in pods]
    missing = [n for n in names if has_gap(samples, n, now, FRESH_SECONDS)]
    if missing and len(missing) == len(names):
        text = (
            "the metrics source has no fresh vLLM series of any pod: check scraping "
            "(and that --disable-log-stats is not set)"
        )
        return Look(trouble=text)
    seen = [n for n in names if n not in missing]
    by_pod = {n: _windows(samples, [n], seconds, now) for n in seen} if len(seen) > 1 else {}
    return Look(fleet(samples, seen, now - seconds, now), "", _windows(samples, seen, seconds, now), by_pod)


def _windows(samples: Samples, pods: Sequence[str], seconds: float, now: float) -> tuple[Observation, ...]:
    """What is known of each third of the time; a third without samples is left out: a slow scrape is no silence."""
    step = seconds / _LOOK_WINDOWS
    cuts = [now - seconds + i * step for i in range(_LOOK_WINDOWS)]
    return tuple(o for start in cuts if (o := fleet(samples, pods, start, start + step)) is not None)


def fleet_observation(
    source: MetricsSource, pods: Sequence[PodRef], seconds: float, now: float
) -> tuple[Observation | None, str]:
    """Observation and trouble of `look_at`."""
    look = look_at(source, pods, seconds, now)
    return look.observation, look.trouble


def with_findings(view: FleetView, spec: TunerSpec, look: Look | None = None) -> FleetView:
    """The view with what the rules say about its observation; unchanged where observation or settings are unknown.

    look: its windows show trends, its pods what an average hides.
    """
    if view.observation is None or view.configuration is None:
        return view
    slo = spec.objective.slo
    limits = Limits(slo.ttft_seconds, slo.tpot_seconds)
    windows = look.windows if look is not None and look.windows else (view.observation,)
    by_pod = look.by_pod if look is not None else {}
    return replace(view, findings=examine(case_of(windows, view.configuration, limits, parts=by_pod)))
