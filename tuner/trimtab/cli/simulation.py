"""What the commands that simulate share: engine, step times and load, from a profile or from options."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

from trimtab.cli.console import errors
from trimtab.cli.load_options import (
    CancelOption,
    JsonOption,
    MaxOutputTokensOption,
    MaxPromptTokensOption,
    MaxTokensRatioOption,
    OutputOption,
    PatienceOption,
    PromptOption,
    RateOption,
    SeedOption,
    SharedPrefixOption,
    SloTpotOption,
    SloTtftOption,
    TraceOption,
)
from trimtab.errors import InputError
from trimtab.load.shape import LoadShape, require_positive, require_share
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.profile import Profile, load_profile
from trimtab.simulate.summary import Limits
from trimtab.simulate.workload import NEVER, Workload

#: settings that may be given, and their types; num_gpu_blocks has its own option
SETTINGS: Final = {f.name: f.type for f in fields(EngineConfig) if f.name != "num_gpu_blocks"}
_TRUTH: Final = {"true": True, "false": False}
#: of a profile's load, where --duration is not given
PROFILE_SECONDS: Final = 300.0

ProfileOption = Annotated[
    Path | None,
    typer.Option(
        "--profile", help="What `trimtab calibrate` wrote: engine, step times and load. --blocks, --set, --times, "
        "--trace and --rate go over it.",
    ),
]  # fmt: skip
BlocksOption = Annotated[
    int | None, typer.Option("--blocks", help="num_gpu_blocks as vLLM reports it; never a derived one.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting, or several values of it: max_num_seqs=64,128. May be given several times."),
]
TimesOption = Annotated[
    str | None,
    typer.Option("--times", help="Seconds of a step: fixed=0.012,per_prefill_token=3e-4,per_decode_seq=3.5e-4,..."),
]
DurationOption = Annotated[
    float | None, typer.Option(help="Seconds of load. Default: the whole trace, 300 of a profile's load, or 60.")
]


@dataclass(frozen=True)
class Source:
    """What is simulated. `engine`: without the settings of --set. `profile`: None where options said everything."""

    engine: EngineConfig
    times: StepTimes
    load: Workload
    profile: Profile | None
    #: the load is the profile's own, so that other seeds of it can be drawn
    drawn: bool


@dataclass(frozen=True)
class Asked:
    """The options that every command that simulates has. InputError names the option, or the profile's field."""

    profile: ProfileOption = None
    blocks: BlocksOption = None
    settings: SetOption = None
    times: TimesOption = None
    json_file: JsonOption = None
    rate: RateOption = None
    duration: DurationOption = None
    trace: TraceOption = None
    prompt: PromptOption = "256:0.6"
    output: OutputOption = "128:0.8"
    shared_prefix: SharedPrefixOption = None
    cancel: CancelOption = 0.0
    max_tokens_ratio: MaxTokensRatioOption = "1:1"
    max_prompt_tokens: MaxPromptTokensOption = None
    max_output_tokens: MaxOutputTokensOption = None
    patience: PatienceOption = None
    seed: SeedOption = 0
    slo_ttft: SloTtftOption = None
    slo_tpot: SloTpotOption = None

    def source(self) -> Source:
        require_positive("--patience", self.patience)
        require_share("--cancel", self.cancel)
        shape = LoadShape(
            self.trace, self.rate, self.duration, (self.prompt, self.output), self.shared_prefix, self.max_tokens_ratio,
            self.max_prompt_tokens, self.max_output_tokens, self.cancel, self.seed,
        )  # fmt: skip
        return _read_source(self.profile, self.blocks, self.times, shape, self.patience)

    def limits(self) -> Limits:
        return Limits(*(NEVER if limit is None else limit for limit in (self.slo_ttft, self.slo_tpot)))


def simulating(command: Callable[..., None]) -> Callable[..., None]:
    """The command for typer: its first argument, an `Asked`, becomes that class's options."""
    hints = get_type_hints(command, include_extras=True)
    own = [p.replace(annotation=hints[p.name]) for p in list(signature(command).parameters.values())[1:]]
    known = get_type_hints(Asked, include_extras=True)
    shared = [p.replace(annotation=known[p.name]) for p in signature(Asked).parameters.values()]

    @wraps(command)
    def run(**given: Any) -> None:
        with errors():
            command(Asked(**{p.name: given.pop(p.name) for p in shared}), **given)

    parameters = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in (*own, *shared)]
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _read_source(
    profile: Path | None, blocks: int | None, times: str | None, shape: LoadShape, patience: float | None
) -> Source:
    if profile is None and blocks is None:
        raise InputError("--blocks", "is missing", "Give the num_gpu_blocks that vLLM reports, or a --profile.")
    known = load_profile(profile) if profile is not None else None
    engine = known.engine if known is not None else EngineConfig(num_gpu_blocks=blocks or 0)
    if blocks is not None:
        engine = replace(engine, num_gpu_blocks=blocks)
    step_times = parse_times(times) if times else known.times if known is not None else StepTimes()
    if known is not None and shape.trace is None and shape.rate is None:
        load = known.load(shape.duration_seconds or PROFILE_SECONDS, shape.seed)
        return Source(engine, step_times, load, known, drawn=True)
    return Source(engine, step_times, Workload.from_requests(shape.requests(), patience_seconds=patience), known, False)


def configurations(base: EngineConfig, settings: Sequence[str]) -> list[EngineConfig]:
    """Every combination of the given values over `base`, each once. InputError names the setting."""
    axes = [parse_setting(text) for text in settings]
    if len({name for name, _ in axes}) < len(axes):
        raise InputError("--set", "a setting is given twice", "Give all its values at once: NAME=V,V.")
    names = [name for name, _ in axes]
    chosen: list[dict[str, Any]] = [
        dict(zip(names, values, strict=True)) for values in itertools.product(*(values for _, values in axes))
    ]
    return list(dict.fromkeys(replace(base, **values) for values in chosen))


def parse_setting(text: str) -> tuple[str, list[Any]]:
    """`max_num_seqs=64,128`, by the type of the setting."""
    name, equals, values = text.partition("=")
    name = name.strip().lstrip("-").replace("-", "_")
    if not equals or name not in SETTINGS:
        raise InputError("--set", f"{text!r} is no NAME=VALUE", f"NAME is one of {', '.join(SETTINGS)}.")
    return name, [_value(name, value.strip()) for value in values.split(",")]


def _value(name: str, text: str) -> Any:
    kind = str(SETTINGS[name])
    if text.lower() == "none" and "None" in kind:
        return None
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
