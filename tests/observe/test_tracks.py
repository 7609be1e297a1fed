"""A pod's series laid out once say in each window what the series themselves say."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from test_observe_properties import pod_series

from trimtab.observe.increase import increase, timeline
from trimtab.observe.mapping import fleet, observe
from trimtab.observe.metrics import PROCESS_START
from trimtab.observe.samples import Points, Samples, SeriesKey
from trimtab.observe.tracks import PodTracks, Window

TIMES = st.lists(st.sampled_from([0.0, 15.0, 30.0, 45.0, 60.0, 75.0, 90.0]), min_size=1, unique=True).map(sorted)
#: counters that grow, stand, or fall; some begin late
COUNTERS = TIMES.flatmap(
    lambda times: st.tuples(*[st.sampled_from([0.0, 1.0, 3.0, -2.0]) for _ in times]).map(
        lambda steps: tuple((t, math.fsum(steps[: i + 1])) for i, t in enumerate(times))
    )
)
STARTS = st.one_of(st.none(), TIMES.map(lambda times: tuple((t, 1000.0 + 100 * (t > 40)) for t in times)))


@given(st.lists(COUNTERS, min_size=1, max_size=5), STARTS, st.floats(0, 100), st.floats(0, 100))
def test_a_window_grows_by_what_each_series_grew(
    counters: list[Points], starts: Points | None, begin: float, seconds: float
) -> None:
    names = ("vllm:num_preemptions_total", "vllm:generation_tokens_total")
    series: dict[SeriesKey, Points] = {
        (names[i % 2], (("engine", str(i)),)): points for i, points in enumerate(counters)
    }
    if starts is not None:
        series[PROCESS_START, ()] = starts
    tracks = PodTracks(series)
    line = timeline(series, begin, begin + seconds)
    assert line == tracks.line(begin, begin + seconds)
    if line is None:
        return
    window = Window(tracks, line, begin)
    for name in names:
        for track in window.first([name]):
            own, clipped = series[name, tuple(track.labels.items())], window.increase(track)
            expected = increase(own, line)
            assert (clipped is None) == (expected is None)
            assert clipped is None or expected is None or math.isclose(clipped, expected, abs_tol=1e-9)


@given(pod_series, st.floats(0, 100), st.floats(0, 100))
def test_a_window_asked_for_twice_is_worked_out_once(
    series: dict[SeriesKey, Points], begin: float, seconds: float
) -> None:
    held = Samples({"p": series})
    first = observe(held, "p", begin, begin + seconds)
    assert observe(held, "p", begin, begin + seconds) is first
    assert first == observe(Samples({"p": series}), "p", begin, begin + seconds)


def test_edges_spelt_in_two_ways_are_one_bucket() -> None:
    """Prometheus 2 writes le="1", Prometheus 3 le="1.0"; during an upgrade a query finds both."""
    stem = "vllm:time_to_first_token_seconds"
    old = {(f"{stem}_bucket", (("le", e),)): ((0.0, 1.0), (15.0, 2.0)) for e in ("1", "+Inf")}
    new = {(f"{stem}_bucket", (("le", e),)): ((30.0, 4.0), (45.0, 5.0)) for e in ("1.0", "Inf")}
    total = {(f"{stem}_sum", ()): ((0.0, 1.0), (15.0, 2.0), (30.0, 4.0), (45.0, 5.0))}
    seen = fleet(Samples({"p": {**old, **new, **total}}), ["p"], 0, 60)
    assert seen is not None and seen.ttft_seconds is not None
    assert seen.ttft_seconds.bounds == (1.0, math.inf) and seen.ttft_seconds.counts == (4.0, 4.0)
