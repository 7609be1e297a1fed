"""QueueOverCapacity: half of the requests queue longer than the TTFT limit. Needs that limit; a queue alone is not a
fault."""

from __future__ import annotations

from trimtab.diagnose.finding import Finding, Limits, Severity
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Observation


def rule(observation: Observation, configuration: Configuration, limits: Limits) -> Finding | None:
    if limits.ttft_seconds is None or observation.queue_seconds is None:
        return None
    queue = observation.queue_seconds.quantile(0.5)
    if queue is None or queue <= limits.ttft_seconds:
        return None
    return Finding(
        "QueueOverCapacity", Severity.WARNING, 0.75,
        f"Half of the requests queue for more than {queue:.3g} s; the TTFT limit is {limits.ttft_seconds:g} s.",
        "The offered load is above capacity. A better setting may help a little: also scale out, or cap the queue.",
        {"queue_p50_seconds": queue, "ttft_limit_seconds": limits.ttft_seconds},
    )  # fmt: skip
