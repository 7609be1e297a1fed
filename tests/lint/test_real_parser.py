"""vLLM's own argument parser stops where lint says that vLLM stops, and takes what lint finds no fault in."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "engine_room"))
sys.path.insert(0, str(Path(__file__).parent))
from lint_cases import HEALTHY, SAFE, TRAPS, Break, engine
from parser_process import Parser, vllm_parser

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]
#: rules whose traps stop vLLM 0.32 in its parser; values are checked later, in its config classes
STOPS = ("TT010", "TT011", "TT012", "TT013", "TT029", "TT031")
#: traps that the parser takes: vLLM starts, and does otherwise than the manifest says
TAKES = ("TT015", "TT016", "TT017", "TT026", "TT027", "TT028", "TT030")


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Any:
    built = subprocess.run([str(ROOT / "hack/engine/build.sh")], stdout=subprocess.PIPE, text=True, check=True)
    with vllm_parser(Path(built.stdout.split()[0]), tmp_path_factory.mktemp("parser")) as found:
        yield found


def _answer(parser: Parser, change: Break) -> dict[str, Any]:
    """What the parser of `vllm serve` says to the container's command line."""
    manifest = copy.deepcopy(HEALTHY)
    change(manifest)
    body = engine(manifest)
    words = [*body.get("command", ["vllm", "serve", "org/m"])[2:], *body["args"]]
    if "org/m" in words:
        words = [w for w in words if not w.startswith("--model=")]
    (answer,) = parser.ask([{"argv": words, "form": "serve", "config": None, "names": []}])
    assert isinstance(answer, dict)
    return answer


def _each(rules: tuple[str, ...], table: Any) -> list[Any]:
    return [pytest.param(b, id=f"{r}-{n}") for r in rules for n, b in enumerate(table[r])]


def test_the_example_is_taken(parser: Parser) -> None:
    assert "error" not in _answer(parser, lambda deployment: None)


@pytest.mark.parametrize("change", _each(STOPS, TRAPS))
def test_vllm_stops(change: Break, parser: Parser) -> None:
    assert "error" in _answer(parser, change)


@pytest.mark.parametrize("change", _each(TAKES, TRAPS))
def test_vllm_takes_what_is_only_misleading(change: Break, parser: Parser) -> None:
    assert "error" not in _answer(parser, change)


@pytest.mark.parametrize("change", _each(("TT015",), SAFE))
def test_vllm_takes_what_is_no_trap(change: Break, parser: Parser) -> None:
    assert "error" not in _answer(parser, change)
