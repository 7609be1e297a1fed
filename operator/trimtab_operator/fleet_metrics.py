"""What Prometheus hears of each tuner: a collector over the statuses as they were last computed.

Nothing is counted here but finished trials: a status says the same again after a restart of the operator, a counter
begins anew. Written by the passes' threads, read by the scrape.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trimtab.plan.record import TrialRecord
from trimtab.plan.spec import TunerSpec
from trimtab.plan.summary import TunerPhase
from trimtab_operator.records import unix

Json = dict[str, Any]
Key = tuple[str, str]
_TUNER: Final = ("namespace", "tuner")


class FleetMetrics(Collector):
    """`note` after each look at a tuner, `forget` when it is gone, `ended` once per trial."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tuners: dict[Key, tuple[TunerSpec, Json]] = {}
        self._ended: Counter[tuple[str, ...]] = Counter()

    def note(self, namespace: str, name: str, spec: TunerSpec, status: Json) -> None:
        with self._lock:
            self._tuners[namespace, name] = (spec, status)

    def forget(self, namespace: str, name: str) -> None:
        with self._lock:
            self._tuners.pop((namespace, name), None)
            for key in [k for k in self._ended if k[:2] == (namespace, name)]:
                del self._ended[key]

    def ended(self, namespace: str, name: str, record: TrialRecord) -> None:
        verdict = record.verdict
        kind, reason = (verdict.kind.value, verdict.reason) if verdict is not None else ("", "")
        with self._lock:
            self._ended[namespace, name, record.phase.value, kind, reason] += 1

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            tuners, ended = dict(self._tuners), dict(self._ended)
        families = _families()
        for key, (spec, status) in sorted(tuners.items()):
            for name, labels, value in samples(spec, status):
                families[name].add_metric([*key, *labels], value)
        counted = CounterMetricFamily(
            "trimtab_trials_ended", "Trials that ended since the operator started",
            labels=[*_TUNER, "phase", "verdict", "reason"],
        )  # fmt: skip
        for labels, count in sorted(ended.items()):
            counted.add_metric(labels, count)
        yield from families.values()
        yield counted


#: name -> (help, labels beside namespace and tuner)
_GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "trimtab_tuner_info": ("Always 1", ("target", "mode")),
    "trimtab_tuner_phase": ("1 for the phase the tuner is in, 0 for the others", ("phase",)),
    "trimtab_tuner_condition": ("1 for each condition as it stands", ("type", "status", "reason")),
    "trimtab_tuner_finding": ("Confidence of each finding, 0 to 1", ("finding", "severity")),
    "trimtab_tuner_trials": ("Trials in the history, by result", ("result",)),
    "trimtab_tuner_restarts_today": ("Pods restarted by Trimtab within 24 h", ()),
    "trimtab_tuner_restarts_limit": ("Pods that may be restarted within 24 h: rollout.maxRestartsPerDay", ()),
    "trimtab_tuner_best_gain_ratio": ("Gain of all promotions together, 0.1 is +10%", ()),
    "trimtab_tuner_trial_started_timestamp_seconds": ("Unix time at which the trial in flight began", ("trial",)),
}


def _families() -> dict[str, GaugeMetricFamily]:
    return {name: GaugeMetricFamily(name, text, labels=[*_TUNER, *labels]) for name, (text, labels) in _GAUGES.items()}


def samples(spec: TunerSpec, status: Json) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """(name, labels, value) of one tuner; what its status does not know is left out."""
    yield "trimtab_tuner_info", (spec.target_ref.name, spec.mode), 1.0
    for phase in TunerPhase:
        yield "trimtab_tuner_phase", (phase.value,), float(status.get("phase") == phase.value)
    for c in status.get("conditions") or ():
        yield "trimtab_tuner_condition", (c["type"], c["status"], c["reason"]), 1.0
    for finding in status.get("findings") or ():
        yield "trimtab_tuner_finding", (finding["name"], finding["severity"]), float(finding["confidence"])
    for result, count in (status.get("trials") or {}).items():
        yield "trimtab_tuner_trials", (result,), float(count)
    if "restartsToday" in status:
        yield "trimtab_tuner_restarts_today", (), float(status["restartsToday"])
    yield "trimtab_tuner_restarts_limit", (), float(spec.rollout.max_restarts_per_day)
    if "bestGainPercent" in status:
        yield "trimtab_tuner_best_gain_ratio", (), status["bestGainPercent"] / 100
    now = [c for c in status.get("conditions") or () if (c["type"], c["status"]) == _IN_FLIGHT]
    started = now[0]["lastTransitionTime"] if now else ""
    if status.get("currentTrial") and started:
        yield "trimtab_tuner_trial_started_timestamp_seconds", (status["currentTrial"],), unix(started)


_IN_FLIGHT: Final = ("Progressing", "True")
