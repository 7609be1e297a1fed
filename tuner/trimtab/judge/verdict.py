"""`evaluate`: was the canary better than the control over the same minutes?

Per window the difference of the arms (`measures`), its mean with an interval that may be looked at on every tick
(`stats`), less the pod's own bias and widened by what is not known of it (`bias`). Pairing cancels what both arms
share: the hour, the mix of prompts, a slow network. Saturated targets are judged by goodput, others by SLO attainment,
then latency; where the queue is unknown, by goodput, then latency.

Hazards
- A restart is itself a treatment: a fresh process has a cold prefix cache (loses) or unfragmented memory (wins). Warm
  up first; what does not settle is inside `start_variation_percent` or is not seen.
- Random routing gives each arm its own number of requests. With few requests that noise is wide: the answer is
  Inconclusive.

Error rates and power: benchmarks/judge.py, docs/judge.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import astuple, dataclass, field, replace
from enum import StrEnum
from typing import Final

from trimtab.judge import measures
from trimtab.judge.bias import Bias, Start, Variation, bias, replicated
from trimtab.judge.measures import Series
from trimtab.judge.objective import Objective, left_open
from trimtab.judge.stats import Interval, always_valid, noise, quantile_bounds, quantile_exceeds
from trimtab.judge.windows import Pair, finished_per_pod, usable
from trimtab.observe.observation import Histogram, Observation

__all__ = ["Kind", "Objective", "Pair", "Verdict", "evaluate"]

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
#: e^20: an interval of goodput may be endless where the control has next to none
_MOST_GAIN: Final = 20.0
#: a latency ratio beyond e^1.5 = 4.5 moves the score no further
_SCORE_LATENCY_LIMIT: Final = 1.5
#: share difference beyond which a ratio is only "100 times": (2 + s) / (2 - s) = 100
_MAX_SHARE: Final = 2 * 99 / 101
#: z of each p99 bound: "likely" blocks a promotion, "sure" condemns, at whichever of some 40 looks; a hard limit is
#: compared with a number, not with a second histogram
_LIKELY, _SURE, _OVER_LIMIT = 1.0, 3.0, 1.96
#: from the half-width of an interval that holds at all looks to the standard error that it stands for at one
_HALF_TO_ERROR: Final = 1.96
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
    WithinNoise, GainTooSmall, NoGain, AnotherStartNeeded, LatencyRegressed. `final`: more minutes would not change it.
    """

    kind: Kind
    reason: str
    message: str
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    score: float | None = None
    numbers: dict[str, float | None] = field(default_factory=dict)

    @property
    def final(self) -> bool:
        clear = self.kind is not Kind.INCONCLUSIVE or self.reason == "NoGain"
        return clear or self.numbers.get("minutes_help") == 0

    @property
    def start(self) -> Start | None:
        """What this start of the configuration has shown; None where nothing was measured."""
        values = [self.numbers.get(name) for name in _START]
        known = [v for v in values if v is not None]
        return Start(*known) if len(known) == len(_START) else None


