"""Names, help texts and bucket edges of vLLM 0.32's metrics, read off a real server's /metrics."""

from __future__ import annotations

from trimtab.emulate.flags import ServerFlags

SLEEP_STATES = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}

COUNTERS: dict[str, str] = {
    "estimated_flops_per_gpu": "Estimated number of floating point operations per GPU (for Model Flops Utilization "
    "calculations).",
    "estimated_read_bytes_per_gpu": "Estimated number of bytes read from memory per GPU (for Model Flops Utilization "
    "calculations).",
    "estimated_write_bytes_per_gpu": "Estimated number of bytes written to memory per GPU (for Model Flops Utilization "
    "calculations).",
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
    "external_prefix_cache_queries": "External prefix cache queries from KV connector cross-instance cache sharing, in "
    "terms of number of queried tokens.",
    "external_prefix_cache_hits": "External prefix cache hits from KV connector cross-instance cache sharing, in terms "
    "of number of cached tokens.",
    "mm_cache_queries": "Multi-modal cache queries, in terms of number of queried items.",
    "mm_cache_hits": "Multi-modal cache hits, in terms of number of cached items.",
    "num_preemptions": "Cumulative number of preemption from the engine.",
    "prompt_tokens": "Number of prefill tokens processed.",
    "prompt_tokens_cached": "Number of cached prompt tokens (local + external).",
    "generation_tokens": "Number of generation tokens processed.",
}

_LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
            960.0, 1920.0, 7680.0)  # fmt: skip
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
                80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_ITERATION = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)

#: name -> (help, bucket edges); None: edges follow max_model_len
HISTOGRAMS: dict[str, tuple[str, tuple[float, ...] | None]] = {
    "request_prompt_tokens": ("Number of prefill tokens processed.", None),
    "request_generation_tokens": ("Number of generation tokens processed.", None),
    "iteration_tokens_total": ("Histogram of number of tokens per engine_step.", _ITERATION),
    "request_max_num_generation_tokens": ("Histogram of maximum number of requested generation tokens.", None),
    "request_params_n": ("Histogram of the n request parameter.", (1.0, 2.0, 5.0, 10.0, 20.0)),
    "request_params_max_tokens": ("Histogram of the max_tokens request parameter.", None),
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", _FIRST_TOKEN),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", _PER_TOKEN),
    "request_time_per_output_token_seconds": (
        "Histogram of time_per_output_token_seconds per request.",
        _PER_TOKEN,
    ),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", _LATENCY),
    "request_queue_time_seconds": ("Histogram of time spent in WAITING phase for request.", _LATENCY),
    "request_inference_time_seconds": ("Histogram of time spent in RUNNING phase for request.", _LATENCY),
    "request_prefill_time_seconds": ("Histogram of time spent in PREFILL phase for request.", _LATENCY),
    "request_decode_time_seconds": ("Histogram of time spent in DECODE phase for request.", _LATENCY),
    "request_num_preemptions": (
        "Histogram of the number of times a request was preempted.",
        (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
    ),
    "request_prefill_kv_computed_tokens": (
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        None,
    ),
}


def token_buckets(max_model_len: int) -> tuple[float, ...]:
    """1, 2, 5, 10, ... up to max_model_len, as vLLM makes them."""
    edges: list[float] = []
    scale = 1
    while True:
        for mantissa in (1, 2, 5):
            if mantissa * scale > max_model_len:
                return tuple(edges)
            edges.append(float(mantissa * scale))
        scale *= 10


def cache_config_labels(flags: ServerFlags) -> dict[str, str]:
    """Labels of cache_config_info; what the emulator does not model has vLLM's default."""
    limits = flags.limits
    size = limits.num_gpu_blocks * limits.block_size
    concurrency = size / limits.max_model_len
    return {
        "_block_size_resolved": "True",
        "block_size": str(limits.block_size),
        "cache_dtype": "auto",
        "cache_hit_alignment_tokens": "None",
        "effective_attention_block_size": str(limits.block_size),
        "enable_mamba_shared_prefix_checkpoint": "False",
        "enable_prefix_caching": str(limits.enable_prefix_caching),
        "engine": "0",
        "gpu_memory_utilization": str(flags.gpu_memory_utilization),
        "hash_block_size": "None",
        "is_attention_free": "False",
        "kv_cache_dtype_skip_layers": "[]",
        "kv_cache_layout": "None",
        "kv_cache_max_concurrency": str(concurrency),
        "kv_cache_memory_bytes": "None",
        "kv_cache_size_tokens": str(size),
        "kv_offloading_backend": "native",
        "kv_offloading_size": "None",
        "kv_sharing_fast_prefill": "False",
        "mamba_block_size": "None",
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "mamba_page_size_padded": "None",
        "mamba_ssm_cache_dtype": "float32",
        "num_cpu_blocks": "None",
        "num_gpu_blocks": str(limits.num_gpu_blocks),
        "num_gpu_blocks_override": str(flags.num_gpu_blocks_override),
        "prefix_cache_retention_interval": "0",
        "prefix_caching_hash_algo": "sha256",
        "prefix_match_unit": "None",
        "replayssm_buffer_len": "16",
        "skip_page_size_padded": "None",
        "sliding_window": "None",
        "swa_bounded_replay": "True",
        "use_kda_recoverssm": "False",
        "use_replayssm": "False",
        "user_specified_block_size": "True",
    }
