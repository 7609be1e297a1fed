"""Random search beside the gain: what drawing settings blindly would have found with as many trials."""

from __future__ import annotations

from trimtab.plan.summary import percent
from trimtab.report.story import Report
from trimtab.search.control import RANGE, random_control


def beside(report: Report) -> str:
    """In words. Known only where every configuration that may be tried has a value: where a simulation gave one."""
    tried = len(report.tried)
    gain = report.counts.best_gain
    values = [f.gain for f in report.forecasts]
    if not values:
        return (
            "Random search with as many trials: not known. It would need the result of every configuration that may "
            "be tried, and only those above were measured. A profile (trimtab calibrate) makes it known."
        )
    found = random_control(values, tried, start=0.0)
    text = (
        f"Random search with {found.trials} of {found.of} configurations would have gained {percent(found.mean)} on "
        f"average ({percent(found.low)} to {percent(found.high)} in {RANGE:.0%} of cases), by simulation"
    )
    if gain is None:
        return f"{text}."
    return f"{text}; it reaches the gain measured here in {found.chance(gain):.0%} of cases."
