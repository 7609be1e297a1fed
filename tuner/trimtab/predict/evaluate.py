"""Is the predictor better than the percentile policy? Pinball loss with a bootstrap interval, and coverage.

The percentile policy knows one number per level, the quantile of all lengths of the training part. Losses are in tokens
of the test part, which lies after everything learned from. Requests that somebody left count in coverage only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from trimtab.errors import TrimtabError
from trimtab.predict.censored import pinball, quantile, share_up_to
from trimtab.predict.samples import Bools, Floats, Samples, endings_of

#: a predictor must save at least this share of the loss, beyond doubt: else it is one more part that can fail
MARGIN = 0.02
#: of the interval of the skill, two-sided
CONFIDENCE = 0.95
_BLOCKS, _DRAWS = 100, 2000


class NoBetter(TrimtabError):
    """The predictor does no better than the percentile policy by MARGIN, or that is not sure."""

    hint = (
        "Use the percentile policy. A predictor needs requests whose features tell their length: log more of them, or "
        "with prompt hashes."
    )
    retry_seconds = None


@dataclass(frozen=True)
class LevelReport:
    """loss: pinball, tokens a request. coverage: share of lengths at most the quantile, product-limit where limits cut.

    coverage_long, coverage_short: the same where the predicted median is above and below its own median.
    """

    level: float
    loss: float
    percentile_loss: float
    coverage: float
    percentile_coverage: float
    coverage_short: float
    coverage_long: float
    mean_tokens: float
    percentile_tokens: float


@dataclass(frozen=True)
class Report:
    """skill: share of the percentile policy's loss that is saved, over all levels, with its interval."""

    requests: int
    endings: dict[str, int]
    skill: float
    skill_low: float
    skill_high: float
    levels: tuple[LevelReport, ...]

    @property
    def better(self) -> bool:
        return self.skill_low >= MARGIN

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def require_better(self) -> None:
        """NoBetter, with the figures."""
        if not self.better:
            raise NoBetter(
                f"Over {self.requests} later requests the predictor saves {self.skill:.1%} of the percentile "
                f"policy's loss ({CONFIDENCE:.0%} interval {self.skill_low:.1%} to {self.skill_high:.1%}); "
                f"at least {MARGIN:.0%} must be sure."
            )


def percentiles(learned_from: Samples, levels: Sequence[float]) -> Floats:
    """What the percentile policy knows: quantiles of all lengths; where limits hide one, the longest seen."""
    found = [quantile(learned_from.output_tokens, learned_from.natural, q) for q in levels]
    longest = float(learned_from.output_tokens.max())
    return np.array([longest if v is None else v for v in found])


def evaluate(test: Samples, predicted: Floats, baseline: Floats, levels: Sequence[float], seed: int = 0) -> Report:
    """predicted: N x levels, baseline: levels, both in tokens."""
    stayed = ~test.left
    tokens, caps = test.output_tokens[stayed], test.cap_tokens[stayed]
    ours = pinball(tokens, predicted[stayed], caps, levels)
    theirs = pinball(tokens, baseline[None, :], caps, levels)
    low, high = skill_interval(ours.sum(axis=1), theirs.sum(axis=1), seed)
    long = predicted[:, 0] > np.median(predicted[:, 0])
    reports = tuple(
        LevelReport(
            level=float(level),
            loss=float(ours[:, n].mean()),
            percentile_loss=float(theirs[:, n].mean()),
            coverage=_coverage(test, predicted[:, n]),
            percentile_coverage=_coverage(test, np.full(len(test), baseline[n])),
            coverage_short=_coverage(test, predicted[:, n], ~long),
            coverage_long=_coverage(test, predicted[:, n], long),
            mean_tokens=float(predicted[:, n].mean()),
            percentile_tokens=float(baseline[n]),
        )
        for n, level in enumerate(levels)
    )
    return Report(len(test), endings_of(test), _skill(ours.sum(), theirs.sum()), low, high, reports)


def _skill(ours: float, theirs: float) -> float:
    return 1.0 - ours / theirs if theirs > 0 else 0.0


def skill_interval(ours: Floats, theirs: Floats, seed: int) -> tuple[float, float]:
    """Percentile bootstrap over up to 100 runs of consecutive requests: neighbours in time are alike."""
    blocks = [np.array_split(v, min(_BLOCKS, len(v))) for v in (ours, theirs)]
    sums = np.array([[part.sum() for part in side] for side in blocks])
    drawn = np.random.default_rng(seed).integers(0, sums.shape[1], size=(_DRAWS, sums.shape[1]))
    totals = sums[:, drawn].sum(axis=2)
    skills = 1.0 - totals[0] / np.maximum(totals[1], 1e-12)
    tail = (1.0 - CONFIDENCE) / 2
    return float(np.quantile(skills, tail)), float(np.quantile(skills, 1.0 - tail))


def _coverage(test: Samples, predicted: Floats, mask: Bools | None = None) -> float:
    """Share of lengths at most the prediction; NaN never: an empty part counts as covered."""
    chosen = np.ones(len(test), dtype=bool) if mask is None else mask
    if not chosen.any():
        return 1.0
    ratio = test.output_tokens[chosen] / predicted[chosen]
    return share_up_to(ratio, test.natural[chosen], 1.0)
