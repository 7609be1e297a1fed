"""What holds for any samples: unknown stays unknown, increases are not negative, the order of pods does not matter."""

from __future__ import annotations

import math
from dataclasses import fields

from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.observe.increase import increase, timeline, total
from trimtab.observe.mapping import observe
from trimtab.observe.metrics import PROCESS_START, WANTED
from trimtab.observe.observation import Histogram, Observation, combine
from trimtab.observe.samples import BASELINE_SECONDS, Points, Samples, SeriesKey

numbers = st.floats(0, 1e9)
points = st.dictionaries(st.integers(0, 200).map(float), numbers, min_size=1, max_size=8).map(
    lambda d: tuple(sorted(d.items()))
)
labels = st.dictionaries(
    st.sampled_from(["engine", "le", "finished_reason", "handler", "status"]),
    st.sampled_from(["0", "1", "+Inf", "stop", "abort", "/v1/completions", "2xx", "500", "x"]),
    max_size=3,
).map(lambda d: tuple(sorted(d.items())))
keys = st.tuples(st.sampled_from(sorted(WANTED)), labels)
pod_series = st.dictionaries(keys, points, min_size=1, max_size=12)


@given(pod_series, st.floats(0, 100), st.floats(0, 100))
@settings(max_examples=150, deadline=None)
def test_any_samples_give_no_negative_number_and_no_exception(
    series: dict[SeriesKey, Points], start: float, length: float
) -> None:
    seen = observe(Samples({"p": series}), "p", start, start + length)
    if seen is None:
        return
    assert 0 <= seen.window_seconds <= length + BASELINE_SECONDS
    for f in fields(Observation):
        value = getattr(seen, f.name)
        if isinstance(value, Histogram):
            assert all(a <= b for a, b in zip(value.counts, value.counts[1:], strict=False))
            assert value.counts[0] >= 0 and value.bounds[-1] == math.inf and len(value.bounds) == len(value.counts)
        elif value is not None:
            assert value >= 0, f.name


@given(pod_series)
def test_a_metric_without_samples_is_unknown(series: dict[SeriesKey, Points]) -> None:
    rest = {k: p for k, p in series.items() if "preemptions" not in k[0] and "waiting" not in k[0]}
    seen = observe(Samples({"p": rest}), "p", 0, 200)
    assert seen is None or (seen.preemptions is None and seen.waiting is None)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), min_size=2, max_size=30))
def test_the_increase_over_restarts_is_what_each_process_counted(steps: list[tuple[float, bool]]) -> None:
    """Each step adds to the counter; a True step is a restart before it."""
    value, start, expected = 0.0, 100.0, 0.0
    counter_points, starts = [(0.0, 0.0)], [(0.0, start)]
    for i, (growth, restarted) in enumerate(steps, 1):
        if restarted:
            value, start = 0.0, start + 100
        value += growth
        expected += growth
        counter_points.append((float(i), value))
        starts.append((float(i), start))
    key = ("vllm:num_preemptions_total", ())
    series: dict[SeriesKey, Points] = {key: tuple(counter_points), (PROCESS_START, ()): tuple(starts)}
    line = timeline(series, 0, 1000)
    assert line is not None
    got = increase(series[key], line)
    assert got is not None and math.isclose(got, expected, rel_tol=1e-9, abs_tol=1e-3)


@given(st.lists(st.one_of(st.none(), numbers), max_size=6))
def test_one_unknown_part_makes_the_total_unknown(values: list[float | None]) -> None:
    got = total(values)
    assert (got is None) == (None in values)


observations = st.builds(
    Observation,
    pods=st.just(1),
    window_seconds=st.integers(1, 100).map(float),
    requests=st.one_of(st.none(), st.integers(0, 1000).map(float)),
    running=st.one_of(st.none(), st.integers(0, 1000).map(float)),
    kv_usage_max=st.one_of(st.none(), st.sampled_from([0.25, 0.5, 1.0])),
    ttft_seconds=st.one_of(
        st.none(), st.integers(0, 9).map(lambda n: Histogram((1.0, math.inf), (float(n), float(2 * n)), float(n)))
    ),
)


@given(st.lists(observations, min_size=1, max_size=5), st.randoms())
def test_combine_does_not_depend_on_order_and_keeps_the_unknown(seen: list[Observation], random: object) -> None:
    shuffled = list(seen)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    got = combine(seen)
    assert got == combine(shuffled)
    assert got is not None and got.pods == len(seen)
    for name in ("requests", "running", "kv_usage_max", "ttft_seconds"):
        assert (getattr(got, name) is None) == any(getattr(o, name) is None for o in seen)
