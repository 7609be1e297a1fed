"""From requests to a tested predictor: split by time, learn, calibrate, compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from trimtab.predict.evaluate import Report, evaluate, percentiles
from trimtab.predict.fitted import Fitted, calibrated
from trimtab.predict.network import LEVELS, Recipe, train
from trimtab.predict.samples import Samples, endings_of
from trimtab.predict.split import by_time


@dataclass(frozen=True)
class Outcome:
    fitted: Fitted
    report: Report
    #: for the file: what it was made from, and the report
    summary: dict[str, Any]


def learn(samples: Samples, recipe: Recipe, progress: Callable[[int, float], None] | None = None) -> Outcome:
    """Train, calibrate and test; `samples` are read with the recipe's buckets. InputError when there are too few."""
    parts = by_time(samples)
    learned = train(parts.train, parts.validation, recipe, progress)
    raw = Fitted(
        LEVELS, learned.tensors, learned.mean, learned.scale, recipe.max_hashes, (0.0,) * len(LEVELS),
        max_tokens=int(samples.output_tokens.max()),
    )  # fmt: skip
    fitted = calibrated(raw, parts.calibration)
    baseline = percentiles(parts.train, LEVELS)
    report = evaluate(parts.test, fitted.tokens(parts.test), baseline, LEVELS, recipe.seed)
    summary = {
        "requests": len(samples),
        "endings": endings_of(samples),
        "first_at_seconds": float(samples.at_seconds[0]),
        "last_at_seconds": float(samples.at_seconds[-1]),
        "recipe": asdict(recipe),
        "epochs": learned.epochs,
        "percentiles": [float(v) for v in baseline],
        "test": report.as_json(),
    }
    return Outcome(fitted, report, summary)
