"""--override-generation-config: a limit under a name that is ignored, and the limit that cuts without a word.

Seen on vLLM 0.32: a request with max_tokens 400 got 200 under {"max_new_tokens": 200}; {"max_tokens": N} changed
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trimtab.engine.flags import Flag
from trimtab.engine.settings import SETTINGS
from trimtab.engine.values import KEY, members
from trimtab.lint.finding import Hit, Options
from trimtab.lint.target import Target

_FLAG = SETTINGS[KEY].flag
#: names that requests use for the limit; none of them is a field of the generation config
_IGNORED = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def _entries(target: Target) -> Iterator[tuple[Flag, str, Any]]:
    """What counts: flag, key, value."""
    for flag in target.flags:
        if flag.name != _FLAG or not flag.wins or flag.value is None:
            continue
        if flag.path:
            yield flag, flag.path, flag.value
            continue
        try:
            found = members(flag.value)
        except ValueError:
            continue
        yield from ((flag, m.key, m.value) for m in found)


def ignored(target: Target, options: Options) -> Iterator[Hit]:
    for flag, key, _ in _entries(target):
        if key in _IGNORED:
            yield target.at(flag, f"{_FLAG} ignores {key}: outputs are not limited.")


def silent_cap(target: Target, options: Options) -> Iterator[Hit]:
    for flag, key, value in _entries(target):
        if key == KEY and value is not None:
            yield target.at(
                flag, f"{KEY} {str(value)[:20]} also cuts requests that ask for more, and they are not told."
            )
