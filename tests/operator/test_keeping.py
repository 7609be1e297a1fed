"""A trial's status that the API server refuses: shorter where that helps, and no way back waits for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders import NOW, evidence, record, view
from test_kill_everywhere import TuneWorld

from trimtab.errors import ClusterUnavailable, TargetConflict, TargetRefused, TrimtabError
from trimtab.judge.guardrail import Breach
from trimtab.judge.verdict import Kind, Verdict
from trimtab.plan.record import Phase
from trimtab_operator.keeping import Keeping, shortened
from trimtab_operator.records import record_of, rfc3339, status_of

Json = dict[str, Any]
TUNER: Json = {"metadata": {"name": "llm", "namespace": "ns", "uid": "t"}}


class Server:
    """Takes statuses of at most `most` characters; `error` is what it says to others."""

    def __init__(self, error: TrimtabError, most: int = 0) -> None:
        self.error, self.most = error, most
        self.written: list[Json] = []

    def get(self, *_: str) -> None:
        """Gone."""

    def write_status(self, _kind: str, seen: Json, status: Json) -> Json:
        if len(json.dumps(status)) > self.most:
            raise self.error
        self.written.append(status)
        return {**seen, "status": status}


class Told:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def event(self, _of: Json, reason: str, note: str, *, warning: bool = False) -> None:
        assert warning
        self.notes.append(f"{reason}: {note}")


def trial(status: Json | None = None) -> Json:
    spec = {"number": 1, "configuration": {}, "baseline": {"replicas": 3}}
    meta = {"name": "llm-1", "namespace": "ns", "uid": "u", "creationTimestamp": rfc3339(NOW)}
    return {"metadata": meta, "spec": spec, "status": status or {}}


def keeping(server: Server) -> tuple[Keeping, Told]:
    told: Any = Told()
    api: Any = server
    return Keeping(api, told), told


CRASHED_BREACH = Breach("CrashedUnderLoad", "it died", True)
LONG = Verdict(Kind.BETTER, "GoodputBetter", "x" * 1000, gain=0.5, score=0.4, numbers={f"n{i}": 1.0 for i in range(60)})


@pytest.mark.parametrize(
    "error",
    [ClusterUnavailable("PUT: 500 etcdserver: request is too large"), TargetRefused("PUT: 413 entity too large"),
     TargetRefused("PUT: 422 status.verdict.numbers: Too many")],
)  # fmt: skip
def test_what_is_refused_is_written_with_less(error: TrimtabError) -> None:
    server = Server(error, most=2500)
    kept, _ = keeping(server)
    long = record(Phase.CONFIRMING, message="y" * 1000, verdict=LONG)
    written = kept.save(trial(), long, view())
    read = record_of(written)
    assert read.phase is Phase.CONFIRMING and read.verdict is not None and read.verdict.kind is Kind.BETTER
    assert read.verdict.gain == 0.5 and len(read.message) <= 100 and len(server.written) == 1


@pytest.mark.parametrize("error", [ClusterUnavailable("timed out"), TargetConflict("409")])
def test_what_is_not_its_contents_fault_is_not_tried_with_less(error: TrimtabError) -> None:
    kept, _ = keeping(Server(error, most=2500))
    with pytest.raises(type(error)):
        kept.save(trial(), record(Phase.CONFIRMING, message="y" * 1000, verdict=LONG), view())


def test_a_shortened_status_says_all_that_the_state_machine_needs() -> None:
    """Everything but texts for people and the verdict's numbers."""
    whole = record(Phase.MEASURING, held=True, applied=True, measure_from=NOW, verdict=LONG, restarts=1, remeasured=2)
    status = status_of(whole, {}, "canary", 1)
    short = shortened(status)
    assert {k: v for k, v in status.items() if short[k] == v}.keys() == status.keys() - {"history", "verdict"}
    assert short["verdict"].keys() == status["verdict"].keys() - {"numbers"}


def test_only_a_way_back_is_gone_without_its_record() -> None:
    kept, told = keeping(Server(TargetRefused("422")))
    for phase, back in ((Phase.PROMOTING, False), (Phase.PROMOTED, False), (Phase.ROLLING_BACK, True)):
        assert kept.goes_back(TUNER, trial(), record(phase), TargetRefused("422")) is back
    assert kept.record(trial()).phase is Phase.ROLLING_BACK and len(told.notes) == 3
    assert not kept.goes_back(TUNER, trial(), record(Phase.ROLLING_BACK), TargetConflict("409"))
    ended = trial({"phase": "RolledBack", "phaseSince": rfc3339(NOW)})
    assert kept.record(ended).phase is Phase.ROLLED_BACK  # what is stored as an end is one


@pytest.mark.parametrize("crashes", [True, False], ids=["a guardrail", "the owner"])
@pytest.mark.parametrize("way", [0, 1, None], ids=["maxSurge 0", "maxSurge 1", "hot"])
def test_the_target_is_taken_back_though_no_status_can_be_written(
    monkeypatch: pytest.MonkeyPatch, way: int | None, crashes: bool
) -> None:
    """Before, the canary stayed in traffic until the API server took the next phase."""
    world = TuneWorld(monkeypatch, surge=way, better=True, kill=(0, ""))
    world.run(lambda: world.phase(world.last) == "Measuring")
    refused: Any = world.doomed

    def write_status(kind: str, seen: Json, status: Json) -> Json:
        if kind == "TuningTrial":
            raise TargetRefused("422 status: no")
        return {**seen, "status": status}

    usual = refused.inner.write_status
    refused.inner.write_status = write_status
    if crashes:
        monkeypatch.setattr("trimtab_operator.reconcile.trial_evidence", lambda *_: evidence())
        monkeypatch.setattr("trimtab.plan.trial.serving_breach", lambda *_: CRASHED_BREACH)
    else:
        world.tuner()["spec"]["suspend"] = True
    world.run(lambda: back(world), 40)
    refused.inner.write_status = usual
    world.tuner()["spec"]["suspend"] = True
    world.run(lambda: world.phase(world.last) == "RolledBack", 20)
    assert world.problem(False) == ""
    assert world.trials()[-1]["status"]["verdict"]["reason"] == ("CrashedUnderLoad" if crashes else "Stopped")


def back(world: TuneWorld) -> bool:
    now = world.api.objects["Deployment", "llm"]
    if world.surge is None:
        return "experiment" not in world.api.policy()
    marked = "trimtab.dev/trial" in (now["metadata"].get("annotations") or {})
    return not marked and now["spec"] == world.before


@pytest.mark.parametrize("way", [0, 1, None], ids=["maxSurge 0", "maxSurge 1", "hot"])
def test_a_fault_of_the_judge_ends_the_trial_where_it_began(monkeypatch: pytest.MonkeyPatch, way: int | None) -> None:
    """It would fail at every look, and the canary would serve for ever."""
    world = TuneWorld(monkeypatch, surge=way, better=True, kill=(0, ""))
    world.run(lambda: world.phase(world.last) == "WarmingUp")

    def fails(*_: Any, **__: Any) -> None:
        raise OverflowError("math range error")

    monkeypatch.setattr("trimtab.plan.trial.evaluate", fails)
    world.run(world.rested)
    assert world.problem(False) == ""
    verdict = world.trials()[-1]["status"]["verdict"]
    assert (verdict["kind"], verdict["reason"]) == ("Error", "JudgeFailed") and "OverflowError" in verdict["message"]
