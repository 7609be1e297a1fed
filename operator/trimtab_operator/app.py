"""Kopf wiring: events of our own resources poke the loop; nothing else happens here.

No change handlers, timers or daemons: those are edge-triggered or add finalizers (see loop.py). Kopf gives the
watches with their
reconnects, and the process' life cycle.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import kopf
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from trimtab.errors import TargetRefused
from trimtab.plan.budgets import Limits
from trimtab.tune.apart import Apart
from trimtab_operator.admission import Admission
from trimtab_operator.brakes import BrakeReader
from trimtab_operator.care import Care
from trimtab_operator.cluster import CRD_VERSION, CRDS, GROUP, VERSION, Cluster
from trimtab_operator.lease import Lease
from trimtab_operator.loop import Loop
from trimtab_operator.middleware import Delivery
from trimtab_operator.neighbours import Neighbours
from trimtab_operator.reconcile import Reconciler
from trimtab_operator.recorder import Recorder
from trimtab_operator.records import TUNER_LABEL
from trimtab_operator.roll import Roll
from trimtab_operator.searching import Searching
from trimtab_operator.sources import Sources
from trimtab_operator.telemetry import Telemetry
from trimtab_operator.upkeep import FINALIZER

_log = logging.getLogger(__name__)
#: the loop beats ten times a second; this long without a beat means that it hangs
_STALE_SECONDS: Final = 60.0
#: a stop waits so long for passes under way; the chart's grace period is the kubelet's default of 30 s
_STOP_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Options:
    """namespaces: empty means the whole cluster. Ports 0 mean: do not listen."""

    namespaces: Sequence[str]
    lease_namespace: str
    data_dir: Path
    health_port: int
    metrics_port: int
    limits: Limits


class Parts(NamedTuple):
    """What Kopf's handlers use. search: ended with the process."""

    loop: Loop
    telemetry: Telemetry
    roll: Roll
    search: Apart


def build(options: Options) -> Parts:
    """All parts, wired by hand. Raises `InputError` where there is no cluster access."""
    cluster = Cluster.connect()
    check_crds(cluster)
    # a container that is started again in its pod is the same holder: it need not wait for its own lease to expire
    identity = os.environ.get("POD_NAME") or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    options.data_dir.mkdir(parents=True, exist_ok=True)
    scopes: list[str | None] = [*options.namespaces] or [None]
    brakes = BrakeReader(cluster, options.lease_namespace, time.time)
    roll, search = Roll(time.monotonic), Apart()
    sources, recorder = Sources(cluster, time.time), Recorder(cluster, identity, time.time)
    reconciler = Reconciler(
        cluster=cluster,
        sources=sources,
        searching=Searching(cluster, sources, recorder, search, time.time, options.data_dir),
        recorder=recorder,
        clock=time.time,
        sleep=time.sleep,
        care=Care(cluster, Delivery(cluster, time.time)),
        neighbours=Neighbours(cluster, brakes, time.time, roll.of),
        admission=Admission(cluster, options.limits, scopes, time.time),
    )
    telemetry = Telemetry()
    telemetry.registry.register(reconciler.fleet)
    lease = Lease(cluster, options.lease_namespace, identity, time.time)
    cluster.fence = lambda: lease.held
    cluster.told = lambda method, resource: telemetry.api_requests.labels(method, resource).inc()

    def tuners() -> list[tuple[str, str]]:
        began = time.monotonic()
        found = [t for scope in scopes for t in cluster.list("VLLMTuner", scope)]
        roll.listed(found, began)
        return [(t["metadata"]["namespace"], t["metadata"]["name"]) for t in found]

    loop = Loop(reconciler.reconcile, tuners, lease, telemetry, time.monotonic)
    return Parts(loop, telemetry, roll, search)


def check_crds(cluster: Cluster) -> None:
    """Helm and people upgrade operator and CRDs apart; a schema that prunes what we write would lose safety state."""
    for name in CRDS:
        found = cluster.crd_version(name)
        if found not in (None, CRD_VERSION):
            text = f"CRD {name} has version {found or 'none'}, this operator needs {CRD_VERSION}"
            hint = "Apply the CRDs of this release: helm upgrade with crds.install=true, or kubectl apply -f crds/."
            raise TargetRefused(text, hint=hint)


