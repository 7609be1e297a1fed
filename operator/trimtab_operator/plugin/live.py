"""`watch`: the same lines again and again in place; without a terminal, a line whenever what it does changes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from trimtab.errors import ClusterUnavailable
from trimtab_operator.plugin.objects import Tuner, text
from trimtab_operator.plugin.show import doing
from trimtab_operator.plugin.terminal import Line, colourful, shown

#: home, and erase what the last look left below
_HOME, _REST = "\x1b[H", "\x1b[J"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?1049l\x1b[?25h"


def follow(
    look: Callable[[], list[Tuner]], draw: Callable[[list[Tuner]], Sequence[Line]], every: float,
    sleep: Callable[[float], None] = time.sleep,
) -> None:  # fmt: skip
    """Until Ctrl-C. An API server that is away for a while is told, and asked again."""
    live = colourful()
    before: dict[str, str] = {}
    if live:
        sys.stdout.write(_ENTER)
    try:
        while True:
            try:
                found, trouble = look(), ""
            except ClusterUnavailable as error:
                found, trouble = [], text(error)
            if live:
                page = trouble or shown(draw(found), colour=True).replace("\n", "\x1b[K\n")
                sys.stdout.write(f"{_HOME}{page}\x1b[K\n\n{_clock()}, every {every:g} s; Ctrl-C ends\x1b[K{_REST}")
            else:
                _tell(found, trouble, before)
            sys.stdout.flush()
            sleep(every)
    except KeyboardInterrupt:
        return
    finally:
        if live:
            sys.stdout.write(_LEAVE)


def _tell(found: Sequence[Tuner], trouble: str, before: dict[str, str]) -> None:
    now = time.time()
    said = {f"{t.namespace}/{t.name}": f"{t.phase}  {_steady(t, now)}" for t in found} if not trouble else {"": trouble}
    for name, words in said.items():
        if before.get(name) != words:
            print(f"{_clock()}  {name}  {words}")
    before.update(said)


def _steady(tuner: Tuner, now: float) -> str:
    """Without the age, which changes with every look."""
    active = tuner.active
    return doing(tuner, now) if active is None else f"{active.name} {active.phase}: {active.message or active.settings}"


def _clock() -> str:
    return datetime.now(UTC).strftime("%H:%M:%SZ")
