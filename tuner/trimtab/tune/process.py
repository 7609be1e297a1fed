"""One child process: its own session, its output in a file, an identity that survives us, an end that leaves nothing.

Hazard: a pid is reused; a process is ours only if its start time is the recorded one, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trimtab.errors import InputError

#: seconds between looks at a process that is to end
_POLL_SECONDS: Final = 0.05
_TAIL_BYTES: Final = 4096


@dataclass(frozen=True)
class Identity:
    """`started`: the kernel's start time of the process, as text to compare."""

    pid: int
    started: str


def identity_of(pid: int) -> Identity | None:
    """None when there is no such process (a zombie counts as none)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _identity_by_ps(pid) if not Path("/proc/self/stat").exists() else None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[0] == "Z" else Identity(pid, fields[19])


def _identity_by_ps(pid: int) -> Identity | None:
    """Systems without /proc (macOS)."""
    done = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = done.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else Identity(pid, started.strip())


class Child:
    """A started command. Not restartable: make a new one."""

    def __init__(self, process: asyncio.subprocess.Process, identity: Identity, log: Path, clock: float) -> None:
        self._process, self.identity, self.log, self._began = process, identity, log, clock

    @classmethod
    async def start(cls, argv: Sequence[str], log: Path, environ: Mapping[str, str] | None = None) -> Child:
        """Output is appended to `log`. InputError when the program cannot be run."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            try:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=out,
                    stderr=asyncio.subprocess.STDOUT,
                    env=dict(os.environ if environ is None else environ),
                    start_new_session=True,
                )
            except OSError as error:
                text = f"{argv[0]!r} cannot be run ({error.strerror})"
                raise InputError("command", text, "Check that it is installed and on the PATH.") from error
        identity = identity_of(process.pid) or Identity(process.pid, "")
        return cls(process, identity, log, time.monotonic())

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative is minus the signal that ended it."""
        return self._process.returncode

    @property
    def age_seconds(self) -> float:
        return time.monotonic() - self._began

    async def wait(self) -> int:
        """The exit code, once it has ended by itself or by `stop`."""
        return await self._process.wait()

    def tail(self) -> str:
        """The last words of its output."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                return file.read().decode("utf-8", errors="replace")
        except OSError:
            return ""

    async def stop(self, grace_seconds: float) -> None:
        """SIGTERM, wait, SIGKILL; then whatever is left of its process group. Returns when it is gone."""
        if self.exit_code is None:
            _signal_group(self.identity.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), grace_seconds)
        self.kill()
        await self._process.wait()

    def kill(self) -> None:
        """The whole process group, at once. Safe to call twice: the group's id is not reused while a member lives."""
        _signal_group(self.identity.pid, signal.SIGKILL)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def end_leftover(identity: Identity, grace_seconds: float = 5.0) -> bool:
    """End a process that a killed run left behind, if it is still that process. Blocking. Whether it was there."""
    if identity_of(identity.pid) != identity:
        return False
    _signal_group(identity.pid, signal.SIGTERM)
    until = time.monotonic() + grace_seconds
    while time.monotonic() < until and identity_of(identity.pid) == identity:
        time.sleep(_POLL_SECONDS)
    _signal_group(identity.pid, signal.SIGKILL)
    return True
