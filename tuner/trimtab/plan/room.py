"""Is there room for the canary: on a node for one more pod, on the device beside a pod that is still ending. Pure.

Room is found out by asking for it: the scheduler knows taints, quotas, devices and autoscalers, a sum over nodes does
not, and reading nodes would need rights over the whole cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from trimtab.judge.guardrail import Breach
from trimtab.plan.record import NO_ROOM, TargetView, TrialRecord

#: the scheduler says within a second or two that no node fits; a preempted pod may take its grace period to go
NO_ROOM_SECONDS: Final = 15.0
#: without any pod: refused by quota or admission, or a controller that is slow
NO_POD_SECONDS: Final = 30.0
#: how long a target counts as full after one more pod did not fit: each try may make an autoscaler buy a node
FULL_SECONDS: Final = 6 * 3600.0
#: what vLLM says where another process holds the device's memory (vllm/v1/worker/utils.py), beside plain OOM
_DEVICE_HELD: Final = "free memory on device"


def no_room(record: TrialRecord, view: TargetView, in_phase_seconds: float, *, auto: bool) -> str:
    """Why the added pod gets no place, "" while that is not known.

    auto: `rollout.maxSurge` is not set. Set to 1, someone wants to wait, up to the progress deadline, for an
    autoscaler's node.
    """
    if not auto or record.max_surge != 1:
        return ""
    if not view.canary and in_phase_seconds > NO_POD_SECONDS:
        return "no pod was made: a quota or an admission policy has no room for one more"
    if any(not p.health.scheduled for p in view.canary) and in_phase_seconds > NO_ROOM_SECONDS:
        return "no node has room for one more pod; nothing was restarted"
    return ""


def full_until(trials: Sequence[TrialRecord]) -> float:
    """Until when one more pod is not asked for again (unix seconds), 0 where it may be. trials: any of this target."""
    found = [
        t.finished_at + FULL_SECONDS
        for t in trials
        if t.finished_at is not None and t.verdict is not None and t.verdict.reason == NO_ROOM
    ]
    return max(found, default=0.0)


def seen_beside(record: TrialRecord, view: TargetView) -> TrialRecord:
    """Remember that a pod of the baseline was still ending while the new one had been given a node and an address."""
    if record.overlapped or not view.ending or not any(p.ip for p in view.canary):
        return record
    return replace(record, overlapped=True)


def excused(record: TrialRecord, view: TargetView, breach: Breach) -> TrialRecord | None:
    """The record with one death excused, None where the breach counts.

    A new engine that ran out of device memory while an old one was still ending says nothing about its configuration:
    the kubelet starts it again, once.
    """
    logs = " ".join(p.health.last_log for p in view.canary).lower()
    if breach.reason != "OutOfMemory" and _DEVICE_HELD not in logs:
        return None
    if record.excused or not (record.overlapped or view.ending):
        return None
    text = "the new engine ran out of memory while the old pod was still ending; it is started once more"
    return replace(record, excused=1, message=text)
