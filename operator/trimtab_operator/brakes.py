"""The kill switch (a ConfigMap beside the operator) and the freeze label of a namespace: read anew every few seconds,
so that they take effect without a restart of the operator.

Hazard: what cannot be read must not look like "not pulled". The last answer counts for a while; without one nothing new
starts, and what is in flight goes on under its guardrails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from trimtab.errors import TargetRefused, TrimtabError
from trimtab.plan.around import FREEZE_LABEL, KILL_SWITCH, Brakes, pulled
from trimtab.plan.block import Note
from trimtab.text import plain
from trimtab_operator.cluster import Cluster

Json = dict[str, Any]
#: how old an answer may be. Trials look every 1.5 s, so a pulled switch is seen within 4 s
FRESH_SECONDS: Final = 2.0
#: an answer older than this is none
TRUSTED_SECONDS: Final = 60.0
_SHOWN: Final = 200


@dataclass(frozen=True)
class _Answer:
    at: float
    text: str = ""
    #: there is no right to read it
    closed: bool = False


@dataclass
class BrakeReader:
    """Thread-safe. `namespace` is the operator's own, "" where it has none (then there is no kill switch)."""

    cluster: Cluster
    namespace: str
    clock: Callable[[], float]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: dict[str, _Answer] = field(default_factory=dict)

    def look(self, namespace: str) -> tuple[Brakes, list[Note]]:
        """What is pulled for tuners of `namespace`, and what cannot be seen."""
        stop = self._ask("", self._switch) if self.namespace else _Answer(0.0)
        freeze = self._ask(namespace, lambda: self._label(namespace))
        unknown = [what for what, answer in (("kill switch", stop), ("namespace", freeze)) if answer is None]
        if unknown:
            text = f"the {' and the '.join(unknown)} cannot be read; nothing new starts until then"
            return Brakes(stop.text if stop else "", freeze.text if freeze else "", text), []
        assert stop is not None and freeze is not None
        notes = [Note("NoRight", text) for answer, text in ((stop, _NO_SWITCH), (freeze, _NO_LABEL)) if answer.closed]
        return Brakes(stop.text, freeze.text), notes

    def _ask(self, key: str, read: Callable[[], str]) -> _Answer | None:
        """The answer of now, else the last one while it is young, else None."""
        now = self.clock()
        with self._lock:
            known = self._known.get(key)
        if known is not None and 0 <= now - known.at < FRESH_SECONDS:
            return known
        try:
            answer = _Answer(now, read())
        except TargetRefused:
            answer = _Answer(now, closed=True)
        except TrimtabError:
            return known if known is not None and now - known.at < TRUSTED_SECONDS else None
        with self._lock:
            self._known[key] = answer
        return answer

    def _switch(self) -> str:
        found = self.cluster.get("ConfigMap", self.namespace, KILL_SWITCH)
        data = (found or {}).get("data") or {}
        if not pulled(data.get("stop")):
            return ""
        why = plain(data.get("reason") or "", _SHOWN)
        return f"stopped by the kill switch (ConfigMap {self.namespace}/{KILL_SWITCH}){': ' if why else ''}{why}"

    def _label(self, namespace: str) -> str:
        found = self.cluster.get("Namespace", "", namespace)
        value = ((found or {}).get("metadata", {}).get("labels") or {}).get(FREEZE_LABEL)
        if not pulled(value):
            return ""
        return f"the namespace is frozen (label {FREEZE_LABEL}={plain(str(value), _SHOWN)})"


_NO_SWITCH: Final = (
    "the operator may not read the kill switch, so it has none: install the chart with rbac.create=true, or grant get "
    f"on ConfigMap {KILL_SWITCH} in its namespace"
)
_NO_LABEL: Final = f"the operator may not read this namespace, so label {FREEZE_LABEL} has no effect: grant get on it"
