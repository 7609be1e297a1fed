"""The life of a look-alike process: load, serve, drain on SIGTERM, exit 0; or fail to start as a real engine would."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from aiohttp import web

from trimtab.emulate.environment import Emulation, read_emulation
from trimtab.emulate.flags import ServerFlags, StartupError, parse_flags
from trimtab.emulate.server import EmulatedServer

#: how long cleanup waits for handlers to write their last bytes after the engine has ended every request
CLOSE_SECONDS = 2.0
#: vLLM's VLLM_HTTP_TIMEOUT_KEEP_ALIVE
KEEP_ALIVE_SECONDS = 5.0


def serve(args: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
    """Run until SIGTERM or SIGINT. StartupError: the engine would not start; InputError: a bad EMULATE_ variable."""
    emulation = read_emulation(os.environ if environ is None else environ)
    flags = parse_flags(args)
    for name in flags.ignored:
        _log("WARNING", f"--{name.replace('_', '-')} is accepted but not emulated")
    if emulation.crash_if is not None:
        emulation.crash_if.holds(flags.values)  # a wrong name should not wait for the load time
    asyncio.run(_live(flags, emulation))


async def _live(flags: ServerFlags, emulation: Emulation) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if await _load(flags, emulation, stop):
        return
    server = EmulatedServer(flags, emulation)
    runner = web.AppRunner(
        server.app,
        keepalive_timeout=KEEP_ALIVE_SECONDS,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=CLOSE_SECONDS,
        handle_signals=False,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, flags.host, flags.port, backlog=1024).start()
        _log("INFO", f"Starting vLLM API server on http://{flags.host}:{flags.port}")
        await stop.wait()
        _log("INFO", f"Shutting down, draining for up to {flags.shutdown_timeout_seconds:g} s")
        await server.engine.drain(flags.shutdown_timeout_seconds)
    finally:
        await runner.cleanup()


async def _load(flags: ServerFlags, emulation: Emulation, stop: asyncio.Event) -> bool:
    """Take the load time. True when told to stop meanwhile."""
    _log("INFO", f"Loading {flags.model} for {emulation.start_seconds:g} s")
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), emulation.start_seconds)
    rule = emulation.crash_if
    if rule is not None and rule.holds(flags.values):
        raise StartupError(
            f"CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which "
            f"1.12 GiB is free. (emulated: {rule.flag} {rule.operator} {rule.limit})",
            hint="Lower max_num_seqs, max_num_batched_tokens or gpu_memory_utilization.",
        )
    return stop.is_set()


def _log(level: str, message: str) -> None:
    print(f"{level} [emulate] {message}", file=sys.stderr, flush=True)
