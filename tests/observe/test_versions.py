"""Texts of vLLM from 0.6 on become Observations, and each field that stays unknown is the one that is expected to."""

from __future__ import annotations

import pytest
from metric_texts import names_in
from shapes import held, missing, observed, shape

from trimtab.engine.metric_table import METRICS, READ, VersionRange, metric_of, parse_version, version_range
from trimtab.observe.exposition import parse
from trimtab.observe.unknowns import names_of, unknowns

BY_SOURCE = {"prompt_tokens_computed", "prompt_tokens_cached", "prompt_tokens_transferred"}
BY_REASON = {"waiting_capacity", "waiting_deferred"}
HTTP = {"http_errors", "http_rejected"}
PREFIX = {"prefix_queries", "prefix_hits"}
LATER = {"admission_rejections"} | BY_SOURCE | BY_REASON

#: text -> (fields that are unknown, versions that its names leave)
SHAPES: dict[str, tuple[set[str], VersionRange]] = {
    "vllm-0.6.0-v0.txt": (
        LATER
        | HTTP
        | PREFIX
        | {"reserved_tokens", "engine_steps", "queue_seconds", "prefill_seconds", "decode_seconds"},
        VersionRange((0, 6, 0), (0, 6, 2)),
    ),
    "vllm-0.6.6-v0.txt": (LATER | HTTP | PREFIX, VersionRange((0, 6, 4), (0, 6, 6))),
    "vllm-0.7.3-v0.txt": (LATER | HTTP | PREFIX, VersionRange((0, 6, 4), (0, 9, 0))),
    "vllm-0.8.5-v1.txt": (
        LATER | HTTP | {"swapped", "kv_capacity_tokens", "num_gpu_blocks"},
        VersionRange((0, 8, 0), (0, 9, 1)),
    ),
    "vllm-0.9.2-v1.txt": (LATER | HTTP | {"swapped"}, VersionRange((0, 9, 2), (0, 10, 1))),
    "vllm-0.11.0-v1.txt": (LATER | HTTP | {"swapped"}, VersionRange((0, 11, 0), (0, 12, 0))),
    "vllm-0.14.1-v1.txt": (LATER | HTTP | {"swapped"}, VersionRange((0, 13, 0), (0, 14, 1))),
    "vllm-0.20.0-v1.txt": (HTTP | {"swapped", "admission_rejections"}, VersionRange((0, 20, 0), (0, 29, 0))),
    "vllm-0.33.0-v1.txt": (HTTP | {"swapped"}, VersionRange((0, 32, 0), READ[-1])),
    "vllm-0.32-cancelled.json.gz": ({"swapped"}, VersionRange((0, 32, 0), READ[-1])),
}
EVERY = pytest.mark.parametrize("name", SHAPES)


@EVERY
def test_what_a_version_does_not_show_is_unknown_and_the_rest_is_known(name: str) -> None:
    assert missing(observed(shape(name))) == SHAPES[name][0]


@EVERY
def test_every_wanted_line_of_a_version_is_readable(name: str) -> None:
    assert parse(shape(name)).broken == 0


@EVERY
def test_the_table_says_of_its_version_what_a_text_shows(name: str) -> None:
    """Nothing more, and nothing less but what needs a condition or, with v0, a first value."""
    _, version, engine = name.replace("cancelled.json.gz", "v1").removesuffix(".txt").split("-")
    shown = {
        m for m in METRICS.values() if m.standing(parse_version(version), "v0" if engine == "v0" else "v1") == "shown"
    }
    given = {m for series in names_in(shape(name)) if (m := metric_of(series)) is not None}
    assert given <= shown
    assert {m.name for m in shown - given if not m.when} == set()


@EVERY
def test_the_names_of_a_text_narrow_its_version(name: str) -> None:
    assert version_range(names_in(shape(name)), complete=True) == SHAPES[name][1]


@EVERY
def test_each_unknown_of_a_version_says_why_and_what_would_help(name: str) -> None:
    text = shape(name)
    found = unknowns(observed(text), name.split("-")[1], names=names_of(held(text), ["p"]))
    assert [u.field for u in found] == [f for f in vars(observed(text)) if f in SHAPES[name][0]]
    for unknown in found:
        assert unknown.why.endswith(".") and unknown.remedy.endswith(".")
        assert "relabeling" not in unknown.remedy, "nothing was dropped"


@pytest.mark.parametrize("name", [n for n in SHAPES if n.endswith(".txt")])
def test_the_values_are_those_that_the_metrics_classes_were_fed_with(name: str) -> None:
    """hack/engine/metric_shapes.py: three requests, finished with stop, length, stop."""
    seen = observed(shape(name))
    assert (seen.finished, seen.requests, seen.preemptions) == (3, 3, 2)
    assert (seen.prompt_tokens, seen.generated_tokens, seen.useful_tokens) == (450, 89, 89)
    assert (seen.running, seen.waiting, seen.kv_usage, seen.kv_usage_max) == (3, 2, 0.5, 0.5)
    assert (seen.block_size_tokens, seen.prefix_caching, seen.requested_sequences) == (16, True, 3)
    assert seen.reserved_tokens in (None, 112)
    assert seen.engine_steps in (None, 1)
    assert seen.ttft_seconds is not None and seen.ttft_seconds.sum == pytest.approx(0.3)
    assert seen.tpot_seconds is not None and seen.tpot_seconds.count == 3
    assert seen.prompt_length is not None and seen.prompt_length.count == 3


def test_the_engine_generations_differ_in_what_they_say_of_their_cache() -> None:
    v0, v1 = observed(shape("vllm-0.7.3-v0.txt")), observed(shape("vllm-0.9.2-v1.txt"))
    assert v0.kv_capacity_tokens == v1.kv_capacity_tokens == 16_000
    assert (v0.swapped, v1.swapped) == (1, None)
    assert (v0.prefix_hit_ratio, v1.prefix_hit_ratio) == (None, 0.25)


def test_waiting_by_reason_is_read_from_its_first_version_on() -> None:
    seen = observed(shape("vllm-0.20.0-v1.txt"))
    assert (seen.waiting, seen.waiting_capacity, seen.waiting_deferred) == (2, 2, 0)
