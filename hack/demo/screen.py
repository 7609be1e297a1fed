"""What the demo shows while it tunes and at its end. Rich on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hack.demo.scenario import SCENARIO
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from trimtab.engine.settings import Configuration
from trimtab.load.summary import Summary
from trimtab.tune.demo_control import demo_control

Json = dict[str, Any]


def number(value: float | None, digits: int = 1, unit: str = "") -> str:
    return "-" if value is None else f"{value:.{digits}f}{unit}"


def live(tuner: Json, trials: Sequence[Json], users: Summary | None, seconds: float) -> Group:
    """Tuner, trials and what users get now."""
    status = tuner.get("status") or {}
    head = Text(f"{seconds:4.0f} s  ", style="dim")
    head.append(status.get("phase") or "waiting for the operator", style="bold cyan")
    head.append(f"   finding: {status.get('finding', '-')}   best gain: {status.get('bestGain') or '-'}")
    why = next((c["message"] for c in status.get("conditions") or () if c["type"] == "Progressing"), "")
    return Group(
        head, Text(why, style="dim", overflow="ellipsis", no_wrap=True), trial_table(trials), users_line(users)
    )


def trial_table(trials: Sequence[Json]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("trial", "phase", "verdict", "gain", "restarts"):
        table.add_column(column, no_wrap=True)
    table.add_column("settings", overflow="fold")
    colours = {"Better": "green", "Worse": "red", "Error": "red", "Inconclusive": "yellow"}
    for trial in trials:
        status = trial.get("status") or {}
        kind = (status.get("verdict") or {}).get("kind", "")
        ended = bool(status.get("finishedAt"))
        table.add_row(
            trial["metadata"]["name"],
            Text(status.get("phase", "Created"), style="" if ended else "bold"),
            Text(kind, style=colours.get(kind, "")),
            status.get("gain", ""),
            str(status.get("restarts", 0)),
            status.get("settings", ""),
        )
    return table


def users_line(users: Summary | None) -> Text:
    if users is None:
        return Text("users: no requests yet", style="dim")
    failed = Text(f"failed {users.failed}", style="bold red" if users.failed else "green")
    return Text.assemble(
        f"users, last 30 s: goodput {users.goodput_tokens_per_second:.0f} tok/s  "
        f"TTFT p50/p99 {number(users.ttft_seconds.p50, 2)}/{number(users.ttft_seconds.p99, 2)} s  "
        f"gave up {users.gave_up}  ",
        failed,
    )


def before_after(
    console: Console, before: Summary, after: Summary, preemptions: Sequence[float | None], failed: dict[str, int]
) -> None:
    """The table at the end. `preemptions`: per second before and after, from Prometheus; all else is what users saw."""
    table = Table(title="Before and after", title_justify="left", title_style="bold")
    for column in ("", "before", "after", "change"):
        table.add_column(column, justify="left" if not column else "right")
    rows: list[tuple[str, float | None, float | None, int]] = [
        ("goodput (tokens/s within SLO)", before.goodput_tokens_per_second, after.goodput_tokens_per_second, 0),
        ("useful tokens/s", before.useful_tokens_per_second, after.useful_tokens_per_second, 0),
        ("TTFT p50 (s)", before.ttft_seconds.p50, after.ttft_seconds.p50, 2),
        ("TTFT p99 (s)", before.ttft_seconds.p99, after.ttft_seconds.p99, 2),
        ("TPOT p50 (ms)", _ms(before.tpot_seconds.p50), _ms(after.tpot_seconds.p50), 1),
        ("TPOT p99 (ms)", _ms(before.tpot_seconds.p99), _ms(after.tpot_seconds.p99), 1),
        ("preemptions/s (all pods)", preemptions[0], preemptions[1], 2),
        ("useful_token_ratio", before.useful_token_ratio, after.useful_token_ratio, 3),
        ("requests that gave up", float(before.gave_up), float(after.gave_up), 0),
    ]
    for name, a, b, digits in rows:
        table.add_row(name, number(a, digits), number(b, digits), _change(a, b))
    console.print(table)
    console.print(f"Windows: {before.seconds:.0f} s before the first trial, {after.seconds:.0f} s after the last.")
    total = sum(failed.values())
    causes = f" ({', '.join(f'{k}: {v}' for k, v in failed.items())})" if failed else ""
    console.print(
        f"Failed requests over the whole run, rollouts included: {total}{causes}",
        style="green" if not total else "bold red",
    )


def control(console: Console, trials: Sequence[Json]) -> None:
    """What random search would have found with as many trials: the demo's engine is known in full by simulation."""
    tried = [t for t in trials if (t.get("status") or {}).get("verdict")]
    kept = [t for t in tried if t["status"].get("phase") == "Promoted"]
    found = Configuration.from_camel(kept[-1]["spec"]["configuration"]) if kept else Configuration.of()
    console.print(demo_control(found, len(tried), SCENARIO), highlight=False, soft_wrap=True)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _change(before: float | None, after: float | None) -> str:
    return "-" if not before or after is None else f"{(after / before - 1) * 100:+.0f}%"
