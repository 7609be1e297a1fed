"""Error rate and power of trials as the plan runs them: `python benchmarks/judge.py [FILE.json]`.

Each trial goes through the product's state machine (`plan.trial.advance`): a look after every window from the fifth on,
up to maxMeasurementSeconds, a confirmation on new windows, and up to three starts where one cannot tell. Equal arms
(A/A): the share of targets that end with a promotion, or with Worse. Real effects: the share promoted within so many
minutes of measuring, over all starts. The default spec: windows of 30 s, 15 minutes at most, 2.5 to confirm.
2,000 trials of equal arms each take about 15 minutes on two free cores.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from judge_world import World, draw

from trimtab.engine.settings import Configuration
from trimtab.judge.bias import Start
from trimtab.judge.guardrail import PodHealth
from trimtab.judge.windows import Pair, join
from trimtab.observe.observation import Observation
from trimtab.plan.looks import evaluation_start
from trimtab.plan.record import Evidence, Phase, PodView, TargetView, Template, TrialRecord, Wish
from trimtab.plan.spec import TunerSpec
from trimtab.plan.trial import advance

#: starts of one configuration that the search makes at most
MAX_STARTS: Final = 3
CONFIRMING_WINDOWS: Final = 5
START: Final = 1_000_000.0


def spec(**objective: Any) -> TunerSpec:
    return TunerSpec.parse({"targetRef": {"name": "t"}, "metrics": {"direct": {}}, "objective": objective})


@dataclass(frozen=True)
class Case:
    """own: the canary is in the place of the pod that was measured before; else it is a new pod in a new place."""

    world: World
    spec: TunerSpec
    own: bool = True


PLAIN = spec()
SLO = spec(slo={"ttftSeconds": 1.0})
USUAL = World(windows=30 + CONFIRMING_WINDOWS)
QUIET = replace(USUAL, saturated=False)
#: steadier engines, where small effects can be seen: own noise 2% per window, starts 0.2% apart
STEADY = replace(USUAL, own_noise=0.02, start_bias=0.002)
STEADY_SPEC = spec(variation={"startPercent": 0.2})
#: and pods that differ little, said so
ALIKE = replace(STEADY, pod_bias=0.005)
ALIKE_SPEC = spec(variation={"startPercent": 0.2, "podPercent": 0.5})
EQUAL: Final[dict[str, Case]] = {
    "saturated": Case(USUAL, PLAIN),
    "saturated, SLO": Case(USUAL, SLO),
    "not saturated, SLO": Case(QUIET, SLO),
    "not saturated, no SLO": Case(QUIET, PLAIN),
    "saturated, new place": Case(USUAL, PLAIN, own=False),
    "saturated, new place, one control": Case(replace(USUAL, controls=1), PLAIN, own=False),
    "saturated, no A/A, one control": Case(replace(USUAL, before=0, controls=1), PLAIN, own=False),
    "saturated, 2 min of A/A": Case(replace(USUAL, before=4), PLAIN),
    "saturated, steady": Case(STEADY, STEADY_SPEC),
    "saturated, steady, pods alike, new place": Case(ALIKE, ALIKE_SPEC, own=False),
    "saturated, rho 0": Case(replace(USUAL, rho=0.0), PLAIN),
    "saturated, rho 0.6": Case(replace(USUAL, rho=0.6), PLAIN),
    "saturated, pods 10% apart": Case(replace(USUAL, pod_bias=0.1), PLAIN),
    "saturated, pods 10% apart, new place": Case(replace(USUAL, pod_bias=0.1), PLAIN, own=False),
}
EFFECTS: Final[dict[str, tuple[Case, tuple[float, ...]]]] = {
    "saturated": (Case(USUAL, PLAIN), (1.03, 1.05, 1.1, 1.2)),
    "saturated, new place": (Case(USUAL, PLAIN, own=False), (1.05, 1.1, 1.2, 1.3)),
    "saturated, steady": (Case(STEADY, STEADY_SPEC), (1.03, 1.05, 1.1)),
    "saturated, steady, pods alike, new place": (Case(ALIKE, ALIKE_SPEC, own=False), (1.03, 1.05, 1.1)),
    "not saturated, SLO": (Case(QUIET, SLO), (1.03, 1.05, 1.1)),
}
MINUTES: Final = (5, 10, 20, 40)
HEALTHY: Final = PodHealth(True, 0, None, None, None, 3600.0)


@dataclass(frozen=True)
class Ending:
    """promoted, or why not; minutes of measuring and confirming over all starts."""

    reason: str
    promoted: bool
    minutes: float
    starts: int

    @property
    def worse(self) -> bool:
        return self.reason.endswith("Worse")


def ending(job: tuple[Case, int]) -> Ending:
    """One target, from the first trial of a configuration to its last."""
    case, seed = job
    earlier: tuple[Start, ...] = ()
    biases: tuple[float, ...] = ()
    minutes, number = 0.0, 0
    while True:
        number += 1
        trial = draw(case.world, MAX_STARTS * seed + number, biases, moved=not case.own)
        biases = trial.biases
        record = run(case.spec, trial.pairs, trial.before, own=case.own, earlier=earlier)
        assert record.verdict is not None
        minutes += (record.phase_since - START) / 60
        again = record.verdict.start if record.verdict.reason == "AnotherStartNeeded" else None
        if again is None or number == MAX_STARTS:
            return Ending(record.verdict.reason, record.phase is Phase.PROMOTING, minutes, number)
        earlier = (*earlier, again)


def run(
    spec: TunerSpec, pairs: Sequence[Pair], before: Sequence[Pair], *, own: bool, earlier: tuple[Start, ...] = ()
) -> TrialRecord:
    """Windows of equal length, from the moment at which the measurement begins, through the plan."""
    seconds, controls = pairs[0].end - pairs[0].start, max(1, len(pairs[0].controls))
    pods = tuple(PodView(f"c{i}", None, HEALTHY) for i in range(controls))
    view = TargetView(
        Template.CANDIDATE, paused=True, held=True, replicas=controls + 1, settled=False,
        canary=(PodView("x", None, HEALTHY),), control=pods,
    )  # fmt: skip
    record = TrialRecord(
        "t-1", 1, Configuration.of(max_num_seqs=32), Configuration.of(), Phase.MEASURING, START, START,
        replicas=controls + 1, applied=True, held=True, measure_from=START,
    )  # fmt: skip
    placed = [replace(p, start=START + i * seconds, end=START + (i + 1) * seconds) for i, p in enumerate(pairs)]
    canary: Observation | None = None
    control: Observation | None = None
    for n, pair in enumerate(placed, 1):
        canary = pair.canary if canary is None else join(canary, pair.canary)
        control = pair.control if control is None else join(control, pair.control)
        now = START + n * seconds
        looked = evaluation_start(spec, record, now) is not None
        evidence = Evidence(
            metrics_ok=True, pairs=placed[:n] if looked else (), canary=canary, control=control, before=before, own=own,
            earlier=earlier,
        )  # fmt: skip
        record = advance(spec, record, view, evidence, Wish(), now)
        if record.phase in (Phase.PROMOTING, Phase.ROLLING_BACK):
            break
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--power-trials", type=int, default=0, help="of each effect; 0 for a quarter of --trials")
    parser.add_argument("--only", default="", help="a part of the names to run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    few = options.power_trials or max(100, options.trials // 4)
    results: dict[str, Any] = {"trials": options.trials, "power_trials": few, "equal": {}, "effects": {}}
    with multiprocessing.Pool(options.jobs) as pool:
        print(f"equal arms, {options.trials} targets each")
        for name, case in EQUAL.items():
            if options.only in name:
                found = pool.map(ending, [(case, s) for s in range(options.trials)], chunksize=8)
                results["equal"][name] = _equal(name, found)
        print(f"effects, {few} targets each: promoted within {', '.join(map(str, MINUTES))} minutes of measuring")
        for name, (case, effects) in EFFECTS.items():
            for effect in effects if options.only in name else ():
                real = replace(case, world=replace(case.world, effect=effect))
                found = pool.map(ending, [(real, 10_000 + s) for s in range(few)], chunksize=8)
                results["effects"][f"{name} {effect - 1:+.0%}"] = _power(f"{name} {effect - 1:+.0%}", found)
    if options.file is not None:
        options.file.write_text(json.dumps(results, indent=1) + "\n")


def _equal(name: str, found: list[Ending]) -> dict[str, Any]:
    promoted, worse = (sum(f) / len(found) for f in ([e.promoted for e in found], [e.worse for e in found]))
    spent, starts = median(e.minutes for e in found), sum(e.starts for e in found) / len(found)
    reasons = Counter(e.reason for e in found).most_common(4)
    ends = f"promoted {promoted:5.1%}  Worse {worse:5.1%}  median {spent:4.1f} min, {starts:.2f} starts"
    print(f"  {name:42} {ends}  {reasons}", flush=True)
    return {"promoted": promoted, "worse": worse, "median_minutes": spent, "starts": starts}


def _power(name: str, found: list[Ending]) -> dict[str, Any]:
    shares = [sum(e.promoted and e.minutes <= m for e in found) / len(found) for m in MINUTES]
    starts = sum(e.starts for e in found) / len(found)
    reasons = Counter(e.reason for e in found).most_common(4)
    print(f"  {name:48} {' '.join(f'{s:4.0%}' for s in shares)}  {starts:.2f} starts  {reasons}", flush=True)
    return {"promoted_within_minutes": dict(zip(MINUTES, shares, strict=True)), "starts": starts}


if __name__ == "__main__":
    main()
