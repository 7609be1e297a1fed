"""What requests reserve and use, over one engine and over a fleet.

Reserved: what an engine with admission model `reserve` sets aside (prompt + max_new_tokens); on vLLM it is only how far
a request may grow (facts in engine/admission.py). Used: prompt + generated.
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.engine.kv.layout import Layout
from trimtab.errors import InputError

MIB = 2**20


@dataclass(frozen=True)
class Tokens:
    """One request's tokens, or a typical one's."""

    prompt: int
    max_new: int
    generated: int

    def __post_init__(self) -> None:
        for name, flag in (("prompt", "--prompt"), ("max_new", "--max-new-tokens"), ("generated", "--generated")):
            if getattr(self, name) < 0:
                raise InputError(flag, f"{getattr(self, name)} is negative", "Use 0 or more.")
        if self.generated > self.max_new:
            problem = f"{self.generated} tokens are more than --max-new-tokens {self.max_new}"
            raise InputError("--generated", problem, "An engine stops at max_new_tokens; correct one of them.")


@dataclass(frozen=True)
class Held:
    """Blocks, with the bytes of a block on all GPUs of the engine."""

    blocks: int
    bytes: int

    def times(self, count: int) -> Held:
        return Held(self.blocks * count, self.bytes * count)


@dataclass(frozen=True)
class Usage:
    """Reserved, used and the difference, which nobody can use on a `reserve` engine."""

    reserved: Held
    used: Held

    @property
    def wasted(self) -> Held:
        return Held(self.reserved.blocks - self.used.blocks, self.reserved.bytes - self.used.bytes)

    def times(self, count: int) -> Usage:
        return Usage(self.reserved.times(count), self.used.times(count))


def usage(layout: Layout, tokens: Tokens) -> Usage:
    """Of one request at its end."""
    reserved = layout.blocks(tokens.prompt + tokens.max_new)
    used = layout.blocks(tokens.prompt + tokens.generated)
    size = layout.bytes_per_block_all_gpus
    return Usage(Held(reserved, reserved * size), Held(used, used * size))


def fleet(one: Usage, running: int, replicas: int) -> Usage:
    """Over `running` requests on each of `replicas` engines."""
    for flag, value in (("--running", running), ("--replicas", replicas)):
        if value < 1:
            raise InputError(flag, f"{value} is too small", "Use 1 or more.")
    return one.times(running * replicas)


def seed_max_num_seqs(capacity_tokens: int, mean_tokens: float) -> int:
    """Where to begin the search: capacity / mean(prompt + generated), at least 1. A rule of thumb, not an optimum.

    The p90 in place of the mean takes everybody to be long at once: 40% less throughput in simulation, where the mean
    gained 9% (docs/claims.md, CV > 1).
    """
    if not mean_tokens > 0:
        raise InputError("mean_tokens", f"{mean_tokens:g} is too small", "Use the mean of prompt + generated tokens.")
    return max(1, int(capacity_tokens / mean_tokens))
