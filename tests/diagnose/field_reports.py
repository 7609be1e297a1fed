"""Public reports from the field as `trimtab diagnose` gets them: numbers where the report has them, in our words.

Each with the right conclusion, whether a setting is the lever, and the wrong conclusions that were drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: advice to run more at once, or that a setting is the lever
TUNE = "tune"


@dataclass(frozen=True)
class Report:
    """main: the cause that must lead; wrong: causes that must not lead. tunable: of the main finding."""

    name: str
    main: str
    report: dict[str, Any]
    tunable: bool = False
    besides: frozenset[str] = field(default_factory=frozenset)
    wrong: frozenset[str] = field(default_factory=frozenset)


def _obs(*rows: dict[str, Any], every: float = 60.0) -> list[dict[str, Any]]:
    return [{"t_seconds": i * every, **row} for i, row in enumerate(rows)]


def _vllm(version: str = "0.11.0", **rest: Any) -> dict[str, Any]:
    return {"engine": {"name": "vllm", "version": version}, **rest}


REPORTS: tuple[Report, ...] = (
    Report(
        "vllm#18115 a full cache at full speed",
        "Healthy",
        _vllm(
            observations=_obs(
                *(
                    {
                        "running": 8,
                        "waiting": 0,
                        "kv_usage": kv,
                        "generation_tokens_per_second": 240,
                        "preemptions_per_second": 0,
                    }
                    for kv in (0.912, 0.93, 0.944, 0.958)
                )
            ),
        ),
        wrong=frozenset({"KvBound", "Preemption", "LeakedBlocks", "SlotBound"}),
    ),
    Report(
        "vllm#2509 a large step leaves few blocks",
        "KvBound",
        _vllm(
            "0.3.0",
            args="--max-num-batched-tokens 50000 --max-model-len 50000",
            hardware="4x A10",
            observations=_obs(*({"running": 6, "waiting": 14, "kv_usage": 0.98} for _ in range(4))),
            facts=["758 KV blocks with 50,000 batched tokens, 4,485 with 20,480"],
        ),
        tunable=True,
        wrong=frozenset({"SlotBound"}),
    ),
    Report(
        "TGI#832 arithmetic without activations",
        "OutOfMemory",
        {
            "engine": {"name": "TGI", "version": "1.0.0"},
            "args": "--max-batch-total-tokens 406560 --max-total-tokens 4096",
            "observations": [{"running": 32}],
            "facts": ["406,560 tokens / 4,096 = 99 requests", "CUDA out of memory at 32 requests"],
        },
        tunable=True,
        wrong=frozenset({"SlotBound"}),
    ),
    Report(
        "vllm#15105 sampler warm-up",
        "OutOfMemory",
        _vllm(
            "0.8.1", args="vllm serve m", facts=["torch.OutOfMemoryError in the sampler warm-up with 1024 sequences"]
        ),
        tunable=True,
    ),
    Report(
        "sglang#26248 the fuller pool",
        "KvBound",
        {
            "engine": {"name": "sglang", "version": "0.5.3"},
            "observations": _obs(
                {"running": 24, "waiting": 2, "kv_usage": 0.97, "generation_tokens_per_second": 429},
                {"running": 22, "waiting": 9, "kv_usage": 1.0, "generation_tokens_per_second": 38},
                {"running": 22, "waiting": 12, "kv_usage": 1.0, "generation_tokens_per_second": 20},
            ),
            "facts": ["two pools: full attention 1.00, sliding window 0.06", "after one retraction slow for good"],
        },
        tunable=True,
        wrong=frozenset({"SlotBound", "Healthy"}),
    ),
    Report(
        "vllm#39734 one prompt above the pool",
        "HeadNeverAdmissible",
        _vllm(
            "0.19.0",
            args="vllm serve m --max-model-len 262144 --max-num-seqs 16",
            observations=_obs(
                {"running": 5, "waiting": 1, "kv_usage": 0.4, "generation_tokens_per_second": 210},
                {"running": 1, "waiting": 6, "kv_usage": 0.1, "generation_tokens_per_second": 45},
                {"running": 0, "waiting": 9, "kv_usage": 0.0, "generation_tokens_per_second": 0},
                {"running": 0, "waiting": 13, "kv_usage": 0.0, "generation_tokens_per_second": 0},
            ),
            facts=["GPU KV cache size: 76,640 tokens"],
        ),
        wrong=frozenset({"SlotBound", "SchedulerDeadlock", "QueueHeadBlocked"}),
    ),
    Report(
        "gauntlet: 20 flag sets against 4-bit weights",
        "FlagNotTheLever",
        _vllm(
            args="vllm serve m --quantization fp8",
            facts=["FP8 weights", "the load has two distinct prompts"],
            observations=[
                {"max_num_seqs": 32, "generation_tokens_per_second": 1061},
                {"max_num_seqs": 64, "generation_tokens_per_second": 1070},
                {"max_num_seqs": 64, "max_num_batched_tokens": 16384, "generation_tokens_per_second": 1049},
                {"max_num_seqs": 128, "generation_tokens_per_second": 1066},
            ],
        ),
    ),
    Report(
        "ArcticInference#185 speculation in company",
        "FlagNotTheLever",
        _vllm(
            args='vllm serve m --speculative-config {"method":"suffix"} --max-num-seqs 256',
            observations=[{"running": 24, "waiting": 0, "kv_usage": 0.3, "generation_tokens_per_second": 480}],
            facts=["with speculation slower than without above 20 in flight"],
        ),
        wrong=frozenset({"SlotBound", "Healthy"}),
    ),
    Report(
        "vllm#9113 CPU at its limit",
        "FrontendBound",
        _vllm(
            "0.6.2",
            args="vllm serve m",
            hardware="1x A100 80GB",
            observations=[
                {"running": 4, "waiting": 0, "tpot_mean_seconds": 0.02, "kv_usage": 0.03},
                {"running": 20, "waiting": 0, "tpot_mean_seconds": 0.11, "kv_usage": 0.1, "gpu_utilization": 0.2},
            ],
            facts=["kubectl top: 3998m of a 4-core limit", "the GPU is idle most of the time"],
        ),
        wrong=frozenset({"SlotBound", "ComputeBound", "Healthy"}),
    ),
    Report(
        "vllm#17568 alone and in company",
        "FlagNotTheLever",
        _vllm(
            "0.8.5",
            args="vllm serve m -tp 8 --max-num-batched-tokens 25000",
            observations=[
                {"running": 1, "waiting": 0, "kv_usage": 0.01, "generation_tokens_per_second": 30},
                {"running": 4, "waiting": 0, "kv_usage": 0.03, "generation_tokens_per_second": 6},
            ],
            facts=["max_num_batched_tokens 25000 changed nothing", "4 GPUs are fine, 8 over PCIe are not"],
        ),
        wrong=frozenset({"SlotBound", "KvBound", "PrefillBound"}),
    ),
    Report(
        "vllm#53130 deferred requests hold the slots",
        "DeferredFillSlots",
        _vllm(
            "0.32.0",
            args="--max-num-seqs 128",
            observations=_obs(
                *(
                    {
                        "running": 50,
                        "waiting": 80,
                        "waiting_deferred": 78,
                        "kv_usage": 0.22,
                        "generation_tokens_per_second": 1400,
                    }
                    for _ in range(4)
                )
            ),
            facts=["requests use structured output"],
        ),
        wrong=frozenset({"SlotBound", "QueueHeadBlocked"}),
    ),
    Report(
        "vllm#42897 stats end while requests run",
        "Hang",
        _vllm(
            "0.18.0",
            observations=_obs(
                {"running": 12, "waiting": 0, "kv_usage": 0.4, "generation_tokens_per_second": 800, "health": 200},
                {"running": 12, "waiting": 3, "kv_usage": 0.4, "generation_tokens_per_second": 0, "health": 200},
                {"running": None, "waiting": None, "health": 200},
                {"running": None, "waiting": None, "health": 200},
            ),
        ),
        wrong=frozenset({"NoTraffic", "MetricsMissing", "Healthy"}),
    ),
    Report(
        "gonka#1421 hung at 200",
        "Hang",
        _vllm(
            observations=_obs(
                *(
                    {
                        "running": 7,
                        "waiting": 4,
                        "kv_usage": 0.31,
                        "generation_tokens_per_second": 0,
                        "iteration_tokens_total_count": 918_274,
                        "health": "ok",
                    }
                    for _ in range(4)
                ),
                every=60,
            ),
        ),
    ),
    Report(
        "gonka#1421 busy misses its probe",
        "BusyNotHung",
        _vllm(
            args="--max-num-seqs 256",
            observations=_obs(
                {"running": 60, "waiting": 0, "kv_usage": 0.5, "generation_tokens_per_second": 2900, "health": "ok"},
                {
                    "running": 64,
                    "waiting": 0,
                    "kv_usage": 0.5,
                    "generation_tokens_per_second": 2950,
                    "health": "timeout",
                },
                {"running": 63, "waiting": 0, "kv_usage": 0.5, "generation_tokens_per_second": 3010, "health": "ok"},
            ),
            facts=["probe time-out 2 s, eight restarts a day"],
        ),
        wrong=frozenset({"Hang"}),
    ),
    Report(
        "litellm#30244 the proxy keeps the upstream open",
        "CancellationHidden",
        _vllm(
            observations=_obs(
                *(
                    {
                        "running": 60,
                        "waiting": 30,
                        "kv_usage": 0.6,
                        "abort_rate": 0.0,
                        "client_in_flight": 22,
                        "generation_tokens_per_second": 1500,
                    }
                    for _ in range(3)
                )
            ),
            facts=["litellm in front, non-streaming", "clients give up after 30 s and retry"],
        ),
        wrong=frozenset({"SlotBound", "QueueHeadBlocked", "Healthy"}),
    ),
    Report(
        "vllm#2484 aborts grow with load and prompt length",
        "CancellationDominates",
        _vllm(
            "0.2.7",
            args="--max-num-seqs 256",
            observations=_obs(
                {
                    "running": 40,
                    "waiting": 5,
                    "kv_usage": 0.5,
                    "abort_rate": 0.05,
                    "ttft_p50_seconds": 2,
                    "e2e_p99_seconds": 580,
                },
                {
                    "running": 90,
                    "waiting": 60,
                    "kv_usage": 0.8,
                    "abort_rate": 0.2,
                    "ttft_p50_seconds": 9,
                    "e2e_p99_seconds": 600,
                },
                {
                    "running": 90,
                    "waiting": 120,
                    "kv_usage": 0.9,
                    "abort_rate": 0.35,
                    "ttft_p50_seconds": 30,
                    "e2e_p99_seconds": 600,
                },
            ),
            facts=["nginx in front", "log: Aborted request"],
        ),
        wrong=frozenset({"KvBound", "SlotBound"}),
    ),
    Report(
        "vllm#29906 aborted prefills stay pinned",
        "LeakedBlocks",
        _vllm(
            "0.12.0",
            args='--kv-transfer-config {"kv_connector":"NixlConnector"} --max-num-seqs 256',
            observations=_obs(
                {"running": 40, "waiting": 2, "kv_usage": 0.5, "abort_rate": 0.05},
                {"running": 12, "waiting": 30, "kv_usage": 0.92, "abort_rate": 0.4},
                {"running": 3, "waiting": 60, "kv_usage": 0.99, "abort_rate": 0.6},
                {"running": 2, "waiting": 80, "kv_usage": 1.0, "abort_rate": 0.7},
            ),
            facts=["router time-out 20 s", "prefill pods", "connector releases blocks after 300 s"],
        ),
        besides=frozenset({"CancellationDominates"}),
        wrong=frozenset({"KvBound", "SlotBound"}),
    ),
    Report(
        "sglang#6778 usage that may be evictable",
        "LeakedBlocks",
        {
            "engine": "sglang",
            "observations": _obs(
                {"running": 0, "waiting": 0, "token_usage": 0.9},
                {"running": 0, "waiting": 0, "token_usage": 0.96},
                {"running": 0, "waiting": 0, "token_usage": 0.96},
            ),
        },
        wrong=frozenset({"KvBound"}),
    ),
    Report(
        "sglang#6778 usage high and rising while requests run",
        "Healthy",
        {
            "engine": {"name": "sglang", "version": "0.4.6"},
            "observations": _obs(
                {"running": 36, "waiting": 0, "kv_usage": 0.94, "generation_tokens_per_second": 1300},
                {"running": 35, "waiting": 0, "kv_usage": 0.95, "generation_tokens_per_second": 1310},
                {"running": 36, "waiting": 0, "kv_usage": 0.96, "generation_tokens_per_second": 1290},
            ),
        },
        wrong=frozenset({"LeakedBlocks", "KvBound"}),
    ),
    Report(
        "legacy-rocm-build#6347 slower after idling until a restart",
        "SlowerWithAge",
        _vllm(
            args="--max-num-seqs 8",
            observations=_obs(
                {"running": 1, "waiting": 0, "kv_usage": 0.02, "generation_tokens_per_second": 73.9},
                {"running": 1, "waiting": 0, "kv_usage": 0.02, "generation_tokens_per_second": 44.6},
                {"running": 1, "waiting": 0, "kv_usage": 0.02, "generation_tokens_per_second": 44.8},
                every=120,
            ),
            facts=["idle for 90 s between, slow until restart"],
        ),
    ),
    Report(
        "vllm#44175 latency steps up after hours",
        "SlowerWithAge",
        _vllm(
            observations=_obs(
                {"running": 30, "waiting": 0, "kv_usage": 0.3, "tpot_mean_seconds": 0.021, "requests_per_second": 150},
                {"running": 31, "waiting": 0, "kv_usage": 0.31, "tpot_mean_seconds": 0.021, "requests_per_second": 150},
                {"running": 34, "waiting": 0, "kv_usage": 0.31, "tpot_mean_seconds": 0.036, "requests_per_second": 150},
                {"running": 34, "waiting": 0, "kv_usage": 0.31, "tpot_mean_seconds": 0.037, "requests_per_second": 150},
                every=9000,
            ),
            facts=["host memory grows", "step after about 7 h"],
        ),
        wrong=frozenset({"Healthy", "ArrivalBound"}),
    ),
    Report(
        "Fastllm-proxy#22 a cold sibling",
        "Healthy",
        _vllm(
            args="--max-num-seqs 128",
            observations=[
                {
                    "pod": "a",
                    "running": 9,
                    "waiting": 0,
                    "kv_usage": 0.3,
                    "prefix_hit_ratio": 0.0,
                    "generation_tokens_per_second": 300,
                },
                {
                    "pod": "b",
                    "running": 10,
                    "waiting": 0,
                    "kv_usage": 0.3,
                    "prefix_hit_ratio": 0.961,
                    "generation_tokens_per_second": 410,
                },
            ],
            facts=["pod a was restarted"],
        ),
        besides=frozenset({"PrefixCacheCold"}),
        wrong=frozenset({"Imbalance"}),
    ),
    Report(
        "vllm#52463 ranks unlike each other",
        "Imbalance",
        _vllm(
            args="-dp 4 --max-num-seqs 64",
            observations=_obs(
                *(
                    {"running": [64, 12, 9, 14], "waiting": [31, 0, 0, 0], "kv_usage": [0.9, 0.2, 0.2, 0.2]}
                    for _ in range(3)
                )
            ),
        ),
        wrong=frozenset({"SlotBound", "QueueHeadBlocked", "KvBound"}),
    ),
    Report(
        "qwen38-flash-next#9 caching off with shared prompts",
        "PrefixCacheOff",
        _vllm(
            args="--no-enable-prefix-caching --max-num-seqs 32",
            observations=_obs(
                *(
                    {
                        "running": 14,
                        "waiting": 6,
                        "kv_usage": 0.4,
                        "ttft_p50_seconds": 5.9,
                        "prompt_tokens_per_second": 3000,
                        "generation_tokens_per_second": 46.5,
                    }
                    for _ in range(3)
                )
            ),
            facts=["agents with the same system prompt"],
        ),
        tunable=True,
    ),
    Report(
        "monitoring-dashboard-samples#1188 KV use added up",
        "ArrivalBound",
        _vllm(
            args="--max-num-seqs 256",
            observations=_obs(
                *(
                    {
                        "running": 20,
                        "waiting": 0,
                        "kv_usage": 0.8 * 2,
                        "replicas": 4,
                        "requests_per_second": 5,
                        "generation_tokens_per_second": 700,
                    }
                    for _ in range(3)
                )
            ),
        ),
        wrong=frozenset({"KvBound"}),
    ),
)
