"""`trimtab simulate`: one configuration or a grid on the compiled scheduler model, for a trace or a generated load."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Annotated, Any, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from trimtab.cli.console import errors, report_console
from trimtab.cli.load_options import (
    CancelOption,
    JsonOption,
    MaxOutputTokensOption,
    MaxPromptTokensOption,
    MaxTokensRatioOption,
    OutputOption,
    PatienceOption,
    ProcessesOption,
    PromptOption,
    RateOption,
    SeedOption,
    SharedPrefixOption,
    SloTpotOption,
    SloTtftOption,
    TraceOption,
)
from trimtab.errors import InputError
from trimtab.load.session import open_output
from trimtab.load.shape import LoadShape, require_positive, require_share
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.summary import Figures, Limits, Quantiles, Study, sweep
from trimtab.simulate.workload import NEVER, Workload

#: settings that may be given, and their types; num_gpu_blocks has its own option
SETTINGS: Final = {f.name: f.type for f in fields(EngineConfig) if f.name != "num_gpu_blocks"}
_TRUTH: Final = {"true": True, "false": False}

BlocksOption = Annotated[int, typer.Option("--blocks", help="num_gpu_blocks as vLLM reports it; never a derived one.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting, or several values of it: max_num_seqs=64,128. May be given several times."),
]
TimesOption = Annotated[
    str | None,
    typer.Option("--times", help="Seconds of a step: fixed=0.012,per_prefill_token=3e-4,per_decode_seq=3.5e-4,..."),
]
DurationOption = Annotated[float | None, typer.Option(help="Seconds of load. Default: the whole trace, or 60.")]


def simulate(
    blocks: BlocksOption,
    settings: SetOption = None,
    times: TimesOption = None,
    processes: ProcessesOption = None,
    json_file: JsonOption = None,
    rate: RateOption = None,
    duration: DurationOption = None,
    trace: TraceOption = None,
    prompt: PromptOption = "256:0.6",
    output: OutputOption = "128:0.8",
    shared_prefix: SharedPrefixOption = None,
    cancel: CancelOption = 0.0,
    max_tokens_ratio: MaxTokensRatioOption = "1:1",
    max_prompt_tokens: MaxPromptTokensOption = None,
    max_output_tokens: MaxOutputTokensOption = None,
    patience: PatienceOption = None,
    seed: SeedOption = 0,
    slo_ttft: SloTtftOption = None,
    slo_tpot: SloTpotOption = None,
) -> None:
    """Simulate vLLM's scheduler to the step: goodput, latency, preemptions, KV use and waste of each configuration."""
    with errors():
        require_positive("--patience", patience)
        require_share("--cancel", cancel)
        shape = LoadShape(
            trace, rate, duration, (prompt, output), shared_prefix, max_tokens_ratio, max_prompt_tokens,
            max_output_tokens, cancel, seed,
        )  # fmt: skip
        configs = configurations(blocks, settings or [])
        step_times = parse_times(times) if times else StepTimes()
        load = Workload.from_requests(shape.requests(), patience_seconds=patience)
        limits = Limits(NEVER if slo_ttft is None else slo_ttft, NEVER if slo_tpot is None else slo_tpot)
        _report(Study(load, step_times, limits), configs, processes or os.cpu_count() or 1, json_file)


app = simulate


def configurations(blocks: int, settings: Sequence[str]) -> list[EngineConfig]:
    """Every combination of the given values, each once. InputError names the setting."""
    axes = [parse_setting(text) for text in settings]
    if len({name for name, _ in axes}) < len(axes):
        raise InputError("--set", "a setting is given twice", "Give all its values at once: NAME=V,V.")
    names = [name for name, _ in axes]
    chosen: list[dict[str, Any]] = [
        dict(zip(names, values, strict=True)) for values in itertools.product(*(values for _, values in axes))
    ]
    return list(dict.fromkeys(EngineConfig(num_gpu_blocks=blocks, **values) for values in chosen))


