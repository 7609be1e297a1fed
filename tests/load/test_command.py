"""`trimtab load` from the outside: output, files, exit codes, signals, and errors that name the option."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from trimtab.cli.load import app as load
from trimtab.errors import InputError
from trimtab.load.readers import read_mooncake
from trimtab.load.records import parse_records, read_records
from trimtab.load.shape import LoadShape

MAIN = "import typer; from trimtab.cli.load import app; main = typer.Typer(); main.command()(app); main()"


def command() -> typer.Typer:
    main = typer.Typer()
    main.command()(load)
    return main


async def start(*arguments: str) -> asyncio.subprocess.Process:
    env = os.environ | {"COLUMNS": "200"}
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", MAIN, *arguments, stdout=pipe, stderr=pipe, env=env
    )


async def run(*arguments: str) -> tuple[int, str, str]:
    """In a thread of this process: a new one takes a second to import."""
    result = await asyncio.to_thread(CliRunner().invoke, command(), list(arguments), env={"COLUMNS": "200"})
    return result.exit_code, result.stdout, result.stderr


async def test_a_run_writes_records_summary_and_a_table(server: Any, tmp_path: Path) -> None:
    records, summary = tmp_path / "r.jsonl", tmp_path / "s.json"
    code, out, _ = await run(
        *(server.url, "--rate", "40", "--duration", "0.5", "--output", "8:0", "--cancel", "0.3", "--slo-ttft", "2"),
        *("--records", str(records), "--json", str(summary), "--salt", "x"),
    )
    told, rows = json.loads(summary.read_text()), read_records(records)
    assert code == 0 and told["requests"] == len(rows) == len(server.bodies) > 5
    assert told["ok"] == sum(r.ending == "ok" for r in rows) and told["cancelled"] > 0 and told["failed"] == 0
    assert (told["model"], told["salt"]) == ("fake-model", "x") and told["goodput_tokens_per_second"] > 0
    assert "TTFT" in out and "goodput" in out


async def test_records_on_stdout_are_alone_there(server: Any) -> None:
    code, out, err = await run(server.url, "--rate", "30", "--duration", "0.3", "--records", "-")
    assert code == 0 and len(list(parse_records(out, "stdout"))) == len(server.bodies) > 2
    assert "goodput" in err


async def test_a_signal_ends_early_with_the_summary(server: Any) -> None:
    server.token_seconds = 0.05
    process = await start(server.url, "--rate", "20", "--duration", "60", "--output", "1000:0", "--json", "-")
    for _ in range(200):
        if len(server.bodies) >= 3:
            break
        await asyncio.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, _ = await asyncio.wait_for(process.communicate(), 10)
    told = json.loads(out)
    assert process.returncode == 0 and told["interrupted"] and told["unfinished"] >= 3 and told["failed"] == 0


async def test_exit_codes(server: Any) -> None:
    few = ("--rate", "20", "--duration", "0.2")
    server.mode = "http500"
    code, out, _ = await run(server.url, *few)
    assert code == 0 and "http_500" in out
    assert (await run(server.url, *few, "--fail-on-errors"))[0] == 1
    code, out, _ = await run("http://127.0.0.1:9", "--model", "m", *few)
    assert code == 1 and "connect_error" in out
    code, _, err = await run("http://127.0.0.1:9", *few)
    assert code == 1 and "--model" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ftp://x",), "URL"),
        (("http://x", "--rate", "fast"), "--rate"),
        (("http://x", "--duration", "0"), "--duration"),
        (("http://x", "--rate", "0.0001"), "--duration"),
        (("http://x", "--cancel", "20"), "--cancel"),
        (("http://x", "--keepalive", "-1"), "--keepalive"),
        (("http://x", "--patience", "0"), "--patience"),
        (("http://x", "--drain", "-1"), "--drain"),
        (("http://x", "--prompt", "0"), "--prompt"),
        (("http://x", "--output", "a:b"), "--output"),
        (("http://x", "--shared-prefix", "0.5"), "SHARE:GROUPS:TOKENS"),
        (("http://x", "--shared-prefix", "2:1:1"), "--shared-prefix"),
        (("http://x", "--max-tokens-ratio", "3:1"), "--max-tokens-ratio"),
        (("http://x", "--max-prompt-tokens", "0"), "--max-prompt-tokens"),
        (("http://x", "--trace", "x.csv"), "--trace"),
        (("http://x", "--records", "-", "--json", "-"), "--json"),
        (("http://x", "--records", "/nowhere/r"), "--records"),
        (("http://x", "--natural-lengths", "odd"), "--natural-lengths"),
    ],
)
def test_bad_input_names_the_option_and_exits_with_2(arguments: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(command(), list(arguments))
    assert result.exit_code == 2 and words in result.output


def test_help_tells_every_option_with_its_unit() -> None:
    text = CliRunner().invoke(command(), ["--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert all(word in text for word in ("--rate", "--json", "--slo-tpot", "seconds", "Example: trimtab load"))


def test_a_trace_is_cut_to_the_asked_rate_and_keeps_its_own_prefixes(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    rows = [
        {"timestamp": 100 * n * n, "input_length": 600, "output_length": 50, "hash_ids": [0, n + 1]} for n in range(100)
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    out = LoadShape(
        trace=f"mooncake:{file}", rate="2", duration_seconds=20.0, max_output_tokens=9, max_tokens_ratio="2:2"
    ).requests()
    assert 38 <= len(out) <= 40 and all(
        r.output_tokens == 9 and r.max_tokens == 18 and r.prefix_tokens == 512 for r in out
    )
    assert LoadShape(trace=f"mooncake:{file}").requests() == read_mooncake(file)
    with_own = LoadShape(trace=f"mooncake:{file}", shared_prefix="1:1:10")
    with pytest.raises(InputError, match="--shared-prefix"):
        with_own.requests()
