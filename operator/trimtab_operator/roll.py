"""Which VLLMTuners there are, from the watch and from the list that the loop asks for once a minute: a tuner that looks
for rivals need not list them all (500 are some 5 MB).

Hazard: the watch may die silently; then a new tuner is known with the next list.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass
class Roll:
    """Thread-safe. Keeps of each tuner what tells a rival."""

    monotonic: Callable[[], float]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    #: uid -> tuner; None until the first list
    _known: dict[str, Json] | None = None
    #: uid -> (when, tuner or None where it is gone), of events since the last list began
    _events: dict[str, tuple[float, Json | None]] = field(default_factory=dict)

    def event(self, tuner: Mapping[str, Any], *, gone: bool) -> None:
        uid, kept = tuner["metadata"]["uid"], None if gone else _kept(tuner)
        with self._lock:
            self._events[uid] = (self.monotonic(), kept)
            if self._known is not None:
                _apply(self._known, uid, kept)

    def listed(self, tuners: Iterable[Mapping[str, Any]], began: float) -> None:
        """All there were at `began` or later; what the watch told since then is newer."""
        known = {t["metadata"]["uid"]: _kept(t) for t in tuners}
        with self._lock:
            self._events = {uid: e for uid, e in self._events.items() if e[0] >= began}
            for uid, (_, kept) in self._events.items():
                _apply(known, uid, kept)
            self._known = known

    def of(self, namespace: str) -> Sequence[Json] | None:
        """Those of a namespace; None before the first list."""
        with self._lock:
            known = None if self._known is None else list(self._known.values())
        return None if known is None else [t for t in known if t["metadata"]["namespace"] == namespace]


def _apply(known: dict[str, Json], uid: str, kept: Json | None) -> None:
    if kept is None:
        known.pop(uid, None)
    else:
        known[uid] = kept


def _kept(tuner: Mapping[str, Any]) -> Json:
    meta, spec = tuner["metadata"], tuner.get("spec") or {}
    return {
        "metadata": {k: meta[k] for k in ("name", "namespace", "uid", "creationTimestamp") if k in meta},
        "spec": {
            **{k: spec[k] for k in ("mode", "suspend") if k in spec},
            "targetRef": {"name": (spec.get("targetRef") or {}).get("name")},
        },
    }
