"""`watch`: the same lines again and again in place; without a terminal, a line whenever what it does changes."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from trimtab.errors import ClusterUnavailable
from trimtab_operator.plugin.objects import Tuner, text
from trimtab_operator.plugin.show import doing
from trimtab_operator.plugin.terminal import Line, colourful, cursor, shown

#: home, and erase what the last look left below
_HOME, _REST = "\x1b[H", "\x1b[J"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?1049l\x1b[?25h"


def follow(
    look: Callable[[], list[Tuner]], draw: Callable[[list[Tuner]], Sequence[Line]], every: float,
    sleep: Callable[[float], None] = time.sleep,
) -> None:  # fmt: skip
    """Until Ctrl-C. An API server that is away for a while is told, and asked again."""
    live, page = cursor(), ""
    before: dict[str, str] = {}
    if live:
        sys.stdout.write(_ENTER)
    try:
        while True:
            found, trouble = _look(look)
            if live:
                page = page if trouble else shown(draw(found), colour=colourful())
                sys.stdout.write(_page(page, trouble, f"{_clock()}, every {every:g} s; Ctrl-C ends"))
            else:
                _tell(found, trouble, before)
            sys.stdout.flush()
            sleep(every)
    except KeyboardInterrupt:
        return
    finally:
        if live:
            sys.stdout.write(_LEAVE)


def _look(look: Callable[[], list[Tuner]]) -> tuple[list[Tuner], str]:
    """Tuners, or why they are not seen."""
    try:
        return look(), ""
    except ClusterUnavailable as error:
        return [], text(error)


def _page(page: str, trouble: str, foot: str) -> str:
    """What is known last, cut to the window's height (more would scroll it away); under it what went wrong."""
    rows = page.split("\n") if page else []
    notes = [f"Not seen now, this is older: {trouble}" if page else trouble] if trouble else []
    room = shutil.get_terminal_size().lines - 2 - len(notes)
    if len(rows) > room:
        rows = [*rows[: room - 1], f"... {len(rows) - room + 1} more lines; make the window higher"]
    return _HOME + "\x1b[K\n".join([*rows, *notes, "", foot]) + f"\x1b[K{_REST}"


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
