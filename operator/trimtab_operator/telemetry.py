"""The operator's own metrics (prefix trimtab_) and its health."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Telemetry:
    """Metrics in a registry of their own, so that tests can make many."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconcile_seconds = Histogram(
            "trimtab_reconcile_seconds", "Seconds of one reconcile of one VLLMTuner", registry=self.registry
        )
        self.errors = Counter(
            "trimtab_reconcile_errors", "Reconciles that ended with an error", ["reason"], registry=self.registry
        )
        self.leader = Gauge("trimtab_leader", "1 while this process holds the lease", registry=self.registry)
        self.last_event = Gauge(
            "trimtab_last_event_timestamp_seconds",
            "Unix time of the last watch event",
            ["kind"],
            registry=self.registry,
        )
