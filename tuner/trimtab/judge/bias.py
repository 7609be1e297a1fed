"""The pod is not the configuration: what equal arms say about how far two pods with the same settings lie apart.

A process keeps the speed it started with (ROCm/legacy-rocm-build#6347: 33 or 26 tok/s with the same flags), a node or a
route favours a pod for good, and no number of windows averages that away. So what a trial sees is effect + bias, and
the bias is handled by itself:

- windows of the canary's own place before the trial (A/A), where its pod or its place stays: its difference then is
  subtracted, drawn towards 0 by as much as it is uncertain (the control variate of Deng, Xu, Kohavi, Walker: CUPED,
  2013);
- where a new pod takes an old one's place, nothing is known of it; but the old one and the control pods say how far
  apart pods are that differ in nothing;
- differences between the control pods during the trial say that, too;
- how much one start differs from the next, and one pod from another where nothing of these tells:
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
#: pods whose variance is this many times what was said are believed alone: then what was said is wrong. Pods 10% apart
#: and said to be 3%: equal ones Better in 4% (10% without it); +15% with pods as said is seen in 87% (91%)
_FAR_APART: Final = 2.5
#: windows before the trial that make a mean
_LEAST_BEFORE: Final = 3
#: variance below which two starts weigh the same
_SMALL: Final = 1e-12


@dataclass(frozen=True)
class Bias:
    """On the scale of the differences. `shift` is subtracted; what remains is `own_sd`, which another start draws anew
    (how fast it happens to be, the noise of its own windows before), and `shared_sd`, which it does not (what is not
    known of the place). `half`: half-width of both with Student's t.

    measured: windows of the canary's own place before the trial were there.
    """

    shift: float
    own_sd: float
    shared_sd: float
    half: float
    measured: bool

    @property
    def sd(self) -> float:
        return math.hypot(self.own_sd, self.shared_sd)

    def corrected(self, seen: Interval) -> Interval:
        return seen.shifted(-self.shift).widened(self.half)


@dataclass(frozen=True)
class Start:
    """One measured start of a configuration: effect (log ratio), the standard error of its windows alone, and the two
    parts of what its bias left (`Bias`)."""

    effect: float
    error: float
    own_sd: float
    shared_sd: float


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
    *,
    own: bool = True,
) -> Bias:
    """before: differences before the trial between one pod and the controls: the canary's own place with `own`, else a
    pod that is gone. controls: per control pod its differences from the mean of them all, in the trial's windows.
    found: noise of one difference.
    """
    pods = max(1, len(controls))
    mean, error = 0.0, math.inf
    if len(before) >= _LEAST_BEFORE:
        mean, error = math.fsum(before) / len(before), mean_error(before, found) ** 2
    if own and error < math.inf:
        known = max(usual.pod**2, mean * mean - error)
        trust = known / (known + error)
        # of bias - trust x (bias + error): another trial has other windows before it, and the same place
        sd, shared = math.hypot(usual.start, trust * math.sqrt(error)), (1 - trust) * math.sqrt(known)
        half = student_half(_PRIOR_PODS + pods - 1, confidence) * math.hypot(sd, shared)
        return Bias(trust * mean, sd, shared, half, measured=True)
    said = usual.start**2 + usual.pod**2
    variance, degrees = said, _PRIOR_PODS
    if said > 0:
        total, seen = 0.0, 0
        if pods > 1:
            total, seen = (pods - 1) * max(0.0, _between(controls, found)), pods - 1
        if error < math.inf:
            total, seen = total + max(0.0, mean * mean - error) / (1 + 1 / pods), seen + 1
        variance, degrees = (_PRIOR_PODS * said + total) / (_PRIOR_PODS + seen), _PRIOR_PODS + seen
        if total > _FAR_APART * said * seen:
            variance, degrees = total / seen, float(seen)
    sd, shared = math.sqrt(variance), math.sqrt(variance / pods)
    return Bias(0.0, sd, shared, student_half(degrees, confidence) * math.hypot(sd, shared), measured=False)


def _between(controls: Sequence[Sequence[float]], found: Noise) -> float:
    """Variance between pods beyond what their windows' noise makes (method of moments)."""
    pods = len(controls)
    means = [math.fsum(c) / len(c) for c in controls]
    middle = math.fsum(means) / pods
    seen = math.fsum((m - middle) ** 2 for m in means) / (pods - 1)
    # a difference canary - mean of the controls has 1 + 1 / pods times the noise of one pod
    return seen - mean_error(controls[0], found) ** 2 / (1 + 1 / pods)


def replicated(starts: Sequence[Start], confidence: float) -> Interval | None:
    """The effect over several starts of the same configuration: what each start draws anew averages out as 1 / starts.

    None for no start. Looked at once per start, and further starts are made only of what looked good: each of n looks
    gets 1 / n of the error (Bonferroni). Student's t, with the spread between starts where that is larger than what was
    known of it.
    """
    if not starts:
        return None
    n = len(starts)
    weights = [1 / max(s.error**2 + s.own_sd**2, _SMALL) for s in starts]
    total = math.fsum(weights)
    mean = math.fsum(w * s.effect for w, s in zip(weights, starts, strict=True)) / total
    spread = math.fsum((s.effect - mean) ** 2 for s in starts) / (n - 1) / n if n > 1 else 0.0
    shared = max(s.shared_sd for s in starts)
    error = math.sqrt(max(1 / total, spread) + shared**2)
    half = student_half(_PRIOR_PODS + n - 1, 1 - (1 - confidence) / n) * error
    return Interval(mean, mean - half, mean + half, float(n))
