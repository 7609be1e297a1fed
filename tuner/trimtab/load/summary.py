"""Records and a window in, a Summary out; pure.

A request belongs to the window in which it **arrived**: counts, failures and latencies are of that cohort. Tokens
belong to the window in which their request **ended**: counting them by arrival would credit an overloaded server with
what it did long afterwards.

Hazards: a window whose youngest requests have not ended yet looks better than it was (end it a patience ago).
Requests that gave up count in the TTFT quantiles with the time they waited, a lower bound: leaving them out would
make a server look better the more users leave it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from trimtab.load.records import Record


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in seconds a request must keep to count as good; None: no limit. TPOT is the mean over one request's
    tokens.
    """

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None

    def met(self, record: Record) -> bool:
        """Only requests that ended ok can meet it."""
        ttft, tpot = record.ttft_seconds, record.tpot_seconds
        return (
            record.ending == "ok"
            and (self.ttft_seconds is None or (ttft is not None and ttft <= self.ttft_seconds))
            and (self.tpot_seconds is None or tpot is None or tpot <= self.tpot_seconds)
        )


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of `count` samples; None where there are none, never 0."""

    count: int = 0
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


@dataclass(frozen=True)
class Summary:
    """What users got. Ratios are None where their denominator is empty."""

    start: float
    end: float
    seconds: float
    requests: int
    requests_per_second: float
    ok: int
    cancelled: int
    gave_up: int
    failed: int
    not_sent: int
    unfinished: int
    failed_by_cause: Mapping[str, int]
    #: tokens/s of requests that ended ok and met the SLO, ok at all, and cancelled, given up or failed
    goodput_tokens_per_second: float
    useful_tokens_per_second: float
    wasted_tokens_per_second: float
    #: received by requests that were cancelled; and by all that did not end ok
    cancelled_tokens: int
    wasted_tokens: int
    #: share of the requests sent, but for cancelled and unfinished ones, that met the SLO
    slo_attainment: float | None
    #: mean of generated / max_tokens over ok requests; and useful / reserved tokens over all that were sent
    completion_ratio: float | None
    useful_token_ratio: float | None
    ttft_seconds: Quantiles = field(default_factory=Quantiles)
    tpot_seconds: Quantiles = field(default_factory=Quantiles)
    e2e_seconds: Quantiles = field(default_factory=Quantiles)
    #: sending minus planned arrival: more than a few ms says that the client, not the server, is short of CPU
    lateness_seconds: Quantiles = field(default_factory=Quantiles)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def quantiles(values: Iterable[float | None]) -> Quantiles:
    """p50, p90, p99 with linear interpolation; None values are skipped."""
    samples = [v for v in values if v is not None]
    if not samples:
        return Quantiles()
    p50, p90, p99 = (float(v) for v in np.quantile(np.asarray(samples), (0.5, 0.9, 0.99)))
    return Quantiles(len(samples), p50, p90, p99)


def summarise(
    records: Iterable[Record],
    window: tuple[float, float],
    slo: Slo | None = None,
    *,
    cohort: Literal["arrival", "end"] = "arrival",
) -> Summary:
    """Window [start, end) in epoch seconds. cohort="end" counts requests where they ended: for live displays, biased
    to short ones.
    """
    slo = slo or Slo()
    start, end = window
    seconds = end - start
    if not seconds > 0:
        raise ValueError(f"window of {seconds} s")
    all_records = list(records)
    ended = [r for r in all_records if start <= r.ended_at < end]
    members = ended if cohort == "end" else [r for r in all_records if start <= r.arrival_at < end]
    endings = Counter(r.ending for r in members)
    wasted = sum(r.tokens for r in ended if r.ending != "ok")
    return Summary(
        start=start,
        end=end,
        seconds=seconds,
        requests=len(members),
        requests_per_second=len(members) / seconds,
        ok=endings["ok"],
        cancelled=endings["cancelled"],
        gave_up=endings["gave_up"],
        failed=endings["failed"],
        not_sent=endings["not_sent"],
        unfinished=endings["unfinished"],
        failed_by_cause=dict(Counter(r.cause or "unknown" for r in members if r.ending == "failed").most_common()),
        goodput_tokens_per_second=sum(r.tokens for r in ended if slo.met(r)) / seconds,
        useful_tokens_per_second=sum(r.tokens for r in ended if r.ending == "ok") / seconds,
        wasted_tokens_per_second=wasted / seconds,
        cancelled_tokens=sum(r.tokens for r in ended if r.ending == "cancelled"),
        wasted_tokens=wasted,
        slo_attainment=_attainment(members, slo),
        completion_ratio=_mean([r.tokens / r.max_tokens for r in members if r.ending == "ok" and r.max_tokens > 0]),
        useful_token_ratio=_useful_ratio(members),
        ttft_seconds=quantiles(_ttft(r) for r in members),
        tpot_seconds=quantiles(r.tpot_seconds for r in members if r.ending in ("ok", "cancelled")),
        e2e_seconds=quantiles(r.e2e_seconds for r in members if r.ending == "ok"),
        lateness_seconds=quantiles(None if r.sent_at is None else r.sent_at - r.arrival_at for r in members),
    )


def whole_run(records: Sequence[Record]) -> tuple[float, float] | None:
    """From the first arrival to just after the last end; None without records."""
    if not records:
        return None
    start = min(r.arrival_at for r in records)
    end = max(max(r.ended_at, r.arrival_at) for r in records)
    return start, end + max(1e-6, 1e-6 * (end - start))


def _ttft(record: Record) -> float | None:
    no_token_in_time = record.first_token_at is None and (record.ending == "gave_up" or record.cause == "timeout")
    return record.e2e_seconds if no_token_in_time else record.ttft_seconds


def _attainment(members: Sequence[Record], slo: Slo) -> float | None:
    judged = [r for r in members if r.ending in ("ok", "failed", "gave_up")]
    return _mean([float(slo.met(r)) for r in judged])


def _useful_ratio(members: Sequence[Record]) -> float | None:
    reserved = sum(r.max_tokens for r in members if r.sent_at is not None)
    return sum(r.tokens for r in members if r.ending == "ok") / reserved if reserved else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
