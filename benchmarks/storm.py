"""What admission gains on a real vLLM whose KV cache is too small for the load: 64 clients, 200 blocks x 32 tokens.

    python benchmarks/storm.py OUT.json --venv VENV --model MODEL [--scenario NAME] [--predictor FILE] [--quick]
    python benchmarks/storm.py OUT.json --show

VENV and MODEL are what hack/engine/build.sh prints. In each round every variant serves the same requests, in an order
that changes from round to round; each number is the median over the rounds with its range. Variants:

default        vLLM alone (its own limit of 128 sequences is above the 64 clients)
seqs-N         vLLM alone with --max-num-seqs N
counting       with the middleware that only counts: what it costs
mw-seqs-N      the middleware's max_sequences
kv-true...     admission by KV budget, told each answer's real length: what no one has, the bound of what is to be had
kv-predicted...  by the predictor that `trimtab predict train` makes of 12,000 earlier requests
kv-observed... by the mean and variance of answers so far
rN and dN in a name are the fields risk and deviations. Scenarios: caching, no-caching (vLLM's prefix caching),
cancel-tokens and cancel-seconds (caching, 30% of the clients leave: see `storm_traffic`).

One core has the engine, the other the API server and the clients. Several engines stand by while one is measured.
`other_cores` is what else ran on the machine meanwhile, `cpu_ms_per_useful_token` of the engine and its API server
what other load disturbs least. Takes some 10 minutes a scenario.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table
from storm_engine import KV_TOKENS, ROOT, Engine, Kind, machine_cpu_seconds
from storm_traffic import CLIENTS, Asked, Tally, log_rows, requests, storm

SCENARIOS = {"caching": "", "no-caching": "", "cancel-tokens": "tokens", "cancel-seconds": "seconds"}
STATIC = (8, 16, 24)
#: with cancelled traffic
CANCEL_VARIANTS = ("default", "seqs-16", "kv-true-r1", "kv-predicted-d0-r1")
TRUE_RISKS = (0.9, 1.0, 1.1)
DEVIATIONS_AND_RISKS = ((1.0, 1.0), (0.0, 1.0), (0.0, 1.2))
#: with 2,336 real lines of these prompts (mostly random words) `trimtab predict train` rightly refused its predictor
TRAIN_REQUESTS = 12_000
GAUGES = {"kv_used": "vllm:kv_cache_usage_perc", "running": "vllm:num_requests_running"}
SHOWN = (
    ("useful_tokens_per_second", "useful tok/s", 0), ("full_load_tokens_per_second", "full load tok/s", 0),
    ("preemptions", "preempt", 0), ("ttft_p50_seconds", "TTFT p50", 2),
    ("ttft_p99_seconds", "TTFT p99", 2), ("tpot_p50_seconds", "TPOT p50 ms", 1), ("tpot_p99_seconds", "p99 ms", 1),
    ("e2e_p50_seconds", "E2E p50", 2), ("e2e_p99_seconds", "E2E p99", 2), ("running", "running", 1),
    ("kv_used", "KV used", 2),
    ("step_ms", "step ms", 2), ("cpu_ms_per_useful_token", "CPU ms/tok", 2),
    ("recomputed_tokens", "recomputed", 0), ("wasted_tokens", "wasted tok", 0),
    ("failed", "failed", 0), ("other_cores", "other cores", 2),
)  # fmt: skip


def variants(predictor: Path, static: tuple[int, ...]) -> dict[str, tuple[str, dict[str, Any]]]:
    """name -> (engine, policy)"""
    kv: dict[str, Any] = {"kv_budget_tokens": KV_TOKENS}
    true = {**kv, "expected_tokens_header": "x-true-tokens"}
    admissions: dict[str, dict[str, Any]] = {"counting": {}, "mw-seqs-16": {"max_sequences": 16}}
    admissions |= {f"kv-true-r{risk:g}": {**true, "risk": risk} for risk in TRUE_RISKS}
    for name in ("predicted", "observed"):
        for deviations, risk in DEVIATIONS_AND_RISKS:
            field = {**kv, "estimate": name, "deviations": deviations, "risk": risk}
            admissions[f"kv-{name}-d{deviations:g}-r{risk:g}"] = field
    found: dict[str, tuple[str, dict[str, Any]]] = {"default": ("default", {})}
    found |= {f"seqs-{n}": (f"seqs-{n}", {}) for n in static}
    for name, admission in admissions.items():
        policy: dict[str, Any] = {"admission": {**admission, "max_queued": 10_000, "queue_seconds": 600}}
        if "predicted" in name:
            policy["predictor"] = {"path": str(predictor)}
        found[name] = ("middleware", policy)
    return found


@contextmanager
def engines(kinds: list[Kind], venv: Path, model: Path) -> Iterator[dict[str, Engine]]:
    """All serve, and are ended whatever happens."""
    with tempfile.TemporaryDirectory() as folder:
        started: dict[str, Engine] = {}
        try:
            for kind in kinds:
                started[kind.name] = Engine(kind, venv, model, Path(folder) / kind.name)
            for engine in started.values():
                engine.wait_ready()
            yield started
        finally:
            for engine in started.values():
                engine.stop()


async def watched(session: aiohttp.ClientSession, tally: Tally) -> dict[str, float]:
    """Means of vLLM's gauges, looked at every second while the load is full."""
    sums, looks = dict.fromkeys(GAUGES, 0.0), 0
    while tally.full_load:
        await asyncio.sleep(1.0)
        async with session.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        looks += 1
        for name, metric in GAUGES.items():
            sums[name] += sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(metric))
    return {name: value / max(1, looks) for name, value in sums.items()}


