"""`trimtab calibrate`: a target's metrics or a request log in, a profile (load and step times) and its error out."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from trimtab.cli.console import errors, report_console
from trimtab.cli.simulation import parse_setting
from trimtab.errors import InputError
from trimtab.observe.prometheus import PrometheusSource
from trimtab.observe.samples import PodRef, Samples
from trimtab.simulate.calibrate.logs import read_log
from trimtab.simulate.calibrate.make import from_log, from_metrics
from trimtab.simulate.calibrate.texts import TARGET, read_texts
from trimtab.simulate.config import EngineConfig
from trimtab.simulate.fit import WEAK, Prior
from trimtab.simulate.profile import Profile, save_profile
from trimtab.simulate.roofline import gpu_named, roofline
from trimtab.text import whole_number

#: settings that decide most and that no metric shows: said when they are assumed
ASSUMED: Final = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
_LAST: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

PrometheusOption = Annotated[str | None, typer.Option(help="Base URL of a Prometheus HTTP API.")]
TargetOption = Annotated[
    str | None, typer.Option(help="The one engine: NAMESPACE/POD, or IP:PORT where the series have no pod label.")
]
TokenOption = Annotated[
    str | None, typer.Option(envvar="TRIMTAB_PROMETHEUS_TOKEN", help="Bearer token; better in the environment.")
]
LastOption = Annotated[str, typer.Option(help="Length of the range, such as 30m or 6h.")]
EndOption = Annotated[
    str | None, typer.Option(help="End of the range: unix seconds or ISO 8601 with a zone. Default: now.")
]
MetricsOption = Annotated[
    list[Path] | None,
    typer.Option("--metrics", help="A saved /metrics text, its time in its name: once per file, or one folder."),
]
LogOption = Annotated[
    Path | None, typer.Option(help="Request log (JSONL): of `trimtab load --records`, or with engine-side times.")
]
BlocksOption = Annotated[
    int | None, typer.Option(help="num_gpu_blocks, where the metrics do not show it: as vLLM logs it, never derived.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting that no metric shows: max_num_seqs=128. May come several times."),
]
GpuOption = Annotated[str | None, typer.Option(help="The GPU, for a roofline as prior: 'H100', 'L40S', ...")]
ModelOption = Annotated[Path | None, typer.Option(help="The model's Hugging Face config.json (needs --gpu).")]
TensorOption = Annotated[int, typer.Option(min=1, help="tensor_parallel_size, for the roofline.")]
QuantizationOption = Annotated[str | None, typer.Option(help="Of the weights, for the roofline: fp8, int8, int4, fp4.")]
OutputOption = Annotated[Path, typer.Option("--output", "-o", help="The profile's file.")]


def calibrate(
    output: OutputOption,
    prometheus: PrometheusOption = None,
    target: TargetOption = None,
    token: TokenOption = None,
    last: LastOption = "1h",
    end: EndOption = None,
    metrics: MetricsOption = None,
    log: LogOption = None,
    blocks: BlocksOption = None,
    settings: SetOption = None,
    gpu: GpuOption = None,
    model_config: ModelOption = None,
    tensor_parallel: TensorOption = 1,
    quantization: QuantizationOption = None,
) -> None:
    """Learn one engine's load and step times from what it shows; say how far predictions are off where it did not
    look.
    """
    with errors():
        if sum(source is not None for source in (prometheus, metrics or None, log)) != 1:
            fix = "Give one of --prometheus with --target, --metrics, --log."
            raise InputError("--prometheus", "there is no source, or more than one", fix)
        given = read_settings(settings or [], blocks)
        prior = read_prior(gpu, model_config, tensor_parallel, quantization)
        if log is not None:
            profile = from_log(read_log(log), given, prior)
        elif metrics:
            samples, start, until = read_texts(files_of(metrics))
            profile = from_metrics(samples, TARGET, start, until, given, prior)
        else:
            until = read_end(end, time.time())
            start = until - read_last(last)
            samples, name = fetch(prometheus or "", target, token, start, until)
            profile = from_metrics(samples, name, start, until, given, prior)
        save_profile(profile, output)
        report(report_console(to_stderr=False), profile, given, output)


app = calibrate


def read_settings(texts: Sequence[str], blocks: int | None) -> dict[str, Any]:
    """One value each; InputError names the setting."""
    given: dict[str, Any] = {} if blocks is None else {"num_gpu_blocks": blocks}
    for text in texts:
        name, values = parse_setting(text)
        if len(values) != 1 or name in given:
            raise InputError("--set", f"{name} has several values", "Give the one that the engine runs with.")
        given[name] = values[0]
    EngineConfig(**{"num_gpu_blocks": 2, **given})
    return given


def read_prior(gpu: str | None, model: Path | None, tensor_parallel: int, quantization: str | None) -> Prior:
    if gpu is None and model is None:
        return WEAK
    if gpu is None or model is None:
        raise InputError("--gpu", "--gpu and --model-config belong together", "Give both, or neither.")
    file = model / "config.json" if model.is_dir() else model
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        fix = "Name the model's Hugging Face config.json."
        raise InputError("--model-config", f"{file} cannot be read as JSON", fix) from error
    return roofline(config, gpu_named(gpu), tensor_parallel=tensor_parallel, quantization=quantization)


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Folders opened, hidden files left out."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
        else:
            found.append(path)
    return found


def read_last(text: str) -> float:
    number, unit = text[:-1], _LAST.get(text[-1:])
    try:
        seconds = float(number) * unit if unit else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise InputError("--last", f"{text!r} is no length of time", "Write 30m, 6h, 2d or a number of seconds.")
    return seconds


def read_end(text: str | None, now: float) -> float:
    if text is None:
        return now
    for read in (float, _unix):
        with suppress(ValueError):
            return read(text)
    raise InputError("--end", f"{text!r} is no time", "Write unix seconds, or 2026-11-30T12:00:00+00:00.")


def _unix(text: str) -> float:
    """ValueError for what is no time, or one without its zone."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("no time zone")
    return at.timestamp()


