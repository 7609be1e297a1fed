"""`trimtab tune -- vllm serve MODEL ...`: tune an engine on this machine as the operator does it on Kubernetes.

What reads the options (pydantic) and runs it (Optuna, aiohttp, SciPy) takes seconds to load, which --help does not.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.console import errors, report_console
from trimtab.cli.load_options import SLO_TPOT, SLO_TTFT
from trimtab.errors import InputError

if TYPE_CHECKING:
    from trimtab.simulate.profile import Profile
    from trimtab.tune.dry_run import DryRun
    from trimtab.tune.session import SessionOptions

#: exit code after Ctrl-C, as shells have it
INTERRUPTED = 130
DEFAULT_STATE = Path(".trimtab") / "tune.json"
DEMO_STATE = Path(".trimtab") / "demo.json"


class PrefixCaching(StrEnum):
    TUNE = "tune"
    KEEP = "keep"


def _trial(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Trials")


def _target(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Target")


def _out(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Output")


CommandArgument = Annotated[
    list[str] | None, typer.Argument(metavar="-- COMMAND", help="vllm serve MODEL --flags... (or trimtab emulate ...).")
]
DemoOption = Annotated[bool, _target("Tune a badly set emulator under a built-in load; about five minutes.", "--demo")]
ReplicasOption = Annotated[
    int,
    _target("Processes of the command, one of them the canary; with 1 the settings take turns."),
]
ListenOption = Annotated[str, _target("Where clients connect: HOST:PORT, port 0 for a free one.")]
LoadOption = Annotated[
    str | None, _target("Send a load, too: options of `trimtab load` in one text, such as '--rate 4 --cancel 0.1'.")
]
DrainOption = Annotated[float, _target("Seconds to wait for open connections before a replica is restarted.")]
SpecOption = Annotated[Path | None, _trial("A VLLMTuner in YAML or JSON; options here go over it.")]
MaxTrialsOption = Annotated[int | None, _trial("Trials at most.")]
WarmupOption = Annotated[float | None, _trial("Seconds before a canary is measured.")]
MeasureOption = Annotated[float | None, _trial("Seconds of the paired measurement.")]
ConfirmOption = Annotated[float | None, _trial("Seconds in which a Better must be seen again; 0: none.")]
VerifyOption = Annotated[float | None, _trial("Seconds for which guardrails watch after a promotion.")]
SloTtftOption = Annotated[float | None, _trial(SLO_TTFT)]
SloTpotOption = Annotated[float | None, _trial(SLO_TPOT)]
SearchOption = Annotated[list[str] | None, _trial("A setting's range: max_num_seqs=8:256. May be given several times.")]
PrefixCachingOption = Annotated[PrefixCaching | None, _trial("Whether prefix caching may be switched.")]
CandidateOption = Annotated[
    list[str] | None, _trial("Try this first: max_num_seqs=32,enable_prefix_caching=true. May be given several times.")
]
ProfileOption = Annotated[
    Path | None,
    _trial(
        "What `trimtab calibrate` wrote of this command: candidates are simulated first, those that cannot win are not "
        "tried, the most promising are tried first.", "--profile",
    ),
]  # fmt: skip
ScreenOption = Annotated[
    bool,
    _trial("Without --profile: make one from the baseline's own metrics where they suffice.", "--screen/--no-screen"),
]
SimulateOption = Annotated[
    Path | None,
    _target(
        "A dry run in seconds: engines are simulated by this profile (of `trimtab calibrate`), nothing is started.",
        "--simulate",
    ),
]  # fmt: skip
StartSecondsOption = Annotated[float, _target("With --simulate: seconds from a start of the engine to ready.")]
SeedOption = Annotated[int | None, _trial("Of the sampler, the front door and the load.")]
StateOption = Annotated[Path | None, _out("State file; a run that was killed goes on from it. Logs lie beside it.")]
JsonOption = Annotated[str | None, _out("Result as JSON: FILE, or - for stdout.", "--json")]
ReportOption = Annotated[Path | None, _out("HTML report. Default: beside the state file.")]


def tune(
    command: CommandArgument = None,
    demo_: DemoOption = False,
    replicas: ReplicasOption = 2,
    listen: ListenOption = "127.0.0.1:0",
    load: LoadOption = None,
    drain: DrainOption = 60.0,
    spec: SpecOption = None,
    max_trials: MaxTrialsOption = None,
    warmup: WarmupOption = None,
    measure: MeasureOption = None,
    confirm: ConfirmOption = None,
    verify: VerifyOption = None,
    slo_ttft: SloTtftOption = None,
    slo_tpot: SloTpotOption = None,
    search: SearchOption = None,
    prefix_caching: PrefixCachingOption = None,
    candidate: CandidateOption = None,
    profile: ProfileOption = None,
    screen: ScreenOption = True,
    simulate: SimulateOption = None,
    start_seconds: StartSecondsOption = 60.0,
    seed: SeedOption = None,
    state: StateOption = None,
    json_file: JsonOption = None,
    report: ReportOption = None,
) -> None:
    """Start copies of a vLLM command behind one address, try settings on one of them at a time, keep what is better.

    Each trial restarts one process with other flags (the canary) and measures it beside the others over the same
    minutes. Better ones are confirmed and rolled out, all others rolled back. With one replica baseline, candidate and
    baseline are measured one after the other. Ctrl-C ends everything that was started.

    Example: trimtab tune --listen 127.0.0.1:8000 --slo-ttft 2.5 -- vllm serve Qwen/Qwen3-0.6B --max-num-seqs 256
    """
    from trimtab.tune import demo
    from trimtab.tune.options import LOCAL, TuneOptions, build_spec, parse_listen, require_seconds

    words = TuneOptions(
        spec, max_trials, warmup, measure, confirm, verify, slo_ttft, slo_tpot, search or (),
        prefix_caching.value if prefix_caching is not None else None, candidate or (), seed,
    )  # fmt: skip
    with errors():
        if demo_ and command:
            raise InputError("--demo", "brings its own command", "Leave out one of them.")
        if replicas < 1:
            raise InputError("--replicas", f"{replicas} is no engine", "Use 1 or more.")
        require_seconds("--drain", drain)
        if simulate is not None:
            if demo_ or load is not None:
                raise InputError("--simulate", "simulates the profile's load", "Leave out --demo and --load.")
            require_seconds("--start-seconds", start_seconds)
            from trimtab.tune.dry_run import DryRun  # with numba behind it

            run = DryRun(
                _read_profile(simulate), build_spec(words, LOCAL, replicas), command or [], _profile(profile),
                replicas, start_seconds, seed or 0, screen,
            )  # fmt: skip
            raise typer.Exit(_simulate(run, json_file, report))
        from trimtab.tune.session import SessionOptions

        options = SessionOptions(
            command=demo.command() if demo_ else command or [],
            spec=build_spec(words, demo.spec_dict("demo") if demo_ else LOCAL, replicas),
            state=state or (DEMO_STATE if demo_ else DEFAULT_STATE),
            replicas=replicas,
            listen=parse_listen(listen),
            load=_load_args(load, replicas, demo_, seed or 0),
            environ=demo.engine_env() if demo_ else None,
            drain_seconds=drain,
            seed=seed or 0,
            profile=_profile(profile),
            calibrate=screen,
        )
        raise typer.Exit(_run(options, json_file, report or options.state.with_suffix(".html"), control=demo_))


app = tune


def _profile(path: Path | None) -> Profile | None:
    return None if path is None else _read_profile(path)


def _read_profile(path: Path) -> Profile:
    from trimtab.simulate.profile import load_profile  # with numba behind it, which others need not wait for

    return load_profile(path)


def _load_args(text: str | None, replicas: int, with_demo: bool, seed: int) -> list[str] | None:
    try:
        given = shlex.split(text) if text is not None else None
    except ValueError as error:
        raise InputError("--load", f"{text!r} is not readable ({error})", "Close the quotes.") from None
    if with_demo:
        from trimtab.tune import demo

        return [*demo.load_args(replicas, 1800, seed=seed), *(given or ())]
    return given


def _simulate(run: DryRun, json_file: str | None, report: Path | None) -> int:
    from trimtab.load.session import open_output
    from trimtab.report.html import write_report
    from trimtab.tune.dry_run import dry_run

    console = report_console(to_stderr=json_file == "-")
    with open_output(json_file, "--json") as out:
        done = asyncio.run(dry_run(run, console))
        if out is not None:
            out.write(json.dumps(done.result, indent=1) + "\n")
    if report is not None:
        write_report(done.result, report)
    return 0


def _run(options: SessionOptions, json_file: str | None, report: Path, *, control: bool) -> int:
    """control: the demo's, whose grid is known."""
    from trimtab.load.session import open_output
    from trimtab.report.html import write_report
    from trimtab.tune.argv import configuration_of
    from trimtab.tune.guard import log_to_file
    from trimtab.tune.session import run_session

    console = report_console(to_stderr=json_file == "-")
    with open_output(json_file, "--json") as out:
        log_to_file(options.folder)
        done = asyncio.run(run_session(options, console))
        if control and done.state.done:
            from trimtab.tune.demo_control import demo_control  # with numba behind it

            tried = sum(t.verdict is not None for t in done.state.trials)
            line = demo_control(configuration_of(done.state.template), tried)
            done.result["control"] = line
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        if out is not None:
            out.write(json.dumps(done.result, indent=1) + "\n")
    if done.state.trials or done.state.done:
        write_report(done.result, report)
        console.print(f"Report: {report}", markup=False, highlight=False, soft_wrap=True)
    return INTERRUPTED if done.interrupted else 0
