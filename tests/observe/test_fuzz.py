"""Mutated /metrics texts through the whole way from bytes to reasons: no crash, no hang, typed errors only."""

from __future__ import annotations

import math
import random
import time
from dataclasses import fields

import pytest
from metric_texts import samples
from text_mutants import mutated

from trimtab.engine.metric_table import version_range
from trimtab.errors import TrimtabError
from trimtab.observe.exposition import parse
from trimtab.observe.mapping import observe
from trimtab.observe.observation import Histogram, Observation
from trimtab.observe.unknowns import names_of, unknowns

SEED = 20_260_130
#: seconds for one input; a text of a real engine takes some 5 ms, the rest is room for a busy machine
BOUND_SECONDS = 1.0


def check(seen: Observation) -> None:
    for f in fields(Observation):
        value = getattr(seen, f.name)
        if isinstance(value, Histogram):
            assert len(value.bounds) == len(value.counts) and value.bounds[-1] == math.inf
        elif value is not None:
            assert math.isfinite(value)


def run(count: int, seed: int) -> tuple[int, float]:
    """How many inputs gave an Observation, and the slowest input in seconds of CPU time."""
    rng = random.Random(seed)
    observations, slowest = 0, 0.0
    for i in range(count):
        first, second = mutated(rng), mutated(rng)
        began = time.thread_time()
        held = samples((0.0, first.decode(errors="replace")), (60.0, second.decode(errors="replace")))
        seen = observe(held, "p", 0.0, 60.0)
        if seen is not None:
            observations += 1
            check(seen)
            if i % 50 == 0:
                names = names_of(held, ["p"])
                try:
                    assert len(unknowns(seen, None, names=names)) < len(fields(Observation))
                    version_range(names, complete=True)
                except TrimtabError as error:
                    assert str(error)
        slowest = max(slowest, time.thread_time() - began)
    return observations, slowest


def test_mutated_texts_do_no_harm() -> None:
    observations, slowest = run(1_000, SEED)
    assert observations > 500, "the mutations leave enough that is read"
    assert slowest < BOUND_SECONDS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_thousand_mutated_texts_do_no_harm() -> None:
    """Two texts an input."""
    observations, slowest = run(50_000, SEED + 1)
    assert observations > 25_000
    assert slowest < BOUND_SECONDS


@pytest.mark.parametrize(
    "text",
    [
        "vllm:num_requests_running{" * 200_000,
        "vllm:num_requests_running{a=" + '"' * 1_000_000,
        'vllm:num_requests_running{engine="' + "\\" * 16_000 + '"} 1',
        "\n" * 1_000_000,
        "vllm:num_requests_running " + "1" * 16_000,
        '"vllm:num_requests_running"' * 50_000,
        "vllm:num_requests_running{" + 'a="b",' * 2_500 + "} 1",
    ],
    ids=["open", "quotes", "escapes", "empty lines", "digits", "quoted names", "labels"],
)
def test_texts_made_to_be_slow_are_not(text: str) -> None:
    began = time.thread_time()
    parse(text)
    assert time.thread_time() - began < BOUND_SECONDS
