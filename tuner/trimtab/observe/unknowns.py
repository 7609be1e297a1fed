"""Why a field of an Observation is unknown, and what would make it known. Pure.

The reasons are told apart by what is at hand: the version, the series names that were seen, and how the engine was
started. The less is given, the more general the answer; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields

from trimtab.engine.metric_table import (
    READ,
    Engine,
    Metric,
    Standing,
    Version,
    engines_of,
    metric_of,
    parse_version,
    version_range,
    version_text,
)
from trimtab.observe.metrics import (
    CACHE_CONFIG,
    CACHE_FIELDS,
    COUNTERS,
    HISTOGRAMS,
    HTTP_REQUESTS,
    INFERENCE_HANDLERS,
    PREFIX,
    sources,
)
from trimtab.observe.observation import CONSTANT, Observation
from trimtab.observe.samples import Samples

#: since this version the API server knows the engine's num_gpu_blocks (v1/engine/core_client.py); before it says None
_BLOCKS_KNOWN: Version = (0, 9, 0)
#: what Trimtab's own middleware counts in the request path
_MIDDLEWARE = {"useful_tokens": "llm_useful_tokens_total", "reserved_tokens": "llm_reserved_tokens_total"}
_HTTP = ("http_errors", "http_rejected")
_COUNTED = frozenset({*COUNTERS, *HISTOGRAMS, "requests", *_HTTP})


@dataclass(frozen=True)
class Unknown:
    """A field of Observation that is None: why, and what would make it known (one or two sentences each)."""

    field: str
    why: str
    remedy: str


@dataclass(frozen=True)
class Facts:
    """How the engine was started; None is not known.

    log_stats: False with --disable-log-stats. hidden_shown: --show-hidden-metrics-for-version names the minor version
    before. engine: from VLLM_USE_V1 where it is set.
    """

    log_stats: bool | None = None
    hidden_shown: bool | None = None
    engine: Engine | None = None


@dataclass(frozen=True)
class _Case:
    """One field and what is known around it.

    at: the versions with the engines that the pod may be; empty: not known. metrics: those that can fill the field, by
    preference. trusted: some count of the Observation is known.
    """

    field: str
    observation: Observation
    at: tuple[tuple[Version, Engine], ...]
    names: Collection[str] | None
    facts: Facts
    trusted: bool
    metrics: tuple[Metric, ...]

    @property
    def wanted(self) -> str:
        return self.metrics[0].name

    @property
    def present(self) -> bool:
        return self.names is not None and any(metric_of(n) in self.metrics for n in self.names)

    @property
    def version_words(self) -> str:
        first, last = self.at[0][0], self.at[-1][0]
        return version_text(first) if first == last else f"{version_text(first)} to {version_text(last)}"

    def standings(self, metric: Metric) -> set[Standing]:
        return {metric.standing(version, engine) for version, engine in self.at}

    def only(self, engine: Engine) -> bool:
        return all(e == engine for _, e in self.at)


Answer = tuple[str, str]


def names_of(samples: Samples, pods: Iterable[str]) -> frozenset[str]:
    """The series names that these pods had: what `unknowns` and `version_range` take as `names`."""
    return frozenset(name for pod in pods for name, _ in samples.pods.get(pod, {}))


def unknowns(
    observation: Observation, version: str | None, facts: Facts | None = None, names: Collection[str] | None = None
) -> tuple[Unknown, ...]:
    """One entry for each field that is None, in the order of the fields.

    version: vLLM's, as in an image's tag; None: guessed from `names`, which are the series names seen (`names_of`);
    without both the answers are general. Raises InputError for a version that is none.
    """
    known = {f.name for f in fields(Observation) if getattr(observation, f.name) is not None}
    facts = facts or Facts()
    at = _at(version, names, facts.engine)
    trusted = bool(known & _COUNTED)
    return tuple(
        _unknown(_Case(f.name, observation, at, names, facts, trusted, _metrics(f.name)))
        for f in fields(Observation)
        if f.name not in known
    )


def _at(
    version: str | None, names: Collection[str] | None, engine: Engine | None
) -> tuple[tuple[Version, Engine], ...]:
    if version is not None:
        versions: tuple[Version, ...] = (parse_version(version),)
    else:
        guessed = version_range(names or ())
        versions = tuple(v for v in READ if guessed.low <= v <= guessed.high) if guessed is not None else ()
    return tuple((v, e) for v in versions for e in ((engine,) if engine else engines_of(v, names or ())))


def _metrics(name: str) -> tuple[Metric, ...]:
    found = (metric_of(series) for series in sources(name))
    return tuple(dict.fromkeys(m for m in found if m is not None))


def _unknown(case: _Case) -> Unknown:
    why, remedy = next(answer for question in _QUESTIONS if (answer := question(case)) is not None)
    own = _MIDDLEWARE.get(case.field)
    return Unknown(case.field, why, f"{remedy} Or install Trimtab's middleware, which counts {own}." if own else remedy)


def _stats_off(case: _Case) -> Answer | None:
    if case.facts.log_stats is False and all(m.name.startswith(PREFIX) for m in case.metrics):
        return "--disable-log-stats removes every vllm: metric.", "Start the engine without --disable-log-stats."
    return None


def _not_scraped(case: _Case) -> Answer | None:
    if case.names is None or any(n.startswith(PREFIX) for n in case.names):
        return None
    if not case.names:
        return "Nothing was scraped from the pod.", "Check that its port serves /metrics and that it is scraped."
    if all(m.name.startswith(PREFIX) for m in case.metrics):
        return (
            "The pod has metrics, but none of vLLM.",
            "Check that the engine's own port is scraped and that --disable-log-stats is not set.",
        )
    return None


def _one_sample(case: _Case) -> Answer | None:
    if case.field in _COUNTED and case.observation.window_seconds <= 0 and (case.names is None or case.present):
        return "A count needs two samples and the window has one.", "Take a window of at least two scrape intervals."
    return None


def _no_inference(case: _Case) -> Answer | None:
    if case.field in _HTTP and case.names is not None and HTTP_REQUESTS in case.names and case.trusted:
        paths = ", ".join(sorted(INFERENCE_HANDLERS))
        return f"{HTTP_REQUESTS} has no request to {paths} yet.", "It appears with the first request to one of them."
    return None


def _cache_label(case: _Case) -> Answer | None:
    """The series is there, so its label is missing, says None, or differs between pods."""
    if case.field not in CACHE_FIELDS or not case.present:
        return None
    if case.field in CONSTANT and case.observation.pods > 1:
        return f"The pods' {CACHE_CONFIG} do not agree.", "Look at one pod, or at pods of one configuration."
    if case.field in ("kv_capacity_tokens", "num_gpu_blocks") and any(v < _BLOCKS_KNOWN for v, _ in case.at):
        return (
            f"v1 of vLLM before {version_text(_BLOCKS_KNOWN)} says num_gpu_blocks=None in {CACHE_CONFIG}.",
            f"Upgrade to vLLM {version_text(_BLOCKS_KNOWN)} or newer; until then the engine's log says it.",
        )
    return (
        f"The label of {CACHE_CONFIG} that says it is missing or None.",
        "Keep all labels of the series in relabeling.",
    )


def _unusable(case: _Case) -> Answer | None:
    """The metric is there and was sampled, and still nothing can be counted."""
    if not case.present:
        return None
    if case.field not in _COUNTED:
        return f"{case.wanted} has no sample inside the window.", "Take a longer window, or scrape more often."
    if not case.trusted:
        return (
            "Counters went back without a restart: several processes seem to answer in turn.",
            "With --api-server-count above 1 leave PROMETHEUS_MULTIPROC_DIR unset (vLLM then makes a fresh folder), or "
            "empty the folder before each start.",
        )
    if case.field in HISTOGRAMS:
        return (
            f"The buckets of {case.wanted} are incomplete or have different edges.",
            "Keep all of _bucket and _sum in relabeling; do not mix pods of different --max-model-len or version.",
        )
    return f"{case.wanted} cannot be counted for every pod.", "Look at the pods one by one."


def _version_unknown(case: _Case) -> Answer | None:
    if case.at:
        return None
    since = version_text(min(m.since for m in case.metrics))
    return (
        f"There is no sample of {_list(case.metrics)}.",
        f"vLLM has it since {since}. Name the engine's version for a better answer.",
    )


def _dropped(case: _Case) -> Answer | None:
    """This version shows it, so someone drops it or its condition is not met."""
    surely = next((m for m in case.metrics if case.standings(m) == {"shown"}), None)
    metric = surely or next((m for m in case.metrics if "shown" in case.standings(m)), None)
    if metric is None:
        return None
    if surely is None:
        return (
            f"{metric.name} is not among the samples; not every vLLM {case.version_words} shows it.",
            f"It is there since vLLM {_since(case, metric)}{'' if 'v0' in metric.shown else ' with the v1 engine'}: "
            "upgrade, or where it is that already do not drop it in a relabeling rule.",
        )
    why = f"vLLM {case.version_words} shows {metric.name}, and it is not among the samples."
    if metric.when:
        return why, f"It needs: {metric.when}."
    first = " The v0 engine shows it with its first value." if case.only("v0") else ""
    return why, f"Do not drop it in a relabeling rule, and do not set --disable-log-stats.{first}"


def _hidden(case: _Case) -> Answer | None:
    hidden = next((m for m in case.metrics if "hidden" in case.standings(m)), None)
    if hidden is None:
        return None
    major, minor, _ = case.at[0][0]
    flag = f"--show-hidden-metrics-for-version={major}.{minor - 1}"
    said = f"vLLM {case.version_words} shows {hidden.name} only with {flag}."
    newer = f" Its new name is {hidden.renamed_to}." if hidden.renamed_to else ""
    if case.facts.hidden_shown:
        return said + newer, "The flag is set: do not drop the metric in a relabeling rule."
    return said + newer, f"Add {flag}."


def _gone(case: _Case) -> Answer | None:
    if not all(case.standings(m) <= {"removed", "never"} for m in case.metrics):
        return None
    later = [m for m in case.metrics if "v1" in m.shown]
    if later:
        since = version_text(min(m.shown["v1"].since for m in later))
        return (
            f"The v0 engine of vLLM {case.version_words} has no {_list(case.metrics)}.",
            f"Use the v1 engine (VLLM_USE_V1=1, the default since 0.8.0) of vLLM {since} or newer.",
        )
    return (
        f"vLLM {case.version_words} has no {case.wanted} any more: it counted what the v1 engine does not do.",
        "Nothing is missed, and nothing brings it back.",
    )


def _too_old(case: _Case) -> Answer | None:
    oldest = min(case.metrics, key=lambda m: m.since)
    return (
        f"vLLM {case.version_words} does not have {_list(case.metrics)} yet.",
        f"Upgrade to vLLM {_since(case, oldest)} or newer.",
    )


def _since(case: _Case, metric: Metric) -> str:
    """Of v1 where the pod has that engine or v0 never had the metric; else of whichever engine had it first."""
    v1 = metric.shown.get("v1")
    return version_text(v1.since if v1 is not None and case.only("v1") else metric.since)


def _list(metrics: Sequence[Metric]) -> str:
    return " or ".join(m.name for m in metrics)


#: asked in turn; the first that has an answer gives it, and the last one always has
_QUESTIONS: tuple[Callable[[_Case], Answer | None], ...] = (
    _stats_off,
    _not_scraped,
    _one_sample,
    _no_inference,
    _cache_label,
    _unusable,
    _version_unknown,
    _dropped,
    _hidden,
    _gone,
    _too_old,
)
