"""Byte scans of answers: exact counts, endings, and the client's view unchanged, however the bytes are cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from middleware.asgi import chunk
from trimtab.middleware.stream import MessagesEvents, OpenAIEvents, ResponsesEvents, Whole


def with_usage(event: str, tokens: int, details: str = "") -> str:
    return (
        event[:-1]
        + f',"usage":{{"prompt_tokens":7,"total_tokens":{7 + tokens},"completion_tokens":{tokens}{details}}}}}'
    )


FINAL = (
    '{"id":"c","choices":[],"usage":{"prompt_tokens":7,"total_tokens":%d,"completion_tokens":%d},'
    '"system_fingerprint":"vllm-x"}'
)
#: text that looks like what is searched for
NASTY = [
    '","usage":{"completion_tokens":99}',
    '"finish_reason":"stop"',
    "}\n\n{",
    "data: [DONE]",
    '"choices":[]',
    "é\u2028",
]


def stream(tokens: list[int], reason: str = "length", details: str = "") -> tuple[bytes, bytes]:
    """(as the engine sends it when usage is injected, as the client would have got it)"""
    sent, wanted, total = "", "", 0
    for place, number in enumerate(tokens):
        total += number
        last = place == len(tokens) - 1
        event = chunk(0, NASTY[place % len(NASTY)], reason if last else None)
        sent += f"data: {with_usage(event, total, details)}\n\n"
        wanted += f'data: {event[:-1]},"system_fingerprint":"vllm-x"}}\n\n' if last else f"data: {event}\n\n"
    sent += f"data: {FINAL % (7 + total, total)}\n\ndata: [DONE]\n\n"
    return sent.encode(), (wanted + "data: [DONE]\n\n").encode()


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=12),
    st.lists(st.integers(1, 300), max_size=40),
    st.sampled_from(
        [
            "",
            ',"completion_tokens_details":null',
            ',"completion_tokens_details":{"reasoning_tokens":3}',
            ',"prompt_tokens_details":{"cached_tokens":2,"more":{}},"completion_tokens_details":{"reasoning_tokens":3}',
        ]
    ),
)
def test_injected_usage_is_counted_and_taken_out_however_the_bytes_are_cut(
    tokens: list[int], cuts: list[int], details: str
) -> None:
    sent, wanted = stream(tokens, details=details)
    meter = OpenAIEvents(1, cut_chunks=True, cut_final=True, fingerprint=b',"system_fingerprint":"vllm-x"')
    got, start = b"", 0
    for size in [*cuts, len(sent)]:
        got += meter.feed(sent[start : start + size], False)
        start += size
    got += meter.feed(b"", True)
    assert got == wanted
    assert (meter.tokens, meter.exact, meter.ending, meter.prompt_tokens) == (sum(tokens), True, "length", 7)


def test_choices_are_told_apart() -> None:
    meter = OpenAIEvents(2, cut_chunks=True, cut_final=True)
    for choice, tokens, reason in [(0, 1, None), (1, 2, None), (0, 5, "stop"), (1, 7, "length")]:
        assert not meter.complete
        meter.feed(f"data: {with_usage(chunk(choice, 'x', reason), tokens)}\n\n".encode(), False)
    assert meter.complete and (meter.tokens, meter.by_choice, meter.ending, meter.longest) == (
        12,
        {0: 5, 1: 7},
        "length",
        7,
    )
    assert meter.feed(f"data: {FINAL % (19, 12)}\n\n".encode(), False) == b""
    assert meter.tokens == 12


@pytest.mark.parametrize(
    ("reason", "stop", "ending"),
    [
        ("stop", "null", "stop"),
        ("stop", '"###"', "stop_sequence"),
        ("stop", "42", "stop_sequence"),
        ("stop", "128009", "stop"),
        ("tool_calls", "null", "stop"),
        ("length", "null", "length"),
        ("repetition", "null", "stop_sequence"),
        ("abort", "null", "error"),
    ],
)
def test_endings_are_told_apart_streamed_and_whole(reason: str, stop: str, ending: str) -> None:
    event = chunk(0, "x", reason, stop)
    events = OpenAIEvents(1, frozenset({42}))
    events.feed(f"data: {event}\n\n".encode(), False)
    whole = Whole(1, frozenset({42}))
    whole.feed(event.encode(), True)
    assert events.ending == whole.ending == ending


def test_comments_and_done_pass_and_do_not_count() -> None:
    meter = OpenAIEvents(1)
    for text in (b": keep-alive\n\n", b"data: [DONE]\n\n"):
        assert meter.feed(text, False) == text
    assert meter.tokens == 0 and not meter.complete


def test_without_usage_the_count_is_a_lower_bound_and_says_so() -> None:
    meter = OpenAIEvents(1)
    for text in ("a", "b", "c"):
        meter.feed(f"data: {chunk(0, text, None)}\n\n".encode(), False)
    assert (meter.tokens, meter.exact) == (3, False)


def test_an_error_in_the_stream_is_an_error() -> None:
    meter = OpenAIEvents(1)
    meter.feed(b'data: {"error":{"message":"x"}}\n\n', False)
    assert meter.ending == "error"


def test_an_event_without_end_is_not_held_for_ever() -> None:
    meter = OpenAIEvents(1, cut_chunks=True)
    got = sum(len(meter.feed(b"x" * (1 << 20), False)) for _ in range(10))
    assert got >= 9 << 20


def test_responses_and_messages_streams() -> None:
    responses = ResponsesEvents(1)
    usage = {"input_tokens": 4, "output_tokens": 12, "output_tokens_details": {"output_tokens_per_turn": [12]}}
    for name, data in [
        ("response.output_text.delta", {"delta": "a"}),
        ("response.incomplete", {"response": {"status": "incomplete", "usage": usage}}),
    ]:
        text = f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
        assert responses.feed(text, False) == text
    assert (responses.tokens, responses.prompt_tokens, responses.ending, responses.exact) == (12, 4, "length", True)
    messages = MessagesEvents(1)
    events: list[tuple[str, Any]] = [
        ("message_start", {"message": {"usage": {"input_tokens": 3, "output_tokens": 0}}}),
        ("content_block_delta", {"delta": {"text": "a"}}),
        (
            "message_delta",
            {"delta": {"stop_reason": "stop_sequence"}, "usage": {"input_tokens": 3, "output_tokens": 9}},
        ),
    ]
    for name, data in events:
        messages.feed(f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode(), False)
    assert (messages.tokens, messages.prompt_tokens, messages.ending) == (9, 3, "stop_sequence")


@pytest.mark.parametrize(
    ("body", "tokens", "ending"),
    [
        ({"stop_reason": "max_tokens", "usage": {"input_tokens": 1, "output_tokens": 6}}, 6, "length"),
        ({"status": "completed", "usage": {"input_tokens": 1, "output_tokens": 6}, "user": None}, 6, "stop"),
        ({"status": "incomplete", "usage": {"input_tokens": 1, "output_tokens": 6}}, 6, "length"),
    ],
)
def test_whole_answers_of_the_newer_routes(body: dict[str, Any], tokens: int, ending: str) -> None:
    meter = Whole(1)
    text = json.dumps(body, separators=(",", ":")).encode()
    meter.feed(text[:20], False)
    meter.feed(text[20:], True)
    assert (meter.tokens, meter.ending) == (tokens, ending)


def test_fields_after_usage_stay() -> None:
    meter = OpenAIEvents(1, cut_chunks=True, cut_final=True)
    event = (
        with_usage(chunk(0, "x", None), 5, ',"prompt_tokens_details":{"cached_tokens":2}')[:-1]
        + ',"prompt_token_ids":[1]}'
    )
    got = meter.feed(f"data: {event}\n\n".encode(), False)
    assert json.loads(got[6:]) == {**json.loads(chunk(0, "x", None)), "prompt_token_ids": [1]}
    assert meter.tokens == 5
