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
kv-predicted...  by the predictor that `trimtab predict train` makes of the middleware's own feature log
kv-observed... by the mean and variance of answers so far
rN and dN in a name are the fields risk and deviations. Scenarios: caching, no-caching (vLLM's prefix caching),
cancel-tokens and cancel-seconds (caching, 30% of the clients leave: see `storm_traffic`).

One core has the engine, the other the API server and the clients. Several engines stand by while one is measured.
`other_cores` is what else ran on the machine meanwhile. Takes some 10 minutes a scenario, the predictor 4 more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
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
from storm_traffic import CLIENTS, Asked, requests, storm

SCENARIOS = {"caching": "", "no-caching": "", "cancel-tokens": "tokens", "cancel-seconds": "seconds"}
STATIC = (8, 16, 24, 32)
TRUE_RISKS = (0.9, 1.0, 1.2, 1.5)
DEVIATIONS_AND_RISKS = ((1.0, 1.0), (0.0, 1.0), (0.0, 1.3))
#: enough for `trimtab predict train` (2,000) with some over
TRAIN_REQUESTS = 2400
SHOWN = (
    ("useful_tokens_per_second", "useful tok/s", 0), ("full_load_tokens_per_second", "full load tok/s", 0),
    ("preemptions", "preempt", 0), ("ttft_p50_seconds", "TTFT p50", 2),
    ("ttft_p99_seconds", "TTFT p99", 2), ("tpot_p50_seconds", "TPOT p50 ms", 1), ("tpot_p99_seconds", "p99 ms", 1),
    ("e2e_p50_seconds", "E2E p50", 2), ("e2e_p99_seconds", "E2E p99", 2), ("batch", "batch", 1),
    ("step_ms", "step ms", 2), ("recomputed_tokens", "recomputed", 0), ("wasted_tokens", "wasted tok", 0),
    ("failed", "failed", 0), ("other_cores", "other cores", 2),
)  # fmt: skip


def variants(predictor: Path | None, static: tuple[int, ...]) -> dict[str, tuple[str, dict[str, Any]]]:
    """name -> (engine, policy)"""
    kv: dict[str, Any] = {"kv_budget_tokens": KV_TOKENS}
    true = {**kv, "expected_tokens_header": "x-true-tokens"}
    admissions: dict[str, dict[str, Any]] = {"counting": {}, "mw-seqs-24": {"max_sequences": 24}}
    admissions |= {f"kv-true-r{risk:g}": {**true, "risk": risk} for risk in TRUE_RISKS}
    for name in ("predicted", "observed") if predictor else ("observed",):
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


async def drive(engine: Engine, asked: list[Asked]) -> dict[str, float]:
    """One run and what the engine counted meanwhile."""
    timeout = aiohttp.ClientTimeout(total=900)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)  # uvicorn closes after 5 s: no race with it
    before, own, machine = engine.counters(), time.process_time(), machine_cpu_seconds()
    load = os.getloadavg()[0]
    base = f"http://127.0.0.1:{engine.port}"
    async with aiohttp.ClientSession(base, timeout=timeout, connector=connector) as session:
        found = await storm(session, asked)
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


def trained(engine: Engine, python: Path, output: Path, count: int) -> Path:
    """A predictor from the middleware's feature log of `count` requests; SystemExit where it is no better than p-N."""
    rows = engine.folder / "lengths.jsonl"
    policy = {"counting": "final", "admission": {"max_sequences": 20, "max_queued": 10_000, "queue_seconds": 600}}
    engine.apply({**policy, "feature_log": {"path": str(rows)}})
    print(f"{count} requests to learn from", flush=True)
    asyncio.run(drive(engine, requests(count, seed=1_000_003, salt=9999)))
    command = [str(python), "-m", "trimtab.cli.main", "predict", "train", str(rows), "-o", str(output)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT / "tuner")}, check=True)
    return output


