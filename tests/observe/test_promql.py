"""Queries and their answers, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.observe.metrics import WANTED
from trimtab.observe.promql import decode, instance, plan, scrape_interval, selectors
from trimtab.observe.samples import MAX_POINTS, PodRef

POD = PodRef("vllm-a", "ns", "10.0.0.1", 8000)
VLLM = "vllm:generation_tokens_total"


def item(value: str, **labels: str) -> dict[str, Any]:
    base = {
        "__name__": VLLM,
        "pod": "vllm-a",
        "namespace": "ns",
        "job": "j",
        "instance": "10.0.0.1:8000",
        "engine": "0",
    }
    return {"metric": {**base, **labels}, "values": [[1.0, "1"], [2.0, value]]}


def test_names_and_values_are_escaped_for_regex_and_string() -> None:
    [selector] = selectors([PodRef('a.b"c', "ns", "10.0.0.1", 8000)], "pod")
    assert r'namespace=~"ns",pod=~"a\\.b\"c"}' in selector
    [selector] = selectors([PodRef("p", "ns", "fd00::1", 8000)], "instance")
    assert r'instance=~"\\[fd00::1\\]:8000"}' in selector
    assert "namespace" not in selector
    assert instance(POD) == "10.0.0.1:8000"


def test_a_query_for_a_large_fleet_is_split_to_fit_a_url() -> None:
    pods = [PodRef(f"vllm-deployment-with-a-long-name-7d9c5b6f8d-{i:05}", "ns", None, 8000) for i in range(100)]
    parts = selectors(pods, "pod")
    assert len(parts) > 1
    assert all(len(p) < 4500 for p in parts)
    assert all(any(pod.name.replace("-", r"\\-") in p for p in parts) for pod in pods)


def test_a_short_window_is_asked_raw_and_a_long_dense_one_on_a_grid_up_to_its_recent_part() -> None:
    [ask] = plan(1000.0, 1900.0, 10.0, 15.0)
    assert (ask.query("x"), ask.end) == ("x[990000ms]", 1900.0)
    assert plan(1000.0, 1030.0, 1.0, 0.1)[0].step_seconds == 0, "300 s are always asked raw"
    older, recent = plan(0.0, 86_400.5, 10.0, 15.0)
    assert (older.end, recent.start) == (86_100, 86_100)
    assert (older.end - older.start) / older.step_seconds <= MAX_POINTS
    assert (older.end - older.start) % older.step_seconds == 0
    assert older.query("x").startswith("last_over_time(x[")
    assert len(plan(0.0, 86_400.0, 10.0, None)) == 2, "before the interval is known a day is not asked raw"


def test_a_pod_scraped_by_two_jobs_counts_once() -> None:
    series = decode([[item("5"), item("5", job="other")]], [POD], "pod")["vllm-a"]
    assert series == {(VLLM, (("engine", "0"),)): ((1.0, 1.0), (2.0, 5.0))}


def test_a_side_cars_metrics_do_not_mix_with_the_engines() -> None:
    side_car = item("9", __name__="process_start_time_seconds", instance="10.0.0.1:15020", container="proxy")
    engine = item("7", __name__="process_start_time_seconds")
    del engine["metric"]["engine"]
    series = decode([[side_car, item("5"), engine]], [POD], "pod")["vllm-a"]
    assert series["process_start_time_seconds", ()] == ((1.0, 1.0), (2.0, 7.0))


def test_cache_config_joins_its_target_in_spite_of_its_many_labels() -> None:
    info = item("1", __name__="vllm:cache_config_info", block_size="16", cache_dtype="auto", num_gpu_blocks="9")
    strange = item("1", __name__="vllm:cache_config_info", block_size="99", job="other")
    series = decode([[info, strange, item("5")]], [POD], "pod")["vllm-a"]
    assert [pairs for name, pairs in series if "cache" in name] == [
        (("block_size", "16"), ("engine", "0"), ("num_gpu_blocks", "9"))
    ]


def test_other_pods_and_namespaces_and_values_that_are_no_numbers_are_dropped() -> None:
    answer = [item("5", pod="other"), item("5", namespace="other"), item("NaN"), item("5", __name__="up")]
    series = decode([answer], [POD], "pod")
    assert series == {"vllm-a": {(VLLM, (("engine", "0"),)): ((1.0, 1.0),)}}


def test_several_answers_about_one_series_are_joined_in_order_of_time() -> None:
    later = item("5")
    later["values"] = [[2.0, "5"], [3.0, "6"]]
    series = decode([[later], [item("5")]], [POD], "pod")["vllm-a"]
    assert series[VLLM, (("engine", "0"),)] == ((1.0, 1.0), (2.0, 5.0), (3.0, 6.0))


@pytest.mark.parametrize(
    "bad", [{}, {"metric": {}}, {"metric": [], "values": []}, {"metric": {}, "values": [[1]]}, "x", 3]
)
def test_another_shape_raises_something_that_the_source_turns_into_its_error(bad: object) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        decode([[bad]], [POD], "pod")


def test_the_scrape_interval_is_learnt_from_the_densest_pod() -> None:
    slow = {("a", ()): ((0.0, 1.0), (30.0, 1.0), (60.0, 1.0))}
    quick = {("a", ()): ((0.0, 1.0), (5.0, 1.0), (10.0, 1.0))}
    assert scrape_interval([slow, quick]) == 5.0
    assert scrape_interval([{("a", ()): ((0.0, 1.0),)}]) is None


def test_only_what_is_needed_is_fetched() -> None:
    assert len(WANTED) < 55
