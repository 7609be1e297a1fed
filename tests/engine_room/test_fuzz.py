"""Mutated templates: whatever comes, either an answer or one of our own errors."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import yaml

from trimtab.engine.command import parse_template
from trimtab.engine.patch import paste_ready
from trimtab.engine.rewrite import rewrite
from trimtab.errors import TrimtabError

ROUNDS = 5000
PIECES = ["", "--", "-", "=", "'", '"', "\\", "$", "$(", "$(X)", "${X}", "`", "\n", "\0", "é", "--max-num-seqs", "{",
          "}", "serve", "--api-key", '{"max_new_tokens": 1e999}', "9" * 5000, "[" * 3000, "-1",
          "--no-", "#", "--x.y"]  # fmt: skip
VALUES: list[Any] = [None, 1, True, "", [], {}, ["x"], "vllm", [None], {"name": 1}]


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


def test_only_our_own_errors() -> None:
    chance = random.Random(20)
    cases = yaml.safe_load((Path(__file__).parent / "data" / "manifests.yaml").read_text())
    answers = 0
    for _ in range(ROUNDS):
        template = {"spec": {"containers": [{"name": "e", **copy.deepcopy(chance.choice(cases)["container"])}]}}
        for _ in range(chance.randrange(1, 4)):
            _mutate(chance, template)
        try:
            parse_template(template).configuration()
            changes: dict[str, int | bool | None] = {
                "max_num_seqs": 9,
                "max_new_tokens": 5,
                "enable_prefix_caching": None,
            }
            after = rewrite(template, changes)
            paste_ready(template, after, "a", "b")
            assert rewrite(after, changes) == after
            answers += 1
        except TrimtabError as error:
            assert str(error)
    assert answers > ROUNDS / 20
