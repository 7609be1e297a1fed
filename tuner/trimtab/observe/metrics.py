"""Which vLLM metrics make which field of an Observation. The names and their history are in `engine.metric_table`.

Names are tried in order and the first one that has samples wins, they are never added: during an upgrade both spellings
of a renamed metric exist. Only what the mapping needs is listed, so that queries stay small.

Hazards
- A client disconnect is counted nowhere; its tokens are in generation_tokens_total only.
- `--disable-log-stats` removes every vllm: series; http_requests_total stays, the rest of an Observation is unknown.
- Bucket edges of the length histograms depend on max_model_len.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trimtab.engine.metric_table import METRICS, spellings

PREFIX = "vllm:"


def _known(name: str) -> str:
    """The name as the table has it; a slip is a KeyError on import."""
    return METRICS[name].name


#: says whether the process that serves /metrics is the same one; absent in Prometheus' multi-process mode
PROCESS_START = _known("process_start_time_seconds")
CACHE_CONFIG = _known("vllm:cache_config_info")
HTTP_REQUESTS = _known("http_requests_total")
#: requests that reach the engine; /health, /metrics, /tokenize and the like are not load
INFERENCE_HANDLERS = frozenset({"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"})


def _counter(stem: str) -> tuple[str, ...]:
    """All spellings: prometheus_client adds _total, some relabelings and old exporters do not carry it."""
    names = spellings(f"{PREFIX}{stem}_total")
    return tuple(spelt for name in names for spelt in (name, name.removesuffix("_total")))


@dataclass(frozen=True)
class Rule:
    """Where a counter or gauge of an Observation is: `names` by preference.

    `label` restricted to `values` where the family has children.
    """

    names: tuple[str, ...]
    label: str = ""
    values: frozenset[str] = field(default_factory=frozenset)

    def selects(self, labels: dict[str, str]) -> bool:
        return not self.label or labels.get(self.label) in self.values


def _child(names: tuple[str, ...], label: str, *values: str) -> Rule:
    return Rule(names, label, frozenset(values))


def _part(stem: str, suffix: str) -> Rule:
    """The sum or the count of a histogram whose buckets are not needed."""
    return Rule((_known(PREFIX + stem) + suffix,))


_SUCCESS, _SOURCES = _counter("request_success"), _counter("prompt_tokens_by_source")

#: field of Observation -> where it is counted
COUNTERS: dict[str, Rule] = {
    "finished": _child(_SUCCESS, "finished_reason", "stop", "length", "repetition"),
    "truncated": _child(_SUCCESS, "finished_reason", "length"),
    "engine_aborts": _child(_SUCCESS, "finished_reason", "abort"),
    "engine_errors": _child(_SUCCESS, "finished_reason", "error"),
    "admission_rejections": Rule(_counter("admission_rejections")),
    "preemptions": Rule(_counter("num_preemptions")),
    "engine_steps": _part("iteration_tokens_total", "_count"),
    "prompt_tokens": Rule(_counter("prompt_tokens")),
    "prompt_tokens_computed": _child(_SOURCES, "source", "local_compute"),
    "prompt_tokens_cached": _child(_SOURCES, "source", "local_cache_hit"),
    "prompt_tokens_transferred": _child(_SOURCES, "source", "external_kv_transfer"),
    "generated_tokens": Rule(_counter("generation_tokens")),
    "prefix_queries": Rule(_counter("prefix_cache_queries")),
    "prefix_hits": Rule(_counter("prefix_cache_hits")),
    # engine-side aborts and errors are in these too (they are few)
    "useful_tokens": _part("request_generation_tokens", "_sum"),
    "reserved_tokens": _part("request_params_max_tokens", "_sum"),
    "requested_sequences": _part("request_params_n", "_sum"),
}

#: field -> histogram names without _bucket and _sum
HISTOGRAMS: dict[str, tuple[str, ...]] = {
    "ttft_seconds": spellings("vllm:time_to_first_token_seconds"),
    # Per request first, because SLO attainment is a share of requests; the other two count every token gap. All have
    # the same edges, the lowest 10 ms: an engine faster than that shows no differences. A one-token request is 0.
    "tpot_seconds": (
        _known("vllm:request_time_per_output_token_seconds"),
        *spellings("vllm:inter_token_latency_seconds"),
    ),
    "e2e_seconds": spellings("vllm:e2e_request_latency_seconds"),
    "queue_seconds": spellings("vllm:request_queue_time_seconds"),
    "prefill_seconds": spellings("vllm:request_prefill_time_seconds"),
    "decode_seconds": spellings("vllm:request_decode_time_seconds"),
    "prompt_length": spellings("vllm:request_prompt_tokens"),
    "output_length": spellings("vllm:request_generation_tokens"),
}

_REASONS = spellings("vllm:num_requests_waiting_by_reason")

#: field -> where the gauge is
GAUGES: dict[str, Rule] = {
    "running": Rule(spellings("vllm:num_requests_running")),
    "waiting": Rule(spellings("vllm:num_requests_waiting")),
    "waiting_capacity": _child(_REASONS, "reason", "capacity"),
    "waiting_deferred": _child(_REASONS, "reason", "deferred"),
    "swapped": Rule(spellings("vllm:num_requests_swapped")),
    "kv_usage": Rule(spellings("vllm:kv_cache_usage_perc")),
}

#: fields read from the labels of cache_config_info
CACHE_FIELDS = ("kv_capacity_tokens", "num_gpu_blocks", "block_size_tokens", "prefix_caching")


def sources(name: str) -> tuple[str, ...]:
    """The series names from which a field of Observation is read, a histogram's without _bucket and _sum."""
    if name in CACHE_FIELDS:
        return (CACHE_CONFIG,)
    if name in ("http_errors", "http_rejected"):
        return (HTTP_REQUESTS,)
    if name == "requests":
        return (HTTP_REQUESTS, *_SUCCESS)
    if name == "kv_usage_max":
        return GAUGES["kv_usage"].names
    rule = COUNTERS.get(name) or GAUGES.get(name)
    return rule.names if rule is not None else HISTOGRAMS[name]


def _cumulative() -> frozenset[str]:
    names = {HTTP_REQUESTS, *(name for rule in COUNTERS.values() for name in rule.names)}
    names.update(name + suffix for stems in HISTOGRAMS.values() for name in stems for suffix in ("_bucket", "_sum"))
    return frozenset(names)


#: series that only grow while the process lives
CUMULATIVE = _cumulative()
#: every series name to fetch
WANTED = CUMULATIVE | {name for rule in GAUGES.values() for name in rule.names} | {CACHE_CONFIG, PROCESS_START}

_INFO_LABELS = frozenset({"engine", *METRICS[CACHE_CONFIG].labels})
_SERIES_LABELS = frozenset(
    {"engine", "model_name", "le", "finished_reason", "reason", "source", "handler", "method", "status"}
)


def own_labels(name: str, labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """The sorted labels that the engine itself gave a series and that matter; what a scrape job added is left out."""
    kept = _INFO_LABELS if name == CACHE_CONFIG else _SERIES_LABELS
    return tuple(sorted((k, v) for k, v in labels.items() if k in kept))
