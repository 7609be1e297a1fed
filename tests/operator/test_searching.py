"""What the search is asked and when its answer is taken: in the background, with the profile that a tuner names or its
target's own metrics; what stands in the way is told and stops nothing.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.engine.settings import Configuration
from trimtab.errors import InputError, MetricsUnreachable, SearchFailed
from trimtab.observe.samples import Samples
from trimtab.plan.preconditions import FleetView, Ground
from trimtab.plan.spec import TunerSpec
from trimtab.tune.apart import Answer, Question, Said
from trimtab_operator.searching import Searching
from trimtab_operator.wishes import search_hash

NOW = 1_800_000_000.0
REFERENCE = {"name": "llm-profile", "key": "profile.json"}
CONFIGURATION = Configuration.of(max_num_seqs=64)


class Later(Executor):
    """Runs what was submitted when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Any, Any]] = []

    def submit(self, function: Any, /, *args: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, function, args))
        return future

    def run(self) -> None:
        for future, function, args in self.waiting:
            try:
                future.set_result(function(*args))
            except SearchFailed as error:
                future.set_exception(error)
        self.waiting.clear()


def spec(**search: Any) -> TunerSpec:
    return TunerSpec.parse({"targetRef": {"name": "llm"}, "metrics": {"direct": {}}, "search": search})


class World:
    """One tuner; `answer` is what the search says, `text` what the ConfigMap holds (None: there is none)."""

    def __init__(self, **search: Any) -> None:
        self.text: str | None = "{}"
        self.asked: list[Question] = []
        self.events: list[str] = []
        self.answer: Answer | SearchFailed = Answer(None, "nothing to gain", kept=b"mind")
        self.now, self.threads, self.fetched, self.reachable = NOW, Later(), 0, True
        self.spec, self.uid, self.history = spec(**search), "u", [SimpleNamespace(name="t-1")]
        self.fleet = FleetView(exists=True, replicas=1, configuration=CONFIGURATION, stable_seconds=7200.0)
        pod = SimpleNamespace(name="pod", ip="10.0.0.1", health=SimpleNamespace(ready=True))
        self.target: Any = SimpleNamespace(
            template={"spec": {}}, current_pods=lambda: [pod], read_engine=lambda _: (CONFIGURATION, "", 8000, None)
        )
        made: Any = self
        self.searching = Searching(made, made, made, self._ask, lambda: self.now, threads=self.threads)

    def config_map_value(self, namespace: str, name: str, key: str, field: str) -> str:
        if self.text is None:
            raise InputError(field, f"ConfigMap {name} has no key {key}", "Create it, or correct the reference.")
        return self.text

    def of(self, *_: Any) -> Any:
        return self

    def fetch(self, pods: Any, start: float, end: float, step: float) -> Samples:
        if not self.reachable:
            raise MetricsUnreachable("no route")
        self.fetched += 1
        assert (end - start, [p.name for p in pods]) == (3600.0, ["pod"])  # of two warm hours
        return Samples()

    def event(self, _: Any, reason: str, text: str, warning: bool = False) -> None:
        self.events.append(f"{reason}: {text}")

    def _ask(self, question: Question) -> Answer:
        self.asked.append(question)
        if isinstance(self.answer, SearchFailed):
            raise self.answer
        return self.answer

    def look(self) -> Answer | None:
        tuner = {"metadata": {"name": "llm", "namespace": "ns", "uid": self.uid}}
        ground = Ground(self.spec, self.fleet, self.history, self.history, self.now)  # type: ignore[arg-type]
        return self.searching.next(tuner, self.spec, self.target, ground, [])

    def answered(self) -> Answer | None:
        assert self.look() is None
        self.threads.run()
        return self.look()


def test_a_pass_does_not_wait_and_a_later_one_takes_the_answer_once() -> None:
    world = World()
    assert [world.look() for _ in range(3)] == [None] * 3
    assert len(world.threads.waiting) == 1
    world.threads.run()
    assert world.look() == world.answer and len(world.asked) == 1
    assert world.look() is None  # asked anew
    assert world.asked[0].key == "ns/llm" and world.asked[0].rest is None


