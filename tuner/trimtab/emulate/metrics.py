"""The engine's Prometheus metrics, under the names, labels, help texts and bucket edges of vLLM 0.32.

Hazards copied on purpose: a client disconnect appears in no request_* metric; preemptions are counted when the victim's
next token comes; tokens computed again appear in no token counter; `iteration_tokens_total` is a histogram.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from trimtab.emulate.flags import ServerFlags
from trimtab.emulate.live import EndReason, LiveRequest
from trimtab.emulate.metric_table import (
    COUNTERS,
    HISTOGRAMS,
    SLEEP_STATES,
    cache_config_labels,
    token_buckets,
)

if TYPE_CHECKING:  # at run time it comes with the compiled code, after the flags were read
    from trimtab.simulate.stepper import Stepper, StepResult

FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


class EngineMetrics:
    """Implements `live.EngineObserver`. Seconds are those of the engine's clock, tokens are tokens."""

    def __init__(self, registry: CollectorRegistry, flags: ServerFlags) -> None:
        self._registry = registry
        self._labels = {"model_name": flags.served_model_names[0], "engine": "0"}
        self._counters = {name: self._counter(name, text) for name, text in COUNTERS.items()}
        self._make_gauges(flags)
        self._make_labelled_counters()
        by_length = token_buckets(flags.limits.max_model_len)
        self._histograms = {
            name: self._histogram(name, text, buckets or by_length) for name, (text, buckets) in HISTOGRAMS.items()
        }
        self._inter_token = self._histograms["inter_token_latency_seconds"]

    # --- observing ----------------------------------------------------------------------------------------------------

    def step_started(self, step: StepResult, live: Mapping[int, LiveRequest]) -> None:
        """Prefix-cache counters, which vLLM counts at admission; resumed requests are left out as vLLM does."""
        for number, cached_tokens, resumed in step.admitted:
            if not resumed and number in live:
                self._counters["prefix_cache_queries"].inc(live[number].prompt_tokens)
                self._counters["prefix_cache_hits"].inc(cached_tokens)
                self._cached_device.inc(cached_tokens)

    def step_ended(self, receivers: list[LiveRequest], now: float, stepper: Stepper) -> None:
        """Token counters and latencies for the requests that got a token; `last_token_at` is still the token before."""
        computed_prompt_tokens = 0
        for live in receivers:
            if live.pending_preemptions:
                self._counters["num_preemptions"].inc(live.pending_preemptions)
                live.pending_preemptions = 0
            if live.first_token_at is None:
                computed_prompt_tokens += self._first_token(live, now)
            else:
                self._inter_token.observe(now - live.last_token_at)
        if receivers:
            self._counters["generation_tokens"].inc(len(receivers))
            self._histograms["iteration_tokens_total"].observe(computed_prompt_tokens + len(receivers))
        self.set_gauges(stepper)

    def set_gauges(self, stepper: Stepper) -> None:
        self._running.set(stepper.running_count)
        self._waiting.set(stepper.waiting_count)
        self._waiting_capacity.set(stepper.waiting_count)
        self._usage.set(stepper.kv_usage)

    def finished(self, live: LiveRequest, reason: EndReason, now: float) -> None:
        """One finished request, aborts by the engine included. Never call it for a client that went away."""
        self._success[reason].inc()
        scheduled = live.scheduled_at if live.scheduled_at is not None else now
        first = live.first_token_at if live.first_token_at is not None else now
        last = live.last_token_at or now
        decode = last - first
        values = {
            "e2e_request_latency_seconds": now - live.arrived_at,
            "request_queue_time_seconds": scheduled - live.arrived_at,
            "request_prefill_time_seconds": first - scheduled,
            "request_decode_time_seconds": decode,
            "request_inference_time_seconds": last - scheduled,
            "request_time_per_output_token_seconds": decode / (live.tokens - 1) if live.tokens > 1 else 0.0,
            "request_prompt_tokens": live.prompt_tokens,
            "request_generation_tokens": live.tokens,
            "request_max_num_generation_tokens": live.tokens,
            "request_params_max_tokens": live.max_tokens,
            "request_params_n": 1,
            "request_prefill_kv_computed_tokens": live.prompt_tokens - live.cached_tokens,
            "request_num_preemptions": live.preemptions,
        }
        for name, value in values.items():
            self._histograms[name].observe(value)

    def rejected(self, reason: str) -> None:
        """A request was refused at a queue limit: `max_num_queued_reqs` or `max_num_queued_tokens`."""
        self._rejections[reason].inc()

    # --- parts --------------------------------------------------------------------------------------------------------

    def _first_token(self, live: LiveRequest, now: float) -> int:
        computed = live.prompt_tokens - live.cached_tokens
        self._histograms["time_to_first_token_seconds"].observe(now - live.arrived_at)
        self._counters["prompt_tokens"].inc(live.prompt_tokens)
        self._counters["prompt_tokens_cached"].inc(live.cached_tokens)
        self._source_compute.inc(computed)
        self._source_cache.inc(live.cached_tokens)
        return computed

    def _counter(self, name: str, text: str) -> Counter:
        metric = Counter(f"vllm:{name}", text, tuple(self._labels), registry=self._registry)
        return metric.labels(**self._labels)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        metric = Histogram(f"vllm:{name}", text, tuple(self._labels), registry=self._registry, buckets=buckets)
        return metric.labels(**self._labels)

    def _gauge(self, name: str, text: str, **extra: str) -> Gauge:
        labels = {**self._labels, **extra}
        metric = Gauge(f"vllm:{name}", text, tuple(labels), registry=self._registry)
        return metric.labels(**labels)

    def _make_gauges(self, flags: ServerFlags) -> None:
        self._running = self._gauge("num_requests_running", "Number of requests in model execution batches.")
        self._waiting = self._gauge("num_requests_waiting", "Number of requests waiting to be processed.")
        by_reason = Gauge(
            "vllm:num_requests_waiting_by_reason",
            "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
            "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all "
            "reasons equals vllm:num_requests_waiting.",
            ("model_name", "engine", "reason"),
            registry=self._registry,
        )
        self._waiting_capacity = by_reason.labels(**self._labels, reason="capacity")
        by_reason.labels(**self._labels, reason="deferred")
        sleep = Gauge(
            "vllm:engine_sleep_state",
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
            "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
            ("model_name", "engine", "sleep_state"),
            registry=self._registry,
        )
        for state, value in SLEEP_STATES.items():
            sleep.labels(**self._labels, sleep_state=state).set(value)
        self._usage = self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        config = cache_config_labels(flags)
        text = "Information of the LLMEngine CacheConfig"
        info = Gauge("vllm:cache_config_info", text, tuple(config), registry=self._registry)
        info.labels(**config).set(1)

    def _labelled(
        self, name: str, text: str, label: str, values: tuple[str, ...], engine: bool = True
    ) -> dict[str, Counter]:
        base = self._labels if engine else {"model_name": self._labels["model_name"]}
        metric = Counter(f"vllm:{name}", text, (*base, label), registry=self._registry)
        return {value: metric.labels(**base, **{label: value}) for value in values}

    def _make_labelled_counters(self) -> None:
        sources = ("local_compute", "local_cache_hit", "external_kv_transfer")
        by_source = self._labelled("prompt_tokens_by_source", "Number of prompt tokens by source.", "source", sources)
        self._source_compute, self._source_cache = by_source["local_compute"], by_source["local_cache_hit"]
        tiers = ("device", "host", "p2p", "disk", "external_unspecified")
        self._cached_device = self._labelled(
            "prompt_tokens_cached_by_source",
            "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to "
            "DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; "
            "sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
            "source",
            tiers,
        )["device"]
        text = "Count of successfully processed requests."
        self._success = self._labelled("request_success", text, "finished_reason", FINISHED_REASONS)
        self._rejections = self._labelled(
            "admission_rejections",
            "Number of admission attempts rejected by a queue limit, by reason.",
            "reason",
            ("max_num_queued_reqs", "max_num_queued_tokens"),
            engine=False,
        )
