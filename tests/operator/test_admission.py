"""Places for trials over all tuners: counted from TuningTrials, one asker at a time, the same after a restart."""

from __future__ import annotations

import threading
from typing import Any

from trimtab.plan.budgets import Limits
from trimtab_operator.admission import WAITING_SECONDS, Admission
from trimtab_operator.records import ACTIVE_LABEL, rfc3339

Json = dict[str, Any]
NOW = 1_800_000_000.0


class Api:
    """TuningTrials only; a list with the label gives those in flight."""

    def __init__(self) -> None:
        self.trials: list[Json] = []
        self.now = NOW
        self.lists: list[tuple[str | None, Any]] = []

    def list(self, kind: str, namespace: str | None, labels: Any = "") -> list[Json]:
        assert kind == "TuningTrial"
        self.lists.append((namespace, labels))
        wanted = dict(labels) if labels else {}
        return [
            t
            for t in self.trials
            if namespace in (None, t["metadata"]["namespace"])
            and all(t["metadata"]["labels"].get(k) == v for k, v in wanted.items())
        ]


def tuner(name: str, age: float = 0.0, namespace: str = "ml") -> Json:
    meta = {"name": name, "uid": name, "namespace": namespace, "creationTimestamp": rfc3339(NOW - 5000 - age)}
    return {"metadata": meta}


def trial(owner: str, phase: str, restarts: int = 0, started: float = NOW - 100, namespace: str = "ml") -> Json:
    return {
        "metadata": {
            "name": f"{owner}-1",
            "namespace": namespace,
            "labels": {ACTIVE_LABEL: "true"},
            "creationTimestamp": rfc3339(started),
            "ownerReferences": [{"controller": True, "uid": owner}],
        },
        "spec": {"number": 1, "configuration": {}, "baseline": {"deploymentUid": f"d-{owner}", "replicas": 2}},
        "status": {"phase": phase, "restarts": restarts, "startedAt": rfc3339(started)},
    }


def desk(api: Any, **limits: int) -> Admission:
    return Admission(api, Limits(**limits), [None], lambda: api.now)


def ask(at: Admission, who: Json, need: int = 3, target: str = "") -> str:
    block = at.ask(who, target or f"d-{who['metadata']['name']}", need, [])
    return "" if block is None else block.reason


def test_places_count_trials_in_flight_and_those_about_to_begin() -> None:
    api = Api()
    api.trials = [trial("a", "Measuring"), trial("b", "AwaitingApproval"), trial("c", "Promoted")]
    at = desk(api, concurrent_trials=2)
    assert ask(at, tuner("x")) == "" and ask(at, tuner("y")) == "TooManyTrials"
    at.done(tuner("x"))  # no trial came of it
    assert ask(at, tuner("y")) == ""
    assert desk(api, concurrent_trials=1).full(tuner("x")) and not desk(api).full(tuner("x"))


def test_the_longest_waiting_gets_the_place_that_comes_free() -> None:
    api = Api()
    api.trials = [trial("a", "Measuring")]
    at = desk(api, concurrent_trials=1)
    young, old = tuner("young"), tuner("old", age=999)
    assert [ask(at, t) for t in (old, young)] == ["TooManyTrials"] * 2
    api.trials = []
    assert ask(at, young) == "TooManyTrials" and ask(at, old) == ""


def test_one_that_waits_no_more_holds_nobody_back() -> None:
    api = Api()
    api.trials = [trial("a", "Measuring")]
    at = desk(api, concurrent_trials=1)
    assert ask(at, tuner("gone", age=999)) == "TooManyTrials"
    api.trials, api.now = [], NOW + WAITING_SECONDS + 1
    assert ask(at, tuner("young")) == ""


def test_a_target_has_one_trial_whoever_asks() -> None:
    api = Api()
    api.trials = [trial("a", "Measuring")]
    at = desk(api)
    assert ask(at, tuner("b"), target="d-a") == "TargetInTrial" and ask(at, tuner("a"), target="d-a") == ""
    assert ask(at, tuner("x"), target="d-9") == "" and ask(at, tuner("y"), target="d-9") == "TargetInTrial"


def test_the_namespaces_restarts_are_counted_from_trials_of_the_day() -> None:
    api = Api()
    api.trials = [
        trial("a", "Promoted", restarts=5),
        trial("b", "RolledBack", restarts=50, started=NOW - 90_000),
        trial("c", "Promoted", restarts=50, namespace="other"),
    ]
    at = desk(api, restarts_per_namespace_per_day=10)
    assert ask(at, tuner("x")) == ""  # 5 and the 3 it may need
    api.trials.append(trial("x", "Measuring", restarts=1))
    at.done(tuner("x"))
    assert ask(at, tuner("y")) == "NamespaceBudgetSpent"  # 5, 3 for x and 3 for y
    assert ask(at, tuner("y"), 0) == ""  # a policy restarts nothing
    assert ask(desk(api, restarts_per_namespace_per_day=10), tuner("y")) == "NamespaceBudgetSpent"  # a new process


def test_without_limits_only_trials_in_flight_are_listed() -> None:
    api = Api()
    ask(desk(api), tuner("x"))
    assert api.lists == [(None, {ACTIVE_LABEL: "true"})]


def test_many_askers_at_once_do_not_exceed_the_places() -> None:
    api = Api()
    at = desk(api, concurrent_trials=3)
    gate, answers = threading.Barrier(12), list[str]()

    def one(number: int) -> None:
        gate.wait()
        answers.append(ask(at, tuner(f"t{number}")))

    threads = [threading.Thread(target=one, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.count("") == 3 and answers.count("TooManyTrials") == 9
