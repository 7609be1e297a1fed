"""Whether a setting of the engine is the lever at all, for those who would try settings on live traffic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trimtab.diagnose.cancellation import answers_slow
from trimtab.diagnose.finding import ALARM_CONFIDENCE, Finding, Role

#: causes that lie outside the engine: clients, the router, the load, what is beside or below the engine
_OUTSIDE: Final = frozenset(
    {
        "CancellationDominates",
        "CancellationHidden",
        "QueueOverCapacity",
        "Imbalance",
        "FrontendBound",
        "FlagNotTheLever",
    }
)
#: findings that a setting can mend: where one stands beside clients that leave, it may be why they leave
_PRESSURE: Final = frozenset(
    {"DeathSpiral", "Preemption", "OverReservation", "KvBound", "SlotBound", "PrefillBound", "PrefixCacheOff"}
)
#: a suspicion is enough not to give up on settings
_SUSPECTED: Final = 0.5


def no_lever(findings: Sequence[Finding]) -> Finding | None:
    """The main cause where it is believed and no setting mends it, else None.

    Clients that leave because answers are slow, or beside slots, memory or prompts under pressure, may well leave for
    the settings: that is tuned.
    """
    main = next((f for f in findings if f.role is Role.MAIN), None)
    if main is None or main.tunable or main.confidence < ALARM_CONFIDENCE or main.name not in _OUTSIDE:
        return None
    if main.name.startswith("Cancellation"):
        pressed = any(f.name in _PRESSURE and f.confidence >= _SUSPECTED for f in findings)
        return None if pressed or answers_slow(main) else main
    return main
