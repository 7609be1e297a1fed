"""Alerts and dashboards: each alert fires when it should and is quiet on a healthy fleet (promtool); each query of a
dashboard finds data in a real Prometheus that scrapes what the operator and an engine show."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from builders import record
from prometheus_client import generate_latest

from trimtab.plan.record import Phase
from trimtab.plan.spec import TunerSpec
from trimtab_operator.fleet_metrics import FleetMetrics
from trimtab_operator.telemetry import Telemetry

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "charts/trimtab/files/alerts.yaml"
DASHBOARDS = sorted((ROOT / "charts/trimtab/files/dashboards").glob("*.json"))
RULES: dict[str, dict[str, Any]] = {
    r["alert"]: r for g in yaml.safe_load(ALERTS.read_text())["groups"] for r in g["rules"]
}
T = 'namespace="ml", tuner="llm"'
HEALTHY = {
    "trimtab_leader": "1x600",
    'trimtab_reconcile_errors_total{reason="StorageError"}': "0x600",
    'trimtab_reconcile_seconds_bucket{le="0.1"}': "0+60x600",
    'trimtab_reconcile_seconds_bucket{le="30.0"}': "0+60x600",
    'trimtab_reconcile_seconds_bucket{le="+Inf"}': "0+60x600",
    f'trimtab_tuner_condition{{{T}, type="Stalled", status="False", reason="Working"}}': "1x600",
    f'trimtab_tuner_trial_started_timestamp_seconds{{{T}, trial="llm-1"}}': "0x200",
    f'trimtab_trials_ended_total{{{T}, phase="RolledBack", verdict="Inconclusive", reason="WithinNoise"}}': "0+1x600",
    f'trimtab_trials_ended_total{{{T}, phase="RolledBack", verdict="Error", reason="CrashLoop"}}': "0 0 1x600",
    f'trimtab_tuner_finding{{{T}, finding="Preemption", severity="Warning"}}': "0.9x600",
}
#: alert -> the series that make it fire, in place of the healthy ones of that name
SICK: dict[str, dict[str, str]] = {
    "TrimtabOperatorDown": {"trimtab_leader": "0x600"},
    "TrimtabReconcileFailing": {'trimtab_reconcile_errors_total{reason="ClusterUnavailable"}': "0+1x600"},
    "TrimtabReconcileSlow": {
        'trimtab_reconcile_seconds_bucket{le="0.1"}': "0x600",
        'trimtab_reconcile_seconds_bucket{le="30.0"}': "0+60x600",
        'trimtab_reconcile_seconds_bucket{le="+Inf"}': "0+60x600",
    },
    "TrimtabTunerStalled": {
        f'trimtab_tuner_condition{{{T}, type="Stalled", status="True", reason="OwnedByOther"}}': "1x600"
    },
    "TrimtabTrialRunsLong": {f'trimtab_tuner_trial_started_timestamp_seconds{{{T}, trial="llm-1"}}': "0x600"},
    "TrimtabTrialsFail": {
        f'trimtab_trials_ended_total{{{T}, phase="RolledBack", verdict="Error", reason="CrashLoop"}}': "0 1 2 3 4x600"
    },
    "TrimtabEngineBroken": {f'trimtab_tuner_finding{{{T}, finding="Hang", severity="Critical"}}': "0.9x600"},
}
#: at 200 minutes the healthy trial is over and a broken one has run for 5 h at 300
_LOOK = "300m"


def name_of(series: str) -> str:
    return series.partition("{")[0]


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool: Debian's package prometheus has it")
    return found


def fires(promtool: str, folder: Path, series: dict[str, str], alert: str, at: str = _LOOK) -> bool:
    """Whether the alert fires on these series. promtool compares with what is expected: nothing, here."""
    test = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": s, "values": v} for s, v in series.items()],
                "alert_rule_test": [{"eval_time": at, "alertname": alert, "exp_alerts": []}],
            }
        ],
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump(test))
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        assert f"alertname: {alert}" in done.stdout + done.stderr or "got:" in done.stdout + done.stderr, done.stderr
    return done.returncode != 0


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_fires_when_it_should(promtool: str, tmp_path: Path, alert: str) -> None:
    sick = SICK[alert]
    healthy = {s: v for s, v in HEALTHY.items() if name_of(s) not in {name_of(b) for b in sick}}
    assert fires(promtool, tmp_path, healthy | sick, alert)


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_is_quiet_on_a_healthy_fleet(promtool: str, tmp_path: Path, alert: str) -> None:
    assert not fires(promtool, tmp_path, HEALTHY, alert)


def test_every_alert_has_a_runbook_that_exists() -> None:
    page = (ROOT / "docs/alerts.md").read_text()
    for name, rule in RULES.items():
        assert rule["annotations"]["runbook"] == f"docs/alerts.md#{name.lower()}"
        assert f"\n## {name}\n" in page


# --- dashboards -------------------------------------------------------------------------------------------------------
STATUS: dict[str, Any] = {
    "phase": "Tuning", "restartsToday": 3, "bestGainPercent": 4.0, "currentTrial": "llm-1", "trials": {"total": 1},
    "conditions": [{"type": "Stalled", "status": "True", "reason": "OwnedByOther"},
                   {"type": "Progressing", "status": "True", "reason": "Measuring",
                    "lastTransitionTime": "2026-09-21T12:00:00Z"}],
    "findings": [{"name": "Hang", "severity": "Critical", "confidence": 0.9}],
}  # fmt: skip


def operator_page() -> str:
    """The operator's /metrics with one tuner, and something in every counter."""
    telemetry, fleet = Telemetry(), FleetMetrics()
    telemetry.registry.register(fleet)
    fleet.note("ml", "llm", TunerSpec.parse({"targetRef": {"name": "llm"}, "metrics": {"direct": {}}}), STATUS)
    fleet.ended("ml", "llm", record(Phase.ROLLED_BACK))
    telemetry.reconcile_seconds.observe(0.1)
    telemetry.api_requests.labels("GET", "pods").inc()
    telemetry.errors.labels("StorageError").inc()
    telemetry.leader.set(1)
    return generate_latest(telemetry.registry).decode()


