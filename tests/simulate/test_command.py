"""`trimtab simulate` as a person calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trimtab.cli.main import main
from trimtab.cli.simulate import configurations, parse_setting, parse_times
from trimtab.errors import InputError
from trimtab.simulate.config import StepTimes


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
        configurations(100, ["max_num_seqs=4", "max_num_seqs=8"])
