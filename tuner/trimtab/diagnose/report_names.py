"""What people call the fields of a report: other names of gauges and rates, and counters that make a rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: other names of a field
ALIASES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("num_requests_running", "running_requests", "num_running", "running_reqs", "num_running_reqs",
                     "batch_current_size", "tgi_batch_current_size"), "running"),
    **dict.fromkeys(("num_requests_waiting", "waiting_requests", "num_waiting", "queued", "queue", "queue_size",
                     "queue_length", "queue_depth", "num_queue_reqs", "tgi_queue_size", "pending"), "waiting"),
    **dict.fromkeys(("deferred", "num_requests_deferred", "waiting_by_reason_deferred"), "waiting_deferred"),
    **dict.fromkeys(("waiting_by_reason_capacity",), "waiting_capacity"),
    **dict.fromkeys(("kv", "kv_cache_usage", "kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage",
                     "kv_cache_utilization", "kv_utilization", "kv_pct", "kv_usage_percent"), "kv_usage"),
    **dict.fromkeys(("preemption_rate", "preemptions_per_sec", "retractions_per_second"), "preemptions_per_second"),
    **dict.fromkeys(("prefill_tokens_per_second", "prompt_throughput", "input_tokens_per_second",
                     "prompt_throughput_tokens_per_second"), "prompt_tokens_per_second"),
    **dict.fromkeys(("decode_tokens_per_second", "tokens_per_second", "output_tokens_per_second",
                     "generation_throughput", "throughput_tokens_per_second", "gen_tokens_per_second",
                     "generation_throughput_tokens_per_second"), "generation_tokens_per_second"),
    **dict.fromkeys(("rps", "qps", "arrivals_per_second", "request_rate", "offered_rps"), "requests_per_second"),
    **dict.fromkeys(("success_per_second", "completed_per_second", "completions_per_second", "finished_rps",
                     "requests_finished_per_second", "success_requests_per_second"), "finished_per_second"),
    **dict.fromkeys(("engine_steps_per_second", "iterations_per_second", "heartbeat", "heartbeat_per_second",
                     "steps", "iteration_rate"), "steps_per_second"),
    **dict.fromkeys(("prefix_cache_hit_ratio", "prefix_cache_hit_rate", "cache_hit_rate", "hit_ratio", "hit_rate",
                     "prefix_hit_rate"), "prefix_hit_ratio"),
    **dict.fromkeys(("in_flight", "client_concurrency", "clients_in_flight", "http_in_flight", "connections",
                     "gateway_in_flight", "proxy_in_flight"), "client_in_flight"),
    **dict.fromkeys(("gpu_util", "sm_utilization", "gpu_utilisation", "sm_util", "gpu_busy"), "gpu_utilization"),
    **dict.fromkeys(("cpu_util", "cpu_usage", "cpu_utilisation", "cpu"), "cpu_utilization"),
    **dict.fromkeys(("ttft_mean_seconds", "ttft_seconds", "ttft"), "ttft_p50_seconds"),
    **dict.fromkeys(("itl_p50_seconds", "itl_median_seconds"), "tpot_p50_seconds"),
    **dict.fromkeys(("itl_mean_seconds", "tpot_seconds", "tpot", "itl_seconds"), "tpot_mean_seconds"),
    **dict.fromkeys(("itl_p99_seconds",), "tpot_p99_seconds"),
    **dict.fromkeys(("queue_seconds", "queue_time_seconds", "queue_time_p50_seconds", "queue_mean_seconds",
                     "queue_time_mean_seconds"), "queue_p50_seconds"),
    **dict.fromkeys(("queue_time_p99_seconds",), "queue_p99_seconds"),
    **dict.fromkeys(("e2e_seconds", "e2e_mean_seconds", "latency_p50_seconds", "latency_seconds"), "e2e_p50_seconds"),
    **dict.fromkeys(("latency_p99_seconds",), "e2e_p99_seconds"),
    **dict.fromkeys(("cancel_rate", "cancellation_rate", "disconnect_rate", "cancelled_ratio", "abort_ratio"),
                    "abort_rate"),
    **dict.fromkeys(("mean_prompt_tokens", "prompt_tokens_avg", "avg_prompt_tokens", "prompt_len_mean",
                     "input_tokens_mean", "prompt_length_mean"), "prompt_tokens_mean"),
    **dict.fromkeys(("mean_output_tokens", "output_tokens_avg", "avg_output_tokens", "output_len_mean",
                     "generated_tokens_mean", "output_length_mean"), "output_tokens_mean"),
    **dict.fromkeys(("max_tokens", "max_new_tokens", "max_tokens_avg", "max_new_tokens_mean"), "max_tokens_mean"),
    **dict.fromkeys(("kv_cache_size_tokens", "kv_pool_tokens", "pool_tokens", "kv_tokens"), "kv_capacity_tokens"),
    **dict.fromkeys(("block_size",), "block_size_tokens"),
    **dict.fromkeys(("errors", "error_rate"), "errors_per_second"),
    **dict.fromkeys(("restart_count", "pod_restarts"), "restarts"),
    **dict.fromkeys(("num_requests_swapped",), "swapped"),
}  # fmt: skip
#: a counter -> the rate that its increase makes
COUNTERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("preemptions", "preemptions_total", "num_preemptions_total"), "preemptions_per_second"),
    **dict.fromkeys(("prompt_tokens_total",), "prompt_tokens_per_second"),
    **dict.fromkeys(("generation_tokens_total", "generated_tokens_total"), "generation_tokens_per_second"),
    **dict.fromkeys(("requests_total", "http_requests_total"), "requests_per_second"),
    **dict.fromkeys(("finished_total", "request_success_total"), "finished_per_second"),
    **dict.fromkeys(("iteration_tokens_total_count", "engine_steps", "steps_total"), "steps_per_second"),
}  # fmt: skip