def parse_setting(text: str) -> tuple[str, list[Any]]:
    """`max_num_seqs=64,128`, by the type of the setting."""
    name, equals, values = text.partition("=")
    name = name.strip().lstrip("-").replace("-", "_")
    if not equals or name not in SETTINGS:
        raise InputError("--set", f"{text!r} is no NAME=VALUE", f"NAME is one of {', '.join(SETTINGS)}.")
    return name, [_value(name, value.strip()) for value in values.split(",")]


def _value(name: str, text: str) -> Any:
    kind = str(SETTINGS[name])
    try:
        if kind == "bool":
            return _TRUTH[text.lower()]
        if kind.startswith("int"):
            return int(text)
        return float(text) if kind == "float" else text
    except (KeyError, ValueError):
        wanted = {"bool": "true or false", "float": "a number"}.get(kind, "a whole number")
        raise InputError("--set", f"{name}={text!r} is of the wrong kind", f"Write {wanted}.") from None


def parse_times(text: str) -> StepTimes:
    """`fixed=0.012,per_decode_seq=3e-4`: seconds; what is not named is 0."""
    values: dict[str, Any] = {f.name: 0.0 for f in fields(StepTimes)}
    for part in text.split(","):
        name, _, number = part.partition("=")
        if name.strip() not in values:
            raise InputError("--times", f"{part!r} names no coefficient", f"Use {', '.join(values)}.")
        try:
            values[name.strip()] = float(number)
        except ValueError:
            raise InputError("--times", f"{part!r} holds no number", "Write NAME=SECONDS.") from None
    values["free_tokens"] = int(values["free_tokens"])
    return StepTimes(**values)


def _report(study: Study, configs: Sequence[EngineConfig], processes: int, json_file: str | None) -> None:
    console = report_console(to_stderr=json_file == "-")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with open_output(json_file, "--json") as out:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("virtual time", total=len(configs))
            results = sweep(study, configs, processes=processes, on_result=lambda: progress.advance(task))
        results.sort(key=lambda r: -r.goodput_tokens_per_second)
        console.print(table(results))
        if out is not None:
            out.write(json.dumps({"results": [asdict(r) for r in results]}, indent=1) + "\n")


def table(results: Sequence[Figures]) -> Table:
    """Best first. Settings that do not differ and figures that are zero everywhere get no column."""
    shown = Table(title=f"{len(results)} configurations, best goodput first", title_justify="left", padding=(0, 0))
    differing = [n for n in SETTINGS if len({getattr(r.config, n) for r in results}) > 1]
    columns = {name: [str(getattr(r.config, name)).lower() for r in results] for name in differing}
    figures = [_figures(r) for r in results]
    for name in figures[0]:
        values = [row[name] for row in figures]
        if name not in _OFTEN_ZERO or set(values) - {"0", "0%"}:
            columns[name] = values
    for name in columns:
        # a line per word: columns as narrow as their values
        shown.add_column(name.replace("_", " ").replace(" ", "\n"), justify="right", overflow="fold")
    for row in zip(*columns.values(), strict=True):
        shown.add_row(*row)
    return shown


_OFTEN_ZERO: Final = {"preempted", "unused KV", "wasted tok", "not served"}


def _figures(r: Figures) -> dict[str, str]:
    c = r.counters
    return {
        "goodput tok/s": f"{r.goodput_tokens_per_second:.0f}",
        "in SLO": "-" if r.slo_attainment is None else f"{r.slo_attainment:.0%}",
        "TTFT p50/p99 s": _pair(r.ttft, 2),
        "TPOT p50/p99 s": _pair(r.tpot, 3),
        "E2E p50/p99 s": _pair(r.e2e, 1),
        "KV mean/max": f"{c.mean_kv_usage:.0%}/{c.peak_kv_usage:.0%}",
        "preempted": str(c.preemptions),
        "unused KV": f"{c.mean_unused_share:.0%}",
        "wasted tok": str(r.wasted_tokens),
        "not served": str(sum(r.endings.get(name, 0) for name in ("stuck", "rejected", "refused"))),
    }


def _pair(q: Quantiles, digits: int) -> str:
    return "-" if q.p50 is None or q.p99 is None else f"{q.p50:.{digits}f}/{q.p99:.{digits}f}"
