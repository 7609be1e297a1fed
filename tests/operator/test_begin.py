"""Which trial begins: the middleware first, then a cap without a restart, then settings."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Histogram, Observation
from trimtab.plan.block import Block
from trimtab.plan.hot import CapProposal
from trimtab.plan.middleware import Decision
from trimtab.plan.preconditions import FleetView, Ground
from trimtab.plan.record import TrialKind
from trimtab.plan.spec import TunerSpec
from trimtab.plan.token_policy import digest_of, policy_text
from trimtab.tune.apart import Answer
from trimtab.tune.writing import Proposed
from trimtab_operator.care import Cared
from trimtab_operator.drain import Drained
from trimtab_operator.middleware import PodRow, Report
from trimtab_operator.reconcile import Reconciler
from trimtab_operator.target import Target
from trimtab_operator.upkeep import FINALIZER

NOW = 1_800_000_000.0
TEMPLATE: dict[str, Any] = {
    "spec": {"containers": [{"name": "vllm", "image": "vllm/vllm-openai:v0.11.0", "args": ["m"]}]}
}
TUNED: dict[str, Any] = {"spec": {"containers": [{"name": "vllm", "args": ["m", "--max-num-seqs=9"]}]}}
BOUNDS = (50.0, 100.0, 200.0, 500.0, 1000.0, float("inf"))
SEEN = Observation(
    pods=2,
    window_seconds=60,
    requests=1000,
    finished=1000,
    output_length=Histogram(BOUNDS, (0.0, 50.0, 980.0, 1000.0, 1000.0, 1000.0), 150_000),
)
FLEET = FleetView(
    exists=True, replicas=2, settled=True, stable_seconds=1e4, observation=SEEN, configuration=Configuration.of()
)


class Api:
    """Keeps what is created."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []

    def create(self, kind: str, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        self.created.append(body)
        return body

    def json_patch(self, kind: str, seen: dict[str, Any], operations: list[dict[str, Any]]) -> dict[str, Any]:
        return {"metadata": {**seen["metadata"], "finalizers": [FINALIZER]}}


class Care:
    """The real one's part in beginning; `cap` is what it proposes."""

    def __init__(self, cap: int | None) -> None:
        self.cap, self.prepared = cap, 0

    def prepare(self, *_: Any) -> None:
        self.prepared += 1

    def propose(self, *_: Any) -> tuple[CapProposal, str] | None:
        return None if self.cap is None else (CapProposal(self.cap, "lengths"), "pod-1")


def spec(**more: Any) -> TunerSpec:
    policy = {"middleware": "Install", "method": "Percentile", "maxNewTokens": {"min": 1, "max": 999}}
    return TunerSpec.parse(
        {"targetRef": {"name": "llm"}, "mode": "Auto", "metrics": {"direct": {}}, "tokenPolicy": policy, **more}
    )


def begin(cared: Cared, cap: int | None, answer: Answer | None, **more: Any) -> tuple[dict[str, Any] | None, Care]:
    api, care, taken = Api(), Care(cap), more.pop("taken", None)
    search = SimpleNamespace(next=lambda *_: answer)
    parts: dict[str, Any] = {
        "cluster": api,
        "sources": None,
        "searching": search,
        "care": care,
        "neighbours": None,
        "admission": SimpleNamespace(ask=lambda *_: taken, done=lambda *_: None),
    }
    quiet = SimpleNamespace(event=lambda *_, **__: None)
    reconciler = Reconciler(**parts, recorder=quiet, clock=lambda: NOW, sleep=lambda _: None)  # type: ignore[arg-type]
    meta = {"name": "llm", "namespace": "ns", "uid": "u"}
    tuner = {"apiVersion": "trimtab.dev/v1alpha1", "kind": "VLLMTuner", "metadata": meta}
    deployment = {"metadata": {"uid": "d", "name": "llm", "namespace": "ns"}, "spec": {"template": TEMPLATE}}
    fleet = replace(FLEET, **more.pop("fleet", {}))
    asked = spec(**more)
    ground = Ground(asked, fleet, [], [], NOW, kind=TrialKind.INSTALL if cared.decision.due else TrialKind.TUNE)
    reconciler._begin(tuner, asked, Target(deployment), fleet, [], cared, Drained(), ground)
    return (api.created[0] if api.created else None), care


DUE = Cared(Decision(True, "False", "NotInstalled"), candidate=TUNED, label="install-1")
TEXT = policy_text({}, 1)
ROWS = [PodRow({}, "pod-1", True, SimpleNamespace(digest=digest_of(TEXT), version="v", bad=False))]  # type: ignore[arg-type]
THERE = Cared(Decision(False, "True", "Installed"), Report(ROWS, TEXT), policy_label="policy-1")
PROPOSAL = Answer(Proposed(Configuration.of(max_num_seqs=9), TUNED, "search"))


def test_the_middleware_comes_first_and_its_config_maps_before_it() -> None:
    trial, care = begin(DUE, 100, PROPOSAL)
    assert trial is not None and care.prepared == 1
    assert (trial["spec"]["kind"], trial["metadata"]["labels"]["trimtab.dev/search"]) == ("Install", "install-1")
    assert trial["spec"]["change"].startswith("middleware ") and not trial["spec"]["approvalRequired"]
    assert "--max-num-seqs=9" in trial["spec"]["baseline"]["candidateTemplateJson"]
    assert trial["metadata"]["finalizers"] == [FINALIZER]


def test_an_install_that_is_blocked_lets_nothing_else_begin() -> None:
    trial, care = begin(DUE, 100, PROPOSAL, fleet={"settled": False})
    assert trial is None and care.prepared == 0


def test_in_mode_approve_it_waits_for_a_person() -> None:
    trial, _ = begin(DUE, None, None, mode="Approve")
    assert trial is not None and trial["spec"]["approvalRequired"]


def test_a_cap_is_tried_before_settings_and_holds_both_policies() -> None:
    trial, _ = begin(THERE, 100, PROPOSAL)
    assert trial is not None and trial["spec"]["kind"] == "Policy"
    assert trial["spec"]["policy"]["pod"] == "pod-1" and trial["spec"]["policy"]["baselineJson"] == "{}"
    assert '"cap_max_tokens": 100' in trial["spec"]["policy"]["candidateJson"]
    assert trial["spec"]["baseline"]["candidateTemplateJson"] == trial["spec"]["baseline"]["templateJson"]


@pytest.mark.parametrize("cap", [None, 100])
def test_settings_come_when_no_cap_can_be_tried(cap: int | None) -> None:
    """With one replica a cap has no control, and neither have settings unless a pod may be added."""
    one = {"fleet": {"replicas": 1}, "rollout": {"maxSurge": 1}} if cap else {}
    trial, _ = begin(THERE, cap, PROPOSAL, **one)
    assert trial is not None and trial["spec"]["kind"] == "Tune"
    assert trial["spec"]["configuration"] == {"maxNumSeqs": 9}


def test_nothing_begins_while_the_search_thinks_or_when_it_has_ended() -> None:
    assert begin(THERE, None, None)[0] is None
    assert begin(THERE, None, Answer(None, "nothing to gain"))[0] is None


def test_without_a_place_nothing_begins_and_the_reason_is_handed_back() -> None:
    full = Block("TooManyTrials", "wait")
    for cared, cap in ((DUE, None), (THERE, 100), (THERE, None)):
        trial, care = begin(cared, cap, PROPOSAL, taken=full)
        assert trial is None and care.prepared == 0
