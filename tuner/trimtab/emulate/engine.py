"""Drives the simulator's scheduler in real time: step, sleep the modelled duration, hand out the tokens.

One asyncio task per engine; everything runs on one event loop, so no locks. A step that ends late (busy CPU) is
followed by earlier ones until the lag is caught up, within `MAX_LAG_SECONDS`. With asynchronous scheduling (vLLM's
default) a step hands out the tokens of the batch that was decided one step earlier, as `simulate` does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from trimtab.emulate.faults import FaultBoard
from trimtab.emulate.ledger import Ledger
from trimtab.emulate.live import EndReason, EngineObserver, LiveRequest

if TYPE_CHECKING:  # at run time it comes with the compiled code, after the flags were read
    from trimtab.simulate.stepper import Stepper

#: how far behind the modelled time the engine may be and still catch up; beyond it the lost time is dropped
MAX_LAG_SECONDS: Final = 0.25


class EngineStopped(Exception):
    """The engine takes no new work: it drains, has stopped or died. The server answers 500, as vLLM does."""


class EngineDied(Exception):
    """Asked for by the fault `engine_dead`."""


class Engine:
    """Requests in, tokens out. `speedup` divides every modelled duration; `block_size` is for blocks that leak."""

    def __init__(
        self,
        stepper: Stepper,
        observer: EngineObserver,
        *,
        speedup: float = 1.0,
        board: FaultBoard | None = None,
        block_size: int = 16,
        seed: int = 0,
    ) -> None:
        self._stepper, self._observer, self._speedup, self._block_size = stepper, observer, speedup, block_size
        self._board = board or FaultBoard()
        self._draws = random.Random(f"{seed}:leaks")
        self._ledger = Ledger(stepper, observer, self._gone)
        self._wake = asyncio.Event()
        self._board.listen(self._wake.set)
        self._empty = asyncio.Event()
        self._empty.set()
        self.accepting = True
        #: set when the stepping task failed: a defect of the model or a fault; /health says so as vLLM's does
        self.dead = asyncio.Event()

    @property
    def unfinished_count(self) -> int:
        return len(self._ledger.live)

    @property
    def kv_usage(self) -> float:
        """Share of the usable blocks that requests hold, or that leaked."""
        return self._stepper.kv_usage

    def prefilling_tokens(self) -> int:
        """Prompt tokens of requests without a first token, for --max-num-queued-tokens."""
        return sum(live.prompt_tokens for live in self._ledger.live.values() if live.first_token_at is None)

    def submit(
        self, prompt_tokens: int, output_tokens: int, max_tokens: int, *, priority: int = 0, prefix: Sequence[int] = ()
    ) -> LiveRequest:
        """Queue a request; `output_tokens` is where the model stops by itself, `prefix` names its prompt's full blocks.

        EngineStopped when draining or dead, InputError when the scheduler refuses it.
        """
        if not self.accepting:
            raise EngineStopped("the engine is shutting down")
        number = self._stepper.add(prompt_tokens, output_tokens, max_tokens, priority=priority, prefix=prefix)
        live = LiveRequest(number, prompt_tokens, max_tokens, asyncio.get_running_loop().time())
        self._ledger.live[number] = live
        self._empty.clear()
        self._wake.set()
        return live

    def abandon(self, live: LiveRequest) -> None:
        """The client went away: nothing is counted from now on, blocks are freed at the next step."""
        if self._ledger.abandon(live):
            self._wake.set()

    def abort_all(self, reason: EndReason = "abort") -> None:
        """End everything in flight; `abort` is counted as such."""
        self._ledger.end_all(reason, asyncio.get_running_loop().time())
        self._wake.set()

    async def drain(self, timeout_seconds: float) -> None:
        """Refuse new work, let what is in flight finish for `timeout_seconds`, abort the rest."""
        self.accepting = False
        if timeout_seconds > 0 and self._ledger.live:
            try:
                await asyncio.wait_for(self._empty.wait(), timeout_seconds)
            except TimeoutError:
                self.abort_all()
        self.abort_all()

    async def run(self) -> None:
        """Step for ever; cancel the task to stop. A failure ends every request with `error` and is raised."""
        try:
            await self._step_for_ever()
        except Exception:
            self.accepting = False
            self.dead.set()
            self.abort_all("error")
            raise

    async def _step_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            self._wake.clear()
            if self._board.now.engine_dead:
                raise EngineDied("the engine core was told to die")
            if self._board.now.hang:
                await self._wake.wait()
                due = loop.time()
                continue
            step = self._stepper.step()
            started = loop.time()
            self._ledger.started(step, started)
            if step.idle:
                self._observer.set_gauges(self._stepper)
                await self._wake.wait()
                due = loop.time()
                continue
            due = max(due, started - MAX_LAG_SECONDS) + step.seconds * self._board.now.slowdown / self._speedup
            await asyncio.sleep(max(0.0, due - started))
            self._ledger.ended(step, loop.time())

    def _gone(self, live: LiveRequest) -> None:
        share = self._board.now.leak_share
        if share and self._draws.random() < share:
            self._stepper.lose_blocks(-(-(live.prompt_tokens + live.tokens) // self._block_size))
        if len(self._ledger.live) == 1:
            self._empty.set()
