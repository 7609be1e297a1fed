"""Mutated templates: whatever comes, either an answer or one of our own errors, and soon."""

from __future__ import annotations

import copy
import random
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from trimtab.engine.command import parse_template
from trimtab.engine.patch import paste_ready
from trimtab.engine.rewrite import rewrite
from trimtab.engine.settings import Value
from trimtab.errors import TrimtabError

CASES = yaml.safe_load((Path(__file__).parent / "data" / "manifests.yaml").read_text())
#: a parse takes under a millisecond; a loop that grows faster than its input would pass this on some mutant
BOUND_SECONDS = 2.0
PIECES = ["", "--", "-", "=", "'", '"', "\\", "$", "$(", "$(X)", "${X}", "`", "\n", "\0", "é", "--max-num-seqs", "{",
          "}", "serve", "--api-key", '{"max_new_tokens": 1e999}', "9" * 5000, "[" * 3000, "-1", "--no-", "#", "--x.y",
          " & ", " && ", ";", "|", "<<EOF\n", "EOF\n", "$@", '"$@"', "eval ", "if x; then ", "$((", "${A:-", "\\\n",
          "vllm serve m ", "(" * 400, "$(" * 300, "$$", "2>&1", "--config /c.yaml "]  # fmt: skip
VALUES: list[Any] = [None, 1, True, "", [], {}, ["x"], "vllm", [None], {"name": 1}, {"name": "X", "value": 3}]


def _mutate(chance: random.Random, node: Any) -> Any:
    if isinstance(node, dict) and node and chance.random() < 0.97:
        key = chance.choice(list(node))
        node[key] = _mutate(chance, node[key])
        return node
    if isinstance(node, list) and node and chance.random() < 0.9:
        at = chance.randrange(len(node))
        action = chance.randrange(4)
        if action == 0:
            del node[at]
        elif action == 1:
            node.insert(at, chance.choice(PIECES))
        else:
            node[at] = _mutate(chance, node[at])
        return node
    if isinstance(node, str) and chance.random() < 0.9:
        at = chance.randrange(len(node) + 1)
        return node[:at] + chance.choice(PIECES) + node[at + chance.randrange(3) :]
    return copy.deepcopy(chance.choice(VALUES))


def _mutant(chance: random.Random) -> tuple[dict[str, Any], dict[str, str]]:
    case = chance.choice(CASES)
    template = {"metadata": {"labels": dict(case.get("labels", {}))}, "spec": {"containers": [
        {"name": "e", **copy.deepcopy(case["container"])}]}}  # fmt: skip
    files = dict(case.get("files", {}))
    for _ in range(chance.randrange(1, 4)):
        if files and chance.random() < 0.3:
            name = chance.choice(list(files))
            files[name] = str(_mutate(chance, files[name]))
        else:
            _mutate(chance, template)
    return template, files


CHANGES: dict[str, Value | None] = {"max_num_seqs": 9, "max_new_tokens": 5, "enable_prefix_caching": None}


def _answers(rounds: int, seed: int) -> tuple[int, float]:
    """How many mutants got an answer, and the longest time one took."""
    chance = random.Random(seed)
    answers, longest = 0, 0.0
    for _ in range(rounds):
        template, files = _mutant(chance)
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
