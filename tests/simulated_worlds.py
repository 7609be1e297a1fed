"""Profiles in which one thing holds the engine back, known by construction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.lengths import Lengths
from trimtab.simulate.outcome import Outcome
from trimtab.simulate.profile import LoadModel, Profile
from trimtab.simulate.situation import Situation
from trimtab.simulate.summary import Limits


def write_engine_log(path: Path, run: Outcome) -> None:
    """A request log as an engine writes it: its own clock, seconds."""
    rows = [
        {"queued_ts": float(a) + 7, "scheduled_ts": float(s) + 7, "first_token_ts": float(f) + 7,
         "last_token_ts": float(e) + 7, "input_toks": int(p), "output_toks": int(o)}
        for a, s, f, e, p, o in zip(
            run.load.arrival, run.scheduled, run.first, run.last, run.load.prompt, run.load.output, strict=True)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


TIMES = StepTimes(fixed=0.02, per_prefill_token=1e-4, per_decode_seq=1e-4, per_kv_token=2e-8)
#: blocks that never bind below
PLENTY = 20_000
#: engine, requests/s, prompt and output tokens, and what binds
WORLDS: dict[str, tuple[dict[str, Any], float, int, int]] = {
    # a few requests at a time, each well within the limits
    "arrivals": ({"num_gpu_blocks": 3000, "max_num_seqs": 64}, 3.0, 300, 200),
    # 16 at a time where the blocks hold 600 and a step costs hardly more with more in it
    "slots": ({"num_gpu_blocks": PLENTY, "max_num_seqs": 16}, 20.0, 300, 200),
    # blocks for about 16 requests, slots for 256
    "kv": ({"num_gpu_blocks": 600, "max_num_seqs": 256}, 20.0, 300, 200),
    # one request may wait; all others are turned away although the engine has room
    "queue": ({"num_gpu_blocks": PLENTY, "max_num_seqs": 256, "max_num_queued_reqs": 1}, 8.0, 300, 200),
    # prompts of 1500 tokens in steps of 128, whose fixed cost is larger than what they compute
    "prefill_budget": (
        {"num_gpu_blocks": PLENTY, "max_num_seqs": 64, "max_num_batched_tokens": 128}, 8.0, 1500, 20,
    ),
    # long prompts: prefill costs 0.15 s each at 40 requests/s, whatever the settings
    "compute": ({"num_gpu_blocks": PLENTY, "max_num_seqs": 64, "max_num_batched_tokens": 8192}, 40.0, 1500, 50),
}  # fmt: skip


def spread(median: int) -> Lengths:
    return Lengths(shares=(0.0, 0.5, 1.0), tokens=(median / 4, median, median * 3))


def profile(name: str, times: StepTimes = TIMES, **more: Any) -> Profile:
    engine, rate, prompt, output = WORLDS[name]
    load = LoadModel(requests_per_second=rate, prompt_tokens=spread(prompt), output_tokens=spread(output))
    return Profile(engine=EngineConfig(**engine), times=times, workload=load, **more)


def situation(name: str, limits: Limits | None = None, *, seconds: float = 60.0, pairs: int = 3) -> Situation:
    return Situation.of_profile(profile(name), limits or Limits(5.0, 0.2), seconds=seconds, pairs=pairs)