def registry(parts: Parts, options: Options) -> kopf.OperatorRegistry:
    """Kopf's handlers, registered explicitly: no global state, so that tests can make many."""
    loop, telemetry, roll, search = parts
    handlers = kopf.OperatorRegistry()
    tasks: list[asyncio.Task[None]] = []
    runners: list[web.AppRunner] = []
    asked_before: dict[tuple[str, str], int] = {}

    @kopf.on.login(registry=handlers)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        """For Kopf's own watches; everything else goes through `Cluster`."""
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.startup(registry=handlers)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        _configure(settings)
        runners.extend(await _listen(loop, telemetry, options))
        tasks.append(asyncio.create_task(_fatal(loop.run()), name="trimtab-loop"))

    @kopf.on.cleanup(registry=handlers)
    async def stop(**_: Any) -> None:
        await loop.drain(_STOP_SECONDS)
        search.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(loop.lease.release)
        for runner in runners:
            await runner.cleanup()

    @kopf.on.event(GROUP, VERSION, "vllmtuners", registry=handlers)
    async def tuner_event(
        namespace: str | None, name: str | None, meta: kopf.Meta, body: kopf.Body, type: str | None, **_: Any
    ) -> None:
        telemetry.last_event.labels("VLLMTuner").set_to_current_time()
        roll.event(body, gone=type == "DELETED")
        key, asked = (namespace or "", name or ""), wishes_of(meta)
        if type == "DELETED":
            asked_before.pop(key, None)
        elif asked_before.get(key) == asked:  # our own status writes would make each look two
            return
        else:
            asked_before[key] = asked
        loop.poke(*key, urgent=FINALIZER in (meta.get("finalizers") or ()))

    @kopf.on.event(GROUP, VERSION, "tuningtrials", registry=handlers)
    async def trial_event(namespace: str | None, labels: kopf.Labels, type: str | None, **_: Any) -> None:
        telemetry.last_event.labels("TuningTrial").set_to_current_time()
        tuner = labels.get(TUNER_LABEL)
        if (
            tuner and type != "MODIFIED"
        ):  # our own status writes would poke us for ever; deletions show as a timestamp on the next tick
            loop.poke(namespace or "", tuner)

    return handlers


def wishes_of(meta: Mapping[str, Any]) -> int:
    """What a person can change about an object, as one number: spec (by its generation), annotations, deletion."""
    notes = sorted((meta.get("annotations") or {}).items())
    return hash((meta.get("uid"), meta.get("generation"), meta.get("deletionTimestamp"), tuple(notes)))


def _configure(settings: kopf.OperatorSettings) -> None:
    settings.watching.server_timeout = 600
    settings.watching.connect_timeout = 30
    settings.networking.request_timeout = 60
    settings.scanning.disabled = True
    settings.posting.enabled = False  # one recorder posts our events, with stable reasons
    settings.persistence.finalizer = (
        f"{GROUP}/kopf"  # never used (no such handlers), but Kopf's default is shared by all its operators
    )
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)


async def _fatal(work: Any) -> None:
    """The loop never ends by itself; if it does, the process must end too, so that the kubelet starts it again."""
    try:
        await work
    except asyncio.CancelledError:
        raise
    except BaseException:  # noqa: BLE001 - whatever it was, a process without its loop must not look alive
        _log.critical("the reconcile loop ended; the process ends with it", exc_info=True)
        logging.shutdown()
        os._exit(1)


async def _listen(loop: Loop, telemetry: Telemetry, options: Options) -> list[web.AppRunner]:
    """/healthz and /metrics."""

    async def healthz(_: web.Request) -> web.Response:
        age = loop.monotonic() - loop.beat
        ok = age < _STALE_SECONDS
        return web.Response(
            status=200 if ok else 503,
            text=f"last beat {age:.1f} s ago, lease {'held' if loop.lease.held else 'not held'}\n",
        )

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(telemetry.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    runners: list[web.AppRunner] = []
    for port, path, handler in (
        (options.health_port, "/healthz", healthz),
        (options.metrics_port, "/metrics", metrics),
    ):
        if port:
            app = web.Application()
            app.router.add_get(path, handler)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "0.0.0.0", port).start()
            runners.append(runner)
    return runners


def run(options: Options) -> None:
    """Run until SIGTERM or SIGINT."""
    parts = build(options)
    # what is loaded by now stays: without this, each full collection walks it, and all passes wait 50 to 100 ms for it
    gc.collect()
    gc.freeze()
    everywhere = not options.namespaces
    kopf.run(
        registry=registry(parts, options),
        standalone=True,
        clusterwide=everywhere,
        namespaces=() if everywhere else tuple(options.namespaces),
    )
