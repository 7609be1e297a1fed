"""`TunerSpec`: the spec of a VLLMTuner as a checked model. The CRD in crds/ is its twin; a test keeps defaults and
limits equal.
"""

from __future__ import annotations

from datetime import datetime, time
from typing import Annotated, Any, Final, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from trimtab.engine.constraints import check_configuration
from trimtab.engine.settings import Configuration
from trimtab.errors import InputError, SpecError
from trimtab.judge.objective import POD_VARIATION_PERCENT, SCORE_LATENCY_WEIGHT, START_VARIATION_PERCENT
from trimtab.plan.fields import IntegerRange, SpecModel
from trimtab.plan.token_policy import TokenPolicy

Seconds = Annotated[float, Field(gt=0, le=86_400)]
#: a name of a Kubernetes object
NAME: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
Weekday = Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]


class TargetRef(SpecModel):
    """The workload that is tuned; immutable. `container` is needed only where more than one container runs vLLM."""

    api_version: Literal["apps/v1"] = "apps/v1"
    kind: Literal["Deployment"] = "Deployment"
    name: str = Field(min_length=1, max_length=253)
    container: str | None = None


class SecretKeyRef(SpecModel):
    name: str
    key: str


class Prometheus(SpecModel):
    """A Prometheus HTTP API. Pods are found by the labels `pod` and `namespace`, else by `instance` = podIP:port."""

    url: str = Field(pattern=r"^https?://\S+$")
    bearer_token_secret_ref: SecretKeyRef | None = None
    ca_config_map_ref: SecretKeyRef | None = None
    timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 10.0


class DirectScrape(SpecModel):
    """Scrape the pods' own /metrics; samples live in the operator's memory, so a restart begins a measurement anew."""

    interval_seconds: Annotated[float, Field(ge=1, le=60)] = 5.0
    timeout_seconds: Annotated[float, Field(gt=0, le=30)] = 5.0


class Metrics(SpecModel):
    """Exactly one source."""

    prometheus: Prometheus | None = None
    direct: DirectScrape | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.prometheus is None) == (self.direct is None):
            raise ValueError("set exactly one of prometheus and direct")
        return self


class Slo(SpecModel):
    """Limits a request must meet to count as good. Without any, every finished request counts."""

    ttft_seconds: Seconds | None = None
    tpot_seconds: Seconds | None = None


class Weights(SpecModel):
    """What a lower mean latency is worth in the search's score, beside goodput: a log ratio times its weight."""

    ttft: Annotated[float, Field(ge=0, le=10)] = SCORE_LATENCY_WEIGHT
    tpot: Annotated[float, Field(ge=0, le=10)] = SCORE_LATENCY_WEIGHT


class HardLimits(SpecModel):
    """What the canary must not do, whatever it gains and whatever the control does. Absent: no limit."""

    ttft_p99_seconds: Seconds | None = None
    error_percent: Annotated[float, Field(ge=0, le=100)] | None = None
    #: of finished requests, those that ended at their token limit
    truncated_percent: Annotated[float, Field(ge=0, le=100)] | None = None


class Variation(SpecModel):
    """How far pods with equal settings lie apart, in percent of speed (standard deviation), where it was not measured:
    one start and the next of one pod, and one pod and another for good."""

    start_percent: Annotated[float, Field(ge=0, le=100)] = START_VARIATION_PERCENT
    pod_percent: Annotated[float, Field(ge=0, le=100)] = POD_VARIATION_PERCENT


class Objective(SpecModel):
    """goodput: useful tokens/s per pod of requests that met the SLO."""

    slo: Slo = Slo()
    weights: Weights = Weights()
    limits: HardLimits = HardLimits()
    variation: Variation = Variation()
    #: a gain below this is not worth a rollout
    min_gain_percent: Annotated[float, Field(ge=0, le=100)] = 3.0
    #: p99 of TTFT and TPOT may be worse than control by at most this
    max_latency_regression_percent: Annotated[float, Field(ge=0, le=1000)] = 10.0


