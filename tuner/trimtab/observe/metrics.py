"""The table of vLLM metric names and what they mean. Data only: add a rename here and nowhere else.

Source: the sources and a real /metrics of vLLM 0.32. Names are tried in order and the first one that has samples wins,
they are never added: during an upgrade both spellings may exist. Only what the mapping needs is listed, so that queries
stay small.

Hazards
- A client disconnect is counted nowhere; its tokens are in generation_tokens_total only.
- `--disable-log-stats` removes every vllm: series; http_requests_total stays, the rest of an Observation is unknown.
- Bucket edges of the length histograms depend on max_model_len.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PREFIX = "vllm:"
#: says whether the process that serves /metrics is the same one; absent in Prometheus' multi-process mode
PROCESS_START = "process_start_time_seconds"
CACHE_CONFIG = "vllm:cache_config_info"
HTTP_REQUESTS = "http_requests_total"
#: requests that reach the engine; /health, /metrics, /tokenize and the like are not load
INFERENCE_HANDLERS = frozenset({"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"})


def _counter(*stems: str) -> tuple[str, ...]:
    """Both spellings: prometheus_client adds _total, some relabelings and old exporters do not carry it."""
    return tuple(PREFIX + stem + suffix for stem in stems for suffix in ("_total", ""))


@dataclass(frozen=True)
class CounterRule:
    """A counter of an Observation: `names` by preference.

    `label` restricted to `values` where the family has children.
    """

    names: tuple[str, ...]
    label: str = ""
    values: frozenset[str] = field(default_factory=frozenset)

    def selects(self, labels: dict[str, str]) -> bool:
        return not self.label or labels.get(self.label) in self.values


_SUCCESS = _counter("request_success")

#: field of Observation -> where it is counted
COUNTERS: dict[str, CounterRule] = {
    "finished": CounterRule(_SUCCESS, "finished_reason", frozenset({"stop", "length", "repetition"})),
    "engine_aborts": CounterRule(_SUCCESS, "finished_reason", frozenset({"abort"})),
    "engine_errors": CounterRule(_SUCCESS, "finished_reason", frozenset({"error"})),
    "preemptions": CounterRule(_counter("num_preemptions")),
    "prompt_tokens": CounterRule(_counter("prompt_tokens")),
    "generated_tokens": CounterRule(_counter("generation_tokens")),
    "prefix_queries": CounterRule(_counter("prefix_cache_queries", "gpu_prefix_cache_queries")),
    "prefix_hits": CounterRule(_counter("prefix_cache_hits", "gpu_prefix_cache_hits")),
    # sums of histograms whose buckets are not needed; engine-side aborts and errors are in them too (they are few)
    "useful_tokens": CounterRule((PREFIX + "request_generation_tokens_sum",)),
    "reserved_tokens": CounterRule((PREFIX + "request_params_max_tokens_sum",)),
}

#: field -> histogram names without _bucket and _sum
HISTOGRAMS: dict[str, tuple[str, ...]] = {
    "ttft_seconds": (PREFIX + "time_to_first_token_seconds",),
    # Per request first, because SLO attainment is a share of requests; the other two count every token gap. All have
    # the same edges, the lowest 10 ms: an engine faster than that shows no differences. A one-token request is 0.
    "tpot_seconds": (
        PREFIX + "request_time_per_output_token_seconds",
        PREFIX + "inter_token_latency_seconds",
        PREFIX + "time_per_output_token_seconds",
    ),
    "e2e_seconds": (PREFIX + "e2e_request_latency_seconds",),
    "queue_seconds": (PREFIX + "request_queue_time_seconds",),
    "prompt_length": (PREFIX + "request_prompt_tokens",),
    "output_length": (PREFIX + "request_generation_tokens",),
}

#: field -> gauge names
GAUGES: dict[str, tuple[str, ...]] = {
    "running": (PREFIX + "num_requests_running",),
    "waiting": (PREFIX + "num_requests_waiting",),
    "kv_usage": (PREFIX + "kv_cache_usage_perc", PREFIX + "gpu_cache_usage_perc"),
}


def _cumulative() -> frozenset[str]:
    names = {HTTP_REQUESTS, *(name for rule in COUNTERS.values() for name in rule.names)}
    names.update(name + suffix for stems in HISTOGRAMS.values() for name in stems for suffix in ("_bucket", "_sum"))
    return frozenset(names)


#: series that only grow while the process lives
CUMULATIVE = _cumulative()
#: every series name to fetch
WANTED = CUMULATIVE | {name for names in GAUGES.values() for name in names} | {CACHE_CONFIG, PROCESS_START}

_INFO_LABELS = frozenset({"engine", "block_size", "num_gpu_blocks", "kv_cache_size_tokens", "enable_prefix_caching"})
_SERIES_LABELS = frozenset({"engine", "model_name", "le", "finished_reason", "handler", "method", "status"})


def own_labels(name: str, labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """The sorted labels that the engine itself gave a series and that matter; what a scrape job added is left out."""
    kept = _INFO_LABELS if name == CACHE_CONFIG else _SERIES_LABELS
    return tuple(sorted((k, v) for k, v in labels.items() if k in kept))
