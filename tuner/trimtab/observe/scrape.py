"""`ScrapeSource`: scrapes the pods' own /metrics into memory. For clusters and machines without a Prometheus.

Each pod has its own daemon thread: a pod that hangs or drips its headers delays nobody else. Memory is bounded (see
`Ring`). A restart of this process forgets everything, so a measurement then begins anew.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence

from requests.adapters import HTTPAdapter

from trimtab.errors import MetricsError, MetricsUnreachable
from trimtab.observe.exposition import parse
from trimtab.observe.metrics import PREFIX
from trimtab.observe.promql import instance
from trimtab.observe.ring import Ring
from trimtab.observe.samples import BASELINE_SECONDS, PodRef, Points, Samples, SeriesKey
from trimtab.observe.transport import BoundedSession, typed_errors

MAX_ANSWER_BYTES = 8 << 20
_HINT = (
    "Check that the pod serves /metrics on that port, that NetworkPolicies let Trimtab in, "
    "and that --disable-log-stats is not set."
)
_log = logging.getLogger(__name__)


class ScrapeSource:
    """A `MetricsSource`. A pod without an ip, or whose scrapes fail, is absent or has a gap; `errors` says why.

    `fetch` also begins to watch pods it is asked for; `watch` sets exactly which pods are watched. Pods that neither
    call has named for `retain_seconds` are forgotten. clock gives unix seconds; background=False leaves scraping to
    `scrape_now` (tests).
    """

    def __init__(
        self,
        interval_seconds: float = 5.0,
        timeout_seconds: float = 5.0,
        *,
        retain_seconds: float = 7200.0,
        clock: Callable[[], float] = time.time,
        background: bool = True,
    ) -> None:
        self._interval, self._timeout, self._retain = interval_seconds, timeout_seconds, retain_seconds
        self._clock, self._background = clock, background
        self._pods: dict[tuple[str, str], _Scraped] = {}
        self._lock = threading.Lock()
        self._closed = False

    def watch(self, pods: Sequence[PodRef], keep: Collection[str] = ()) -> None:
        """Scrape these pods and no others. keep: names of pods that are not scraped any more, but not forgotten."""
        with self._lock:
            named = {(p.namespace, p.name) for p in pods}
            self._forget(lambda key, _: key not in named and key[1] not in keep)
            for key, scraped in self._pods.items():
                scraped.paused = key not in named
            self._follow(pods)

    def fetch(self, pods: Sequence[PodRef], start: float, end: float, step_seconds: float) -> Samples:
        with self._lock:
            self._follow(pods)
            oldest = self._clock() - self._retain
            self._forget(lambda _, scraped: scraped.named_at < oldest)
            scraped = {p.name: self._pods.get((p.namespace, p.name)) for p in pods}
        found = {
            name: s.read(start - BASELINE_SECONDS, end, step_seconds) for name, s in scraped.items() if s is not None
        }
        return Samples({name: series for name, series in found.items() if series})

    def errors(self) -> dict[str, MetricsError]:
        """By pod name, why its latest scrape failed; pods that answer are absent."""
        with self._lock:
            return {s.pod.name: s.error for s in self._pods.values() if s.error is not None}

    def scrape_now(self) -> None:
        """Scrape every watched pod once, here and now."""
        with self._lock:
            pods = [s for s in self._pods.values() if not s.paused]
        for pod in pods:
            pod.scrape()

    def close(self) -> None:
        """Threads end by themselves, after their timeout at the latest."""
        with self._lock:
            self._closed = True
            self._forget(lambda *_: True)

    def _follow(self, pods: Sequence[PodRef]) -> None:
        for pod in pods if not self._closed else ():
            key = (pod.namespace, pod.name)
            old = self._pods.get(key)
            if pod.ip and (old is None or old.pod != pod):
                if old is not None:
                    old.stop()
                self._pods[key] = _Scraped(pod, self._timeout, Ring(self._retain), self._clock)
                if self._background:
                    self._pods[key].start(self._interval)
            if key in self._pods:
                self._pods[key].named_at = self._clock()

    def _forget(self, drop: Callable[[tuple[str, str], _Scraped], bool]) -> None:
        for key in [k for k, scraped in self._pods.items() if drop(k, scraped)]:
            self._pods.pop(key).stop()


class _Scraped:
    """One pod: its ring, its latest error, its thread.

    Logs when scraping begins to fail and when it works again, not each time.
    """

    def __init__(self, pod: PodRef, timeout_seconds: float, ring: Ring, clock: Callable[[], float]) -> None:
        self.pod, self.named_at = pod, 0.0
        self.paused = False
        self.error: MetricsError | None = None
        self._url, self._what = f"http://{instance(pod)}/metrics", f"pod {pod.name} at {instance(pod)}"
        self._timeout, self._ring, self._clock = timeout_seconds, ring, clock
        self._session = BoundedSession(self._what, limit_bytes=MAX_ANSWER_BYTES, deadline_seconds=timeout_seconds)
        self._session.mount("http://", HTTPAdapter(max_retries=0, pool_connections=1, pool_maxsize=1))
        self._session.headers["Accept"] = "text/plain;version=0.0.4"
        self._lock, self._stopped = threading.Lock(), threading.Event()

    def start(self, interval_seconds: float) -> None:
        threading.Thread(
            target=self._run, args=(interval_seconds,), name=f"scrape-{self.pod.name}", daemon=True
        ).start()

    def stop(self) -> None:
        self._stopped.set()

    def read(self, start: float, end: float, step_seconds: float) -> dict[SeriesKey, Points]:
        with self._lock:
            return self._ring.read(start, end, step_seconds)

    def scrape(self) -> None:
        """Never raises a MetricsError: the failure is kept and logged."""
        at = self._clock()
        try:
            values = self._values()
        except MetricsError as error:
            error.hint = _HINT
            self._note(error)
            return
        self._note(None)
        with self._lock:
            self._ring.add(at, values)

    def _values(self) -> dict[SeriesKey, float]:
        with typed_errors(self._what, self._timeout):
            body = self._session.get(self._url, timeout=self._timeout).content
        seen = parse(body.decode("utf-8", errors="replace"))
        if not any(name.startswith(PREFIX) for name, _ in seen.values):
            raise MetricsUnreachable(f"{self._what} answered {len(body)} bytes without a readable vLLM metric")
        if seen.broken:
            _log.debug("%s: %d unreadable values", self._what, seen.broken)
        return seen.values

    def _note(self, error: MetricsError | None) -> None:
        if error is not None and self.error is None:
            _log.warning("scraping fails: %s", error)
        elif error is None and self.error is not None:
            _log.info("scraping works again: %s", self._what)
        self.error = error

    def _run(self, interval_seconds: float) -> None:
        with contextlib.closing(self._session):
            while not self._stopped.is_set():
                began = time.monotonic()
                if not self.paused:
                    self.scrape()
                self._stopped.wait(max(0.0, interval_seconds - (time.monotonic() - began)))
