"""Which trials belong to the search at hand: those under a load like today's; and how long an ended search holds. Pure.

So the counts of trials and patience begin anew when the load drifts, and hold again when it comes back. What was
learned under another load is not lost: the search weighs it by how alike the loads are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from trimtab.observe.observation import Observation
from trimtab.plan.record import TrialRecord
from trimtab.plan.spec import TunerSpec
from trimtab.search.context import drift, workload_of


@dataclass(frozen=True)
class Ended:
    """Why a search found nothing more to try, and under which load. `over` False: it has not ended."""

    why: str = ""
    workload: Mapping[str, float] = field(default_factory=dict)
    over: bool = True

    @classmethod
    def under(cls, observation: Observation | None, why: str) -> Ended:
        return cls(why, workload_of(observation))

    def holds(self, spec: TunerSpec, observation: Observation | None) -> bool:
        """Not once the load has changed by more than `search.driftPercent`; where it is not known now, it does."""
        return self.over and not drift(self.workload, workload_of(observation), spec.search.drift_percent)


STILL_OPEN: Final = Ended(over=False)


def of_this_load(spec: TunerSpec, trials: Sequence[TrialRecord], observation: Observation | None) -> list[TrialRecord]:
    """Those whose load has not drifted from what is observed now. An unknown load has not."""
    now, percent = workload_of(observation), spec.search.drift_percent
    return [t for t in trials if not drift(t.workload, now, percent)]
