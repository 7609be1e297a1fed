"""Why a configuration is not tried (again). Pure; safety comes before curiosity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trimtab.engine.settings import Configuration
from trimtab.search.candidate import Outcome
from trimtab.search.space import Space, coherent

#: settings that take device memory: more of them never starts where less crashed
MEMORY: Final = ("max_num_seqs", "max_num_batched_tokens")
#: starts of one configuration, all trials together
MAX_STARTS: Final = 3
#: trials without a result (inconclusive, or an error that was not the configuration's) before it is left alone
MAX_UNCLEAR = 2


def refusal(
    configuration: Configuration, history: Sequence[Outcome], baseline: Configuration, space: Space
) -> str | None:
    """The reason in plain words, or None when it may be tried. `baseline` is what runs now, so it is feasible and
    tried."""
    if not coherent(configuration):
        return "maxNumBatchedTokens is below maxNumSeqs: vLLM would not start"
    if not space.contains(configuration):
        return "outside the search space"
    cell = space.cell(configuration)
    if cell == space.cell(baseline):
        return "it is what runs now"
    if any(o.measured and o.control is not None and space.cell(o.control) == cell for o in history):
        return "it has served as control"
    same = [o for o in history if space.cell(o.configuration) == cell]
    if any(o.infeasible for o in same):
        return "it crashed or never became ready"
    if any(o.decided for o in same):
        return "it has been tried"
    if len(same) >= MAX_UNCLEAR:
        return f"tried {len(same)} times without a clear result"
    crashed = _above_a_crash(configuration, history, baseline)
    return None if crashed is None else f"{crashed.configuration} crashed with no more memory in use"


def another_start(history: Sequence[Outcome], baseline: Configuration, space: Space) -> Configuration | None:
    """What the judge wants started once more before anything else: its last trial asked for it, and it may be."""
    for outcome in reversed(history):
        if not outcome.measured:
            continue
        wanted = outcome.configuration
        starts = sum(space.cell(o.configuration) == space.cell(wanted) for o in history)
        asked = outcome.again and starts < MAX_STARTS and space.cell(wanted) != space.cell(baseline)
        return wanted if asked and (outcome.control is None or outcome.control == baseline) else None
    return None


def _above_a_crash(configuration: Configuration, history: Sequence[Outcome], baseline: Configuration) -> Outcome | None:
    """A crashed trial that used no more memory. Overruled by something that runs with at least as much memory.

    If that something ran with as much memory as the crashed trial did but other settings, memory was not the cause:
    then the crash condemns only configurations with the same other settings.
    """
    measured = [o for o in history if o.measured]
    running = [baseline, *(o.configuration for o in measured), *(o.control for o in measured if o.control is not None)]
    if any(_same_others(r, configuration) and _at_least(r, configuration) for r in running):
        return None
    for outcome in history:
        bad = outcome.configuration
        if not outcome.infeasible or not _at_least(configuration, bad):
            continue
        if _same_others(configuration, bad) or not any(_at_least(r, bad) for r in running):
            return outcome
    return None


def _at_least(more: Configuration, less: Configuration) -> bool:
    """Whether `more` takes at least the memory of `less`: both known, or both left to vLLM. At least one is known."""
    known = False
    for name in MEMORY:
        a, b = more.integer(name), less.integer(name)
        if (a is None) != (b is None):
            return False
        if a is not None and b is not None:
            known = True
            if a < b:
                return False
    return known


def _same_others(first: Configuration, second: Configuration) -> bool:
    return not any(name not in MEMORY for name in first.changes_to(second))
