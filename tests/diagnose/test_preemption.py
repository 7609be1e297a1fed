from __future__ import annotations

import pytest
from case_shapes import SEQS, busy, found, lead, observed

from trimtab.diagnose.finding import Limits, Severity
from trimtab.diagnose.rules import diagnose


def test_it_is_counted_per_finished_request() -> None:
    (finding, *_) = diagnose(observed(preemptions=200.0, kv_usage_max=0.99), SEQS, Limits())
    assert (finding.name, finding.severity, finding.tunable) == ("Preemption", Severity.WARNING, True)
    assert finding.evidence["preemptions_per_request"] == pytest.approx(0.201, abs=0.001)
    assert finding.evidence["kv_usage"] == 0.99 and "max_num_seqs" in finding.settings
    assert found("Preemption", busy(preemptions_per_second=0.05)) is None


def test_a_cache_that_is_not_full_makes_it_doubtful() -> None:
    full, free = (found("Preemption", busy(preemptions_per_second=1.0, kv_usage=kv)) for kv in (0.97, 0.5))
    assert full is not None and free is not None and free.confidence < 0.7 <= full.confidence


def test_high_kv_use_alone_is_none() -> None:
    """vllm#18115."""
    assert lead(*[busy(running=8, kv_usage=0.958)] * 3).name == "Healthy"


def test_a_spiral_preempts_each_request_or_grows_without_gain() -> None:
    each = lead(*[busy(preemptions_per_second=9, kv_usage=0.99)] * 2)
    assert (each.name, each.severity) == ("DeathSpiral", Severity.CRITICAL)
    rows = [
        busy(preemptions_per_second=p, kv_usage=0.99, generation_tokens_per_second=g)
        for p, g in ((1, 1500), (2, 1500), (3, 1400), (4, 1350))
    ]
    assert lead(*rows).name == "DeathSpiral"
    gaining = [busy(preemptions_per_second=p, kv_usage=0.99, generation_tokens_per_second=700 * p) for p in (1, 2, 3)]
    assert lead(*gaining).name == "Preemption"


def test_the_share_of_the_tail_comes_from_the_same_target_without_it() -> None:
    calm = busy(tpot_p50_seconds=0.02, tpot_p99_seconds=0.03)
    pressed = busy(tpot_p50_seconds=0.02, tpot_p99_seconds=0.08, preemptions_per_second=2, kv_usage=0.98)
    finding = found("Preemption", calm, pressed, pressed)
    assert finding is not None and finding.evidence["share_of_tpot_gap"] == pytest.approx(1 - 0.01 / 0.06, abs=0.001)
    assert finding.evidence["tpot_p99_over_p50"] == 4.0
    unknown = found("Preemption", pressed, pressed)
    assert unknown is not None and "share_of_tpot_gap" not in unknown.evidence