def fetch(url: str, target: str | None, token: str | None, start: float, end: float) -> tuple[Samples, str]:
    """The target's samples, and its name in them."""
    pod = pod_of(target)
    with closing(PrometheusSource(url, bearer_token=token, timeout_seconds=30.0)) as source:
        return source.fetch([pod], start, end, 1.0), pod.name


def pod_of(target: str | None) -> PodRef:
    fix = "Write --target NAMESPACE/POD, or --target IP:PORT."
    if not target:
        raise InputError("--target", "is missing", fix)
    namespace, slash, name = target.partition("/")
    if slash and namespace and name:
        return PodRef(name, namespace, None, 8000)
    ip, colon, port = target.rpartition(":")
    if not colon or not ip or (number := whole_number(port)) is None:
        raise InputError("--target", f"{target!r} names no target", fix)
    # without a pod label it is found by instance
    return PodRef(target, "", ip, number)


def report(console: Console, profile: Profile, given: Mapping[str, Any], output: Path) -> None:
    console.print(f"{profile.source}.")
    assumed = [f"{name}={getattr(profile.engine, name)}" for name in ASSUMED if name not in given]
    if assumed:
        console.print(f"Assumed, because no metric shows it and --set did not: {', '.join(assumed)}.")
    times = Table(title="Step times", title_justify="left")
    for heading in ("coefficient", "seconds", "standard error"):
        times.add_column(heading, justify="left" if heading == "coefficient" else "right")
    for field in fields(profile.times):
        error = profile.times_stderr.get(field.name)
        if error is not None:
            times.add_row(field.name, f"{getattr(profile.times, field.name):.3g}", f"{error:.2g}")
    console.print(times)
    if profile.api_seconds:
        console.print(
            f"Beside the engine, per request: {profile.api_seconds:.3g} s (network, tokenisation, API server)."
        )
    held = Table(title="Held out: not fitted, only predicted", title_justify="left")
    for heading in ("figure", "measured", "predicted", "error"):
        held.add_column(heading, justify="left" if heading == "figure" else "right")
    for name, pair in profile.heldout.items():
        held.add_row(name, f"{pair.measured:.4g}", f"{pair.predicted:.4g}", f"{pair.error:+.1%}")
    console.print(held)
    console.print(f"Profile written to {output}.")
