"""PrometheusSource against a real Prometheus (skipped where the binary is absent), and against misbehaving servers."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from metric_servers import fault_server
from source_conformance import SourceConformance, Story, play

from trimtab.errors import MetricsError, MetricsRefused, MetricsUnreachable
from trimtab.observe import promql, transport
from trimtab.observe.mapping import observe
from trimtab.observe.prometheus import PrometheusSource
from trimtab.observe.samples import MetricsSource, PodRef

PROMETHEUS = shutil.which("prometheus")
POD = PodRef("p", "ns", "10.0.0.1", 8000)


def config(pods: dict[str, PodRef]) -> str:
    """alpha is scraped twice, by two jobs, as a ServiceMonitor beside a PodMonitor does; gamma has no pod label."""
    labelled = [
        f"  - targets: ['127.0.0.1:{pods[n].port}']\n    labels: {{namespace: serving, pod: {n}}}\n"
        for n in ("alpha", "beta")
    ]
    bare = f"  - targets: ['127.0.0.1:{pods['gamma'].port}']\n"
    return (
        "global: {scrape_interval: 1s, scrape_timeout: 900ms}\nscrape_configs:\n"
        f"- job_name: engines\n  static_configs:\n{''.join(labelled)}{bare}"
        f"- job_name: again\n  static_configs:\n{labelled[0]}"
    )


def start_prometheus(folder: Path, pods: dict[str, PodRef]) -> tuple[subprocess.Popen[bytes], str]:
    (folder / "prometheus.yml").write_text(config(pods))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    log = (folder / "log").open("wb")
    command = [
        str(PROMETHEUS),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    ]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    for _ in range(200):
        try:
            if requests.get(f"http://{address}/-/ready", timeout=1).ok:
                return process, f"http://{address}/"
        except requests.ConnectionError:
            time.sleep(0.05)
    process.kill()
    raise RuntimeError((folder / "log").read_text()[-2000:])


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    if PROMETHEUS is None:
        pytest.skip("no prometheus binary on this machine (Debian: apt-get install prometheus)")
    started: list[subprocess.Popen[bytes]] = []

    def make(pods: dict[str, PodRef]) -> MetricsSource:
        process, url = start_prometheus(tmp_path_factory.mktemp("prometheus"), pods)
        started.append(process)
        source = PrometheusSource(url, timeout_seconds=5)
        for _ in range(200):  # its discovery takes about 5 s to hand over the first targets
            if {"alpha", "beta", "gamma"} <= set(source.fetch(list(pods.values()), 0.0, time.time(), 1.0).pods):
                return source
            time.sleep(0.1)
        raise RuntimeError("Prometheus scraped nothing")

    try:
        yield from play(make, lambda seconds, _: time.sleep(seconds), time.time)
    finally:
        for process in started:
            process.terminate()
            process.wait(10)


class TestRealPrometheus(SourceConformance):
    def test_check_says_the_version(self, story: Story) -> None:
        assert isinstance(story.source, PrometheusSource)
        assert story.source.check().startswith("Prometheus 2.")

    def test_pods_are_found_by_label_matchers(self, story: Story) -> None:
        assert isinstance(story.source, PrometheusSource)
        found = story.source.find('{namespace="serving"}', time.time(), 300.0)
        assert [p.name for p in found] == ["alpha", "beta"]
        everything = story.source.find("", time.time(), 300.0)
        assert len(everything) == 3 and everything[0].namespace == "" and everything[0].port > 0
        with pytest.raises(MetricsUnreachable, match="parse error"):
            story.source.find("namespace=", time.time(), 300.0)

    def test_a_pod_without_pod_label_is_remembered_and_costs_one_query_then(
        self, story: Story, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        story.fetch("gamma")
        asked: list[str] = []
        client = story.source._client  # type: ignore[attr-defined]
        query = client.custom_query
        monkeypatch.setattr(client, "custom_query", lambda q, **kw: asked.append(q) or query(q, **kw))
        assert "gamma" in story.fetch("gamma").pods
        assert len(asked) == 1
        assert "instance=~" in asked[0]

    def test_a_dense_long_window_is_asked_on_a_grid_that_repeats_no_dead_pods_value(
        self, story: Story, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(promql, "RECENT_SECONDS", 2.0)
        start = story.end - 200
        assert len(promql.plan(start, story.end, 1.0, 1.0)) == 2
        story.fetch("alpha")
        samples = story.fetch("alpha", "beta", start=start)
        seen = observe(samples, "alpha", start, story.end)
        assert seen is not None and seen.generated_tokens == 60
        assert (
            max(at for points in samples.pods["beta"].values() for at, _ in points) <= story.died + 2.1
        )  # the grid's step is 2 s

    def test_a_broken_query_is_told_in_prometheus_own_words(
        self, story: Story, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(promql, "_NAMES", "(")
        with pytest.raises(MetricsUnreachable, match=r"answered 400: .*(missing|pars)"):
            story.fetch("alpha")


@pytest.fixture(scope="module")
def faults() -> Iterator[tuple[str, list[str | None]]]:
    with fault_server() as (address, _, tokens):
        yield f"http://{address}", tokens


def fetch_from(url: str, **options: str) -> None:
    source = PrometheusSource(url, timeout_seconds=0.4, **options)  # type: ignore[arg-type]
    try:
        source.fetch([POD], 1000.0, 1060.0, 15.0)
    finally:
        source.close()


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("hang", MetricsUnreachable, "did not answer within 0.4 s"),
        ("drip", MetricsUnreachable, "still sending"),
        ("401", MetricsRefused, "answered 401$"),
        ("403", MetricsRefused, "answered 403"),
        ("500", MetricsUnreachable, "answered 500"),
        ("503", MetricsUnreachable, "503: query timed out"),
        ("html", MetricsUnreachable, "not answer with JSON"),
        ("login", MetricsUnreachable, "redirects"),
        ("list", MetricsUnreachable, "another shape"),
        ("scalar", MetricsUnreachable, "another shape"),
        ("words", MetricsUnreachable, "another shape"),
        ("deep", MetricsUnreachable, "another shape|not answer with JSON"),
    ],
)
def test_a_fault_is_a_typed_error_in_bounded_time(
    faults: tuple[str, list[str | None]], fault: str, kind: type[MetricsError], words: str
) -> None:
    began = time.monotonic()
    with pytest.raises(kind, match=words) as caught:
        fetch_from(f"{faults[0]}/{fault}")
    assert time.monotonic() - began < 4
    assert "secret" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_an_answer_without_end_is_cut_off(
    faults: tuple[str, list[str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.observe.prometheus.MAX_ANSWER_BYTES", 4 << 20)
    with pytest.raises(MetricsUnreachable, match="more than 4 MiB"):
        fetch_from(f"{faults[0]}/huge")


def test_a_closed_port_names_the_cause_and_not_the_query() -> None:
    with pytest.raises(MetricsUnreachable, match=r"127\.0\.0\.1:9 cannot be reached: .*[Rr]efused") as caught:
        fetch_from("http://user:secret@127.0.0.1:9/prefix")
    assert "secret" not in str(caught.value) and "__name__" not in str(caught.value)


def test_the_token_is_sent_without_the_newline_of_its_secret(faults: tuple[str, list[str | None]]) -> None:
    with pytest.raises(MetricsRefused):
        fetch_from(f"{faults[0]}/401", bearer_token="abc\n")
    assert faults[1][-1] == "Bearer abc"


def test_plain_http_behind_an_https_url_is_a_certificate_matter(faults: tuple[str, list[str | None]]) -> None:
    with pytest.raises(MetricsRefused, match="TLS"):
        fetch_from(faults[0].replace("http", "https") + "/401")


def test_a_ca_that_is_not_pem_is_refused_at_once() -> None:
    with pytest.raises(MetricsRefused, match="PEM"):
        PrometheusSource("https://localhost", ca_pem="not a certificate")


def test_environment_proxies_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert not transport.BoundedSession("x", limit_bytes=1, deadline_seconds=1).trust_env
