"""`evaluate`: was the canary better than the control over the same minutes?

Method. Per window the difference of canary and control goodput per pod, as a share of the mean of both arms; their mean
with a Student-t interval whose sample size is reduced for autocorrelation, shown as the ratio of the arms' totals. (A
mean of log ratios would be ruled by the windows in which one arm's goodput is near 0.) Pairing cancels what both arms
share: the hour, the mix of prompts, a slow network.
Goodput of a target that is not saturated cannot rise above what arrives, so there a clearly lower latency also counts.

Hazards
- A restart is itself a treatment: a fresh process has a cold prefix cache (loses) or unfragmented memory (wins). Warm
  up first; nothing here can see it.
- Every look at growing data is another chance to be fooled. The intervals are for one look; `Objective.confidence` is
  there to be raised where the caller looks often, and a Better verdict must be confirmed on new windows before
  promotion.
- Random routing gives each arm its own number of requests. With few requests that noise is wide: the answer is
  Inconclusive.

Figures (simulated: 2 requests/s per pod, windows of 30 s, 5% own noise of each arm; 500 runs each, 150 for power)
- Equal arms called Better: 1.0 to 3.0% for lag-1 autocorrelation 0 and 0.3, 2.6 to 5.0% for 0.6 (6, 10, 20 windows).
- Seen as Better in 10 / 30 windows: goodput +10% 21 / 67%, +20% 55 / 98%; TTFT -30% 48 / 95%; TPOT -15% 66 / 95%.
- Equal arms, three looks (10, 20, 30 windows): 4.3 to 5.7% Better, 1.7 to 2.7% after a confirmation; eleven looks: 7 to
  11%. With confidence 0.98: 2.0 to 3.0%, 1.0%, 3.3 to 5.0%.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from trimtab.judge.stats import Interval, mean_interval, quantile_exceeds
from trimtab.judge.windows import Pair, finished_per_pod, tokens_per_request, usable
from trimtab.observe.observation import Histogram, Observation

__all__ = ["Kind", "Objective", "Pair", "Verdict", "evaluate"]

#: windows (after thin ones were joined) below which no interval is believed
MIN_WINDOWS = 5
#: samples per arm below which a p99 says nothing
MIN_TAIL_SAMPLES = 50
#: the latency route tests two series beside goodput: their intervals are wider, so that the three together stay near 5%
_LATENCY_STRICTER = 10.0
#: a latency gain must be this many times minGainPercent to count without a gain in goodput
_LATENCY_GAIN_FACTOR = 2.0
#: weight of each log latency ratio in the score: half the TTFT is worth about 7% of goodput
SCORE_LATENCY_WEIGHT = 0.1
#: a latency ratio beyond e^1.5 = 4.5 moves the score no further
_SCORE_LATENCY_LIMIT = 1.5
#: share difference beyond which a ratio is only "100 times": (2 + s) / (2 - s) = 100
_MAX_SHARE = 2 * 99 / 101
#: z of each p99 bound: "likely" blocks a promotion, "sure" condemns
_LIKELY, _SURE = 1.0, 1.96


class Kind(StrEnum):
    BETTER = "Better"
    WORSE = "Worse"
    INCONCLUSIVE = "Inconclusive"
    ERROR = "Error"


@dataclass(frozen=True)
class Objective:
    """SLO in seconds (None: no limit) and thresholds in percent. `confidence` is two-sided, of one look at the
    goodput."""

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    min_gain_percent: float = 3.0
    max_latency_regression_percent: float = 10.0
    confidence: float = 0.95


@dataclass(frozen=True)
class Verdict:
    """`gain` = canary / control goodput - 1 with its interval; `score` is what search maximises (log scale, 0 = like
    control).

    reasons: Better GoodputBetter, LatencyBetter; Worse GoodputWorse, LatencyWorse; Error CanaryServedNothing;
    Inconclusive MetricsMissing, NotEnoughRequests, NotEnoughWindows, WithinNoise, GainTooSmall, LatencyRegressed.
    """

    kind: Kind
    reason: str
    message: str
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    score: float | None = None
    numbers: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class _Evidence:
    """Intervals of mean log ratios canary / control; None where too little is known."""

    goodput: Interval
    ttft: Interval | None
    tpot: Interval | None
    objective: Objective
    canary: Observation
    control: Observation
    windows: int

    @property
    def gain(self) -> float:
        return math.expm1(self.goodput.mean)

    def tail_regressed(self, z: float) -> str | None:
        """Name of a latency whose p99 is worse by more than allowed, beyond doubt z."""
        factor = 1 + self.objective.max_latency_regression_percent / 100
        for name, ours, theirs in (
            ("TTFT", self.canary.ttft_seconds, self.control.ttft_seconds),
            ("TPOT", self.canary.tpot_seconds, self.control.tpot_seconds),
        ):
            if quantile_exceeds(ours, theirs, factor, z=z, least=MIN_TAIL_SAMPLES):
                return name
        return None

    def mean_regressed(self) -> str | None:
        limit = math.log1p(self.objective.max_latency_regression_percent / 100)
        return next((n for n, i in self.latencies() if i.low > limit), None)

    def mean_improved(self) -> str | None:
        """Name of a latency whose mean is lower, surely and by enough; p50 must not contradict (a mean follows absurd
        values)."""
        limit = math.log1p(-min(0.99, _LATENCY_GAIN_FACTOR * self.objective.min_gain_percent / 100))
        for name, interval in self.latencies():
            ours, theirs = (_quantile(getattr(o, f"{name.lower()}_seconds"), 0.5) for o in (self.canary, self.control))
            agrees = ours is not None and theirs is not None and ours <= theirs
            if agrees and interval.high < 0 and interval.mean <= limit:
                return name
        return None

    def latencies(self) -> list[tuple[str, Interval]]:
        return [(n, i) for n, i in (("TTFT", self.ttft), ("TPOT", self.tpot)) if i is not None]

    def score(self) -> float:
        cut = _SCORE_LATENCY_LIMIT
        return self.goodput.mean - SCORE_LATENCY_WEIGHT * sum(min(cut, max(-cut, i.mean)) for _, i in self.latencies())


def evaluate(
    pairs: Sequence[Pair], canary_total: Observation | None, control_total: Observation | None, objective: Objective
) -> Verdict:
    """The verdict over `pairs` (any order); the totals are the same minutes as one window, for p99 and for the numbers.

    Unknown values are never a pass: without enough known windows the verdict is Inconclusive with a reason.
    """
    numbers = _numbers(canary_total, control_total, objective)
    if canary_total is None or control_total is None:
        text = "No metrics of the canary or of the control."
        return Verdict(Kind.INCONCLUSIVE, "MetricsMissing", text, numbers=numbers)
    dead = _served_nothing(canary_total, control_total)
    if dead is not None:
        return Verdict(Kind.ERROR, "CanaryServedNothing", dead, numbers=numbers)
    windows = usable(pairs)
    if len(windows) < MIN_WINDOWS:
        return _too_little(pairs, windows, numbers)
    evidence = _evidence(windows, canary_total, control_total, objective)
    if evidence is None:
        text = "Goodput is unknown in too many windows: does the engine export the histogram of each limited latency?"
        return Verdict(Kind.INCONCLUSIVE, "MetricsMissing", text, numbers=numbers)
    kind, reason, message = _decide(evidence)
    numbers["windows"], numbers["effective_windows"] = float(evidence.windows), evidence.goodput.effective
    return Verdict(
        kind, reason, message, evidence.gain, math.expm1(evidence.goodput.low), math.expm1(evidence.goodput.high),
        evidence.score(), numbers,
    )  # fmt: skip


def _decide(e: _Evidence) -> tuple[Kind, str, str]:
    """From evidence to kind, reason and message. Worse is asked first: a gain does not buy a regression."""
    low, high = _percent(math.expm1(e.goodput.low)), _percent(math.expm1(e.goodput.high))
    seen = f"goodput {_percent(e.gain)} ({low} to {high}) over {e.windows} windows"
    least, worst = e.objective.min_gain_percent / 100, e.objective.max_latency_regression_percent / 100
    if e.goodput.high < 0:
        return Kind.WORSE, "GoodputWorse", f"The canary is worse: {seen}."
    regressed = e.mean_regressed() or e.tail_regressed(_SURE)
    if regressed:
        return Kind.WORSE, "LatencyWorse", f"{regressed} is worse than the control's by more than {worst:.0%}; {seen}."
    regressed = e.tail_regressed(_LIKELY)
    if e.goodput.low > 0 and e.gain >= least:
        if regressed:
            return Kind.INCONCLUSIVE, "LatencyRegressed", f"p99 {regressed} seems worse by over {worst:.0%}; {seen}."
        return Kind.BETTER, "GoodputBetter", f"The canary is better: {seen}."
    improved = e.mean_improved()
    if improved and not regressed and e.gain > -worst:
        cut = math.expm1(dict(e.latencies())[improved].mean)
        return Kind.BETTER, "LatencyBetter", f"Mean {improved} {_percent(cut)}, goodput equal within noise: {seen}."
    if e.goodput.low > 0:
        return Kind.INCONCLUSIVE, "GainTooSmall", f"A gain, but below {least:.1%}: {seen}."
    return Kind.INCONCLUSIVE, "WithinNoise", f"No difference that stands out from noise: {seen}."


def _evidence(
    windows: Sequence[Pair], canary: Observation, control: Observation, objective: Objective
) -> _Evidence | None:
    differences = _goodput_differences(windows, objective)
    shares = mean_interval(differences, objective.confidence) if len(differences) >= MIN_WINDOWS else None
    goodput = _as_log_ratio(shares) if shares is not None else None
    if goodput is None:
        return None
    strict = 1 - (1 - objective.confidence) / _LATENCY_STRICTER
    ttft = _latency_interval([(p.canary.ttft_seconds, p.control.ttft_seconds) for p in windows], strict)
    tpot = _latency_interval([(p.canary.tpot_seconds, p.control.tpot_seconds) for p in windows], strict)
    return _Evidence(goodput, ttft, tpot, objective, canary, control, len(differences))


def _goodput_differences(windows: Sequence[Pair], objective: Objective) -> list[float]:
    """Per window (canary - control) goodput over the mean goodput of both arms and all windows: -2 to 2 on average.

    Antisymmetric in the arms, and no window can weigh more than its tokens. Half a request's tokens is added to the
    scale, so that two arms without goodput are equal, not undefined.
    """
    request = tokens_per_request(windows)
    if request is None:
        return []
    known: list[tuple[float, float]] = []
    for pair in windows:
        ours, theirs = (o.goodput(objective.ttft_seconds, objective.tpot_seconds) for o in (pair.canary, pair.control))
        if ours is not None and theirs is not None and math.isfinite(ours) and math.isfinite(theirs):
            known.append((ours, theirs))
    if not known:
        return []
    seconds = math.fsum(p.canary.window_seconds for p in windows) / len(windows)
    scale = math.fsum(a + b for a, b in known) / (2 * len(known)) + 0.5 * request / seconds
    return [(ours - theirs) / scale for ours, theirs in known]


def _as_log_ratio(shares: Interval) -> Interval:
    """From a mean share difference s to log(canary / control) of the totals: (2 + s) / (2 - s), cut at 100 times."""

    def log(share: float) -> float:
        return 2 * math.atanh(max(-_MAX_SHARE, min(_MAX_SHARE, share)) / 2)

    return Interval(log(shares.mean), log(shares.low), log(shares.high), shares.effective)


def _latency_interval(arms: Sequence[tuple[Histogram | None, Histogram | None]], confidence: float) -> Interval | None:
    """Mean log ratio of the windows' mean latencies: sum / count is exact where quantiles are as coarse as the
    buckets."""
    logs: list[float] = []
    for ours, theirs in arms:
        a, b = (h.mean if h is not None else None for h in (ours, theirs))
        if a is not None and b is not None and a > 0 and b > 0 and math.isfinite(a / b):
            logs.append(math.log(a / b))
    return mean_interval(logs, confidence) if len(logs) >= MIN_WINDOWS else None


def _served_nothing(canary: Observation, control: Observation) -> str | None:
    """A canary without a single token beside a control that works is dead or unreached: Error, not Worse."""
    work = finished_per_pod(control)
    if canary.generated_tokens == 0 and canary.finished == 0 and work is not None and work >= MIN_WINDOWS:
        seen = f"The canary generated no token while a control pod finished {work:.0f} requests"
        return f"{seen}: it hangs, or no traffic reaches it."
    return None


def _too_little(pairs: Sequence[Pair], windows: Sequence[Pair], numbers: dict[str, float | None]) -> Verdict:
    seen = [p for p in pairs if p.canary.finished is not None and p.control.finished is not None]
    if 2 * len(seen) < len(pairs):
        text = f"{len(pairs) - len(seen)} of {len(pairs)} windows lack metrics."
        return Verdict(Kind.INCONCLUSIVE, "MetricsMissing", text, numbers=numbers)
    reason = "NotEnoughWindows" if len(pairs) < MIN_WINDOWS else "NotEnoughRequests"
    text = f"{len(pairs)} windows make {len(windows)} with enough requests; {MIN_WINDOWS} are needed."
    return Verdict(Kind.INCONCLUSIVE, reason, text, numbers=numbers)


def _numbers(canary: Observation | None, control: Observation | None, objective: Objective) -> dict[str, float | None]:
    """Per pod where it is a rate, seconds where it is a time; None is unknown."""
    out: dict[str, float | None] = {}
    for arm, o in (("canary", canary), ("control", control)):
        pods = max(1, o.pods) if o is not None else 1
        rates = {
            "goodput": None if o is None else o.goodput(objective.ttft_seconds, objective.tpot_seconds),
            "useful_tokens_per_second": _per_pod(None if o is None else o.useful_tokens_per_second, pods),
            "preemptions_per_second": _per_pod(None if o is None else o.preemptions_per_second, pods),
            "useful_token_ratio": None if o is None else o.useful_token_ratio,
            "finished": None if o is None else o.finished,
        }
        for name, q in (("p50", 0.5), ("p99", 0.99)):
            rates[f"ttft_{name}_seconds"] = _quantile(None if o is None else o.ttft_seconds, q)
            rates[f"tpot_{name}_seconds"] = _quantile(None if o is None else o.tpot_seconds, q)
        out.update({f"{arm}_{name}": value for name, value in rates.items()})
    return out


def _per_pod(value: float | None, pods: int) -> float | None:
    return None if value is None else value / pods


def _quantile(histogram: Histogram | None, q: float) -> float | None:
    return None if histogram is None else histogram.quantile(q)


def _percent(share: float) -> str:
    return f"{share:+.1%}"
