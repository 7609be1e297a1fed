"""Before an uninstall: suspend tuners whose trial is in flight and wait for their rollbacks. The running operator
does the work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from trimtab.errors import TargetConflict
from trimtab_operator.cluster import Cluster
from trimtab_operator.records import record_of

Json = dict[str, Any]
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
            for tuner in cluster.list("VLLMTuner", scope):
                if tuner["spec"].get("mode", "Recommend") != "Recommend":  # the others write nothing
                    _suspend(cluster, tuner)
            flying = (t["metadata"] for t in cluster.list("TuningTrial", scope) if not record_of(t).ended)
            left.extend(f"{meta['namespace']}/{meta['name']}" for meta in flying)
        if not left or monotonic() >= end:
            return left
        _log.info("waiting for the rollback of %s", ", ".join(left))
        sleep(2.0)


def _suspend(cluster: Cluster, tuner: Json) -> None:
    namespace, name = tuner["metadata"]["namespace"], tuner["metadata"]["name"]
    if tuner["spec"].get("suspend"):
        return
    try:
        cluster.json_patch("VLLMTuner", tuner, [{"op": "add", "path": "/spec/suspend", "value": True}])
        _log.info("suspended %s/%s", namespace, name)
    except TargetConflict:
        _log.debug("%s/%s changed; once more", namespace, name)
