"""The operator as a process that a test starts by fork and that ends itself at a chosen write.

Forked from a server that has imported everything, so that a start costs no seconds. Its clock for trials may run
faster than the world's; the lease keeps true time.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from kill_points import Doomed

#: seconds between looks, in true time: the clock runs fast
TICK: Final = 0.3
#: a life that lasts longer says in its log where each thread is
_LONG_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Run:
    """One life of the operator. kill: (number of the write, "before" or "after"), (0, "") for none; named: the same by
    name and number of that name. began: when the world began, for the fast clock; haste: its speed.
    """

    kubeconfig: Path
    namespace: str
    folder: Path
    kill: tuple[int, str] = (0, "")
    named: Mapping[tuple[str, int], str] = field(default_factory=dict)
    began: float = 0.0
    haste: float = 1.0
    #: the holder of the lease: the same name is the same pod, started again
    holder: str = "operator-under-test"

    def clock(self, seconds: float) -> float:
        """The trial's time at a true time, both in unix seconds."""
        return self.began + self.haste * (seconds - self.began)

    def now(self) -> float:
        return self.clock(time.time())

    @property
    def search_dies(self) -> Path:
        """While this file is there, each process of the search is killed at its start."""
        return self.folder / "search-dies"

    def writes(self) -> list[str]:
        """Names of the writes of all lives of this folder, oldest first."""
        path = self.folder / "writes"
        return path.read_text().splitlines() if path.exists() else []

    def start(self) -> ForkServerProcess:
        process = _context().Process(target=live, args=(self,), daemon=True)
        process.start()
        # else each start in another thread polls this one, too, and of two who do one reads no exit status (255)
        multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
        return process


@lru_cache(maxsize=1)
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["operator_child", "trimtab_operator.app", "trimtab_operator.main", "kopf._core.reactor.running"]
    )
    return context


def live(run: Run) -> None:
    """The child's whole life: `trimtab-operator run`, with a `Cluster` that counts its writes."""
    from trimtab.tune import apart
    from trimtab_operator import app, reconcile
    from trimtab_operator.cluster import Cluster
    from trimtab_operator.lease import Lease
    from trimtab_operator.main import app as command
    from trimtab_operator.records import rfc3339, unix

    log = (run.folder / "operator.log").open("a")
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    faulthandler.dump_traceback_later(_LONG_SECONDS, file=log)
    os.environ |= {"KUBECONFIG": str(run.kubeconfig), "POD_NAME": run.holder}
    writes = (run.folder / "writes").open("a")

    def note(name: str) -> None:
        writes.write(f"{name}\n")
        writes.flush()

    class OnTheClock(Cluster):
        """A trial's creation is told in the trial's time, as everything else of it."""

        def _call(self, method: str, path: str, **rest: Any) -> Any:
            answer = super()._call(method, path, **rest)
            for meta in (o.get("metadata", {}) for o in answer.get("items") or [answer] if "/tuningtrials" in path):
                if created := meta.get("creationTimestamp"):
                    meta["creationTimestamp"] = rfc3339(run.clock(unix(created)))
            return answer

    def connect() -> Any:
        die = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
        return Doomed(OnTheClock.connect(), *run.kill, die, note, run.named)

    dies = f"import os; os.path.exists({str(run.search_dies)!r}) and os.kill(os.getpid(), {int(signal.SIGKILL)})"
    child: Any = apart
    child._CHILD = f"{dies}; {apart._CHILD}"
    replaced: Any = app
    replaced.Cluster = SimpleNamespace(connect=connect)
    if run.haste != 1.0:
        replaced.time = SimpleNamespace(time=run.now, sleep=time.sleep, monotonic=time.monotonic)
        replaced.Lease = lambda cluster, namespace, name, _: Lease(cluster, namespace, name, time.time)
        ticks: Any = reconcile
        ticks.TRIAL_TICK = ticks.IDLE_TICK = ticks.BLOCKED_TICK = TICK
    command(
        ["run", "-n", run.namespace, "--lease-namespace", run.namespace, "--data-dir", str(run.folder / "data"),
         "--health-port=0", "--metrics-port=0"]
    )  # fmt: skip
