"""The stepper does, step by step, what `simulate` does in one go, and forgets what is over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from tests.simulate.random_loads import TIMES, configs, loads

from trimtab.errors import InputError
from trimtab.simulate import state as st
from trimtab.simulate import stepper as module
from trimtab.simulate.config import EngineConfig
from trimtab.simulate.simulator import simulate
from trimtab.simulate.stepper import Stepper, StepResult
from trimtab.simulate.workload import Workload


@dataclass
class Seen:
    """What a client saw of one request."""

    first: float = np.nan
    last: float = np.nan
    end: float = np.nan
    tokens: int = 0
    preemptions: int = 0
    cached: int = -1
    ending: str = "stuck"
    times: list[float] = field(default_factory=list)


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are renumbered often."""
    monkeypatch.setattr(module, "FIRST_ROOM", 4)


def drive(load: Workload, config: EngineConfig) -> tuple[list[Seen], Stepper]:
    """Serve `load` as a caller with a clock of its own would; clients leave at a token only."""
    stepper, seen = Stepper(config, TIMES), [Seen() for _ in range(len(load))]
    now = float(load.arrival[0])
    arrived = 0
    while True:
        while arrived < len(load) and load.arrival[arrived] <= now:
            shared = load.chunk_ids[load.chunk_start[arrived] : load.chunk_start[arrived + 1]].tolist()
            number = stepper.add(
                int(load.prompt[arrived]), int(load.output[arrived]), int(load.max_tokens[arrived]),
                priority=int(load.priority[arrived]), prefix=shared,
            )  # fmt: skip
            assert number == arrived
            arrived += 1
        result = stepper.step()
        now += result.seconds
        for number in take(result, seen, now):
            if seen[number].tokens == load.cancel_tokens[number]:
                seen[number].ending, seen[number].end = "cancelled", now
                stepper.abort(number)
        for number, reason in result.finished:
            if seen[number].ending == "stuck":
                seen[number].ending, seen[number].end = reason, now
        if result.idle:
            if arrived == len(load):
                return seen, stepper
            now = max(now, float(load.arrival[arrived]))


def take(result: StepResult, seen: list[Seen], now: float) -> Iterator[int]:
    for number, cached, again in result.admitted:
        assert again == (seen[number].preemptions > 0)
        if not again:
            seen[number].cached = cached
    for number in result.preempted:
        seen[number].preemptions += 1
    for number in result.tokens:
        if seen[number].ending == "stuck":
            one = seen[number]
            one.tokens += 1
            one.last = now
            one.first = now if one.tokens == 1 else one.first
            yield number


@settings(max_examples=60)
@given(loads(timers=False), configs(max_num_queued_reqs=None, max_num_queued_tokens=None, abort_delay_seconds=0.0))
def test_step_by_step_is_the_same_as_in_one_go(load: Workload, config: EngineConfig) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FIRST_ROOM", 4)
        seen, stepper = drive(load, config)
    outcome = simulate(load, config, TIMES)
    assert [s.ending for s in seen] == [st.ENDINGS[e] for e in outcome.ending]
    assert [s.tokens for s in seen] == outcome.tokens.tolist()
    assert [s.preemptions for s in seen] == outcome.preemptions.tolist()
    assert [max(0, s.cached) for s in seen] == outcome.cached.tolist()
    for name in ("first", "last", "end"):
        assert np.array_equal([getattr(s, name) for s in seen], getattr(outcome, name), equal_nan=True), name
    stuck = sum(s.ending == "stuck" for s in seen)
    assert stepper.unfinished_count == stuck
    assert stuck or (stepper.running_count, stepper.waiting_count, stepper.kv_usage) == (0, 0, 0.0)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_memory_follows_what_is_live(little_room: None, policy: str) -> None:
    """Twenty thousand requests with names of their own, eight at a time; one outlives them all."""
    stepper = Stepper(EngineConfig(4_000, 8, 256, max_model_len=60_000, policy=policy), TIMES)  # type: ignore[arg-type]
    old = stepper.add(8, 50_000, 50_000)
    sizes = set()
    for n in range(20_000):
        stepper.add(40, 2, 2, prefix=[2 * n, 2 * n + 1])
        if n % 8 == 7:
            while stepper.unfinished_count > 4:
                stepper.step()
        if n > 5_000:
            sizes.add((len(stepper._store.state.m), len(stepper._store.state.f)))
    assert len(sizes) == 1
    stepper.abort(old)
    assert old in stepper.step().aborted


def test_an_abort_during_a_step_comes_before_its_tokens() -> None:
    config = EngineConfig(50, async_scheduling=False)
    for during in (False, True):
        stepper = Stepper(config, TIMES)
        number = stepper.add(8, 5, 5)
        assert stepper.step().tokens == [number]
        stepper.abort(number, during_step=during)
        result = stepper.step()
        assert (result.tokens, result.aborted, bool(result.scheduled)) == ([], [number], during)
        assert stepper.unfinished_count == 0 and stepper.num_free_blocks == 49


@pytest.mark.parametrize("caching", [False, True])
def test_lost_blocks_count_as_used_and_are_never_given_out(caching: bool) -> None:
    stepper = Stepper(EngineConfig(21, enable_prefix_caching=caching), TIMES)
    stepper.add(64, 2, 2, prefix=[1, 2, 3, 4])
    while stepper.unfinished_count:
        stepper.step()
    assert stepper.lose_blocks(15) == 15 and stepper.kv_usage == 0.75
    assert stepper.lose_blocks(99) == 5 and stepper.kv_usage == 1.0
    stepper.add(8, 2, 2)
    assert stepper.step().idle


def test_a_request_that_no_engine_takes_is_named() -> None:
    stepper = Stepper(EngineConfig(50, max_model_len=100), TIMES)
    for wrong in ((0, 1, 1), (100, 1, 1), (5, 0, 1), (5, 1, 0)):
        with pytest.raises(InputError):
            stepper.add(*wrong)
