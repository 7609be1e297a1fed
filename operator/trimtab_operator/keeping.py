"""The TuningTrial's status is written before the target is touched; what happens where the API server refuses it.

It refuses an object that has grown too large for etcd (1.5 MiB), and a status that its CRD or an admission policy does
not take. Hazard: then no phase can follow, and an untried configuration would stay in traffic for as long as that
lasts. So a status that is refused is written without what can be done without; and a way back is gone without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trimtab.errors import TargetConflict, TargetRefused, TrimtabError
from trimtab.plan.record import Phase, TargetView, TrialRecord
from trimtab.text import plain
from trimtab_operator.cluster import Cluster
from trimtab_operator.recorder import Recorder
from trimtab_operator.records import record_of, status_of

Json = dict[str, Any]
#: characters of a text in a status that was refused with more
_SHORT: Final = 100
#: etcd: "request is too large"; the API server: "Request entity too large", "trying to send message larger than max"
_TOO_LARGE: Final = ("too large", "larger than max")
#: trials whose way back is remembered
_MOST: Final = 1000


@dataclass
class Keeping:
    """`save` writes a record; `record` reads it. What could not be written lives in memory: after a kill the trial is
    taken up where its status says."""

    cluster: Cluster
    recorder: Recorder
    #: trial's uid -> its way back
    _unsaved: dict[str, TrialRecord] = field(default_factory=dict)

    def record(self, trial: Json) -> TrialRecord:
        stored = record_of(trial)
        return stored if stored.ended else self._unsaved.get(trial["metadata"]["uid"], stored)

    def save(self, trial: Json, record: TrialRecord, view: TargetView) -> Json:
        """The trial as written. What the API server refuses is raised, after a second try with less of it."""
        canary = view.canary[0].name if view.canary else ""
        generation = trial["metadata"].get("generation", 1)
        status = status_of(record, trial.get("status") or {}, canary, generation)
        try:
            written = self._write(trial, status)
        except TrimtabError as error:
            if not _by_its_content(error):
                raise
            written = self._write(trial, shortened(status))
        self._unsaved.pop(trial["metadata"]["uid"], None)
        return written

    def goes_back(self, tuner: Json, trial: Json, record: TrialRecord, error: TrimtabError) -> bool:
        """For a record that could not be written: whether it is a way back, to be gone all the same. The owner is
        told."""
        if isinstance(error, TargetConflict):
            return False
        text = f"trial {trial['metadata']['name']}: its status ({record.phase.value}) cannot be written: {error}"
        self.recorder.event(tuner, "StatusNotWritten", text, warning=True)
        back = record.phase is Phase.ROLLING_BACK or (record.ended and record.phase is not Phase.PROMOTED)
        if back:
            self._unsaved[trial["metadata"]["uid"]] = record
            while len(self._unsaved) > _MOST:
                del self._unsaved[next(iter(self._unsaved))]
        return back

    def _write(self, trial: Json, status: Json) -> Json:
        return write_status(self.cluster, "TuningTrial", trial, status)


def write_status(cluster: Cluster, kind: str, seen: Json, status: Json) -> Json:
    """On the object as this pass has read it; where it has moved on, once more on what it is now: a status has one
    writer, so only spec and metadata can have.
    """
    try:
        return cluster.write_status(kind, seen, status)
    except TargetConflict:
        current = cluster.get(kind, seen["metadata"]["namespace"], seen["metadata"]["name"])
        return cluster.write_status(kind, seen if current is None else current, status)


def _by_its_content(error: TrimtabError) -> bool:
    """Whether less of it may be taken."""
    if isinstance(error, TargetConflict):
        return False
    return isinstance(error, TargetRefused) or any(text in str(error) for text in _TOO_LARGE)


def shortened(status: Mapping[str, Any]) -> Json:
    """A status of a trial with what the state machine needs: texts cut, without history and the verdict's numbers."""
    out = {**status, "message": plain(status["message"], _SHORT), "history": []}
    out["conditions"] = [{**c, "message": plain(c["message"], _SHORT)} for c in status.get("conditions") or ()]
    if verdict := status.get("verdict"):
        kept = {k: v for k, v in verdict.items() if k != "numbers"}
        out["verdict"] = {**kept, "message": plain(verdict["message"], _SHORT)}
    return out
