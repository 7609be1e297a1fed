"""`trimtab simulate` as a person calls it."""

from __future__ import annotations

import gzip
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from simulated_worlds import profile
from trimtab.cli.main import main
from trimtab.cli.simulation import configurations, parse_setting, parse_times
from trimtab.errors import InputError
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.profile import save_profile


def call(*args: str) -> int:
    try:
        main(["simulate", *args])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_a_grid_is_ranked_by_goodput_and_written_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    load = ("--rate", "6", "--duration", "30", "--slo-ttft", "2", "--cancel", "0.2")
    settings = ("--set", "max_num_seqs=4,64", "--set", "enable_prefix_caching=true,false")
    assert call("--blocks", "300", *settings, *load, "--processes", "1", "--json", str(file)) == 0
    results = json.loads(file.read_text())["results"]
    goodput = [r["goodput_tokens_per_second"] for r in results]
    assert len(results) == 4 and goodput == sorted(goodput, reverse=True)
    assert results[0]["config"]["max_num_seqs"] == 64
    assert all(r["wasted_tokens"] > 0 and r["endings"]["cancelled"] > 0 for r in results)
    assert "goodput" in "".join(capsys.readouterr())


def test_no_figure_of_the_table_is_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    load = (
        "--rate",
        "6",
        "--duration",
        "30",
        "--cancel",
        "0.2",
        "--max-tokens-ratio",
        "1:3",
        "--max-output-tokens",
        "2000",
    )
    settings = ("--set", "max_num_seqs=4,64", "--set", "admission=reserve,on-demand")
    assert call("--blocks", "100", *settings, *load, "--processes", "1") == 0
    text = "".join(capsys.readouterr())
    assert "…" not in text and "on-demand" in text and "served" in text


def test_processes_do_not_change_the_figures(tmp_path: Path) -> None:
    texts = []
    for processes in ("1", "2"):
        file = tmp_path / processes
        arguments = ("--blocks", "200", "--set", "max_num_seqs=8,32", "--duration", "20", "--rate", "4")
        assert call(*arguments, "--processes", processes, "--json", str(file)) == 0
        texts.append(file.read_text())
    assert texts[0] == texts[1]


def test_a_trace_is_simulated(tmp_path: Path) -> None:
    trace = tmp_path / "azure.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:50.9,396,109\n"
    )
    file = tmp_path / "out.json"
    assert call("--blocks", "100", "--trace", f"azure:{trace}", "--json", str(file)) == 0
    (result,) = json.loads(file.read_text())["results"]
    assert result["endings"] == {"stop": 2} and result["counters"]["generation_tokens"] == 153


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--blocks", "1"), "num_gpu_blocks"),
        (("--blocks", "100", "--set", "max_seqs=4"), "max_seqs"),
        (("--blocks", "100", "--set", "max_num_seqs=four"), "max_num_seqs"),
        (("--blocks", "100", "--set", "max_num_seqs=4096"), "max_num_batched_tokens"),
        (("--blocks", "100", "--times", "fixed=0"), "fixed"),
        (("--blocks", "100", "--times", "speed=2"), "speed"),
    ],
)
def test_bad_input_names_the_field(arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*arguments) == 2
    assert named in capsys.readouterr().err


def test_settings_and_times_are_read_by_their_type() -> None:
    assert parse_setting("enable-prefix-caching=true,false") == ("enable_prefix_caching", [True, False])
    assert parse_setting("watermark=0.05") == ("watermark", [0.05])
    assert parse_setting("admission=reserve") == ("admission", ["reserve"])
    assert parse_times("fixed=0.02,free_tokens=64") == StepTimes(0.02, 0.0, 0.0, 0.0, 0.0, 0.0, 64)
    with pytest.raises(InputError):
        configurations(EngineConfig(num_gpu_blocks=100), ["max_num_seqs=4", "max_num_seqs=8"])