async def drive(engine: Engine, asked: list[Asked]) -> dict[str, Any]:
    """One run and what the engine counted meanwhile."""
    timeout = aiohttp.ClientTimeout(total=900)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)  # uvicorn closes after 5 s: no race with it
    before, own, machine = engine.counters(), time.process_time(), machine_cpu_seconds()
    load = os.getloadavg()[0]
    base = f"http://127.0.0.1:{engine.port}"
    async with aiohttp.ClientSession(base, timeout=timeout, connector=connector) as session:
        tally = Tally()
        gauges = asyncio.ensure_future(watched(session, tally))
        found = {**await storm(session, asked, tally), **await gauges}
    busy, own = machine_cpu_seconds() - machine, time.process_time() - own
    await asyncio.sleep(0.5)  # what is counted at the engine's next step
    after = engine.counters()
    grown = {name: after[name] - before[name] for name in before}
    seconds = found["seconds"]
    useful = found["useful_tokens_per_second"] * seconds
    return {
        **found, **grown, "client_cpu_seconds": own, "load_average": load,
        "batch": grown["generated_tokens"] / max(1.0, grown["steps"]),
        "recomputed_tokens": grown["prompt_tokens_computed"] - grown["prompt_tokens"],
        "step_ms": 1000 * seconds / max(1.0, grown["steps"]),
        "wasted_tokens": grown["generated_tokens"] - useful,
        "other_cores": (busy - own - grown["server_cpu_seconds"] - grown["engine_cpu_seconds"]) / seconds,
    }  # fmt: skip


def trained(python: Path, output: Path) -> Path:
    """A predictor from the log that TRAIN_REQUESTS earlier requests would have left; CalledProcessError if refused.

    The log is written here with the middleware's own features (equal to its real log, checked on 200 requests):
    the engine would need ten minutes of a quiet machine.
    """
    rows = output.with_suffix(".jsonl")
    with rows.open("w") as file:
        for row in log_rows(requests(TRAIN_REQUESTS, seed=1_000_003, salt=9999)):
            file.write(json.dumps(row) + "\n")
    command = [str(python), "-m", "trimtab.cli.main", "predict", "train", str(rows), "-o", str(output)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT / "tuner")}, check=True)
    return output


