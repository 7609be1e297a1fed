"""One trial as the operator runs it, in virtual time: what it costs, what it measures, what the judge says.

The log score of each window is the true difference of the two configurations, plus the pod's own bias, plus how fast
this start of the process happens to be, plus the windows' noise. The judge's own functions turn the windows into a
verdict. The canary's pod takes the place of one that was measured before (no spare GPU). Simpler than the product: one
series (the score) decides, not goodput and each latency by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from search_world import Truth

from trimtab.judge.bias import Start, Variation, bias, replicated
from trimtab.judge.stats import always_valid, noise
from trimtab.judge.verdict import Kind

#: a gain below this share is not worth a rollout: the spec's default
LEAST_GAIN: Final = 0.03
REPLICAS: Final = 3
WINDOW_SECONDS: Final = 30.0
#: windows after which the judge is asked; the last is the default of maxMeasurementSeconds
LOOKS: Final = (6, 10, 15, 20, 30)
#: windows of equal arms before the canary's restart, and before another start of the same configuration
BEFORE, BEFORE_AGAIN = 10, 30
START_SECONDS, WARMUP_SECONDS, COOLDOWN_SECONDS = 120.0, 120.0, 30.0
#: windows until a guardrail sees p99 latency at three times the control's
GUARDRAIL_WINDOWS, GUARDRAIL_RATIO = 2, 3.0
#: score of what a guardrail ended and its deviation, as the product tells the search
BREACHED, BREACHED_DEVIATION = -1.0, 0.3
CONFIDENCE: Final = 0.95


@dataclass(frozen=True)
class Noise:
    """Standard deviations of log score. window: of one pod's window, `rho` from one to the next. pod: between pods for
    good. start: between starts of one configuration's process.

    Window and rho as in 32 runs of vLLM 0.32 on two CPU cores (`python benchmarks/search_noise.py FOLDER`): 11% and
    0.24 where 30 requests make a window; here a window has 100 and more, so 11% x sqrt(30 / 100). Whole runs were 13%
    apart (6% where they made the same decisions), the machine's other load included, which canary and control share in
    a trial: `RESTLESS` takes the 6% for starts. pod and start otherwise as in docs/judge.md, not measured.
    """

    window: float = 0.06
    rho: float = 0.24
    pod: float = 0.03
    start: float = 0.01


SEEN: Final = Noise()
RESTLESS: Final = Noise(start=0.06)
LOUD: Final = Noise(window=0.11)
NOISES: Final = {"seen": SEEN, "restless": RESTLESS, "loud": LOUD}


@dataclass(frozen=True)
class Result:
    """`score` with its `deviation`: None where it did not start. `again`: another start would decide. minutes: until
    the verdict; `late`: of them, times the share of all requests that miss the SLO because of the trial."""

    kind: Kind
    score: float | None
    deviation: float | None
    again: bool
    minutes: float
    late: float
    measured: Start | None = None


def trial(tried: Truth | None, now: Truth, noises: Noise, rng: np.random.Generator, earlier: Sequence[Start]) -> Result:
    """`earlier`: measured starts of the same configuration beside the same control."""
    windows = BEFORE_AGAIN if earlier else BEFORE
    before = windows * WINDOW_SECONDS / 60
    if tried is None:
        return Result(Kind.ERROR, None, None, False, before + (START_SECONDS + COOLDOWN_SECONDS) / 60, 0.0)
    excess = max(0.0, now.attainment - tried.attainment) / REPLICAS
    idle = before + (START_SECONDS + WARMUP_SECONDS + COOLDOWN_SECONDS) / 60

    def ended(n: int, kind: Kind, score: float, sd: float, again: bool = False, start: Start | None = None) -> Result:
        served = n * WINDOW_SECONDS / 60
        return Result(kind, score, sd, again, idle + served, excess * (served + WARMUP_SECONDS / 60), start)

    if tried.ttft_p99 > GUARDRAIL_RATIO * now.ttft_p99 or tried.tpot_p99 > GUARDRAIL_RATIO * now.tpot_p99:
        result = ended(GUARDRAIL_WINDOWS, Kind.WORSE, BREACHED, noises.window)
        # the guardrail ends it in the warm-up: it looks at the canary from its first request on
        return Result(result.kind, BREACHED, BREACHED_DEVIATION, False, idle, excess * GUARDRAIL_WINDOWS / 2)
    pod = rng.normal(0, noises.pod)
    equal = pod + _series(rng, noises, windows)
    seen = tried.score - now.score + pod + rng.normal(0, noises.start) + _series(rng, noises, LOOKS[-1])
    least = math.log1p(LEAST_GAIN)
    for n in LOOKS:
        found = _interval(seen[:n].tolist(), equal.tolist(), noises, earlier)
        if found is None:
            continue
        mean, low, high, start, surely = found
        done = (low > 0 and mean >= least) or high < 0 or high < least
        if not done and n < LOOKS[-1]:
            continue
        kind = Kind.BETTER if low > 0 and mean >= least else Kind.WORSE if high < 0 else Kind.INCONCLUSIVE
        again = kind is Kind.INCONCLUSIVE and surely and mean >= least
        return ended(n, kind, mean, max(start.error, (high - low) / 4), again, start)
    raise AssertionError("the last look always decides")


def _interval(
    values: list[float], equal: list[float], noises: Noise, earlier: Sequence[Start]
) -> tuple[float, float, float, Start, bool] | None:
    """Mean, low and high; this start; whether its windows alone would be above 0."""
    looked, of = always_valid(values, CONFIDENCE, [equal]), noise(values, [equal])
    if looked is None or of is None:
        return None
    pod = bias(equal, [], of, Variation(noises.start, noises.pod), CONFIDENCE)
    shifted, corrected = looked.shifted(-pod.shift), pod.corrected(looked)
    start = Start(corrected.mean, math.sqrt(of.variance / looked.effective), pod.own_sd, pod.shared_sd)
    if earlier:
        corrected = replicated([*earlier, start], CONFIDENCE) or corrected
    return corrected.mean, corrected.low, corrected.high, start, shifted.low > 0


def _series(rng: np.random.Generator, noises: Noise, n: int) -> np.ndarray:
    """Noise of the canary's difference from the mean of the other pods, window by window."""
    sd = noises.window * math.sqrt(1 + 1 / (REPLICAS - 1))
    out, state = np.empty(n), rng.normal(0, sd)
    steps = rng.normal(0, sd * math.sqrt(1 - noises.rho**2), n)
    for i in range(n):
        out[i] = state
        state = noises.rho * state + steps[i]
    return out
