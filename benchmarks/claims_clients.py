"""Clients that leave: what it costs, and where it can be cured."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from claims_base import (
    A100,
    CARDS,
    RTX4090,
    Answer,
    Card,
    Interval,
    Picture,
    Report,
    Size,
    Traffic,
    capacity,
    change,
    interval,
    table,
    useful_rate,
)

from trimtab.simulate.outcome import Outcome
from trimtab.simulate.simulator import simulate
from trimtab.simulate.state import I32
from trimtab.simulate.workload import Workload

#: longer than any run: the server never learns that its client left
NEVER_NOTICED = 1e9
SHARES = (0.0, 0.1, 0.3)
CLAIMED = {0.1: -0.12, 0.3: -0.29}


def _leaving(seed: int, share: float) -> Callable[[I32], I32]:
    """That share leaves after a uniformly random token of their answer."""

    def cancel_tokens(output: I32) -> I32:
        rng = np.random.default_rng(seed + 77)
        leaves, at = rng.random(len(output)), rng.random(len(output))
        return np.where(leaves < share, np.ceil(at * output), 0).astype(np.int32)

    return cancel_tokens


def _run(card: Card, traffic: Traffic, size: Size, seed: int, share: float, **settings: Any) -> Outcome:
    load = traffic.load(seed, size.requests, cancel_tokens=_leaving(seed, share))
    return simulate(load, card.config(**settings), card.times)


def _wasted(outcome: Outcome) -> float:
    return 1 - float(outcome.tokens[outcome.ok].sum()) / outcome.counters.generation_tokens


def cancel(size: Size) -> Report:
    rows: list[tuple[object, ...]] = []
    lost: dict[tuple[str, str, str, float], Interval] = {}
    for card in CARDS[: 1 if size.cheap else 2]:
        limit = capacity(card, Traffic(), size)
        for where, traffic in (("all waiting", Traffic()), ("load 0.6", Traffic(0.6 * limit))):
            for server, delay in (("aborts", 0.0), ("does not notice", NEVER_NOTICED)):
                runs = {
                    x: [_run(card, traffic, size, s, x, abort_delay_seconds=delay) for s in range(size.seeds)]
                    for x in SHARES
                }
                before = [useful_rate(o) for o in runs[0.0]]
                for share in SHARES[1:]:
                    fall = change([useful_rate(o) for o in runs[share]], before)
                    lost[card.name, where, server, share] = fall
                    busy = interval(o.counters.busy_seconds / o.counters.end_seconds for o in runs[share])
                    running = change(*([o.counters.mean_running for o in runs[x]] for x in (share, 0.0)))
                    wasted = interval(_wasted(o) for o in runs[share])
                    rows.append(
                        (
                            card.name,
                            where,
                            server,
                            f"{share:.0%}",
                            fall.signed(),
                            wasted.share(),
                            busy.share(),
                            running.signed(),
                        )
                    )
    head = ("card", "load", "server", "cancelled", "useful tokens/s", "tokens wasted", "busy", "running")
    name = A100.name
    queue, deaf = ({x: lost[name, "all waiting", s, x] for x in CLAIMED} for s in ("aborts", "does not notice"))
    idle = {x: lost[name, "load 0.6", "aborts", x] for x in CLAIMED}
    tables = [table("Llama-3 8B, ShareGPT's mean lengths, useful = answers read to their end", head, rows)]
    figure = "; ".join(
        f"{where} {x[0.1].signed()} and {x[0.3].signed()}"
        for where, x in (("queue and aborts", queue), ("queue, nobody notices", deaf), ("load 0.6", idle))
    )
    own = _own_runs()
    if own:
        tables.append(
            f"  own runs of vLLM on a CPU, 30% cancelled: useful tokens/s {own.signed()} ({len(_PAIRS)} pairs)"
        )
        figure += f"; own runs of vLLM on a CPU {own.signed()} at 30%"
    near = all(abs(deaf[x].mean - CLAIMED[x]) < 0.06 for x in CLAIMED)
    return Report(
        tuple(tables),
        (
            Answer("cancel-throughput", "depends" if near else "contradicted", figure),
            _cure(size),
        ),
        (_picture(lost),) if not size.cheap else (),
    )


def _cure(size: Size) -> Answer:
    """30% cancelled with a queue: the best setting, and the same load without those who leave. The RTX 4090: the KV
    cache limits it, so that there is something to tune.
    """
    runs, card = range(size.seeds), RTX4090
    default = [useful_rate(_run(card, Traffic(), size, s, 0.3)) for s in runs]
    gains = []
    for seqs, budget in product((64, 96, 128), (1024, 2048, 8192)):
        settings = {"max_num_seqs": seqs, "max_num_batched_tokens": budget}
        gains.append(change([useful_rate(_run(card, Traffic(), size, s, 0.3, **settings)) for s in runs], default))
    best = max(gains, key=lambda i: i.mean)
    kept = []
    for s in runs:
        load = Traffic().load(s, size.requests, cancel_tokens=_leaving(s, 0.3))
        stays = load.cancel_tokens == 0
        load = Workload.of(load.arrival[stays], load.prompt[stays], load.output[stays])
        kept.append(useful_rate(simulate(load, card.config(), card.times)))
    gateway = change(kept, default)
    return Answer(
        "cancel-cure",
        "holds" if gateway.low > 0 and gateway.mean > 1.5 * best.mean else "depends",
        f"30% cancelled, RTX 4090: not sent at all {gateway.signed()} useful tokens/s, best of {len(gains)} settings "
        f"{best.signed()}",
    )


#: pairs of own runs, the same but for cancellation. Left out: b160_s128 and those that took several times as long as
#: their neighbours, disturbed by other work on the machine
_PAIRS = tuple(
    f"b{blocks}_s{seqs}_{cache}"
    for blocks, seqs, cache in (
        (160, 8, "apc"),
        (160, 8, "noapc"),
        (160, 16, "apc"),
        (160, 16, "noapc"),
        (160, 32, "apc"),
        (160, 64, "apc"),
        (320, 8, "apc"),
        (320, 16, "apc"),
        (320, 16, "noapc"),
        (320, 32, "apc"),
        (320, 32, "noapc"),
        (320, 64, "apc"),
        (320, 64, "noapc"),
        (320, 128, "apc"),
        (320, 128, "noapc"),
    )
)


def _own_runs() -> Interval | None:
    if not own_folder():
        return None
    return change(*([own_rate(f"{pair}_c{share}") for pair in _PAIRS] for share in (30, 0)))


def own_folder() -> Path | None:
    """Own runs of vLLM on a CPU; None where $TRIMTAB_DATA does not hold them."""
    folder = Path(os.environ.get("TRIMTAB_DATA", "")) / "vllm-cpu-0.32"
    return folder if os.environ.get("TRIMTAB_DATA") and folder.is_dir() else None


def own_rate(name: str) -> float:
    """Tokens/s of the answers that were read to their end in one of them."""
    folder = own_folder()
    assert folder is not None
    with gzip.open(folder / f"{name}.json.gz", "rt") as file:
        run = json.load(file)
    ends = [r["end"] for r in run["requests"] if r["end"] is not None]
    return float(sum(r["events"] for r in run["requests"] if r["status"] == "ok") / max(ends))


def _picture(lost: dict[tuple[str, str, str, float], Interval]) -> Picture:
    lines: list[tuple[str, tuple[float, ...], tuple[float, ...]]] = [
        ("claimed", tuple(100 * v for v in (0.0, *CLAIMED.values())), ())
    ]
    for where, server in (("all waiting", "aborts"), ("all waiting", "does not notice"), ("load 0.6", "aborts")):
        seen = [lost[A100.name, where, server, x] for x in CLAIMED]
        label = {"all waiting": "queue", "load 0.6": "load 0.6"}[where] + f", server {server}"
        lines.append((label, (0.0, *(100 * i.mean for i in seen)), (0.0, *(100 * i.half for i in seen))))
    return Picture(
        "cancel",
        "What cancellation costs",
        "cancelled requests (%)",
        "useful tokens/s (%)",
        tuple(100 * x for x in SHARES),
        tuple(lines),
    )
