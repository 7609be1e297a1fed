"""The demo's scenario, in one place: `trimtab tune --demo` and the Kubernetes demo use it.

A small engine with a bad configuration: `max_num_seqs` far above what its KV blocks hold, prefix caching off although
nine of ten prompts share a prefix. It preempts, computes again, and misses the SLO. In virtual time (one replica,
200 s, seeds 0 and 1) goodput is 113 to 134 tok/s as found, 241 to 254 with 16 sequences, 261 to 282 with caching,
too. About 300 streamed tokens/s per replica, so that three fit on two cores beside a control plane.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.load.shape import LoadShape

Json = dict[str, Any]


@dataclass(frozen=True)
class DemoScenario:
    """Engine, load and SLO. Times in seconds, lengths in tokens, step costs in milliseconds. Rates are per replica."""

    model: str = "tiny"
    # --- the engine as found
    max_num_seqs: int = 256
    num_gpu_blocks: int = 260
    max_model_len: int = 1024
    start_seconds: float = 1.0
    step_fixed_ms: float = 22.0
    step_per_prefill_token_ms: float = 0.9
    step_per_decode_seq_ms: float = 0.4
    step_per_kv_token_ms: float = 0.0
    # --- the load
    requests_per_second: float = 3.6
    prompt: str = "32:0.5"
    output: str = "75:0.7"
    max_output_tokens: int = 250
    shared_prefix: str = "0.9:4:128"
    cancel_share: float = 0.15
    patience_seconds: float = 5.0
    # --- what is wanted: limits on bucket edges of vLLM's histograms, so that attainment is exact
    slo_ttft_seconds: float = 5.0
    slo_tpot_seconds: float = 0.075
    search_max_num_seqs: tuple[int, int] = (8, 256)
    # --- the trials
    warmup_seconds: float = 8.0
    #: three windows, within stable_seconds
    baseline_seconds: float = 18.0
    measurement_seconds: float = 36.0
    confirmation_seconds: float = 12.0
    verification_seconds: float = 6.0
    stable_seconds: float = 25.0
    max_trials: int = 4
    patience_trials: int = 2
    scrape_seconds: float = 1.0


DEMO = DemoScenario()


def engine_args(demo: DemoScenario = DEMO) -> list[str]:
    """vLLM's arguments after `serve`; without host and port."""
    return [
        demo.model,
        f"--max-num-seqs={demo.max_num_seqs}",
        f"--num-gpu-blocks-override={demo.num_gpu_blocks}",
        f"--max-model-len={demo.max_model_len}",
        "--no-enable-prefix-caching",
    ]


def engine_env(demo: DemoScenario = DEMO) -> dict[str, str]:
    """The emulator's environment."""
    return {
        "EMULATE_START_SECONDS": f"{demo.start_seconds:g}",
        "EMULATE_STEP_FIXED_MS": f"{demo.step_fixed_ms:g}",
        "EMULATE_STEP_PER_PREFILL_TOKEN_MS": f"{demo.step_per_prefill_token_ms:g}",
        "EMULATE_STEP_PER_DECODE_SEQ_MS": f"{demo.step_per_decode_seq_ms:g}",
        "EMULATE_STEP_PER_KV_TOKEN_MS": f"{demo.step_per_kv_token_ms:g}",
    }


def load_args(replicas: int, duration_seconds: float, demo: DemoScenario = DEMO, seed: int = 0) -> list[str]:
    """Options of `trimtab load`, without the URL. The rate grows with the replicas."""
    return [
        f"--rate={demo.requests_per_second * replicas:g}",
        f"--duration={duration_seconds:g}",
        f"--prompt={demo.prompt}",
        f"--output={demo.output}",
        f"--max-output-tokens={demo.max_output_tokens}",
        f"--shared-prefix={demo.shared_prefix}",
        f"--cancel={demo.cancel_share:g}",
        f"--patience={demo.patience_seconds:g}",
        f"--slo-ttft={demo.slo_ttft_seconds:g}",
        f"--slo-tpot={demo.slo_tpot_seconds:g}",
        f"--seed={seed}",
    ]


def load_shape(replicas: int, duration_seconds: float, demo: DemoScenario = DEMO, seed: int = 0) -> LoadShape:
    """The same load for virtual time."""
    return LoadShape(
        rate=f"{demo.requests_per_second * replicas:g}",
        duration_seconds=duration_seconds,
        lengths=(demo.prompt, demo.output),
        shared_prefix=demo.shared_prefix,
        max_output_tokens=demo.max_output_tokens,
        cancel_share=demo.cancel_share,
        seed=seed,
    )


def spec_dict(name: str, demo: DemoScenario = DEMO, metrics: Mapping[str, Any] | None = None) -> Json:
    """The spec of a VLLMTuner for the Deployment `name`, mode Auto; default metrics: direct scrape."""
    low, high = demo.search_max_num_seqs
    return {
        "targetRef": {"name": name},
        "mode": "Auto",
        "metrics": dict(metrics) if metrics else {"direct": {"intervalSeconds": demo.scrape_seconds}},
        "objective": {"slo": {"ttftSeconds": demo.slo_ttft_seconds, "tpotSeconds": demo.slo_tpot_seconds}},
        "search": {
            "maxNumSeqs": {"min": low, "max": high},
            "prefixCaching": "Tune",
            "maxTrials": demo.max_trials,
            "patience": demo.patience_trials,
        },
        "rollout": {
            # as where no device is spare; a pod more takes a quarter of the load off the others, and they may recover
            "maxSurge": 0,
            "warmupSeconds": demo.warmup_seconds,
            "maxWarmupSeconds": demo.warmup_seconds,
            "baselineSeconds": demo.baseline_seconds,
            "measurementSeconds": demo.measurement_seconds,
            "confirmationSeconds": demo.confirmation_seconds,
            "maxMeasurementSeconds": demo.measurement_seconds,
            "verificationSeconds": demo.verification_seconds,
            "progressDeadlineSeconds": 120,
            "cooldownSeconds": 0,
        },
        "guardrails": {"windowSeconds": 24},
        "preconditions": {"stableSeconds": demo.stable_seconds},
    }


def command(demo: DemoScenario = DEMO) -> list[str]:
    """The engine's command on this machine."""
    return ["trimtab", "emulate", "serve", *engine_args(demo)]


def shell_lines(replicas: int, demo: DemoScenario = DEMO) -> str:
    """What the demo runs, for a person to read."""
    environ = " ".join(f"{k}={v}" for k, v in engine_env(demo).items())
    load = shlex.join(["trimtab", "load", "URL", *load_args(replicas, 3600, demo)])
    return f"{environ} {shlex.join(command(demo))}\n{load}"