class Search(SpecModel):
    """What may be tried. An absent range means: leave that setting alone."""

    max_num_seqs: IntegerRange | None = IntegerRange(min=4, max=512)
    max_num_batched_tokens: IntegerRange | None = None
    prefix_caching: Literal["Tune", "Keep"] = "Tune"
    #: configurations to try first, in this order
    candidates: tuple[dict[str, Any], ...] = Field(default=(), max_length=20)
    max_trials: Annotated[int, Field(ge=1, le=200)] = 20
    #: stop after so many finished trials in a row without a promotion
    patience: Annotated[int, Field(ge=1, le=200)] = 8
    seed: int = 0
    #: Model weighs noise and cost and ends the search by itself; the others are its controls, without an end by gain
    sampler: Literal["Model", "TPE", "GP", "CMA-ES", "Random", "Grid"] = "Model"
    #: a gain must pay for its trial within so many hours
    horizon_hours: Annotated[float, Field(gt=0, le=8760)] = 72.0
    #: a search that has ended begins anew when rate, lengths or aborts of the load have changed by more than this
    drift_percent: Annotated[float, Field(ge=10, le=10_000)] = 50.0
    #: a profile of the target (`trimtab calibrate`): candidates are simulated before one is tried
    profile_config_map_ref: SecretKeyRef | None = None
    #: Baseline: without such a profile, one is calibrated from the target's own metrics before the first trial
    calibration: Literal["None", "Baseline"] = "None"

    @field_validator("candidates")
    @classmethod
    def _known(cls, value: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        for candidate in value:
            try:
                check_configuration(Configuration.from_camel(candidate))
            except InputError as error:
                raise ValueError(str(error)) from error
            if not candidate:
                raise ValueError("an empty candidate changes nothing; name at least one setting")
        return value


class Window(SpecModel):
    """When trials may start, in a named time zone. `start` after `end` means overnight."""

    days: tuple[Weekday, ...] = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    start: str = Field(default="00:00", pattern=r"^([01]\d|2[0-3]):[0-5]\d$")
    end: str = Field(default="23:59", pattern=r"^([01]\d|2[0-3]):[0-5]\d$")
    time_zone: str = "UTC"

    @field_validator("time_zone")
    @classmethod
    def _zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # it is looked up as a file
            raise ValueError(f"{value[:80]!r} is not a time zone; use an IANA name such as Europe/Berlin") from error
        return value

    def contains(self, now: float) -> bool:
        """Whether `now` (unix seconds) is inside; an overnight window belongs to the day on which it starts."""
        local = datetime.fromtimestamp(now, ZoneInfo(self.time_zone))
        names: tuple[Weekday, ...] = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
        start, end, at = (
            time.fromisoformat(self.start),
            time.fromisoformat(self.end),
            local.time().replace(second=0, microsecond=0),
        )
        today, yesterday = names[local.weekday()], names[local.weekday() - 1]
        if start <= end:
            return today in self.days and start <= at <= end
        return (today in self.days and at >= start) or (yesterday in self.days and at <= end)


#: times cooldownSeconds, where spec.rollout.rollbackCooldownSeconds is absent
_ROLLBACK_REST: Final = 2.0


class Rollout(SpecModel):
    """How a trial takes place. Times in seconds."""

    #: Switchback: with one replica, the whole target one after the other; with more it is Canary
    strategy: Literal["Canary", "Switchback"] = "Canary"
    #: 0 replaces one pod (no spare GPU needed), 1 adds one pod for the trial; None adds one where it fits
    max_surge: Annotated[int, Field(ge=0, le=1)] | None = None
    #: a switchback may take the only pod down while the next one loads
    allow_downtime: bool = False
    #: what happens where a pod that ends would lose requests
    drain: Literal["Check", "Add", "Ignore"] = "Check"
    warmup_seconds: Annotated[float, Field(ge=0, le=86_400)] = 120.0
    #: a canary whose cache or latency still moves is warmed up at most this long; absent: 3 x warmupSeconds
    max_warmup_seconds: Annotated[float, Field(ge=0, le=86_400)] | None = None
    #: the pods are compared with each other for this long before the trial, after warmupSeconds without a change;
    #: absent: measurementSeconds, and maxMeasurementSeconds before another start of the same configuration
    baseline_seconds: Annotated[float, Field(ge=0, le=86_400)] | None = None
    #: a tenth of it is one window; the first look is after five
    measurement_seconds: Seconds = 300.0
    #: a Better verdict must be seen again over this long, on new data, before promotion
    confirmation_seconds: Annotated[float, Field(ge=0, le=86_400)] = 150.0
    #: a measurement without a clear verdict ends after this long
    max_measurement_seconds: Seconds = 900.0
    #: guardrails watch the promoted fleet for this long
    verification_seconds: Annotated[float, Field(ge=0, le=86_400)] = 120.0
    #: a canary or a promotion that is not ready by then is rolled back
    progress_deadline_seconds: Seconds = 900.0
    #: pod restarts Trimtab may cause in 24 h, over all pods of the target
    max_restarts_per_day: Annotated[int, Field(ge=2, le=10_000)] = 50
    windows: tuple[Window, ...] = Field(default=(), max_length=20)
    #: seconds between the end of one trial and the start of the next
    cooldown_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    #: the same after a trial that was rolled back; absent: twice cooldownSeconds
    rollback_cooldown_seconds: Annotated[float, Field(ge=0, le=604_800)] | None = None

    def cooldown_after(self, *, rolled_back: bool) -> float:
        """Seconds of rest: after a rollback longer, users may have felt that trial."""
        own = self.rollback_cooldown_seconds
        if not rolled_back:
            return self.cooldown_seconds
        return _ROLLBACK_REST * self.cooldown_seconds if own is None else own

    @model_validator(mode="after")
    def _times(self) -> Self:
        if self.max_measurement_seconds < self.measurement_seconds:
            raise ValueError("maxMeasurementSeconds must not be below measurementSeconds")
        if self.max_warmup_seconds is not None and self.max_warmup_seconds < self.warmup_seconds:
            raise ValueError("maxWarmupSeconds must not be below warmupSeconds")
        return self


class Guardrails(SpecModel):
    """Fast limits, looked at on every tick; a breach rolls back at once."""

    #: failed answers and engine errors among the canary's requests
    max_error_percent: Annotated[float, Field(ge=0, le=100)] = 2.0
    #: canary p99 TTFT and TPOT against control, over the last windowSeconds, and only with minRequests finished
    max_latency_ratio: Annotated[float, Field(ge=1, le=100)] = 3.0
    #: restarts of the canary's container
    max_restarts: Annotated[int, Field(ge=0, le=10)] = 0
    window_seconds: Seconds = 30.0
    min_requests: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    #: metrics missing for this long end the trial
    max_metrics_gap_seconds: Seconds = 60.0


class Preconditions(SpecModel):
    """What must hold before a trial starts."""

    #: requests per second over the whole target; less gives no evidence
    min_requests_per_second: Annotated[float, Field(ge=0, le=1_000_000)] = 0.1
    #: the target must have been healthy and unchanged for this long
    stable_seconds: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    #: a trial starts only if a gain of this size would show within rollout.maxMeasurementSeconds; 0: not asked
    visible_gain_percent: Annotated[float, Field(ge=0, le=1000)] = 100.0


class Output(SpecModel):
    """Where a recommended change is written besides the status."""

    #: a ConfigMap beside the tuner; one that is not Trimtab's own is left alone
    config_map: Annotated[str, Field(min_length=1, max_length=253, pattern=NAME)] | None = None


class Storage(SpecModel):
    """Where the Optuna study lives. It is memory and may be lost. Absent: a journal file in the operator's data
    volume.
    """

    url: str | None = None


class TunerSpec(SpecModel):
    target_ref: TargetRef
    mode: Literal["Recommend", "Approve", "Auto"] = "Recommend"
    suspend: bool = False
    metrics: Metrics
    objective: Objective = Objective()
    search: Search = Search()
    token_policy: TokenPolicy = TokenPolicy()
    rollout: Rollout = Rollout()
    guardrails: Guardrails = Guardrails()
    preconditions: Preconditions = Preconditions()
    output: Output = Output()
    storage: Storage = Storage()
    #: finished TuningTrials kept
    trial_history_limit: Annotated[int, Field(ge=1, le=500)] = 50

    @classmethod
    def parse(cls, spec: object) -> TunerSpec:
        """From the custom resource's `spec`; `SpecError` names the first wrong field in the CRD's spelling."""
        try:
            return cls.model_validate(spec)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(("spec", *(to_camel(p) if isinstance(p, str) else str(p) for p in first["loc"])))
            more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
            raise SpecError(where, first["msg"] + more, "See `kubectl explain vllmtuner.spec`.") from error

    def window_open(self, now: float) -> bool:
        """Whether a trial may start; no windows means always."""
        return not self.rollout.windows or any(w.contains(now) for w in self.rollout.windows)
