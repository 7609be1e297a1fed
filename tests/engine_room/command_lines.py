"""Random vLLM command lines: every tunable in every spelling, with flags around it, right and wrong ones.

Pieces are made once and then only picked, so that one line costs hypothesis a few draws.
"""

from __future__ import annotations

import json
import random
from typing import Any

import yaml
from hypothesis import strategies as st

from trimtab.engine.flag_table import ALIASES, KINDS
from trimtab.engine.settings import SETTINGS, Setting

#: stands for the path behind --config
CONFIG = "@CONFIG@"
GENERATION = SETTINGS["max_new_tokens"].flag
Piece = list[str]
_CHANCE = random.Random(32)

_NUMBERS = {
    "integer": ["1", "16", "64", "256", "2048", "8192", *(str(_CHANCE.randrange(1, 9000)) for _ in range(20))],
    "number": ["0.9", "0.5", "0.02", "0.95", ".5", "0.0", *(f"{_CHANCE.random():.3f}" for _ in range(20))],
}
_HUMAN = ["8k", "8K", "1.5k", "2M", "1g", "4T"]
_ODD_NUMBERS = [
    "0", "-1", "-2", "auto", "AUTO", "1.5K", "8kb", " 16 ", "+7", "007", "1_000", "1e3", "", "inf", "nan", "0x10", "٣",
    "99999999999999999999999", "9e-1", "0.90 ", "1.0", "1.01", "-0.1", "-0.5e1", "x",
]  # fmt: skip
_ODD_WORDS = ["FCFS", "int8", "", "true", "1", " auto"]
_JSON_VALUES = [1, 16, 400, 8192, 0, 0.5, None, True, "5", "8k", [3], {"max_new_tokens": 4}]
_ODD_JSON = [
    "{}", "{", "5", "[]", "null", '"x"', "", '{"max_new_tokens": 8k}', '{"max_new_tokens": 1e2}', '{"a.b": 1}',
    '{"max_new_tokens": 1, "max_new_tokens": 2}', ' {"max_new_tokens":\t7} ', '{"max_new_tokens": -3}',
]  # fmt: skip
_DOTTED = ["max_new_tokens", "max_new_tokens", "top_p", "a.max_new_tokens"]
_ODD_DOTTED = ["max_new_tokens+", "max_new_tokens.x", "", "max-new-tokens"]
_DOTTED_VALUES = ["5", "64", "400", "8k", "0.5"]
_ODD_DOTTED_VALUES = [*_ODD_NUMBERS, '"5"', "null", "true", "[1]", '{"a":1}', "--port", "1,2"]

BYSTANDERS: list[Piece] = [
    ["--port", "8000"], ["--host=0.0.0.0"], ["-tp", "2"], ["-tp=2"], ["-tp2"], ["-pp", "1"], ["-O3"], ["-O", "2"],
    ["-O=1"], ["--enforce-eager"], ["--trust-remote-code"], ["--no-enable-log-requests"], ["--dtype", "bfloat16"],
    ["--served-model-name", "a", "b"], ["--served_model_name=a"], ["--middleware", "a.B"], ["--middleware=c.D"],
    ["--api-key", "k"], ["--api-key", "a", "b"], ["--hf-token"], ["--hf-token", "t"], ["--seed", "-1"], ["-q", "awq"],
    ["--compilation-config", '{"mode": 3}'], ["--compilation-config.mode", "3"], ["-cc.mode=3"], ["-cc.mode", "3"],
    ["--model", "other"], ["--model=other"], ["--tokenizer-mode", "auto"], ["--chat-template", "x.jinja"], ["-n", "1"],
    ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}'], ["--allowed-origins", '["*"]'],
    ["--enable-lora"], ["--lora-modules", "a=b", "c=d"], ["--headless"], ["--watermark-config", "{}"],
    ["--long-prefill-token-threshold-adaptive"], ["--max-num-scheduled-tokens", "2k"], ["--max-logprobs", "5"],
    ["--kv-cache-dtype-skip-layers", "1", "2"], ["--cudagraph-capture-sizes", "1", "2", "4"], ["--load-format=dummy"],
    ["--disable-log-stats"], ["--enable-prompt-tokens-details"],
]  # fmt: skip
ODD: list[Piece] = [
    ["--swap-space", "4"], ["--no-such-flag"], ["--no-such-flag=1"], ["stray"], [""], ["-x"],
    ["--disable-log-requests"],
    ["--num-scheduler-steps", "8"], ["--"], ["-"], ["-5"], ["-0.5"], ["--max-num-seqs 5"], [f"--config={CONFIG}"],
    ["--device", "cuda"], ["--task", "generate"], ["--no-max-num-seqs"], ["-O", "x"], ["--chat-template", "--port"],
    *([name[:cut]] for name in [*KINDS, *ALIASES] for cut in {_CHANCE.randrange(3, 40)}),
]  # fmt: skip


def _spellings(flag: str) -> list[str]:
    """With dashes, with underscores, and with both."""
    mixed = "".join(_CHANCE.choice("-_") if c == "-" else c for c in flag[2:])
    return [flag, flag, "--" + flag[2:].replace("-", "_"), "--" + mixed]


def _prefixes(flag: str) -> list[str]:
    return [name[:cut] for name in _spellings(flag) for cut in range(4, len(flag))]


