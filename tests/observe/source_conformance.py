"""What every MetricsSource must do. A source's test module gives a `story` fixture and inherits `SourceConformance`.

The story, played once per module (real seconds for Prometheus, fake ones for the scraper):
  begin                 alpha and beta serve, gamma too (Prometheus knows it by `instance` only), delta is no pod at all
  begin .. changed      nothing moves
  changed .. died       alpha's counter went up by 60 and got a child on first use; beta's counter is far from alpha's
  died .. end           beta does not answer any more
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from metric_servers import MetricsServer
from metric_texts import counter, http, line, text

from trimtab.observe.mapping import fleet, has_gap, observe
from trimtab.observe.samples import BASELINE_SECONDS, MetricsSource, PodRef, Samples

INFO = 'block_size="16",num_gpu_blocks="100",kv_cache_size_tokens="None",engine="0"'


def engine_text(generated: float, *more: str, running: str = "3") -> str:
    running_line = line("vllm:num_requests_running", running)
    return text(
        running_line, counter("generation_tokens", generated), line("vllm:cache_config_info", "1.0", INFO), *more
    )


@dataclass
class Story:
    source: MetricsSource
    pods: dict[str, PodRef]
    begin: float
    changed: float
    died: float
    end: float

    def fetch(self, *names: str, start: float | None = None, end: float | None = None) -> Samples:
        pods = [self.pods[n] for n in names]
        return self.source.fetch(pods, start or self.begin, end or self.end, 1.0)


def play(
    make: Callable[[dict[str, PodRef]], MetricsSource],
    elapse: Callable[[float, MetricsSource], None],
    now: Callable[[], float],
) -> Iterator[Story]:
    servers = {
        "alpha": MetricsServer(engine_text(100, running="3")),
        "beta": MetricsServer(engine_text(1000)),
        "gamma": MetricsServer(engine_text(5, line("vllm:kv_cache_usage_perc", "NaN"))),
    }
    pods = {name: PodRef(name, "serving", "127.0.0.1", server.port) for name, server in servers.items()}
    pods["delta"] = PodRef("delta", "serving", None, 8000)
    source = make(pods)
    try:
        elapse(1.5, source)
        begin = now()
        elapse(2.2, source)
        changed = now()
        servers["alpha"].text = engine_text(160, http(7), running="5")
        elapse(2.5, source)
        died = now()
        servers["beta"].close()
        elapse(3.0, source)
        yield Story(source, pods, begin, changed, died, now())
    finally:
        source.close()
        for server in servers.values():
            server.close()


class SourceConformance:
    def test_an_increase_is_seen_over_the_seconds_really_covered(self, story: Story) -> None:
        seen = observe(story.fetch("alpha"), "alpha", story.begin, story.end)
        assert seen is not None
        assert seen.generated_tokens == 60
        assert abs(seen.window_seconds - (story.end - story.begin)) <= 2.1

    def test_a_child_made_on_first_use_counts_from_zero(self, story: Story) -> None:
        seen = observe(story.fetch("alpha"), "alpha", story.begin, story.end)
        assert seen is not None
        assert seen.requests == 7

    def test_windows_that_follow_each_other_add_up(self, story: Story) -> None:
        samples = story.fetch("alpha")
        middle = (story.begin + story.end) / 2
        parts = [observe(samples, "alpha", a, b) for a, b in ((story.begin, middle), (middle, story.end))]
        assert sum(p.generated_tokens for p in parts if p and p.generated_tokens is not None) == 60

    def test_pods_are_kept_apart(self, story: Story) -> None:
        samples = story.fetch("alpha", "beta", "gamma")
        assert sorted(samples.pods) == ["alpha", "beta", "gamma"]
        assert {self._values(samples, name) for name in samples.pods} == {(100.0, 160.0), (1000.0,), (5.0,)}

    def test_an_unknown_pod_is_absent_and_has_a_gap(self, story: Story) -> None:
        samples = story.fetch("alpha", "delta")
        assert list(samples.pods) == ["alpha"]
        assert has_gap(samples, "delta", story.end, 1e9)
        assert observe(samples, "delta", story.begin, story.end) is None

    def test_no_pods_is_no_samples(self, story: Story) -> None:
        assert story.source.fetch([], story.begin, story.end, 1.0).pods == {}

    def test_a_pod_that_died_has_no_new_samples(self, story: Story) -> None:
        samples = story.fetch("alpha", "beta")
        assert not has_gap(samples, "alpha", story.end, 1.6)
        assert has_gap(samples, "beta", story.end, 1.6)
        assert max(at for points in samples.pods["beta"].values() for at, _ in points) <= story.died + 0.1
        assert observe(samples, "beta", story.died + 0.2, story.end) is None

    def test_points_ascend_are_finite_and_lie_in_the_asked_time(self, story: Story) -> None:
        samples = story.fetch("alpha", "beta", "gamma", start=story.changed, end=story.died)
        for points in (p for series in samples.pods.values() for p in series.values()):
            times = [at for at, _ in points]
            assert times == sorted(set(times))
            assert story.changed - BASELINE_SECONDS <= times[0] <= times[-1] <= story.died
            assert all(math.isfinite(value) for _, value in points)

    def test_nan_is_dropped(self, story: Story) -> None:
        assert not [name for name, _ in story.fetch("gamma").pods["gamma"] if "kv_cache_usage" in name]

    def test_keys_carry_the_engines_labels_only(self, story: Story) -> None:
        labels: set[str] = {k for _, pairs in story.fetch("alpha").pods["alpha"] for k, _ in pairs}
        assert labels <= {
            "engine",
            "model_name",
            "handler",
            "method",
            "status",
            *(p.split("=")[0] for p in INFO.split(",")),
        }

    def test_capacity_and_gauges_come_through(self, story: Story) -> None:
        seen = fleet(story.fetch("alpha", "gamma"), ["alpha", "gamma"], story.begin, story.changed)
        assert seen is not None
        assert (seen.pods, seen.kv_capacity_tokens, seen.running) == (2, 1600.0, 3.0)

    def test_two_fetches_give_the_same(self, story: Story) -> None:
        assert story.fetch("alpha", "beta", "gamma") == story.fetch("alpha", "beta", "gamma")

    @staticmethod
    def _values(samples: Samples, pod: str) -> tuple[Any, ...]:
        return tuple(
            dict.fromkeys(
                value
                for (name, _), points in samples.pods[pod].items()
                for _, value in points
                if name == "vllm:generation_tokens_total"
            )
        )
