"""`trimtab grid`: rank configurations on the emulator's scheduler in virtual time, for a load that is described."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from trimtab.cli.console import errors, report_console
from trimtab.emulate.environment import read_emulation
from trimtab.emulate.flags import StartupError, parse_flags
from trimtab.engine.settings import SEARCHED, Configuration, Value
from trimtab.errors import InputError
from trimtab.load.session import open_output
from trimtab.load.shape import LoadShape, require_positive, require_share
from trimtab.load.summary import Slo
from trimtab.tune import demo
from trimtab.tune.argv import CommandLine, configuration_of, words_of
from trimtab.tune.grid import Result, Scenario, client_requests, combinations, run_grid
from trimtab.tune.options import parse_value

Json = dict[str, Any]
DEMO_AXES = ("max_num_seqs=8,12,16,24,32,48,64,128,256", "enable_prefix_caching=true,false")
DEFAULT_AXES = ("max_num_seqs=8,16,32,64,128,256", "enable_prefix_caching=true,false")
DEFAULT_SECONDS = 300.0


def _load(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Load")


CommandArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- COMMAND", help="vllm serve MODEL --flags...: the engine; EMULATE_* set step times."),
]
DemoOption = Annotated[bool, typer.Option("--demo", help="The demo's engine and load.")]
GridOption = Annotated[
    list[str] | None,
    typer.Option("--grid", help="Values of a setting: max_num_seqs=8,16,32. May be given several times."),
]
ReplicasOption = Annotated[int, typer.Option(help="Replicas that share the load; one of them is simulated.")]
ProcessesOption = Annotated[int | None, typer.Option(help="Worker processes. Default: one per core.")]
JsonOption = Annotated[str | None, typer.Option("--json", help="Results as JSON: FILE, or - for stdout.")]
RateOption = Annotated[str | None, _load("Requests per second, or steps 2@30,8@60,2 (rate @ seconds).")]
DurationOption = Annotated[float, _load("Virtual seconds; the first fifth is not counted.")]
TraceOption = Annotated[str | None, _load("azure:FILE (CSV) or mooncake:FILE (JSONL); may be .gz. Default: generated.")]
PromptOption = Annotated[str, _load("Generated prompt tokens, lognormal: MEDIAN or MEDIAN:SIGMA.")]
OutputOption = Annotated[str, _load("Generated output tokens, lognormal: MEDIAN or MEDIAN:SIGMA.")]
SharedPrefixOption = Annotated[str | None, _load("SHARE:GROUPS:TOKENS, such as 0.5:4:512.")]
CancelOption = Annotated[float, _load("Share of requests (0-1) left mid-stream at a random token.")]
MaxTokensRatioOption = Annotated[str, _load("max_tokens / output length, LOW:HIGH.")]
MaxPromptTokensOption = Annotated[int | None, _load("Cut longer prompts to this.")]
MaxOutputTokensOption = Annotated[int | None, _load("Cut longer outputs to this.")]
PatienceOption = Annotated[float | None, _load("Seconds after which a client without a first token leaves.")]
SeedOption = Annotated[int, _load("Same seed, same results.")]
SloTtftOption = Annotated[float | None, _load("Goodput counts requests with the first token within these seconds ...")]
SloTpotOption = Annotated[float | None, _load("... and that took at most these seconds per further token.")]


def grid(
    command: CommandArgument = None,
    demo_: DemoOption = False,
    axis: GridOption = None,
    replicas: ReplicasOption = 1,
    processes: ProcessesOption = None,
    json_file: JsonOption = None,
    rate: RateOption = None,
    duration: DurationOption = DEFAULT_SECONDS,
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
    """Try every combination of settings on the modelled scheduler and rank them by goodput. No engine is started.

    The step times are a model (EMULATE_STEP_* variables): ranks carry over, seconds only as far as the model fits.

    Example: trimtab grid --grid max_num_seqs=16,64,256 --rate 4 --slo-ttft 2.5 -- vllm serve m --max-num-seqs 256
    """
    with errors():
        if demo_ == bool(command):
            raise InputError("command", "give --demo or an engine's command, and not both", "See trimtab grid --help.")
        require_positive("--duration", duration)
        require_positive("--replicas", replicas)
        require_positive("--patience", patience)
        require_share("--cancel", cancel)
        if demo_:
            scenario, base = demo_scenario(replicas, duration, seed)
        else:
            shape = LoadShape(
                trace, rate, duration, (prompt, output), shared_prefix, max_tokens_ratio, max_prompt_tokens,
                max_output_tokens, cancel, seed,
            )  # fmt: skip
            line = CommandLine.read(command or [])
            requests = client_requests(shape.requests(), replicas, patience_seconds=patience, seed=seed)
            scenario = _scenario(words_of(line.template)[2:], requests, duration, Slo(slo_ttft, slo_tpot))
            base = configuration_of(line.template)
        axes = dict(parse_axis(a) for a in axis or (DEMO_AXES if demo_ else DEFAULT_AXES))
        candidates = list(dict.fromkeys([base, *combinations(axes, base)]))
        _report(scenario, candidates, base, processes or os.cpu_count() or 1, json_file)


app = grid


def demo_scenario(replicas: int, duration_seconds: float, seed: int = 0) -> tuple[Scenario, Configuration]:
    """The demo in virtual time, and its configuration as found."""
    d = demo.DEMO
    shape = demo.load_shape(replicas, duration_seconds, seed=seed)
    requests = client_requests(shape.requests(), replicas, patience_seconds=d.patience_seconds, seed=seed)
    slo = Slo(d.slo_ttft_seconds, d.slo_tpot_seconds)
    scenario = _scenario(demo.engine_args(), requests, duration_seconds, slo, demo.engine_env())
    return scenario, configuration_of(CommandLine.read(demo.command()).template)


def _scenario(
    args: Sequence[str], requests: Any, duration: float, slo: Slo, environ: dict[str, str] | None = None
) -> Scenario:
    """From the emulator's arguments and environment. InputError for flags that no engine starts with."""
    try:
        flags = parse_flags(args)
    except StartupError as error:
        raise InputError("command", str(error), error.hint) from error
    emulation = read_emulation(os.environ if environ is None else environ)
    return Scenario(flags.limits, emulation.cost, requests, duration, slo, flags.max_new_tokens)


