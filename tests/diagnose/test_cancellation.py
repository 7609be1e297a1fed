from __future__ import annotations

import pytest
from case_shapes import busy, found, lead


def test_more_than_a_tenth_leaving_is_the_cause_whatever_else_is_found() -> None:
    rows = [busy(running=64, waiting=40, kv_usage=0.3, abort_rate=0.22)] * 3
    finding = lead(*rows, args="--max-num-seqs 64")
    assert (finding.name, finding.tunable) == ("CancellationDominates", False)
    assert finding.evidence["abort_rate"] == 0.22 and "gateway" in finding.advice


def test_a_tenth_or_less_is_not() -> None:
    assert found("CancellationDominates", busy(abort_rate=0.09)) is None


@pytest.mark.parametrize(
    ("rows", "facts", "word"),
    [
        ([busy(abort_rate=0.3, e2e_p99_seconds=60.2)] * 2, [], "60 s"),
        ([busy(abort_rate=0.3, tpot_mean_seconds=0.4)] * 2, [], "slow"),
        ([busy(abort_rate=0.3)] * 2, ["clients retry at once"], "retries"),
        (
            [busy(abort_rate=0.2, requests_per_second=5), busy(abort_rate=0.4, requests_per_second=12)],
            [],
            "retries",
        ),
    ],
    ids=["round age", "slow decode", "told", "offered load rises alone"],
)
def test_the_kinds_are_told_apart(rows: list[dict[str, float]], facts: list[str], word: str) -> None:
    finding = found("CancellationDominates", *rows, facts=facts)
    assert finding is not None and word in finding.message


def test_what_clients_say_counts_where_the_rate_is_unknown() -> None:
    told = found("CancellationDominates", busy(), facts=["35% of requests time out at the client"])
    assert told is not None and told.evidence["abort_rate"] == 0.35 and told.confidence < 0.8


def test_zero_aborts_prove_nothing_behind_a_proxy() -> None:
    """litellm#30244."""
    rows = [busy(abort_rate=0.0, running=60, client_in_flight=20)] * 2
    finding = lead(*rows, facts=["litellm in front of it"])
    assert (finding.name, finding.tunable) == ("CancellationHidden", False)
    told = found("CancellationHidden", busy(abort_rate=0.0), facts=["nginx proxy", "users disconnect after 30 s"])
    assert told is not None


def test_a_proxy_alone_is_no_finding() -> None:
    assert found("CancellationHidden", busy(abort_rate=0.0), facts=["behind nginx"]) is None
    assert found("CancellationHidden", busy(abort_rate=0.0, client_in_flight=41), facts=["behind nginx"]) is None
