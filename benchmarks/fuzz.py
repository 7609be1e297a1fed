"""Damaged inputs of every kind, new ones each time: whatever comes is taken, or refused with where and what to do.

python benchmarks/fuzz.py --seconds 300                  # all kinds; the specs also through a real API server, if built
python benchmarks/fuzz.py --only specs --seed 3 --skip 17   # one input again

Anything but an answer or one of Trimtab's own errors that names the place and the fix is a crash; so is an input that
takes longer than two seconds of CPU. Each crash is printed with what makes it again. Exit code 1 if there is any.
`--write` puts the table into docs/safety.md. The control plane needs what hack/cluster/build.sh builds.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fuzz_inputs import ROOT, TAKEN, Try, kinds, spec_by_api, timed

PAGE: Final = ROOT / "docs" / "safety.md"
REGION: Final = "python benchmarks/fuzz.py --write"
BY_API: Final = "specs through the API server"
MOST_SECONDS: Final = 2.0
#: crashes of a kind that are printed
_SHOWN: Final = 5


@dataclass
class Tally:
    """What came of the inputs of one kind."""

    tried: int = 0
    taken: int = 0
    crashes: int = 0
    slowest_seconds: float = 0.0
    where: Counter[str] = field(default_factory=Counter)


def one(name: str, attempt: Try, seed: int, number: int, tally: Tally) -> None:
    """The input `number` of a seed is always the same."""
    tally.tried += 1
    try:
        outcome, seconds = timed(attempt, random.Random(f"{name} {seed} {number}"))
        tally.taken += outcome == TAKEN
        tally.slowest_seconds = max(tally.slowest_seconds, seconds)
        if seconds > MOST_SECONDS:
            raise TimeoutError(f"{seconds:.1f} s of CPU")
    except Exception as error:  # noqa: BLE001 - this is what is looked for
        tally.crashes += 1
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f for f in frames if "trimtab" in f.filename] or frames
        place = f"{type(error).__name__} at {Path(ours[-1].filename).name}:{ours[-1].lineno}"
        tally.where[place] += 1
        if tally.where[place] == 1 and len(tally.where) <= _SHOWN:
            again = f"python benchmarks/fuzz.py --only {name!r} --seed {seed} --skip {number} --count 1"
            print(f"\nCRASH {place}\n  {str(error)[:300]}\n  again: {again}", flush=True)


def run(tries: Mapping[str, Try], seed: int, seconds: float, skip: int, count: int | None) -> dict[str, Tally]:
    """Each kind gets an equal part of the seconds; `count` inputs instead, where it is given."""
    out: dict[str, Tally] = {}
    for name, attempt in tries.items():
        tally = out[name] = Tally()
        end = time.monotonic() + seconds / len(tries)
        while tally.tried < count if count is not None else time.monotonic() < end:
            one(name, attempt, seed, skip + tally.tried, tally)
        print(f"{name}: {tally.tried:,} tried, {tally.taken:,} taken, {tally.crashes} crashes", flush=True)
    return out


@contextmanager
def everything(only: str | None, with_api: bool) -> Iterator[dict[str, Try]]:
    with ExitStack() as stack:
        tries = dict(stack.enter_context(kinds()))
        if with_api and only in (None, BY_API):
            from control_plane import running

            plane = stack.enter_context(running())
            tries[BY_API] = spec_by_api(plane, plane.namespace("fuzz"))
        yield {name: attempt for name, attempt in tries.items() if only in (None, name)}


def table(tallies: Mapping[str, Tally]) -> str:
    lines = [
        "| input | tried | taken | refused with place and fix | crashes | slowest, s of CPU |",
        "|---|---|---|---|---|---|",
    ]
    for name, t in tallies.items():
        refused = t.tried - t.taken - t.crashes
        lines.append(f"| {name} | {t.tried:,} | {t.taken:,} | {refused:,} | {t.crashes} | {t.slowest_seconds:.2g} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all kinds together")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="default: another one each time")
    parser.add_argument("--only", help="one kind, by its name in the table")
    parser.add_argument("--skip", type=int, default=0, help="begin at this input")
    parser.add_argument("--count", type=int, help="so many inputs of each kind instead of --seconds")
    parser.add_argument("--no-api", action="store_true", help="no API server")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with everything(given.only, not given.no_api) as tries:
        if not tries:
            parser.error(f"no input is called {given.only!r}")
        tallies = run(tries, given.seed, given.seconds, given.skip, given.count)
    print(table(tallies))
    if given.write:
        from written import rewrite

        rewrite(PAGE, REGION, table(tallies))
    return int(any(t.crashes for t in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
