"""The next record of a trial; a fault of our own in finding it never keeps untried settings in traffic.

Hazard: the state machine is pure, so what fails once fails at every look. Without this the trial would never end.
"""

from __future__ import annotations

import logging
from typing import Final

from trimtab.judge.verdict import Kind, Verdict
from trimtab.plan.record import Evidence, Phase, TargetView, TrialRecord, Wish
from trimtab.plan.spec import TunerSpec
from trimtab.plan.switchback import advance
from trimtab.plan.trial import Situation, roll_back

#: where nothing untried serves, or the way back is under way already: the error is told, and tried again
_NOTHING_TO_UNDO: Final = frozenset({Phase.AWAITING_APPROVAL, Phase.ROLLING_BACK})
_log = logging.getLogger(__name__)


def decide(
    spec: TunerSpec, record: TrialRecord, view: TargetView, evidence: Evidence, wish: Wish, now: float
) -> TrialRecord:
    """`advance`; where it raises, the way back with a verdict (Error, JudgeFailed) that says so."""
    try:
        return advance(spec, record, view, evidence, wish, now)
    except Exception as error:  # a bug, whichever: what it must not do is to leave the target as it is
        if record.ended or record.phase in _NOTHING_TO_UNDO:
            raise
        _log.exception("%s: the trial could not be judged; it is rolled back", record.name)
        text = f"Trimtab failed to judge the trial ({type(error).__name__}: {error}); please report it"
        at = Situation(spec, record, view, evidence, wish, now)
        return roll_back(at, Verdict(Kind.ERROR, "JudgeFailed", text))
