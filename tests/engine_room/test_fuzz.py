"""Mutated templates: whatever comes, either an answer or one of our own errors, and soon."""

from __future__ import annotations

import random
import time

import pytest

from template_mutants import mutant
from trimtab.engine.command import parse_template
from trimtab.engine.patch import paste_ready
from trimtab.engine.rewrite import rewrite
from trimtab.engine.settings import Value
from trimtab.errors import TrimtabError

#: a parse takes under a millisecond; a loop that grows faster than its input would pass this on some mutant
BOUND_SECONDS = 2.0
CHANGES: dict[str, Value | None] = {"max_num_seqs": 9, "max_new_tokens": 5, "enable_prefix_caching": None}


def _answers(rounds: int, seed: int) -> tuple[int, float]:
    """How many mutants got an answer, and the longest time one took."""
    chance = random.Random(seed)
    answers, longest = 0, 0.0
    for _ in range(rounds):
        template, files = mutant(chance)
        start = time.process_time()
        try:
            parse_template(template, files=files).configuration()
            after = rewrite(template, CHANGES, files=files)
            paste_ready(template, after, "a", "b")
            assert rewrite(after, CHANGES, files=files) == after
            answers += 1
        except TrimtabError as error:
            assert str(error)
        longest = max(longest, time.process_time() - start)
    return answers, longest


def test_only_our_own_errors() -> None:
    answers, longest = _answers(4000, seed=20)
    assert answers > 4000 / 20
    assert longest < BOUND_SECONDS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_only_our_own_errors_in_a_hundred_thousand_templates() -> None:
    answers, longest = _answers(100_000, seed=21)
    print(f"{answers} of 100000 mutants were read and rewritten, the longest took {longest * 1000:.0f} ms")
    assert answers > 5000
    assert longest < BOUND_SECONDS
