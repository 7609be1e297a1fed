"""A real vLLM 0.32's /metrics before and after a run, against what each of its requests did (data/README.md)."""

from __future__ import annotations

import gzip
import json
import os
import statistics
from pathlib import Path
from typing import Any

import pytest
from metric_texts import names_in, samples
from shapes import missing

from trimtab.engine.metric_table import READ, VersionRange, version_range
from trimtab.observe.exposition import parse
from trimtab.observe.mapping import observe
from trimtab.observe.observation import Observation
from trimtab.observe.profile import workload_profile
from trimtab.observe.unknowns import unknowns

OWN = Path(__file__).parent / "data" / "vllm-0.32-cancelled.json.gz"
MORE = sorted((Path(os.environ.get("TRIMTAB_DATA", "/nonexistent")) / "vllm-cpu-0.32").glob("*.json.gz"))


def load(path: Path) -> tuple[dict[str, Any], Observation]:
    run = json.loads(gzip.decompress(path.read_bytes()))
    seconds = max(r["end"] for r in run["requests"])
    seen = observe(samples((0.0, run["metrics_before"]), (seconds, run["metrics_after"])), "p", 0.0, seconds)
    assert seen is not None
    return run, seen


@pytest.fixture(scope="module", params=[OWN, *MORE], ids=lambda p: p.name)
def run(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Observation]:
    return load(request.param)


def done(run: dict[str, Any]) -> list[dict[str, Any]]:
    return [r for r in run["requests"] if r["status"] == "ok"]


def test_the_whole_text_is_readable() -> None:
    body = json.loads(gzip.decompress(OWN.read_bytes()))["metrics_after"]
    got = parse(body)
    assert got.broken == 0
    assert 120 < len(got.values) < 250


def test_requests_and_useful_tokens_are_those_that_clients_got(run: tuple[dict[str, Any], Observation]) -> None:
    record, seen = run
    finished = done(record)
    # a client that leaves at its last token may count as finished by the engine
    assert seen.finished is not None and len(finished) <= seen.finished <= len(finished) + 3
    assert seen.requests == len(record["requests"])
    if seen.finished == len(finished):
        assert seen.useful_tokens == sum(r["planned_output"] for r in finished)
        assert seen.reserved_tokens == seen.useful_tokens
    assert (seen.http_errors, seen.http_rejected, seen.engine_aborts, seen.engine_errors) == (0, 0, 0, 0)


def test_the_waste_of_cancelled_requests_is_estimated(run: tuple[dict[str, Any], Observation]) -> None:
    """Tokens are sent in events of one or more tokens, so the clients' count is a lower bound."""
    record, seen = run
    cancelled = [r for r in record["requests"] if r["status"] != "ok"]
    assert seen.generated_tokens is not None and seen.useful_tokens is not None
    received = sum(r["events"] for r in cancelled)
    wasted = seen.generated_tokens - seen.useful_tokens
    assert received * 0.75 - 400 <= wasted <= received * 1.35 + 250
    assert seen.abort_rate == pytest.approx(len(cancelled) / len(record["requests"]), abs=0.025)


def test_preemptions_and_cache_size(run: tuple[dict[str, Any], Observation]) -> None:
    record, seen = run
    polled = [g["num_preemptions_total"] for g in record["gauges"]]
    assert seen.preemptions is not None and seen.preemptions >= polled[-1] - polled[0]
    assert seen.kv_capacity_tokens in (5120, 10240)


def test_only_what_v1_does_not_have_is_unknown(run: tuple[dict[str, Any], Observation]) -> None:
    _, seen = run
    assert missing(seen) == {"swapped"}
    names = names_in(run[0]["metrics_after"])
    assert [u.field for u in unknowns(seen, None, names=names)] == ["swapped"]
    assert version_range(names, complete=True) == VersionRange((0, 32, 0), READ[-1])


def test_parts_add_up_to_their_totals(run: tuple[dict[str, Any], Observation]) -> None:
    _, seen = run
    assert seen.prompt_tokens_computed is not None and seen.prompt_tokens_cached is not None
    assert seen.prompt_tokens_computed + seen.prompt_tokens_cached == seen.prompt_tokens
    assert seen.prefix_hits is not None and seen.prefix_hits >= seen.prompt_tokens_cached
    assert seen.requested_sequences == seen.finished
    assert seen.engine_steps is not None and seen.engine_steps > 0
    assert (seen.admission_rejections, seen.prompt_tokens_transferred) == (0, 0)
    # prefill and decode are the parts of a request's time after the queue
    e2e, queue, prefill, decode = seen.e2e_seconds, seen.queue_seconds, seen.prefill_seconds, seen.decode_seconds
    assert e2e is not None and queue is not None and prefill is not None and decode is not None
    assert queue.sum + prefill.sum + decode.sum == pytest.approx(e2e.sum, rel=0.02)


def test_the_cache_is_configured_as_the_run_was_started(run: tuple[dict[str, Any], Observation]) -> None:
    _, seen = run
    assert (seen.num_gpu_blocks, seen.block_size_tokens) in ((160, 32), (320, 32))
    assert seen.kv_capacity_tokens == (seen.num_gpu_blocks or 0) * 32
    assert seen.prefix_caching is ((seen.prefix_queries or 0) > 0)


def test_latencies_are_near_those_that_clients_saw(run: tuple[dict[str, Any], Observation]) -> None:
    record, seen = run
    assert seen.ttft_seconds is not None and seen.ttft_seconds.mean is not None
    first = [r["first"] - r["arrival"] for r in record["requests"] if r["first"]]
    assert seen.ttft_seconds.mean == pytest.approx(statistics.mean(first), rel=0.15, abs=0.03)
    assert seen.e2e_seconds is not None and seen.e2e_seconds.count == seen.finished


def test_the_workload_profile_has_the_lengths_that_were_sent(run: tuple[dict[str, Any], Observation]) -> None:
    record, seen = run
    got = workload_profile(seen)
    finished = done(record)
    lengths = [r["planned_output"] for r in finished]
    assert got.output_tokens_mean == pytest.approx(statistics.mean(lengths), rel=0.03)
    assert got.prompt_tokens_mean == pytest.approx(statistics.mean(r["prompt_tokens"] for r in finished), rel=0.03)
    assert got.output_tokens_cv == pytest.approx(statistics.pstdev(lengths) / statistics.mean(lengths), rel=0.2)
    assert got.output_tokens_p50 == pytest.approx(statistics.median(lengths), rel=0.25)
