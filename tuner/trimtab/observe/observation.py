"""`Observation`: what one set of pods did over one window. Unknown is None and stays None through every operation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Histogram:
    """A Prometheus histogram's increase over a window.

    bounds: upper edges in the metric's unit, ascending, the last is +inf. counts: cumulative counts per edge, float
    because Prometheus may interpolate. sum: sum of observed values.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float

    @property
    def count(self) -> float:
        return self.counts[-1] if self.counts else 0.0

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count > 0 else None

    def quantile(self, q: float) -> float | None:
        """Linear interpolation in the bucket, as PromQL's histogram_quantile; None when empty.

        A quantile in the +inf bucket is the highest finite edge: a lower bound, not an estimate.
        """
        if self.count <= 0 or not self.bounds:
            return None
        rank, below, lower = q * self.count, 0.0, 0.0
        for bound, cumulative in zip(self.bounds, self.counts, strict=True):
            if cumulative >= rank and cumulative > below:
                if math.isinf(bound):
                    return lower
                return lower + (bound - lower) * (rank - below) / (cumulative - below)
            below, lower = max(below, cumulative), bound if not math.isinf(bound) else lower
        return lower

    def shares(self) -> list[tuple[float, float]]:
        """(edge, share of observations <= it) of the finite edges, for a picture; [] when empty."""
        if self.count <= 0:
            return []
        return [(b, c / self.count) for b, c in zip(self.bounds, self.counts, strict=True) if math.isfinite(b)]

    def share_below(self, value: float) -> float | None:
        """Share of observations <= value, linear inside a bucket; None when empty."""
        if self.count <= 0 or not self.bounds:
            return None
        below, lower = 0.0, 0.0
        for bound, cumulative in zip(self.bounds, self.counts, strict=True):
            if value < bound:
                if math.isinf(bound):
                    return below / self.count
                return (below + (cumulative - below) * max(0.0, value - lower) / (bound - lower)) / self.count
            below, lower = cumulative, bound
        return 1.0

    def __add__(self, other: Histogram) -> Histogram:
        """Merge two windows or pods. Mixed fleets cannot be merged: vLLM's edges depend on max_model_len."""
        if self.bounds != other.bounds:
            raise ValueError("histograms with different bucket edges cannot be merged")
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Histogram(self.bounds, counts, self.sum + other.sum)


def merge(histograms: Iterable[Histogram | None]) -> Histogram | None:
    """The sum of the known ones; None when none is known or when their edges differ."""
    known = [h for h in histograms if h is not None]
    if not known or any(h.bounds != known[0].bounds for h in known):
        return None
    total = known[0]
    for h in known[1:]:
        total = total + h
    return total


