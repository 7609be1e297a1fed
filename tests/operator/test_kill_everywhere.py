"""Killed before and after every write, for each strategy and both ends, on an API server of dicts: exhaustive.

The same on a real API server: tests/cluster/test_kill_matrix.py. A switchback is killed there only.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from builders import evidence
from test_whole_way import HOT, Api, Killed, World

from kill_points import SIDES, Doomed
from trimtab.engine.rewrite import rewrite
from trimtab.engine.settings import Configuration
from trimtab.plan.record import Evidence
from trimtab.tune.apart import Answer
from trimtab.tune.writing import Proposed
from trimtab_operator import reconcile
from trimtab_operator.reconcile import Reconciler
from trimtab_operator.recorder import Recorder
from trimtab_operator.records import unix
from trimtab_operator.rollout import TRIAL_ANNOTATION

Json = dict[str, Any]
OWNERS: Json = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}


class Controller(Api):
    """With surge where the strategy says so: the new pod comes first, an old one goes at the next step. And with
    minReadySeconds: a new pod that is not ready for so long holds the next one.
    """

    def settle(self) -> None:
        spec = self.objects["Deployment", "llm"]["spec"]
        if self._young(spec):
            return
        surge = (spec.get("strategy") or OWNERS)["rollingUpdate"]["maxSurge"] == 1
        pods = [o for (k, _), o in self.objects.items() if k == "Pod"]
        fresh = [p for p in pods if p["spec"] == spec["template"]["spec"]]
        if surge and len(pods) > 2 and (spec.get("paused") or len(fresh) == 2):
            for pod in [p for p in pods if p not in fresh][: 0 if spec.get("paused") else 1]:
                del self.objects["Pod", pod["metadata"]["name"]]
        elif surge and len(pods) == 2 and len(fresh) < 2 and not (spec.get("paused") and fresh):
            kept = copy.deepcopy(next(p for p in pods if p not in fresh))
            super().settle()
            self.objects["Pod", kept["metadata"]["name"]] = kept  # it stays beside the new one
            return
        super().settle()

    def _young(self, spec: Json) -> bool:
        ours = [o for (k, _), o in self.objects.items() if k == "Pod" and o["spec"] == spec["template"]["spec"]]
        born = [unix(p["status"]["conditions"][0]["lastTransitionTime"]) for p in ours]
        return len(born) == 1 and self.now - max(born) < spec.get("minReadySeconds", 0)


class TuneWorld(World):
    """One trial of settings (or, hot, one of the policy after its install) with a process that may be killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, surge: int | None, better: bool, kill: tuple[int, str]):
        self.doomed: Doomed | None = None
        self.writes: list[str] = []
        self.kill, self.surge = kill, surge
        policy = HOT if surge is None else {"middleware": "Off"}
        super().__init__(monkeypatch, 0.3 if better else -0.4, **policy)
        deployment, spec = self.api.objects["Deployment", "llm"], self.tuner()["spec"]
        deployment["spec"]["strategy"] = copy.deepcopy(OWNERS)
        if surge is not None:
            spec["rollout"]["maxSurge"] = surge
            spec["tokenPolicy"] = {}
            spec["search"] = {"candidates": [{"maxNumSeqs": 48}], "maxTrials": 1}
        monkeypatch.setattr(reconcile, "trial_evidence", self._gained)
        self.before = copy.deepcopy(deployment["spec"])

    def process(self) -> Reconciler:
        if self.doomed is None:
            self.api.__class__ = Controller
            self.doomed = Doomed(self.api, *self.kill, self._die, self.writes.append)
        made, api = self.api, self.doomed
        self.api = api  # type: ignore[assignment] - it is one in all that is called
        try:
            reconciler = super().process()
        finally:
            self.api = made
        reconciler.recorder = Recorder(api, "test", lambda: self.api.now)  # type: ignore[arg-type]
        if self.surge is not None:
            search: Any = SimpleNamespace(next=self.next, forget=lambda *_: None)
            reconciler.searching = search
        return reconciler

    def _die(self) -> None:
        assert self.doomed is not None
        self.doomed.number = 0
        raise Killed

    def next(self, _tuner: Any, _spec: Any, target: Any, *_: Any) -> Answer:
        """The search: one candidate, once."""
        if self.trials():
            return Answer(None, "there was one")
        written = rewrite(target.template, {"max_num_seqs": 48})
        return Answer(Proposed(Configuration.of(max_num_seqs=48), written, "a candidate"))

    def _gained(self, source: Any, spec: Any, record: Any, *more: Any) -> Evidence:
        if record.kind.value != "Tune":
            return self._evidence(source, spec, record, *more)
        now, start = more[-1], record.measure_from or record.phase_since
        windows = int((now - start) // 6)
        return evidence(self.gain, start=start, windows=windows) if windows else evidence()

    @property
    def last(self) -> int:
        """The number of the trial that counts."""
        return 1 if self.surge is not None else 2

    def rested(self) -> bool:
        trials = self.trials()
        free = not any(o["metadata"].get("finalizers") for o in (*trials, self.tuner()))
        return self.phase(self.last) in ("Promoted", "RolledBack", "Cancelled") and free

    def problem(self, better: bool) -> str:
        """What is wrong at the end, "" for nothing."""
        (trial,) = [t for t in self.trials() if t["spec"]["number"] == self.last]
        now, status = self.api.objects["Deployment", "llm"], trial["status"]
        if status["phase"] != ("Promoted" if better else "RolledBack"):
            return f"{status['phase']}: {status['message']}"
        if TRIAL_ANNOTATION in (now["metadata"].get("annotations") or {}) or "paused" in now["spec"]:
            return "marked or paused"
        if {**now["spec"], "template": 0} != {**self.before, "template": 0}:
            return f"spec {now['spec']}"
        if self.surge is not None:
            moved = "--max-num-seqs=48" in now["spec"]["template"]["spec"]["containers"][0]["args"]
            return "" if moved == better else "the wrong template"
        return "" if "experiment" not in self.api.policy() else "the experiment goes on"


WAYS = {"canary, maxSurge 0": 0, "canary, maxSurge 1": 1, "hot": None}


@pytest.mark.parametrize("better", [True, False], ids=["promoted", "rolled back"])
@pytest.mark.parametrize("way", WAYS)
def test_without_a_kill_it_ends_as_it_should(monkeypatch: pytest.MonkeyPatch, way: str, better: bool) -> None:
    world = TuneWorld(monkeypatch, surge=WAYS[way], better=better, kill=(0, ""))
    world.run(world.rested)
    assert world.problem(better) == ""
    if WAYS[way] is not None:
        assert {"patch Deployment: template", "patch Deployment: pause", "create TuningTrial"} <= set(world.writes)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("better", [True, False], ids=["promoted", "rolled back"])
@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.soak] if surge is None else []) for way, surge in WAYS.items()]
)
def test_killed_before_or_after_any_write_it_ends_the_same(
    monkeypatch: pytest.MonkeyPatch, way: str, better: bool
) -> None:
    plain = TuneWorld(monkeypatch, surge=WAYS[way], better=better, kill=(0, ""))
    plain.run(plain.rested)
    for number in range(1, len(plain.writes) + 1):
        for side in SIDES:
            world = TuneWorld(monkeypatch, surge=WAYS[way], better=better, kill=(number, side))
            world.run(world.rested)
            assert world.problem(better) == "", (side, number, world.writes)
            kinds = [t["spec"]["kind"] for t in world.trials()]
            assert kinds == (["Tune"] if WAYS[way] is not None else ["Install", "Policy"]), (side, number)
    print(f"{way}, {'promoted' if better else 'rolled back'}: {2 * len(plain.writes)} kills")


def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that touches the target before it has saved the phase strands it when it is killed in between."""
    world = TuneWorld(monkeypatch, surge=0, better=True, kill=(0, ""))
    world.run(lambda: world.phase(1) == "Measuring")
    stored = world.api.objects["TuningTrial", "llm-1"]
    body = world.api.objects["Deployment", "llm"]["spec"]
    del body["paused"]  # as if the resume had been sent before the status said Promoting, and then the process died
    world.run(world.rested)
    assert stored["status"]["phase"] == "RolledBack" and world.problem(True).startswith("RolledBack")
    assert replace(reconcile.record_of(world.trials()[0])).verdict.reason == "ExternalChange"  # type: ignore[union-attr]
