"""Error rate and power of the judge, looked at after every window: `python benchmarks/judge.py [FILE.json]`.

Equal arms (A/A): the share of trials that were called Better, or Worse, at any look. Real effects: the share that had
been called Better after so many minutes. 2,000 trials take about 10 minutes on two free cores.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from judge_world import World, draw

from trimtab.judge.objective import Objective
from trimtab.judge.verdict import MIN_WINDOWS, Kind, evaluate
from trimtab.judge.windows import join

PLAIN = Objective()
SLO = replace(PLAIN, ttft_seconds=1.0)
#: steadier engines, where small effects can be seen at all: own noise 2% per window, 15 minutes of A/A
STEADY = World(own_noise=0.02, pod_bias=0.03, start_bias=0.002)
STEADY_GOAL = replace(PLAIN, start_variation_percent=0.2)
#: name -> world, objective: 30 windows of 30 s, 2 requests/s per pod, two control pods, 15 minutes of A/A before
EQUAL: dict[str, tuple[World, Objective]] = {
    "saturated": (World(), PLAIN),
    "saturated, SLO": (World(), SLO),
    "not saturated, SLO": (World(saturated=False), SLO),
    "not saturated, no SLO": (World(saturated=False), PLAIN),
    "saturated, steady": (STEADY, STEADY_GOAL),
    "saturated, rho 0": (World(rho=0.0), PLAIN),
    "saturated, rho 0.6": (World(rho=0.6), PLAIN),
    "saturated, no A/A": (World(before=0), PLAIN),
    "saturated, one control, no A/A": (World(before=0, controls=1), PLAIN),
    "saturated, pods 10% apart": (World(pod_bias=0.1), PLAIN),
    "saturated, pods 10% apart, no A/A": (World(pod_bias=0.1, before=0), PLAIN),
}
EFFECTS: dict[str, tuple[World, Objective, tuple[float, ...]]] = {
    "saturated": (World(), PLAIN, (1.03, 1.05, 1.1, 1.2)),
    "saturated, steady": (STEADY, STEADY_GOAL, (1.03, 1.05, 1.1)),
    "not saturated, SLO": (World(saturated=False), SLO, (1.03, 1.05, 1.1)),
}
LOOKS = (10, 20, 30)


def outcome(job: tuple[World, Objective, int]) -> tuple[str, str, int]:
    """Kind, reason and window of the first verdict that would end the trial, looking after every window."""
    world, objective, seed = job
    trial = draw(world, seed)
    canary, control = trial.totals(MIN_WINDOWS - 1)
    for n in range(MIN_WINDOWS, world.windows + 1):
        canary, control = join(canary, trial.pairs[n - 1].canary), join(control, trial.pairs[n - 1].control)
        v = evaluate(trial.pairs[:n], canary, control, objective, trial.before)
        if v.kind is not Kind.INCONCLUSIVE or v.reason == "NoGain":
            return v.kind.value, v.reason, n
    return v.kind.value, v.reason, world.windows


def share(found: list[tuple[str, str, int]], kind: str, within: int) -> float:
    return sum(k == kind and n <= within for k, _, n in found) / len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--only", default="", help="a part of the names to run")
    options = parser.parse_args()
    results: dict[str, Any] = {"trials": options.trials, "equal": {}, "effects": {}}
    with multiprocessing.Pool(os.cpu_count()) as pool:
        print(f"equal arms, {options.trials} trials each, looked at after every window")
        for name, (world, objective) in EQUAL.items():
            if options.only not in name:
                continue
            found = pool.map(outcome, [(world, objective, s) for s in range(options.trials)], chunksize=16)
            row = {k.value: share(found, k.value, world.windows) for k in (Kind.BETTER, Kind.WORSE)}
            results["equal"][name] = row
            reasons = Counter(f"{r}" for _, r, _ in found).most_common(5)
            print(f"  {name:36} Better {row['Better']:.1%}  Worse {row['Worse']:.1%}  {reasons}", flush=True)
        few = max(100, options.trials // 4)
        print(f"effects, {few} trials each: called Better within 5, 10, 15 minutes")
        for name, (world, objective, effects) in EFFECTS.items():
            for effect in effects if options.only in name else ():
                jobs = [(replace(world, effect=effect), objective, 10_000 + s) for s in range(few)]
                found = pool.map(outcome, jobs, chunksize=16)
                power = [share(found, "Better", n) for n in LOOKS]
                results["effects"][f"{name} {effect - 1:+.0%}"] = power
                reasons = Counter(r for _, r, _ in found).most_common(4)
                shown = " ".join(f"{p:5.0%}" for p in power)
                print(f"  {name:24} {effect - 1:+4.0%}  {shown}   {reasons}", flush=True)
    if options.file is not None:
        options.file.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
