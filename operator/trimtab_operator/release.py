"""Before an uninstall: suspend tuners whose trial is in flight and wait for their rollbacks. The running operator
does the work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from trimtab.errors import TargetConflict
from trimtab_operator.cluster import Cluster
from trimtab_operator.records import record_of

_log = logging.getLogger(__name__)


def release_all(
    cluster: Cluster,
    namespaces: Sequence[str],
    timeout_seconds: float,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
) -> list[str]:
    """Names (namespace/trial) of what is still in flight when time is up; empty when all is rolled back."""
    end = monotonic() + timeout_seconds
    while True:
        left: list[str] = []
        scopes: list[str | None] = [*namespaces] or [None]
        for scope in scopes:
            for trial in cluster.list("TuningTrial", scope):
                if not record_of(trial).ended:
                    left.append(f"{trial['metadata']['namespace']}/{trial['metadata']['name']}")
                    _suspend(cluster, trial["metadata"]["namespace"], trial["spec"]["tunerName"])
        if not left or monotonic() >= end:
            return left
        _log.info("waiting for the rollback of %s", ", ".join(left))
        sleep(2.0)


def _suspend(cluster: Cluster, namespace: str, name: str) -> None:
    tuner = cluster.get("VLLMTuner", namespace, name)
    if tuner is None or tuner["spec"].get("suspend"):
        return
    try:
        cluster.json_patch("VLLMTuner", tuner, [{"op": "add", "path": "/spec/suspend", "value": True}])
        _log.info("suspended %s/%s", namespace, name)
    except TargetConflict:
        _log.debug("%s/%s changed; once more", namespace, name)
