"""The operator as a process that a test starts by fork and that ends itself at a chosen write.

Forked from a server that has imported everything, so that a start costs no seconds. Its clock for trials may run
faster than the world's; the lease keeps true time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from kill_points import Doomed

#: seconds between looks, in true time: the clock runs fast
TICK: Final = 0.3


@dataclass(frozen=True)
class Run:
    """One life of the operator. kill: (number of the write, "before" or "after"), (0, "") for none. began: when the
    world began, for the fast clock; haste: its speed.
    """

    kubeconfig: Path
    namespace: str
    folder: Path
    kill: tuple[int, str] = (0, "")
    began: float = 0.0
    haste: float = 1.0
    #: the holder of the lease: the same name is the same pod, started again
    holder: str = "operator-under-test"

    def now(self) -> float:
        return self.began + self.haste * (time.time() - self.began) if self.haste != 1.0 else time.time()

    def writes(self) -> list[str]:
        """Names of the writes of all lives of this folder, oldest first."""
        path = self.folder / "writes"
        return path.read_text().splitlines() if path.exists() else []

    def start(self) -> ForkServerProcess:
        process = _context().Process(target=live, args=(self,), daemon=True)
        process.start()
        return process


@lru_cache(maxsize=1)
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["operator_child", "trimtab_operator.app", "kopf._core.reactor.running"])
    return context


def live(run: Run) -> None:
    """The child's whole life: `trimtab-operator run`, with a `Cluster` that counts its writes."""
    from trimtab_operator import app, reconcile
    from trimtab_operator.cluster import Cluster
    from trimtab_operator.lease import Lease
    from trimtab_operator.main import app as command

    log = (run.folder / "operator.log").open("a")
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    os.environ |= {"KUBECONFIG": str(run.kubeconfig), "POD_NAME": run.holder}
    writes = (run.folder / "writes").open("a")

    def note(name: str) -> None:
        writes.write(f"{name}\n")
        writes.flush()

    def connect() -> Any:
        return Doomed(Cluster.connect(), *run.kill, lambda: os.kill(os.getpid(), signal.SIGKILL), note)

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