#: numbers of a verdict that make a `Start`, in its order
_START: Final = ("effect", "effect_error", "start_sd", "shared_sd")


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

    @property
    def start(self) -> Start:
        error = (self.seen.high - self.seen.mean) / _HALF_TO_ERROR
        return Start(self.interval.mean, error, self.bias.own_sd, self.bias.shared_sd)

    def beyond(self, gain: float) -> bool:
        """Whether more minutes may still show a gain of `gain` (log ratio, negative for a latency) or more: what is not
        known of the pod stays as it is."""
        needed = max(abs(gain), self.bias.half)
        seen = self.seen.shifted(-self.bias.shift)
        return seen.high > needed if gain > 0 else seen.low < -needed

    def text(self) -> str:
        return f"{self.name} {_interval(self.interval)} over {self.windows} windows"


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
    earlier: tuple[Start, ...] = ()

    @property
    def over_starts(self) -> Interval | None:
        """The decisive measure over this start and the earlier ones; None where this is the first."""
        if not self.earlier:
            return None
        return replicated([*self.earlier, self.primary.start], self.objective.confidence)

    @property
    def by_attainment(self) -> bool:
        return self.primary is not self.goodput

    @property
    def seen(self) -> str:
        return f"{self.primary.text()} ({self.why})"

    def tail_surely_regressed(self) -> str | None:
        """As `tail_regressed`, where the mean is surely worse, too: the p99 TTFT of two real engines with equal flags
        was up to 1.9 times apart over 4 minutes (benchmarks/data), as stalls come in clusters."""
        sure = {m.name for m in self.latencies if m.interval.low > 0}
        unknown = {"TTFT", "TPOT"} - {m.name for m in self.latencies}
        return self.tail_regressed(_SURE, sure | unknown)

    def tail_regressed(self, z: float, names: Set[str] = frozenset({"TTFT", "TPOT"})) -> str | None:
        """Name of a latency whose p99 is worse by more than allowed, beyond doubt z."""
        for name, ours, theirs in (
            ("TTFT", self.canary.ttft_seconds, self.control.ttft_seconds),
            ("TPOT", self.canary.tpot_seconds, self.control.tpot_seconds),
        ):
            if name in names and quantile_exceeds(ours, theirs, self.allowed(name), z=z, least=MIN_TAIL_SAMPLES):
                return name
        return None

    def mean_regressed(self) -> str | None:
        return next((m.name for m in self.latencies if m.interval.low > math.log(self.allowed(m.name))), None)

    def allowed(self, name: str) -> float:
        """The factor by which a latency may be worse than the control's; more where only the other one has a limit and
        goodput is surely better (`left_open`)."""
        usual = 1 + self.objective.max_latency_regression_percent / 100
        if name not in left_open(self.objective.ttft_seconds, self.objective.tpot_seconds):
            return usual
        return max(usual, math.exp(min(_MOST_GAIN, self.goodput.interval.low)))

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

    @property
    def _limits(self) -> tuple[float, float]:
        """What counts as better of the decisive measure and of a mean latency, as log ratios."""
        most = self.objective.min_gain_percent / 100
        return math.log1p(most), math.log1p(-min(0.99, _LATENCY_GAIN_FACTOR * most))

    def hopeless(self) -> bool:
        """Whether, at any later look too, no measure is expected to reach what counts as better."""
        (most, limit), over = self._limits, self.over_starts
        slow = all(m.interval.low > math.log(_TAIL_GAIN) for m in self.tails)
        high = self.primary.interval.high if over is None else min(over.high, self.primary.interval.high)
        return high < most and slow and all(m.interval.low > limit for m in self.latencies)

    def pod_faster(self) -> bool:
        """Whether this pod is faster by enough, whatever the cause."""
        shifted = self.primary.seen.shifted(-self.primary.bias.shift)
        return shifted.low > 0 and self.primary.ratio >= self.objective.min_gain_percent / 100

    def minutes_help(self) -> bool:
        """Whether a longer measurement of this start may still make it better."""
        most, limit = self._limits
        if self.primary.beyond(max(most, 1e-9)):
            return True
        if self.pod_faster():
            return False
        return any(m.beyond(math.log(_TAIL_GAIN)) for m in self.tails) or any(m.beyond(limit) for m in self.latencies)

    def score(self) -> float:
        cut, weights = _SCORE_LATENCY_LIMIT, {"TTFT": self.objective.ttft_weight, "TPOT": self.objective.tpot_weight}
        latency = sum(weights[m.name] * min(cut, max(-cut, m.interval.mean)) for m in self.latencies)
        return self.primary.interval.mean - latency

    def score_deviation(self) -> float:
        """Standard deviation of the score: of the decisive measure, which outweighs the latencies."""
        start = self.primary.start
        return math.hypot(start.error, start.own_sd, start.shared_sd)


@dataclass(frozen=True)
class _Before:
    """Windows before the trial; own: of the canary's own place."""

    windows: Sequence[Pair]
    own: bool


