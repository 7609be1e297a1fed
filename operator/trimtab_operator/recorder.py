"""Events: stable reasons, each said once. An event that cannot be posted is logged; it never stops the loop."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from trimtab.errors import TrimtabError
from trimtab.text import plain
from trimtab_operator.cluster import Cluster
from trimtab_operator.records import rfc3339

Json = dict[str, Any]
_REMEMBERED: Final = 2000
_NOTE_LIMIT: Final = 1024  # the API's own limit
_log = logging.getLogger(__name__)


class Recorder:
    """Posts events.k8s.io/v1 Events. The same (object, reason, text) is posted once per process."""

    def __init__(self, cluster: Cluster, instance: str, clock: Callable[[], float]) -> None:
        self._cluster, self._instance, self._clock = cluster, instance, clock
        self._said: OrderedDict[str, None] = OrderedDict()

    def event(self, regarding: Json, reason: str, note: str, *, warning: bool = False) -> None:
        meta, note = regarding["metadata"], plain(note, _NOTE_LIMIT)
        key = hashlib.sha256(f"{meta['uid']} {reason} {note}".encode()).hexdigest()[:16]
        if key in self._said:
            return
        self._said[key] = None
        if len(self._said) > _REMEMBERED:
            self._said.popitem(last=False)
        _log.info("%s/%s %s: %s", meta["namespace"], meta["name"], reason, note)
        now = self._clock()
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{meta['name']}.{int(now * 1000):x}{key[:6]}"[:253], "namespace": meta["namespace"]},
            "eventTime": rfc3339(now, "microseconds"),
            "reportingController": "trimtab.dev/operator",
            "reportingInstance": self._instance[:128],
            "action": "Reconcile",
            "reason": reason[:128],
            "note": note,
            "type": "Warning" if warning else "Normal",
            "regarding": {
                "apiVersion": regarding["apiVersion"], "kind": regarding["kind"], "name": meta["name"],
                "namespace": meta["namespace"], "uid": meta["uid"],
            },
        }  # fmt: skip
        try:
            self._cluster.create("Event", meta["namespace"], body)
        except TrimtabError as error:
            _log.warning("event %s for %s/%s was not posted: %s", reason, meta["namespace"], meta["name"], error)


def announce_status(recorder: Recorder, tuner: Json, before: Json, status: Json) -> None:
    """An event when what holds it back changes, and when a recommendation appears."""

    def of(state: Json, kind: str) -> Json:
        return next((c for c in state.get("conditions") or () if c["type"] == kind), {})

    for kind, good in (("Ready", "True"), ("Stalled", "False")):
        old, new = of(before, kind), of(status, kind)
        turned = new and (old.get("status"), old.get("reason")) != (new["status"], new["reason"])
        if turned and (new["status"] != good or (kind == "Ready" and old.get("status") != good)):
            recorder.event(tuner, new["reason"], new["message"], warning=new["status"] != good)
    was, now = (s.get("recommendation") or {} for s in (before, status))
    if now and now.get("patch") != was.get("patch"):
        how = f" Apply with: {now['patch']}" if now["patch"] else ""
        recorder.event(tuner, "Recommendation", now["message"] + how)
