"""A switchback's periods laid beside each other: a steady drift of the load cancels, and is told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from builders import HEALTHY, NOW, observation, record, spec

from trimtab.errors import MetricsUnreachable
from trimtab.observe.observation import Observation
from trimtab.observe.samples import PodRef, Samples
from trimtab.plan.record import Phase, PodView, Span, Strategy, TargetView, Template, TrialRecord
from trimtab.tune import periods

SPEC = spec(rollout={"measurementSeconds": 60, "warmupSeconds": 10}, guardrails={"windowSeconds": 30})
A1 = Span("a1", "10.0.0.1", NOW, NOW + 60)
B = Span("b", "10.0.0.2", NOW + 100, NOW + 160)
A2 = Span("a2", "10.0.0.3", NOW + 200)
AFTER = NOW + 260
GAIN = 0.2


class Source:
    """Remembers what it was asked."""

    def __init__(self, down: bool = False) -> None:
        self.down, self.asked = down, []

    def fetch(self, pods: Sequence[PodRef], start: float, end: float, step_seconds: float) -> Samples:
        if self.down:
            raise MetricsUnreachable("refused")
        self.asked.append(([p.name for p in pods], start - NOW, end - NOW))
        return Samples()

    def close(self) -> None: ...


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The baseline does 100 tokens/s, `slope` more with each second; the candidate a fifth more than that. `lost` pods
    are unknown."""
    at = {"slope": 0.0}

    def fleet(_: Samples, pods: Sequence[str], start: float, end: float) -> Observation | None:
        if not pods or f"lost {pods[0]}" in at:
            return None
        middle = (start + end) / 2 - NOW
        rate = 100 * (1 + at["slope"] * middle) * (1 + GAIN if pods[0] == "b" else 1.0)
        return observation(rate * (end - start), end - start, finished=20)

    monkeypatch.setattr(periods, "fleet", fleet)
    monkeypatch.setattr(periods, "has_gap", lambda *_: False)
    return at


def trial(phase: Phase, *spans: Span) -> TrialRecord:
    return record(phase, replicas=1, strategy=Strategy.SWITCHBACK, spans=spans)


def look(rec: TrialRecord, now: float, source: Source | None = None) -> Any:
    serving = (PodView(rec.spans[-1].pod if rec.spans else "a1", "10.0.0.9", HEALTHY),)
    candidate = rec.phase in (Phase.WARMING_UP, Phase.MEASURING, Phase.VERIFYING)
    arms = {"canary": serving} if candidate else {"control": serving}
    view = TargetView(Template.BASELINE, paused=False, held=False, replicas=1, settled=True, **arms)
    where = lambda p: PodRef(p.name, "ns", p.ip, 8000)  # noqa: E731
    return periods.evidence_of(source or Source(), SPEC, rec, view, where, now)


@pytest.mark.parametrize("slope", [0.0, 0.002, -0.002])
def test_a_steady_drift_cancels_in_every_pair_and_is_told(world: dict[str, float], slope: float) -> None:
    world["slope"] = slope
    seen = look(trial(Phase.MEASURING_AFTER, A1, B, A2), AFTER)
    assert len(seen.pairs) == 10 and len(seen.drift) == 10
    for pair in seen.pairs:
        ours, theirs = pair.canary.useful_tokens, pair.control.useful_tokens / pair.control.pods
        assert ours / theirs == pytest.approx(1 + GAIN)
    moved = math.fsum(p.canary.useful_tokens for p in seen.drift) / math.fsum(
        p.control.useful_tokens for p in seen.drift
    )
    assert moved == pytest.approx((1 + slope * 230) / (1 + slope * 30))
    assert seen.metrics_ok and seen.canary is not None and seen.control.pods == 2


def test_pairs_are_looked_up_only_where_a_period_is_over(world: dict[str, float]) -> None:
    source = Source()
    early = look(trial(Phase.MEASURING, A1, Span("b", "10.0.0.2", NOW + 100)), NOW + 130, source)
    assert early.pairs == () and early.canary is None and early.metrics_ok
    assert ("a1" in source.asked[-1][0]) and source.asked[-1][1:] == (30.0, 60.0)  # the guardrails' comparison
    assert early.recent_control is not None and early.recent_canary is not None
    over = look(trial(Phase.MEASURING, A1, Span("b", "10.0.0.2", NOW + 100)), NOW + 160)
    assert len(over.pairs) == 10 and over.drift == ()


def test_the_first_period_alone_has_only_a_baseline(world: dict[str, float]) -> None:
    seen = look(trial(Phase.MEASURING_BEFORE, Span("a1", "10.0.0.1", NOW)), NOW + 60)
    assert seen.control is not None and seen.canary is None and seen.recent_canary is None and seen.pairs == ()


def test_a_period_whose_samples_are_lost_makes_no_pairs(world: dict[str, float]) -> None:
    world["lost a1"] = 1.0
    seen = look(trial(Phase.MEASURING_AFTER, A1, B, A2), AFTER)
    assert (
        seen.pairs == () and seen.drift == () and seen.control is not None
    )  # the last one was seen: not to be repeated


def test_between_the_periods_nothing_is_asked_and_a_source_that_is_down_is_said(world: dict[str, float]) -> None:
    source = Source()
    assert look(trial(Phase.RETURNING, A1, B), NOW + 170, source) == periods.Evidence() and source.asked == []
    down = look(trial(Phase.MEASURING_AFTER, A1, B, A2), AFTER, Source(down=True))
    assert not down.metrics_ok and "refused" in down.problem
