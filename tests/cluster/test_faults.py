"""Each fault of docs/faults.md: how the trial ends, what target and owner see of it, how long it takes.

A real API server behind a proxy that breaks things, the real Deployment controller, the operator as a process; pods and
Prometheus are stand-ins, and the trial's clock runs fast. `TRIMTAB_WRITE=1` writes what was seen into the page; without
it the page is only compared. FAULTS_PARALLEL: rows at the same time; FAULTS: only rows whose name has this in it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest
from fault_rows import LOADS, ROWS, Row, Stage
from kill_worlds import BASE, ENDED, Way, World, speed_of
from operator_child import Run

from control_plane import ControlPlane, StandInKubelet, running
from fault_proxy import FaultProxy
from stand_in_prometheus import StandInPrometheus
from trimtab_operator.cluster import CRD_VERSION_ANNOTATION
from written import region, rewrite

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
Json = dict[str, Any]
PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
COMMAND: Final = "TRIMTAB_WRITE=1 pytest -m soak tests/cluster/test_faults.py"
PARALLEL: Final = int(os.environ.get("FAULTS_PARALLEL", "4"))
REPLICAS: Final = 3
#: rows that run always: one for each thing that can break
ALWAYS: Final = (
    "API server: refuses every status of a trial; the owner suspends", "Prometheus: 503 for good",
    "canary: hangs while /health says 200",
)  # fmt: skip


@dataclass
class Base:
    """A control plane with its pods, which know how long they load."""

    plane: ControlPlane
    slow: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kubelet = StandInKubelet(self.plane, loads=self._loads)

    def _loads(self, pod: Json) -> float:
        candidate = BASE not in pod["spec"]["containers"][0]["args"]
        return self.slow.get(pod["metadata"]["namespace"], 0.0) if candidate else 0.0


@pytest.fixture(scope="module")
def base() -> Iterator[Base]:
    with running() as plane, (made := Base(plane)).kubelet:
        yield made


def played(row: Row, base: Base, folder: Path) -> Json:
    """One row: what was seen. AssertionError where it is not what must be."""
    plane, way = base.plane, Way("canary", True, REPLICAS, {"maxSurge": 1, **row.rollout})
    with (
        StandInPrometheus(speed_of(base.kubelet, lambda _: True)) as prometheus,
        FaultProxy(plane.url, plane.pool()) as proxy,
    ):
        world = World(plane, way, prometheus.url, folder, haste=row.haste, quotes=row.quotes)
        namespace = plane.namespace()
        base.slow[namespace] = LOADS / row.haste if row.slow else 0.0
        world.begin(namespace)
        gap = {"guardrails": {"maxMetricsGapSeconds": 300 if row.slow else 60},
               "rollout": {"measurementSeconds": 120, "maxMeasurementSeconds": 180}}  # fmt: skip
        plane.merge("VLLMTuner", namespace, "llm", {"spec": gap})
        life = replace(world.run(), kubeconfig=plane.kubeconfig_for(namespace, proxy.url))
        stage = Stage(world, proxy, prometheus, life, base.slow)
        mend = row.make(stage) if row.blocks or row.slow else None
        stage.process = stage.start()
        try:
            took = (
                blocked(row, stage, mend) if row.blocks else loaded(row, stage, mend) if row.slow else hit(row, stage)
            )
            stage.until(world.at_rest, 150, f"{row.fault}: at rest")
            return seen(row, stage, took)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{world.log()}") from error
        finally:
            if stage.process is not None:
                stage.process.kill()
                stage.process.join(20)
            world.end()


def hit(row: Row, stage: Stage) -> float:
    """In the measurement; seconds from the fault, or from its end where it ends, until the trial goes on."""
    stage.until(lambda: stage.phase() == "Measuring", 90, f"{row.fault}: Measuring")
    began = time.monotonic()
    mend = row.make(stage)
    if mend is not None and row.broken_seconds:
        time.sleep(row.broken_seconds)
        if not stage.proxy.fault.status and not row.alone:
            assert stage.phase() not in ENDED, f"{row.fault}: ended while it was broken"
        mend()
        began = time.monotonic()
    stage.until(lambda: stage.phase() != "Measuring", 90, f"{row.fault}: goes on")
    return time.monotonic() - began


def blocked(row: Row, stage: Stage, mend: Any) -> float:
    """Before a trial: none begins while it is broken; seconds from its end until one does."""
    stage.until(lambda: stage.condition("Stalled").get("reason") == row.blocks, 60, f"{row.fault}: {row.blocks}")
    said = stage.condition("Stalled")
    stage.said = f"condition `Stalled`: `{said['reason']}`: {said['message'][:150]}"
    time.sleep(row.broken_seconds)
    assert stage.world.trials() == [] and stage.world.deployment()["spec"] == stage.world.before["spec"]
    mend()
    return stage.until(lambda: bool(stage.world.trials()), 90, f"{row.fault}: a trial begins")


def loaded(row: Row, stage: Stage, mend: Any) -> float:
    """While the canary loads; seconds from its readiness, or from the deadline, until the trial goes on."""
    stage.until(lambda: stage.phase() == "Starting", 60, f"{row.fault}: Starting")
    loads = 0.0 if mend is not None else min(LOADS, row.rollout["progressDeadlineSeconds"]) / row.haste
    if mend is not None:
        mend()
    began = time.monotonic()
    stage.until(lambda: stage.phase() != "Starting", 120, f"{row.fault}: goes on")
    return time.monotonic() - began - loads


def seen(row: Row, stage: Stage, took: float) -> Json:
    (trial,) = stage.world.trials()
    status = trial["status"]
    events = stage.plane.get("Event", stage.world.namespace)["items"]
    warnings = sorted({e["reason"] for e in events if e["type"] == "Warning"})
    found = {"fault": row.fault, "phase": status["phase"], "verdict": status["verdict"]["reason"],
             "message": status["message"], "seconds": round(max(0.0, took), 1), "warnings": warnings,
             "said": stage.said, "least": stage.least,
             "writes": sum(w.startswith("patch Deployment") for w in stage.life.writes())}  # fmt: skip
    assert status["phase"] == row.ends, found
    assert not row.reasons or status["verdict"]["reason"] in row.reasons, found
    if row.ends != "Promoted":
        stage.world.way = replace(stage.world.way, better=False)
    assert stage.world.problem() == "", (row.fault, stage.world.problem())
    return found


def play(row: Row, base: Base, folder: Path) -> Json:
    place = folder / str(ROWS.index(row))
    if not row.alone:
        return played(row, base, place)
    with running() as plane, (own := Base(plane)).kubelet:
        return played(row, own, place)


def all_of(rows: list[Row], base: Base, folder: Path) -> list[Json]:
    """The rows, some at the same time; AssertionError names all that went wrong."""
    with ThreadPoolExecutor(PARALLEL) as threads:
        results = [threads.submit(play, row, base, folder) for row in rows]
    wrong = [f"{row.fault}: {r.exception()}" for row, r in zip(rows, results, strict=True) if r.exception() is not None]
    found = [r.result() for r in results if r.exception() is None]
    for each in found:
        print(each)
    assert not wrong, "\n".join(wrong)
    return found


def test_some_faults_in_the_middle_of_a_trial(base: Base, tmp_path: Path) -> None:
    """And the page has a line for every fault that is tried in the long run."""
    assert len(all_of([row for row in ROWS if row.fault in ALWAYS], base, tmp_path)) == len(ALWAYS)
    named = [line.split("|")[1].strip() for line in region(PAGE, COMMAND).splitlines() if line.startswith("| ")]
    assert named[1:] == [row.fault for row in ROWS], "run all with TRIMTAB_WRITE=1: it writes the page"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_fault(base: Base, tmp_path: Path) -> None:
    rows = [row for row in ROWS if os.environ.get("FAULTS", "") in row.fault]
    started = time.monotonic()
    found = all_of(rows, base, tmp_path)
    if os.environ.get("TRIMTAB_WRITE") and len(found) == len(ROWS):
        rewrite(PAGE, COMMAND, table(found, time.monotonic() - started))


@pytest.mark.soak
def test_an_operator_refuses_crds_of_another_release(tmp_path: Path) -> None:
    """Older and newer ones: a schema that prunes what it writes would lose a trial's baseline."""
    with running() as plane:
        for version in ("1", "99"):
            name = "vllmtuners.trimtab.dev"
            path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
            note = {"metadata": {"annotations": {CRD_VERSION_ANNOTATION: version}}}
            plane.request("PATCH", path, note, "application/merge-patch+json")
            process = Run(plane.kubeconfig, plane.namespace(), tmp_path).start()
            process.join(60)
            said = (tmp_path / "operator.log").read_text()
            assert process.exitcode == 1 and f"CRD {name} has version {version}, this operator needs" in said


def table(rows: list[Json], seconds: float) -> str:
    """Markdown: a row per fault."""
    lines = [
        f"{len(rows)} faults: 0 wrong promotions, 0 targets stranded. {seconds / 60:.0f} minutes.", "",
        "| fault | what the target saw | what its owner saw | seconds until it goes on |", "|---|---|---|---|",
    ]  # fmt: skip
    return "\n".join([*lines, *(line(r) for r in rows)])


def line(r: Json) -> str:
    """A row of the table."""
    back = r["phase"] == "RolledBack"
    end = "then as before" if back else "then promoted"
    saw = f"{r['writes']} writes, {r['least']} of {REPLICAS} pods or more served, {end}"
    said = r["said"] or (f"condition `Complete`: `{r['verdict']}`: {r['message'][:150]}" if back else "nothing new")
    events = f"; warnings {', '.join(f'`{w}`' for w in r['warnings'])}" if r["warnings"] else ""
    return f"| {r['fault']} | {saw} | {(said + events).replace('|', ' ')} | {r['seconds']:g} |"