@pytest.mark.parametrize(
    ("name", "begin"), [("p.html", b"<!doctype html>"), ("p.svg", b"<?xml"), ("p.png", b"\x89PNG")]
)
def test_a_picture_is_drawn_and_the_same_run_gives_the_same(tmp_path: Path, name: str, begin: bytes) -> None:
    pytest.importorskip("matplotlib")
    raw = []
    for _ in range(2):
        arguments = ("--blocks", "60", "--rate", "6", "--duration", "10", "--set", "max_num_seqs=4,8")
        assert call(*arguments, "--plot", str(tmp_path / name)) == 0
        raw.append((tmp_path / name).read_bytes())
    assert raw[0].startswith(begin) and raw[0] == raw[1]
    if name.endswith("html"):
        text = raw[0].decode()
        assert "max_num_seqs=8" in text and "KV cache in use" in text
        assert not re.findall(r'(?:src|href)="(?!#)', text), "nothing is loaded from elsewhere"


def test_a_kind_of_picture_that_cannot_be_written_is_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call("--blocks", "100", "--plot", "x.pdf") == 2
    assert ".svg" in capsys.readouterr().err


def test_kv_use_over_time_is_in_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    assert call("--blocks", "60", "--rate", "6", "--duration", "20", "--series", "--json", str(file)) == 0
    (result,) = json.loads(file.read_text())["results"]
    course = result["series"]
    assert len(course["at_seconds"]) == len(course["kv_usage"]) > 50
    assert 0.9 < max(course["kv_usage"]) <= 1.0 and result["counters"]["preemptions"] > 0
    tokens = sum(
        rate * gap
        for rate, gap in zip(
            course["tokens_per_second"],
            [b - a for a, b in pairwise([0.0, *course["at_seconds"]])],
            strict=True,
        )
    )
    assert tokens == pytest.approx(result["counters"]["generation_tokens"], rel=0.05)
    assert "█" in "".join(capsys.readouterr())


def test_a_profile_brings_engine_step_times_and_load_and_options_go_over_it(tmp_path: Path) -> None:
    save_profile(profile("slots"), tmp_path / "p.json")
    results = []
    for more in ((), ("--set", "max_num_seqs=64"), ("--rate", "1")):
        file = tmp_path / "out.json"
        assert call("--profile", str(tmp_path / "p.json"), "--duration", "20", *more, "--json", str(file)) == 0
        results += json.loads(file.read_text())["results"]
    seqs = [r["config"]["max_num_seqs"] for r in results]
    requests = [sum(r["endings"].values()) for r in results]
    assert seqs == [16, 64, 16] and requests[0] == requests[1] > 300 > requests[2]
    assert results[0]["config"]["num_gpu_blocks"] == profile("slots").engine.num_gpu_blocks


def test_a_mooncake_trace_shares_its_prefixes(tmp_path: Path) -> None:
    line = '{"timestamp": %d, "input_length": 1100, "output_length": 10, "hash_ids": [1, 2, %d]}\n'
    with gzip.open(tmp_path / "m.jsonl.gz", "wt") as file:
        file.writelines(line % (1000 * i, 10 + i) for i in range(5))
    out = tmp_path / "out.json"
    trace = ("--trace", f"mooncake:{tmp_path / 'm.jsonl.gz'}")
    assert call("--blocks", "500", *trace, "--json", str(out)) == 0
    (result,) = json.loads(out.read_text())["results"]
    # two blocks of 512 tokens are shared by all but the first
    assert result["counters"]["prefix_cache_hits"] == 4 * 1024


def test_explain_says_what_binds_in_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_profile(profile("slots"), tmp_path / "p.json")
    file = tmp_path / "out.json"
    arguments = ["--profile", str(tmp_path / "p.json"), "--duration", "10", "--slo-ttft", "5", "--json", str(file)]
    with pytest.raises(SystemExit) as ended:
        main(["explain", *arguments])
    assert not ended.value.code
    text = "".join(capsys.readouterr())
    assert "What binds: the slots" in text and "Best together: max_num_seqs=" in text and "replicas" in text
    assert "…" not in text
    found = json.loads(file.read_text())
    assert found["binds"]["resource"] == "slots" and found["nothing_helps"] is False
    assert {e["setting"] for e in found["effects"]} >= {"max_num_seqs", "watermark", "max_num_batched_tokens"}


def test_explain_wants_one_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "--blocks", "100", "--set", "max_num_seqs=4,8"])
    assert "--set" in capsys.readouterr().err