def measure(options: argparse.Namespace, scenario: str, done: list[dict[str, Any]]) -> None:
    """All rounds of a scenario; each run is kept in OUT at once."""
    caching, cancel = scenario != "no-caching", SCENARIOS[scenario]
    kinds = [Kind(f"seqs-{n}", n, False, caching) for n in options.static]
    kinds += [Kind("default", None, False, caching), Kind("middleware", None, True, caching)]
    with engines(kinds, options.venv, options.model) as started:
        if options.predictor is None and not options.quick:
            output = options.out.with_suffix(".predictor.json").resolve()
            options.predictor = trained(started["middleware"], options.venv / "bin" / "python", output, TRAIN_REQUESTS)
        chosen = variants(options.predictor, options.static)
        chosen = {n: v for n, v in chosen.items() if not options.only or any(n.startswith(o) for o in options.only)}
        for engine in started.values():
            asyncio.run(drive(engine, requests(CLIENTS, seed=1, salt=9998)))  # the first requests of a process are slow
        for number in range(options.rounds):
            order = list(chosen)
            random.Random(number).shuffle(order)
            for name in order:
                engine, policy = started[chosen[name][0]], chosen[name][1]
                if engine.kind.middleware:
                    engine.apply(policy)
                seed = 100 + options.first_round + number
                asked = requests(options.requests, seed=seed, salt=len(done), cancel=cancel)
                run = asyncio.run(drive(engine, asked))
                done.append({"scenario": scenario, "variant": name, "round": options.first_round + number,
                             **run})  # fmt: skip
                options.out.write_text(json.dumps({"runs": done}, indent=1) + "\n")
                print(f"{scenario} {number} {name}: {run['useful_tokens_per_second']:.0f} useful tokens/s, "
                      f"{run['preemptions']:.0f} preemptions, {run['e2e_p99_seconds']:.1f} s p99, "
                      f"{run['failed']} failed, other {run['other_cores']:.2f}", flush=True)  # fmt: skip


def show(runs: list[dict[str, Any]]) -> None:
    """One table a scenario: medians, and the range of the useful tokens/s."""
    console = Console(width=230)
    for scenario in dict.fromkeys(run["scenario"] for run in runs):
        table = Table(title=f"{scenario}: median over rounds; seconds where nothing else is said", title_justify="left")
        table.add_column("variant")
        table.add_column("rounds", justify="right")
        table.add_column("range", justify="right")
        for _, title, _digits in SHOWN:
            table.add_column(title, justify="right")
        here = [run for run in runs if run["scenario"] == scenario]
        for variant in dict.fromkeys(run["variant"] for run in here):
            own = [run for run in here if run["variant"] == variant]
            speeds = [run["useful_tokens_per_second"] for run in own]
            cells = [f"{_median(own, key):.{digits}f}" for key, _, digits in SHOWN]
            table.add_row(variant, str(len(own)), f"{min(speeds):.0f}-{max(speeds):.0f}", *cells)
        console.print(table)


def _median(runs: list[dict[str, Any]], key: str) -> float:
    value = float(statistics.median(run[key] for run in runs))
    return value * 1000 if key.startswith("tpot") else value


def main() -> None:
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
    parser.add_argument("--requests", type=int, default=192)
    parser.add_argument("--quick", action="store_true", help="one short round, no training")
    parser.add_argument("--show", action="store_true", help="print the tables of OUT, measure nothing")
    options = parser.parse_args()
    done = json.loads(options.out.read_text())["runs"] if options.out.exists() else []
    if not options.show:
        if options.venv is None or options.model is None:
            parser.error("--venv and --model are needed: what hack/engine/build.sh prints")
        if options.predictor is not None:
            options.predictor = options.predictor.resolve()
        if options.quick:
            options.rounds, options.requests = 1, 64
        for scenario in options.scenario or SCENARIOS:
            measure(options, scenario, done)
    show(done)


if __name__ == "__main__":
    main()
