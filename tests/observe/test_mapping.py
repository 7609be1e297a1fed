"""From samples to an Observation: each counting rule, and what stays unknown."""

from __future__ import annotations

from dataclasses import fields

import pytest
from metric_texts import ENGINE, counter, histogram, http, line, samples, success, text

from trimtab.judge.windows import join
from trimtab.observe.mapping import fleet, has_gap, observe
from trimtab.observe.metrics import CACHE_FIELDS, COUNTERS, GAUGES, HISTOGRAMS, sources
from trimtab.observe.observation import Observation, combine
from trimtab.observe.samples import Samples


def seen(*scrapes: tuple[float, str], start: float = 0.0, end: float = 100.0) -> Observation:
    found = observe(samples(*scrapes), "p", start, end)
    assert found is not None
    return found


def test_no_sample_in_the_window_is_no_observation() -> None:
    held = samples((10.0, text(counter("num_preemptions", 1))))
    assert observe(held, "p", 20.0, 30.0) is None
    assert observe(held, "p", 0.0, 9.0) is None
    assert observe(held, "other", 0.0, 99.0) is None
    assert observe(Samples(), "p", 0.0, 99.0) is None


def test_one_sample_gives_gauges_and_no_counters() -> None:
    got = seen((10.0, text(counter("num_preemptions", 5), line("vllm:num_requests_running", 4), success("stop", 3))))
    assert (got.running, got.preemptions, got.finished, got.requests, got.window_seconds) == (
        4.0,
        None,
        None,
        None,
        0.0,
    )


def test_counting_starts_at_the_last_sample_before_the_window() -> None:
    scrapes = [(float(t), text(counter("num_preemptions", t))) for t in range(0, 100, 10)]
    got = seen(*scrapes, start=45.0, end=75.0)
    assert (got.preemptions, got.window_seconds) == (30, 30.0)


def test_a_sample_long_before_the_window_is_no_baseline() -> None:
    scrapes = [(at, text(counter("num_preemptions", at))) for at in (0.0, 205.0)]
    got = seen(*scrapes, start=200.0, end=210.0)
    assert (got.preemptions, got.window_seconds) == (None, 0.0)


def test_finished_aborted_and_failed_requests_are_told_apart() -> None:
    reasons = {"stop": 10, "length": 20, "repetition": 1, "abort": 3, "error": 2}
    before = text(*(success(r, 100) for r in reasons))
    got = seen((0.0, before), (60.0, text(*(success(r, 100 + n) for r, n in reasons.items()))))
    assert (got.finished, got.engine_aborts, got.engine_errors) == (31, 3, 2)
    assert got.requests == 36, "without http_requests_total it is all that ended in the engine"
    assert (got.http_errors, got.http_rejected) == (None, None)


@pytest.mark.parametrize(("ok", "bad", "failed"), [("2xx", "4xx", "5xx"), ("200", "429", "503")])
def test_http_answers_count_inference_posts_only(ok: str, bad: str, failed: str) -> None:
    def at(n: float) -> str:
        return text(
            http(10 * n, ok),
            http(2 * n, ok, "/v1/chat/completions"),
            http(n, bad),
            http(n, failed, "/v1/messages"),
            http(50 * n, ok, "/v1/models"),
            http(50 * n, ok, "/metrics", "GET"),
            http(50 * n, ok, method="GET"),
        )

    got = seen((0.0, at(1)), (60.0, at(3)))
    assert (got.requests, got.http_errors, got.http_rejected) == (28, 2, 2)


def test_answers_4xx_are_no_aborts() -> None:
    got = seen((0.0, text(success("stop", 0), http(0))), (60.0, text(success("stop", 80), http(100), http(100, "4xx"))))
    assert got.requests == 200
    assert got.abort_rate == pytest.approx(0.2)


def test_inference_by_other_routes_is_counted_by_the_engine() -> None:
    got = seen(
        (0.0, text(success("stop", 0), http(5, handler="/invocations"))),
        (60.0, text(success("stop", 80), http(90, handler="/invocations"))),
    )
    assert got.requests == 80


def test_a_child_made_on_first_use_counts_from_zero_and_a_single_sample_of_the_pod_proves_nothing() -> None:
    idle, busy = text(counter("generation_tokens", 0)), text(counter("generation_tokens", 9), http(4))
    assert seen((0.0, idle), (30.0, busy)).requests == 4
    assert seen((30.0, busy)).requests is None


