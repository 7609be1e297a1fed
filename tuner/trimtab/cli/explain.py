"""`trimtab explain`: what each setting would change and which resource binds, by simulation."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, replace
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from trimtab.cli.console import report_console
from trimtab.cli.load_options import ProcessesOption
from trimtab.cli.simulation import PROFILE_SECONDS, Asked, Source, configurations, simulating
from trimtab.errors import InputError
from trimtab.load.session import open_output
from trimtab.simulate.binding import LEAST_GAIN, Resource
from trimtab.simulate.capacity import ATTAINMENT, MOST, Capacity
from trimtab.simulate.explain import Ask, Effect, Explanation, explain
from trimtab.simulate.situation import Interval, Situation, possible_times
from trimtab.simulate.summary import Limits

#: pairs of possible step times and loads where a profile gives them
PAIRS: Final = 8
WORDS: Final[dict[Resource, str]] = {
    "compute": "the GPU's speed", "kv": "the KV cache", "slots": "the slots (max_num_seqs)",
    "queue": "the queue's limits", "prefill_budget": "the step's token budget",
    "arrivals": "arrivals: the engine waits for work",
}  # fmt: skip

LeastOption = Annotated[float, typer.Option(help="A smaller gain in percent does not count.", min=0.0, max=100.0)]
AttainmentOption = Annotated[
    float, typer.Option(help="Share of the requests (0-1) that must be within the SLO.", min=0.0, max=1.0)
]


@simulating
def explain_command(
    asked: Asked,
    processes: ProcessesOption = None,
    least: LeastOption = 100 * LEAST_GAIN,
    attainment: AttainmentOption = ATTAINMENT,
) -> None:
    """Say what each setting would change, which resource binds, and what would be needed where no setting helps.

    Nothing is restarted: all of it is simulated. --set says what the engine has now, one value each.

    Example: trimtab explain --profile target.json --slo-ttft 2 --slo-tpot 0.1
    """
    source = asked.source()
    now = configurations(source.engine, asked.settings or [])
    if len(now) > 1:
        raise InputError("--set", "names several configurations", "Give what the engine has now, one value each.")
    limits = asked.limits()
    situation = _situation(replace(source, engine=now[0]), limits, asked.duration, asked.seed)
    _report(situation, limits, Ask(least / 100, attainment, processes or os.cpu_count() or 1), asked.json_file)


app = explain_command


def _situation(source: Source, limits: Limits, duration: float | None, seed: int) -> Situation:
    """With what a profile leaves open where there is one; else load and step times are taken as true."""
    if source.profile is None:
        return Situation.of_load(source.engine, limits, source.load, source.times)
    known = source.profile.model_copy(update={"engine": source.engine, "times": source.times})
    if source.drawn:
        return Situation.of_profile(known, limits, seconds=duration or PROFILE_SECONDS, seed=seed, pairs=PAIRS)
    times = possible_times(known, PAIRS, seed)
    return Situation(source.engine, limits, (source.load,) * len(times), times)


def _report(situation: Situation, limits: Limits, ask: Ask, json_file: str | None) -> None:
    console = report_console(to_stderr=json_file == "-")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with open_output(json_file, "--json") as out:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("virtual time", total=None)

            def on_step(done: int, of: int) -> None:
                progress.update(task, completed=done, total=of)

            found = explain(situation, replace(ask, on_step=on_step))
        show(console, found, limits, situation.pairs)
        if out is not None:
            out.write(json.dumps(_plain(asdict(found) | {"nothing_helps": found.nothing_helps}), indent=1) + "\n")


def show(console: Console, found: Explanation, limits: Limits, pairs: int) -> None:
    """For people; words before numbers."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    limited = min(limits.ttft_seconds, limits.tpot_seconds) < math.inf
    say(f"What binds: {WORDS[found.binds.resource]}. {_sentence(found.binds.evidence)}")
    gains = ", ".join(f"{name.replace('_', ' ')} {_change(gain)}" for name, gain in found.binds.gains.items())
    say(f"Twice as much of each (for the queue: no limit) would give: {gains}.")
    if limited:
        say(f"Now {found.now.goodput:.0f} tok/s within the SLO, {_share(found.now.attainment)} of the requests.")
    else:
        say(f"Now {found.now.goodput:.0f} tok/s. No SLO is given: --slo-ttft and --slo-tpot say what counts as good.")
    console.print(table(found))
    if pairs > 1:
        say("In brackets: 90% of what is possible by what the profile leaves open (step times, load).")
    say(_advice(found))
    if found.capacity is not None:
        say(_capacity(found.capacity))


def table(found: Explanation) -> Table:
    shown = Table(title="Each setting alone, at its best other value", title_justify="left", padding=(0, 0))
    for name in ("setting", "now", "then", "goodput", "TTFT p99", "TPOT p99", "preempted", "helps", "binds then"):
        words = name in ("setting", "helps", "binds then")
        shown.add_column(name, justify="left" if words else "right", no_wrap=words)
    for e in found.effects:
        shown.add_row(
            e.setting, _value(e.now), _value(e.value), _interval(e.goodput), _interval(e.ttft_p99),
            _interval(e.tpot_p99), _preempted(e), e.helps, e.binds.resource.replace("_", " "),
        )  # fmt: skip
    return shown


def _advice(found: Explanation) -> str:
    shed = [e for e in found.effects if e.helps == "shedding"]
    more = f" A queue limit ({shed[0].setting}={_value(shed[0].value)}) would only turn requests away." if shed else ""
    if found.nothing_helps:
        return f"No setting helps.{more}"
    best = ", ".join(f"{name}={_value(value)}" for name, value in found.best.items())
    return f"Best together: {best}; goodput {_interval(found.best_goodput)}. Simulated, not measured.{more}"


def _capacity(needed: Capacity) -> str:
    """What would meet the SLO, each alone."""
    ways = [
        f"{factor:.1f} times the {what}"
        for what, factor in (("replicas", needed.replicas), ("KV blocks", needed.kv_blocks), ("speed", needed.speed))
        if factor is not None
    ]
    goal = f"For {needed.attainment:.0%} of the requests within the SLO it takes"
    if not ways:
        return f"{goal} more than {MOST:.0f} times the replicas, KV blocks or speed: the SLO is out of reach."
    return f"{goal} {', or '.join(ways)}."


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _value(value: object) -> str:
    return "none" if value is None else str(value).lower()


def _share(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:.0%}"


def _preempted(e: Effect) -> str:
    before, after = e.preemptions
    return "0" if not before and not after else f"{before} > {after}"


def _interval(i: Interval) -> str:
    if math.isnan(i.middle):
        return "-"
    if abs(i.high - i.low) < 0.005:
        return _change(i.middle)
    return f"{_change(i.middle)} ({_change(i.low)} to {_change(i.high)})"


def _change(share: float) -> str:
    """Percent up to twice as much, then times: +4200% is no figure that anybody reads."""
    if abs(share) < 0.005:
        return "0%"
    return f"{share:+.0%}" if share < 2 else f"x{1 + share:.0f}"


def _plain(value: Any) -> Any:
    """JSON knows no nan and no inf."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
