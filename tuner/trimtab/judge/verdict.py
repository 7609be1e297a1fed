"""`evaluate`: was the canary better than the control over the same minutes?

Per window the difference of the arms (`measures`), its mean with an interval (`stats`; with `Objective.always_valid`
one that may be looked at on every tick), less the pod's own bias and widened by what is not known of it (`bias`).
Pairing cancels what both arms share: the hour, the mix of prompts, a slow network. With `always_valid` saturated
targets are judged by goodput, others by SLO attainment, then latency; where the queue is unknown, and without it, by
goodput, then latency.

Hazards
- A restart is itself a treatment: a fresh process has a cold prefix cache (loses) or unfragmented memory (wins). Warm
  up first; what does not settle is inside `start_variation_percent` or is not seen.
- Random routing gives each arm its own number of requests. With few requests that noise is wide: the answer is
  Inconclusive.

Figures of one look (simulated: 2 requests/s per pod, windows of 30 s, 5% own noise of each arm; 500 runs each, 150 for
power); of `always_valid`: benchmarks/judge.py, docs/judge.md
- Equal arms called Better: 1.0 to 3.0% for lag-1 autocorrelation 0 and 0.3, 2.6 to 5.0% for 0.6 (6, 10, 20 windows).
- Seen as Better in 10 / 30 windows: goodput +10% 21 / 67%, +20% 55 / 98%; TTFT -30% 48 / 95%; TPOT -15% 66 / 95%.
- Equal arms, three looks (10, 20, 30 windows): 4.3 to 5.7% Better, 1.7 to 2.7% after a confirmation; eleven looks: 7 to
  11%.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from trimtab.judge import measures
from trimtab.judge.bias import Bias, Variation, bias
from trimtab.judge.measures import Series
from trimtab.judge.objective import SCORE_LATENCY_WEIGHT, Objective
from trimtab.judge.stats import Interval, always_valid, mean_interval, noise, quantile_bounds, quantile_exceeds
from trimtab.judge.windows import Pair, finished_per_pod, usable
from trimtab.observe.observation import Histogram, Observation

__all__ = ["SCORE_LATENCY_WEIGHT", "Kind", "Objective", "Pair", "Verdict", "evaluate"]

#: windows (after thin ones were joined) below which no interval is believed
MIN_WINDOWS: Final = 5
#: samples per arm below which a p99 says nothing
MIN_TAIL_SAMPLES: Final = 50
#: the latency route tests up to four series beside the one that decides: each gets a tenth of its error
_LATENCY_STRICTER: Final = 10.0
#: a latency gain must be this many times minGainPercent to count without a gain in goodput
_LATENCY_GAIN_FACTOR: Final = 2.0
#: the share of slow requests must fall by this factor to count: about what half the p99 does to a log-normal tail
_TAIL_GAIN: Final = 0.75
#: both arms inside the SLO more often than this: it cannot tell them apart
_ALWAYS_MET: Final = 0.995
#: a latency ratio beyond e^1.5 = 4.5 moves the score no further
_SCORE_LATENCY_LIMIT: Final = 1.5
#: share difference beyond which a ratio is only "100 times": (2 + s) / (2 - s) = 100
_MAX_SHARE: Final = 2 * 99 / 101
#: z of each p99 bound: "likely" blocks a promotion, "sure" condemns, and at whichever of some 40 looks
_LIKELY, _SURE, _SURE_ALWAYS = 1.0, 1.96, 3.0


#: half-width of what was in flight at the ends, in standard deviations; it changes little from look to look
_EDGE_Z: Final = 2.0


class Kind(StrEnum):
    BETTER = "Better"
    WORSE = "Worse"
    INCONCLUSIVE = "Inconclusive"
    ERROR = "Error"


@dataclass(frozen=True)
class Verdict:
    """`gain` = canary / control - 1 of goodput (of SLO attainment where that decided) with its interval; `score` is
    what search maximises (log scale, 0 = like control).

    reasons: Better GoodputBetter, AttainmentBetter, LatencyBetter; Worse GoodputWorse, AttainmentWorse, LatencyWorse,
    LimitBroken; Error CanaryServedNothing; Inconclusive MetricsMissing, NotEnoughRequests, NotEnoughWindows,
    WithinNoise, GainTooSmall, NoGain, AnotherStartNeeded, LatencyRegressed.
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
class _Measure:
    """seen: as measured, widened for looks; interval: less the pod's bias. Log ratios canary / control."""

    name: str
    seen: Interval
    interval: Interval
    bias: Bias
    windows: int

    @property
    def ratio(self) -> float:
        return math.expm1(self.interval.mean)

    def text(self) -> str:
        low, high = _percent(math.expm1(self.interval.low)), _percent(math.expm1(self.interval.high))
        return f"{self.name} {_percent(self.ratio)} ({low} to {high}) over {self.windows} windows"


