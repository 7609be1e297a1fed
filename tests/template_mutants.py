"""Pod templates of the field, damaged: arguments, scripts, files and everything around them."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import yaml

CASES = yaml.safe_load((Path(__file__).parent / "engine_room" / "data" / "manifests.yaml").read_text())
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


def mutant(chance: random.Random) -> tuple[dict[str, Any], dict[str, str]]:
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
