"""The life of a look-alike process: load, serve, drain on SIGTERM, exit 0; or fail to start as a real engine would."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from prometheus_client import REGISTRY

from trimtab.emulate.environment import CrashRule, Emulation, read_emulation
from trimtab.emulate.flags import ServerFlags, StartupError, parse_flags
from trimtab.emulate.hosting import WebServer, bound_socket, load_middleware
from trimtab.emulate.server import EmulatedServer

if TYPE_CHECKING:
    from trimtab.simulate.stepper import Stepper

#: vLLM looks for a dead engine this often (VLLM_WATCHDOG_TIME_S), then its server ends
WATCHDOG_SECONDS: Final = 5.0
#: cached machine code is loaded within a second of processor time; compiling takes 15
LONG_START_SECONDS: Final = 3.0


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
    with contextlib.closing(bound_socket(flags.host, flags.port)) as sock:
        stepper = await _load(flags, emulation, stop)
        if stepper is None:
            return
        middleware = () if emulation.ignore_middleware else load_middleware(flags.middleware)
        emulated = EmulatedServer(flags, emulation, stepper, registry=REGISTRY, middleware=middleware)
        server = WebServer(emulated.app)
        _log("INFO", f"Starting vLLM server on http://{flags.host}:{flags.port}")
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        ends = [asyncio.create_task(stop.wait()), asyncio.create_task(_watchdog(emulated)), serving]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            _log("INFO", f"Shutting down, draining for up to {flags.shutdown_timeout_seconds:g} s")
            await emulated.engine.drain(flags.shutdown_timeout_seconds)
        server.should_exit = True
        await serving


async def _watchdog(emulated: EmulatedServer) -> None:
    await emulated.engine.dead.wait()
    await asyncio.sleep(WATCHDOG_SECONDS)
    _log("ERROR", "EngineCore encountered an issue. See stack trace (above) for the root cause.")


async def _load(flags: ServerFlags, emulation: Emulation, stop: asyncio.Event) -> Stepper | None:
    """Take the load time; the compiled scheduler is loaded meanwhile. None when told to stop."""
    _log("INFO", f"Loading {flags.model} for {emulation.start_seconds:g} s")
    ready_at = asyncio.get_running_loop().time() + emulation.start_seconds
    if emulation.crash_if is not None and emulation.crash_if.holds(flags.values):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), emulation.start_seconds)
        raise _out_of_memory(emulation.crash_if)
    loading = asyncio.create_task(asyncio.to_thread(_warm_stepper, flags, emulation))
    stopping = asyncio.create_task(stop.wait())
    ends = [loading, stopping]
    try:
        done, _ = await asyncio.wait(ends, timeout=LONG_START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            _log("INFO", "Still loading the scheduler: where no cache has its machine code it is compiled, once")
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([stopping], timeout=max(0.0, ready_at - asyncio.get_running_loop().time()))
    finally:
        stopping.cancel()
    return None if stop.is_set() else await loading


def _out_of_memory(rule: CrashRule) -> StartupError:
    return StartupError(
        f"CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which "
        f"1.12 GiB is free. (emulated: {rule.flag} {rule.operator} {rule.limit})",
        hint="Lower max_num_seqs, max_num_batched_tokens or gpu_memory_utilization.",
    )


def _warm_stepper(flags: ServerFlags, emulation: Emulation) -> Stepper:
    """An empty scheduler whose code is in memory. Its import is what takes time: half a second, cached."""
    from trimtab.simulate.stepper import Stepper

    Stepper(flags.limits, emulation.times).step()
    return Stepper(flags.limits, emulation.times)


def _log(level: str, message: str) -> None:
    print(f"{level} [emulate] {message}", file=sys.stderr, flush=True)
