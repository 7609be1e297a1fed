"""The flags vLLM's server knows, as data: a flag's kind says how many words after it are its values.

Source: vLLM 0.32, `EngineArgs.add_cli_args`, `FrontendArgs` and the types of their config fields. `REMOVED` are flags
of older versions that public manifests still carry; they are matched by full name only, so that they add no ambiguity.
Hazard: another version has other flags, so a prefix that is unambiguous here may not be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

#: one value; one or more values; zero or one value; `--x` and `--no-x`; `--x` alone; not in the table
Kind = Literal["one", "many", "optional", "boolean", "switch", "unknown"]

_ONE = """
    additional-config all2all-backend allowed-headers allowed-local-media-path allowed-methods allowed-origins
    anthropic-disabled-thinking-effort api-server-count attention-backend attention-config aux-output-config
    block-size chat-template chat-template-content-format code-revision cohere-format compilation-config config
    config-format convert cp-kv-cache-interleave-size cpu-distributed-timeout-seconds cpu-offload-gb
    custom-histogram-buckets data-parallel-address data-parallel-backend data-parallel-rank data-parallel-rpc-port
    data-parallel-size data-parallel-size-local data-parallel-start-rank data-parallel-supervisor-port
    dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend dcp-kv-cache-interleave-size
    decode-context-parallel-size default-chat-template-kwargs default-mm-loras device-ids diffusion-config
    disable-access-log-for-endpoints distributed-executor-backend distributed-timeout-seconds download-dir
    dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s
    dp-sync-interval dtype ec-manager-config ec-transfer-config elastic-ep-max-dp-size engram-config eplb-config
    expert-placement-strategy fault-tolerance-config fingerprint-mode fingerprint-value gdn-prefill-backend
    generation-config gpu-memory-utilization grpc-port h11-max-header-count h11-max-incomplete-event-size
    hf-config-path hf-overrides host io-processor-plugin ir-op-priority jit-monitor-mode kda-decode-backend
    kda-prefill-backend kernel-config kv-cache-dtype kv-cache-memory-bytes kv-cache-metrics-sample kv-events-config
    kv-offloading-backend kv-offloading-size kv-transfer-config limit-mm-per-prompt linear-backend load-format
    log-config-file log-level logging-config logprobs-mode long-prefill-token-threshold lora-dtype mamba-backend
    mamba-block-size mamba-cache-dtype mamba-cache-mode mamba-cache-philox-rounds mamba-ssm-cache-dtype
    mamba-ssu-algorithm master-addr master-port max-cpu-loras max-cudagraph-capture-size max-log-len max-logprobs
    max-lora-cls-labels max-lora-rank max-loras max-model-len max-num-active-seqs max-num-batched-tokens
    max-num-queued-reqs max-num-queued-tokens max-num-scheduled-tokens max-num-seqs max-parallel-loading-workers
    media-io-kwargs middleware mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path
    mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path mm-encoder-tp-mode mm-hasher-algorithm
    mm-ipc-gpu-memory-gb mm-processor-cache-gb mm-processor-cache-type mm-processor-device mm-processor-kwargs
    mm-shm-cache-max-object-size-mb mm-tensor-ipc model model-class-overrides model-impl model-loader-extra-config
    moe-backend nnodes node-rank num-gpu-blocks-override offload-backend offload-group-size offload-num-in-group
    offload-prefetch-step optimization-level otlp-traces-endpoint override-generation-config
    per-request-spec-decode-metrics performance-mode pipeline-parallel-size pooler-config port
    prefill-context-parallel-size prefill-schedule-interval prefix-cache-retention-interval prefix-caching-hash-algo
    prefix-match-unit profiler-config pt-load-map-location quantization quantization-config reasoning-config
    reasoning-parser reasoning-parser-plugin renderer-num-workers replayssm-buffer-len response-role revision
    root-path runner safetensors-load-strategy safetensors-prefetch-block-size safetensors-prefetch-num-threads
    scheduler-cls scheduling-policy seed show-hidden-metrics-for-version shutdown-timeout sparse-indexer-topk-backend
    spec-method spec-model spec-tokens speculative-config sse-keep-alive-interval ssl-ca-certs ssl-cert-reqs
    ssl-certfile ssl-ciphers ssl-keyfile stream-interval structured-outputs-config tensor-parallel-size tokenizer
    tokenizer-mode tokenizer-revision tool-call-parser tool-parser-plugin tool-server tool-strict-level ubatch-size
    uds uvicorn-log-level video-pruning-method video-pruning-rate watermark watermark-config weight-transfer-config
    worker-cls worker-extension-cls
"""

_MANY = """
    allowed-media-domains api-key collect-detailed-traces cpu-offload-params cudagraph-capture-sizes ignore-patterns
    kv-cache-dtype-skip-layers logits-processors lora-modules lora-target-modules numa-bind-cpus numa-bind-nodes
    offload-params served-model-name sleep-preserve-parameter-names
"""

_OPTIONAL = """
    hf-token