@dataclass(frozen=True)
class _Evidence:
    """`primary` decides, for the reason `why`; None where too little is known."""

    primary: _Measure
    goodput: _Measure
    why: str
    latencies: tuple[_Measure, ...]
    tails: tuple[_Measure, ...]
    objective: Objective
    canary: Observation
    control: Observation
    saturated: bool | None

    @property
    def by_attainment(self) -> bool:
        return self.primary is not self.goodput

    @property
    def seen(self) -> str:
        return f"{self.primary.text()} ({self.why})" if self.why else self.primary.text()

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
        return next((m.name for m in self.latencies if m.interval.low > limit), None)

    def improved(self) -> _Measure | None:
        """A tail (only where nothing waits) or a mean latency that is lower, surely and by enough; p50 must not
        contradict a mean, which follows absurd values."""
        for m in self.tails:
            if m.interval.high < 0 and m.interval.mean <= math.log(_TAIL_GAIN):
                return m
        limit = math.log1p(-min(0.99, _LATENCY_GAIN_FACTOR * self.objective.min_gain_percent / 100))
        for m in self.latencies:
            ours, theirs = (
                _quantile(getattr(o, f"{m.name.lower()}_seconds"), 0.5) for o in (self.canary, self.control)
            )
            agrees = ours is not None and theirs is not None and ours <= theirs
            if agrees and m.interval.high < 0 and m.interval.mean <= limit:
                return m
        return None

    def hopeless(self) -> bool:
        """Whether, at any later look too, no measure is expected to reach what counts as better."""
        most = math.log1p(self.objective.min_gain_percent / 100)
        limit = math.log1p(-min(0.99, _LATENCY_GAIN_FACTOR * self.objective.min_gain_percent / 100))
        slow = all(m.interval.low > math.log(_TAIL_GAIN) for m in self.tails)
        return self.primary.interval.high < most and slow and all(m.interval.low > limit for m in self.latencies)

    def score(self) -> float:
        cut, weights = _SCORE_LATENCY_LIMIT, {"TTFT": self.objective.ttft_weight, "TPOT": self.objective.tpot_weight}
        latency = sum(weights[m.name] * min(cut, max(-cut, m.interval.mean)) for m in self.latencies)
        return self.primary.interval.mean - latency


