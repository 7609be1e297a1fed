"""The operator's own metrics (prefix trimtab_) and its health."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

#: seconds; half a second is long for a pass, and a pass that waits for an API server's time limit is 15
_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0)


class Telemetry:
    """Metrics in a registry of their own, so that tests can make many."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconcile_seconds = Histogram(
            "trimtab_reconcile_seconds",
            "Seconds of one reconcile of one VLLMTuner",
            registry=self.registry,
            buckets=_BUCKETS,
        )
        self.api_requests = Counter(
            "trimtab_api_requests", "Requests to the API server", ["method", "resource"], registry=self.registry
        )
        self.tuners = Gauge("trimtab_tuners", "VLLMTuners that this process looks after", registry=self.registry)
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
