"""Text of others is shown, never interpreted: no escapes, no hidden characters, no end in sight is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.text import plain, whole_number


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain words", "plain words"),
        ("a\x1b[31mred\x1b[0m b", "ared b"),
        ("title\x1b]0;owned\x07 end", "title end"),
        ("two\r\nlines\tand\x00nul", "two lines and nul"),
        ("user\u202egnp.exe", "user gnp.exe"),
        ("zero\u200bwidth", "zero width"),
        ("\x9b2Jgone", "gone"),
        ("caf\u00e9 \U0001f600", "caf\u00e9 \U0001f600"),
        ("half \ud800 pair", "half pair"),
    ],
)
def test_what_is_hidden_is_not_shown(text: str, shown: str) -> None:
    assert plain(text, 100) == shown


def test_a_text_without_end_is_cut_and_lines_may_stay() -> None:
    assert plain("x" * 10_000_000, 20) == "x" * 17 + "..."
    assert plain("one\ntwo\x1b[2J\r", 100, lines=True) == "one\ntwo "


@given(st.text(max_size=300), st.integers(10, 200))
def test_any_text_comes_out_printable_and_bounded(text: str, limit: int) -> None:
    shown = plain(text, limit)
    assert len(shown) <= limit and "\x1b" not in shown and "\n" not in shown
    shown.encode()  # no half of a pair
    assert plain(shown, limit) == shown


@given(st.one_of(st.text(max_size=30), st.integers(0, 10**17).map(str), st.just("9" * 5000), st.sampled_from("²٣½①")))
def test_any_text_is_a_whole_number_or_none(text: str) -> None:
    """`"²".isdigit()` is true, and int() refuses it; int() takes "٣", which no manifest means."""
    number = whole_number(text)
    assert (number is None) != (text.isascii() and text.isdigit() and len(text) <= 18)
    assert number is None or number == int(text)