PAGES = {"/operator": operator_page, "/engine": (ROOT / "tests/observe/data/vllm-0.33.0-v1.txt").read_text}


class _Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = PAGES[self.path]().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def configuration(port: int) -> str:
    """As the chart's PodMonitor and an engine's scrape would have it: the pod's labels are added, ours win."""
    address = f"127.0.0.1:{port}"
    operator = {"targets": [address], "labels": {"namespace": "trimtab-system", "pod": "trimtab-0"}}
    engine = {"targets": [address], "labels": {"namespace": "ml", "pod": "llm-0"}}
    jobs = [
        {"job_name": "operator", "honor_labels": True, "metrics_path": "/operator", "static_configs": [operator]},
        {"job_name": "engine", "metrics_path": "/engine", "static_configs": [engine]},
    ]
    return yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs})


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Prometheus that has scraped twice."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("no prometheus: Debian's package has it")
    pages = ThreadingHTTPServer(("127.0.0.1", 0), _Pages)
    Thread(target=pages.serve_forever, daemon=True).start()
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    (folder / "prometheus.yml").write_text(configuration(pages.server_address[1]))
    flags = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data")
    log = (folder / "log").open("w")
    server = subprocess.Popen([binary, *flags, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while len(ask(url, "count_over_time(up[1m]) >= 3")) < 2:
            assert time.monotonic() < deadline and server.poll() is None, (folder / "log").read_text()
            time.sleep(0.2)
        yield url
    finally:
        server.terminate()
        server.wait(30)
        log.close()
        pages.shutdown()


def ask(url: str, query: str) -> list[Any]:
    """The result of an instant query; empty while the server is not up."""
    try:
        with urllib.request.urlopen(
            f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}", timeout=10
        ) as got:
            found: list[Any] = json.load(got)["data"]["result"]
            return found
    except urllib.error.HTTPError as error:
        if error.code == 503:  # it listens before it has read its data
            return []
        raise AssertionError(f"{query}: {error.read().decode()}") from error
    except OSError:
        return []


#: what Grafana puts in, here for a series that was scraped for some seconds
VARIABLES = {"$namespace": "ml", "$tuner": "llm", "$pod": ".*", "$__rate_interval": "2m"}


def queries() -> list[tuple[str, str]]:
    """(dashboard and panel, query) with the variables filled in."""
    found = []
    for file in DASHBOARDS:
        dashboard = json.loads(file.read_text())
        asked = [(p["title"], t["expr"]) for p in dashboard["panels"] for t in p.get("targets", ())]
        asked += [(a["name"], a["expr"]) for a in dashboard["annotations"]["list"] if "expr" in a]
        for title, query in asked:
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            found.append((f"{file.stem}: {title}", query))
    return found


def test_every_panel_says_what_it_shows_in_which_unit() -> None:
    """Without thresholds Grafana paints every number above 80 red."""
    for file in DASHBOARDS:
        dashboard = json.loads(file.read_text())
        panels = [p for p in dashboard["panels"] if p["type"] != "row"]
        assert dashboard["schemaVersion"] >= 39 and len({p["id"] for p in dashboard["panels"]}) == len(
            dashboard["panels"]
        )
        for panel in panels:
            where, look = f"{file.stem}: {panel['title']}", panel["fieldConfig"]["defaults"]
            assert panel["description"], where
            assert panel["type"] not in ("stat", "timeseries") or look["unit"], where
            assert panel["type"] != "stat" or look["thresholds"]["steps"][0]["value"] is None, where
            assert all(t["datasource"]["uid"] == "${datasource}" for t in panel["targets"]), where


def test_no_two_panels_cover_each_other() -> None:
    for file in DASHBOARDS:
        cells: set[tuple[int, int]] = set()
        for panel in json.loads(file.read_text())["panels"]:
            at = panel["gridPos"]
            own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert at["x"] + at["w"] <= 24 and not own & cells, panel["title"]
            cells |= own


def test_every_query_of_the_dashboards_finds_data(prometheus: str) -> None:
    empty = [(where, query) for where, query in queries() if "trimtab_mw_" not in query and not ask(prometheus, query)]
    assert not empty


def test_what_the_dashboards_ask_of_the_middleware_is_a_metric_of_it() -> None:
    page = (ROOT / "docs/middleware.md").read_text()
    asked = {name for _, query in queries() for name in re.findall(r"trimtab_mw_\w+", query)}
    assert asked and all(f"`{name}`" in page for name in asked)


def test_the_variables_of_the_dashboards_have_values(prometheus: str) -> None:
    for file in DASHBOARDS:
        for variable in json.loads(file.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
                found = ask(prometheus, series.replace("$namespace", "ml"))
                assert any(r["metric"].get(label) for r in found), variable["name"]