def test_an_absent_counter_is_unknown_and_one_that_rests_is_zero() -> None:
    got = seen((0.0, text(counter("num_preemptions", 7))), (60.0, text(counter("num_preemptions", 7))))
    assert got.preemptions == 0
    assert (got.generated_tokens, got.finished, got.useful_tokens, got.ttft_seconds, got.waiting) == (None,) * 5


def test_a_restart_counts_from_zero_also_what_has_passed_its_old_value() -> None:
    got = seen(
        (0.0, text(counter("prompt_tokens", 100), counter("num_preemptions", 5), started=1.0)),
        (10.0, text(counter("prompt_tokens", 110), counter("num_preemptions", 5), started=1.0)),
        (20.0, text(counter("prompt_tokens", 30), counter("num_preemptions", 8), started=1000.0)),
        (30.0, text(counter("prompt_tokens", 50), counter("num_preemptions", 8), started=1000.0)),
    )
    assert (got.prompt_tokens, got.preemptions) == (60, 8)


def test_without_a_start_time_a_fall_of_one_counter_is_a_restart_of_all() -> None:
    got = seen(
        (0.0, text(counter("prompt_tokens", 100), counter("num_preemptions", 5), started=None)),
        (20.0, text(counter("prompt_tokens", 30), counter("num_preemptions", 8), started=None)),
    )
    assert (got.prompt_tokens, got.preemptions) == (30, 8)


def test_several_api_servers_behind_one_port_are_not_trusted() -> None:
    """vllm issue 18053: each scrape reaches another process."""
    flapping = [(10.0 * i, text(counter("prompt_tokens", v), started=s)) for i, (v, s) in enumerate(
        [(1000, 5.0), (10, 9.0), (1010, 5.0), (20, 9.0)]
    )]  # fmt: skip
    assert seen(*flapping).prompt_tokens is None
    silent = [(at, body.split("\n", 1)[1]) for at, body in flapping]
    assert seen(*silent).prompt_tokens is None
    one_start = [(at, text(body.split("\n", 1)[1], started=5.0)) for at, body in flapping[:2]]
    assert seen(*one_start).prompt_tokens is None, "a counter fell although the process is the same"


def test_renamed_metrics_are_found_and_never_added() -> None:
    def old(n: float) -> list[str]:
        return [
            line("vllm:gpu_cache_usage_perc", 0.5),
            counter("gpu_prefix_cache_queries", 10 * n),
            counter("gpu_prefix_cache_hits", 4 * n),
            line("vllm:num_preemptions", n),
            histogram("time_per_output_token_seconds", {"0.01": n, "+Inf": n}, 0.005 * n),
        ]

    got = seen((0.0, text(*old(0))), (60.0, text(*old(10))))
    assert (got.kv_usage, got.prefix_hit_ratio, got.preemptions) == (0.5, 0.4, 10)
    assert got.tpot_seconds is not None and got.tpot_seconds.count == 10
    both = seen(
        (0.0, text(*old(0), counter("num_preemptions", 0))), (60.0, text(*old(10), counter("num_preemptions", 3)))
    )
    assert both.preemptions == 3


def test_tpot_is_the_per_request_histogram_where_there_is_one() -> None:
    def at(n: float) -> str:
        request = histogram("request_time_per_output_token_seconds", {"0.01": n, "+Inf": n}, n)
        return text(request, histogram("inter_token_latency_seconds", {"0.01": 100 * n, "+Inf": 100 * n}, n))

    got = seen((0.0, at(0)), (60.0, at(3)))
    assert got.tpot_seconds is not None and got.tpot_seconds.count == 3


def test_histograms_of_several_engines_are_merged_and_counters_added() -> None:
    def at(n: float) -> str:
        engines = [f'engine="{i}",model_name="m"' for i in range(2)]
        return text(
            *(histogram("time_to_first_token_seconds", {"0.1": n, "1.0": 2 * n, "+Inf": 3 * n}, n, e) for e in engines),
            *(counter("generation_tokens", 7 * n, e) for e in engines),
            *(line("vllm:num_requests_running", 2, e) for e in engines),
            *(line("vllm:kv_cache_usage_perc", 0.2 + 0.4 * i, e) for i, e in enumerate(engines)),
            *(line("vllm:cache_config_info", 1, f'engine="{i}",num_gpu_blocks="10",block_size="16"') for i in range(2)),
        )

    got = seen((0.0, at(1)), (60.0, at(11)))
    assert got.ttft_seconds is not None
    assert (got.ttft_seconds.counts, got.ttft_seconds.sum) == ((20, 40, 60), 20)
    assert (got.generated_tokens, got.running) == (140, 4)
    assert (got.num_gpu_blocks, got.kv_capacity_tokens) == (10, 160), "vLLM writes the sum of all engines on each"
    assert (got.kv_usage, got.kv_usage_max) == (pytest.approx(0.4), pytest.approx(0.6))