def parse_axis(text: str) -> tuple[str, list[Value]]:
    """`max_num_seqs=8,16`."""
    name, equals, values = text.partition("=")
    name = name.replace("-", "_")
    if not equals or name not in SEARCHED:
        raise InputError("--grid", f"{text!r} is no NAME=VALUE,VALUE", f"NAME is one of {', '.join(SEARCHED)}.")
    return name, [parse_value(name, v, "--grid") for v in values.split(",")]


def _report(
    scenario: Scenario, candidates: Sequence[Configuration], base: Configuration, processes: int, json_file: str | None
) -> None:
    console = report_console(to_stderr=json_file == "-")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with open_output(json_file, "--json") as out:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("virtual time", total=len(candidates))
            results = run_grid(scenario, candidates, processes=processes, on_result=lambda _: progress.advance(task))
        console.print(table(results, base))
        if out is not None:
            rows = [{**asdict(r), "configuration": dict(r.configuration)} for r in results]
            out.write(json.dumps({"baseline": dict(base), "results": rows}, indent=1) + "\n")


def table(results: Sequence[Result], base: Configuration) -> Table:
    """Best first; the configuration as found is marked. One column per setting that any of them sets."""
    shown = Table(title="Configurations, best first; figures of one replica", title_justify="left")
    names = sorted({name for r in results for name in r.configuration})
    for name in names:
        shown.add_column(name, justify="right")
    for name in ("goodput tok/s", "in SLO", "TTFT p50/p99 s", "TPOT p50/p99 s", "preempted", "useful", ""):
        shown.add_column(name, justify="right")
    for r in results:
        settings = [_setting(r.configuration.get(name)) for name in names]
        mark = "as found" if r.configuration == base else ""
        shown.add_row(*settings, *_figures(r), r.problem or mark)
    return shown


def _setting(value: Value | None) -> str:
    return "default" if value is None else str(value).lower()


def _figures(r: Result) -> list[str]:
    if r.problem:
        return ["-"] * 6
    return [
        f"{r.goodput_tokens_per_second:.0f}",
        _text(r.slo_attainment, "{:.0%}"),
        f"{_text(r.ttft_p50_seconds, '{:.2f}')}/{_text(r.ttft_p99_seconds, '{:.2f}')}",
        f"{_text(r.tpot_p50_seconds, '{:.3f}')}/{_text(r.tpot_p99_seconds, '{:.3f}')}",
        str(r.preemptions),
        _text(r.useful_token_ratio, "{:.0%}"),
    ]


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
