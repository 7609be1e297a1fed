"""One metrics source per tuner, made from its spec and kept until the spec's metrics section changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from trimtab.observe.prometheus import PrometheusSource
from trimtab.observe.samples import MetricsSource
from trimtab.observe.scrape import ScrapeSource
from trimtab.plan.spec import Metrics, TunerSpec
from trimtab_operator.cluster import Cluster

Json = dict[str, Any]
#: namespace and name of a tuner
Key = tuple[str, str]


class Sources:
    """Thread-safe cache of sources. Credentials are read when a source is made; a refused source is made anew the
    next time.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster, self._clock = cluster, clock
        self._lock = threading.Lock()
        self._open: dict[Key, tuple[str, Metrics, MetricsSource]] = {}

    def of(self, tuner: Json, spec: TunerSpec) -> MetricsSource:
        """The tuner's source; `InputError` where a referenced Secret or ConfigMap is missing."""
        meta = tuner["metadata"]
        key = (meta["namespace"], meta["name"])
        with self._lock:
            known = self._open.get(key)
            if known is not None and known[:2] == (meta["uid"], spec.metrics):
                return known[2]
        made = self._make(meta["namespace"], spec)
        self.forget(key)
        with self._lock:
            self._open[key] = (meta["uid"], spec.metrics, made)
        return made

    def forget(self, key: Key) -> None:
        """The tuner is gone, or its metrics section changed: end what was opened for it."""
        with self._lock:
            old = self._open.pop(key, None)
        if old is not None:
            old[2].close()

    def _make(self, namespace: str, spec: TunerSpec) -> MetricsSource:
        if spec.metrics.direct is not None:
            direct = spec.metrics.direct
            return ScrapeSource(
                interval_seconds=direct.interval_seconds, timeout_seconds=direct.timeout_seconds, clock=self._clock
            )
        prometheus = spec.metrics.prometheus
        assert prometheus is not None  # the spec's validator: exactly one
        token = ca = None
        where = "spec.metrics.prometheus"
        if (secret := prometheus.bearer_token_secret_ref) is not None:
            token = self._cluster.secret_value(namespace, secret.name, secret.key, f"{where}.bearerTokenSecretRef")
        if (bundle := prometheus.ca_config_map_ref) is not None:
            ca = self._cluster.config_map_value(namespace, bundle.name, bundle.key, f"{where}.caConfigMapRef")
        return PrometheusSource(
            prometheus.url, timeout_seconds=prometheus.timeout_seconds, bearer_token=token, ca_pem=ca
        )
