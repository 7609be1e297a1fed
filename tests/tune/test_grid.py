"""The grid: the same figures however it is computed, and the demo is as bad and as good as it says."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from trimtab.cli.grid import demo_scenario, grid, parse_axis
from trimtab.engine.settings import Configuration
from trimtab.errors import InputError
from trimtab.load.trace import Request
from trimtab.tune.grid import client_requests, combinations, evaluate, run_grid


def test_workers_and_order_change_no_figure() -> None:
    scenario, base = demo_scenario(2, 40.0)
    configurations = combinations({"max_num_seqs": [8, 24], "enable_prefix_caching": [True, False]}, base)
    alone = run_grid(scenario, configurations)
    assert alone == run_grid(scenario, list(reversed(configurations)), processes=2)
    assert [r.goodput_tokens_per_second for r in alone] == sorted(
        (r.goodput_tokens_per_second for r in alone), reverse=True
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_the_demo_as_found_is_far_below_its_best(seed: int) -> None:
    scenario, base = demo_scenario(3, 200.0, seed)
    found = evaluate(scenario, base)
    better = evaluate(scenario, base.with_({"max_num_seqs": 16, "enable_prefix_caching": True}))
    few = evaluate(scenario, base.with_({"max_num_seqs": 16}))
    assert found.preemptions > 100 and (found.slo_attainment or 0) < 0.7
    assert better.goodput_tokens_per_second > 1.3 * found.goodput_tokens_per_second
    assert few.goodput_tokens_per_second > 1.3 * found.goodput_tokens_per_second
    assert better.generated_tokens_per_second < 350  # three of them fit on two cores


def test_an_engine_that_would_not_start_is_a_problem_and_no_crash() -> None:
    scenario, _ = demo_scenario(1, 10.0)
    bad = Configuration.of(max_num_seqs=64, max_num_batched_tokens=32)
    results = run_grid(scenario, [bad, Configuration.of(max_num_seqs=8)])
    assert results[-1].configuration == bad and "max_num_batched_tokens" in results[-1].problem


def test_a_token_cap_cuts_outputs() -> None:
    scenario, base = demo_scenario(1, 20.0)
    capped = evaluate(scenario, base.with_({"max_new_tokens": 5}))
    assert capped.generated_tokens_per_second < evaluate(scenario, base).generated_tokens_per_second / 4
    assert evaluate(replace(scenario, max_new_tokens=5), base).generated_tokens_per_second == (
        capped.generated_tokens_per_second
    )


def test_replicas_share_the_load_and_prefixes_stay_shared() -> None:
    requests = [Request(float(i), 100, 10, 0, 64, None, 10) for i in range(300)]
    one = client_requests(requests, 3)
    assert 70 < len(one) < 130
    first, second = (r.prompt.block_hashes(16, r.request_id) for r in one[:2])
    assert first[:4] == second[:4] and first[4:] != second[4:]


def test_axes() -> None:
    assert parse_axis("max-num-seqs=8,16") == ("max_num_seqs", [8, 16])
    for bad in ("speed=1", "max_num_seqs", "max_num_seqs=x", "enable_prefix_caching=2"):
        with pytest.raises(InputError, match="--grid"):
            parse_axis(bad)


def command() -> typer.Typer:
    made = typer.Typer()
    made.command()(grid)
    return made


def test_the_command_prints_json() -> None:
    args = "--grid max_num_seqs=1,8 --processes 1 --duration 20 --rate 2 --json - -- vllm serve m --max-num-seqs 4"
    done = CliRunner().invoke(command(), args.split())
    assert done.exit_code == 0, done.output
    out = json.loads(done.stdout)
    assert out["baseline"] == {"max_num_seqs": 4}
    assert {r["configuration"]["max_num_seqs"] for r in out["results"]} == {1, 4, 8}


def test_the_command_wants_an_engine() -> None:
    done = CliRunner().invoke(command(), [])
    assert done.exit_code == 2
