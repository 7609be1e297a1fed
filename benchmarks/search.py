"""What the search is worth: ours beside random search, grid, TPE, GP, CMA-ES, vLLM's auto_tune, defaults and rules.

    python benchmarks/search.py [--seeds 30] [--set tuned|held-out|all] [--noise seen] [--json FILE] [--pictures FOLDER]
    python benchmarks/search.py --quick            # three small targets, under a minute

Targets (search_targets) are simulated over the whole lattice once (search_world); each method then searches them with
the same judge and the same noise (search_trial, search_run). Time is virtual; docs/search-benchmark.md has the figures.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from claims_picture import svg
from search_report import beside_random, by_target, limited, picture, summary, tables
from search_run import METHODS, Run, Step, search
from search_targets import Target, held_out, tuned
from search_trial import NOISES
from search_world import world

#: simulated requests of each load
REQUESTS: Final = 300
#: cheap to simulate, each of another kind
QUICK: Final = ("slots: too few sequences", "cliff: small steps below it", "flat: beyond capacity")
#: samplers that take time: at most so many seeds of each
SLOW, SLOW_SEEDS = ("grid, every point", "TPE", "GP", "CMA-ES"), 10
PICTURED: Final = ("ours, with a profile", "ours, no profile", "random", "grid", "TPE")


def compare(targets: Sequence[Target], methods: Sequence[str], seeds: range, worlds: int, noise: str) -> list[Run]:
    out: list[Run] = []
    for target in targets:
        start = time.process_time()
        known = [world(target, seed, REQUESTS) for seed in range(worlds)]
        for method in methods:
            for seed in seeds[:SLOW_SEEDS] if method in SLOW else seeds:
                out += search(method, known[seed % worlds], seed, seed % worlds, NOISES[noise])
        print(f"{target.name}: {time.process_time() - start:.0f} s", file=sys.stderr, flush=True)
    return out


def kept(files: Sequence[Path], part: str) -> list[Run]:
    """Runs of one set of targets, as --json wrote them."""
    every = [run for file in files for run in json.loads(file.read_text()).get(part, {"runs": []})["runs"]]
    return [Run(**{**run, "steps": tuple(Step(**step) for step in run["steps"])}) for run in every]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--worlds", type=int, default=1, help="draws of the step times' errors per target")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--set", choices=("tuned", "held-out", "all"), default="all")
    parser.add_argument("--target", default="", help="only those whose name contains this")
    parser.add_argument("--methods", default="", help="separated by ;")
    parser.add_argument("--noise", choices=tuple(NOISES), default="seen")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--join", type=Path, nargs="+", metavar="JSON", help="show runs kept by --json, search nothing")
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args()
    start = time.process_time()
    sets = {"tuned": tuned(), "held-out": held_out()}
    methods = tuple(options.methods.split(";")) if options.methods else METHODS
    seeds = range(options.first_seed, options.first_seed + (6 if options.quick else options.seeds))
    found: dict[str, list[Run]] = {}
    for name, targets in sets.items():
        if options.set not in (name, "all") or (options.quick and name != "tuned"):
            continue
        chosen = [t for t in targets if options.target in t.name and (not options.quick or t.name in QUICK)]
        if options.join:
            found[name] = kept(options.join, name)
        else:
            found[name] = compare(chosen, methods, seeds, options.worlds, options.noise)
        if not found[name]:
            continue
        print(f"\n## {name}, noise as {options.noise}\n")
        print(tables(found[name], methods))
        print(f"\n{limited(found[name])}")
        print(f"\n{by_target(found[name], methods)}")
        if "random" in methods:
            for cost in ("restarts", "minutes"):
                print(f"\n{beside_random(found[name], cost)}")
    print(f"{time.process_time() - start:.0f} processor seconds", file=sys.stderr)
    if options.json:
        parts = {n: {"summary": summary(r, methods), "runs": [asdict(one) for one in r]} for n, r in found.items()}
        options.json.write_text(json.dumps(parts))
    if options.pictures:
        every = [r for runs in found.values() for r in runs]
        for cost in ("restarts", "minutes", "late"):
            (options.pictures / f"search-{cost}.svg").write_text(svg(picture(every, cost, PICTURED)))


if __name__ == "__main__":
    main()