def evaluate(
    pairs: Sequence[Pair],
    canary_total: Observation | None,
    control_total: Observation | None,
    objective: Objective,
    before: Sequence[Pair] = (),
    *,
    own: bool = True,
    earlier: Sequence[Start] = (),
) -> Verdict:
    """The verdict over `pairs` (any order); the totals are the same minutes as one window, for p99 and for the numbers.
    `before`: windows before the trial (A/A) of one pod beside the control: the canary's own pod, or the one in whose
    place it is, with `own`; else a pod that is gone. `earlier`: starts of the same configuration in earlier trials.

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
    evidence = _evidence(windows, _Before(usable(before), own), canary_total, control_total, objective)
    if evidence is None:
        text = "Goodput is unknown in too many windows: does the engine export the histogram of each limited latency?"
        return Verdict(Kind.INCONCLUSIVE, "MetricsMissing", text, numbers=numbers)
    evidence = replace(evidence, earlier=tuple(earlier))
    kind, reason, message = _decide(evidence)
    main = evidence.primary
    numbers |= dict(zip(_START, astuple(main.start), strict=True))
    numbers |= {
        "windows": float(main.windows), "effective_windows": main.interval.effective, "bias": main.bias.shift,
        "bias_sd": main.bias.sd, "saturated": None if evidence.saturated is None else float(evidence.saturated),
        "starts": float(1 + len(earlier)), "minutes_help": float(evidence.minutes_help()),
        "score_deviation": evidence.score_deviation(),
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
    regressed, over = e.tail_regressed(_LIKELY), e.over_starts
    alone = e.primary.interval.low > 0 and e.primary.ratio >= least
    together = over is not None and over.low > 0 and math.expm1(over.mean) >= least
    if alone or together:
        if over is not None:
            seen = f"{seen}; over {over.effective:.0f} starts {_interval(over)}"
        if regressed:
            return Kind.INCONCLUSIVE, "LatencyRegressed", f"p99 {regressed} seems worse by over {worst:.0%}; {seen}."
        if e.by_attainment:
            return Kind.BETTER, "AttainmentBetter", f"The canary is better: {seen}."
        return Kind.BETTER, "GoodputBetter", f"The canary is better: {seen}."
    improved = e.improved()
    if improved and not regressed and e.primary.ratio > -worst:
        cut = _percent(improved.ratio)
        return Kind.BETTER, "LatencyBetter", f"{improved.name} {cut}, {e.primary.name} equal within noise: {seen}."
    return _unclear(e, seen, least)


def _unclear(e: _Evidence, seen: str, least: float) -> tuple[Kind, str, str]:
    if e.hopeless():
        return Kind.INCONCLUSIVE, "NoGain", f"A gain of {least:.1%} is ruled out: {seen}."
    if e.primary.interval.low > 0:
        return Kind.INCONCLUSIVE, "GainTooSmall", f"A gain, but below {least:.1%}: {seen}."
    if e.pod_faster():
        text = f"this pod is faster, but two starts of the same settings may differ by {2 * e.primary.bias.sd:.1%}"
        return Kind.INCONCLUSIVE, "AnotherStartNeeded", f"{seen}: {text}."
    return Kind.INCONCLUSIVE, "WithinNoise", f"No difference that stands out from noise: {seen}."


def _worse(e: _Evidence, seen: str) -> tuple[Kind, str, str] | None:
    broken = _limit_broken(e.canary, e.objective)
    if broken:
        return Kind.WORSE, "LimitBroken", f"{broken}; {seen}."
    if e.goodput.interval.high < 0:
        return Kind.WORSE, "GoodputWorse", f"The canary is worse: {e.goodput.text()}."
    if e.primary.interval.high < 0:
        return Kind.WORSE, "AttainmentWorse", f"The canary is worse: {seen}."
    regressed = e.mean_regressed() or e.tail_surely_regressed()
    if regressed:
        worst = e.objective.max_latency_regression_percent / 100
        return Kind.WORSE, "LatencyWorse", f"{regressed} is worse than the control's by more than {worst:.0%}; {seen}."
    return None


def _limit_broken(canary: Observation, objective: Objective) -> str | None:
    """What the canary must not do, beyond doubt."""
    limit = objective.ttft_p99_limit_seconds
    if limit is not None and canary.ttft_seconds is not None and canary.ttft_seconds.count >= MIN_TAIL_SAMPLES:
        bounds = quantile_bounds(canary.ttft_seconds, 0.99, _OVER_LIMIT)
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
        if share > allowed + _OVER_LIMIT * math.sqrt(allowed * (1 - allowed) / n):
            return f"{share:.1%} of the canary's {n:.0f} requests {name} (limit {most:g}%)"
    return None


def _evidence(
    windows: Sequence[Pair], before: _Before, canary: Observation, control: Observation, objective: Objective
) -> _Evidence | None:
    own, earlier = before.own, before.windows
    waits = measures.saturated(windows)
    late = waits is True and measures.all_late((canary, control), objective)
    wanted = replace(objective, ttft_seconds=None, tpot_seconds=None) if late else objective
    name, served = "useful tokens/s" if late else "goodput", measures.goodput(windows, earlier, wanted)
    goodput = _measure(name, served, objective, objective.confidence, own)
    if goodput is None:
        return None
    primary, why = _primary(goodput, windows, before, (canary, control), objective, waits)
    strict = 1 - (1 - objective.confidence) / _LATENCY_STRICTER
    latencies, tails = [], []
    for name in ("TTFT", "TPOT"):
        place = f"{name.lower()}_seconds"
        mean = _measure(name, measures.latency(windows, earlier, place), objective, strict, own, as_ratio=False)
        latencies += [mean] if mean is not None else []
        found = measures.tail(windows, earlier, place) if waits is False else None
        if found is not None:
            slow = _measure(f"requests with {name} over {found[1]:g} s", found[0], objective, strict, own)
            tails += [slow] if slow is not None else []
    return _Evidence(primary, goodput, why, tuple(latencies), tuple(tails), objective, canary, control, waits)


def _primary(
    goodput: _Measure,
    windows: Sequence[Pair],
    before: _Before,
    totals: tuple[Observation, Observation],
    objective: Objective,
    waits: bool | None,
) -> tuple[_Measure, str]:
    """What decides, and why."""
    if waits is None:
        return goodput, "judged by goodput: the queue is unknown"
    if waits:
        return goodput, f"judged by {goodput.name}: requests wait, so the target is saturated"
    met = [o.attainment(objective.ttft_seconds, objective.tpot_seconds) for o in totals]
    found = measures.attainment(windows, before.windows, objective)
    share = _measure("SLO attainment", found, objective, objective.confidence, before.own) if found else None
    if share is None:
        return goodput, "no request waits, so goodput is what arrives, and latency decides"
    if all(m is not None and m > _ALWAYS_MET for m in met):
        return share, "no request waits and both arms meet the SLO, so latency decides"
    return share, "judged by SLO attainment: no request waits, so goodput is what arrives"


def _measure(
    name: str, series: Series | None, objective: Objective, confidence: float, own: bool, *, as_ratio: bool = True
) -> _Measure | None:
    """The mean of a series with its interval, as log ratio; None where too few windows are known."""
    if series is None or len(series.values) < MIN_WINDOWS:
        return None
    equal = series.equal()
    seen, found = always_valid(series.values, confidence, equal), noise(series.values, equal)
    if seen is None or found is None:
        return None
    seen = seen.widened(_EDGE_Z * series.edge_sd)
    usual = Variation(objective.start_variation_percent / 100, objective.pod_variation_percent / 100)
    pod = bias(series.before, series.controls, found, usual, objective.confidence, own=own)
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


def _interval(log_ratio: Interval) -> str:
    mean, low, high = (_percent(math.expm1(x)) for x in (log_ratio.mean, log_ratio.low, log_ratio.high))
    return f"{mean} ({low} to {high})"


def _percent(share: float) -> str:
    return f"{share:+.1%}"
