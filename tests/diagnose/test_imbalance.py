from __future__ import annotations

from case_shapes import case, lead

from trimtab.diagnose.rules import RULES, examine


def test_a_rank_that_queues_beside_an_idle_one() -> None:
    """vllm#52463."""
    rows = [{"running": [64, 8], "waiting": [40, 0], "kv_usage": [0.95, 0.1]}] * 3
    finding = lead(*rows, args="--max-num-seqs 64")
    assert (finding.name, finding.tunable) == ("Imbalance", False) and finding.evidence["busiest"] == 104


def test_pods_may_be_rows_of_their_own() -> None:
    report = case(
        {"pod": "a", "running": 60, "waiting": 20, "kv_usage": 0.9},
        {"pod": "b", "running": 4, "waiting": 0, "kv_usage": 0.1},
        every=0,
    )  # fmt: skip
    assert examine(report)[0].name == "Imbalance"


def test_pods_alike_are_none() -> None:
    rows = [{"running": [20, 23, 18], "waiting": [0, 1, 0], "kv_usage": [0.4, 0.5, 0.4]}] * 3
    assert RULES["Imbalance"](case(*rows)) is None


def test_words_alone_are_a_suspicion() -> None:
    finding = RULES["Imbalance"](case({"running": 20}, facts=["load is uneven between the two pods"]))
    assert finding is not None and finding.confidence < 0.7
