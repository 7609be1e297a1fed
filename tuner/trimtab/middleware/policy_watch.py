"""The policy in effect: re-stats the file at most every RESTAT_SECONDS, keeps the last good policy, never raises.

No thread: any HTTP request that passes (a scrape or a probe is enough) looks. A ConfigMap volume swaps a symlink, so
the file's identity changes as a whole; an editor that writes in place is seen by size and time, and a half-written file
is a bad one until the next look.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from .guard import log
from .policy_file import MAX_FILE_BYTES, Policy, parse
from .table import FieldError

RESTAT_SECONDS = 0.2


class Watch:
    """`policy` is always usable; `poll(now)` is true when it changed; `problem`: what is wrong with the file."""

    def __init__(self, path: str | None, on_bad: Callable[[str], None]) -> None:
        self.path = path
        self.policy = Policy()
        self.problem = ""
        self._on_bad = on_bad
        self._next = float("-inf")
        self._seen: Any = ()
        self._looked = False

    def poll(self, now: float) -> bool:
        """Look if it is time. `now`: monotonic seconds."""
        if now < self._next or not self.path:
            return False
        self._next = now + RESTAT_SECONDS
        identity = _identity(self.path)
        if self._looked and identity == self._seen:
            return False
        self._looked, self._seen = True, identity
        return self._read(self.path)

    def _read(self, path: str) -> bool:
        try:
            policy = parse(_bytes(path))
        except OSError as error:
            self._bad(
                f"{path} cannot be read ({error.strerror or error}); mount the ConfigMap or unset TRIMTAB_POLICY_FILE"
            )
            return False
        except FieldError as error:
            self._bad(f"{path}: {error}")
            return False
        self.problem = ""
        changed = policy.digest != self.policy.digest
        self.policy = policy
        return changed

    def _bad(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("trimtab: policy not taken, generation %d stays: %s", self.policy.generation, problem)
        self.problem = problem
        self._on_bad(problem)


def _identity(path: str) -> Any:
    try:
        stat = os.stat(path)  # noqa: PTH116  (on the path of requests: half the cost of Path.stat)
    except OSError as error:
        return error.errno
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size


def _bytes(path: str) -> bytes:
    """At most one byte more than a policy may have: a huge file is refused by `parse` without being read whole."""
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read(MAX_FILE_BYTES + 1)
