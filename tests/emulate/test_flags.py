"""vLLM's command line in its real spellings, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trimtab.emulate.environment import read_emulation
from trimtab.emulate.faults import Faults
from trimtab.emulate.flags import ServerFlags, StartupError, parse_flags
from trimtab.errors import InputError
from trimtab.simulate.config import StepTimes

LENGTHS = {"shares": [0, 1], "tokens": [10, 20]}
PROFILE = {
    "engine": {"num_gpu_blocks": 100},
    "times": {"fixed": 0.02, "per_prefill_token": 0.001},
    "workload": {"requests_per_second": 1, "prompt_tokens": LENGTHS, "output_tokens": LENGTHS},
}


def parse(text: str) -> ServerFlags:
    return parse_flags(text.split())


@pytest.mark.parametrize("text", ["serve m", "m", "--model m", "--model=m", "serve --model m --port 8000"])
def test_the_model_comes_by_position_or_by_name(text: str) -> None:
    flags = parse(text)
    assert (flags.model, flags.served_model_names, flags.port) == ("m", ("m",), 8000)


def test_defaults_are_those_of_a_small_gpu() -> None:
    limits = parse("m").limits
    assert (limits.max_num_seqs, limits.max_num_batched_tokens, limits.block_size) == (256, 2048, 16)
    assert limits.enable_prefix_caching
    assert limits.num_gpu_blocks == 2000


@pytest.mark.parametrize(
    "flag", ["--max-num-seqs 8", "--max_num_seqs=8", "--max-num-seq 8", "--max-num-seqs 9 --max_num_seqs 8"]
)
def test_spellings_of_one_flag(flag: str) -> None:
    assert parse(f"m {flag}").limits.max_num_seqs == 8


def test_human_numbers_where_vllm_takes_them() -> None:
    limits = parse("m --max-num-batched-tokens 8k --max-model-len 2K").limits
    assert (limits.max_num_batched_tokens, limits.max_model_len) == (8000, 2048)
    with pytest.raises(SystemExit) as ended:
        parse("m --max-num-seqs 1k")
    assert ended.value.code == 2


def test_switches_go_both_ways_and_the_last_wins() -> None:
    assert not parse("m --no-enable-prefix-caching").limits.enable_prefix_caching
    assert parse("m --no-enable-prefix-caching --enable-prefix-caching").limits.enable_prefix_caching


def test_real_flags_are_accepted_and_reported_as_ignored() -> None:
    flags = parse("m -tp 2 --dtype half -O3 --trust-remote-code --speculative-config.method ngram --no-enforce-eager")
    expected = ("dtype", "enforce_eager", "optimization_level", "speculative_config", "tensor_parallel_size")
    assert flags.ignored == (*expected, "trust_remote_code")


def test_an_unknown_flag_ends_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("m --made-up 3")
    assert ended.value.code == 2
    assert "unrecognized arguments: --made-up" in capsys.readouterr().err


def test_only_max_new_tokens_of_the_generation_config_counts() -> None:
    assert parse_flags(["m", "--override-generation-config", '{"max_new_tokens": 200}']).max_new_tokens == 200
    assert parse("m --override-generation-config.max_new_tokens 50").max_new_tokens == 50
    assert parse_flags(["m", "--override-generation-config", '{"max_tokens": 200}']).max_new_tokens is None


def test_a_config_file_feeds_flags_below_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("max-num-seqs: 8\nblock_size: 32\nenable-prefix-caching: false\nserved-model-name: [a, b]\n")
    flags = parse(f"m --config {file} --max-num-seqs 16")
    assert (flags.limits.max_num_seqs, flags.limits.block_size) == (16, 32)
    assert flags.served_model_names == ("a", "b")
    assert not flags.limits.enable_prefix_caching


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m --max-num-seqs 4096", r"max_num_batched_tokens \(2048\) must be greater than or equal to max_num_seqs"),
        ("m --max-model-len 100k", "max seq len"),
        ("m --max-num-active-seqs 300", "max_num_active_seqs"),
        ("m --gpu-memory-utilization 1.5", "utilization"),
        ("m --watermark 1", "watermark"),
    ],
)
def test_combinations_that_do_not_start(text: str, message: str) -> None:
    with pytest.raises(StartupError, match=message):
        parse(text)


def test_memory_gives_blocks_unless_overridden() -> None:
    assert parse("m --gpu-memory-utilization 0.46").limits.num_gpu_blocks == 1000
    assert parse("m --num-gpu-blocks-override 77").limits.num_gpu_blocks == 77


def test_the_environment_changes_timing_and_faults() -> None:
    emulation = read_emulation(
        {
            "EMULATE_STEP_PRESET": "tiny-cpu",
            "EMULATE_STEP_FIXED_MS": "7",
            "EMULATE_CRASH_IF": "max_num_seqs>200",
            "EMULATE_FAULTS": "hang=true, error_share=0.25,error_status=503",
            "EMULATE_FAULTS_AFTER_SECONDS": "9",
            "HOME": "/",
        }
    )
    assert (emulation.times.fixed, emulation.times.per_prefill_token) == (0.007, 0.00002)
    assert emulation.faults == Faults(hang=True, error_share=0.25, error_status=503)
    assert emulation.faults_after_seconds == 9 and not emulation.fault_api
    assert emulation.crash_if is not None
    assert emulation.crash_if.holds({"max_num_seqs": 256})
    assert not emulation.crash_if.holds({"max_num_seqs": 200})


@pytest.mark.parametrize(
    "setting",
    [
        "EMULATE_START_SECONDS=soon",
        "EMULATE_START_SECONDS=-1",
        "EMULATE_SPEEDUP=0",
        "EMULATE_SPEEDUP=nan",
        "EMULATE_FAULTS=error_share=1.5",
        "EMULATE_FAULTS=error_share=much",
        "EMULATE_FAULTS=error_status=200",
        "EMULATE_FAULTS=hang",
        "EMULATE_FAULTS=hang=maybe",
        "EMULATE_FAULTS=catch_fire=true",
        "EMULATE_FAULTS=exit_code=0.5",
        "EMULATE_FAULT_API=yes",
        "EMULATE_PROFILE=/no/such/file",
        "EMULATE_CRASH_IF=max_num_seqs",
        "EMULATE_STEP_PRESET=h100",
        "EMULATE_STEP_FIXED_MS=x",
        "EMULATE_STEP_FIXD_MS=3",
    ],
)
def test_a_bad_variable_is_named(setting: str) -> None:
    name, _, value = setting.partition("=")
    with pytest.raises(InputError, match=name):
        read_emulation({name: value})


def test_step_times_come_from_a_calibrated_profile(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(PROFILE))
    assert read_emulation({"EMULATE_PROFILE": str(file)}).times == StepTimes(0.02, 0.001, 0.0, 0.0, 0.0)
    with pytest.raises(InputError, match="EMULATE_STEP_PRESET"):
        read_emulation({"EMULATE_PROFILE": str(file), "EMULATE_STEP_PRESET": "demo"})


def test_how_the_scheduler_works_is_on_the_command_line() -> None:
    limits = parse("m --scheduling-policy priority --no-async-scheduling --max-num-queued-reqs 4").limits
    assert (limits.policy, limits.async_scheduling, limits.max_num_queued_reqs) == ("priority", False, 4)
    assert parse("m").limits.async_scheduling
    assert parse("m --middleware a.B --middleware=c.d").middleware == ("a.B", "c.d")


def test_variables_that_kubernetes_makes_for_a_service_are_no_mistakes() -> None:
    links = {"EMULATE_A_SERVICE_HOST": "10.0.0.1", "EMULATE_A_PORT_80_TCP": "tcp://10.0.0.1:80", "EMULATE_A_PORT": "x"}
    assert read_emulation(links) == read_emulation({})