@dataclass(frozen=True)
class Observation:
    """One pod (or the sum of several) over one window. Counters are increases, gauges are time averages.

    Sources: stock vLLM metrics (facts: a client disconnect is counted nowhere; its tokens are in
    generation_tokens_total only).
    """

    #: number of pods merged into this one
    pods: int
    #: seconds really covered by samples (a pod that appeared late covers less); pod-seconds / pods when merged
    window_seconds: float
    #: requests that ended with HTTP status 2xx..5xx or by disconnect (http_requests_total), else finished ones
    requests: float | None = None
    #: requests that the engine finished: stop, length (and engine-side abort, error by their own fields)
    finished: float | None = None
    #: engine-side aborts and errors (request_success_total{finished_reason})
    engine_aborts: float | None = None
    engine_errors: float | None = None
    #: HTTP answers with a 5xx status
    http_errors: float | None = None
    preemptions: float | None = None
    prompt_tokens: float | None = None
    generated_tokens: float | None = None
    #: generated tokens of requests that finished normally (request_generation_tokens_sum)
    useful_tokens: float | None = None
    #: sum of max_tokens of finished requests (request_params_max_tokens_sum)
    reserved_tokens: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    running: float | None = None
    waiting: float | None = None
    #: 0 to 1, referenced blocks only
    kv_usage: float | None = None
    kv_usage_max: float | None = None
    #: KV capacity in tokens of one pod (cache_config_info), None when unknown
    kv_capacity_tokens: float | None = None
    ttft_seconds: Histogram | None = None
    tpot_seconds: Histogram | None = None
    e2e_seconds: Histogram | None = None
    queue_seconds: Histogram | None = None
    prompt_length: Histogram | None = None
    output_length: Histogram | None = None
    #: HTTP answers with a 4xx status, among `requests`: refused before the engine saw them (bad input, full queue)
    http_rejected: float | None = None
    #: requests refused by --max-num-queued-reqs or --max-num-queued-tokens (vLLM 0.32)
    admission_rejections: float | None = None
    #: engine steps with output (iteration_tokens_total_count): the heartbeat; 0 while `running` > 0 is a hang
    engine_steps: float | None = None
    #: prompt_tokens by where they came from (vLLM 0.16)
    prompt_tokens_computed: float | None = None
    prompt_tokens_cached: float | None = None
    prompt_tokens_transferred: float | None = None
    #: sum of n, the samples asked for, over finished requests
    requested_sequences: float | None = None
    #: `waiting` by reason (vLLM 0.20): for slots, KV blocks or the step's budget; and for anything else
    waiting_capacity: float | None = None
    waiting_deferred: float | None = None
    #: requests whose blocks the v0 engine moved to CPU memory
    swapped: float | None = None
    prefill_seconds: Histogram | None = None
    decode_seconds: Histogram | None = None
    #: labels of cache_config_info: KV blocks of one pod, tokens in a block, whether prefix caching is on
    num_gpu_blocks: float | None = None
    block_size_tokens: float | None = None
    prefix_caching: bool | None = None
    #: of `finished`, those that were cut at their token limit
    truncated: float | None = None

    # --- rates and ratios; None when what they need is unknown -------------------------------------------------------
    def _rate(self, value: float | None) -> float | None:
        """Per second and per pod-set (the sum over the pods)."""
        return value / self.window_seconds if value is not None and self.window_seconds > 0 else None

    @property
    def arrivals_per_second(self) -> float | None:
        return self._rate(self.requests)

    @property
    def preemptions_per_second(self) -> float | None:
        return self._rate(self.preemptions)

    @property
    def generated_tokens_per_second(self) -> float | None:
        return self._rate(self.generated_tokens)

    @property
    def useful_tokens_per_second(self) -> float | None:
        return self._rate(self.useful_tokens)

    @property
    def useful_token_ratio(self) -> float | None:
        """useful / reserved of requests the engine finished; cancelled ones are in no stock counter."""
        return ratio(self.useful_tokens, self.reserved_tokens)

    @property
    def wasted_token_ratio(self) -> float | None:
        """Generated tokens that no finished request received. Only meaningful over windows far longer than p95 E2E."""
        if self.generated_tokens is None or self.useful_tokens is None or self.generated_tokens <= 0:
            return None
        return max(0.0, 1.0 - self.useful_tokens / self.generated_tokens)

    @property
    def abort_rate(self) -> float | None:
        """Estimate: share of accepted HTTP requests that the engine did not finish; vLLM counts no disconnect.

        Answers 4xx are no aborts and are left out. Requests in flight at the window's edges blur it: use long windows.
        """
        if self.requests is None or self.finished is None:
            return None
        accepted = self.requests - (self.http_rejected or 0.0)
        return min(1.0, max(0.0, 1.0 - self.finished / accepted)) if accepted > 0 else None

    @property
    def prefix_hit_ratio(self) -> float | None:
        return ratio(self.prefix_hits, self.prefix_queries)

    @property
    def error_ratio(self) -> float | None:
        """5xx answers and engine errors among all requests."""
        bad = [v for v in (self.http_errors, self.engine_errors, self.engine_aborts) if v is not None]
        return ratio(sum(bad), self.requests) if bad else None

    @property
    def truncated_ratio(self) -> float | None:
        return ratio(self.truncated, self.finished)

    def attainment(self, ttft_seconds: float | None, tpot_seconds: float | None) -> float | None:
        """Share of finished requests inside the SLO, from two marginal histograms.

        The joint distribution is unknown, so this is the lower bound max(0, a + b - 1): a configuration is never
        praised for requests that may have missed one of the two limits.
        """
        shares: list[float] = []
        for limit, histogram in ((ttft_seconds, self.ttft_seconds), (tpot_seconds, self.tpot_seconds)):
            if limit is None:
                continue
            share = histogram.share_below(limit) if histogram is not None else None
            if share is None:
                return None
            shares.append(share)
        return max(0.0, sum(shares) - (len(shares) - 1)) if shares else 1.0

    def goodput(self, ttft_seconds: float | None, tpot_seconds: float | None) -> float | None:
        """Useful tokens/s of requests inside the SLO, per pod."""
        share, rate = self.attainment(ttft_seconds, tpot_seconds), self.useful_tokens_per_second
        if rate == 0:
            return 0.0  # nothing finished: no latency is known, but goodput is
        return None if share is None or rate is None else rate * share / max(1, self.pods)


def ratio(part: float | None, whole: float | None) -> float | None:
    """part / whole, or None when either is unknown or whole is 0."""
    return part / whole if part is not None and whole is not None and whole > 0 else None


#: averages: over pods, and over time where windows are joined. Everything numeric in none of these sets is summed
AVERAGED = frozenset(
    {
        "running", "waiting", "waiting_capacity", "waiting_deferred", "swapped", "kv_usage", "kv_capacity_tokens",
        "num_gpu_blocks",
    }
)  # fmt: skip
HIGHEST = frozenset({"kv_usage_max"})
#: configuration: known only where all agree
CONSTANT = frozenset({"block_size_tokens", "prefix_caching"})


def agreed(values: Iterable[object]) -> object:
    """The value that all share, or None."""
    first, *rest = values
    return first if all(v == first for v in rest) else None


def combine(observations: Sequence[Observation]) -> Observation | None:
    """One Observation for several pods over the same window. A field is known only if it is known for every pod.

    Gauges are averaged per pod (summing KV percentages is a field-reported mistake), kv_usage_max is the maximum.
    """
    if not observations:
        return None
    out: dict[str, object] = {
        "pods": sum(o.pods for o in observations),
        "window_seconds": sum(o.window_seconds for o in observations) / len(observations),
    }
    for name in (f.name for f in fields(Observation) if f.name not in out):
        out[name] = _combined(name, [getattr(o, name) for o in observations])
    return Observation(**out)  # type: ignore[arg-type]


def _combined(name: str, values: Sequence[Any]) -> object:
    if any(v is None for v in values):
        return None
    if isinstance(values[0], Histogram):
        return merge(values)
    if name in CONSTANT:
        return agreed(values)
    if name in HIGHEST:
        return max(values)
    return sum(values) / len(values) if name in AVERAGED else sum(values)
