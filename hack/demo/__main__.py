"""`make demo`: bring up a cluster, install Trimtab, put a badly set target under load, tune it, show before and after.

Options: --down takes the cluster down at the end too; --limit-seconds bounds the tuning. Ctrl-C leaves nothing behind.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hack.demo import scenario, screen
from hack.demo.kube import ROOT, DemoError, Kube, given_cluster, own_cluster, script
from rich.console import Console
from rich.live import Live

from trimtab.errors import TrimtabError
from trimtab.load.records import Record, parse_records
from trimtab.load.summary import Slo, Summary, summarise

Json = dict[str, Any]
SLO = Slo(scenario.SCENARIO.slo_ttft_seconds, scenario.SCENARIO.slo_tpot_seconds)
#: seconds of load measured before the first trial and after the last
BEFORE_SECONDS = 60.0
AFTER_SECONDS = 60.0
#: users of a window have ended by then: nobody waits longer for a first token
SETTLE_SECONDS = scenario.SCENARIO.patience_seconds + 2


class Users:
    """Records of the load pod as they come, read from its log in a thread."""

    def __init__(self, kube: Kube) -> None:
        self._process = kube.logs(scenario.NAMESPACE, "load")
        self._records: list[Record] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                with self._lock:
                    self._records.extend(parse_records(line, "load pod"))

    def window(self, start: float, end: float) -> Summary:
        with self._lock:
            return summarise(list(self._records), (start, end), SLO)

    def failures(self) -> dict[str, int]:
        with self._lock:
            return dict(Counter(str(r.cause) for r in self._records if r.ending in ("failed", "not_sent")))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)


def preflight() -> list[str]:
    """What is missing for a cluster of our own."""
    missing = []
    if os.geteuid() != 0:
        missing.append("root (the node lives in its own namespaces and cgroups)")
    if shutil.which("go") is None:
        missing.append("Go 1.26 or newer (Kubernetes is compiled once)")
    if not Path("/sys/fs/cgroup/memory").is_dir():
        missing.append("cgroup v1 controllers under /sys/fs/cgroup")
    probe = ["unshare", "--pid", "--mount", "--net", "--ipc", "--uts", "--fork", "true"]
    if (
        shutil.which("unshare") is None
        or subprocess.run(probe, capture_output=True, timeout=20, check=False).returncode
    ):
        missing.append("the right to make namespaces (unshare)")
    return missing


def _image_values(image: str) -> list[str]:
    """repository[:tag][@digest] as the chart's values."""
    name, _, digest = image.partition("@")
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:  # no tag, or the colon of a registry's port
        repository, tag = name, ""
    values = [f"image.repository={repository}"]
    return values + ([f"image.digest={digest}"] if digest else [f"image.tag={tag}"] if tag else [])


def prepare(kube: Kube, console: Console, image: str) -> None:
    """Chart, target and load."""
    console.print("[bold]Install Trimtab[/] with Helm: one operator, rights for mode Auto")
    values = [*_image_values(image), "image.pullPolicy=IfNotPresent", "rbac.mode=Apply"]
    kube.helm_install("trimtab", "trimtab-system", ROOT / "charts" / "trimtab", values)
    flags = " ".join(scenario.engine_args(scenario.SCENARIO)[1:])
    console.print(f"[bold]Target[/]: Deployment {scenario.NAME}, {scenario.REPLICAS} replicas, badly set: {flags}")
    kube.run("create", "namespace", scenario.NAMESPACE, check=False)
    kube.run(
        "delete",
        "vt,pod",
        scenario.NAME,
        "load",
        "-n",
        scenario.NAMESPACE,
        "--ignore-not-found",
        check=False,
        timeout=120,
    )
    kube.apply(scenario.NAMESPACE, scenario.target(image))
    status = ("rollout", "status", f"deployment/{scenario.NAME}", "-n", scenario.NAMESPACE, "--timeout=180s")
    kube.run(*status, timeout=200)
    kube.apply(scenario.NAMESPACE, [scenario.load(image)])
    ready = ("wait", "pod/load", "-n", scenario.NAMESPACE, "--for=condition=Ready", "--timeout=90s")
    kube.run(*ready, timeout=100)


def watch(kube: Kube, console: Console, users: Users, limit_seconds: float) -> float:
    """Show the tuning until the tuner has converged or time is up; returns the seconds it took."""
    started, said = time.monotonic(), ""
    with Live(console=console, refresh_per_second=2, transient=False) as display:
        while True:
            elapsed = time.monotonic() - started
            tuner = kube.json("get", "vt", scenario.NAME, "-n", scenario.NAMESPACE)
            trials = kube.json("get", "tuningtrials", "-n", scenario.NAMESPACE).get("items", [])
            trials.sort(key=lambda t: t["spec"]["number"])
            now = time.time()
            recent = users.window(now - 30 - SETTLE_SECONDS, now - SETTLE_SECONDS)
            if console.is_terminal:
                display.update(screen.live(tuner, trials, recent, elapsed))
            else:
                said = _say_news(console, tuner, trials, recent, elapsed, said)
            phase = (tuner.get("status") or {}).get("phase")
            if phase in ("Converged", "Failed"):
                return elapsed
            if elapsed > limit_seconds:
                console.print(
                    f"Time is up after {elapsed:.0f} s; suspending the tuner, which rolls back what is in flight."
                )
                suspend = (
                    "patch",
                    "vt",
                    scenario.NAME,
                    "-n",
                    scenario.NAMESPACE,
                    "--type=merge",
                    "-p",
                    '{"spec":{"suspend":true}}',
                )
                kube.run(*suspend)
                return elapsed
            time.sleep(2)


