"""Records survive their file; a Summary counts what happened, where it happened, and says nothing where there is
nothing.
"""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import InputError, TraceError, TrimtabError
from trimtab.load.progress import plain_line, result_lines
from trimtab.load.records import ENDINGS, Record, RecordWriter, parse_records, read_records, to_line
from trimtab.load.summary import Quantiles, Slo, quantiles, summarise, whole_run

OK = Record(0, 100.0, 100.0, 100.5, 101.5, 101.6, 30, 11, 22, 11, "ok")


def later(record: Record, seconds: float, **change: object) -> Record:
    times = {
        name: None if (at := getattr(record, name)) is None else at + seconds
        for name in ("arrival_at", "sent_at", "first_token_at", "last_token_at", "ended_at")
    }
    return replace(record, **times, **change)  # type: ignore[arg-type]


def gave_up(waited: float) -> Record:
    return replace(OK, first_token_at=None, last_token_at=None, ended_at=100 + waited, tokens=0, ending="gave_up")


seconds = st.floats(0, 2e9).map(lambda x: round(x, 4))


@given(
    st.builds(
        Record,
        number=st.integers(0, 10**6),
        arrival_at=seconds,
        sent_at=st.none() | seconds,
        first_token_at=st.none() | seconds,
        last_token_at=st.none() | seconds,
        ended_at=seconds,
        prompt_tokens=st.integers(1, 9),
        planned_tokens=st.integers(1, 9),
        max_tokens=st.integers(1, 9),
        tokens=st.integers(0, 9),
        ending=st.sampled_from(ENDINGS),
        cause=st.none() | st.text(),
        detail=st.none() | st.text(),
        keepalive=st.booleans(),
    )
)
def test_a_line_gives_its_record_back(record: Record) -> None:
    line = to_line(record)
    assert "\n" not in line and list(parse_records(line + "\n", "x")) == [record]


def test_a_last_line_cut_by_a_kill_is_passed_over_and_other_garbage_is_named(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    line = to_line(OK)
    file.write_text(line + "\n\n" + line[:40])
    assert read_records(file) == [OK]
    for bad, words in (
        (line[:40] + "\n", "r.jsonl:1"),
        ("[]\n", "r.jsonl:1"),
        (line.replace('"ok"', '"fine"') + "\n", "ending"),
    ):
        file.write_text(bad + line)
        with pytest.raises(TraceError, match=words):
            read_records(file)
    file.write_text(line.replace('"number":0,', "") + "\n")
    with pytest.raises(TraceError, match="number"):
        read_records(file)
    with pytest.raises(InputError):
        read_records(tmp_path / "none")


def test_a_broken_pipe_is_an_error_of_ours() -> None:
    class Broken(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    with pytest.raises(TrimtabError, match="records"):
        RecordWriter(Broken()).write(OK)


def test_nothing_is_none_and_a_dash_never_zero() -> None:
    empty = summarise([], (0.0, 10.0))
    assert empty.ttft_seconds == Quantiles(0, None, None, None) and quantiles([None]) == Quantiles()
    assert empty.slo_attainment is None and empty.completion_ratio is None and empty.useful_token_ratio is None
    assert whole_run([]) is None
    assert "ttft p50 - p99 -" in plain_line(empty, 0, 10.0) and "SLO met by -" in result_lines(empty)[2]


def test_counts_rates_and_ratios() -> None:
    cancelled = replace(OK, tokens=4, ending="cancelled")
    failed = replace(OK, tokens=2, ending="failed", cause="abort")
    dropped = replace(OK, sent_at=None, first_token_at=None, last_token_at=None, tokens=0, ending="not_sent")
    s = summarise([OK, OK, cancelled, failed, dropped, gave_up(5.0)], (100.0, 110.0))
    assert (s.requests, s.ok, s.cancelled, s.gave_up, s.failed, s.not_sent) == (6, 2, 1, 1, 1, 1)
    assert s.failed_by_cause == {"abort": 1} and s.requests_per_second == 0.6
    assert (s.useful_tokens_per_second, s.wasted_tokens_per_second) == (2.2, 0.6)
    assert (s.cancelled_tokens, s.wasted_tokens) == (4, 6)
    assert s.completion_ratio == 0.5 and s.useful_token_ratio == pytest.approx(22 / (22 * 5))
    assert s.slo_attainment == 0.5  # 2 of ok, ok, failed, gave up
    assert s.e2e_seconds.count == 2 and s.e2e_seconds.p50 == pytest.approx(1.6)
    assert s.tpot_seconds.p50 is not None


def test_goodput_takes_only_ok_requests_within_both_limits() -> None:
    slow_start = replace(OK, first_token_at=101.0)
    window = (100.0, 101.7)
    assert Slo(0.5, 0.1).met(OK) and not Slo(0.4).met(OK) and not Slo(None, 0.09).met(OK)
    assert not Slo().met(replace(OK, ending="cancelled"))
    assert Slo(None, 0.01).met(replace(OK, tokens=1))  # one token has no time per further token
    s = summarise([OK, slow_start], window, Slo(0.6, 0.1))
    assert s.goodput_tokens_per_second == pytest.approx(11 / 1.7) and s.useful_tokens_per_second == pytest.approx(
        22 / 1.7
    )


def test_requests_count_where_they_arrived_and_tokens_where_they_ended() -> None:
    before, after = summarise([OK], (100.0, 101.0)), summarise([OK], (101.0, 102.0))
    assert (before.requests, before.ok, before.useful_tokens_per_second) == (1, 1, 0.0)
    assert (after.requests, after.ok, after.useful_tokens_per_second) == (0, 0, 11.0)
    assert summarise([OK], (101.0, 102.0), cohort="end").ok == 1


@given(st.lists(st.floats(0, 50), min_size=1, max_size=30), st.floats(1, 60))
def test_two_windows_count_each_request_and_token_once(shifts: list[float], cut: float) -> None:
    records = [later(OK, shift) for shift in shifts]
    parts = [summarise(records, (99.0, 100 + cut)), summarise(records, (100 + cut, 200.0))]
    assert sum(p.requests for p in parts) == len(records)
    assert sum(p.useful_tokens_per_second * p.seconds for p in parts) == pytest.approx(11 * len(records))


def test_users_who_leave_do_not_improve_ttft() -> None:
    stayed = summarise([OK, OK], (100.0, 110.0)).ttft_seconds
    left = summarise([OK, gave_up(8.0), gave_up(8.0)], (100.0, 110.0)).ttft_seconds
    assert stayed.p50 == 0.5 and left.p50 == 8.0


def test_the_whole_run_holds_every_record() -> None:
    records = [OK, later(OK, 30.0)]
    window = whole_run(records)
    assert window is not None and summarise(records, window).useful_tokens_per_second * (
        window[1] - window[0]
    ) == pytest.approx(22)


def test_lateness_of_the_client_is_told() -> None:
    late = replace(OK, arrival_at=99.0)
    assert "short of CPU" in result_lines(summarise([late], (99.0, 110.0)))[-1]
    assert "short of CPU" not in result_lines(summarise([OK], (99.0, 110.0)))[-1]