"""

_BOOLEAN = """
    allow-credentials allow-deprecated-quantization async-scheduling cohere-is-reasoning-model cudagraph-metrics
    data-parallel-external-lb data-parallel-hybrid-lb dcp-q-replicate disable-cascade-attn disable-chunked-mm-input
    disable-custom-all-reduce disable-fastapi-docs disable-hybrid-kv-cache-manager disable-nccl-for-dp-synchronization
    disable-sliding-window disable-uvicorn-access-log enable-auto-tool-choice enable-batch-sharded-sampling
    enable-chunked-prefill enable-cumem-allocator enable-dbo enable-elastic-ep enable-ep-weight-filter enable-eplb
    enable-expert-parallel enable-fault-tolerance enable-flash-late-interaction enable-flashinfer-autotune
    enable-force-include-usage enable-hc-sp enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs
    enable-log-requests enable-logging-iteration-details enable-lora enable-mamba-cache-stochastic-rounding
    enable-mamba-shared-prefix-checkpoint enable-mfu-metrics enable-mixed-moe-lora-format enable-mm-embeds
    enable-moe-shared-loras enable-nccl-comm-suspend enable-offline-docs enable-per-request-metrics
    enable-prefix-caching enable-prompt-embeds enable-prompt-tokens-details enable-request-id-headers
    enable-return-routed-experts enable-scale-out enable-server-load-tracking enable-shm-tensor-arena
    enable-sleep-mode enable-ssl-refresh enable-tokenizer-info-endpoint enable-tower-connector-lora
    enable-trace-replay enforce-eager exclude-tools-when-tool-choice-none fail-on-environ-validation
    fully-sharded-loras interleave-mm-strings jit-monitor-verbose kv-cache-metrics kv-sharing-fast-prefill
    language-model-only log-error-stack long-prefill-token-threshold-adaptive mm-device-do-normalize mm-encoder-only
    numa-bind ray-workers-use-nsight return-sampling-mask return-tokens-as-token-ids scheduler-reserve-full-isl
    skip-mm-profiling skip-tokenizer-init sleep-mode-offload-cudagraph specialize-active-lora swa-bounded-replay
    tokens-only trust-remote-code trust-request-chat-template trust-request-mm-kwargs use-fp64-gumbel use-replayssm
    use-tqdm-on-load
"""

_SWITCH = """
    aggregate-engine-logging data-parallel-multi-port-external-lb disable-log-stats grpc headless
"""

_REMOVED_ONE = """
    swap-space num-scheduler-steps guided-decoding-backend max-seq-len-to-capture max-context-len-to-capture
    rope-scaling rope-theta task preemption-mode device speculative-model num-speculative-tokens num-lookahead-slots
    lora-extra-vocab-size max-prompt-adapters max-prompt-adapter-token tokenizer-pool-size tokenizer-pool-type
    scheduler-delay-factor max-num-partial-prefills max-long-partial-prefills override-neuron-config
    override-pooler-config logits-processor-pattern qlora-adapter-name-or-path spec-decoding-acceptance-method
    ngram-prompt-lookup-max ngram-prompt-lookup-min speculative-draft-tensor-parallel-size speculative-max-model-len
    quantization-param-path image-input-type kv-connector
"""

_REMOVED_MANY = """
    cuda-graph-sizes long-lora-scaling-factors prompt-adapters
"""

_REMOVED_SWITCH = """
    disable-log-requests use-v2-block-manager worker-use-ray engine-use-ray enable-reasoning
    disable-frontend-multiprocessing multi-step-stream-outputs enable-prompt-adapter disable-async-output-proc
    disable-mm-preprocessor-cache enable-chunked-mm-input guided-decoding-disable-fallback
    guided-decoding-disable-any-whitespace guided-decoding-disable-additional-properties
"""


def _table(rows: tuple[tuple[Kind, str], ...]) -> dict[str, Kind]:
    return {f"--{name}": kind for kind, names in rows for name in names.split()}


#: current flags, by full name
KINDS: Final[Mapping[str, Kind]] = _table(
    (("one", _ONE), ("many", _MANY), ("optional", _OPTIONAL), ("boolean", _BOOLEAN), ("switch", _SWITCH))
)
REMOVED: Final[Mapping[str, Kind]] = _table(
    (("one", _REMOVED_ONE), ("many", _REMOVED_MANY), ("switch", _REMOVED_SWITCH))
)

#: other spellings of a flag
ALIASES: Final[Mapping[str, str]] = {
    "--device-memory-utilization": "--gpu-memory-utilization",
    "-ac": "--attention-config",
    "-asc": "--api-server-count",
    "-cc": "--compilation-config",
    "-dc": "--diffusion-config",
    "-dcp": "--decode-context-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpa": "--data-parallel-address",
    "-dpb": "--data-parallel-backend",
    "-dpe": "--data-parallel-external-lb",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpl": "--data-parallel-size-local",
    "-dpm": "--data-parallel-multi-port-external-lb",
    "-dpn": "--data-parallel-rank",
    "-dpp": "--data-parallel-rpc-port",
    "-dpr": "--data-parallel-start-rank",
    "-ep": "--enable-expert-parallel",
    "-n": "--nnodes",
    "-pcp": "--prefill-context-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-q": "--quantization",
    "-r": "--node-rank",
    "-sc": "--speculative-config",
    "-tp": "--tensor-parallel-size",
}

#: values that are never stored, printed or compared in messages
SECRETS: Final = frozenset({"--api-key", "--hf-token"})

#: flags that count every time they are given; of all others the last wins
REPEATABLE: Final = frozenset({"--middleware"})
