"""The profile that a tuner names reaches the search; one that cannot be read is told and stops nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks import shown_metrics
from tests.simulated_worlds import profile

from trimtab.engine.settings import Configuration
from trimtab.errors import InputError
from trimtab.plan.preconditions import FleetView, Ground
from trimtab.plan.spec import TunerSpec
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.simulator import simulate
from trimtab.simulate.workload import Workload
from trimtab_operator.profiles import Profiles, profile_for
from trimtab_operator.wishes import search_hash

TUNER = {"metadata": {"name": "llm", "namespace": "ns", "uid": "u"}}
REFERENCE = {"name": "llm-profile", "key": "profile.json"}


def spec(reference: dict[str, str] | None = REFERENCE) -> TunerSpec:
    search = {} if reference is None else {"profileConfigMapRef": reference}
    return TunerSpec.parse({"targetRef": {"name": "llm"}, "metrics": {"direct": {}}, "search": search})


class ConfigMaps:
    """`text`: what the key holds; None: there is none."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def config_map_value(self, namespace: str, name: str, key: str, field: str) -> str:
        assert (namespace, name, key) == ("ns", "llm-profile", "profile.json")
        if self.text is None:
            raise InputError(field, f"ConfigMap {name} has no key {key}", "Create it, or correct the reference.")
        return self.text


def profiles(text: str | None) -> Profiles:
    found: Any = ConfigMaps(text)
    return Profiles(found)


def test_a_tuner_that_names_none_gets_none_and_its_question_stays_what_it_was() -> None:
    assert profiles(None).of(TUNER, spec(None)) == (None, "")
    assert "profile" not in str(spec(None).search.model_dump(exclude_none=True))
    assert search_hash(spec(None)) != search_hash(spec())


def test_a_profile_is_parsed_once_for_each_text() -> None:
    world = profile("kv")
    source = profiles(world.model_dump_json())
    first, problem = source.of(TUNER, spec())
    assert first is not None and problem == "" and first.engine == world.engine
    assert source.of(TUNER, spec())[0] is first


@pytest.mark.parametrize(
    ("text", "named"),
    [(None, "spec.search.profileConfigMapRef"), ("{", "llm-profile/profile.json"), ('{"version": 1}', "engine")],
)
def test_what_cannot_be_read_is_told_with_its_place(text: str | None, named: str) -> None:
    found, problem = profiles(text).of(TUNER, spec())
    assert found is None
    assert problem.startswith("the search goes on without simulation: ") and named in problem


# --- calibrated from the target's own metrics -------------------------------------------------------------------------
BEGIN = shown_metrics.BEGIN


class Metrics:
    """One pod's, as a Prometheus would have them of a simulated run of `seconds`."""

    def __init__(self, seconds: float) -> None:
        rng = np.random.default_rng(3)
        arrivals = np.cumsum(rng.exponential(0.2, int(5 * seconds)))
        prompt = np.clip(rng.lognormal(6.0, 0.7, len(arrivals)), 1, 3000).astype(int)
        output = np.clip(rng.lognormal(4.5, 0.8, len(arrivals)), 2, 900).astype(int)
        config = EngineConfig(4000, max_num_seqs=64)
        times = StepTimes(0.012, 4e-5, 1e-10, 4e-5, 8e-8, per_prefill_step=0.005)
        run = simulate(Workload.of(arrivals, prompt, output), config, times, marks=True)
        self.samples = shown_metrics.as_samples(shown_metrics.scrapes(shown_metrics.Run.of_outcome(run), config, 10.0))
        self.fetched = 0

    def fetch(self, pods: Any, *_: float) -> Any:
        self.fetched += 1
        assert [p.name for p in pods] == ["pod"]
        return self.samples


def at_rest(metrics: Metrics, history: tuple[Any, ...] = (), **search: Any) -> tuple[Any, list[str], Profiles]:
    asked = TunerSpec.parse({"targetRef": {"name": "llm"}, "metrics": {"direct": {}}, "search": search})
    configuration = Configuration.of(max_num_seqs=64, max_num_batched_tokens=2048)
    fleet = FleetView(exists=True, replicas=1, configuration=configuration, stable_seconds=400.0)
    ground = Ground(asked, fleet, history, history, BEGIN + 300.0)
    pod = SimpleNamespace(name="pod", ip="10.0.0.1", health=SimpleNamespace(ready=True))
    target: Any = SimpleNamespace(current_pods=lambda: [pod], read_engine=lambda _: (configuration, "", 8000, None))
    sources: Any = SimpleNamespace(of=lambda *_: metrics)
    events: list[str] = []
    recorder: Any = SimpleNamespace(event=lambda _, reason, text, warning=False: events.append(f"{reason}: {text}"))
    made = profiles(None)
    return lambda g=ground: profile_for(made, sources, recorder, TUNER, target, g), events, made


def test_without_being_asked_nothing_is_calibrated() -> None:
    metrics = Metrics(30)
    find, events, _ = at_rest(metrics)
    assert find() is None and events == [] and metrics.fetched == 0


def test_a_search_that_asks_for_it_gets_a_profile_of_its_own_metrics_once() -> None:
    metrics = Metrics(240)
    find, events, _ = at_rest(metrics, calibration="Baseline")
    found = find()
    assert found is not None and found.engine.max_num_seqs == 64
    assert len(events) == 1 and events[0].startswith("Calibrated: candidates are simulated first: calibrated from")
    trial: Any = object()
    ground = Ground(TunerSpec.parse({"targetRef": {"name": "llm"}, "metrics": {"direct": {}},
                                     "search": {"calibration": "Baseline"}}),
                    FleetView(exists=True), (trial,), (trial,), BEGIN + 900.0)  # fmt: skip
    assert find(ground) is found and len(events) == 1 and metrics.fetched == 1


def test_too_little_traffic_is_told_and_the_search_goes_on() -> None:
    find, events, _ = at_rest(Metrics(2), calibration="Baseline")
    assert find() is None
    assert len(events) == 1 and events[0].startswith("NotCalibrated: not simulated: ")


def test_asking_for_it_leaves_the_question_of_older_tuners_as_it_was() -> None:
    assert "calibration" not in str(search_hash(spec(None)))
    plain = TunerSpec.parse(
        {"targetRef": {"name": "llm"}, "metrics": {"direct": {}}, "search": {"calibration": "None"}}
    )
    assert search_hash(plain) == search_hash(spec(None))


def test_it_is_read_anew_when_it_changes() -> None:
    store = SimpleNamespace(config_map_value=lambda *_: profile("kv").model_dump_json())
    source: Any = Profiles(store)  # type: ignore[arg-type]
    first = source.of(TUNER, spec())[0]
    store.config_map_value = lambda *_: profile("slots").model_dump_json()
    assert source.of(TUNER, spec())[0] != first