def _valued(names: list[str], values: list[str]) -> list[Piece]:
    """Joined by `=` and as two words."""
    return [p for name in names for value in values for p in ([f"{name}={value}"], [name, value])]


def _objects() -> list[str]:
    out = []
    for _ in range(60):
        keys = _CHANCE.choices(["max_new_tokens", "max_new_tokens", "max_tokens", "top_p"], k=_CHANCE.randrange(4))
        made = {key: _CHANCE.choice(_JSON_VALUES) for key in keys}
        out.append(json.dumps(made, separators=_CHANCE.choice([None, (",", ":")])))
    return out


def _tame(setting: Setting) -> list[Piece]:
    names = _spellings(setting.flag)
    if setting.flag == GENERATION:
        dotted = [f"{name}.{key}" for name in names for key in _DOTTED]
        return _valued(names, _objects()) + _valued(dotted, _DOTTED_VALUES)
    if setting.kind == "boolean":
        return [[name] for name in (*names, *_spellings(f"--no-{setting.flag[2:]}"))]
    values = list(setting.choices) or _NUMBERS[setting.kind] + (_HUMAN if setting.suffixes else [])
    return _valued(names, values)


def _wild(setting: Setting) -> list[Piece]:
    names = _spellings(setting.flag)
    if setting.flag == GENERATION:
        dotted = [f"{name}.{key}" for name in names for key in _DOTTED + _ODD_DOTTED]
        cut = [f"{name}.{key}" for name in _prefixes(GENERATION) for key in _DOTTED]
        return (
            _valued(names, _ODD_JSON) + _valued(dotted, _ODD_DOTTED_VALUES) + _valued(cut, ["7"])
            + _valued(_prefixes(GENERATION), ['{"max_new_tokens": 9}'])
        )  # fmt: skip
    if setting.kind == "boolean":
        both = names + _prefixes(setting.flag) + _prefixes(f"--no-{setting.flag[2:]}")
        return [p for name in both for p in ([name], [f"{name}=true"], [name, "false"])]
    odd = _ODD_WORDS if setting.kind == "choice" else _ODD_NUMBERS + _HUMAN
    usual = setting.choices[0] if setting.choices else "1"
    return [*([name] for name in names), *_valued(names, odd), *_valued(_prefixes(setting.flag), [usual]),
            [f"{setting.flag}.x", "1"]]  # fmt: skip


def _picked(make: Any) -> st.SearchStrategy[Piece]:
    """A setting first, so that each comes as often, then one of its pieces."""
    return st.sampled_from(sorted(SETTINGS)).flatmap({n: st.sampled_from(make(s)) for n, s in SETTINGS.items()}.get)


_tuned = {False: _picked(_tame), True: _picked(_wild)}
_lines = {
    wild: st.lists(
        st.one_of(_tuned[False], _tuned[False], _tuned[wild], st.sampled_from(BYSTANDERS)), min_size=1, max_size=7
    )
    for wild in (False, True)
}


def _files() -> list[str]:
    """Texts of files behind --config."""
    out = ["[", "- a", "", "{}"]
    for _ in range(400):
        content: dict[str, Any] = {}
        for name in _CHANCE.sample(sorted(SETTINGS), _CHANCE.randrange(5)):
            setting = SETTINGS[name]
            key = setting.flag[2:].replace("-", _CHANCE.choice("--_"))
            if setting.kind == "boolean":
                content[key] = _CHANCE.choice([True, True, False, "true"])
            elif setting.flag == GENERATION:
                dotted = _CHANCE.randrange(3) == 0
                content[f"{key}.max_new_tokens" if dotted else key] = (
                    77 if dotted else _CHANCE.choice([{"max_new_tokens": 64}, {"top_p": 0.5}, '{"max_new_tokens": 65}'])
                )
            else:
                content[key] = _CHANCE.choice([*setting.choices, 1, 64, "8k", 0.5, 0.9])
        content |= _CHANCE.choice([{}, {}, {"port": 8001}, {"served-model-name": ["a", "b"]}, {"enforce-eager": True}])
        out.append(yaml.safe_dump(content, sort_keys=False))
    return out


_files_drawn = st.sampled_from(_files())
_forms = st.sampled_from(
    [("serve", "first")] * 9 + [("serve", "last")] + [("module", "flag")] * 8 + [("module", "none")] * 2
)


@st.composite
def command_lines(draw: st.DrawFn) -> dict[str, Any]:
    """form, argv behind `vllm serve` or the module, and the text of the file behind --config."""
    form, model = draw(_forms)
    shape = draw(st.integers(0, 19))
    wild = shape < 6
    pieces = draw(_lines[wild])
    if shape < 2:
        pieces.insert(draw(st.integers(0, len(pieces))), draw(st.sampled_from(ODD)))
    if shape in {3, 9, 10, 11}:
        pieces.append(draw(st.sampled_from(pieces)))
    config = None
    if shape in {4, 18, 19}:
        config = draw(_files_drawn)
        pieces.insert(draw(st.integers(0, len(pieces))), ["--config", CONFIG])
    argv = [word for piece in pieces for word in piece]
    argv = {"first": ["org/model", *argv], "last": [*argv, "org/model"], "flag": ["--model=org/model", *argv]}.get(
        model, argv
    )
    return {"form": form, "argv": argv, "config": config}
