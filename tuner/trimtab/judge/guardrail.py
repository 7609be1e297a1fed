"""Guardrails: must the trial end now? Few samples, one look per tick, near-pure in the way of argo-rollouts' analysis.

A breach is `infeasible` when the configuration itself is the likely cause (crash, out of memory, never ready, hang):
search never proposes it again. An image that cannot be pulled or a pod that finds no node says nothing about the
configuration.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from trimtab.judge.objective import left_open
from trimtab.judge.stats import quantile_exceeds
from trimtab.observe.observation import Observation

#: waiting reasons that no configuration of the engine causes
_NOT_OURS: Final = frozenset({
    "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable",
    "ImageInspectError", "CreateContainerConfigError", "CreateContainerError",
})  # fmt: skip
#: still on the way at the deadline: slow image or volume, not the engine
_NOT_STARTED: Final = frozenset({"ContainerCreating", "PodInitializing"})
#: the line of a Python traceback that says what it was; vLLM's API server says only that the cause is further up
_ERROR: Final = re.compile(r"\b\w*(Error|Exception)\b[^:]*: (?!.*(root cause|stack trace) \(?above)")
#: z of each p99 bound in the latency guardrail: it is asked on every tick, so it must be sure
_LATENCY_Z = 1.645
#: seconds without a token beside a working control that make a hang
_HANG_SECONDS = 20.0


@dataclass(frozen=True)
class PodHealth:
    """The canary's container as the kubelet reports it: reasons and exit code of its state, not of its last state.

    restarts: of this container, since the pod exists. last_log: tail of the (previous) container's log, may be empty.
    """

    ready: bool
    restarts: int
    waiting_reason: str | None
    terminated_reason: str | None
    exit_code: int | None
    age_seconds: float
    last_log: str = ""
    scheduled: bool = True


@dataclass(frozen=True)
class GuardrailLimits:
    max_error_percent: float
    max_latency_ratio: float
    max_restarts: int
    min_requests: int
    #: the objective's SLO
    ttft_seconds: float | None = None
    tpot_seconds: float | None = None


@dataclass(frozen=True)
class Breach:
    """reasons: OutOfMemory, CrashedAtStart, CrashedUnderLoad, NeverReady, CanaryHangs (infeasible); ImageUnavailable,
    NotScheduled, StartTimedOut, ErrorsTooHigh, LatencyTooHigh (not)."""

    reason: str
    message: str
    infeasible: bool


def startup_breach(health: PodHealth, age_seconds: float, deadline_seconds: float) -> Breach | None:
    """Before the canary is ready: a crash ends the trial at the first one, an unready pod at the deadline (seconds
    since creation)."""
    if health.waiting_reason in _NOT_OURS:
        text = f"The canary's container cannot be created: {health.waiting_reason}."
        return Breach("ImageUnavailable", text, False)
    if health.restarts >= 1 or _crashed(health):
        return _crash("CrashedAtStart", "The canary's engine died before it was ready", health)
    if health.ready or age_seconds <= deadline_seconds:
        return None
    late = f"after {age_seconds:.0f} s (deadline {deadline_seconds:.0f} s)"
    if not health.scheduled:
        text = f"No node took the canary {late}. Free a GPU, or set rollout.maxSurge to 0."
        return Breach("NotScheduled", text, False)
    if health.waiting_reason in _NOT_STARTED:
        text = f"The canary's container has not started {late}: {health.waiting_reason}."
        return Breach("StartTimedOut", text, False)
    return Breach("NeverReady", f"The canary is not ready {late}.{_tail(health)}", True)


def serving_breach(
    health: PodHealth, canary: Observation | None, control: Observation | None, limits: GuardrailLimits
) -> Breach | None:
    """While the canary serves. The observations cover the last guardrail window; unknown ones breach nothing (a gap
    has its own limit)."""
    deaths = health.restarts + (1 if not health.ready and _crashed(health) and health.waiting_reason is None else 0)
    if deaths > limits.max_restarts or health.waiting_reason == "CrashLoopBackOff":
        return _crash("CrashedUnderLoad", "The canary's engine died under load", health)
    if canary is None:
        return None
    return _errors(canary, control, limits) or _hang(canary, control) or _latency(canary, control, limits)


def _crashed(health: PodHealth) -> bool:
    died = health.exit_code not in (None, 0) or health.terminated_reason in ("OOMKilled", "Error")
    return health.waiting_reason == "CrashLoopBackOff" or died


def _crash(reason: str, what: str, health: PodHealth) -> Breach:
    text = health.last_log.lower()
    if health.terminated_reason == "OOMKilled" or "out of memory" in text or "outofmemoryerror" in text:
        reason = "OutOfMemory"
    facts = [f for f in (health.terminated_reason, health.waiting_reason) if f]
    if health.exit_code is not None:
        facts.append(f"exit code {health.exit_code}")
    if health.restarts:
        facts.append(f"{health.restarts} restart(s)")
    return Breach(reason, f"{what}: {', '.join(facts) or 'no state reported'}.{_tail(health)}", True)


def _tail(health: PodHealth) -> str:
    """For the log goes with the pod (marin#6230)."""
    words = last_words(health.last_log)
    return f" Last log: {words}" if words else ""


def last_words(log: str, limit: int = 300) -> str:
    """Three lines of a log from its last error on, each cut at its end; its last three where no error is named."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    found = [i for i, line in enumerate(lines) if _ERROR.search(line)]
    words = lines[found[-1] :][:3] if found else lines[-3:]
    return " | ".join(line[:limit] for line in words)[: 2 * limit]


def _errors(canary: Observation, control: Observation | None, limits: GuardrailLimits) -> Breach | None:
    """Errors beyond the control's own: a failing dependency fails both arms and is not the canary's fault."""
    share = canary.error_ratio
    if share is None or canary.requests is None or canary.requests < limits.min_requests:
        return None
    usual = (control.error_ratio if control is not None else None) or 0.0
    if 100 * (share - usual) <= limits.max_error_percent:
        return None
    beside = f"(control {usual:.1%}, limit {limits.max_error_percent:g}%)"
    text = f"{share:.1%} of the canary's {canary.requests:.0f} requests failed {beside}."
    return Breach("ErrorsTooHigh", text, False)


def _hang(canary: Observation, control: Observation | None) -> Breach | None:
    """Requests run or wait and no token comes while the control generates. /health answers 200 all the while
    (vllm#42897); where none runs and all wait, blocks are held by nobody (docs/diagnose.md, LeakedBlocks)."""
    if control is None or not control.generated_tokens or canary.generated_tokens != 0:
        return None
    running, waiting = canary.running or 0.0, canary.waiting or 0.0
    if max(running, waiting) < 0.5 or canary.window_seconds < _HANG_SECONDS:
        return None
    has = f"runs {running:.1f} requests" if running >= 0.5 else f"has {waiting:.1f} requests waiting and none running"
    return Breach("CanaryHangs", f"The canary {has} and generated no token in {canary.window_seconds:.0f} s.", True)


def _latency(canary: Observation, control: Observation | None, limits: GuardrailLimits) -> Breach | None:
    if control is None:
        return None
    free = left_open(limits.ttft_seconds, limits.tpot_seconds)
    for name, ours, theirs in (
        ("TTFT", canary.ttft_seconds, control.ttft_seconds),
        ("TPOT", canary.tpot_seconds, control.tpot_seconds),
    ):
        most = max(limits.max_latency_ratio, _gain(canary, control, limits) if name in free else 0.0)
        if quantile_exceeds(ours, theirs, most, z=_LATENCY_Z, least=limits.min_requests):
            a, b = (h.quantile(0.99) if h is not None else None for h in (ours, theirs))
            limit = f"limit {most:.3g} x"
            text = f"p99 {name} of the canary is {a or 0:.3g} s, the control's {b or 0:.3g} s ({limit})."
            return Breach("LatencyTooHigh", text, False)
    return None


def _gain(canary: Observation, control: Observation, limits: GuardrailLimits) -> float:
    """Goodput of the canary over the control's, taken low: as if of the canary one request less, of the control one
    more had met the SLO. 0 where too little is known."""
    rates: list[float] = []
    for o, other in ((canary, -1.0), (control, 1.0)):
        rate, share = o.useful_tokens_per_second, o.attainment(limits.ttft_seconds, limits.tpot_seconds)
        if not rate or share is None or o.finished is None or o.finished < max(1, limits.min_requests):
            return 0.0
        rates.append(rate / max(1, o.pods) * min(1.0, max(0.0, share + other / o.finished)))
    return rates[0] / rates[1]
