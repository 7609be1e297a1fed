"""`trimtab load`: replay a trace or a synthetic load against a server and say what users got."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer
from rich.console import Console

from trimtab.cli.load_options import (
    SLO_TPOT,
    SLO_TTFT,
    CancelOption,
    MaxOutputTokensOption,
    MaxPromptTokensOption,
    OutputOption,
    PromptOption,
    TraceOption,
)
from trimtab.errors import InputError, TrimtabError
from trimtab.load.client import Lengths
from trimtab.load.prompt import Unit
from trimtab.load.replay import ReplayOptions
from trimtab.load.session import Outcome, SessionOptions, run_session
from trimtab.load.shape import LoadShape, require_positive, require_share
from trimtab.load.summary import Slo


def _shape(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Load")


def _client(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Client", **more)


def _out(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Output")


UrlArgument = Annotated[
    str, typer.Argument(metavar="URL", help="Base URL of an OpenAI-compatible server: http://HOST:PORT.")
]
RateOption = Annotated[
    str | None,
    _shape("Requests per second, or steps 2@30,8@60,2 (rate @ seconds). Default 1; for a trace its own rate."),
]
DurationOption = Annotated[
    float | None, _shape("Seconds in which requests are sent. Default 60; for a trace all of it.")
]
SharedPrefixOption = Annotated[
    str | None, _shape("SHARE:GROUPS:TOKENS, such as 0.5:4:512: that share of prompts starts with one of the prefixes.")
]
MaxTokensRatioOption = Annotated[
    str, _shape("max_tokens / output length, LOW:HIGH; the server sees it with emulated lengths only.")
]
SeedOption = Annotated[int, _shape("Same seed, same arrivals, lengths and cancellations.")]
ModelOption = Annotated[str | None, _client("Model name. Default: the first of /v1/models.")]
NaturalLengthsOption = Annotated[
    Lengths, _client("forced: ignore_eos, min_tokens = max_tokens (any vLLM). emulated: for Trimtab's emulator.")
]
PromptUnitOption = Annotated[Unit, _client("One token is a word, or a char (byte-level tokenizers).")]
SaltOption = Annotated[
    str | None, _client("Makes prompt texts; equal salts find each other in prefix caches. Default: start time.")
]
PatienceOption = Annotated[
    float | None, _client("Seconds to wait for the first token before giving up. Default: --timeout.")
]
TimeoutOption = Annotated[float, _client("Seconds until a request counts as failed.")]
MaxInFlightOption = Annotated[int, _client("Requests beyond this are dropped and counted as not sent.")]
ClientsOption = Annotated[
    int | None,
    _client("So many clients, each sends its next request when its last one ended (closed loop); --rate is not used."),
]
KeepaliveOption = Annotated[float, _client("Share of requests (0-1) over kept connections; the others open their own.")]
DrainOption = Annotated[
    float | None, _client("Seconds to wait for open requests after the last was sent. Default: --timeout.")
]
ApiKeyOption = Annotated[str | None, _client("Sent as a bearer token.", envvar="TRIMTAB_API_KEY")]
SloTtftOption = Annotated[float | None, _out(SLO_TTFT)]
SloTpotOption = Annotated[float | None, _out(SLO_TPOT)]
RecordsOption = Annotated[str | None, _out("One JSON line per request, at its end: FILE, or - for stdout.")]
JsonFileOption = Annotated[str | None, _out("Summary as JSON: FILE, or - for stdout.", "--json")]
FailOnErrorsOption = Annotated[bool, _out("Exit with 1 if any request failed or was not sent.", "--fail-on-errors")]


def load(
    url: UrlArgument,
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
    seed: SeedOption = 0,
    model: ModelOption = None,
    natural_lengths: NaturalLengthsOption = "forced",
    prompt_unit: PromptUnitOption = "word",
    salt: SaltOption = None,
    patience: PatienceOption = None,
    timeout: TimeoutOption = 600.0,
    max_in_flight: MaxInFlightOption = 1024,
    clients: ClientsOption = None,
    keepalive: KeepaliveOption = 0.0,
    drain: DrainOption = None,
    api_key: ApiKeyOption = None,
    slo_ttft: SloTtftOption = None,
    slo_tpot: SloTpotOption = None,
    records: RecordsOption = None,
    json_file: JsonFileOption = None,
    fail_on_errors: FailOnErrorsOption = False,
) -> None:
    """Send requests on time, whatever the server does (open loop); report goodput, latencies and each request's end.

    Ctrl-C ends early with the summary. Exit code 0; 1 if no request reached the server; 2 for bad input.

    Example: trimtab load http://127.0.0.1:8000 --rate 4 --duration 60 --cancel 0.2 --slo-ttft 2 --slo-tpot 0.1
    """
    shape = LoadShape(
        trace=trace,
        rate=rate,
        duration_seconds=duration,
        lengths=(prompt, output),
        shared_prefix=shared_prefix,
        max_tokens_ratio=max_tokens_ratio,
        max_prompt_tokens=max_prompt_tokens,
        max_output_tokens=max_output_tokens,
        cancel_share=cancel,
        seed=seed,
    )
    options = SessionOptions(
        url=url,
        model=model,
        lengths=natural_lengths,
        prompt_unit=prompt_unit,
        salt=salt,
        timeout_seconds=timeout,
        patience_seconds=patience,
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        replay=ReplayOptions(max_in_flight, keepalive, timeout if drain is None else drain, seed, clients),
        slo=Slo(slo_ttft, slo_tpot),
        records=records,
        json_file=json_file,
    )
    raise typer.Exit(_execute(shape, options, fail_on_errors))


app = load


def _execute(shape: LoadShape, options: SessionOptions, fail_on_errors: bool) -> int:
    try:
        return exit_code(_run(shape, options), fail_on_errors)
    except TrimtabError as error:
        hint = "" if isinstance(error, InputError) else f". {error.hint}"
        Console(stderr=True).print(f"error: {error}{hint}", markup=False, highlight=False, soft_wrap=True)
        return 2 if isinstance(error, InputError) else 1


def exit_code(outcome: Outcome, fail_on_errors: bool) -> int:
    """1 if nothing reached the server (unless the user ended the run), or something failed and the user minds."""
    if outcome.reached == 0 and not outcome.interrupted:
        return 1
    summary = outcome.summary
    return int(fail_on_errors and summary is not None and summary.failed + summary.not_sent > 0)


def _run(shape: LoadShape, options: SessionOptions) -> Outcome:
    require_positive("--timeout", options.timeout_seconds)
    require_positive("--patience", options.patience_seconds)
    require_positive("--max-in-flight", options.replay.max_in_flight)
    require_positive("--clients", options.replay.clients)
    require_positive("--slo-ttft", options.slo.ttft_seconds)
    require_positive("--slo-tpot", options.slo.tpot_seconds)
    require_share("--keepalive", options.replay.keepalive_share)
    if not options.replay.drain_seconds >= 0:
        raise InputError("--drain", f"{options.replay.drain_seconds:g} is negative", "Give seconds.")
    url = options.url
    if not url.startswith(("http://", "https://")) or not url.partition("//")[2].strip("/"):
        raise InputError("URL", f"{url!r} is not an HTTP address", "Write http://HOST:PORT.")
    if options.records == "-" and options.json_file == "-":
        raise InputError("--json", "stdout already carries the records", "Give a file to one of --records and --json.")
    return asyncio.run(run_session(shape.requests(), options))
