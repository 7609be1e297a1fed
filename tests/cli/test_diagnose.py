"""`trimtab diagnose` from end to end: reports, pages, a Prometheus, and what bad input is told."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

sys.path.insert(0, str(Path(__file__).parents[1] / "observe"))
from metric_servers import MetricsServer

from trimtab.cli.diagnose import diagnose
from trimtab.cli.diagnose_sources import Known, Pages, from_prometheus, from_samples
from trimtab.diagnose.engines import vllm
from trimtab.diagnose.facts import Facts
from trimtab.diagnose.finding import Limits
from trimtab.diagnose.rules import examine
from trimtab.engine.settings import Configuration
from trimtab.errors import InputError, MetricsUnreachable
from trimtab.observe.promql import pod_of
from trimtab.observe.samples import PodRef, Samples

SLOTS = {
    "engine": {"name": "vllm", "version": "0.11.0"}, "args": "vllm serve m --max-num-seqs 64",
    "observations": [{"t_seconds": t, "running": 64, "waiting": 20, "kv_usage": 0.3,
                      "generation_tokens_per_second": 900, "queue_colour": "red"} for t in (0, 60, 120)],
}  # fmt: skip


def run(*args: str, stdin: str | None = None) -> Result:
    import typer

    app = typer.Typer()
    app.command()(diagnose)
    return CliRunner().invoke(app, list(args), input=stdin)


def told(report: Any, *args: str) -> dict[str, Any]:
    result = run("-", "-o", "json", *args, stdin=json.dumps(report))
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def test_json_has_cause_confidence_evidence_advice_and_whether_to_tune() -> None:
    found = told(SLOTS)
    first = found["findings"][0]
    assert (found["main"], found["tunable"]) == ("SlotBound", True)
    assert first["cause"] == "SlotBound" and first["role"] == "main" and 0 < first["confidence"] <= 1
    assert first["evidence"]["running"] == 64 and first["advice"] and first["avoid"]
    assert first["tunable"] is True and first["settings"] == ["max_num_seqs"]
    assert found["context"] == {"queue_colour": "red"}


def test_text_is_short_and_begins_with_the_cause() -> None:
    result = run("-", stdin=json.dumps(SLOTS))
    lines = result.stdout.splitlines()
    assert lines[2].startswith("CAUSE  SlotBound") and "max_num_seqs" in lines[2]
    assert len(lines) < 20 and max(map(len, lines)) <= 100
    assert any(line.strip().startswith("Don't:") for line in lines)


def test_nulls_strings_and_other_names_are_understood(tmp_path: Path) -> None:
    report = {
        "engine": "vllm", "args": ["--max-num-seqs", "64"], "facts": "a sentence",
        "observations": [{"num_requests_running": "64", "num_requests_waiting": 20, "kv_cache_usage_perc": "30%",
                          "ttft_p50_ms": 4000, "preemptions_per_second": None}],
    }  # fmt: skip
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    result = run(str(path), "-o", "json")
    first = json.loads(result.stdout)["findings"][0]
    assert first["cause"] == "SlotBound" and first["evidence"]["ttft_p50_seconds"] == 4.0


def test_counters_make_rates() -> None:
    rows = [{"t_seconds": 60 * i, "running": 40, "waiting": 5, "kv_usage": 0.99, "preemptions_total": 300 * i,
             "request_success_total": 100 * i, "generation_tokens_total": 9000 * i} for i in range(4)]  # fmt: skip
    found = told({"observations": rows})
    assert found["main"] == "DeathSpiral"
    assert found["findings"][0]["evidence"]["preemptions_per_request"] == 3.0


def test_options_fill_what_the_report_lacks() -> None:
    report = {"observations": SLOTS["observations"]}
    found = told(report, "--args", "--max-num-seqs 64", "--engine-version", "0.11.0", "--slo-ttft", "2", "--fact", "x")
    assert found["main"] == "SlotBound" and found["engine"]["version"] == "0.11.0"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ["stdin", "JSON"]),
        ("3", ["stdin", "object"]),
        ('{"observations": 3}', ["observations", "list"]),
        ('{"observations": [3]}', ["observations[0]", "object"]),
        ('{"observations": [{"running": "many"}]}', ["observations[0].running", "number"]),
        ('{"observations": [{"running": -1}]}', ["observations[0].running", "below 0"]),
        ('{"observations": [{"abort_rate": 300}]}', ["observations[0].abort_rate", "share"]),
        ('{"observations": [{"waiting": true}]}', ["observations[0].waiting", "number"]),
        ('{"engine": 3}', ["engine", "name"]),
        ('{"args": "--x \'"}', ["args", "quotes"]),
        ('{"args": 3}', ["args", "text"]),
        ('{"facts": 3}', ["facts", "list"]),
        ('{"slo": {"ttft_seconds": -1}}', ["slo.ttft_seconds", "above 0"]),
    ],
)
def test_bad_input_is_told_with_field_and_fix(text: str, words: list[str]) -> None:
    result = run("-", stdin=text)
    assert result.exit_code == 2
    assert all(word in result.stderr for word in words), result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], ["SOURCE", "missing"]),
        (["nowhere.json"], ["SOURCE", "nowhere.json"]),
        (["a.json", "b.json"], ["SOURCE"]),
        (["x", "--prometheus", "http://h"], ["--prometheus"]),
        (["--prometheus", "ftp://h"], ["--prometheus", "URL"]),
        (["-", "--slo-ttft", "0"], ["--slo-ttft"]),
    ],
)
def test_bad_options_are_told(args: list[str], words: list[str]) -> None:
    result = run(*args)
    assert result.exit_code == 2 and all(w in result.stderr for w in words), result.stderr


# --- live sources -----------------------------------------------------------------------------------------------------
PAGE = """\
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {kv}
vllm:generation_tokens_total{{engine="0",model_name="m"}} {tokens}
vllm:request_success_total{{engine="0",model_name="m",finished_reason="stop"}} {done}
"""


class Clock:
    """Time that passes only by sleeping, during which the server works."""

    def __init__(self, server: MetricsServer, at: Any) -> None:
        self.now, self.server, self.at = 1000.0, server, at
        server.text = at(0.0)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.server.text = self.at(self.now - 1000.0)


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    running = MetricsServer()
    yield running
    running.close()


def known(seqs: int = 16) -> Known:
    return Known(vllm(Configuration.of(max_num_seqs=seqs)), Limits(), Facts())


def url(server: MetricsServer) -> str:
    return f"http://127.0.0.1:{server.port}/metrics"


def test_a_page_is_sampled_over_time(server: MetricsServer) -> None:
    clock = Clock(server, lambda t: PAGE.format(running=16, waiting=9 + t / 10, kv=0.3, tokens=500 * t, done=2 * t))
    pages = Pages([url(server)], clock)
    begin, end = pages.sample(60.0, 5.0, clock.sleep)
    case = from_samples(pages.samples(begin, end), [url(server)], begin, end, known())
    assert examine(case)[0].name == "SlotBound"
    assert case.tokens_per_second() == pytest.approx(500, rel=0.05) and len(case.points) == 4


def test_a_page_that_stands_still_with_work_is_a_hang(server: MetricsServer) -> None:
    clock = Clock(server, lambda t: PAGE.format(running=5, waiting=3, kv=0.3, tokens=7000, done=20))
    pages = Pages([url(server)], clock)
    begin, end = pages.sample(120.0, 5.0, clock.sleep)
    case = from_samples(pages.samples(begin, end), [url(server)], begin, end, known())
    assert examine(case)[0].name == "Hang"


def test_other_servers_gauges_are_read(server: MetricsServer) -> None:
    page = 'sglang:num_running_reqs{m="x"} 32\nsglang:num_queue_reqs 9\nsglang:token_usage 0.4\n'
    clock = Clock(server, lambda t: page)
    pages = Pages([url(server)], clock)
    pages.sample(10.0, 5.0, clock.sleep)
    assert pages.other_engine == "sglang"
    assert pages.rows[0] == {"t_seconds": 0.0, "running": 32.0, "waiting": 9.0, "kv_usage": 0.4}


def test_a_page_without_metrics_and_a_server_that_is_not_there_are_told(server: MetricsServer) -> None:
    server.text = "python_info 1\n"
    with pytest.raises(MetricsUnreachable, match="no metric of vLLM"):
        Pages([url(server)], lambda: 0.0).sample(5.0, 5.0, lambda s: None)
    server.close()
    result = run(url(server), "--seconds", "1")
    assert result.exit_code == 1 and "127.0.0.1" in result.stderr


class Store:
    """A Prometheus that knows two pods, one of them busy."""

    def __init__(self, pods: list[PodRef]) -> None:
        self.pods = pods

    def find(self, matchers: str, now: float, seconds: float) -> list[PodRef]:
        return self.pods

    def fetch(self, pods: list[PodRef], start: float, end: float, step_seconds: float) -> Samples:
        def series(pod: PodRef) -> dict[Any, Any]:
            busy = pod.name == "busy"
            times = [start + 15 * i for i in range(int((end - start) / 15) + 1)]
            gauges = {"vllm:num_requests_running": 60.0 if busy else 4.0, "vllm:num_requests_waiting": 30.0 * busy,
                      "vllm:kv_cache_usage_perc": 0.95 if busy else 0.1}  # fmt: skip
            found = {(n, ()): tuple((t, v) for t in times) for n, v in gauges.items()}
            found["vllm:generation_tokens_total", ()] = tuple((t, 100 * (t - start)) for t in times)
            return found

        return Samples({p.name: series(p) for p in pods})


def test_pods_of_a_prometheus_are_compared() -> None:
    store: Any = Store([PodRef("busy", "ns", None, 0), PodRef("calm", "ns", None, 0)])
    case = from_prometheus(store, 'namespace="ns"', 600.0, 10_000.0, known(64))
    assert examine(case)[0].name == "Imbalance" and set(case.parts) == {"busy", "calm"}
    empty: Any = Store([])
    with pytest.raises(InputError, match="--selector"):
        from_prometheus(empty, 'namespace="x"', 600.0, 10_000.0, known())


def test_targets_without_a_pod_label_go_by_their_instance() -> None:
    assert pod_of({"instance": "[::1]:8000"}) == PodRef("[::1]:8000", "", "::1", 8000)
    assert pod_of({"pod": "a", "namespace": "n", "instance": "10.0.0.1:80"}) == PodRef("a", "n", "10.0.0.1", 80)
    assert pod_of({}) is None