def test_engines_with_different_edges_cannot_be_merged() -> None:
    def at(n: float) -> str:
        one = histogram("request_prompt_tokens", {"10.0": n, "+Inf": n}, n)
        return text(one, histogram("request_prompt_tokens", {"20.0": n, "+Inf": n}, n, 'engine="1",model_name="m"'))

    assert seen((0.0, at(0)), (60.0, at(1))).prompt_length is None


@pytest.mark.parametrize("missing", ['le="+Inf"', "_sum"])
def test_a_histogram_with_a_part_missing_is_unknown(missing: str) -> None:
    def at(n: float) -> str:
        body = text(histogram("request_prompt_tokens", {"10.0": n, "+Inf": n}, n))
        return "\n".join(x for x in body.split("\n") if missing not in x)

    assert seen((0.0, at(0)), (60.0, at(1))).prompt_length is None


def test_another_spelling_of_the_edges_is_the_same_bucket() -> None:
    """An upgrade from Prometheus 2 to 3 turns le="1" into le="1.0"."""
    old = text(histogram("request_prompt_tokens", {"1": 5, "+Inf": 9}, 90))
    new = text(histogram("request_prompt_tokens", {"1.0": 6, "+Inf": 11}, 100))
    got = seen((0.0, old), (60.0, new)).prompt_length
    assert got is not None
    assert (got.bounds[0], got.counts, got.sum) == (1.0, (1, 2), 10)


def test_buckets_of_a_scrape_that_is_not_atomic_stay_cumulative() -> None:
    got = seen(
        (0.0, text(histogram("request_prompt_tokens", {"1.0": 0, "2.0": 0, "+Inf": 0}, 0))),
        (60.0, text(histogram("request_prompt_tokens", {"1.0": 6, "2.0": 5, "+Inf": 6}, 8))),
    )
    assert got.prompt_length is not None and got.prompt_length.counts == (6, 6, 6)


def test_gauges_are_averaged_over_time_and_the_baseline_is_not_part_of_them() -> None:
    values = [(0.0, 100), (50.0, 1), (60.0, 3), (90.0, 3)]
    got = seen(*((at, text(line("vllm:num_requests_waiting", v))) for at, v in values), start=40.0, end=95.0)
    assert got.waiting == pytest.approx((10 * 2 + 30 * 3) / 40)


def test_the_fullest_moment_of_the_cache_is_kept() -> None:
    got = seen(*((float(i), text(line("vllm:kv_cache_usage_perc", v))) for i, v in enumerate([0.1, 1.0, 0.1])))
    assert got.kv_usage_max == 1.0
    assert got.kv_usage == pytest.approx(0.55)


@pytest.mark.parametrize(
    ("labels", "tokens"),
    [
        ('num_gpu_blocks="100",block_size="16"', 1600),
        ('num_gpu_blocks="100",block_size="16",kv_cache_size_tokens="1500"', 1500),
        ('num_gpu_blocks="100",block_size="16",kv_cache_size_tokens="None"', 1600),
        ('num_gpu_blocks="None",block_size="16"', None),
        ('num_gpu_blocks="0",block_size="16"', None),
        ('block_size="16"', None),
    ],
)
def test_the_real_cache_size_wins_over_blocks(labels: str, tokens: float | None) -> None:
    assert seen((1.0, text(line("vllm:cache_config_info", 1, labels)))).kv_capacity_tokens == tokens


def test_after_a_restart_the_newest_cache_config_counts() -> None:
    def at(blocks: int) -> str:
        return text(line("vllm:cache_config_info", 1, f'engine="0",num_gpu_blocks="{blocks}",block_size="16"'))

    assert seen((1.0, at(100)), (2.0, at(50))).kv_capacity_tokens == 800


