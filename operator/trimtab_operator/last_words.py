"""The last log lines of a canary whose container died: they go with the pod."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from trimtab.plan.record import PodView, TargetView
from trimtab_operator.cluster import Cluster

#: looks for a dead container's log: on a busy node it comes after the container's state
_ATTEMPTS: Final = 4
_WAIT_SECONDS: Final = 0.7


def with_logs(
    cluster: Cluster, sleep: Callable[[float], None], view: TargetView, namespace: str, container: str
) -> TargetView:
    """The view with the logs of those canaries that died; nothing is asked where none did."""

    def with_log(pod: PodView) -> PodView:
        health = pod.health
        if health.restarts == 0 and health.exit_code in (None, 0):
            return pod
        text = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                sleep(_WAIT_SECONDS)
            # the dead container is the present one until it is started again, then the previous one
            for previous in (True, False) if health.restarts > 0 else (False, True):
                text = text or cluster.pod_log(namespace, pod.name, container, previous=previous)
            if text:
                break
        return replace(pod, health=replace(health, last_log=text))

    return replace(view, canary=tuple(with_log(p) for p in view.canary))
