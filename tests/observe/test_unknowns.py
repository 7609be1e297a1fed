"""Each reason for an unknown field, and that nothing unknown goes without one."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from metric_texts import counter, histogram, http, line, samples, text
from shapes import held, observed, shape

from trimtab.engine.metric_table import READ, version_text
from trimtab.errors import InputError
from trimtab.observe.mapping import observe
from trimtab.observe.observation import Observation
from trimtab.observe.samples import Samples
from trimtab.observe.unknowns import Facts, Unknown, names_of, unknowns

EMPTY = Observation(pods=1, window_seconds=60.0)


def about(
    field: str,
    seen: Observation = EMPTY,
    version: str | None = None,
    facts: Facts | None = None,
    names: Collection[str] | None = None,
) -> Unknown:
    (found,) = [u for u in unknowns(seen, version, facts, names) if u.field == field]
    return found


def window(*scrapes: tuple[float, str]) -> tuple[Observation, Samples]:
    held = samples(*scrapes)
    seen = observe(held, "p", 0.0, 100.0)
    assert seen is not None
    return seen, held


@pytest.mark.parametrize("version", [None, *(version_text(v) for v in READ)])
@pytest.mark.parametrize("engine", [None, "v0", "v1"])
def test_every_unknown_field_has_a_reason_in_every_version(version: str | None, engine: str | None) -> None:
    found = unknowns(EMPTY, version, Facts(engine=engine))  # type: ignore[arg-type]
    assert [u.field for u in found] == [name for name, value in vars(EMPTY).items() if value is None]
    assert all(u.why.endswith(".") and u.remedy.endswith(".") for u in found)


def test_what_is_known_is_not_listed() -> None:
    seen = Observation(pods=1, window_seconds=60.0, finished=0.0, prefix_caching=False)
    assert not {"finished", "prefix_caching"} & {u.field for u in unknowns(seen, "0.32.0")}


@pytest.mark.parametrize(
    ("field", "version", "remedy"),
    [
        ("waiting_capacity", "0.11.0", "Upgrade to vLLM 0.20.0 or newer."),
        ("prompt_tokens_cached", "0.12.0", "Upgrade to vLLM 0.16.0 or newer."),
        ("admission_rejections", "0.31.0", "Upgrade to vLLM 0.32.0 or newer."),
        ("http_errors", "0.6.6", "Upgrade to vLLM 0.8.5 or newer."),
        ("engine_steps", "0.6.2", "Upgrade to vLLM 0.6.4 or newer."),
    ],
)
def test_a_field_that_came_later_asks_for_an_upgrade(field: str, version: str, remedy: str) -> None:
    assert about(field, version=version).remedy == remedy


def test_a_hidden_metric_names_the_flag_with_the_minor_version_before() -> None:
    found = about("swapped", version="0.8.5", facts=Facts(engine="v0"))
    assert found.remedy == "Add --show-hidden-metrics-for-version=0.7."
    shown = about("swapped", version="0.8.5", facts=Facts(engine="v0", hidden_shown=True))
    assert "flag is set" in shown.remedy


def test_what_only_the_other_engine_shows_names_it() -> None:
    assert about("prefix_hits", version="0.9.2", facts=Facts(engine="v0")).remedy == (
        "Use the v1 engine (VLLM_USE_V1=1, the default since 0.8.0) of vLLM 0.7.3 or newer."
    )
    assert about("swapped", version="0.32.0").remedy == "Nothing is missed, and nothing brings it back."


def test_without_log_stats_only_http_is_left() -> None:
    off = Facts(log_stats=False)
    assert "--disable-log-stats" in about("running", version="0.32.0", facts=off).why
    assert "--disable-log-stats" not in about("http_errors", version="0.32.0", facts=off).why


def test_nothing_scraped_and_nothing_of_vllm_are_told_apart() -> None:
    assert "Nothing was scraped" in about("running", names=()).why
    assert "none of vLLM" in about("running", names={"process_start_time_seconds"}).why


def test_one_sample_asks_for_a_longer_window() -> None:
    seen, held = window((50.0, text(counter("num_preemptions", 1))))
    assert "two samples" in about("preemptions", seen, "0.32.0", names=names_of(held, ["p"])).why


def test_a_metric_that_its_version_shows_was_dropped_on_the_way() -> None:
    seen, held = window((0.0, text(counter("num_preemptions", 1))), (60.0, text(counter("num_preemptions", 2))))
    found = about("generated_tokens", seen, "0.32.0", names=names_of(held, ["p"]))
    assert "vllm:generation_tokens_total" in found.why and "relabeling" in found.remedy


def test_buckets_that_cannot_be_merged_name_the_flag_that_sets_them() -> None:
    def at(n: float) -> str:
        one = histogram("request_prompt_tokens", {"10.0": n, "+Inf": n}, n)
        two = histogram("request_prompt_tokens", {"20.0": n, "+Inf": n}, n, 'engine="1",model_name="m"')
        return text(one, two, counter("num_preemptions", n))

    seen, held = window((0.0, at(0)), (60.0, at(1)))
    found = about("prompt_length", seen, "0.32.0", names=names_of(held, ["p"]))
    assert "different edges" in found.why and "--max-model-len" in found.remedy


def test_counters_that_jump_name_the_folder_of_several_processes() -> None:
    scrapes = [(10.0 * i, text(counter("num_preemptions", i % 2), started=None)) for i in range(6)]
    seen, held = window(*scrapes)
    assert seen.preemptions is None
    found = about("preemptions", seen, "0.32.0", names=names_of(held, ["p"]))
    assert "several processes" in found.why and "PROMETHEUS_MULTIPROC_DIR" in found.remedy


def test_http_errors_wait_for_the_first_inference_request() -> None:
    def at(n: float) -> str:
        return text(counter("num_preemptions", n), http(n, handler="/v1/models", method="GET"))

    seen, held = window((0.0, at(0)), (60.0, at(1)))
    assert "first request" in about("http_errors", seen, "0.32.0", names=names_of(held, ["p"])).remedy


def test_a_cache_whose_size_is_not_told_says_since_when_it_is() -> None:
    old = shape("vllm-0.8.5-v1.txt")
    found = about("kv_capacity_tokens", observed(old), "0.8.5", names=names_of(held(old), ["p"]))
    assert "num_gpu_blocks=None" in found.why and "0.9.0" in found.remedy
    seen, later = window((1.0, text(line("vllm:cache_config_info", 1, 'engine="0"'))))
    assert "relabeling" in about("block_size_tokens", seen, "0.32.0", names=names_of(later, ["p"])).remedy


def test_pods_that_disagree_are_named_as_such() -> None:
    seen = Observation(pods=2, window_seconds=60.0)
    assert "do not agree" in about("prefix_caching", seen, "0.32.0", names={"vllm:cache_config_info"}).why


def test_useful_and_reserved_tokens_can_also_come_from_the_middleware() -> None:
    assert "llm_useful_tokens_total" in about("useful_tokens", version="0.32.0").remedy
    assert "llm_reserved_tokens_total" in about("reserved_tokens", version="0.6.0").remedy


def test_a_version_that_is_none_is_refused() -> None:
    with pytest.raises(InputError):
        unknowns(EMPTY, "latest")
