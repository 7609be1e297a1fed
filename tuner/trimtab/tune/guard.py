"""What surrounds a run: one run per state file, signals that ask it to end, and its log. Knows POSIX only."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from trimtab.errors import InputError


@contextlib.contextmanager
def locked(state: Path) -> Iterator[None]:
    """One run per state file; the kernel gives the lock back, whatever ends us."""
    try:
        state.parent.mkdir(parents=True, exist_ok=True)
        file = state.with_suffix(".lock").open("w")
    except OSError as error:
        raise InputError("--state", f"{state} cannot be written ({error.strerror})", "Name another file.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError("--state", f"{state} is used by a run in progress", "Name another file.") from error
        yield


@contextlib.contextmanager
def signals() -> Iterator[asyncio.Event]:
    """The event is set by the first signal; later ones change nothing, so that the ending is not cut."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    try:
        for number in numbers:
            loop.add_signal_handler(number, stop.set)
    except (RuntimeError, ValueError):  # not the main thread (embedding): then only the caller can end the run
        yield stop
        return
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def log_to_file(folder: Path) -> None:
    """Our own log goes beside the engines' logs: on a terminal it would tear the display."""
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / "tune.log", encoding="utf-8")
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root = logging.getLogger("trimtab")
    root.addHandler(handler)
    root.setLevel(logging.INFO)
