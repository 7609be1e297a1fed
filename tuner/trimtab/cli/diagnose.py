"""`trimtab diagnose SOURCE`: what holds a target back, from a report, a /metrics page or a Prometheus; changes nothing.

stdout holds the findings and nothing else. Exit codes: 0 told; 1 the metrics cannot be read; 2 bad input.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from trimtab.cli.console import errors
from trimtab.cli.diagnose_sources import Known, Pages, from_prometheus, from_samples
from trimtab.cli.files import STDIN, read_files
from trimtab.diagnose.arguments import engine_of
from trimtab.diagnose.case import Case
from trimtab.diagnose.facts import Facts
from trimtab.diagnose.finding import Limits
from trimtab.diagnose.render import as_json, as_text
from trimtab.diagnose.report_file import case_of, parse_json
from trimtab.diagnose.rules import examine
from trimtab.errors import InputError
from trimtab.load.shape import require_positive
from trimtab.observe.prometheus import PrometheusSource


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


SourceArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="SOURCE...", show_default=False,
                   help="A report in JSON, - for stdin, or URLs of /metrics pages, one for each pod."),
]  # fmt: skip
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="text for people, json for programs.")]
PrometheusOption = Annotated[str | None, typer.Option(metavar="URL", help="Base URL of a Prometheus API.")]
SelectorOption = Annotated[
    str | None, typer.Option(help='Label matchers of the target there: \'namespace="prod",pod=~"llm-.*"\'.')
]
TokenOption = Annotated[
    str | None, typer.Option(envvar="TRIMTAB_PROMETHEUS_TOKEN", help="Bearer token for Prometheus.", show_envvar=True)
]
MinutesOption = Annotated[float, typer.Option(help="How far back to look in Prometheus.")]
SecondsOption = Annotated[float, typer.Option(help="How long to sample /metrics pages. Hangs need 60 or more.")]
EveryOption = Annotated[float, typer.Option(help="Seconds between two samples.")]
ArgsOption = Annotated[str | None, typer.Option("--args", help="The engine's command line; much hangs on its limits.")]
EngineOption = Annotated[str | None, typer.Option(help="vllm, sglang, tgi, tensorrt-llm.")]
VersionOption = Annotated[str | None, typer.Option("--engine-version", help="Such as 0.11.0: defaults depend on it.")]
HardwareOption = Annotated[str | None, typer.Option(help="Such as '1x A100 80GB': defaults depend on it.")]
FactOption = Annotated[
    list[str] | None, typer.Option("--fact", help="Anything known besides. May be given several times.")
]
TtftOption = Annotated[float | None, typer.Option(help="TTFT limit in seconds.")]
TpotOption = Annotated[float | None, typer.Option(help="TPOT limit in seconds.")]


def diagnose(
    source: SourceArgument = None,
    output: OutputOption = Output.TEXT,
    prometheus: PrometheusOption = None,
    selector: SelectorOption = None,
    token: TokenOption = None,
    minutes: MinutesOption = 15.0,
    seconds: SecondsOption = 30.0,
    every: EveryOption = 2.5,
    args: ArgsOption = None,
    engine: EngineOption = None,
    engine_version: VersionOption = None,
    hardware: HardwareOption = None,
    fact: FactOption = None,
    slo_ttft: TtftOption = None,
    slo_tpot: TpotOption = None,
) -> None:
    """Tell what holds an engine back: one cause, its evidence, what to do, what to leave alone. Nothing is changed."""
    with errors():
        for name, value in (("--minutes", minutes), ("--seconds", seconds), ("--every", every),
                            ("--slo-ttft", slo_ttft), ("--slo-tpot", slo_tpot)):  # fmt: skip
            require_positive(name, value)
        sources = source or []
        limits = Limits(slo_ttft, slo_tpot)
        said = {"engine": _engine(engine, engine_version), "args": args, "hardware": hardware, "facts": fact or []}
        if prometheus is not None:
            if sources:
                raise InputError("--prometheus", "goes without SOURCE", "Leave one of them out.")
            case = _from_prometheus(prometheus, selector, token, minutes * 60, _known(said, limits))
        elif not sources:
            raise InputError("SOURCE", "is missing", "Name a report, - for stdin, a /metrics URL, or use --prometheus.")
        elif all(_is_url(s) for s in sources):
            case = _from_pages(sources, seconds, every, said, limits)
        else:
            case = _from_file(sources, said, limits)
        findings = examine(case)
        text = json.dumps(as_json(case, findings), indent=1) if output is Output.JSON else as_text(case, findings)
        typer.echo(text)


app = diagnose


def _is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def _engine(name: str | None, version: str | None) -> dict[str, str] | None:
    if name is None and version is None:
        return None
    return {"name": name or "vllm", **({"version": version} if version else {})}


def _known(said: Mapping[str, Any], limits: Limits) -> Known:
    engine = said["engine"] or {}
    facts = Facts(tuple(said["facts"]))
    found = engine_of(engine.get("name", "vllm"), engine.get("version"), said["args"], said["hardware"] or "")
    asked = Limits(limits.ttft_seconds or facts.slo_seconds("ttft"), limits.tpot_seconds or facts.slo_seconds("tpot"))
    return Known(found, asked, facts)


def _from_file(sources: Sequence[str], said: Mapping[str, Any], limits: Limits) -> Case:
    if len(sources) > 1:
        raise InputError("SOURCE", "is more than one report", "Give one report, or only URLs of /metrics pages.")
    (file,) = read_files(sources, "SOURCE")
    try:
        report = dict(parse_json(file.text))
    except InputError as error:
        shown = "stdin" if file.name == STDIN else file.name
        raise InputError(shown if error.field == "report" else error.field, error.problem, error.fix) from None
    for name in ("engine", "args", "hardware"):
        if said[name] is not None:
            report[name] = said[name]
    if said["facts"]:
        own = report.get("facts") or []
        report["facts"] = [*([own] if isinstance(own, str) else own), *said["facts"]]
    return case_of(report, limits)


def _from_pages(urls: Sequence[str], seconds: float, every: float, said: Mapping[str, Any], limits: Limits) -> Case:
    pages = Pages(urls)
    begin, end = pages.sample(seconds, every)
    if pages.other_engine is not None:
        name = said["engine"] or pages.other_engine
        return case_of({**said, "engine": name, "observations": pages.rows}, limits)
    return from_samples(pages.samples(begin, end), list(urls), begin, end, _known(said, limits))


def _from_prometheus(url: str, selector: str | None, token: str | None, seconds: float, known: Known) -> Case:
    if not _is_url(url):
        raise InputError("--prometheus", f"{url!r} is no URL", "Give http://HOST:PORT.")
    source = PrometheusSource(url, bearer_token=token)
    try:
        return from_prometheus(source, selector or "", seconds, time.time(), known)
    finally:
        source.close()
