"""Separate budgets, native or cut from outside, and their price."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from trimtab.policy.lengths import Estimate, estimate, from_tokens
from trimtab.policy.models import FAMILIES, facts_of
from trimtab.policy.percentile import Rules
from trimtab.policy.reasoning import END_MARK_TOKENS, Thinking, reasoning

R1, QWEN = facts_of("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"), facts_of("Qwen/Qwen3-32B")


def lengths(median: float, sigma: float, n: int = 5000) -> Estimate:
    return estimate(from_tokens(np.random.default_rng(int(median)).lognormal(np.log(median), sigma, n)))


def seen(thinking: float = 2000, *, engine_budget: bool = True, wanted: int | None = None) -> Thinking:
    return Thinking(lengths(thinking, 0.7), lengths(200, 0.4), engine_budget, wanted)


def test_thinking_and_answer_get_their_own() -> None:
    got = reasoning(seen(), QWEN)
    assert got.thinking_tokens and got.max_new_tokens
    answer = got.max_new_tokens - got.thinking_tokens - END_MARK_TOKENS
    assert got.thinking_tokens > 4000 and 300 < answer < 700
    assert got.truncated and got.thinking_cut
    assert got.truncated.high < 0.05 and got.thinking_cut.high < 0.08
    assert "native budget" in got.cost


def test_an_external_cut_states_its_price() -> None:
    got = reasoning(seen(wanted=3000), R1)
    assert got.thinking_tokens == 3000
    assert "external cut" in got.cost and "25%" in got.cost and "3.2%" in got.cost
    assert got.thinking_cut and 0.2 < got.thinking_cut.estimate < 0.4


def test_no_budget_beyond_where_thinking_stops_to_gain() -> None:
    assert reasoning(seen(9000), R1).thinking_tokens == 12_000
    assert (reasoning(seen(9000), QWEN).thinking_tokens or 0) > 12_000


def test_an_engine_without_budgets_pays_the_coupling_tax() -> None:
    got = reasoning(seen(engine_budget=False), QWEN)
    assert got.thinking_tokens is None and got.max_new_tokens
    assert "coupling tax" in got.cost
    assert got.truncated and got.truncated.high >= 0.01


def test_the_union_bound_holds() -> None:
    rng = np.random.default_rng(0)
    thinking, answer = rng.lognormal(np.log(2000), 0.7, 5000), rng.lognormal(np.log(200), 0.4, 5000)
    got = reasoning(Thinking(estimate(from_tokens(thinking)), estimate(from_tokens(answer)), False), QWEN)
    assert got.truncated and np.mean(thinking + answer > (got.max_new_tokens or 0)) <= got.truncated.high


def test_below_a_ceiling_the_answer_keeps_its_room() -> None:
    free, tight = reasoning(seen(), QWEN), reasoning(seen(), QWEN, Rules(ceiling_tokens=3000))
    assert tight.max_new_tokens == 3000
    assert free.max_new_tokens and free.thinking_tokens and tight.thinking_tokens
    assert 3000 - tight.thinking_tokens == free.max_new_tokens - free.thinking_tokens


def test_a_model_nobody_listed_says_that_its_price_is_not_known() -> None:
    assert facts_of("acme/thinker-7b") is None
    assert "not listed" in reasoning(seen(), None).cost


def test_few_requests_decide_nothing() -> None:
    few = Thinking(lengths(2000, 0.7, 50), lengths(200, 0.4), True)
    assert not reasoning(few, QWEN).decides


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("deepseek-ai/DeepSeek-R1", "DeepSeek-R1"),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "DeepSeek-R1"),
        ("Qwen/QwQ-32B-AWQ", "QwQ"),
        ("qwen3-30b-a3b", "Qwen3"),
        ("ByteDance-Seed/Seed-OSS-36B-Instruct", "Seed-OSS"),
    ],
)
def test_names_find_their_family(model: str, family: str) -> None:
    found = facts_of(model)
    assert found is not None and found.family == family


def test_facts_have_sources() -> None:
    assert all(f.source and f.patterns and f.reasoning_parser for f in FAMILIES)
    assert all(f.curve.source for f in FAMILIES if f.curve)


@pytest.mark.engine
def test_parsers_are_those_of_the_real_vllm() -> None:
    import subprocess

    root = Path(__file__).resolve().parents[2]
    built = subprocess.run([root / "hack/engine/build.sh"], stdout=subprocess.PIPE, text=True, check=True, timeout=900)
    (source,) = Path(built.stdout.splitlines()[0]).glob("lib/python3*/site-packages/vllm/reasoning/__init__.py")
    registered = set(re.findall(r'^    "(\w+)": \(', source.read_text(), re.MULTILINE))
    assert {f.reasoning_parser for f in FAMILIES} <= registered
