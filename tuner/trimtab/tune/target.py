"""The `Target` interface: what the loop asks of whatever runs the engines. The operator has a Kubernetes counterpart.

observe(window) is `refs` and the metrics source; apply(configuration) is `begin` and `drive`; restore() is
`drive(RESTORE)`. All are resumable: `drive` is called again on every tick with the phase's wish and does the next step
of what is still missing, or nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from trimtab.observe.samples import MetricsSource, PodRef
from trimtab.plan.preconditions import FleetView
from trimtab.plan.record import Desired, PodView, TargetView


class WatchedSource(MetricsSource, Protocol):
    """Metrics of pods that come and go."""

    def watch(self, pods: Sequence[PodRef], keep: Collection[str] = ()) -> None:
        """Follow these pods and no others; samples of those named in `keep` are not forgotten."""


class Target(Protocol):
    """Engines behind one address. `now` is unix seconds."""

    @property
    def template(self) -> Mapping[str, Any]:
        """The pod template (or its likeness) of the baseline."""

    async def look(self, now: float) -> None:
        """Find out what is up. Everything below answers from what was seen here."""

    def view(self) -> TargetView:
        """In a trial's terms."""

    def fleet(self, now: float) -> FleetView:
        """Between trials; without observation and findings."""

    def ref(self, pod: PodView) -> PodRef:
        """Where a pod's metrics are."""

    def ready_refs(self) -> Sequence[PodRef]:
        """All pods that serve."""

    def begin(self, candidate: Mapping[str, Any]) -> None:
        """Remember the trial's candidate template; touches nothing."""

    def drive(self, wanted: Desired) -> None:
        """Start the next step towards `wanted`, if none is under way. Returns at once."""

    def adopt(self) -> None:
        """The candidate was promoted: it is the baseline from now on."""
