"""`trimtab kv`: the figures of the field, what wins over what, and errors that name the option."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trimtab.cli.main import main

LLAMA = ["--layers", "32", "--kv-heads", "8", "--head-size", "128", "--dtype", "float16", "--block-size", "16"]
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "hidden_size": 4096, "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip
MIB = 2**20
Json = dict[str, Any]


def run(*args: str, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["kv", *args])
    assert ended.value.code == code


def as_json(capsys: pytest.CaptureFixture[str], *args: str) -> Json:
    run("-o", "json", *args)
    read: Json = json.loads(capsys.readouterr().out)
    return read


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    run(*args, code=2)
    out = capsys.readouterr()
    return out.err + out.out


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path / "config.json")


# --- the figures of the field -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("tokens", "blocks"), [("128", 8), ("512", 32)])
def test_blocks_of_a_request(tokens: str, blocks: int, capsys: pytest.CaptureFixture[str]) -> None:
    shown = as_json(capsys, *LLAMA, "--max-new-tokens", tokens)
    assert shown["request"]["reserved"]["blocks"] == blocks


def test_reserved_used_and_wasted(capsys: pytest.CaptureFixture[str]) -> None:
    shown = as_json(capsys, *LLAMA, "--max-new-tokens", "512", "--generated", "80")
    assert shown["bytes_per_block"] == 2_097_152
    assert shown["request"] == {
        "reserved": {"blocks": 32, "bytes": 64 * MIB},
        "used": {"blocks": 5, "bytes": 10 * MIB},
        "wasted": {"blocks": 27, "bytes": 54 * MIB},
    }


def test_the_table_says_it_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    run(*LLAMA, "--max-new-tokens", "512", "--generated", "80", "--running", "48", "--replicas", "4")
    text = capsys.readouterr().out
    for word in (
        "2,097,152 (2 MiB)",
        "1 MiB = 1,048,576 bytes",
        "64 MiB",
        "10 MiB",
        "54 MiB",
        "10,368 MiB",
        "4 replicas",
    ):
        assert word in text, word


def test_dozens_of_requests_waste_gigabytes(capsys: pytest.CaptureFixture[str]) -> None:
    shown = as_json(capsys, *LLAMA, "--max-new-tokens", "512", "--generated", "80", "--running", "48")
    assert shown["engine"]["wasted"]["bytes"] == 48 * 54 * MIB > 2 * 2**30


# --- sources ----------------------------------------------------------------------------------------------------------
def test_a_config_says_the_same_as_flags(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = as_json(capsys, config)
    assert (shown["bytes_per_block"], shown["max_model_len_tokens"]) == (2_097_152, 8192)
    assert as_json(capsys, str(Path(config).parent)) == shown


def test_the_engines_flags_are_read_and_options_win(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "--",
        "vllm",
        "serve",
        "m",
        "--block_size=32",
        "-tp",
        "2",
        "--kv-cache-dtype",
        "fp8",
        "--max-model-len",
        "4k",
    ]
    shown = as_json(capsys, config, *command)
    assert (shown["block_size_tokens"], shown["kv_dtype"], shown["max_model_len_tokens"]) == (32, "fp8", 4000)
    assert shown["bytes_per_block"] == 2_097_152 // 2 * 2 // 2
    assert as_json(capsys, config, "--block-size", "64", *command)["block_size_tokens"] == 64


def test_the_model_of_the_command_is_the_config(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = as_json(capsys, "--", "vllm", "serve", str(Path(config).parent), "--num-gpu-blocks-override", "500")
    assert shown["num_gpu_blocks"]["blocks"] == 500 and shown["layers"] == "32 full"


def test_the_real_count_wins(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = [config, "--gpu-memory", "25250627584", "--gpu-memory-utilization", "0.9", "--weights", "16060522496"]
    derived = as_json(capsys, *args)["num_gpu_blocks"]
    assert (derived["blocks"], derived["exact"]) == (3178, False)
    shown = as_json(capsys, *args, "--num-gpu-blocks", "2588")
    assert shown["num_gpu_blocks"]["blocks"] == 2588 and shown["derived_num_gpu_blocks"]["blocks"] == 3178
    assert any("derived were 3,178 blocks (-18.6%)" in note for note in shown["notes"])


def test_an_upper_bound_says_so(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(config, "--gpu-memory", "80GiB", "--weights", "16GB")
    text = capsys.readouterr().out
    assert "at most" in text and "upper bound" in text


def test_weights_lie_beside_the_config(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    index = Path(config).parent / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 16 * 2**30}}))
    shown = as_json(capsys, config, "--gpu-memory", "80GiB", "--gpu-memory-utilization", "0.9")
    assert shown["num_gpu_blocks"]["blocks"] == 56 * 512


def test_a_cpu_has_blocks_of_128(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = as_json(capsys, config, "--cpu-kvcache-space", "4")
    assert (shown["block_size_tokens"], shown["num_gpu_blocks"]["blocks"]) == (128, 256)


def test_speculative_config_of_the_command(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(Path(config).parent)
    draft = json.dumps({"method": "draft_model", "model": folder, "num_speculative_tokens": 3})
    shown = as_json(capsys, config, "--", "vllm", "serve", "m", "--speculative-config", draft)
    assert shown["bytes_per_block"] == 2 * 2_097_152
    same = as_json(capsys, config, "--spec-method", "draft_model", "--spec-tokens", "3", "--spec-model", folder)
    assert same["bytes_per_block"] == shown["bytes_per_block"]


def test_what_does_not_fit_is_said(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = as_json(capsys, config, "--num-gpu-blocks", "1001", "--max-new-tokens", "512", "--generated", "80",
                    "--running", "64")  # fmt: skip
    assert "64 requests reserve 2,048 blocks; 1,000 exist." in shown["notes"]
    assert not any("requests use" in note for note in shown["notes"])


def test_what_is_not_modelled_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layers = ["linear_attention"] * 24 + ["full_attention"] * 8
    (tmp_path / "c.json").write_text(json.dumps({**CONFIG, "layer_types": layers}))
    shown = as_json(capsys, str(tmp_path / "c.json"), "--kv-cache-memory-bytes", "10GiB")
    assert shown["num_gpu_blocks"] is None and "Not modelled: linear_attention" in shown["notes"][0]


def test_unset_max_new_tokens_is_what_is_left(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert as_json(capsys, config, "--prompt", "192", "--generated", "80")["tokens"]["max_new"] == 8000


# --- errors -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("args", "named"),
    [
        ([], "--layers"),
        (["--layers", "2"], "--kv-heads"),
        (["nowhere.json"], "nowhere.json cannot be read"),
        ([*LLAMA, "--block-size", "0"], "block_size"),
        ([*LLAMA, "--kv-cache-dtype", "fp3"], "--kv-cache-dtype"),
        ([*LLAMA, "--gpu-memory", "lots"], "--gpu-memory"),
        ([*LLAMA, "--gpu-memory", "80 parsecs"], "--gpu-memory"),
        ([*LLAMA, "--generated", "5"], "--max-new-tokens"),
        ([*LLAMA, "--max-new-tokens", "5", "--generated", "6"], "--generated"),
        ([*LLAMA, "--max-new-tokens", "600", "--max-model-len", "512"], "--max-new-tokens"),
        ([*LLAMA, "--max-new-tokens", "600", "--running", "0"], "--running"),
        ([*LLAMA, "--tp", "3"], "tensor_parallel"),
        ([*LLAMA, "--spec-method", "ngram"], "--spec-tokens"),
        ([*LLAMA, "--", "vllm", "serve", "m", "--max-model-len", "big"], "--max-model-len"),
        ([*LLAMA, "--", "vllm", "serve", "m", "--gpu-memory-utilization", "all"], "--gpu-memory-utilization"),
        ([*LLAMA, "--", "vllm", "serve", "m", "--speculative-config", "{"], "--speculative-config"),
        ([*LLAMA, "--", "nginx"], "command"),
    ],
)
def test_errors_name_the_option(args: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert named in refused(capsys, *args)


def test_a_config_that_is_no_json_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{")
    assert "is no JSON" in refused(capsys, str(tmp_path))


def test_a_config_and_figures_contradict(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "not both" in refused(capsys, config, "--layers", "2")
