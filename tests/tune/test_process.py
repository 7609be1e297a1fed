"""A child process: its end takes everything with it, and only what is ours is ended."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.errors import InputError
from trimtab.tune.process import Child, Identity, end_leftover, identity_of

Alive = Callable[[Identity], bool]
#: starts a child of its own, prints its pid, ignores SIGTERM
STUBBORN = (
    "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
)


async def started(tmp_path: Path, code: str) -> Child:
    return await Child.start([sys.executable, "-c", code], tmp_path / "log")


async def test_the_end_takes_the_whole_group(tmp_path: Path, alive: Alive) -> None:
    child = await started(tmp_path, STUBBORN)
    for _ in range(100):
        if child.tail().strip():
            break
        await asyncio.sleep(0.05)
    grandchild = identity_of(int(child.tail()))
    assert grandchild is not None and alive(child.identity)
    await child.stop(0.3)
    assert child.exit_code == -9
    await asyncio.sleep(0.1)
    assert not alive(child.identity) and not alive(grandchild)


async def test_exit_code_and_last_words(tmp_path: Path) -> None:
    child = await started(tmp_path, "import sys; print('last words'); sys.exit(3)")
    assert await child.wait() == 3
    assert "last words" in child.tail()
    await child.stop(1)


async def test_a_program_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no-such-program"):
        await Child.start(["no-such-program"], tmp_path / "log")


async def test_a_reused_pid_is_left_alone(tmp_path: Path, alive: Alive) -> None:
    child = await started(tmp_path, "import time; time.sleep(60)")
    assert not end_leftover(Identity(child.identity.pid, "another time"))
    assert alive(child.identity)
    assert await asyncio.to_thread(end_leftover, child.identity)
    await asyncio.wait_for(child.wait(), 5)
    assert not end_leftover(child.identity)


def test_identity_of_nobody() -> None:
    assert identity_of(2**22 + 1) is None
    mine = identity_of(os.getpid())
    assert mine is not None and mine == identity_of(os.getpid())
