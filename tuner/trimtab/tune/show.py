"""What a person sees: a live panel on a terminal, plain lines elsewhere, and the tables and JSON at the end."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trimtab.judge.verdict import Kind
from trimtab.observe.observation import Observation
from trimtab.plan.record import Phase, PodView, TrialRecord
from trimtab.plan.spec import TunerSpec
from trimtab.plan.summary import percent, tally
from trimtab.plan.trial import objective
from trimtab.tune.loop import Loop
from trimtab.tune.state import State, record_json

Json = dict[str, Any]
_PLAIN_SECONDS: Final = 10.0
_STYLES: Final = {Kind.BETTER: "green", Kind.WORSE: "red", Kind.ERROR: "bold red", Kind.INCONCLUSIVE: "yellow"}
#: key of the figures -> (label, format)
_FIGURES: Final[Mapping[str, tuple[str, str]]] = {
    "goodput_tokens_per_second": ("goodput, tokens/s per replica", "{:.0f}"),
    "useful_tokens_per_second": ("useful tokens/s per replica", "{:.0f}"),
    "slo_attainment": ("requests inside the SLO", "{:.0%}"),
    "ttft_p50_seconds": ("TTFT p50", "{:.2f} s"),
    "ttft_p99_seconds": ("TTFT p99", "{:.2f} s"),
    "tpot_p50_seconds": ("TPOT p50", "{:.3f} s"),
    "tpot_p99_seconds": ("TPOT p99", "{:.3f} s"),
    "preemptions_per_second": ("preemptions/s per replica", "{:.2f}"),
    "prefix_hit_ratio": ("prefix cache hits", "{:.0%}"),
    "error_ratio": ("failed requests", "{:.1%}"),
}


class Display:
    """Give `tick` to the loop. Off a terminal: a line for each change of phase, and one now and then."""

    def __init__(
        self, console: Console, spec: TunerSpec, header: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._spec, self._header, self._clock = console, spec, header, clock
        self._live: Live | None = None
        self._last = ("", "")
        self._printed_at = 0.0
        self._began = clock()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            # our loop refreshes it: rich's own would be a thread
            self._live = Live(Text(self._header), console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        else:
            self._line(self._header)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def tick(self, loop: Loop) -> None:
        if self._live is not None:
            self._live.update(self._panel(loop), refresh=True)
            return
        now = self._clock()
        name, text = headline(loop)
        if (name, text) != self._last:
            self._line(f"{now - self._began:.0f}s {name}: {text}")
            self._last, self._printed_at = (name, text), now
        elif now - self._printed_at >= _PLAIN_SECONDS:
            self._line(f"{now - self._began:.0f}s {name}: {self._now(loop)}")
            self._printed_at = now

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _now(self, loop: Loop) -> str:
        seen = loop.seen
        if seen.canary is None and seen.control is not None:
            return f"baseline {brief(self._spec, seen.control)}"
        if seen.canary is not None:
            return f"canary {brief(self._spec, seen.canary)}; control {brief(self._spec, seen.control)}"
        return brief(self._spec, seen.fleet.observation if seen.fleet is not None else None)

    def _panel(self, loop: Loop) -> RenderableType:
        name, text = headline(loop)
        parts: list[RenderableType] = [Text(self._header, style="bold"), Text(f"{name}: {text}"), Text(self._now(loop))]
        if loop.seen.view is not None:
            parts.append(Text(replicas_line(loop)))
        if loop.seen.note:
            parts.append(Text(loop.seen.note, style="dim"))
        if loop.state.trials:
            parts.append(trials_table(loop.state.trials))
        return Group(*parts)


def headline(loop: Loop) -> tuple[str, str]:
    """What it is doing, and why."""
    record = loop.state.active
    if record is not None:
        return f"{record.name} {record.phase.value}", f"{settings_text(record)}: {record.message}"
    done = loop.state.trials[-1] if loop.state.trials else None
    last = f"{done.name} {done.phase.value}: {done.message}" if done is not None else "observing"
    block = loop.seen.block
    return "between trials", f"{last}; {block.message}" if block is not None else last


def replicas_line(loop: Loop) -> str:
    view = loop.seen.view
    assert view is not None
    canary, control = ("canary ", "control ") if loop.state.active is not None else ("", "")
    shown = [(p.name, canary + _health(p)) for p in view.canary]
    shown += [(p.name, control + _health(p)) for p in view.control]
    return "  ".join(f"{name} {text}" for name, text in sorted(shown))


def _health(pod: PodView) -> str:
    if pod.health.exit_code is not None:
        return f"ended with {pod.health.exit_code}"
    return "ready" if pod.health.ready else "starting"


def settings_text(record: TrialRecord) -> str:
    """What the candidate changes."""
    changes = record.baseline.changes_to(record.configuration)
    return " ".join(f"{n}={'default' if v is None else str(v).lower()}" for n, v in changes.items()) or "(no change)"


def brief(spec: TunerSpec, o: Observation | None) -> str:
    """Goodput and tails of one arm, for a line."""
    if o is None:
        return "no data yet"
    goal = objective(spec)
    goodput = o.goodput(goal.ttft_seconds, goal.tpot_seconds)
    tails = [h.quantile(0.99) if h is not None else None for h in (o.ttft_seconds, o.tpot_seconds)]
    return (
        f"goodput {_number(goodput, '{:.0f}')} tok/s, p99 TTFT {_number(tails[0], '{:.2f}')} s "
        f"TPOT {_number(tails[1], '{:.3f}')} s"
    )


def _number(value: float | None, form: str) -> str:
    return "?" if value is None else form.format(value)


def trials_table(trials: Sequence[TrialRecord]) -> Table:
    table = Table(title="Trials", title_justify="left")
    for name in ("#", "change", "why", "outcome", "goodput", "interval"):
        table.add_column(name)
    for t in trials:
        verdict = t.verdict
        if verdict is None:
            table.add_row(str(t.number), settings_text(t), t.origin, t.phase.value)
            continue
        known = verdict.gain_low is not None and verdict.gain_high is not None
        outcome = Text(f"{t.phase.value}: {verdict.kind.value}, {verdict.reason}", style=_STYLES[verdict.kind])
        span = f"{gain_text(verdict.gain_low)} to {gain_text(verdict.gain_high)}" if known else ""
        table.add_row(str(t.number), settings_text(t), t.origin, outcome, gain_text(verdict.gain), span)
    return table


def gain_text(value: float | None) -> str:
    """Percent; beyond ten times as much a number says no more (a control that served next to nothing)."""
    return "over +900%" if value is not None and value > 9 else percent(value)


def figures_table(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Table:
    table = Table(title="Before and after, whole target", title_justify="left")
    table.add_column("")
    for name in ("before", "after"):
        table.add_column(name, justify="right")
    for key, (label, form) in _FIGURES.items():
        table.add_row(label, _number((before or {}).get(key), form), _number((after or {}).get(key), form))
    return table


def print_result(console: Console, state: State, command: str, failed: str) -> None:
    """The end: tables, what the load saw, the command line to paste."""
    if state.trials:
        console.print(trials_table(state.trials))
    if state.before is not None:
        console.print(figures_table(state.before, state.after))
    if state.screened:
        console.print(
            f"{state.screened[:1].upper()}{state.screened[1:]}.", markup=False, highlight=False, soft_wrap=True
        )
    if failed:
        console.print(failed, markup=False, highlight=False, soft_wrap=True)
    if any(t.phase is Phase.PROMOTED for t in state.trials):
        console.print("Best command line found:", markup=False, highlight=False)
        console.print(command, markup=False, highlight=False, soft_wrap=True)
    elif state.done:
        console.print("Nothing better than the command line as given was found.", markup=False, highlight=False)
    if state.done and state.stopped:
        console.print(f"The search ended: {state.stopped}.", markup=False, highlight=False, soft_wrap=True)


def result_json(state: State, command: str, load: Json | None, spec: TunerSpec | None = None) -> Json:
    """Everything the tables say, and more, for a program and for the report. Times in unix seconds."""
    counts = tally(state.trials)
    return {
        "done": state.done,
        "given": shlex.join(state.command),
        "command": command,
        "replicas": state.replicas,
        "stopped": state.stopped,
        "spec": None if spec is None else spec.model_dump(mode="json"),
        "findings": state.findings,
        "screened": state.screened,
        "before": state.before,
        "after": state.after,
        "best_gain": counts.best_gain,
        "promoted": counts.promoted,
        "restarts": sum(t.restarts for t in state.trials),
        "trials": [record_json(t) for t in state.trials],
        "load": load,
    }
