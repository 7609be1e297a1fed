from __future__ import annotations

from case_shapes import busy, found, lead


def test_the_same_load_gets_slower() -> None:
    """vllm#44175."""
    rows = [busy(tpot_mean_seconds=t) for t in (0.02, 0.02, 0.034, 0.035)]
    finding = lead(*rows, every=7200, facts=["after about 7 h"])
    assert (finding.name, finding.tunable) == ("SlowerWithAge", False)


def test_more_load_is_another_matter() -> None:
    rows = [busy(tpot_mean_seconds=t, running=r) for t, r in ((0.02, 20), (0.03, 40), (0.04, 60))]
    assert found("SlowerWithAge", *rows) is None
    longer = [busy(tpot_mean_seconds=t, kv_usage=k) for t, k in ((0.02, 0.2), (0.03, 0.5), (0.04, 0.8))]
    assert found("SlowerWithAge", *longer) is None
