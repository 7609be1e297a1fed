"""The operator's writes to the API server as boundaries at which it can be killed: counted, named, one chosen.

`Doomed` wraps a `Cluster` or a stand-in of one. Reads and the lease are no boundaries: they change no target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Json = dict[str, Any]
SIDES: Final = ("before", "after")


def deployment_write(operations: list[Json]) -> str:
    """What a JSON patch of the target does, in a word."""
    paths = {o["path"]: o["op"] for o in operations}
    if "/spec/template" in paths:
        return "template"
    if "/spec/paused" in paths:
        return "pause" if paths["/spec/paused"] != "remove" else "resume"
    return "give back"


def patched_name(kind: str, operations: list[Json]) -> str:
    if kind == "Deployment":
        return f"patch Deployment: {deployment_write(operations)}"
    last = sorted({o["path"].split("/")[1:3][-1] for o in operations})
    return f"patch {kind}: {', '.join(last)}"


@dataclass
class Doomed:
    """number: of the write that is the last, 0 for none; side: whether the process ends before it is sent or after its
    answer. `die` ends the process. Every write's name goes to `note`. named: the same by name and number of that name.
    """

    inner: Any
    number: int
    side: str
    die: Callable[[], None]
    note: Callable[[str], None]
    named: Mapping[tuple[str, int], str] = field(default_factory=dict)
    count: int = field(default=0)
    counts: Counter[str] = field(default_factory=Counter)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in type(self).__dataclass_fields__:
            object.__setattr__(self, name, value)
        else:
            setattr(self.inner, name, value)

    def create(self, kind: str, namespace: str, body: Json) -> Any:
        if kind == "Lease":
            return self.inner.create(kind, namespace, body)
        name = f"create {kind}" + (f" {body['reason']}" if kind == "Event" else "")
        return self._at(name, lambda: self.inner.create(kind, namespace, body))

    def delete(self, kind: str, namespace: str, name: str) -> None:
        self._at(f"delete {kind}", lambda: self.inner.delete(kind, namespace, name))

    def json_patch(self, kind: str, seen: Json, operations: list[Json]) -> Any:
        return self._at(patched_name(kind, operations), lambda: self.inner.json_patch(kind, seen, operations))

    def write_status(self, kind: str, seen: Json, status: Json) -> Any:
        phase = f" {status.get('phase', '')}" if kind == "TuningTrial" else ""
        return self._at(f"status of {kind}{phase}", lambda: self.inner.write_status(kind, seen, status))

    def _at(self, name: str, write: Callable[[], Any]) -> Any:
        self.note(name)
        self.count += 1
        self.counts[name] += 1
        sides = (self.side if self.count == self.number else "", self.named.get((name, self.counts[name])))
        if "before" in sides:
            self.die()
        answer = write()
        if "after" in sides:
            self.die()
        return answer
