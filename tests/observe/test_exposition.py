"""The text format from containers we do not trust."""

from __future__ import annotations

import math
import time

from hypothesis import given, settings
from hypothesis import strategies as st
from metric_texts import counter, line, text

from trimtab.observe import exposition
from trimtab.observe.exposition import parse


def test_unwanted_metrics_and_comments_are_left_out_without_being_broken() -> None:
    got = parse('# HELP vllm:num_requests_running x\n# TYPE a b c\npython_info{version="3"} 1\nvllm:made_up 3\n')
    assert (got.values, got.broken) == ({}, 0)


def test_a_broken_line_costs_only_itself() -> None:
    body = text(
        counter("prompt_tokens", 5),
        'vllm:num_requests_running{engine="0} 1',
        'vllm:num_requests_waiting{engine="0"} many',
        "vllm:num_requests_waiting{",
        "vllm:num_requests_waiting",
        line("vllm:kv_cache_usage_perc", "NaN"),
        line("vllm:num_requests_waiting", "+Inf"),
        f"vllm:num_requests_waiting {'9' * 4000}",
    )
    got = parse(body)
    assert got.broken == 7
    assert sorted(name for name, _ in got.values) == ["process_start_time_seconds", "vllm:prompt_tokens_total"]


def test_of_duplicates_the_first_one_counts() -> None:
    got = parse(text(counter("prompt_tokens", 5), counter("prompt_tokens", 9)))
    assert (list(got.values.values())[1], got.broken) == (5.0, 1)


def test_labels_that_the_mapping_does_not_need_are_dropped_and_escapes_are_read() -> None:
    got = parse('vllm:cache_config_info{engine="0",cache_dtype="a\\"b",block_size="16"} 1.0\r\n')
    assert list(got.values) == [("vllm:cache_config_info", (("block_size", "16"), ("engine", "0")))]


def test_endless_lines_and_series_are_bounded(monkeypatch: object) -> None:
    many = text(*(line("vllm:num_requests_running", 1, f'engine="{i}"') for i in range(exposition.MAX_SERIES + 50)))
    assert len(parse(many).values) == exposition.MAX_SERIES
    evil = "vllm:num_requests_running{" + 'a="\\\\\\"",' * 700_000 + "} 1"
    began = time.monotonic()
    assert parse(evil).values == {}
    assert time.monotonic() - began < 1


def test_no_more_is_parsed_than_a_real_engine_has() -> None:
    """Broken lines, which count for no series, are bounded too; a later good line is then lost, and counted."""
    hostile = 'vllm:num_requests_running{engine="' + '\\"' * 8_000 + '"} 1\n'
    began = time.thread_time()
    got = parse(hostile * 500 + text(counter("prompt_tokens", 5)))
    assert time.thread_time() - began < 10, "without the bound some 18 seconds"
    assert (list(got.values.values()), got.broken) == ([1.0], 501)


fragments = st.sampled_from(
    [
        "vllm:num_requests_running",
        "vllm:cache_config_info",
        "{",
        "}",
        '"',
        "\\",
        ",",
        "=",
        "le",
        " ",
        "1",
        "NaN",
        "#",
        "\n",
        "_",
        "\x00",
        "é",
    ]
)


@given(st.one_of(st.text(max_size=200), st.lists(fragments, max_size=40).map("".join)))
@settings(max_examples=300, deadline=None)
def test_no_text_makes_it_raise(body: str) -> None:
    assert all(math.isfinite(v) for v in parse("vllm:num_requests_running" + body).values.values())
    parse(body)


def test_names_that_ray_gives_are_vllms() -> None:
    """vLLM's RayPrometheusStatLogger writes : as _, and Ray's agent puts ray_ in front."""
    text = (
        'ray_vllm_num_requests_running{WorkerId="w",engine="0",model_name="m"} 3\n'
        'ray_vllm_generation_tokens{engine="0"} 7\nray_vllm_generation_tokens_total{engine="0"} 7\n'
    )
    found = parse(text)
    values = {name: value for (name, _), value in found.values.items()}
    assert values["vllm:num_requests_running"] == 3.0 and values["vllm:generation_tokens_total"] == 7.0
    assert found.broken == 0
