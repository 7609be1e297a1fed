"""What is shown while a run lasts: a live table on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.table import Table

from trimtab.load.records import Record
from trimtab.load.summary import Quantiles, Slo, Summary, summarise

LIVE_SECONDS, PLAIN_SECONDS = 0.5, 10.0


class Recent:
    """Records of the last `seconds`, by their end; memory is bounded by rate times window."""

    def __init__(self, slo: Slo, seconds: float = 30.0) -> None:
        self._slo, self._seconds = slo, seconds
        self._records: deque[Record] = deque()
        self.total = 0

    def add(self, record: Record) -> None:
        self.total += 1
        self._records.append(record)

    def summary(self, start: float, now: float) -> Summary:
        """Of the last window, or of the run so far while it is younger."""
        since = max(start, now - self._seconds)
        while self._records and self._records[0].ended_at < since:
            self._records.popleft()
        return summarise(self._records, (since, max(now, since + 1e-3)), self._slo, cohort="end")


async def show(console: Console, live: bool, draw: Callable[[], tuple[Summary, int, float]]) -> None:
    """Runs until cancelled. `draw` gives the recent Summary, the number in flight and the seconds since the start."""
    if not live:
        while True:
            await asyncio.sleep(PLAIN_SECONDS)
            console.print(plain_line(*draw()), markup=False, highlight=False, soft_wrap=True)
    # our own clock refreshes it: rich's would be a thread
    with Live(table(*draw()), console=console, auto_refresh=False, transient=True) as view:
        while True:
            await asyncio.sleep(LIVE_SECONDS)
            view.update(table(*draw()), refresh=True)


def plain_line(recent: Summary, in_flight: int, elapsed: float) -> str:
    """One line, readable in a pod's log and by grep."""
    return (
        f"{elapsed:.0f}s ended {recent.requests_per_second:.2f}/s in_flight {in_flight} "
        f"goodput {recent.goodput_tokens_per_second:.0f} tok/s useful {recent.useful_tokens_per_second:.0f} tok/s "
        f"ttft p50 {_seconds(recent.ttft_seconds.p50)} p99 {_seconds(recent.ttft_seconds.p99)} "
        f"tpot p50 {_milliseconds(recent.tpot_seconds.p50)} p99 {_milliseconds(recent.tpot_seconds.p99)} "
        f"cancelled {recent.cancelled} gave_up {recent.gave_up} not_sent {recent.not_sent} failed {_causes(recent)}"
    )


def table(recent: Summary, in_flight: int, elapsed: float) -> Table:
    grid = Table(
        title=f"load, {elapsed:.0f} s (last {recent.seconds:.0f} s shown)", show_header=False, title_justify="left"
    )
    grid.add_row("ended", f"{recent.requests_per_second:.2f} requests/s", "in flight", str(in_flight))
    goodput, useful = recent.goodput_tokens_per_second, recent.useful_tokens_per_second
    grid.add_row("goodput", f"{goodput:.0f} tokens/s", "useful", f"{useful:.0f} tokens/s")
    grid.add_row(
        "TTFT p50 / p99",
        _pair(recent.ttft_seconds, _seconds),
        "TPOT p50 / p99",
        _pair(recent.tpot_seconds, _milliseconds),
    )
    grid.add_row("cancelled / gave up", f"{recent.cancelled} / {recent.gave_up}", "not sent", str(recent.not_sent))
    grid.add_row("failed", _causes(recent), "", "")
    return grid


def result_table(result: Summary) -> Table:
    """The whole run, for people."""
    out = Table(title=f"{result.requests} requests in {result.seconds:.1f} s", show_header=True, title_justify="left")
    for name in ("", "p50", "p90", "p99"):
        out.add_column(name, justify="left" if not name else "right")
    rows = (
        ("TTFT", result.ttft_seconds, _seconds),
        ("TPOT", result.tpot_seconds, _milliseconds),
        ("E2E (ok)", result.e2e_seconds, _seconds),
        ("sent late by", result.lateness_seconds, _milliseconds),
    )
    for label, q, show_value in rows:
        out.add_row(label, show_value(q.p50), show_value(q.p90), show_value(q.p99))
    return out


def result_lines(result: Summary) -> list[str]:
    """What the table does not say."""
    lines = [
        f"ok {result.ok}, cancelled {result.cancelled}, gave up {result.gave_up}, failed {_causes(result)}, "
        f"not sent {result.not_sent}, unfinished {result.unfinished}",
        f"tokens/s: goodput {result.goodput_tokens_per_second:.1f}, useful {result.useful_tokens_per_second:.1f}, "
        f"wasted {result.wasted_tokens_per_second:.1f} ({result.cancelled_tokens} tokens of cancelled requests)",
        f"SLO met by {_share(result.slo_attainment)}, completion ratio {_share(result.completion_ratio)}, "
        f"useful token ratio {_share(result.useful_token_ratio)}",
    ]
    late = result.lateness_seconds.p99
    if late is not None and late > 0.1:
        lines.append(
            f"careful: requests were sent {late:.2f} s late (p99): the client is short of CPU, latencies overstated"
        )
    return lines


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1000:.1f} ms"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _pair(q: Quantiles, show_value: Callable[[float | None], str]) -> str:
    return f"{show_value(q.p50)} / {show_value(q.p99)}"


def _causes(summary: Summary) -> str:
    causes = ", ".join(f"{cause} {n}" for cause, n in summary.failed_by_cause.items())
    return f"{summary.failed} ({causes})" if causes else str(summary.failed)
