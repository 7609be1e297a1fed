"""What a look at a target's pods finds: trends over its windows, and pods that differ behind a calm average."""

from __future__ import annotations

from typing import Any

from trimtab.diagnose.finding import Role
from trimtab.engine.settings import Configuration
from trimtab.errors import MetricsUnreachable
from trimtab.observe.samples import PodRef, Samples
from trimtab.plan.preconditions import FleetView
from trimtab.plan.spec import TunerSpec
from trimtab.tune.evidence import Look, fleet_observation, look_at, with_findings

PODS = [PodRef("a", "ns", "10.0.0.1", 8000), PodRef("b", "ns", "10.0.0.2", 8000)]
SPEC = TunerSpec.parse({"targetRef": {"name": "llm"}, "metrics": {"direct": {}}})
VIEW = FleetView(exists=True, configuration=Configuration.of(max_num_seqs=64))
NOW = 10_000.0


class Source:
    """Pods by what their gauges are at a time, and how many tokens they have made by then."""

    def __init__(self, **pods: Any) -> None:
        self.pods = pods

    def fetch(self, pods: Any, start: float, end: float, step_seconds: float) -> Samples:
        times = [start - 30.0 + 15.0 * i for i in range(int((end - start + 30.0) / 15.0) + 1)]
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                 "vllm:generation_tokens_total")  # fmt: skip
        return Samples({
            pod: {(name, ()): tuple((t, float(at(t)[i])) for t in times) for i, name in enumerate(names)}
            for pod, at in self.pods.items()
        })  # fmt: skip

    def close(self) -> None: ...


def found(source: Any) -> Any:
    look = look_at(source, PODS, 300.0, NOW)
    from dataclasses import replace

    return with_findings(replace(VIEW, observation=look.observation), SPEC, look).findings


def test_pods_that_differ_are_seen_behind_their_average() -> None:
    busy, calm = (lambda t: (60, 40, 0.9, 100 * t)), (lambda t: (4, 0, 0.1, 20 * t))
    first = found(Source(a=busy, b=calm))[0]
    assert (first.name, first.role) == ("Imbalance", Role.MAIN)


def test_a_hang_within_the_look_is_seen() -> None:
    def at(t: float) -> tuple[float, ...]:
        return (8, 2, 0.4, 50 * min(t, NOW - 200.0))

    assert found(Source(a=at, b=at))[0].name == "Hang"


def test_a_look_has_windows_and_pods() -> None:
    source: Any = Source(a=lambda t: (4, 0, 0.1, 20 * t), b=lambda t: (6, 0, 0.2, 20 * t))
    look = look_at(source, PODS, 300.0, NOW)
    assert len(look.windows) == 3 and set(look.by_pod) == {"a", "b"} and look.trouble == ""
    assert look.observation is not None and look.observation.running == 5.0
    assert fleet_observation(source, PODS, 300.0, NOW) == (look.observation, "")


def test_a_source_that_fails_is_told() -> None:
    class Broken:
        def fetch(self, *_: Any) -> Samples:
            raise MetricsUnreachable("no answer")

    broken: Any = Broken()
    look = look_at(broken, PODS, 300.0, NOW)
    assert look == Look(trouble=look.trouble) and "no answer" in look.trouble