def test_a_fleet_averages_gauges_sums_counters_and_leaves_out_pods_without_samples() -> None:
    held = {
        **samples((0.0, text(counter("prompt_tokens", 0), line("vllm:kv_cache_usage_perc", 0.4))),
                  (60.0, text(counter("prompt_tokens", 5), line("vllm:kv_cache_usage_perc", 0.4))), pod="a").pods,
        **samples((0.0, text(counter("prompt_tokens", 0), line("vllm:kv_cache_usage_perc", 0.2))),
                  (60.0, text(counter("prompt_tokens", 7), line("vllm:kv_cache_usage_perc", 0.2))), pod="b").pods,
    }  # fmt: skip
    got = fleet(Samples(held), ["b", "a", "gone", "a"], 0, 60)
    assert got is not None
    assert (got.pods, got.prompt_tokens, got.window_seconds) == (2, 12, 60)
    assert got.kv_usage == pytest.approx(0.3)
    assert fleet(Samples(held), ["gone"], 0, 60) is None
    assert fleet(Samples(held), [], 0, 60) is None


def test_a_gap_is_the_age_of_the_newest_sample() -> None:
    held = samples((100.0, text(counter("prompt_tokens", 1))))
    assert not has_gap(held, "p", 130.0, 30.0)
    assert has_gap(held, "p", 130.1, 30.0)
    assert has_gap(held, "other", 100.0, 1e9)
    assert has_gap(Samples({"p": {}}), "p", 100.0, 1e9)


def test_every_field_of_observation_says_where_it_is_read() -> None:
    names = {f.name for f in fields(Observation)} - {"pods", "window_seconds"}
    assert {*COUNTERS, *GAUGES, *HISTOGRAMS, *CACHE_FIELDS} <= names
    assert all(sources(name) for name in names)


def test_waiting_requests_are_told_apart_by_reason_and_prompt_tokens_by_source() -> None:
    def at(n: float) -> str:
        by_source = {"local_compute": 6, "local_cache_hit": 3, "external_kv_transfer": 1}
        return text(
            line("vllm:num_requests_waiting_by_reason", 5, f'{ENGINE},reason="capacity"'),
            line("vllm:num_requests_waiting_by_reason", 2, f'{ENGINE},reason="deferred"'),
            *(
                line("vllm:prompt_tokens_by_source_total", k * n, f'{ENGINE},source="{s}"')
                for s, k in by_source.items()
            ),
            line("vllm:admission_rejections_total", n, 'model_name="m",reason="max_num_queued_reqs"'),
            line("vllm:admission_rejections_total", 2 * n, 'model_name="m",reason="max_num_queued_tokens"'),
            line("vllm:iteration_tokens_total_count", 100 * n),
            line("vllm:request_params_n_sum", 4 * n),
        )

    got = seen((0.0, at(1)), (60.0, at(11)))
    assert (got.waiting_capacity, got.waiting_deferred) == (5, 2)
    assert (got.prompt_tokens_computed, got.prompt_tokens_cached, got.prompt_tokens_transferred) == (60, 30, 10)
    assert (got.admission_rejections, got.engine_steps, got.requested_sequences) == (30, 1000, 40)


@pytest.mark.parametrize(("stated", "on"), [("True", True), ("False", False), ("None", None)])
def test_prefix_caching_is_what_the_engine_says(stated: str, on: bool | None) -> None:
    labels = f'engine="0",block_size="16",enable_prefix_caching="{stated}",num_gpu_blocks="7"'
    got = seen((1.0, text(line("vllm:cache_config_info", 1, labels))))
    assert (got.prefix_caching, got.num_gpu_blocks, got.block_size_tokens) == (on, 7, 16)


def test_per_engine_cache_sizes_are_added() -> None:
    info = [
        line(
            "vllm:cache_config_info", 1, f'engine="{i}",num_gpu_blocks="20",block_size="16",kv_cache_size_tokens="150"'
        )
        for i in range(2)
    ]
    assert seen((1.0, text(*info))).kv_capacity_tokens == 300


def test_pods_that_disagree_about_their_configuration_leave_it_unknown() -> None:
    def pod(stated: str) -> Observation:
        return seen((1.0, text(line("vllm:cache_config_info", 1, f'block_size="16",enable_prefix_caching="{stated}"'))))

    same, mixed = combine([pod("True"), pod("True")]), combine([pod("True"), pod("False")])
    assert same is not None and mixed is not None
    assert (same.prefix_caching, mixed.prefix_caching, mixed.block_size_tokens) == (True, None, 16)
    later = join(pod("True"), pod("True"))
    assert (later.prefix_caching, later.block_size_tokens) == (True, 16)
