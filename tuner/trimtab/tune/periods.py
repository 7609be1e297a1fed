"""Evidence of a switchback: its periods cut into windows and laid beside each other. Blocking: call from a thread.

The k-th window of the candidate is compared with the k-th of the baseline before and the k-th after it together: their
mean lies at the candidate's own time, so a steady drift of the load cancels in every pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from trimtab.errors import MetricsError
from trimtab.judge.guardrail import PodHealth
from trimtab.judge.windows import Pair
from trimtab.observe.mapping import fleet, has_gap
from trimtab.observe.observation import Observation, combine
from trimtab.observe.samples import MetricsSource, PodRef, Samples
from trimtab.plan.looks import windows
from trimtab.plan.record import Evidence, Phase, PodView, Span, Strategy, TargetView, TrialRecord
from trimtab.plan.spec import TunerSpec
from trimtab.plan.switchback import measured
from trimtab.tune.evidence import FRESH_SECONDS, trial_evidence

#: phases in which the pod with the candidate serves alone
_CANDIDATE: Final = frozenset({Phase.WARMING_UP, Phase.MEASURING, Phase.VERIFYING})
_BASELINE: Final = frozenset({Phase.MEASURING_BEFORE, Phase.MEASURING_AFTER})
_GONE: Final = PodHealth(False, 0, None, None, None, age_seconds=0.0)
#: samples per window, as in the canary's evidence
_SAMPLES_PER_WINDOW: Final = 5


def evidence_of(
    source: MetricsSource,
    spec: TunerSpec,
    record: TrialRecord,
    view: TargetView,
    where: Callable[[PodView], PodRef],
    now: float,
) -> Evidence:
    """Samples for the phase at hand, for a trial of either strategy; `where` says how to find a pod's metrics, also
    those of a pod that is gone."""
    if record.strategy is Strategy.CANARY:
        return trial_evidence(source, spec, record, view, where, now)
    if record.phase not in _CANDIDATE | _BASELINE:
        return Evidence()
    serving = [p for p in (view.canary if record.phase in _CANDIDATE else view.control) if p.health.ready]
    recent = now - spec.guardrails.window_seconds
    step = max(1.0, windows(spec, 0.0, 1e6)[0][1] / _SAMPLES_PER_WINDOW)
    try:
        samples = source.fetch([where(p) for p in serving], recent, now, step)
        known = _periods(source, spec, record, where, now, step)
        usual = _usual(source, spec, record, where, step)
    except MetricsError as error:
        return Evidence(problem=error.told)
    missing = [p.name for p in serving if has_gap(samples, p.name, now, FRESH_SECONDS)]
    lately = fleet(samples, [p.name for p in serving], recent, now)
    return Evidence(
        metrics_ok=bool(serving) and not missing,
        problem=f"no fresh samples of {', '.join(missing)}" if missing else "",
        recent_canary=lately if record.phase in _CANDIDATE else None,
        recent_control=usual if record.phase in _CANDIDATE else lately,
        **known,
    )


def _usual(
    source: MetricsSource, spec: TunerSpec, record: TrialRecord, where: Callable[[PodView], PodRef], step: float
) -> Observation | None:
    """The baseline's last seconds, for the guardrails while the candidate serves."""
    if record.phase not in (Phase.WARMING_UP, Phase.MEASURING) or not record.spans:
        return None
    first = record.spans[0]
    end = first.end if first.end is not None else first.start
    start = max(first.start, end - spec.guardrails.window_seconds)
    return fleet(source.fetch([_ref(first, where)], start, end, step), [first.pod], start, end)


def _periods(
    source: MetricsSource,
    spec: TunerSpec,
    record: TrialRecord,
    where: Callable[[PodView], PodRef],
    now: float,
    step: float,
) -> dict[str, Any]:
    """Pairs, totals and drift, where the period under way is long enough; nothing else costs a query."""
    if not measured(record, spec, now):
        return {}
    seconds = spec.rollout.measurement_seconds
    pods = [_ref(s, where) for s in record.spans]
    samples = source.fetch(pods, record.spans[0].start, now, step)
    cut = [_cut(samples, spec, s, seconds) for s in record.spans]
    totals = [fleet(samples, [s.pod], s.start, s.start + seconds) for s in record.spans]
    if record.phase is Phase.MEASURING_BEFORE:
        return {"control": totals[0]}
    if record.phase is Phase.MEASURING:
        return {"control": totals[0], "canary": totals[1], "pairs": _beside(cut[1], cut[0])}
    both = [combine([a, b]) if a is not None and b is not None else None for a, b in zip(cut[0], cut[2], strict=True)]
    # where the first period's samples are lost there are no pairs, and so no verdict
    around = combine([t for t in (totals[0], totals[2]) if t is not None])
    pairs, drift = _beside(cut[1], both), _beside(cut[2], cut[0])
    return {"canary": totals[1], "control": around, "pairs": pairs, "drift": drift}


def _cut(samples: Samples, spec: TunerSpec, span: Span, seconds: float) -> list[Observation | None]:
    spans = windows(spec, span.start, span.start + seconds)
    return [fleet(samples, [span.pod], start, end) for start, end in spans]


def _beside(ours: Sequence[Observation | None], theirs: Sequence[Observation | None]) -> tuple[Pair, ...]:
    """Windows of the same number side by side; one that is unknown on either side is left out. Times are numbers."""
    rows = enumerate(zip(ours, theirs, strict=True))
    return tuple(Pair(float(k), float(k + 1), a, b) for k, (a, b) in rows if a is not None and b is not None)


def _ref(span: Span, where: Callable[[PodView], PodRef]) -> PodRef:
    return where(PodView(span.pod, span.ip, _GONE))
