"""Objects of other people read as facts: selectors, quantities, autoscalers on running requests, the older tuner."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.plan.neighbours import (
    Autoscaler,
    autoscalers,
    disruption_budgets,
    least_num_seqs,
    quantity,
    resizers,
    rival,
    selects,
)

Json = dict[str, Any]


def budget(allowed: int, healthy: int, expected: int, selector: Any) -> Json:
    status = {"disruptionsAllowed": allowed, "currentHealthy": healthy, "expectedPods": expected}
    return {"metadata": {"name": "pdb"}, "spec": {"selector": selector}, "status": status}


def hpa(*metrics: Json, least: int = 1, most: int = 4, target: str = "llm", **spec: Any) -> Json:
    reference = {"kind": "Deployment", "name": target, "apiVersion": "apps/v1"}
    limits = {"minReplicas": least, "maxReplicas": most}
    return {"metadata": {"name": "hpa"}, "spec": {"scaleTargetRef": reference, **limits, "metrics": [*metrics], **spec}}


def per_pod(name: str, value: str, kind: str = "pods") -> Json:
    target = {"type": "AverageValue", "averageValue": value}
    return {"type": kind.capitalize(), kind: {"metric": {"name": name}, "target": target}}


def tuner(name: str, created: str, **spec: Any) -> Json:
    meta = {"name": name, "uid": f"uid-{name}", "creationTimestamp": created}
    return {"metadata": meta, "spec": {"targetRef": {"name": "llm"}, "mode": "Auto", **spec}}


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ({"matchLabels": {"app": "llm"}}, True),
        ({"matchLabels": {"app": "other"}}, False),
        ({}, True),
        (None, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["llm", "x"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["llm"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "Sideways"}]}, False),
    ],
)
def test_a_budget_counts_where_its_selector_takes_the_pods(selector: Any, found: bool) -> None:
    assert bool(disruption_budgets([budget(0, 2, 2, selector)], {"app": "llm"})) is found


def test_a_budget_tells_whether_waiting_can_help() -> None:
    everyone: Json = {}
    (ill,) = disruption_budgets([budget(0, 1, 2, everyone)], {})
    (never,) = disruption_budgets([budget(0, 2, 2, everyone)], {})
    assert (ill.allowed, ill.healthy, never.healthy) == (0, False, True)


@pytest.mark.parametrize(
    ("text", "value"),
    [("16", 16.0), ("500m", 0.5), ("1k", 1000.0), (8, 8.0), ("1.5", 1.5), ("ten", None), (None, None), ([], None)],
)
def test_quantities(text: Any, value: float | None) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("name", ["vllm:num_requests_running", "vllm_num_requests_running", "llm.num_requests_running"])
@pytest.mark.parametrize("kind", ["pods", "external", "object"])
def test_an_autoscaler_on_running_requests_needs_slots_above_its_target(name: str, kind: str) -> None:
    (found,) = autoscalers([hpa(per_pod(name, "20", kind))], "llm")
    assert found.running == pytest.approx(22.0)  # 20 and the controller's tolerance of 10%
    least = least_num_seqs([found])
    assert least is not None and least > 22.0 >= least - 1


def test_an_autoscalers_own_tolerance_counts() -> None:
    behavior = {"scaleUp": {"tolerance": "50m"}}
    (found,) = autoscalers([hpa(per_pod("vllm:num_requests_running", "20"), behavior=behavior)], "llm")
    assert found.running == pytest.approx(21.0)


def test_other_metrics_other_targets_and_fixed_sizes_bound_nothing() -> None:
    waiting, other = hpa(per_pod("vllm:num_requests_waiting", "5")), hpa(per_pod("x", "1"), target="other")
    assert least_num_seqs(autoscalers([waiting, other], "llm")) is None
    fixed = autoscalers([hpa(per_pod("vllm:num_requests_running", "20"), least=3, most=3)], "llm")
    assert not fixed[0].scales and least_num_seqs(fixed) is None


def test_keda_hides_what_it_scales_on() -> None:
    (found,) = autoscalers([hpa(per_pod("s0-prometheus", "20", "external"))], "llm")
    assert found == Autoscaler("hpa", 1, 4, None, hidden=True)


@pytest.mark.parametrize(
    ("mode", "resizes"),
    [(None, True), ("Auto", True), ("Recreate", True), ("InPlaceOrRecreate", True), ("Initial", False), ("Off", False)],
)
def test_vertical_autoscalers_that_touch_running_pods(mode: str | None, resizes: bool) -> None:
    policy = {} if mode is None else {"updatePolicy": {"updateMode": mode}}
    item = {"metadata": {"name": "vpa"}, "spec": {"targetRef": {"kind": "Deployment", "name": "llm"}, **policy}}
    assert resizers([item], "llm") == (("vpa",) if resizes else ())


def test_the_oldest_tuner_that_writes_wins() -> None:
    old, new = tuner("old", "2026-01-01T00:00:00Z"), tuner("new", "2026-01-02T00:00:00Z")
    assert rival([new, old], "uid-new", "llm") == "old" and rival([new, old], "uid-old", "llm") == ""
    quiet = [tuner("old", "2026-01-01T00:00:00Z", **more) for more in ({"mode": "Recommend"}, {"suspend": True})]
    assert all(rival([q, new], "uid-new", "llm") == "" for q in quiet)
    elsewhere = tuner("old", "2026-01-01T00:00:00Z", targetRef={"name": "other"})
    assert rival([elsewhere, new], "uid-new", "llm") == ""
    twins = [tuner(n, "2026-01-01T00:00:00Z") for n in ("a", "b")]
    assert [rival(twins, f"uid-{n}", "llm") for n in ("a", "b")] == ["", "a"]


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["spec", "status", "selector", "metrics", "pods", "metric", "target", "name", "kind", "metadata",
             "scaleTargetRef", "targetRef", "updatePolicy", "behavior", "scaleUp", "matchExpressions", "averageValue"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.lists(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), _json, max_size=3), max_size=3), _json)
def test_odd_objects_are_read_as_absent(objects: list[Json], selector: Any) -> None:
    disruption_budgets(objects, {"app": "llm"})
    least_num_seqs(autoscalers(objects, "llm"))
    resizers(objects, "llm")
    rival(objects, "uid", "llm")
    selects(selector, {"app": "llm"})
