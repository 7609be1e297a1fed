"""What the simulator says of configurations: scores on the scale of a live trial's verdict. Remembers what it ran."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trimtab.engine.settings import Configuration
from trimtab.errors import InputError
from trimtab.search.posterior import Place
from trimtab.search.space import CACHING_OCTAVES, PREFIX, Space
from trimtab.simulate.config import EngineConfig
from trimtab.simulate.measure import headroom, latency_gain, log_goodput
from trimtab.simulate.parallel import in_order
from trimtab.simulate.profile import Profile
from trimtab.simulate.situation import Situation
from trimtab.simulate.summary import Limits
from trimtab.simulate.workload import Workload

#: settings of a Configuration that the model has under the same name
_ENGINE: Final = ("max_num_seqs", "max_num_batched_tokens", PREFIX)
_CAP: Final = "max_new_tokens"
#: requests of one simulated load: enough for a p99, few enough for a lattice of hundreds in a minute
REQUESTS: Final = 1500
LEAST_SECONDS: Final = 60.0
_MOST_SECONDS: Final = 600.0
#: pairs of possible step times and loads
PAIRS: Final = 8


@dataclass(frozen=True)
class Prediction:
    """Per pair of the situation, against the profile's own configuration: the parts of the log score by goodput and by
    latencies. `headrooms`: what goodput could still gain at most, log. `tails`: p99 of TTFT and of TPOT, seconds."""

    goodputs: tuple[float, ...]
    latencies: tuple[float, ...]
    headrooms: tuple[float, ...]
    tails: tuple[tuple[float, float], ...]

    @property
    def scores(self) -> tuple[float, ...]:
        return tuple(g + d for g, d in zip(self.goodputs, self.latencies, strict=True))


#: by configuration and number of pairs
Predictions = dict[tuple[Configuration, int], Prediction]


class Simulated:
    """Predictions for one profile. Deterministic; the answers do not depend on `workers` (threads)."""

    def __init__(
        self,
        profile: Profile,
        limits: Limits,
        *,
        latency_weights: tuple[float, float],
        requests: int = REQUESTS,
        least_seconds: float = LEAST_SECONDS,
        seed: int = 0,
        workers: int = 1,
        known: Predictions | None = None,
    ) -> None:
        """known: what an equal one has found; added to."""
        seconds = min(_MOST_SECONDS, max(least_seconds, requests / profile.workload.requests_per_second))
        self._situation = Situation.of_profile(profile, limits, seconds=seconds, seed=seed, pairs=PAIRS)
        self._capped: dict[int, Situation] = {}
        self.known: Predictions = {} if known is None else known
        self._weights, self._workers = latency_weights, workers

    @property
    def pairs(self) -> int:
        return self._situation.pairs

    def knows(self, configuration: Configuration) -> bool:
        """False where the model would refuse it: then nothing is said about it."""
        return self._engine(configuration) is not None

    def predict(self, configurations: Sequence[Configuration], pairs: int | None = None) -> list[Prediction]:
        """By all pairs, or by the first ones only; all cores at work."""
        wanted = pairs or self.pairs
        missing = [c for c in dict.fromkeys(configurations) if (c, wanted) not in self.known]
        for c, found in zip(missing, in_order(lambda c: self._one(c, wanted), missing, self._workers), strict=True):
            self.known[c, wanted] = found
        return [self.known[c, wanted] for c in configurations]

    def place(self, configuration: Configuration, space: Space) -> Place:
        """Log2 of the integer settings, unset ones where the profile has them; caching as octaves apart."""
        engine = self._engine(configuration) or self._situation.config
        out = []
        for name in space.names:
            if name == PREFIX:
                out.append(CACHING_OCTAVES * engine.enable_prefix_caching)
            else:
                known = getattr(engine, name, None) or engine.max_model_len
                out.append(math.log2(configuration.integer(name) or known))
        return tuple(out)

    def origin(self, space: Space) -> Place:
        """Where the profile was taken."""
        return self.place(Configuration.of(), space)

    def _engine(self, configuration: Configuration) -> EngineConfig | None:
        changes = {name: configuration[name] for name in _ENGINE if name in configuration}
        try:
            return replace(self._situation.config, **changes)  # type: ignore[arg-type]
        except InputError:
            return None

    def _one(self, configuration: Configuration, pairs: int) -> Prediction:
        engine = self._engine(configuration)
        assert engine is not None  # callers ask knows()
        situation = self._under(configuration.integer(_CAP))
        base = self._situation
        ours = [situation.measure(engine, i) for i in range(pairs)]
        theirs = [base.measure(base.config, i) for i in range(pairs)]
        return Prediction(
            tuple(float(log_goodput(a, b)) for a, b in zip(ours, theirs, strict=True)),
            tuple(float(latency_gain(a, b, self._weights)) for a, b in zip(ours, theirs, strict=True)),
            tuple(float(headroom(m)) for m in ours),
            tuple((float(m.ttft_p99), float(m.tpot_p99)) for m in ours),
        )

    def _under(self, cap: int | None) -> Situation:
        """The loads with every answer cut at `cap` tokens."""
        if cap is None:
            return self._situation
        if cap not in self._capped:
            loads = tuple(_capped(load, cap) for load in self._situation.loads)
            self._capped[cap] = Situation(self._situation.config, self._situation.limits, loads, self._situation.times)
        return self._capped[cap]


def _capped(load: Workload, cap: int) -> Workload:
    return replace(load, max_tokens=np.minimum(load.max_tokens, cap).astype(np.int32))
