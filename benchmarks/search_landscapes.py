"""Targets to tune in virtual time: a profile each, with what is badly set. Made up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import norm

from trimtab.engine.settings import Configuration
from trimtab.search.space import Space
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.lengths import Lengths
from trimtab.simulate.profile import LoadModel, Profile, SharedPrefix
from trimtab.simulate.summary import Limits

#: step times of the live target against the model's: deviation of each coefficient's log; the profile knows it
WORLD_ERROR = 0.15
COEFFICIENTS = ("fixed", "per_prefill_token", "per_decode_seq", "per_kv_token")
SPACE = Space({"max_num_seqs": (8, 512), "max_num_batched_tokens": (1024, 8192)})


@dataclass(frozen=True)
class Landscape:
    """`baseline`: as found. `crash_tokens`: batched tokens beyond which the engine does not start; the model does not
    know."""

    name: str
    profile: Profile
    limits: Limits
    crash_tokens: int = 1_000_000

    @property
    def baseline(self) -> Configuration:
        engine = self.profile.engine
        return Configuration.of(
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            enable_prefix_caching=engine.enable_prefix_caching,
        )


def spread(median: float, sigma: float) -> Lengths:
    """A lognormal cut at its 1st and 99th percentile."""
    shares = np.linspace(0.0, 1.0, 33)
    tokens = median * np.exp(sigma * norm.ppf(np.clip(shares, 0.01, 0.99)))
    return Lengths(shares=tuple(shares.tolist()), tokens=tuple(tokens.tolist()))


def _profile(
    engine: dict[str, Any], times: StepTimes, rate: float, prompt: Lengths, output: Lengths, **more: Any
) -> Profile:
    load = LoadModel(requests_per_second=rate, prompt_tokens=prompt, output_tokens=output, **more)
    known = {n: WORLD_ERROR * getattr(times, n) for n in COEFFICIENTS}
    return Profile(engine=EngineConfig(max_model_len=8192, **engine), times=times, times_stderr=known, workload=load)


#: a large GPU with a small model, and a small one: seconds per step
FAST = StepTimes(0.010, 2.5e-5, 0.0, 4e-5, 8e-9)
SLOW = StepTimes(0.028, 9e-5, 0.0, 1.5e-4, 3e-8)


def landscapes() -> list[Landscape]:
    chat, long, short = (
        (spread(300, 0.8), spread(250, 0.7)),
        (spread(2500, 0.5), spread(120, 0.6)),
        (spread(200, 0.5), spread(40, 0.5)),
    )
    slots = {"num_gpu_blocks": 12_000, "max_num_seqs": 16, "max_num_batched_tokens": 2048}
    over = {"num_gpu_blocks": 1500, "max_num_seqs": 256, "max_num_batched_tokens": 2048}
    prefix = SharedPrefix(share=0.9, tokens=1800, groups=6)
    off = {"num_gpu_blocks": 9000, "max_num_seqs": 64, "max_num_batched_tokens": 2048, "enable_prefix_caching": False}
    budget = {"num_gpu_blocks": 20_000, "max_num_seqs": 128, "max_num_batched_tokens": 1024}
    tpot = {"num_gpu_blocks": 20_000, "max_num_seqs": 384, "max_num_batched_tokens": 8192}
    idle = {"num_gpu_blocks": 12_000, "max_num_seqs": 128, "max_num_batched_tokens": 4096}
    mixed = {"num_gpu_blocks": 3000, "max_num_seqs": 32, "max_num_batched_tokens": 1024, "enable_prefix_caching": False}
    half = SharedPrefix(share=0.5, tokens=600, groups=40)
    cached = _profile(off, SLOW, 4.0, *long, shared_prefix=prefix)
    several = _profile(mixed, SLOW, 5.0, *chat, shared_prefix=half)
    impatient = _profile(over, FAST, 16.0, *short, cancel_share=0.3, patience_seconds=4.0)
    return [
        Landscape("slots: too few sequences", _profile(slots, SLOW, 4.0, *chat), Limits(2.0, 0.1), 6144),
        Landscape("kv: too many sequences", _profile(over, SLOW, 3.5, *chat), Limits(5.0, 0.1), 6144),
        Landscape("cache: off, prompts shared", cached, Limits(2.0, 0.15)),
        Landscape("budget: small steps", _profile(budget, FAST, 14.0, *long), Limits(1.0, 0.1), 6144),
        Landscape("tpot: large steps", _profile(tpot, SLOW, 7.0, *chat), Limits(5.0, 0.06)),
        Landscape("flat: idle", _profile(idle, FAST, 3.0, *chat), Limits(2.0, 0.1)),
        Landscape("mixed: sequences, cache and KV", several, Limits(3.0, 0.12), 6144),
        Landscape("cancel: impatient clients", impatient, Limits(1.0, 0.1)),
    ]


def with_errors(profile: Profile, seed: int, size: float = WORLD_ERROR) -> Profile:
    """A world that the model does not quite know: each coefficient off by a lognormal factor of deviation `size`."""
    rng = np.random.default_rng([seed, 5])
    times = profile.times
    names = COEFFICIENTS
    factors = dict(zip(names, np.exp(rng.normal(0.0, size, len(names))), strict=True))
    moved = replace(times, **{n: float(getattr(times, n) * f) for n, f in factors.items()})
    return profile.model_copy(update={"times": moved})