@pytest.mark.parametrize("change", ["spec", "settings", "history", "time"])
def test_an_answer_to_what_is_no_longer_asked_is_not_taken(change: str) -> None:
    world = World()
    assert world.look() is None
    if change == "spec":
        world.spec = spec(maxTrials=3)
    elif change == "settings":
        world.fleet = replace(world.fleet, configuration=Configuration.of(max_num_seqs=8))
    elif change == "history":
        world.history.append(SimpleNamespace(name="t-2"))
    assert world.look() is None  # it still thinks: nothing else is asked meanwhile
    assert len(world.threads.waiting) == 1
    world.now += 1000.0  # however long that takes
    world.threads.run()
    world.now += 301.0 if change == "time" else 1.0
    assert world.answered() == world.answer and len(world.asked) == 2


def test_another_tuner_of_the_same_name_does_not_get_the_old_ones_answer() -> None:
    world = World()
    assert world.answered() is not None
    world.uid = "another"
    assert world.look() is None
    world.threads.run()
    assert world.asked[-1].kept is None
    world.searching.forget("ns", "llm")
    assert world.look() is None


def test_what_the_search_says_is_told_and_what_it_knows_goes_with_the_next_question() -> None:
    world = World()
    world.answer = Answer(None, "", (Said("Calibrated", "by 300 requests"),), b"mind")
    assert world.answered() == world.answer and world.events == ["Calibrated: by 300 requests"]
    assert world.look() is None
    world.threads.run()
    assert [q.kept for q in world.asked] == [None, b"mind"]


def test_a_search_that_fails_is_asked_again() -> None:
    world = World()
    world.answer = SearchFailed("the process of the search ended by signal 9")
    with pytest.raises(SearchFailed, match="signal 9"):
        world.answered()
    world.answer = Answer(None)
    assert world.answered() == world.answer


# --- what is simulated by ---------------------------------------------------------------------------------------------
def test_a_profile_that_the_tuner_names_goes_along_and_nothing_is_calibrated() -> None:
    world = World(profileConfigMapRef=REFERENCE)
    assert world.answered() is not None
    asked = world.asked[0]
    assert (asked.text, asked.where) == ("{}", "spec.search.profileConfigMapRef: llm-profile/profile.json")
    assert asked.rest is None and world.fetched == 0


def test_a_profile_that_is_not_there_is_told_with_its_place_and_stops_nothing() -> None:
    world = World(profileConfigMapRef=REFERENCE)
    world.text = None
    assert world.answered() is not None and world.asked[0].text is None
    (told,) = world.events
    assert told.startswith("ProfileUnreadable: the search goes on without simulation: spec.search.profileConfigMapRef")


def test_a_search_is_calibrated_at_its_beginning_and_once_for_each_process() -> None:
    world = World(calibration="Baseline")
    assert world.answered() is not None
    assert world.answered() is not None
    assert world.fetched == 1 and world.asked[0].rest is not None and world.asked[1].rest is None
    assert world.asked[0].rest.configuration == CONFIGURATION and len(world.asked[0].rest.samples) == 1
    world.history.clear()  # a new search: the load or the question is another
    assert world.answered() is not None
    assert world.fetched == 2 and world.asked[2].rest is not None


def test_metrics_that_cannot_be_had_stop_nothing() -> None:
    world = World(calibration="Baseline")
    world.reachable = False
    assert world.answered() is not None
    rest = world.asked[0].rest
    assert rest is not None and rest.samples == [] and rest.trouble == "no route"


def test_without_being_asked_nothing_is_calibrated() -> None:
    world = World()
    assert world.answered() is not None and world.fetched == 0


def test_calibration_leaves_the_question_as_it_was() -> None:
    assert search_hash(spec()) == search_hash(spec(calibration="None")) == search_hash(spec(calibration="Baseline"))
    assert search_hash(spec()) != search_hash(spec(profileConfigMapRef=REFERENCE))
