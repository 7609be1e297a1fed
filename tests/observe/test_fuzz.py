"""Mutated /metrics texts through the whole way from bytes to reasons: no crash, no hang, typed errors only."""

from __future__ import annotations

import math
import random
import time
from dataclasses import fields

import pytest
from metric_texts import samples
from shapes import shape
from test_versions import SHAPES

from trimtab.engine.metric_table import version_range
from trimtab.errors import TrimtabError
from trimtab.observe.exposition import parse
from trimtab.observe.mapping import observe
from trimtab.observe.metrics import WANTED
from trimtab.observe.observation import Histogram, Observation
from trimtab.observe.unknowns import names_of, unknowns

SEED = 20_260_130
#: seconds for one input; a text of a real engine takes some 5 ms, the rest is room for a busy machine
BOUND_SECONDS = 1.0
TEXTS = [shape(name).encode() for name in SHAPES]
#: lines that can matter, so that few mutations are spent on what is skipped
LINES = [[x for x in t.split(b"\n") if x.split(b"{")[0].split(b" ")[0].decode() in WANTED] for t in TEXTS]
ODD = (
    *(b"NaN", b"+Inf", b"-Inf", b"1e999", b"-1", b"0x10", b"1_0", b"9" * 400, b"1 2 3", "\u0661\u0662".encode()),
    *(
        b"",
        b"{",
        b"}",
        b'"',
        b'\\"',
        b"\\",
        b"\x00",
        b"\xff\xfe",
        b"\xe2\x80\xa8",
        b"\r",
        b"\t",
        b" ",
        b"\n",
        b"==",
        b",,",
    ),
    *(b"# TYPE vllm:x counter\n", b'# {a="b"} 1 2', b'le="abc"', b'le="NaN"', b'le="+Inf"'),
    *(b'engine="1"', b'engine="0",engine="0"', b"a" * 5000),
)


def mutated(rng: random.Random) -> bytes:
    """A few lines of one version, or rarely a whole text, with up to eight random changes."""
    which = rng.randrange(len(TEXTS))
    whole = rng.random() < 0.005
    lines = list(TEXTS[which].split(b"\n")) if whole else rng.choices(LINES[which], k=rng.randint(1, 12))
    if rng.random() < 0.3:
        lines += rng.choices(LINES[rng.randrange(len(LINES))], k=3)
    body = bytearray(b"\n".join(lines) + b"\n")
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(body) + 1)
        match rng.randrange(6):
            case 0:
                body[at:at] = rng.choice(ODD)
            case 1:
                del body[at : at + rng.randint(1, 40)]
            case 2 if at < len(body):
                body[at] = rng.randrange(256)
            case 3:
                body[at : at + rng.randint(1, 12)] = rng.choice(ODD)
            case 4:
                body[at:at] = body[at : at + rng.randint(1, 300)]
            case _:
                del body[rng.randrange(len(body) + 1) :]
                body += b"\n"
    return bytes(body)


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
