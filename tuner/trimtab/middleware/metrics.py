"""The middleware's metrics, on prometheus_client's default registry: vLLM's own /metrics shows them.

vLLM 0.32 serves that registry, or with several API servers a MultiProcessCollector over PROMETHEUS_MULTIPROC_DIR
(v1/metrics/prometheus.py), so nothing here uses what that mode lacks: Info, Enum, gauge functions, removal of labels.
Labels are bounded: 8 endings, 5 routes, at most MOST_ARMS arms in a process's life.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.registry import CollectorRegistry

#: `stop` end of text, `stop_sequence` a stop string, a stop token of the request or a detected repetition, `length` the
#: limit; `rejected` a 4xx, or refused here; `unseen` answered, but in a form that could not be read
ENDINGS = ("stop", "stop_sequence", "length", "client_cancel", "timeout", "rejected", "error", "unseen")
FINISHED = frozenset(("stop", "stop_sequence", "length"))
MOST_ARMS = 32
_BY = ("ending", "arm", "route")
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99, 1.0)
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)


class Children(NamedTuple):
    """The labelled children of one (ending, arm, route), looked up once."""

    requests: Counter
    generated: Counter
    wasted: Counter
    reserved: Counter
    held: Counter
    output: Histogram
    ratio: Histogram


class Metrics:
    """All metrics; one per process and registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._children: dict[tuple[str, str, str], Children] = {}
        self._arms: set[str] = set()
        self._of_requests()
        self._of_state()

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str, mode: Any, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(name, text, labels, registry=self._registry, multiprocess_mode=mode)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(name, text, labels, registry=self._registry, buckets=buckets)

    def _of_requests(self) -> None:
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        arm_route = ("arm", "route")
        self.useful = counter("llm_useful_tokens", "Generated tokens of requests that finished normally.")
        self.reserved = counter("llm_reserved_tokens", "Sum of max tokens over all requests that reached the engine.")
        self.useful_ratio = gauge(
            "llm_useful_token_ratio", "Useful tokens / reserved tokens since start.", "mostrecent"
        )
        self.requests = counter("trimtab_mw_requests", "Requests by how they ended.", _BY)
        self.generated = counter("trimtab_mw_generated_tokens", "Tokens sent to the client, by ending.", _BY)
        self.wasted = counter("trimtab_mw_wasted_tokens", "Tokens seen of requests that did not finish.", _BY)
        self.reserved_by = counter("trimtab_mw_reserved_tokens", "Max tokens of requests, by ending.", _BY)
        self.held = counter("trimtab_mw_held_seconds", "Time from arrival to end, queueing included.", _BY)
        self.output = histogram(
            "trimtab_mw_output_tokens", "Output per choice of finished requests.", _TOKENS, arm_route
        )
        self.ratio = histogram("trimtab_mw_completion_ratio", "Generated / max tokens per request.", _RATIOS, arm_route)
        self.after_disconnect = counter(
            "trimtab_mw_after_disconnect_tokens", "Tokens the engine gave after the client had left.", arm_route
        )
        self.to_stop = histogram(
            "trimtab_mw_disconnect_to_stop_seconds",
            "Client's disconnect seen until the engine was told to stop.",
            _SECONDS,
        )
        self.inexact = counter(
            "trimtab_mw_inexact_requests", "Requests whose tokens are a lower bound, by why.", ("reason",)
        )
        self.limited = counter(
            "trimtab_mw_limited_requests", "Requests whose limits were set here.", ("reason", *arm_route)
        )
        self.unseen = counter("trimtab_mw_unseen_requests", "Requests that passed unread, by why.", ("reason",))
        self.faults = counter("trimtab_mw_faults", "Faults of the middleware's own; the request passed.", ("hook",))

    def _of_state(self) -> None:
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        self.admissions = counter("trimtab_mw_admissions", "What admission decided.", ("decision",))
        self.queue_seconds = histogram("trimtab_mw_queue_seconds", "Wait of requests that were queued.", _SECONDS)
        self.queued = gauge("trimtab_mw_queued_requests", "Requests that wait here now.", "livesum")
        self.running = gauge("trimtab_mw_running_sequences", "Sequences in the engine now.", "livesum")
        self.kv_expected = gauge(
            "trimtab_mw_kv_expected_tokens", "Most KV tokens that what runs is expected to hold at one time.", "livesum"
        )
        self.policy_generation = gauge("trimtab_mw_policy_generation", "generation of the policy in effect.", "livemin")
        self.policy_loaded = gauge(
            "trimtab_mw_policy_loaded_timestamp_seconds", "When the policy in effect was read.", "livemin"
        )
        self.policy_info = gauge("trimtab_mw_policy_info", "1 for the policy in effect.", "livemax", ("digest",))
        self.policy_bad = gauge(
            "trimtab_mw_policy_bad", "1: the file cannot be used, the last good one holds.", "livemax"
        )
        self.policy_errors = counter("trimtab_mw_policy_errors", "Policy files that could not be used.")
        self.predictor_up = gauge("trimtab_mw_predictor_up", "1: a length predictor is loaded.", "livemin")
        self.predictor_errors = counter("trimtab_mw_predictor_errors", "Predictor files refused.", ("reason",))
        self.feature_rows = counter("trimtab_mw_feature_rows", "Lines written to the feature log.")
        self.draining = gauge("trimtab_mw_draining", "0 serving, 1 draining, 2 refusing new work.", "livemax")
        self.info = gauge("trimtab_mw_info", "1; the version of the middleware.", "livemax", ("version",))

    @staticmethod
    def forget(gauge: Gauge, label: str) -> None:
        """Drop a labelled series. With several API servers it stays, at 0: their files hold no removals."""
        if not os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            gauge.remove(label)

    def arm(self, name: str) -> str:
        """The label of an arm; `other` once too many were seen."""
        if name in self._arms:
            return name
        if len(self._arms) >= MOST_ARMS:
            return "other"
        self._arms.add(name)
        return name

    def of(self, ending: str, arm: str, route: str) -> Children:
        key = (ending, arm, route)
        found = self._children.get(key)
        if found is None:
            found = self._children[key] = Children(
                self.requests.labels(*key),
                self.generated.labels(*key),
                self.wasted.labels(*key),
                self.reserved_by.labels(*key),
                self.held.labels(*key),
                self.output.labels(arm, route),
                self.ratio.labels(arm, route),
            )
        return found


_shared: Metrics | None = None


def shared() -> Metrics:
    """The process's metrics on the default registry: the middleware may be built more than once."""
    global _shared
    if _shared is None:
        _shared = Metrics()
    return _shared
