"""Facts about families of reasoning models, as data: can they budget their thinking, how is it switched, what does a
cut cost.

Each fact names its source; what no source tells is None or absent, never guessed. Parsers: names that vLLM 0.32
registers (vllm/reasoning/__init__.py; a test compares). A new family is one entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final


@dataclass(frozen=True)
class AccuracyCurve:
    """What thinking is worth. gain_per_500: accuracy (share) per 500 thinking tokens at first. saturation_tokens:
    beyond, more thinking gains nothing and then costs.
    """

    gain_per_500: float
    saturation_tokens: int
    source: str

    def kept(self, budget_tokens: float) -> float:
        """Share of thinking's gain that a cut there leaves: roughly linear up to saturation."""
        return min(1.0, max(0.0, budget_tokens / self.saturation_tokens))


@dataclass(frozen=True)
class ModelFacts:
    """family: for people. patterns: of the model name, lower case, `*` is any. native_budget: trained to think within a
    budget. switch: chat template argument that turns thinking off, None where it cannot be. curve: None: not measured.
    """

    family: str
    patterns: tuple[str, ...]
    native_budget: bool
    reasoning_parser: str
    switch: str | None
    source: str
    curve: AccuracyCurve | None = None


_R1_CURVE: Final = AccuracyCurve(
    0.032,
    12_000,
    "R1-32B: about +3.2% accuracy per 500 thinking tokens at first, saturating near 12,000, then negative",
)

FAMILIES: Final = (
    ModelFacts(
        "DeepSeek-R1", ("*deepseek-r1*",), False, "deepseek_r1", None,
        "no native budget: only an external cut, which loses roughly linearly below saturation", _R1_CURVE,
    ),
    ModelFacts(
        "QwQ", ("*qwq*",), False, "deepseek_r1", None, "vLLM's reasoning outputs page: QwQ-32B uses deepseek_r1",
    ),
    ModelFacts(
        "Qwen3", ("*qwen3*",), True, "qwen3", '{"enable_thinking": false}, or /no_think in the prompt',
        "native thinking budget and a /think switch; a cut loses much less than on R1",
    ),
    ModelFacts(
        "Seed-OSS", ("*seed-oss*",), True, "seed_oss", '{"thinking_budget": 0}',
        "vLLM recipe for Seed-OSS-36B: thinking budget as a template argument",
    ),
)  # fmt: skip


def facts_of(model: str) -> ModelFacts | None:
    """By model name as served; None for a family that is not listed. A distillation is what it was distilled from."""
    name = model.lower()
    return next((f for f in FAMILIES if any(fnmatchcase(name, p) for p in f.patterns)), None)
