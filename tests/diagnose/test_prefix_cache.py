from __future__ import annotations

from case_shapes import SEQS, busy, found, lead, names, observed

from trimtab.engine.settings import Configuration


def test_off_not_paying_and_paying() -> None:
    assert "PrefixCacheOff" in names(observed(), Configuration.of(enable_prefix_caching=False))
    assert "PrefixCacheOff" not in names(observed(), Configuration.of()), "unset is unknown, not off"
    assert "PrefixCachePays" in names(observed(prefix_hits=6.65e5))
    assert "PrefixCacheNotPaying" in names(observed(prefix_hits=100.0))
    assert "PrefixCacheNotPaying" not in names(observed(prefix_queries=500.0, prefix_hits=0.0))


def test_hits_that_preemption_makes_are_no_gain() -> None:
    rows = [
        busy(prefix_hit_ratio=h, preemptions_per_second=p, kv_usage=0.99) for h, p in ((0.05, 1), (0.3, 4), (0.5, 8))
    ]
    finding = found("PrefixHitsFromPreemption", *rows)
    assert finding is not None and finding.evidence["prefix_hit_ratio"] == 0.4
    assert found("PrefixCachePays", *rows) is None
    assert lead(*rows).name == "DeathSpiral"


def test_prompts_shorter_than_two_blocks_make_no_hits() -> None:
    finding = found("PrefixCacheNotPaying", busy(prefix_hit_ratio=0.0, prompt_tokens_mean=20))
    assert finding is not None and "block" in finding.message


def test_a_cold_cache_is_not_judged() -> None:
    warming = [busy(prefix_hit_ratio=h) for h in (0.0, 0.1, 0.4, 0.6)]
    assert found("PrefixCacheCold", *warming, facts=["the pod was restarted"]) is not None
    assert found("PrefixCacheCold", *warming) is None


def test_off_with_shared_prompts_and_a_queue_is_the_cause() -> None:
    rows = [busy(waiting=6, running=20, ttft_p50_seconds=4)] * 2
    finding = lead(*rows, args="--no-enable-prefix-caching --max-num-seqs 64", facts=["agents share a system prompt"])
    assert (finding.name, finding.tunable) == ("PrefixCacheOff", True)
    assert SEQS.get("enable_prefix_caching") is None
