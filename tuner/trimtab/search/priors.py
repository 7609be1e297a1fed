"""Informed first guesses: what the engine's arithmetic and the findings say before any sampler has data. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trimtab.diagnose.finding import Finding, stops_tuning
from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Observation
from trimtab.search.candidate import Proposal
from trimtab.search.space import PREFIX, Space

SEQS = "max_num_seqs"


def concurrency(observation: Observation) -> float | None:
    """Sequences whose KV fits at once: capacity (tokens, one pod) / (mean prompt + mean output); None when unknown.

    A running request holds less than that on average: it is still growing. Dividing by the p90s instead takes everybody
    to be long at once: in simulation 40% less throughput, where the means gained 9% (docs/claims.md, CV > 1).
    """
    prompt, output = observation.prompt_length, observation.output_length
    if observation.kv_capacity_tokens is None or prompt is None or output is None:
        return None
    a, b = prompt.mean, output.mean
    return observation.kv_capacity_tokens / (a + b) if a is not None and b is not None and a + b > 0 else None


def candidates(
    configuration: Configuration, observation: Observation, findings: Sequence[Finding], space: Space
) -> list[Proposal]:
    """Guesses, best first; inside the space, different from `configuration` and from each other.

    Empty when a finding says that the engine is broken or idle: then no setting should be tried.
    """
    names = {f.name for f in findings}
    if any(stops_tuning(f) for f in findings):
        return []
    seqs = list(_sequences(configuration, observation, names, space))
    caching = _caching_worth_trying(configuration, observation, space)
    guesses: list[tuple[dict[str, object], str]] = []
    for i, (value, why) in enumerate(seqs):
        if caching:
            guesses.append(({SEQS: value, PREFIX: True}, f"{why}, with prefix caching on"))
        else:
            guesses.append(({SEQS: value}, why))
        if caching and i == 0:
            guesses.append(({PREFIX: True}, "prefix caching on, nothing else changed"))
    if caching and not seqs:
        guesses.append(({PREFIX: True}, "prefix caching on, nothing else changed"))
    return _distinct(configuration, guesses, space)


def _caching_worth_trying(configuration: Configuration, observation: Observation, space: Space) -> bool:
    """Off, or unset and not seen at work (a query counter above 0 shows that vLLM's default is on)."""
    state = configuration.get(PREFIX)
    return space.tune_prefix_caching and (state is False or (state is None and observation.prefix_queries == 0))


def _sequences(
    configuration: Configuration, observation: Observation, names: set[str], space: Space
) -> Iterable[tuple[int, str]]:
    """Values for max_num_seqs, from KV capacity where it is known, else from the current value and the findings."""
    if SEQS not in space.ranges:
        return
    fits = concurrency(observation)
    if fits is not None:
        text = f"KV cache of {observation.kv_capacity_tokens:.0f} tokens fits about {fits:.0f} requests"
        pressed = bool(names & {"Preemption", "DeathSpiral", "KvBound"})
        for factor in (1.0, 0.75, 1.33) if pressed else (1.0, 1.33, 0.75):
            yield space.snap(SEQS, fits * factor), text if factor == 1.0 else f"{text}, times {factor:g}"
        return
    now = configuration.integer(SEQS)
    if now is None:
        return
    if names & {"Preemption", "DeathSpiral"}:
        for factor in (0.75, 0.5):
            yield space.snap(SEQS, now * factor), f"preempting at {now} sequences: times {factor:g}"
    elif names & {"SlotBound"}:
        for factor in (1.5, 2.0):
            yield space.snap(SEQS, now * factor), f"requests wait for a slot at {now} sequences: times {factor:g}"


def _distinct(
    configuration: Configuration, guesses: Sequence[tuple[dict[str, object], str]], space: Space
) -> list[Proposal]:
    out: list[Proposal] = []
    seen = {space.cell(configuration)}
    for changes, why in guesses:
        guess = configuration.with_(changes)
        if space.contains(guess) and space.cell(guess) not in seen:
            seen.add(space.cell(guess))
            out.append(Proposal(guess, why))
    return out
