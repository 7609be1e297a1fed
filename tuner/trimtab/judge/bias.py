"""The pod is not the configuration: what equal arms say about how far two pods with the same settings lie apart.

A process keeps the speed it started with (ROCm/legacy-rocm-build#6347: 33 or 26 tok/s with the same flags), a node or a
route favours a pod for good, and no number of windows averages that away. So what a trial sees is effect + bias, and
the bias is handled by itself:

- windows of the same pod before the trial (A/A), where there are any: its difference then is subtracted, drawn towards
  0 by as much as it is uncertain (the control variate of Deng, Xu, Kohavi, Walker: CUPED, 2013);
- differences between the control pods during the trial: how far apart pods are that differ in nothing;
- how much one start differs from the next, and one pod from another where neither of these tells:
  `Objective.start_variation_percent` and `pod_variation_percent`.

What is left widens the interval. A gain that drowns in it alone needs another start, not more minutes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trimtab.judge.stats import Interval, Noise, mean_error, student_half

#: what is said about variation beforehand counts as much as this many further pods
_PRIOR_PODS: Final = 4.0


@dataclass(frozen=True)
class Bias:
    """On the scale of the differences. `shift` is subtracted, `sd` remains, `half` is its half-width with Student's t.

    `measured`: windows of the same pod before the trial were there.
    """

    shift: float
    sd: float
    half: float
    measured: bool

    def corrected(self, seen: Interval) -> Interval:
        return seen.shifted(-self.shift).widened(self.half)


@dataclass(frozen=True)
class Start:
    """One measured start of a configuration: effect (log ratio) and the standard error of its windows alone."""

    effect: float
    error: float


@dataclass(frozen=True)
class Variation:
    """Standard deviations of log speed: between starts of one pod's process, and between pods that stay apart."""

    start: float
    pod: float


def bias(
    before: Sequence[float],
    controls: Sequence[Sequence[float]],
    found: Noise,
    usual: Variation,
    confidence: float,
) -> Bias:
    """before: differences of the canary's pod and the controls before the trial. controls: per control pod its
    differences from the mean of them all, in the trial's windows. found: noise of one difference.
    """
    extra = max(0, len(controls) - 1)
    degrees, shift = _PRIOR_PODS + extra, 0.0
    if len(before) >= 3:
        mean, error = math.fsum(before) / len(before), mean_error(before, found) ** 2
        known = max(usual.pod**2, mean * mean - error)
        trust = known / (known + error)
        shift, variance = trust * mean, usual.start**2 + trust * error
    else:
        variance = usual.start**2 + usual.pod**2
        if extra and variance > 0:
            variance = (_PRIOR_PODS * variance + extra * max(0.0, _between(controls, found))) / degrees
        variance *= 1 + 1 / max(1, len(controls))
    sd = math.sqrt(variance)
    return Bias(shift, sd, student_half(degrees, confidence) * sd, len(before) >= 3)


def _between(controls: Sequence[Sequence[float]], found: Noise) -> float:
    """Variance between pods beyond what their windows' noise makes (method of moments)."""
    pods = len(controls)
    means = [math.fsum(c) / len(c) for c in controls]
    middle = math.fsum(means) / pods
    seen = math.fsum((m - middle) ** 2 for m in means) / (pods - 1)
    # a difference canary - mean of the controls has 1 + 1 / pods times the noise of one pod
    return seen - mean_error(controls[0], found) ** 2 / (1 + 1 / pods)


def replicated(starts: Sequence[Start], start_sd: float, confidence: float) -> Interval | None:
    """The effect over several starts of the same configuration: each start's own speed averages out as 1 / starts.

    None for no start. Looked at once per start, which is few: Student's t with the spread between starts where that is
    larger than what was said about it.
    """
    if not starts:
        return None
    n = len(starts)
    weights = [1 / (s.error**2 + start_sd**2) if s.error > 0 or start_sd > 0 else 1.0 for s in starts]
    total = math.fsum(weights)
    mean = math.fsum(w * s.effect for w, s in zip(weights, starts, strict=True)) / total
    spread = math.fsum((s.effect - mean) ** 2 for s in starts) / (n - 1) / n if n > 1 else 0.0
    error = math.sqrt(max(1 / total, spread))
    half = student_half(_PRIOR_PODS + n - 1, confidence) * error
    return Interval(mean, mean - half, mean + half, float(n))
