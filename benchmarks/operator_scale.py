"""One operator, many tuners: memory, reconcile times, API calls and start-up at two sizes, on a real API server.

python benchmarks/operator_scale.py                      # 100 and 500 tuners, 4 pods each
python benchmarks/operator_scale.py --tuners 500 --seconds 120 --in-flight 10 --json FILE --write

The control plane is real (etcd, API server, Deployment and ReplicaSet controllers); pods are run by a stand-in kubelet
and measured by a stand-in Prometheus, which shares this process and this machine with the operator. Needs what
hack/cluster/build.sh builds. `--write` puts the table into docs/faults.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from control_plane import ControlPlane, StandInKubelet, free_ports, object_path, running, until  # noqa: E402
from stand_in_prometheus import StandInPrometheus  # noqa: E402
from written import rewrite  # noqa: E402

Json = dict[str, Any]
PAGE: Final = ROOT / "docs" / "faults.md"
REGION: Final = "python benchmarks/operator_scale.py --write"
PODS: Final = 4
#: what a usual Prometheus has
SCRAPE_SECONDS: Final = 15.0
ROLLOUT: Final = {
    "warmupSeconds": 15, "measurementSeconds": 120, "confirmationSeconds": 60, "maxMeasurementSeconds": 240,
    "baselineSeconds": 0, "verificationSeconds": 30, "cooldownSeconds": 20, "maxRestartsPerDay": 1000,
    "drain": "Ignore",
}  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """What one size showed. *_seconds of reconciles are bucket edges that hold the share, so upper bounds."""

    tuners: int
    pods: int
    trials_in_flight: int
    start_seconds: float
    rss_mib: float
    peak_rss_mib: float
    #: of the largest process of a search, beside it
    search_peak_mib: float
    cpu_cores: float
    reconciles_per_second: float
    p50_seconds: float
    p99_seconds: float
    api_calls_per_second: float
    status_writes_per_minute: float
    prometheus_queries_per_second: float


def populate(plane: ControlPlane, namespace: str, prometheus: str, tuners: int, in_flight: int) -> None:
    """Deployments first; each with a tuner, of which `in_flight` may try things and the others recommend."""

    def deployment(i: int) -> None:
        plane.request("POST", object_path("Deployment", namespace), target(f"llm-{i}"))

    def tuner(i: int) -> None:
        mode = "Auto" if i < in_flight else "Recommend"
        plane.request("POST", object_path("VLLMTuner", namespace), tuner_of(f"llm-{i}", mode, prometheus))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(deployment, range(tuners)))
        until(lambda: ready(plane, namespace) == tuners, 900, f"{tuners} Deployments available", 1.0)
        list(threads.map(tuner, range(tuners)))


def target(name: str) -> Json:
    container = {
        "name": "vllm", "image": "vllm/vllm-openai:v0.11.0", "command": ["vllm", "serve", "m"],
        "args": ["--max-num-seqs=16", "--port=8000"], "ports": [{"containerPort": 8000}],
    }  # fmt: skip
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    spec = {"replicas": PODS, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def tuner_of(name: str, mode: str, prometheus: str) -> Json:
    spec = {
        "targetRef": {"name": name}, "mode": mode, "metrics": {"prometheus": {"url": prometheus}},
        "objective": {"slo": {"ttftSeconds": 2.0, "tpotSeconds": 0.2}}, "rollout": ROLLOUT,
        "search": {
            "maxNumSeqs": {"min": 4, "max": 128}, "maxTrials": 20,
            # these targets are calm: of itself the search would try nothing
            "candidates": [{"maxNumSeqs": n} for n in (24, 32, 48, 64, 96)],
        },
        "preconditions": {"stableSeconds": 0, "minRequestsPerSecond": 0.2},
    }  # fmt: skip
    return {"apiVersion": "trimtab.dev/v1alpha1", "kind": "VLLMTuner", "metadata": {"name": name}, "spec": spec}


def ready(plane: ControlPlane, namespace: str) -> int:
    items = plane.get("Deployment", namespace)["items"]
    return sum((d.get("status") or {}).get("availableReplicas") == PODS for d in items)


# --- the operator -----------------------------------------------------------------------------------------------------
@contextmanager
def operator(plane: ControlPlane) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`trimtab-operator run` for the whole cluster, and its metrics port."""
    (port,) = free_ports(1)
    command = [
        sys.executable, "-m", "trimtab_operator", "run", "-A", "--data-dir", str(plane.folder / "data"),
        "--health-port", "0", "--metrics-port", str(port),
    ]  # fmt: skip
    env = {**os.environ, "KUBECONFIG": str(plane.kubeconfig), "POD_NAME": "scale"}
    with (plane.folder / "operator.log").open("ab") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            yield process, port
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def memory_mib(pid: int, key: str) -> float:
    found = re.search(rf"^{key}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(found[1]) / 1024 if found else float("nan")


@contextmanager
def children_watched(pid: int) -> Iterator[list[float]]:
    """Peak resident memory of each look's largest child, MiB."""
    peaks, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.3):
            for task in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):  # that thread or child has just ended
                    children = (task / "children").read_text().split()
                    peaks.extend(memory_mib(int(child), "VmHWM") for child in children)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def scrape(port: int) -> dict[str, float]:
    """The operator's own metrics by name with labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (x.rsplit(" ", 1) for x in lines if not x.startswith("#"))}


def grown(before: Mapping[str, float], after: Mapping[str, float], start: str, inside: str = "") -> float:
    return sum(v - before.get(k, 0.0) for k, v in after.items() if k.startswith(start) and inside in k)


def quantile(before: Mapping[str, float], after: Mapping[str, float], share: float) -> float:
    """The lowest bucket edge of the reconcile times that holds `share` of those between two scrapes."""
    edges = {
        float(m[1]): after[k] - before.get(k, 0.0)
        for k in after
        if (m := re.fullmatch(r'trimtab_reconcile_seconds_bucket\{le="([^"]+)"\}', k))
    }
    total = edges[float("inf")]
    return next(edge for edge in sorted(edges) if edges[edge] >= share * total)


def measure(tuners: int, in_flight: int, seconds: float) -> Figures:
    """One size in a control plane of its own."""
    with running() as plane, StandInKubelet(plane), StandInPrometheus(lambda *_: 1.0, SCRAPE_SECONDS) as prometheus:
        namespace = plane.namespace("scale")
        say(f"{tuners} tuners: making {tuners * PODS} pods")
        populate(plane, namespace, prometheus.url, tuners, in_flight)
        with operator(plane) as (process, port), children_watched(process.pid) as children:
            started = time.monotonic()
            until(lambda: told(plane, namespace) == tuners, 1200, "every tuner has a status", 1.0)
            start_seconds = time.monotonic() - started
            say(f"{tuners} tuners: all have a status after {start_seconds:.0f} s")
            before, cpu, asked = scrape(port), cpu_seconds(process.pid), prometheus.queries
            flying: list[int] = []
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(min(10.0, seconds))
                flying.append(trials_in_flight(plane, namespace))
            after = scrape(port)
            return Figures(
                tuners=tuners, pods=tuners * PODS, trials_in_flight=round(sum(flying) / len(flying)),
                start_seconds=start_seconds, rss_mib=memory_mib(process.pid, "VmRSS"),
                peak_rss_mib=memory_mib(process.pid, "VmHWM"),
                search_peak_mib=max(peak for peak in children if not math.isnan(peak)),
                cpu_cores=(cpu_seconds(process.pid) - cpu) / seconds,
                reconciles_per_second=grown(before, after, "trimtab_reconcile_seconds_count") / seconds,
                p50_seconds=quantile(before, after, 0.5), p99_seconds=quantile(before, after, 0.99),
                api_calls_per_second=grown(before, after, "trimtab_api_requests_total") / seconds,
                status_writes_per_minute=grown(before, after, "trimtab_api_requests_total", "/status") * 60 / seconds,
                prometheus_queries_per_second=(prometheus.queries - asked) / seconds,
            )  # fmt: skip


def told(plane: ControlPlane, namespace: str) -> int:
    return sum(bool(t.get("status")) for t in plane.get("VLLMTuner", namespace)["items"])


def trials_in_flight(plane: ControlPlane, namespace: str) -> int:
    phases = [(t.get("status") or {}).get("phase") for t in plane.get("TuningTrial", namespace)["items"]]
    return sum(p not in ("Promoted", "RolledBack", "Cancelled") for p in phases)


# --- the result -------------------------------------------------------------------------------------------------------
def table(rows: Sequence[Figures]) -> str:
    """Markdown, one column per size."""
    names = {
        "tuners": "tuners", "pods": "pods", "trials_in_flight": "trials in flight", "start_seconds":
        "seconds until every tuner has a status", "rss_mib": "resident memory, MiB", "peak_rss_mib": "its peak, MiB",
        "search_peak_mib": "peak of a search's own process, MiB",
        "cpu_cores": "CPU, cores", "reconciles_per_second": "reconciles/s", "p50_seconds":
        "half of the reconciles take at most, s", "p99_seconds": "99 of 100 take at most, s", "api_calls_per_second":
        "API calls/s", "status_writes_per_minute": "status writes/min", "prometheus_queries_per_second":
        "queries to Prometheus/s",
    }  # fmt: skip
    lines = ["| |" + " |" * len(rows), "|---|" + "---|" * len(rows)]
    for key, name in names.items():
        lines.append(f"| {name} | " + " | ".join(shown(getattr(r, key)) for r in rows) + " |")
    return "\n".join(lines)


def shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tuners", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--in-flight", type=int, default=10, help="tuners that may try things; the others recommend")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to watch once all have a status")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    given = parser.parse_args()
    rows: list[Figures] = []
    for tuners in given.tuners:
        rows.append(measure(tuners, given.in_flight, given.seconds))
        print(table(rows[-1:]), flush=True)
    if given.json:
        given.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))
    if given.write:
        rewrite(PAGE, REGION, table(rows))


if __name__ == "__main__":
    main()
