"""One place of the target: the process that has it now, and how it looks to the state machine."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.judge.guardrail import PodHealth
from trimtab.plan.record import PodView
from trimtab.tune.process import Child


@dataclass
class Replica:
    """One place. `name` changes with each start, so that metrics of two processes are never taken for one."""

    slot: int
    template: Mapping[str, Any]
    candidate: bool = False
    child: Child | None = None
    port: int = 0
    starts: int = 0
    ready: bool = False
    was_ready: bool = False
    failed_starts: int = 0
    draining: bool = False
    #: health checks in a row without an answer
    missed: int = 0

    @property
    def name(self) -> str:
        return f"replica-{self.slot}-{self.starts}"

    @property
    def dead(self) -> bool:
        return self.child is not None and self.child.exit_code is not None

    def pod(self) -> PodView:
        """As the state machine wants it. An engine that ends by itself is an error, whatever its code."""
        code = self.child.exit_code if self.child is not None else None
        health = PodHealth(
            ready=self.ready,
            restarts=0,
            waiting_reason=None,
            terminated_reason=None if code is None else "Error",
            exit_code=code,
            age_seconds=self.child.age_seconds if self.child is not None else 0.0,
            last_log=self.child.tail() if self.dead and self.child is not None else "",
        )
        return PodView(self.name, "127.0.0.1", health, place=f"slot-{self.slot}")


def free_port() -> int:
    """A loopback port free now. Hazard: someone else may take it before the engine does; then the start fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
