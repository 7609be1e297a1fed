"""What a person wants of a configuration: limits, what is worth a rollout, how sure to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: weight of each log latency ratio in the score: half the TTFT is worth about 7% of goodput
SCORE_LATENCY_WEIGHT: Final = 0.1


#: how much the same settings differ from one start to the next, and pods for good, in percent (standard deviations);
#: GPUs of one model in one cluster were seen 8% apart on average (Sinha et al.: Not All GPUs Are Created Equal, 2022),
#: most of them less
START_VARIATION_PERCENT: Final = 1.0
POD_VARIATION_PERCENT: Final = 3.0


@dataclass(frozen=True)
class Objective:
    """SLO in seconds (None: no limit) and thresholds in percent.

    confidence: two-sided, over all looks of a trial together, however many. start_variation_percent: how much the same
    settings differ from one start of the process to the next (standard deviation); pod_variation_percent: how much pods
    with the same settings differ for good; own measurement replaces it. The hard limits are the canary's own, whatever
    the control does.
    """

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    min_gain_percent: float = 3.0
    max_latency_regression_percent: float = 10.0
    confidence: float = 0.95
    start_variation_percent: float = START_VARIATION_PERCENT
    pod_variation_percent: float = POD_VARIATION_PERCENT
    ttft_weight: float = SCORE_LATENCY_WEIGHT
    tpot_weight: float = SCORE_LATENCY_WEIGHT
    ttft_p99_limit_seconds: float | None = None
    max_error_percent: float | None = None
    max_truncated_percent: float | None = None


def left_open(ttft_seconds: float | None, tpot_seconds: float | None) -> frozenset[str]:
    """The latency ("TTFT" or "TPOT") that an SLO does not limit while it limits the other; nothing where it limits both
    or none.

    Whoever limits one of two latencies lets the other pay: it may be worse by the factor by which goodput is surely
    better, and by no more, since it was left out and not given away.
    """
    limits = {"TTFT": ttft_seconds, "TPOT": tpot_seconds}
    free = frozenset(name for name, limit in limits.items() if limit is None)
    return free if len(free) == 1 else frozenset()
