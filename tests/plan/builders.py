"""Small makers for plan tests: specs, records, views and evidence with the few fields a test is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trimtab.engine.settings import Configuration
from trimtab.judge.guardrail import PodHealth
from trimtab.judge.verdict import Pair
from trimtab.observe.observation import Histogram, Observation
from trimtab.plan.record import Evidence, Phase, PodView, TargetView, Template, TrialRecord
from trimtab.plan.spec import TunerSpec

NOW = 1_800_000_000.0
HEALTHY = PodHealth(
    ready=True, restarts=0, waiting_reason=None, terminated_reason=None, exit_code=None, age_seconds=100.0
)
STARTING = replace(HEALTHY, ready=False, age_seconds=1.0)
CRASHED = replace(
    HEALTHY, ready=False, restarts=1, waiting_reason="CrashLoopBackOff", terminated_reason="Error", exit_code=1
)


def spec(**sections: Any) -> TunerSpec:
    base: dict[str, Any] = {
        "targetRef": {"name": "llm"},
        "mode": "Auto",
        "metrics": {"direct": {}},
        "rollout": {
            "warmupSeconds": 10,
            "measurementSeconds": 60,
            "confirmationSeconds": 30,
            "maxMeasurementSeconds": 120,
            "verificationSeconds": 20,
            "progressDeadlineSeconds": 100,
        },
        "guardrails": {"maxMetricsGapSeconds": 40, "minRequests": 5},
    }
    for key, value in sections.items():
        base[key] = {**base.get(key, {}), **value} if isinstance(value, dict) else value
    return TunerSpec.parse(base)


def record(phase: Phase = Phase.STARTING, since: float = NOW, **changes: Any) -> TrialRecord:
    started = TrialRecord(
        name="llm-1",
        number=1,
        configuration=Configuration.of(max_num_seqs=32),
        baseline=Configuration.of(max_num_seqs=128),
        phase=phase,
        phase_since=since,
        started_at=since,
        replicas=3,
    )
    return replace(started, **changes)


def pods(*healths: PodHealth, prefix: str = "old") -> tuple[PodView, ...]:
    return tuple(PodView(f"{prefix}-{i}", "10.0.0.1", h) for i, h in enumerate(healths))


def view(**changes: Any) -> TargetView:
    held = TargetView(
        template=Template.CANDIDATE,
        paused=True,
        held=True,
        replicas=3,
        settled=False,
        canary=pods(HEALTHY, prefix="new"),
        control=pods(HEALTHY, HEALTHY),
    )
    return replace(held, **changes)


def observation(
    tokens: float = 3000.0, seconds: float = 30.0, ttft: float = 0.3, finished: float = 60.0
) -> Observation:
    """One pod: `finished` requests with all TTFT just under `ttft`, `tokens` useful tokens."""
    bounds = (0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, float("inf"))
    counts = tuple(finished if b >= ttft else 0.0 for b in bounds)
    latency = Histogram(bounds, counts, finished * ttft)
    return Observation(
        pods=1,
        window_seconds=seconds,
        requests=finished,
        finished=finished,
        engine_aborts=0.0,
        engine_errors=0.0,
        http_errors=0.0,
        preemptions=0.0,
        generated_tokens=tokens,
        useful_tokens=tokens,
        ttft_seconds=latency,
        tpot_seconds=latency,
    )


def evidence(
    gain: float = 0.0, start: float = NOW, windows: int = 10, scatter: float = 0.02, **changes: Any
) -> Evidence:
    """Canary with `gain` more useful tokens than control in each window, with a noise that is the same each time: with
    the usual `scatter` ten windows are clear, with 0.2 they are not.
    """
    pairs = []
    for i in range(windows):
        noise = 1 + scatter * ((i * 7 % 5) - 2)
        at = start + 6.0 * i
        pairs.append(
            Pair(
                at,
                at + 6.0,
                observation(600 * (1 + gain) * noise, 6.0, finished=20),
                observation(600, 6.0, finished=20),
            )
        )
    seconds = 6.0 * windows
    made = Evidence(
        metrics_ok=True,
        recent_canary=observation(),
        recent_control=observation(),
        pairs=tuple(pairs),
        canary=observation(6000 * (1 + gain), seconds, finished=200),
        control=observation(6000, seconds, finished=200),
    )
    return replace(made, **changes)
