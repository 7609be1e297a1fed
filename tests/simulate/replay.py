"""Replays what vLLM's scheduler was given, and compares every decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulate.scenarios import Asked
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.stepper import Stepper

#: one call of vLLM's schedule() and what followed, see `in_vllm/scripted_scheduler.py`
Line = dict[str, Any]


def compare(lines: Sequence[Line], requests: Sequence[Asked], config: EngineConfig) -> None:
    """Requests come and leave at the calls at which vLLM saw it; AssertionError names the first call that differs."""
    stepper = Stepper(config, StepTimes())
    lengths = lengths_of(lines, requests)
    number: dict[int, int] = {}
    index: dict[int, int] = {}
    for line in lines:
        for kind, who in line["events"]:
            if kind == "add":
                asked = requests[who]
                number[who] = stepper.add(
                    asked.prompt, lengths[who], asked.output, priority=asked.priority, prefix=asked.blocks
                )
                index[number[who]] = who
            else:
                stepper.abort(number[who])
        for _, who in line.get("meanwhile", ()):
            stepper.abort(number[who], during_step=True)
        step = stepper.step()
        if "scheduled" not in line:  # the last ones left before another call
            continue
        # vLLM's dicts keep another order than its queue; that of preemptions matters
        ours = {
            "preempted": [index[n] for n in step.preempted],
            "admitted": sorted([index[n], cached, again] for n, cached, again in step.admitted),
            "scheduled": sorted([index[n], tokens] for n, tokens in step.scheduled),
            "tokens": sorted(index[n] for n in step.tokens),
            "finished": sorted([index[n], reason] for n, reason in step.finished),
            "free": stepper.num_free_blocks,
        }
        theirs = {
            name: sorted(v) if name not in ("preempted", "free") else v for name, v in line.items() if name in ours
        }
        assert ours == theirs, f"call {line['call']}"
    assert stepper.unfinished_count == 0


def lengths_of(lines: Sequence[Line], requests: Sequence[Asked]) -> list[int]:
    """After how many tokens each request stopped by itself; one more than its limit where it did not."""
    out = [r.output + 1 for r in requests]
    tokens = [who for line in lines for who in line.get("tokens", ())]
    for line in lines:
        for who, reason in line.get("finished", ()):
            if reason == "stop":
                out[who] = tokens.count(who)
    return out
