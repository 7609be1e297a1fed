from __future__ import annotations

from case_shapes import busy, found, lead


def test_trials_that_differ_by_nothing() -> None:
    rows = [{"max_num_seqs": n, "generation_tokens_per_second": t} for n, t in ((32, 1061), (64, 1070), (128, 1049))]
    finding = lead(*rows, facts=["FP8 weights"])
    assert (finding.name, finding.tunable) == ("FlagNotTheLever", False)
    assert finding.evidence["trials"] == 3 and "weights" in finding.advice


def test_trials_that_differ_are_not() -> None:
    rows = [{"max_num_seqs": n, "generation_tokens_per_second": t} for n, t in ((32, 700), (64, 1070), (128, 1400))]
    assert found("FlagNotTheLever", *rows) is None


def test_a_collapse_in_company() -> None:
    """vllm#17568."""
    rows = [busy(running=1, generation_tokens_per_second=30, prompt_tokens_per_second=5, kv_usage=0.01),
            busy(running=4, generation_tokens_per_second=6, prompt_tokens_per_second=5, kv_usage=0.02)]  # fmt: skip
    finding = found("FlagNotTheLever", *rows, facts=["8 GPUs over PCIe"])
    assert finding is not None and "interconnect" in finding.advice


def test_less_load_is_no_collapse() -> None:
    rows = [busy(running=r, generation_tokens_per_second=30 * r) for r in (40, 20, 4)]
    assert found("FlagNotTheLever", *rows) is None