def evaluate(
    pairs: Sequence[Pair],
    canary_total: Observation | None,
    control_total: Observation | None,
    objective: Objective,
    before: Sequence[Pair] = (),
) -> Verdict:
    """The verdict over `pairs` (any order); the totals are the same minutes as one window, for p99 and for the numbers.
    `before`: windows of the canary's own pod and the control before the trial (A/A), if the pod is the same.

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
    evidence = _evidence(windows, usable(before), canary_total, control_total, objective)
    if evidence is None:
        text = "Goodput is unknown in too many windows: does the engine export the histogram of each limited latency?"
        return Verdict(Kind.INCONCLUSIVE, "MetricsMissing", text, numbers=numbers)
    kind, reason, message = _decide(evidence)
    main = evidence.primary
    numbers |= {
        "windows": float(main.windows), "effective_windows": main.interval.effective, "bias": main.bias.shift,
        "bias_sd": main.bias.sd, "saturated": None if evidence.saturated is None else float(evidence.saturated),
    }  # fmt: skip
    return Verdict(
        kind, reason, message, main.ratio, math.expm1(main.interval.low), math.expm1(main.interval.high),
        evidence.score(), numbers,
    )  # fmt: skip


def _decide(e: _Evidence) -> tuple[Kind, str, str]:
    """From evidence to kind, reason and message. Worse is asked first: a gain does not buy a regression."""
    seen = e.seen
    worse = _worse(e, seen)
    if worse is not None:
        return worse
    least, worst = e.objective.min_gain_percent / 100, e.objective.max_latency_regression_percent / 100
    regressed = e.tail_regressed(_LIKELY)
    if e.primary.interval.low > 0 and e.primary.ratio >= least:
        if regressed:
            return Kind.INCONCLUSIVE, "LatencyRegressed", f"p99 {regressed} seems worse by over {worst:.0%}; {seen}."
        if e.by_attainment:
            return Kind.BETTER, "AttainmentBetter", f"The canary is better: {seen}."
        return Kind.BETTER, "GoodputBetter", f"The canary is better: {seen}."
    improved = e.improved()
    if improved and not regressed and e.primary.ratio > -worst:
        cut = _percent(improved.ratio)
        return Kind.BETTER, "LatencyBetter", f"{improved.name} {cut}, {e.primary.name} equal within noise: {seen}."
    if e.objective.always_valid and e.hopeless():
        return Kind.INCONCLUSIVE, "NoGain", f"A gain of {least:.1%} is ruled out: {seen}."
    if e.primary.seen.shifted(-e.primary.bias.shift).low > 0 and e.primary.ratio >= least:
        text = f"this pod is faster, but two starts of the same settings may differ by {2 * e.primary.bias.sd:.1%}"
        return Kind.INCONCLUSIVE, "AnotherStartNeeded", f"{seen}: {text}."
    if e.primary.interval.low > 0:
        return Kind.INCONCLUSIVE, "GainTooSmall", f"A gain, but below {least:.1%}: {seen}."
    return Kind.INCONCLUSIVE, "WithinNoise", f"No difference that stands out from noise: {seen}."


def _worse(e: _Evidence, seen: str) -> tuple[Kind, str, str] | None:
    broken = _limit_broken(e.canary, e.objective)
    if broken:
        return Kind.WORSE, "LimitBroken", f"{broken}; {seen}."
    if e.goodput.interval.high < 0:
        return Kind.WORSE, "GoodputWorse", f"The canary is worse: {e.goodput.text()}."
    if e.primary.interval.high < 0:
        return Kind.WORSE, "AttainmentWorse", f"The canary is worse: {seen}."
    regressed = e.mean_regressed() or e.tail_regressed(_SURE_ALWAYS if e.objective.always_valid else _SURE)
    if regressed:
        worst = e.objective.max_latency_regression_percent / 100
        return Kind.WORSE, "LatencyWorse", f"{regressed} is worse than the control's by more than {worst:.0%}; {seen}."
    return None


def _limit_broken(canary: Observation, objective: Objective) -> str | None:
    """What the canary must not do, beyond doubt."""
    limit = objective.ttft_p99_limit_seconds
    if limit is not None and canary.ttft_seconds is not None and canary.ttft_seconds.count >= MIN_TAIL_SAMPLES:
        bounds = quantile_bounds(canary.ttft_seconds, 0.99, _SURE)
        if bounds is not None and bounds[0] > limit:
            return f"p99 TTFT of the canary is above {limit:g} s ({bounds[0]:.3g} s or more)"
    for name, share, most in (
        ("failed", canary.error_ratio, objective.max_error_percent),
        ("ended at the token limit", canary.truncated_ratio, objective.max_truncated_percent),
    ):
        n = canary.requests if name == "failed" else canary.finished
        if most is None or share is None or not n or n < MIN_TAIL_SAMPLES:
            continue
        allowed = most / 100
        if share > allowed + _SURE * math.sqrt(allowed * (1 - allowed) / n):
            return f"{share:.1%} of the canary's {n:.0f} requests {name} (limit {most:g}%)"
    return None


def _evidence(
    windows: Sequence[Pair], before: Sequence[Pair], canary: Observation, control: Observation, objective: Objective
) -> _Evidence | None:
    series = measures.goodput(windows, before, objective, smooth=objective.always_valid)
    goodput = _measure("goodput", series, objective, objective.confidence)
    if goodput is None:
        return None
    waits = measures.saturated(windows)
    primary, why = _primary(goodput, windows, before, (canary, control), objective, waits)
    strict = 1 - (1 - objective.confidence) / _LATENCY_STRICTER
    latencies, tails = [], []
    for name in ("TTFT", "TPOT"):
        place = f"{name.lower()}_seconds"
        mean = _measure(name, measures.latency(windows, before, place), objective, strict, as_ratio=False)
        latencies += [mean] if mean is not None else []
        found = measures.tail(windows, before, place) if waits is False and objective.always_valid else None
        if found is not None:
            slow = _measure(f"requests with {name} over {found[1]:g} s", found[0], objective, strict)
            tails += [slow] if slow is not None else []
    return _Evidence(primary, goodput, why, tuple(latencies), tuple(tails), objective, canary, control, waits)


def _primary(
    goodput: _Measure,
    windows: Sequence[Pair],
    before: Sequence[Pair],
    totals: tuple[Observation, Observation],
    objective: Objective,
    waits: bool | None,
) -> tuple[_Measure, str]:
    """What decides, and why. Trials with a fixed number of looks are judged by goodput, then latency."""
    if not objective.always_valid:
        return goodput, ""
    if waits is None:
        return goodput, "judged by goodput: the queue is unknown"
    if waits:
        return goodput, "judged by goodput: requests wait, so the target is saturated"
    met = [o.attainment(objective.ttft_seconds, objective.tpot_seconds) for o in totals]
    found = measures.attainment(windows, before, objective)
    share = _measure("SLO attainment", found, objective, objective.confidence) if found is not None else None
    if share is None:
        return goodput, "no request waits, so goodput is what arrives, and latency decides"
    if all(m is not None and m > _ALWAYS_MET for m in met):
        return share, "no request waits and both arms meet the SLO, so latency decides"
    return share, "judged by SLO attainment: no request waits, so goodput is what arrives"


def _measure(
    name: str, series: Series | None, objective: Objective, confidence: float, *, as_ratio: bool = True
) -> _Measure | None:
    """The mean of a series with its interval, as log ratio; None where too few windows are known."""
    if series is None or len(series.values) < MIN_WINDOWS:
        return None
    equal = series.equal()
    looked = always_valid(series.values, confidence, equal) if objective.always_valid else None
    seen, found = looked or mean_interval(series.values, confidence), noise(series.values, equal)
    if seen is None or found is None:
        return None
    seen = seen.widened(_EDGE_Z * series.edge_sd)
    usual = Variation(objective.start_variation_percent / 100, objective.pod_variation_percent / 100)
    pod = bias(series.before, series.controls, found, usual, objective.confidence)
    corrected = pod.corrected(seen)
    if as_ratio:
        seen, corrected = _as_log_ratio(seen), _as_log_ratio(corrected)
    return _Measure(name, seen, corrected, pod, len(series.values))


def _as_log_ratio(shares: Interval) -> Interval:
    """From a mean share difference s to log(canary / control) of the totals: (2 + s) / (2 - s), cut at 100 times."""

    def log(share: float) -> float:
        return 2 * math.atanh(max(-_MAX_SHARE, min(_MAX_SHARE, share)) / 2)

    return Interval(log(shares.mean), log(shares.low), log(shares.high), shares.effective)


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
