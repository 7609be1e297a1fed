"""Which trials belong to the search at hand: those under a load like today's; and how long an ended search holds. Pure.

So the counts of trials and patience begin anew when the load drifts, and hold again when it comes back. What was
learned under another load is not lost: the search weighs it by how alike the loads are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from trimtab.engine.settings import Configuration
from trimtab.observe.observation import Observation
from trimtab.plan.record import TrialRecord
from trimtab.plan.spec import TunerSpec
from trimtab.search.context import SETTINGS_LEAVE, drift, workload_of


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


def of_this_load(
    spec: TunerSpec,
    trials: Sequence[TrialRecord],
    observation: Observation | None,
    configuration: Configuration | None = None,
) -> list[TrialRecord]:
    """Those whose load has not drifted from what is observed now. An unknown load has not.

    configuration: what runs now. Beside a trial that began under another one only the prompts are compared: rates,
    answers and aborts of a full target change with its settings, and a promotion is no drift of the load.
    """
    now, percent = workload_of(observation), spec.search.drift_percent
    offered = {name: value for name, value in now.items() if name in SETTINGS_LEAVE}
    same = {t.name for t in trials if configuration is None or t.baseline == configuration}
    return [t for t in trials if not drift(t.workload, now if t.name in same else offered, percent)]
