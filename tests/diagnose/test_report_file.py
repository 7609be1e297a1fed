"""Whatever a report holds, it is read, or refused with the field and the fix; and no rule stumbles over it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from case_shapes import case
from hypothesis import given
from hypothesis import strategies as st

from trimtab.diagnose.arguments import device_of, engine_of, words_of
from trimtab.diagnose.case import FIELDS
from trimtab.diagnose.facts import TOPICS, Facts
from trimtab.diagnose.render import as_json, as_text
from trimtab.diagnose.report_file import case_of, read_report
from trimtab.diagnose.report_names import ALIASES, COUNTERS
from trimtab.diagnose.rules import examine
from trimtab.engine.admission import Model
from trimtab.errors import InputError

NUMBERS = st.none() | st.integers(-2, 300) | st.floats(0, 1e6) | st.just("n/a") | st.just("12%")
ROWS = st.dictionaries(
    st.sampled_from(sorted(FIELDS | set(ALIASES) | set(COUNTERS) | {"t_seconds", "health", "pod", "colour"})),
    NUMBERS
    | st.booleans()
    | st.lists(NUMBERS, max_size=3)
    | st.dictionaries(st.sampled_from("ab"), NUMBERS, max_size=2),
    max_size=12,
)
REPORTS = st.fixed_dictionaries(
    {},
    optional={
        "engine": st.sampled_from(
            [None, "vllm", "TGI", {"name": "sglang"}, {"name": "TensorRT-LLM", "version": 1}, {}, 3]
        ),
        "args": st.sampled_from(
            [
                None,
                "",
                "--max-num-seqs 8",
                ["--max-num-seqs=8"],
                {"max_num_seqs": 8},
                "--max-num-seqs $N",
                "vllm serve m -tp 8 --max-num-seqs many --no-enable-prefix-caching",
                "'",
            ]
        ),
        "hardware": st.sampled_from([None, "2x A100 80GB", "CPU", "?", 4]),
        "observations": st.lists(ROWS, max_size=6),
        "facts": st.lists(st.sampled_from(["nginx proxy", "clients retry", "OOM", "no gain from --max-num-seqs", ""])),
    },
)


@pytest.mark.parametrize("time", [[], {"a": 1}, "soon"])
def test_a_time_that_is_no_number_is_refused_also_in_a_part(time: Any) -> None:
    for row in ({"t_seconds": time, "running": 1}, {"pods": [{"t_seconds": time, "running": 1}]}):
        with pytest.raises(InputError, match=r"observations\[0\]"):
            read_report(json.dumps({"observations": [row]}))


@given(REPORTS)
def test_any_report_is_read_or_refused_with_its_field(report: dict[str, Any]) -> None:
    try:
        found = read_report(json.dumps(report))
    except InputError as error:
        assert error.field and error.fix
        return
    findings = examine(found)
    assert all(0 < f.confidence <= 1 for f in findings)
    json.dumps(as_json(found, findings), allow_nan=False)
    assert as_text(found, findings)


def test_arguments_in_every_shape() -> None:
    for args in (
        "vllm serve m --max-num-seqs 64",
        ["--max-num-seqs", "64"],
        ["--max-num-seqs 64"],
        {"max_num_seqs": 64},
        "docker run vllm/vllm-openai --max_num_seqs=64",
        "VLLM_X=1 python -m vllm.entrypoints.openai.api_server --max-num-seq 64",
        "--max-num-seqs \\\n 64",
        "max_num_seqs=64",
    ):
        found = engine_of("vllm", "0.11.0", args, "")
        assert (found.slots, found.slots_stated) == (64, True) or args == "max_num_seqs=64", args
    assert words_of(None) == ()


def test_a_default_is_known_but_not_stated() -> None:
    found = engine_of("vllm", "0.11.0", "", "8x H100 80GB")
    assert (found.slots, found.slots_stated) == (1024, False)
    assert engine_of("vllm", None, "", "8x H100 80GB").slots is None
    assert device_of("H100").memory_bytes == 80 * 2**30


@pytest.mark.parametrize(
    ("name", "args", "model"),
    [
        ("TGI", "", Model.RESERVE),
        ("text-generation-inference", "", Model.RESERVE),
        ("vLLM", "", Model.ON_DEMAND),
        ("TensorRT-LLM", "", Model.RESERVE),
        ("trtllm", "--capacity_scheduler_policy MAX_UTILIZATION", Model.ON_DEMAND),
        ("SGLang", "", Model.FRACTION),
        ("something", "", Model.ON_DEMAND),
    ],
)
def test_engines_admit_as_they_do(name: str, args: str, model: Model) -> None:
    assert engine_of(name, None, args, "").admission is model


def test_sums_of_kv_use_and_percent_are_told_apart() -> None:
    """monitoring-dashboard-samples#1188: 40% + 40% is 40%."""
    assert case({"kv_usage": 0.8 * 2, "replicas": 4}).now("kv_usage") == pytest.approx(0.4)
    assert case({"kv_usage": 96}).now("kv_usage") == 0.96
    assert case({"kv_usage": 1.0}).now("kv_usage") == 1.0


def test_parts_in_every_shape_and_their_average() -> None:
    shapes: list[dict[str, Any]] = [
        {"observations": [{"running": [6, 2]}]},
        {"observations": [{"running": {"a": 6, "b": 2}}]},
        {"observations": [{"pod": "a", "running": 6}, {"pod": "b", "running": 2}]},
        {"observations": [{"ranks": [{"running": 6}, {"running": 2}]}]},
    ]
    for shape in shapes:
        found = case_of(shape)
        assert len(found.parts) == 2 and found.now("running") == 4, shape


def test_a_fact_that_is_denied_does_not_count() -> None:
    assert Facts(("no proxy in front", "it does not retry")).about("proxy", "retry") == ()
    assert Facts(("nginx in front",)).about("proxy") == ("nginx in front",)
    assert set(TOPICS) and Facts(("GPU KV cache size: 76,640 tokens",)).pool_tokens == 76_640


def test_settings_of_trials_are_no_context() -> None:
    found = case_of({"observations": [{"max_num_seqs": 64, "colour": "red"}], "team": "x"})
    assert found.points[0].settings == {"max_num_seqs": 64.0} and found.context == {"team": "x", "colour": "red"}
