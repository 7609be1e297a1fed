"""Better than the percentile policy or refused; coverage that means what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from trimtab.predict.evaluate import MARGIN, NoBetter, evaluate, percentiles
from trimtab.predict.fitted import Fitted, calibrated
from trimtab.predict.network import LEVELS
from trimtab.predict.samples import Sample, Samples, arrays

sys.path.insert(0, str(Path(__file__).parent))
from predict_world import rows


def samples_of(tokens: np.ndarray, caps: np.ndarray | None = None) -> Samples:
    caps = np.full(len(tokens), np.inf) if caps is None else caps
    made = []
    for number, (t, cap) in enumerate(zip(tokens, caps, strict=True)):
        ending = "stop" if t < cap else "length"
        limit = None if np.isinf(cap) else int(cap)
        made.append(Sample(float(number), {}, round(min(t, cap)), ending, limit))
    return arrays(made, 8, 8)


def world(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(lengths, true quantiles of each): two classes, ten times apart."""
    rng = np.random.default_rng(seed)
    median = np.where(rng.random(n) < 0.5, 50.0, 500.0)
    z = np.array([0.0, 0.6745, 1.2816, 1.6449, 2.3263])
    return median * np.exp(0.5 * rng.normal(size=n)), median[:, None] * np.exp(0.5 * z[None, :])


def test_who_knows_the_class_saves_loss_and_covers() -> None:
    tokens, truth = world(4000, 0)
    baseline = percentiles(samples_of(world(4000, 1)[0]), LEVELS)
    report = evaluate(samples_of(tokens), truth, baseline, LEVELS)
    assert report.better and 0.3 < report.skill_low < report.skill < report.skill_high < 0.9
    for level in report.levels:
        assert level.coverage == pytest.approx(level.level, abs=0.02)
        assert level.coverage_long == pytest.approx(level.level, abs=0.03)
        assert level.loss < level.percentile_loss
    # the percentile policy covers all but cannot cover each kind
    assert report.levels[2].percentile_coverage == pytest.approx(0.9, abs=0.02)


def test_the_percentile_policy_itself_is_refused_as_a_predictor() -> None:
    tokens, _ = world(4000, 0)
    baseline = percentiles(samples_of(world(4000, 1)[0]), LEVELS)
    report = evaluate(samples_of(tokens), np.tile(baseline, (4000, 1)), baseline, LEVELS)
    assert report.skill == 0
    with pytest.raises(NoBetter, match="must be sure"):
        report.require_better()


def test_a_gain_that_chance_explains_is_refused() -> None:
    """1% better on average is below the margin, however many requests say so."""
    tokens, _ = world(4000, 0)
    baseline = percentiles(samples_of(world(4000, 1)[0]), LEVELS)
    rng = np.random.default_rng(3)
    noisy = baseline[None, :] * np.exp(rng.normal(0, 0.05, (4000, 1)))
    report = evaluate(samples_of(tokens), noisy, baseline, LEVELS)
    assert report.skill_low < MARGIN and not report.better


def test_a_gain_of_a_lucky_few_is_refused() -> None:
    """Half of the loss is saved, but on 20 requests of 4000 that lie together: another day may not have them."""
    tokens = np.full(4000, 100.0)
    tokens[:20] = 50_000.0
    baseline = np.full(5, 101.0)
    predicted = np.tile(baseline, (4000, 1))
    predicted[:20] = 25_000.0
    report = evaluate(samples_of(tokens), predicted, baseline, LEVELS)
    assert report.skill > 0.4 and report.skill_low < MARGIN and not report.better


def test_coverage_sees_through_limits() -> None:
    tokens, truth = world(20_000, 0)
    caps = np.random.default_rng(5).choice([60.0, 600.0, np.inf], 20_000)
    report = evaluate(samples_of(tokens, caps), truth, truth[0], LEVELS)
    assert 0.2 < report.endings["length"] / 20_000 < 0.5
    for level in report.levels:
        assert level.coverage == pytest.approx(level.level, abs=0.02)


def test_calibration_mends_a_model_that_is_off(fitted: Fitted) -> None:
    log = rows(6000)
    made = arrays([Sample(r["at"], r, r["output_tokens"], r["ending"], None) for r in log], 64, 128)
    raw = Fitted(fitted.levels, fitted.tensors, fitted.mean, fitted.scale, 128, (0.0,) * 5, 100_000)
    new = calibrated(raw, made.part(0, 3000))
    baseline = percentiles(made, LEVELS)
    test = made.part(3000, 6000)
    before, after = (evaluate(test, f.tokens(test), baseline, LEVELS) for f in (raw, new))
    assert abs(before.levels[2].coverage - 0.9) > 0.1
    for level in after.levels:
        assert level.coverage == pytest.approx(level.level, abs=0.025)
    assert new.open_levels == ()


def test_levels_that_limits_hide_are_named(fitted: Fitted) -> None:
    rng = np.random.default_rng(0)
    held_out = samples_of(rng.lognormal(5, 1, 2000), np.full(2000, 300.0))
    assert calibrated(fitted, held_out).open_levels == (0.9, 0.95, 0.99)