def measure(options: argparse.Namespace, scenarios: list[str], caching: bool, done: list[dict[str, Any]]) -> None:
    """All rounds of scenarios that share their engines; each run is kept in OUT at once."""
    kinds = [Kind(f"seqs-{n}", n, False, caching) for n in options.static]
    kinds += [Kind("default", None, False, caching), Kind("middleware", None, True, caching)]
    with engines(kinds, options.venv, options.model) as started:
        for engine in started.values():
            asyncio.run(drive(engine, requests(CLIENTS, seed=1, salt=9998)))  # a process's first requests are slow
        for number in range(options.first_round, options.first_round + options.rounds):
            for scenario in scenarios:
                chosen = variants(options.predictor, options.static)
                names = [n for n in chosen if _wanted(n, scenario, options.only)]
                random.Random(number).shuffle(names)
                for name in names:
                    engine, policy = started[chosen[name][0]], chosen[name][1]
                    if engine.kind.middleware:
                        engine.apply(policy)
                    asked = requests(options.requests, 100 + number, len(done), SCENARIOS[scenario])
                    run = asyncio.run(drive(engine, asked))
                    done.append({"scenario": scenario, "variant": name, "round": number, **run})
                    options.out.write_text(json.dumps({"runs": done}, indent=1) + "\n")
                    print(f"{scenario} {number} {name}: {run['useful_tokens_per_second']:.0f} useful tokens/s, "
                          f"{run['preemptions']:.0f} preemptions, {run['e2e_p99_seconds']:.1f} s p99, "
                          f"{run['failed']} failed {run['failures'] or ''}, other cores {run['other_cores']:.2f}",
                          flush=True)  # fmt: skip


def _wanted(name: str, scenario: str, only: list[str] | None) -> bool:
    if SCENARIOS[scenario] and name not in CANCEL_VARIANTS:
        return False
    return not only or any(name.startswith(o) for o in only)


def show(runs: list[dict[str, Any]]) -> None:
    """One table a scenario: medians, and the range of the useful tokens/s. Runs with failed requests are left out."""
    console = Console(width=260)
    for scenario in dict.fromkeys(run["scenario"] for run in runs):
        table = Table(title=f"{scenario}: median over rounds; seconds where nothing else is said", title_justify="left")
        table.add_column("variant")
        table.add_column("rounds", justify="right")
        table.add_column("range", justify="right")
        for _, title, _digits in SHOWN:
            table.add_column(title, justify="right")
        here = [run for run in runs if run["scenario"] == scenario and not run["failed"]]
        for variant in dict.fromkeys(run["variant"] for run in here):
            own = [run for run in here if run["variant"] == variant]
            speeds = [run["useful_tokens_per_second"] for run in own]
            cells = [f"{_median(own, key):.{digits}f}" for key, _, digits in SHOWN]
            table.add_row(variant, str(len(own)), f"{min(speeds):.0f}-{max(speeds):.0f}", *cells)
        console.print(table)
        broken = sum(run["scenario"] == scenario and run["failed"] > 0 for run in runs)
        console.print(f"{broken} runs with failed requests left out")


def _median(runs: list[dict[str, Any]], key: str) -> float:
    return float(statistics.median(_value(run, key) for run in runs))


def _value(run: dict[str, Any], key: str) -> float:
    if key == "cpu_ms_per_useful_token":
        cpu = run["server_cpu_seconds"] + run["engine_cpu_seconds"]
        return float(1000 * cpu / max(1.0, run["useful_tokens_per_second"] * run["seconds"]))
    return float(run[key]) * (1000 if key.startswith("tpot") else 1)


def _ended(*_: object) -> None:
    raise SystemExit("ended")  # through `finally`: no engine stays behind


def main() -> None:
    signal.signal(signal.SIGTERM, _ended)
    signal.signal(signal.SIGINT, _ended)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--venv", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="default: all")
    parser.add_argument("--predictor", type=Path, help="instead of training one")
    parser.add_argument("--static", type=lambda text: tuple(map(int, text.split(","))), default=STATIC)
    parser.add_argument("--only", action="append", help="variants that start with this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first-round", type=int, default=0, help="number of the first: other requests, added to OUT")
    parser.add_argument("--requests", type=int, default=160)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--show", action="store_true", help="print the tables of OUT, measure nothing")
    options = parser.parse_args()
    done = json.loads(options.out.read_text())["runs"] if options.out.exists() else []
    if not options.show:
        if options.venv is None or options.model is None:
            parser.error("--venv and --model are needed: what hack/engine/build.sh prints")
        if options.predictor is None:
            options.predictor = trained(options.venv / "bin" / "python", options.out.with_suffix(".predictor.json"))
        options.predictor = options.predictor.resolve()
        if options.quick:
            options.rounds, options.requests = 1, 64
        for caching in (True, False):
            scenarios = [s for s in options.scenario or SCENARIOS if (s != "no-caching") == caching]
            if scenarios:
                measure(options, scenarios, caching, done)
    show(done)


if __name__ == "__main__":
    main()
