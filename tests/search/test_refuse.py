from __future__ import annotations

from trimtab.engine.settings import Configuration
from trimtab.search.candidate import Outcome, levels
from trimtab.search.refuse import refusal
from trimtab.search.space import Space

SPACE = Space({"max_num_seqs": (4, 1024), "max_num_batched_tokens": (512, 16384)})
BASE = Configuration.of(max_num_seqs=64, max_num_batched_tokens=2048, enable_prefix_caching=False)


def at(seqs: int, tokens: int = 2048, caching: bool = False) -> Configuration:
    return Configuration.of(max_num_seqs=seqs, max_num_batched_tokens=tokens, enable_prefix_caching=caching)


def why(configuration: Configuration, *history: Outcome) -> str | None:
    return refusal(configuration, history, BASE, SPACE)


def crash(configuration: Configuration) -> Outcome:
    return Outcome("c", configuration, infeasible=True, control=BASE)


def test_fresh_is_allowed_and_the_baseline_is_not() -> None:
    assert why(at(128)) is None
    assert why(BASE) == "it is what runs now"
    assert why(at(2048)) == "outside the search space"
    assert "would not start" in str(why(at(1024, 512)))


def test_tried_is_tried_whatever_the_spelling() -> None:
    tried = Outcome("t", at(126), 0.1)
    assert why(at(128), tried) == "it has been tried"
    assert why(at(192), tried) is None


def test_an_unclear_one_may_come_back_once() -> None:
    unclear = Outcome("t", at(128), 0.01, inconclusive=True)
    assert why(at(128), unclear) is None
    assert "2 times" in str(why(at(128), unclear, unclear))
    failed = Outcome("t", at(128))
    assert why(at(128), failed) is None
    assert why(at(128), failed, failed) is not None


def test_nothing_at_or_above_a_crash_is_tried() -> None:
    oom = crash(at(256, 4096))
    for above in (at(256, 4096), at(384, 4096), at(256, 8192), at(512, 16384, True)):
        assert why(above, oom) is not None, above
    for below in (at(192, 4096), at(512, 2048), at(128, 16384)):
        assert why(below, oom) is None, below


def test_a_crash_that_memory_did_not_cause_condemns_its_other_settings_only() -> None:
    """64 sequences run without caching and crash with it: caching is the cause."""
    with_caching = crash(at(64, 2048, caching=True))
    assert why(at(96, 2048, caching=True), with_caching) is not None
    assert why(at(96, 2048, caching=False), with_caching) is None


def test_something_that_runs_with_more_memory_overrules_a_crash() -> None:
    fluke, runs = crash(at(128)), Outcome("r", at(512), 0.0)
    assert why(at(256), fluke, runs) is None
    assert why(at(1024), fluke, runs) is not None
    assert why(at(128), fluke, runs) == "it crashed or never became ready"


def test_unset_memory_settings_are_not_compared_with_set_ones() -> None:
    unset = crash(Configuration.of(max_num_seqs=256))
    assert why(at(512), unset) is None
    assert why(Configuration.of(max_num_seqs=384), unset) is not None


def test_scores_after_a_promotion_stand_on_the_promoted_one() -> None:
    history = [Outcome("a", at(128), 0.2, control=BASE), Outcome("b", at(192), 0.1, control=at(128))]
    assert [round(m.value, 6) for m in levels(history)] == [0.2, 0.3]
    assert levels([Outcome("x", at(128), float("nan")), crash(at(96))]) == []
