"""Parts in order of time: what is tested lies after everything that was learned from, as it will in use."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.errors import InputError
from trimtab.predict.samples import Samples

#: shares of train, validation (early stopping), calibration; the rest tests
SHARES = (0.55, 0.10, 0.175)
#: below this the test part has under 10 requests above its p99 and the comparison says nothing
MIN_REQUESTS = 2000


@dataclass(frozen=True)
class Parts:
    train: Samples
    validation: Samples
    calibration: Samples
    test: Samples


def by_time(samples: Samples) -> Parts:
    """InputError with fewer than MIN_REQUESTS."""
    n = len(samples)
    if n < MIN_REQUESTS:
        fix = f"Log at least {MIN_REQUESTS}; until then the percentile policy serves."
        raise InputError("SOURCE", f"{n} finished requests are too few to learn and to test on", fix)
    a = int(n * SHARES[0])
    b = a + int(n * SHARES[1])
    c = b + int(n * SHARES[2])
    return Parts(samples.part(0, a), samples.part(a, b), samples.part(b, c), samples.part(c, n))
