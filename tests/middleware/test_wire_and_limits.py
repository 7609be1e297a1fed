"""What a request asks for, and what the policy makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.middleware.limits import Chooser, decide, rewritten
from trimtab.middleware.policy_file import Tokens, parse
from trimtab.middleware.wire import PATHS, Request, understand


def request(route: str = "completions", **body: Any) -> Request:
    found = understand(route, body)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("route", "body", "limit", "sequences"),
    [
        ("completions", {"prompt": "a"}, 16, 1),
        ("completions", {"prompt": "a", "max_tokens": None}, None, 1),
        ("completions", {"prompt": "a", "max_tokens": 7, "n": 3}, 7, 3),
        ("completions", {"prompt": ["a", "b"], "max_tokens": 7, "n": 3}, 7, 6),
        ("completions", {"prompt": [[1, 2], [3]], "max_tokens": 7}, 7, 2),
        ("completions", {"prompt": [1, 2, 3], "max_tokens": 7, "best_of": 4}, 7, 4),
        ("chat", {"messages": []}, None, 1),
        ("chat", {"messages": [], "max_tokens": 9}, 9, 1),
        ("chat", {"messages": [], "max_tokens": 9, "max_completion_tokens": 5, "n": 2}, 5, 2),
        ("responses", {"input": "x", "max_output_tokens": 5}, 5, 1),
        ("messages", {"messages": [], "max_tokens": 5}, 5, 1),
    ],
)
def test_limits_and_sequences_are_those_vllm_applies(
    route: str, body: dict[str, Any], limit: int | None, sequences: int
) -> None:
    found = request(route, **body)
    assert (found.effective_max_tokens, found.sequences) == (limit, sequences)


def test_prompt_tokens_are_exact_for_ids_and_estimated_for_text() -> None:
    assert request(prompt=[1, 2, 3]).prompt_tokens == 3
    assert request(prompt=[[1, 2], [3]]).prompt_tokens == 3
    assert request(prompt="abcdefgh").prompt_estimate() == 2
    chat = request(
        "chat", messages=[{"role": "user", "content": [{"type": "text", "text": "abcd"}, {"type": "image"}]}]
    )
    assert chat.prompt_chars == 4


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text('ab"é\u2028', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('ab"é\u2028', max_size=8), inner, max_size=4),
    max_leaves=10,
)
NAMES = ["prompt", "messages", "input", "n", "best_of", "max_tokens", "max_completion_tokens", "stop", "thinking",
         "min_tokens", "stream", "tools", "system", "model", "stop_token_ids", "thinking_token_budget"]  # fmt: skip


@given(st.sampled_from(sorted(PATHS.values())), st.dictionaries(st.sampled_from(NAMES), JSON))
def test_any_body_is_understood_without_a_fault_and_edits_set_only_what_they_say(
    route: str, body: dict[str, Any]
) -> None:
    from trimtab.middleware.features import row_of

    found = understand(route, body)
    assert found is not None and found.sequences >= 1 and found.prompt_estimate() >= 0
    json.dumps(row_of(found))
    policy = Tokens(default_max_tokens=50, cap_max_tokens=40, lower_client=True, default_thinking_tokens=5)
    limits = decide(policy, found)
    raw = json.dumps(body).encode()
    if limits.edits:
        assert json.loads(rewritten(raw, body, limits.edits)) == {**json.loads(raw), **limits.edits}


CAP = Tokens(cap_max_tokens=100)
LOWER = Tokens(cap_max_tokens=100, lower_client=True)


@pytest.mark.parametrize(
    ("tokens", "body", "limit", "change"),
    [
        (CAP, {"max_tokens": 400}, 400, None),
        (LOWER, {"max_tokens": 400}, 100, "400->100"),
        (LOWER, {"max_tokens": 50}, 50, None),
        (LOWER, {"max_tokens": 400, "min_tokens": 150}, 150, "400->150"),
        (LOWER, {"max_tokens": 0, "echo": True}, 0, None),
        (LOWER, {"max_tokens": "many"}, None, None),
        (CAP, {"max_tokens": None}, 100, "none->100"),
        (CAP, {}, 16, None),
        (Tokens(default_max_tokens=30), {}, 30, "none->30"),
        (Tokens(default_max_tokens=300, cap_max_tokens=100), {"max_tokens": None}, 100, "none->100"),
        (Tokens(), {"max_tokens": 400}, 400, None),
    ],
)
def test_limits_are_defaulted_and_capped_and_lowered_only_when_allowed(
    tokens: Tokens, body: dict[str, Any], limit: int | None, change: str | None
) -> None:
    got = decide(tokens, request(prompt="a", **body))
    assert got.max_tokens == limit
    assert [text for _, text in got.changes] == ([change] if change else [])
    assert got.edits == ({"max_tokens": limit} if change else {})


def test_chat_writes_the_field_that_wins() -> None:
    both = request("chat", messages=[], max_tokens=900, max_completion_tokens=500)
    assert decide(LOWER, both).edits == {"max_completion_tokens": 100}
    assert decide(CAP, request("chat", messages=[])).edits == {"max_tokens": 100}
    assert decide(LOWER, request("responses", input="", max_output_tokens=500)).edits == {"max_output_tokens": 100}


def test_a_prediction_caps_with_its_margin() -> None:
    tokens = Tokens(predicted_level=0.9, predicted_margin=1.5, lower_client=True)
    got = decide(tokens, request(prompt="a", max_tokens=400), 60.2)
    assert (got.max_tokens, got.changes) == (91, (("predicted", "400->91"),))
    assert decide(tokens, request(prompt="a", max_tokens=400), None).max_tokens == 400


def test_thinking_budgets_are_separate_and_stay_below_the_limit_of_messages() -> None:
    think = Tokens(default_thinking_tokens=64, cap_thinking_tokens=32, lower_client=True)
    assert decide(think, request("chat", messages=[])).edits == {"thinking_token_budget": 32}
    assert decide(think, request("chat", messages=[], thinking_token_budget=8)).edits == {}
    message = request("messages", messages=[], max_tokens=500, thinking={"type": "enabled", "budget_tokens": 200})
    assert decide(think, message).edits == {"thinking": {"type": "enabled", "budget_tokens": 32}}
    assert decide(LOWER, message).edits == {"max_tokens": 201}


RULES = parse(
    b"""{"tokens": {"cap_max_tokens": 1000}, "rules": [
  {"match": {"route": "chat", "model": "qwen*"}, "tokens": {"default_thinking_tokens": 7}},
  {"match": {"header": "x-tier", "header_value": "free"}, "tokens": {"cap_max_tokens": 10, "lower_client": true}}],
  "experiment": {"name": "e", "arms": [{"name": "a", "percent": 50}, {"name": "b", "percent": 50,
  "tokens": {"cap_max_tokens": 99}, "rules": [{"match": {"model": "tiny"}, "tokens": {"cap_max_tokens": 5}}]}]}}"""
)


def test_rules_set_what_they_say_and_the_rest_comes_from_the_file() -> None:
    chooser = Chooser(RULES)
    free = {"x-tier": "free"}.get
    found = chooser.tokens(None, request("chat", model="qwen3", messages=[]), free)
    assert (found.default_thinking_tokens, found.cap_max_tokens, found.lower_client) == (7, 10, True)
    assert chooser.tokens(None, request(model="qwen3", prompt=""), {}.get).cap_max_tokens == 1000


def test_an_arm_comes_before_the_file() -> None:
    chooser = Chooser(RULES)
    assert RULES.experiment is not None
    arm_a, arm_b = RULES.experiment.arms
    nothing = {}.get
    assert chooser.tokens(arm_a, request(prompt=""), nothing).cap_max_tokens == 1000
    assert chooser.tokens(arm_b, request(prompt=""), nothing).cap_max_tokens == 99
    assert chooser.tokens(arm_b, request(prompt="", model="tiny"), nothing).cap_max_tokens == 5


@pytest.mark.parametrize("raw", [b'{"a":1}', b' {\n "a" : "\\ud800"}', b"{}"])
def test_new_fields_leave_the_old_text_alone(raw: bytes) -> None:
    got = rewritten(raw, json.loads(raw), {"max_tokens": 5})
    assert json.loads(got) == {**json.loads(raw), "max_tokens": 5}
    if raw != b"{}":
        assert got.endswith(raw.strip()[1:])