def _say_news(console: Console, tuner: Json, trials: Sequence[Json], users: Summary, seconds: float, said: str) -> str:
    """Without a terminal: a line when something changed."""
    status = tuner.get("status") or {}
    last = (trials[-1].get("status") or {}) if trials else {}
    key = f"{status.get('phase')} {len(trials)} {last.get('phase')}"
    if key == said:
        return said
    name = trials[-1]["metadata"]["name"] if trials else ""
    trial = (
        f"{name} {last.get('phase', 'Created')}: {last.get('settings', '')} {last.get('message', '')}" if trials else ""
    )
    console.print(f"{seconds:4.0f} s  {status.get('phase', '-')}  {trial}", soft_wrap=True, highlight=False)
    console.print(screen.users_line(users), soft_wrap=True)
    return key


def preemptions(kube: Kube, end: float, seconds: float) -> float | None:
    """Per second over all pods, as Prometheus knows them; None where there is no Prometheus."""
    if not kube.has_prometheus():
        return None
    query = f'sum(rate(vllm:num_preemptions_total{{namespace="{scenario.NAMESPACE}"}}[{seconds:.0f}s]))'
    return kube.promql(query, end).get("")


def run(kube: Kube, console: Console, limit_seconds: float) -> None:
    image = os.environ.get("DEMO_IMAGE", "localhost/trimtab:dev")
    prepare(kube, console, image)
    users = Users(kube)
    try:
        console.print(f"[bold]Load[/]: {BEFORE_SECONDS:.0f} s as it is, for the table's left column")
        time.sleep(20)  # the queues of a bad setting take a while to fill
        start = time.time()
        time.sleep(BEFORE_SECONDS + SETTLE_SECONDS)
        before, preempted_before = (
            users.window(start, start + BEFORE_SECONDS),
            preemptions(kube, start + BEFORE_SECONDS, BEFORE_SECONDS),
        )
        console.print("[bold]Tune[/]: kubectl apply of one VLLMTuner, mode Auto")
        kube.apply(scenario.NAMESPACE, [scenario.tuner(prometheus=kube.has_prometheus())])
        took = watch(kube, console, users, limit_seconds)
        console.print(f"Tuned in {took:.0f} s. {AFTER_SECONDS:.0f} s more of load for the right column")
        time.sleep(5)
        start = time.time()
        time.sleep(AFTER_SECONDS + SETTLE_SECONDS)
        after, preempted_after = (
            users.window(start, start + AFTER_SECONDS),
            preemptions(kube, start + AFTER_SECONDS, AFTER_SECONDS),
        )
        console.print(kube.run("get", "vt,tt", "-n", scenario.NAMESPACE), highlight=False, soft_wrap=True)
        screen.before_after(console, before, after, [preempted_before, preempted_after], users.failures())
        screen.control(console, kube.json("get", "tuningtrials", "-n", scenario.NAMESPACE).get("items", []))
    finally:
        users.close()
        kube.run("delete", "pod", "load", "-n", scenario.NAMESPACE, "--ignore-not-found", "--wait=false", check=False)


def look_around(kube: Kube, console: Console) -> None:
    environment = f"export KUBECONFIG={kube.kubeconfig} PATH={Path(kube.kubectl).parent}:$PATH\n" if kube.own else ""
    end = "make cluster-down                          # remove the cluster\n" if kube.own else ""
    console.print(
        f"[bold]Look around[/]\n{environment}kubectl get vt,tt -n {scenario.NAMESPACE}\n"
        f"kubectl describe tt -n {scenario.NAMESPACE}\n{end}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def clean(kube: Kube | None, console: Console) -> None:
    """Ctrl-C or a fault: nothing of the demo stays."""
    console.print("\nRemoving what the demo made ...")
    if kube is None or kube.started:
        subprocess.run([str(ROOT / "hack/cluster/down.sh")], capture_output=True, timeout=120, check=False)
        return
    kube.run("delete", "vt", "--all", "-n", scenario.NAMESPACE, check=False, timeout=180)
    kube.run("delete", "namespace", scenario.NAMESPACE, "--wait=false", check=False)
    command = [kube.helm, "uninstall", "trimtab", "-n", "trimtab-system"]
    subprocess.run(command, capture_output=True, timeout=330, check=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--down", action="store_true", help="take the cluster down at the end")
    parser.add_argument("--limit-seconds", type=float, default=720.0, help="tuning ends after this (default 720)")
    options = parser.parse_args()
    console, kube = Console(), None
    try:
        kube = given_cluster()
        if kube is None and (missing := preflight()):
            console.print("A cluster of our own needs what is missing here:", style="yellow")
            for item in missing:
                console.print(f"  - {item}")
            console.print("The same loop without Kubernetes instead (make try).")
            console.print("For a cluster of yours: DEMO_CONTEXT=<context> make demo\n")
            return subprocess.run([sys.executable, "-m", "trimtab.cli.main", "tune", "--demo"], check=False).returncode
        console.print("[bold]Cluster[/]: one real node; compiled the first time (about 10 minutes), then seconds")
        kube = kube or own_cluster()
        run(kube, console, options.limit_seconds)
        look_around(kube, console)
        if options.down and kube.own:
            script("hack/cluster/down.sh")
        return 0
    except KeyboardInterrupt:
        clean(kube, console)
        return 130
    except (DemoError, TrimtabError, subprocess.TimeoutExpired) as error:
        console.print(f"The demo stopped: {error}", style="bold red", markup=False)
        clean(kube, console)
        return 1


if __name__ == "__main__":
    sys.exit(main())
