"""A/A trials from recordings of equal real engines: `python benchmarks/judge_real.py FILE... [--window 10]`.

A FILE is what benchmarks/vllm_aa.py writes (.jsonl, .gz or .xz): two slots of an engine with the same flags, one of
them started several times. A trial takes one start of one slot as the canary and the other slot as the control. Its
windows, and those before it from another start of the same slot, are drawn from the recording in blocks of five that
follow each other, so that what is autocorrelated stays so; then the product's state machine runs on them as in
benchmarks/judge.py. What is promoted is a mistake. Printed with it: what the starts differ by in fact.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from judge import run
from trimtab.judge import measures
from trimtab.judge.objective import Objective
from trimtab.judge.stats import mean_error, noise
from trimtab.judge.windows import Pair
from trimtab.observe.mapping import observe
from trimtab.observe.samples import Points, Samples, SeriesKey
from trimtab.plan.record import Phase
from trimtab.plan.spec import TunerSpec

#: windows that follow each other in a block, and those of a confirmation
BLOCK: Final = 5
#: of a start are left out: it warms up
SETTLE_SECONDS: Final = 30.0
OPENERS: Final = {".gz": gzip.open, ".xz": lzma.open}


@dataclass
class Recording:
    """samples by pod; a pod is one start of one slot, named replica-SLOT-START."""

    samples: Samples
    times: dict[str, list[float]]

    def slots(self) -> dict[str, list[str]]:
        """Slot -> its starts, in order."""
        out: dict[str, list[str]] = defaultdict(list)
        for pod in sorted(self.times, key=lambda p: self.times[p][0]):
            out[pod.rsplit("-", 1)[0]].append(pod)
        return dict(out)


@dataclass
class _Reader:
    keys: dict[int, SeriesKey] = field(default_factory=dict)
    values: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    points: dict[str, dict[int, list[tuple[float, float]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def line(self, content: dict[str, Any]) -> None:
        if "series" in content:
            for index, (name, labels) in content["series"].items():
                self.keys[int(index)] = (name, tuple((k, v) for k, v in labels))
        if "values" in content:
            pod, at = content["pod"], content["t"]
            self.values[pod] |= {int(k): v for k, v in content["values"].items()}
            self.times[pod].append(at)
            for key, value in self.values[pod].items():
                self.points[pod][key].append((at, value))

    def done(self) -> Recording:
        pods: dict[str, dict[SeriesKey, Points]] = {
            pod: {self.keys[k]: tuple(points) for k, points in series.items()} for pod, series in self.points.items()
        }
        return Recording(Samples(pods), dict(self.times))


def read(path: Path) -> Recording:
    reader = _Reader()
    with OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8") as file:  # type: ignore[operator]
        for text in file:
            reader.line(json.loads(text))
    return reader.done()


def pairs(recording: Recording, canary: str, control: str, window: float) -> list[Pair]:
    """Both pods over the same windows, while both have settled."""
    ours, theirs = recording.times[canary], recording.times[control]
    start, end = max(ours[0], theirs[0]) + SETTLE_SECONDS, min(ours[-1], theirs[-1])
    out = []
    for i in range(int((end - start) / window)):
        at = start + i * window
        a, b = (observe(recording.samples, pod, at, at + window) for pod in (canary, control))
        if a is not None and b is not None:
            out.append(Pair(at, at + window, a, b, (b,)))
    return out


def drawn(source: Sequence[Pair], count: int, rng: random.Random) -> list[Pair]:
    """`count` windows in blocks that follow each other in the recording, laid one behind the other in time."""
    out: list[Pair] = []
    while len(out) < count:
        first = rng.randrange(max(1, len(source) - BLOCK + 1))
        out += source[first : first + BLOCK]
    length = source[0].end - source[0].start
    return [replace(p, start=i * length, end=(i + 1) * length) for i, p in enumerate(out[:count])]


def settings(window: float, slo: dict[str, float]) -> TunerSpec:
    times = {"measurementSeconds": 10 * window, "maxMeasurementSeconds": 30 * window,
             "confirmationSeconds": BLOCK * window}  # fmt: skip
    return TunerSpec.parse(
        {"targetRef": {"name": "t"}, "metrics": {"direct": {}}, "rollout": times, "objective": {"slo": slo}}
    )


def arms(recording: Recording, window: float) -> Iterator[tuple[list[Pair], list[list[Pair]]]]:
    """Windows of a start beside another slot, and those of the other starts of its slot (of the same one where it has
    no other)."""
    slots = recording.slots()
    for slot, starts in slots.items():
        for other, controls in slots.items():
            if other == slot:
                continue
            beside = {s: [p for c in controls for p in _overlap(recording, s, c, window)] for s in starts}
            for start in starts:
                rest = [beside[s] for s in starts if s != start and len(beside[s]) >= BLOCK]
                if len(beside[start]) >= BLOCK:
                    yield beside[start], rest or [beside[start]]


def _overlap(recording: Recording, canary: str, control: str, window: float) -> list[Pair]:
    apart = recording.times[canary][-1] < recording.times[control][0]
    apart = apart or recording.times[control][-1] < recording.times[canary][0]
    return [] if apart else pairs(recording, canary, control, window)


def difference(found: Sequence[Pair]) -> str:
    series = measures.goodput(found, (), Objective())
    scatter = noise(series.values) if series is not None else None
    if series is None or scatter is None:
        return "unknown"
    mean = sum(series.values) / len(series.values)
    return (
        f"{mean:+.1%} +- {mean_error(series.values, scatter):.1%} over {len(series.values)} windows, "
        f"{scatter.variance**0.5:.1%} per window, autocorrelation {scatter.rho:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--window", type=float, default=10.0, help="seconds, at least 6")
    parser.add_argument("--trials", type=int, default=500, help="per file and with or without A/A")
    parser.add_argument("--slo-ttft", type=float)
    parser.add_argument("--slo-tpot", type=float)
    options = parser.parse_args()
    slo = {"ttftSeconds": options.slo_ttft, "tpotSeconds": options.slo_tpot}
    spec = settings(options.window, {k: v for k, v in slo.items() if v is not None})
    for path in options.files:
        recording = read(path)
        there = list(arms(recording, options.window))
        print(f"{path.name}: {', '.join(recording.times)}")
        if not there:
            print(f"  no two pods serve together for {BLOCK} windows after {SETTLE_SECONDS:.0f} s")
            continue
        for canary, _ in there:
            print(f"  start beside the other slot: goodput {difference(canary)}")
        for own in (True, False):
            rng, found = random.Random(1), Counter[str]()
            for _ in range(options.trials):
                canary, others = rng.choice(there)
                before = drawn(rng.choice(others), 12, rng) if own else []
                record = run(spec, drawn(canary, 30 + BLOCK, rng), before, own=own)
                assert record.verdict is not None
                promoted = record.phase is Phase.PROMOTING
                found["promoted" if promoted else record.verdict.reason] += 1
            shown = ", ".join(f"{name} {count / options.trials:.1%}" for name, count in found.most_common())
            print(f"  {options.trials} A/A trials {'with' if own else 'without'} windows before: {shown}", flush=True)


if __name__ == "__main__":
    main()
