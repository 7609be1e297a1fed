"""ScrapeSource: the conformance story on fake time, hostile pods, the ring's bounds, and its threads."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest
from metric_servers import MetricsServer, fault_server
from metric_texts import line, text
from source_conformance import SourceConformance, Story, engine_text, play

from trimtab.errors import MetricsRefused, MetricsUnreachable
from trimtab.observe import scrape
from trimtab.observe.exposition import parse
from trimtab.observe.ring import Ring
from trimtab.observe.samples import MetricsSource, PodRef
from trimtab.observe.scrape import ScrapeSource


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    clock = Clock()

    def make(pods: dict[str, PodRef]) -> MetricsSource:
        source = ScrapeSource(1.0, 0.5, clock=clock, background=False)
        source.watch(list(pods.values()))
        return source

    def elapse(seconds: float, source: MetricsSource) -> None:
        assert isinstance(source, ScrapeSource)
        until = clock.now + seconds
        while clock.now < until - 1e-9:
            clock.now = min(until, clock.now + 0.5)
            source.scrape_now()

    yield from play(make, elapse, clock)


class TestScrape(SourceConformance):
    pass


def pod(port: int, name: str = "p") -> PodRef:
    return PodRef(name, "ns", "127.0.0.1", port)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "0 bytes without a readable vLLM metric"),
        ("<html>not metrics</html>", "without a readable"),
        (text("vllm:num_requests_running NaN", 'vllm:kv_cache_usage_perc{engine="0 1'), "without a readable"),
    ],
)
def test_a_pod_without_vllm_metrics_is_absent_and_says_so_once(
    body: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = MetricsServer(body)
    source = ScrapeSource(background=False)
    source.watch([pod(server.port)])
    with caplog.at_level(logging.INFO):
        source.scrape_now()
        source.scrape_now()
        assert words in str(source.errors()["p"])
        assert "--disable-log-stats" in source.errors()["p"].hint
        server.text = engine_text(1)
        source.scrape_now()
    assert [r.levelname for r in caplog.records] == ["WARNING", "INFO"]
    assert source.errors() == {}
    server.close()
    source.close()


def test_hostile_pods_are_cut_off_and_harm_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "MAX_ANSWER_BYTES", 1 << 20)
    good = MetricsServer(engine_text(1))
    with fault_server() as (_, port, _):
        source = ScrapeSource(timeout_seconds=0.3, background=False)
        names = ["hang", "drip", "huge", "500", "401", "login"]
        source.watch([*(pod(port, n) for n in names), pod(good.port, "good")])
        for name, scraped in ((s.pod.name, s) for s in source._pods.values()):
            if name != "good":
                scraped._url = scraped._url.replace("/metrics", f"/{name}")
        source.scrape_now()
        errors = source.errors()
        now = time.time()
        assert list(source.fetch([pod(good.port, "good")], now - 10, now, 1.0).pods) == ["good"]
    assert sorted(errors) == sorted(names)
    assert isinstance(errors["401"], MetricsRefused)
    assert "more than 1 MiB" in str(errors["huge"])
    assert all(isinstance(errors[n], MetricsUnreachable) for n in names if n != "401")
    source.close()
    good.close()


def test_threads_scrape_by_themselves_and_a_hanging_pod_delays_no_other() -> None:
    server = MetricsServer(engine_text(1))
    with fault_server() as (_, port, _):
        source = ScrapeSource(0.05, 1.0)
        # the fault server has no /metrics path, so it drops the connection; what matters is that it fails
        source.watch([pod(port, "bad"), pod(server.port, "good")])
        until = time.monotonic() + 5
        while time.monotonic() < until:
            found = source.fetch([pod(server.port, "good")], time.time() - 60, time.time(), 1.0)
            if found.pods and all(len(points) >= 3 for points in found.pods["good"].values()):
                break
            time.sleep(0.02)
        else:
            pytest.fail("no three scrapes in 5 s")
        source.close()
        source.close()
        assert source.fetch([pod(server.port, "good")], 0, 2e9, 1.0).pods == {}
    server.close()


def test_fetch_watches_new_pods_watch_drops_others_and_a_new_address_starts_anew() -> None:
    server = MetricsServer(engine_text(1))
    clock = Clock()
    source = ScrapeSource(clock=clock, background=False)
    assert source.fetch([pod(server.port)], 0, 2e6, 1.0).pods == {}
    source.scrape_now()
    assert list(source.fetch([pod(server.port)], clock.now - 5, clock.now, 1.0).pods) == ["p"]
    moved = PodRef("p", "ns", "127.0.0.2", server.port)
    assert source.fetch([moved], clock.now - 5, clock.now, 1.0).pods == {}
    source.watch([])
    assert source._pods == {}
    source.close()
    server.close()


def test_pods_that_nobody_names_are_forgotten() -> None:
    clock = Clock()
    source = ScrapeSource(clock=clock, background=False, retain_seconds=100)
    source.fetch([pod(1, "old")], 0, 1, 1.0)
    clock.now += 101
    source.fetch([pod(1, "new")], 0, 1, 1.0)
    assert [name for _, name in source._pods] == ["new"]
    source.close()


KEY = ("vllm:num_requests_running", ())


def test_the_ring_forgets_by_age_and_number() -> None:
    ring = Ring(retain_seconds=10, max_snapshots=5)
    for at in range(100):
        ring.add(float(at), {KEY: float(at)})
    assert len(ring) == 5
    ring.add(109.0, {KEY: 0.0})
    assert [at for at, _ in ring.read(0, 200, 1.0)[KEY]] == [99.0, 109.0]


def test_a_clock_set_back_drops_what_was_later() -> None:
    ring = Ring(1000)
    for at in (10.0, 20.0, 30.0, 15.0):
        ring.add(at, {KEY: at})
    assert [at for at, _ in ring.read(0, 100, 1.0)[KEY]] == [10.0, 15.0]


def test_a_long_window_is_thinned_but_not_its_last_minutes() -> None:
    ring = Ring(1e6)
    for at in range(0, 7200, 2):
        ring.add(float(at), {KEY: 1.0})
    times = [at for at, _ in ring.read(0, 7200, 5.0)[KEY]]
    assert len(times) <= 240 + 150
    assert [t for t in times if t >= 6900] == [float(t) for t in range(6900, 7200, 2)]
    assert times[0] == 0.0


def test_a_line_for_every_series_costs_little_memory() -> None:
    body = text(*(line("vllm:num_requests_running", 1, f'engine="{i}"') for i in range(200)))
    ring = Ring(1e6)
    for at in range(50):
        ring.add(float(at), parse(body).values)
    assert len({id(s.keys) for s in ring._snapshots}) == 1
