"""The Kubernetes side of `trimtab.tune.evidence`: where a pod's metrics are."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.observe.samples import MetricsSource, PodRef
from trimtab.plan.record import Evidence, TargetView, TrialRecord
from trimtab.plan.spec import TunerSpec
from trimtab.tune.evidence import fleet_observation, look_at, with_findings
from trimtab.tune.periods import evidence_of

__all__ = ["fleet_observation", "look_at", "refs", "trial_evidence", "with_findings"]


def refs(pods: Sequence[tuple[str, str | None]], namespace: str, port: int) -> list[PodRef]:
    """Pods by (name, ip) as the metrics source wants them."""
    return [PodRef(name, namespace, ip, port) for name, ip in pods]


def trial_evidence(
    source: MetricsSource, spec: TunerSpec, record: TrialRecord, view: TargetView, namespace: str, port: int, now: float
) -> Evidence:
    """Samples for the phase at hand of a trial of either strategy; every pod serves on `port`."""
    return evidence_of(source, spec, record, view, lambda p: PodRef(p.name, namespace, p.ip, port), now)
