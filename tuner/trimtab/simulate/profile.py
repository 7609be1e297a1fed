"""`Profile`: what calibration learned of one target, as a JSON file. The engine, its step times, its load.

Hazard: `num_gpu_blocks` is what the engine reports (cache_config_info); nothing here derives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from trimtab.errors import InputError
from trimtab.simulate.config import EngineConfig, StepTimes
from trimtab.simulate.lengths import Lengths
from trimtab.simulate.state import F64, I32
from trimtab.simulate.workload import Workload

SETTINGS: Final = tuple(f.name for f in fields(EngineConfig))
COEFFICIENTS: Final = tuple(f.name for f in fields(StepTimes))
_FIX: Final = "Make the profile with `trimtab calibrate`, or correct the field."
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _named_only(value: Any) -> Any:
    """A coefficient that a profile does not name is 0, not StepTimes' made-up default."""
    return {**dict.fromkeys(COEFFICIENTS, 0), **value} if isinstance(value, Mapping) else value


Times = Annotated[StepTimes, BeforeValidator(_named_only)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SharedPrefix(_Part):
    """A share of the prompts begins with one of `groups` texts of `tokens` tokens (within the prompt's length)."""

    share: Share
    tokens: Annotated[int, Field(ge=1)]
    groups: Annotated[int, Field(ge=1)] = 1


class Trace(_Part):
    """Requests as they came, one column per property. `cancel_after_tokens` 0: never; `prefix_group` -1: none."""

    arrival_seconds: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...]
    prompt_tokens: tuple[Annotated[int, Field(ge=1)], ...]
    output_tokens: tuple[Annotated[int, Field(ge=1)], ...]
    max_tokens: tuple[Annotated[int, Field(ge=1)], ...] = ()
    cancel_after_tokens: tuple[Annotated[int, Field(ge=0)], ...] = ()
    prefix_group: tuple[int, ...] = ()
    prefix_tokens: tuple[Annotated[int, Field(ge=0)], ...] = ()

    @model_validator(mode="after")
    def _even(self) -> Self:
        n = len(self.arrival_seconds)
        for name, values in self:
            wanted = name in ("arrival_seconds", "prompt_tokens", "output_tokens")
            if len(values) != n and (wanted or values):
                raise ValueError(f"{name} has {len(values)} values for {n} requests")
        if n == 0:
            raise ValueError("there is no request")
        if not all(a <= b for a, b in pairwise(self.arrival_seconds)):
            raise ValueError("arrival_seconds must ascend")
        return self


class LoadModel(_Part):
    """The load. `burst`: gaps of a gamma distribution with this coefficient of variation (1 is Poisson).

    `output_tokens` are as served. `capped_share` of the requests end at max_tokens; the others' max_tokens are drawn
    from `max_tokens` (None: as the output) and are at least one above it. `cancel_share` leave after a uniformly random
    token.
    """

    requests_per_second: Positive
    arrivals: Literal["poisson", "burst", "trace"] = "poisson"
    burst_variation: Positive = 1.0
    prompt_tokens: Lengths
    output_tokens: Lengths
    max_tokens: Lengths | None = None
    capped_share: Share = 0.0
    shared_prefix: SharedPrefix | None = None
    cancel_share: Share = 0.0
    patience_seconds: Positive | None = None
    trace: Trace | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.arrivals == "trace") != (self.trace is not None):
            raise ValueError("arrivals trace and a trace belong together")
        return self


class HeldOut(_Part):
    """One figure of the part that was not fitted."""

    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative; inf where nothing was measured but something predicted."""
        if self.measured == 0:
            return 0.0 if self.predicted == 0 else float("inf")
        return self.predicted / self.measured - 1


class Profile(_Part):
    """`times_stderr`: standard error of each coefficient that was fitted, in its unit. `times_draws`: other coefficient
    sets that fit, for intervals: standard errors alone ignore that one coefficient's excess is another's lack.
    `api_seconds`: beside the engine, in each request's first token (network, tokenisation, API server); a simulation
    leaves it out. `heldout`: by figure (ttft_mean_seconds, ...). `source`: of what it was made, for people.
    """

    version: Literal[1] = 1
    engine: EngineConfig
    times: Times
    times_stderr: dict[str, float | None] = {}
    times_draws: tuple[Times, ...] = ()
    api_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    workload: LoadModel
    heldout: dict[str, HeldOut] = {}
    source: str = ""

    def config(self, **changes: Any) -> EngineConfig:
        """The target's settings with some of them changed; InputError for a name that is none."""
        for name in changes:
            if name not in SETTINGS:
                raise InputError(name, "is no setting of the model", f"Use {', '.join(SETTINGS)}.")
        return replace(self.engine, **changes)

    def draw(self, rng: np.random.Generator) -> StepTimes:
        """Step times that fit about as well; the fitted ones where calibration gave no draws."""
        return self.times_draws[int(rng.integers(len(self.times_draws)))] if self.times_draws else self.times

    def load(self, seconds: float, seed: int = 0, *, scale: float = 1.0) -> Workload:
        """Requests that arrive within `seconds`, the same for the same seed. `scale` multiplies the rate.

        A trace is played as it is (faster by `scale`), again and again until the time is over, whatever the seed.
        InputError when nothing arrives.
        """
        if not (0 < seconds < float("inf") and 0 < scale < float("inf")):
            raise InputError("seconds", f"{seconds:g} at scale {scale:g} is no time", "Give numbers above 0.")
        model = self.workload
        load = _replayed(model, seconds, scale) if model.trace else _drawn(model, seconds, seed, scale)
        if not len(load):
            rate = model.requests_per_second * scale
            raise InputError("seconds", f"no request arrives within {seconds:g} s at {rate:g}/s", "Give more seconds.")
        return load


