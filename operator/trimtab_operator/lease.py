"""A coordination Lease: only its holder writes. Kopf's peering has no locks; a replaced pod may live on for seconds.

The holder renews every third of the duration. A holder whose renewal is older than the duration must stop acting
*before* another may
take over, so it counts its own validity from before the request was sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from trimtab.errors import ClusterUnavailable, TargetConflict, TrimtabError
from trimtab_operator.cluster import Cluster
from trimtab_operator.records import rfc3339, unix

Json = dict[str, Any]
LEASE_NAME: Final = "trimtab-operator"
_log = logging.getLogger(__name__)


class Lease:
    """`try_hold` takes or renews; `held` is what a writer asks. Times are unix seconds from the injected clock."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        identity: str,
        clock: Callable[[], float],
        duration_seconds: float = 15.0,
    ) -> None:
        self._cluster, self._namespace, self._identity = cluster, namespace, identity
        self._clock, self._duration = clock, duration_seconds
        self._valid_until = 0.0
        # when another holder's record was first seen, in our own clock: clocks of two nodes are never compared
        self._seen: tuple[str, float] = ("", 0.0)

    @property
    def held(self) -> bool:
        return self._clock() < self._valid_until

    @property
    def renew_seconds(self) -> float:
        return self._duration / 3

    def try_hold(self) -> bool:
        """Take the Lease if it is free or has expired, renew it if it is ours."""
        started = self._clock()
        try:
            if self._write(started):
                self._valid_until = started + self._duration * 0.8
        except TargetConflict:
            _log.info("another operator took the lease first")
        except TrimtabError as error:
            _log.warning("lease not renewed: %s", error)
        return self.held

    def release(self) -> None:
        """Let a successor in at once. Best effort: an unreleased Lease expires by itself."""
        self._valid_until = 0.0
        try:
            seen = self._cluster.get("Lease", self._namespace, LEASE_NAME)
            if seen is not None and seen["spec"].get("holderIdentity") == self._identity:
                spec = {**seen["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                self._cluster.replace("Lease", {**seen, "spec": spec})
        except (ClusterUnavailable, TargetConflict) as error:
            _log.info("lease not released: %s", error)

    def _write(self, now: float) -> bool:
        stamp = rfc3339(now, "microseconds")
        spec = {"holderIdentity": self._identity, "leaseDurationSeconds": int(self._duration), "renewTime": stamp}
        seen = self._cluster.get("Lease", self._namespace, LEASE_NAME)
        if seen is None:
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": LEASE_NAME, "namespace": self._namespace},
                "spec": {**spec, "acquireTime": stamp},
            }
            self._cluster.create("Lease", self._namespace, body)
            return True
        if not self._free(seen["spec"], now):
            return False
        ours = seen["spec"].get("holderIdentity") == self._identity
        acquired = seen["spec"].get("acquireTime", stamp) if ours else stamp
        self._cluster.replace("Lease", {**seen, "spec": {**spec, "acquireTime": acquired}})
        return True

    def _free(self, spec: Json, now: float) -> bool:
        """Ours, given up, or not renewed for its duration since we first saw this renewal."""
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self._identity):
            return True
        record = f"{holder} {spec.get('renewTime')}"
        if self._seen[0] != record:
            self._seen = (record, now)
            renewed = unix(spec["renewTime"]) if spec.get("renewTime") else now
            # long dead at first sight (by more than any sane clock skew): do not wait again
            return now - renewed > 4 * float(spec.get("leaseDurationSeconds") or self._duration)
        return now - self._seen[1] > float(spec.get("leaseDurationSeconds") or self._duration)
