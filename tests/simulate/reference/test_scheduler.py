"""The reference scheduler: what must hold in every step, whatever comes in."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulate.reference.contract import Prompt, Request, SchedulerLimits
from tests.simulate.reference.scheduler import Scheduler

from trimtab.errors import InputError


def limits(**changes: object) -> SchedulerLimits:
    defaults: dict[str, object] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "num_gpu_blocks": 33,
        "block_size": 4,
        "max_model_len": 100,
    }
    return SchedulerLimits(**{**defaults, **changes})  # type: ignore[arg-type]


def request(name: str, prompt: int | Prompt, output: int, max_tokens: int = 1000) -> Request:
    return Request(name, prompt if isinstance(prompt, Prompt) else Prompt(prompt), output, max_tokens)


def run_dry(scheduler: Scheduler, most: int = 10_000) -> list[str]:
    """Step until idle; the ids in order of finishing."""
    finished: list[str] = []
    for _ in range(most):
        outcome = scheduler.step()
        finished += [end.request_id for end in outcome.finished]
        if outcome.idle:
            return finished
    raise AssertionError("the scheduler never comes to rest")


def shared_prompt(kind: int, length: int) -> Prompt:
    return Prompt.from_tokens([(kind, position) for position in range(length)])


LOADS = st.lists(
    st.tuples(
        st.integers(1, 60),  # prompt
        st.integers(1, 39),  # output
        st.integers(0, 2),  # which shared prefix
        st.integers(0, 5),  # steps before it arrives
        st.one_of(st.none(), st.integers(0, 30)),  # aborted so many steps later
    ),
    min_size=6,
    max_size=30,
)
SETTINGS = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 16),
        "num_gpu_blocks": st.integers(26, 60),  # one sequence of max_model_len always fits
        "enable_prefix_caching": st.booleans(),
        "reserve_full_prompt": st.booleans(),
        "watermark": st.sampled_from([0.0, 0.1]),
        "long_prefill_token_threshold": st.sampled_from([0, 5]),
    }
)


@settings(max_examples=150, deadline=None)
@given(load=LOADS, changes=SETTINGS)
def test_every_step_keeps_the_books(
    load: list[tuple[int, int, int, int, int | None]], changes: dict[str, object]
) -> None:
    scheduler = Scheduler(limits(**changes))
    pool, most_running = scheduler.pool, scheduler.limits.max_num_seqs
    arrivals: dict[int, list[Request]] = {}
    aborts: dict[int, list[str]] = {}
    at = 0
    for index, (prompt, output, kind, gap, abort_after) in enumerate(load):
        at += gap
        arrivals.setdefault(at, []).append(request(str(index), shared_prompt(kind, prompt), output))
        if abort_after is not None:
            aborts.setdefault(at + abort_after, []).append(str(index))
    tokens: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    last_event = max([*arrivals, *aborts])
    for step in range(20_000):
        for new in arrivals.get(step, []):
            scheduler.add(new)
        for name in aborts.get(step, []):
            scheduler.abort(name)
        outcome = scheduler.step()
        tokens.update(outcome.tokens)
        ended.update(end.request_id for end in outcome.finished)
        ended.update(outcome.aborted)
        held = {block for sequence in scheduler._running for block in sequence.blocks}
        assert held.isdisjoint(pool._free)
        assert len(held) + pool.free_count == pool.usable
        assert scheduler.running_count <= most_running
        assert outcome.prefill_tokens + outcome.decode_sequences <= scheduler.limits.max_num_batched_tokens
        assert len(set(outcome.tokens)) == len(outcome.tokens)
        assert not (outcome.preempted and outcome.admitted)
        if outcome.idle and step > last_event:
            break
    assert all(ended[str(index)] == 1 for index in range(len(load)))
    assert pool.used_count == 0
    for index, (_, output, _, _, abort_after) in enumerate(load):
        assert tokens[str(index)] == output or (abort_after is not None and tokens[str(index)] < output)


def test_the_head_of_the_queue_blocks_those_behind_it() -> None:
    scheduler = Scheduler(limits(num_gpu_blocks=26, max_num_batched_tokens=1000))
    for name, prompt in (("big", 80), ("bigger", 90), ("small", 4)):
        scheduler.add(request(name, prompt, 5))
    assert scheduler.step().tokens == ["big"]
    assert (scheduler.running_count, scheduler.waiting_count) == (1, 2)
    assert run_dry(scheduler) == ["big", "bigger", "small"]


def test_long_prompts_are_computed_in_chunks() -> None:
    scheduler = Scheduler(limits(max_num_batched_tokens=40))
    scheduler.add(request("a", 90, 1))
    outcomes = [scheduler.step() for _ in range(3)]
    assert [outcome.prefill_tokens for outcome in outcomes] == [40, 40, 10]
    assert [outcome.tokens for outcome in outcomes] == [[], [], ["a"]]


def test_the_youngest_is_preempted_and_recomputed_with_what_it_had_generated() -> None:
    scheduler = Scheduler(limits(num_gpu_blocks=27, enable_prefix_caching=False, max_num_batched_tokens=200))
    scheduler.add(request("old", 48, 40))
    scheduler.add(request("young", 48, 40))
    preempted_at = None
    for step in range(200):
        outcome = scheduler.step()
        if outcome.preempted:
            assert outcome.preempted == ["young"]
            preempted_at = step
        if preempted_at is not None and outcome.admitted:
            generated = preempted_at  # one token per step since step 0
            assert outcome.admitted[0].resumed
            assert outcome.prefill_tokens == outcome.recomputed_tokens + 1 == 48 + generated
            return
    raise AssertionError("no preemption, or no resumption")


def test_a_resumed_request_finds_its_blocks_in_the_prefix_cache() -> None:
    recomputed = {}
    for caching in (True, False):
        scheduler = Scheduler(limits(num_gpu_blocks=27, enable_prefix_caching=caching, max_num_batched_tokens=200))
        scheduler.add(request("old", 48, 9))
        scheduler.add(request("young", 48, 9))
        total = 0
        while not (outcome := scheduler.step()).idle:
            total += outcome.recomputed_tokens
        recomputed[caching] = total
    assert 0 < recomputed[True] < recomputed[False]


def test_a_shared_prefix_is_computed_once_but_its_last_token_always() -> None:
    scheduler = Scheduler(limits())
    scheduler.add(request("first", shared_prompt(1, 40), 3))
    scheduler.step()
    scheduler.add(request("second", shared_prompt(1, 40), 3))
    outcome = scheduler.step()
    assert outcome.admitted[0].cached_tokens == 36
    assert outcome.prefill_tokens == 4


def test_cached_blocks_count_as_free_and_the_oldest_goes_first() -> None:
    scheduler = Scheduler(limits(num_gpu_blocks=27, max_num_batched_tokens=200))
    for name, kind in (("a", 1), ("b", 2)):
        scheduler.add(request(name, shared_prompt(kind, 40), 1))
        run_dry(scheduler)
    assert scheduler.kv_usage == 0
    scheduler.add(request("c", shared_prompt(3, 60), 1))  # needs 15 of 26 blocks: 6 untouched, then from `a`
    run_dry(scheduler)
    pool = scheduler.pool
    found = [len(pool.find_prefix(shared_prompt(kind, 40).block_hashes(4, "")[:10], 10)) for kind in (1, 2)]
    assert found[0] < found[1] == 10


def test_an_abort_frees_blocks_at_the_next_step_and_unknown_ids_are_ignored() -> None:
    scheduler = Scheduler(limits())
    scheduler.add(request("a", 20, 30))
    scheduler.step()
    scheduler.abort("a")
    scheduler.abort("nobody")
    assert scheduler.kv_usage > 0
    assert scheduler.step().aborted == ["a"]
    assert scheduler.kv_usage == 0


def test_watermark_keeps_blocks_free_only_while_something_runs() -> None:
    scheduler = Scheduler(limits(num_gpu_blocks=27, watermark=0.5, max_num_batched_tokens=200))
    scheduler.add(request("a", 60, 2))
    scheduler.add(request("b", 8, 2))
    assert scheduler.step().tokens == ["a"]
    assert run_dry(scheduler) == ["a", "b"]


def test_active_seqs_limit_below_max_num_seqs() -> None:
    scheduler = Scheduler(limits(max_num_active_seqs=2))
    for name in "abc":
        scheduler.add(request(name, 4, 5))
    scheduler.step()
    assert (scheduler.running_count, scheduler.waiting_count) == (2, 1)


def test_the_reason_tells_a_natural_end_from_a_cap() -> None:
    scheduler = Scheduler(limits(max_model_len=20))
    scheduler.add(request("natural", 4, 3, 3))
    scheduler.add(request("capped", 4, 9, 3))
    scheduler.add(request("context", 18, 9, 9))
    reasons = {}
    while not (outcome := scheduler.step()).idle:
        reasons.update({end.request_id: end.reason for end in outcome.finished})
    assert reasons == {"natural": "stop", "capped": "length", "context": "length"}


def test_a_prompt_larger_than_the_cache_waits_for_ever_without_spinning() -> None:
    scheduler = Scheduler(limits(num_gpu_blocks=5))
    scheduler.add(request("huge", 50, 1))
    assert scheduler.step().idle
    assert scheduler.waiting_count == 1


@pytest.mark.parametrize(
    ("bad", "field"),
    [({"max_num_batched_tokens": 4}, "max_num_batched_tokens"), ({"num_gpu_blocks": 1}, "num_gpu_blocks"),
     ({"watermark": 1.0}, "watermark"), ({"max_num_seqs": 0}, "max_num_seqs")],
)  # fmt: skip
def test_limits_no_engine_would_take_are_named(bad: dict[str, object], field: str) -> None:
    with pytest.raises(InputError, match=field):
        Scheduler(limits(**bad))


def test_requests_that_cannot_be_are_refused() -> None:
    scheduler = Scheduler(limits())
    scheduler.add(request("a", 4, 1))
    for bad in (request("a", 4, 1), request("b", 100, 1), request("c", 0, 1), request("d", 4, 0)):
        with pytest.raises(InputError):
            scheduler.add(bad)


def test_trace_chunks_and_tokens_hash_into_blocks() -> None:
    long = Prompt(1100, (7, 8, 9), 512)
    same_start = Prompt(1100, (7, 8, 10), 512)
    first, second = long.block_hashes(16, "a"), same_start.block_hashes(16, "b")
    assert len(first) == 1100 // 16
    assert first[:64] == second[:64]
    assert set(first[64:]).isdisjoint(second[64:])
    assert Prompt(64).block_hashes(16, "a") != Prompt(64).block_hashes(16, "b")