def load_profile(path: str | Path) -> Profile:
    """InputError names the file and the field."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError("--profile", f"{path} cannot be read ({error.strerror})", "Name a profile's file.") from error
    except UnicodeDecodeError as error:
        raise InputError("--profile", f"{path} is no text", "Name a profile's file.") from error
    return parse_profile(text, str(path))


def parse_profile(text: str, source: str) -> Profile:
    """InputError names `source` and the field."""
    try:
        return Profile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "JSON"
        raise InputError(f"{source}: {place}", first["msg"], _FIX) from error
    except InputError as error:
        raise InputError(f"{source}: {error.field}", error.problem, error.fix) from error


def save_profile(profile: Profile, path: str | Path) -> None:
    try:
        Path(path).write_text(profile.model_dump_json(indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        problem = f"{path} cannot be written ({error.strerror})"
        raise InputError("--output", problem, "Name a file in a folder that can be written.") from error


def _drawn(model: LoadModel, seconds: float, seed: int, scale: float) -> Workload:
    rng = np.random.default_rng([seed, 0])
    return requests_at(
        model, _arrivals(rng, model.requests_per_second * scale, model.burst_variation**2, seconds), seed
    )


def requests_at(model: LoadModel, arrival: F64, seed: int, *, stratified: bool = False) -> Workload:
    """Requests with the model's properties at these times.

    Each property has its own stream: changing one leaves the others as they were. `stratified`: the properties'
    distributions are met exactly, in random order, where a measured sample is to be repeated.
    """
    n = len(arrival)

    def uniform(stream: int) -> F64:
        rng = np.random.default_rng([seed, stream])
        return (rng.permutation(n) + 0.5) / n if stratified else rng.random(n)

    prompt, output = model.prompt_tokens.draw(uniform(1)), model.output_tokens.draw(uniform(2))
    prefix = model.shared_prefix
    shared = uniform(5) < (prefix.share if prefix else 0.0)
    group = (uniform(6) * (prefix.groups if prefix else 1)).astype(np.int32)
    leaves = (uniform(4) < model.cancel_share) & (output > 1)
    cancel = np.where(leaves, 1 + (uniform(7) * (output - 1)).astype(np.int32), 0)
    return Workload.of(
        arrival,
        prompt,
        output,
        max_tokens=_limits(model, output, uniform(3), uniform(8)),
        cancel_tokens=cancel.astype(np.int32),
        patience=None if model.patience_seconds is None else np.full(n, model.patience_seconds),
        chunks=[(int(g),) if s else () for g, s in zip(group, shared, strict=True)],
        chunk_tokens=np.full(n, prefix.tokens if prefix else 1, np.int32),
    )


def _arrivals(rng: np.random.Generator, rate: float, squared_variation: float, seconds: float) -> F64:
    """A renewal process with gamma gaps; exponential gaps at a variation of 1."""
    found, at = [], 0.0
    while at < seconds:
        many = int(rate * (seconds - at) * 1.1) + 16
        times = at + np.cumsum(rng.gamma(1 / squared_variation, squared_variation / rate, many))
        found.append(times)
        at = float(times[-1])
    every = np.concatenate(found)
    return every[every < seconds]


def _limits(model: LoadModel, output: I32, which: F64, where: F64) -> I32:
    if model.max_tokens is None:
        return output
    free = np.maximum(model.max_tokens.draw(where), output + 1)
    return np.where(which < model.capped_share, output, free).astype(np.int32)


def _replayed(model: LoadModel, seconds: float, scale: float) -> Workload:
    trace = model.trace
    assert trace is not None
    n = len(trace.arrival_seconds)
    at = np.array(trace.arrival_seconds) / scale
    # the next round begins one mean gap after the last arrival
    period = float(at[-1]) + (float(at[-1] - at[0]) / (n - 1) if n > 1 else 1 / (model.requests_per_second * scale))
    rounds = int(np.ceil(seconds / period)) if period > 0 else 1
    every = (at[None, :] + period * np.arange(rounds)[:, None]).reshape(-1)
    kept = int(np.searchsorted(every, seconds))
    which = np.arange(kept) % n

    def column(values: tuple[int, ...], default: int) -> I32:
        return np.asarray(values, np.int32)[which] if values else np.full(kept, default, np.int32)

    prefix, group = column(trace.prefix_tokens, 0), column(trace.prefix_group, -1)
    output = column(trace.output_tokens, 1)
    return Workload.of(
        every[:kept],
        column(trace.prompt_tokens, 1),
        output,
        max_tokens=column(trace.max_tokens, 1) if trace.max_tokens else output,
        cancel_tokens=column(trace.cancel_after_tokens, 0),
        patience=None if model.patience_seconds is None else np.full(kept, model.patience_seconds),
        chunks=[(int(g),) if g >= 0 and p > 0 else () for g, p in zip(group, prefix, strict=True)],
        chunk_tokens=np.maximum(1, prefix),
    )
