"""Incidents with known causes: one maker for each cause, sizes and loads drawn by seed, as reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from benchmarks.diagnose_world import Scene, World, lengths

from trimtab.simulate.config import EngineConfig, StepTimes

#: nothing holds the target back
NOTHING: Final = "(nothing)"
#: fields without which a report of this cause says nothing about it; they are never dropped
_KEEP: Final = frozenset({"t_seconds", "running", "waiting", "kv_usage", "generation_tokens_per_second", "health"})
_OWN: Final = {
    "PrefillBound": {"prompt_tokens_per_second"},
    "Preemption": {"preemptions_per_second", "finished_per_second"},
    "DeathSpiral": {"preemptions_per_second", "finished_per_second"},
    "CancellationDominates": {"abort_rate"},
    "CancellationHidden": {"abort_rate", "client_in_flight"},
    "DeferredFillSlots": {"waiting_deferred"},
    "FrontendBound": {"client_in_flight"},
    "OverReservation": {"useful_token_ratio"},
    "MixedTraffic": {"prompt_tokens_p50", "prompt_tokens_p99", "ttft_p50_seconds", "ttft_p99_seconds"},
    "QueueOverCapacity": {"requests_per_second", "finished_per_second"},
    "SlowerWithAge": {"tpot_mean_seconds"},
}


@dataclass(frozen=True)
class Incident:
    """cause: the truth. report: as `trimtab diagnose` takes it."""

    cause: str
    seed: int
    report: dict[str, Any]


Rng = np.random.Generator


def _base(rng: Rng, **changes: Any) -> EngineConfig:
    values: dict[str, Any] = {
        "num_gpu_blocks": 4000,
        "max_num_seqs": 128,
        "max_num_batched_tokens": 2048,
        "max_model_len": 8192,
        "enable_prefix_caching": False,
        **changes,
    }
    return EngineConfig(**values)


def _steps(rng: Rng) -> StepTimes:
    """A GPU that is bound by memory when it decodes: many sequences cost little more than one."""
    s = float(rng.uniform(0.7, 1.5))
    return StepTimes(0.03 * s, 5e-5 * s, 0.0, 6e-5 * s, 2e-8 * s)


def _scene(rng: Rng, config: EngineConfig, per_second: float, **changes: Any) -> Scene:
    values: dict[str, Any] = {
        "config": config,
        "times": _steps(rng),
        "rate": lambda t: per_second,
        "prompt": lengths(float(rng.uniform(120, 400)), 0.5, 3000),
        "output": lengths(float(rng.uniform(100, 250)), 0.5, 1500),
        **changes,
    }
    return Scene(**values)


def _light(rng: Rng) -> Scene:
    return _scene(rng, _base(rng, num_gpu_blocks=8000), float(rng.uniform(0.5, 2.0)))


def _well_filled(rng: Rng) -> Scene:
    """A handful of long answers in a cache of just that size: KV use high, nothing waits."""
    n = int(rng.integers(8, 14))
    config = _base(rng, num_gpu_blocks=int(n * 94), max_num_seqs=64)
    left = [n]

    def prompt(r: Rng) -> int:
        left[0] -= 1
        return int(r.integers(650, 720)) if left[0] >= 0 else 1

    # 700 prompt and some 780 generated tokens at the end: just below the 94 blocks of each
    return _scene(
        rng,
        config,
        0.0,
        rate=lambda t: 3.0 if left[0] > 0 else 0.0,
        prompt=prompt,
        output=lambda r: 5000,
        seconds=120.0,
        window=10.0,
        times=StepTimes(0.16, 5e-5, 0.0, 6e-5, 2e-8),
    )


def _slots(rng: Rng) -> Scene:
    slots = int(rng.choice([8, 16, 24, 32, 48]))
    config = _base(rng, max_num_seqs=slots, num_gpu_blocks=int(slots * 40 * rng.uniform(2, 4)))
    served = slots / (0.033 * 190)
    return _scene(rng, config, served * float(rng.uniform(1.2, 1.6)), times=StepTimes(0.03, 5e-5, 0.0, 6e-5, 2e-8))


def _kv(rng: Rng) -> Scene:
    """Long prompts, answers within a block: full, and hardly a preemption."""
    config = _base(
        rng, num_gpu_blocks=int(rng.integers(700, 1400)), max_num_seqs=256, max_num_batched_tokens=8192, watermark=0.02
    )
    times = StepTimes(0.15, 2e-6, 0.0, 6e-5, 2e-8)
    return _scene(
        rng,
        config,
        config.usable_blocks / 92 / 3.9 * float(rng.uniform(1.2, 1.6)),
        prompt=lengths(1400, 0.25, 3000),
        output=lengths(24, 0.3, 60),
        times=times,
    )


def _preempts(rng: Rng, pressure: float) -> Scene:
    blocks = int(rng.integers(250, 600))
    config = _base(rng, num_gpu_blocks=blocks, max_num_seqs=int(rng.choice([64, 128, 256])), max_model_len=4096)
    rate = blocks / 25 / (0.04 * 300) * pressure
    return _scene(rng, config, rate, prompt=lengths(80, 0.4, 400), output=lengths(280, 0.5, 1200))


def _some_preemption(rng: Rng) -> Scene:
    blocks = int(rng.integers(400, 900))
    config = _base(rng, num_gpu_blocks=blocks, max_num_seqs=max(8, int(blocks / 19 * rng.uniform(0.95, 1.3))))
    return _scene(
        rng,
        config,
        blocks / 19 / (0.035 * 170) * float(rng.uniform(1.1, 1.4)),
        prompt=lengths(220, 0.4, 800),
        output=lengths(150, 0.4, 600),
        times=StepTimes(0.032, 5e-5, 0.0, 6e-5, 2e-8),
    )


def _spiral(rng: Rng) -> Scene:
    return _preempts(rng, float(rng.uniform(1.6, 3.0)))


def _prefill(rng: Rng) -> Scene:
    s = float(rng.uniform(0.7, 1.5))
    times = StepTimes(0.012 * s, 1.2e-4 * s, 0.0, 5e-5 * s, 1e-8 * s)
    config = _base(
        rng,
        num_gpu_blocks=30_000,
        max_num_seqs=256,
        max_num_batched_tokens=int(rng.choice([1024, 2048, 4096])),
        max_model_len=16_384,
    )
    size = float(rng.uniform(2500, 6000))
    return _scene(
        rng,
        config,
        1 / (size * 1.2e-4 * s) * float(rng.uniform(1.15, 1.5)),
        times=times,
        prompt=lengths(size, 0.4, 16_000),
        output=lengths(40, 0.5, 200),
    )


def _compute(rng: Rng) -> Scene:
    """Each sequence costs: more of them bring nothing. The load rises."""
    times = StepTimes(0.004, 2e-5, 0.0, 8e-4, 1e-8)
    config = _base(rng, num_gpu_blocks=16_000, max_num_seqs=int(rng.choice([192, 256, 384])))
    rate = 1 / (8e-4 * 190)
    low, high = float(rng.uniform(0.9, 1.0)), float(rng.uniform(1.15, 1.4))
    return _scene(
        rng,
        config,
        0.0,
        rate=lambda t: rate * (low + (high - low) * t / 160),
        times=times,
        output=lengths(170, 0.5, 1500),
    )


def _head(rng: Rng) -> Scene:
    """Now and then a prompt that needs most of the cache, behind which short ones queue."""
    blocks = int(rng.integers(1500, 3000))
    giant = int(blocks * 16 * rng.uniform(0.86, 0.93))
    config = _base(
        rng, num_gpu_blocks=blocks, max_num_seqs=512, max_model_len=giant + 2000, max_num_batched_tokens=8192
    )
    small, share = lengths(150, 0.4, 600), float(rng.uniform(0.015, 0.03))
    drawn = [0]

    def prompt(r: Rng) -> int:
        drawn[0] = giant if r.random() < share else small(r)
        return drawn[0]

    def output(r: Rng) -> int:
        return 4 if drawn[0] == giant else int(min(600, r.lognormal(5.3, 0.4)))

    times = StepTimes(0.03, 1e-6, 0.0, 6e-5, 2e-8)
    return _scene(rng, config, float(rng.uniform(4, 6)), prompt=prompt, output=output, times=times)


def _never(rng: Rng) -> Scene:
    blocks = int(rng.integers(600, 1500))
    config = _base(rng, num_gpu_blocks=blocks, max_model_len=blocks * 16 * 3, max_num_seqs=128)
    small = lengths(150, 0.4, 600)
    at = [int(rng.integers(40, 90))]

    def prompt(r: Rng) -> int:
        at[0] -= 1
        return blocks * 16 + 4000 if at[0] == 0 else small(r)

    return _scene(rng, config, 1.5, prompt=prompt, seconds=240.0)


def _deadlock(rng: Rng) -> Scene:
    return _scene(rng, _base(rng), float(rng.uniform(1, 3)), stuck_at=float(rng.uniform(30, 50)), seconds=200.0)


def _hang(rng: Rng) -> Scene:
    return _scene(rng, _base(rng), float(rng.uniform(2, 4)), hangs_at=float(rng.uniform(30, 60)), seconds=200.0)


def _leak(rng: Rng) -> Scene:
    blocks = int(rng.integers(1500, 3000))
    rate = float(rng.uniform(2.0, 4.0))
    return _scene(
        rng, _base(rng, num_gpu_blocks=blocks), rate, lost_blocks=blocks / float(rng.uniform(120, 170)), seconds=240.0
    )


def _idle_leak(rng: Rng) -> Scene:
    blocks = int(rng.integers(1500, 3000))
    return _scene(
        rng, _base(rng, num_gpu_blocks=blocks), 2.0, lost_blocks=blocks / 400, stops_arriving_at=70.0, seconds=220.0
    )


def _cancels(rng: Rng) -> Scene:
    """Slow answers, a time-out; some come back at once."""
    slots = int(rng.choice([16, 24, 32]))
    config = _base(rng, max_num_seqs=slots, num_gpu_blocks=slots * 100)
    served = slots / (0.033 * 190)
    return _scene(
        rng,
        config,
        served * float(rng.uniform(1.5, 2.5)),
        patience=float(rng.choice([10, 15, 20])),
        retry=bool(rng.random() < 0.5),
        times=StepTimes(0.03, 5e-5, 0.0, 6e-5, 2e-8),
    )


def _hidden(rng: Rng) -> Scene:
    return replace(_cancels(rng), hidden=True, retry=True, seconds=200.0)


def _deferred(rng: Rng) -> Scene:
    slots = int(rng.choice([32, 64, 128]))
    config = _base(rng, max_num_seqs=slots, num_gpu_blocks=slots * 100)
    return _scene(
        rng,
        config,
        slots / 14,
        parked=float(rng.uniform(0.4, 0.7)),
        parked_seconds=float(rng.uniform(25, 50)),
        output=lengths(160, 0.4, 500),
    )


def _frontend(rng: Rng) -> Scene:
    return _scene(rng, _base(rng, num_gpu_blocks=8000), float(rng.uniform(4, 6)), frontend=float(rng.uniform(1.0, 2.0)))


def _reserved(rng: Rng) -> Scene:
    times = float(rng.uniform(4, 10))
    config = _base(rng, num_gpu_blocks=int(rng.integers(2000, 4000)), admission="reserve", max_model_len=4096)
    fits = config.usable_blocks * 16 / (300 + 190 * times + 200)
    return _scene(
        rng,
        config,
        fits / (0.04 * 190) * float(rng.uniform(1.3, 1.8)),
        max_tokens=lambda o: int(o * times) + 200,
        times=StepTimes(0.038, 5e-5, 0.0, 6e-5, 2e-8),
    )


def _capacity(rng: Rng) -> Scene:
    """Several times what slots and cache together can take."""
    slots = int(rng.choice([32, 48, 64]))
    config = _base(rng, max_num_seqs=slots, num_gpu_blocks=int(slots * 36))
    return _scene(
        rng,
        config,
        slots / (0.033 * 190) * float(rng.uniform(3.0, 5.0)),
        prompt=lengths(280, 0.3, 2000),
        output=lengths(170, 0.3, 400),
        times=StepTimes(0.03, 5e-5, 0.0, 6e-5, 2e-8),
    )


def _mixed(rng: Rng) -> Scene:
    config = _base(rng, num_gpu_blocks=20_000, max_num_seqs=256, max_model_len=65_536)
    small, large = lengths(150, 0.4, 600), lengths(float(rng.uniform(16_000, 24_000)), 0.2, 40_000)
    share = float(rng.uniform(0.02, 0.04))

    def prompt(r: Rng) -> int:
        return large(r) if r.random() < share else small(r)

    return _scene(
        rng,
        config,
        float(rng.uniform(2.0, 3.0)),
        prompt=prompt,
        output=lengths(80, 0.5, 300),
        times=StepTimes(0.02, 1.2e-4, 0.0, 6e-5, 1e-8),
    )


def _ages(rng: Rng) -> Scene:
    factor, at = float(rng.uniform(1.5, 2.2)), float(rng.uniform(60, 100))
    n = int(rng.integers(50, 90))
    output = lengths(400, 0.1, 600)
    # as many users as before, each waits for the last answer: the same number runs, more slowly
    return _scene(
        rng,
        _base(rng, num_gpu_blocks=8000),
        n / (0.04 * 400),
        slow=lambda t: factor if t > at else 1.0,
        rate=lambda t: n / (0.04 * 400) / (factor if t > at else 1.0),
        output=output,
        times=StepTimes(0.038, 5e-5, 0.0, 6e-5, 0.0),
        seconds=200.0,
    )


SCENES: Final[dict[str, tuple[Callable[[Rng], Scene], ...]]] = {
    NOTHING: (_light, _well_filled),
    "SlotBound": (_slots,),
    "KvBound": (_kv,),
    "Preemption": (_some_preemption,),
    "DeathSpiral": (_spiral,),
    "PrefillBound": (_prefill,),
    "ComputeBound": (_compute,),
    "QueueHeadBlocked": (_head,),
    "HeadNeverAdmissible": (_never,),
    "SchedulerDeadlock": (_deadlock,),
    "Hang": (_hang,),
    "LeakedBlocks": (_leak, _idle_leak),
    "CancellationDominates": (_cancels,),
    "CancellationHidden": (_hidden,),
    "DeferredFillSlots": (_deferred,),
    "FrontendBound": (_frontend,),
    "OverReservation": (_reserved,),
    "QueueOverCapacity": (_capacity,),
    "MixedTraffic": (_mixed,),
    "SlowerWithAge": (_ages,),
    # made of the worlds above: see `incident`
    "BusyNotHung": (_light,),
    "Imbalance": (_light,),
    "FlagNotTheLever": (_compute,),
    "MetricsMissing": (_slots,),
}


def incident(cause: str, seed: int) -> Incident:
    """The whole report: every field, no noise."""
    rng = np.random.default_rng([seed, sorted(SCENES).index(cause)])
    makers = SCENES[cause]
    scene = makers[seed % len(makers)](rng)
    rows = World(scene, seed).run()
    if cause not in ("CancellationDominates", "CancellationHidden"):
        for row in rows:
            del row["abort_rate"]
    if cause not in ("FrontendBound", "CancellationHidden"):
        for row in rows:
            del row["client_in_flight"]
    report: dict[str, Any] = {
        "engine": {"name": "tgi" if cause == "OverReservation" else "vllm", "version": "0.11.0"},
        "args": _args(scene.config, cause),
        "hardware": "1x A100 80GB",
        "observations": rows,
        "facts": [],
    }
    if cause in ("Preemption", "DeathSpiral"):
        # where the border lies is a definition: once for each finished request
        late = rows[len(rows) // 2 :]
        preempted = sum(r["preemptions_per_second"] for r in late) / max(
            sum(r["finished_per_second"] for r in late), 1e-9
        )
        cause = "DeathSpiral" if preempted >= 1 else "Preemption" if preempted >= 0.05 else "KvBound"
    return Incident(cause, seed, _SPECIAL.get(cause, lambda report, scene, rng: report)(report, scene, rng))


def _args(config: EngineConfig, cause: str) -> str:
    if cause == "OverReservation":
        pool = config.usable_blocks * config.block_size
        return f"--max-batch-total-tokens {pool} --max-total-tokens {config.max_model_len}"
    return (
        f"vllm serve m --max-num-seqs {config.max_num_seqs} --max-num-batched-tokens {config.max_num_batched_tokens} "
        f"--max-model-len {config.max_model_len}"
    )


def _busy(report: dict[str, Any], scene: Scene, rng: Rng) -> dict[str, Any]:
    for row in report["observations"]:
        row["health"] = "timeout" if rng.random() < 0.5 else "ok"
    report["observations"][1]["health"] = "timeout"
    return report


def _uneven(report: dict[str, Any], scene: Scene, rng: Rng) -> dict[str, Any]:
    """A sibling gets most of the requests."""
    hot = World(_capacity(rng), int(rng.integers(1e6))).run()
    rows = []
    for cool, busy in zip(report["observations"], hot, strict=False):
        rows += [
            {"pod": "a", **{k: v for k, v in cool.items() if k != "client_in_flight"}},
            {"pod": "b", **{k: v for k, v in busy.items() if k not in ("client_in_flight", "abort_rate")}},
        ]
    return {**report, "observations": rows}


def _trials(report: dict[str, Any], scene: Scene, rng: Rng) -> dict[str, Any]:
    """The same saturated target under three settings that do not matter to it."""
    rows = []
    for i, tokens in enumerate((2048, 4096, 8192)):
        config = replace(scene.config, max_num_batched_tokens=tokens)
        late = World(replace(scene, config=config, rate=lambda t: 8.0, seconds=100.0), 7).run()[-1]
        kept = ("running", "generation_tokens_per_second", "kv_usage", "tpot_mean_seconds")
        rows.append({"t_seconds": 600.0 * i, "max_num_batched_tokens": tokens, **{k: late[k] for k in kept}})
    return {**report, "observations": rows, "facts": ["GPU is at 99%"] if rng.random() < 0.5 else []}


def _blind(report: dict[str, Any], scene: Scene, rng: Rng) -> dict[str, Any]:
    rows = [{"t_seconds": r["t_seconds"], "e2e_p99_seconds": r.get("e2e_p99_seconds")} for r in report["observations"]]
    return {**report, "observations": rows, "args": report["args"] + " --disable-log-stats"}


def _with_pool(report: dict[str, Any], scene: Scene, rng: Rng) -> dict[str, Any]:
    pool = scene.config.usable_blocks * scene.config.block_size
    return {**report, "facts": [f"GPU KV cache size: {pool:,} tokens"]}


_SPECIAL: Final[dict[str, Callable[[dict[str, Any], Scene, Rng], dict[str, Any]]]] = {
    "BusyNotHung": _busy,
    "Imbalance": _uneven,
    "FlagNotTheLever": _trials,
    "MetricsMissing": _blind,
    "HeadNeverAdmissible": _with_pool,
}


def sparse(whole: Incident, seed: int) -> Incident:
    """As a person would report it: fewer moments and fields, 3% noise on what is measured, perhaps no arguments."""
    rng = np.random.default_rng([seed, 99])
    report = dict(whole.report)
    rows: Sequence[dict[str, Any]] = report["observations"]
    if whole.cause not in ("Imbalance", "FlagNotTheLever", "BusyNotHung"):
        kept = int(rng.integers(3, max(4, len(rows))))
        rows = [rows[i] for i in np.linspace(0 if rng.random() < 0.7 else 1, len(rows) - 1, kept).round().astype(int)]
    own = _KEEP | _OWN.get(whole.cause, set())
    names = sorted({k for r in rows for k in r} - own)
    lost = {n for n in names if rng.random() < 0.5 and n not in ("pod", "max_num_batched_tokens")}
    report["observations"] = [{k: _noisy(k, v, rng) for k, v in row.items() if k not in lost} for row in rows]
    needs = {
        "SlotBound",
        "HeadNeverAdmissible",
        "DeferredFillSlots",
        "OverReservation",
        "MetricsMissing",
        "PrefillBound",
        "QueueHeadBlocked",
    }
    if whole.cause not in needs and rng.random() < 0.4:
        report["args"] = None
    if rng.random() < 0.5:
        report["hardware"] = ""
    return Incident(whole.cause, whole.seed, report)


def _noisy(name: str, value: Any, rng: Rng) -> Any:
    if not isinstance(value, float) or name == "t_seconds" or value == 0:
        return value
    noisy = value * float(rng.normal(1.0, 0.03))
    return min(1.0, noisy) if name in ("kv_usage", "kv_usage_max", "useful_token_ratio", "abort_rate") else noisy
