"""Events are counted rightly however the bytes are cut."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from trimtab.load.stream import StreamReader


def encoded(texts: list[str], spaced: bool, reason: str) -> bytes:
    out = b": keep-alive\n\n"
    for number, text in enumerate(texts, start=1):
        choice = {"index": 0, "text": text, "finish_reason": reason if number == len(texts) else None}
        separators = (", ", ": ") if spaced else (",", ":")
        out += (
            b"data: " + json.dumps({"choices": [choice]}, ensure_ascii=False, separators=separators).encode() + b"\n\n"
        )
    return out + b"data: [DONE]\n\n"


@given(
    st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=8),
    st.booleans(),
    st.lists(st.integers(1, 30), max_size=60),
)
def test_every_cut_of_the_bytes_gives_the_same_count(texts: list[str], spaced: bool, cuts: list[int]) -> None:
    data, reader, new = encoded(texts, spaced, "length"), StreamReader(), 0
    for size in cuts:
        piece, data = data[:size], data[size:]
        new += reader.feed(piece)
    new += reader.feed(data)
    assert new == reader.tokens == len(texts)
    assert reader.finish_reason == "length" and reader.done and reader.error is None


def test_an_abort_brings_no_token() -> None:
    reader = StreamReader()
    reader.feed(encoded(["a", "b", ""], False, "abort"))
    assert (reader.tokens, reader.finish_reason) == (2, "abort")


def test_usage_is_taken_and_is_no_token() -> None:
    reader = StreamReader()
    reader.feed(b'data: {"choices":[],"usage":{"completion_tokens":17}}\r\n\r\ndata: [DONE]\r\n')
    assert (reader.tokens, reader.usage_tokens, reader.done) == (0, 17, True)


def test_garbage_and_errors_are_remembered() -> None:
    for line in (b"data: {broken\n", b'data: {"error":{"message":"no"}}\n', b"data: 3\n"):
        reader = StreamReader()
        reader.feed(line)
        assert reader.error
