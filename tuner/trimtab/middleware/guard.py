"""Fail open: a fault of the middleware's own is counted, logged once per hook and kind, and swallowed.

Use only around code of this package, never around the engine's app or the server's send and receive: their errors are
theirs and must travel on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType

log = logging.getLogger("trimtab_mw")
#: so that a fault with an ever new message cannot fill the log
MOST_LINES = 50


class Hook:
    """`with hook:` swallows any Exception of the block. Cancellation and exit pass: they are no Exception."""

    def __init__(self, name: str, fault: Callable[[str, BaseException], None]) -> None:
        self._name, self._fault = name, fault

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        self._fault(self._name, error)
        return True


class Guard:
    """Counts and logs faults; `guard(name)` gives the hook of that name."""

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        self._hooks: dict[str, Hook] = {}
        self._logged: set[tuple[str, str]] = set()

    def __call__(self, name: str) -> Hook:
        hook = self._hooks.get(name)
        if hook is None:
            hook = self._hooks[name] = Hook(name, self.fault)
        return hook

    def fault(self, name: str, error: BaseException) -> None:
        self._count(name)
        kind = (name, type(error).__name__)
        if kind not in self._logged and len(self._logged) < MOST_LINES:
            self._logged.add(kind)
            log.error("trimtab: fault in %s, the request passes untouched (logged once)", name, exc_info=error)
