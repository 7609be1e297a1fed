"""What stands around a target on a cluster, and what of it keeps a trial from starting: brakes, rivals, budgets,
autoscalers, a cause that no setting mends. Pure. `trimtab tune` has none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trimtab.diagnose.lever import no_lever
from trimtab.plan.block import Block, Note
from trimtab.plan.fields import IntegerRange
from trimtab.plan.neighbours import Autoscaler, DisruptionBudget, least_num_seqs
from trimtab.plan.record import TrialKind
from trimtab.plan.room import full_until
from trimtab.plan.spec import TunerSpec

if TYPE_CHECKING:
    from trimtab.plan.preconditions import Ground

#: label of a namespace; any value but these freezes it, so that the value can say why
FREEZE_LABEL: Final = "trimtab.dev/freeze"
KILL_SWITCH: Final = "trimtab-kill-switch"
#: what does not stop: an empty value, or one of a person who switches off
_OFF: Final = frozenset({"", "false", "no", "off", "0"})


@dataclass(frozen=True)
class Brakes:
    """What people pulled for many tuners at once; texts, "" where nothing is pulled. unknown: why it cannot be told."""

    stop: str = ""
    freeze: str = ""
    unknown: str = ""

    @property
    def pulled(self) -> str:
        return self.stop or self.freeze


@dataclass(frozen=True)
class Around:
    """rival: the older tuner of the same target. resizers: names of VerticalPodAutoscalers that resize its pods.
    notes: for the status."""

    brakes: Brakes = Brakes()
    rival: str = ""
    budgets: Sequence[DisruptionBudget] = ()
    scalers: Sequence[Autoscaler] = ()
    resizers: Sequence[str] = ()
    notes: Sequence[Note] = ()

    @property
    def least_num_seqs(self) -> int | None:
        return least_num_seqs(self.scalers)


def pulled(value: object) -> bool:
    """Whether a switch's text means stop: anything but empty, false, no, off, 0."""
    return value is not None and str(value).strip().lower() not in _OFF


# --- checks: (ground) -> Block; preconditions.CHECKS has their order --------------------------------------------------
def braked(g: Ground) -> Block | None:
    if g.around is None:
        return None
    brakes = g.around.brakes
    if brakes.stop:
        return Block("KillSwitch", brakes.stop, hard=True)
    if brakes.freeze:
        return Block("NamespaceFrozen", brakes.freeze, hard=True)
    return Block("BrakesUnknown", brakes.unknown) if brakes.unknown else None


def rivalled(g: Ground) -> Block | None:
    if g.around is None or not g.around.rival:
        return None
    text = (
        f"VLLMTuner {g.around.rival} is older and tunes the same Deployment: delete one of the two, or set mode "
        "Recommend in one"
    )
    return Block("AnotherTuner", text, hard=True)


def resized(g: Ground) -> Block | None:
    if g.around is None or not g.around.resizers:
        return None
    text = (
        f"VerticalPodAutoscaler {', '.join(g.around.resizers)} resizes or evicts pods of the target, so canary and "
        'control would not be alike: set its updatePolicy.updateMode to "Initial" or "Off"'
    )
    return Block("PodsResized", text, hard=True)


def beyond_settings(g: Ground) -> Block | None:
    """The diagnosis names a cause that no setting mends. Soft: traffic changes, and so may the cause."""
    cause = no_lever(g.fleet.findings) if g.around is not None else None
    if cause is None or g.kind is TrialKind.INSTALL:
        return None
    return Block("TuningCannotHelp", f"{cause.name}: {cause.message} {cause.advice}")


def undisrupted(g: Ground) -> Block | None:
    """A trial in place of a pod takes that pod away for a while: as much as a voluntary disruption."""
    if g.around is None or g.kind is TrialKind.POLICY:
        return None
    surge = g.spec.rollout.max_surge
    if surge == 1 or (surge is None and full_until(g.recent) <= g.now):
        return None  # one more pod is asked for first
    full = next((b for b in g.around.budgets if b.allowed < 1), None)
    if full is None:
        return None
    why = "although all pods are healthy: it allows none ever" if full.healthy else "until more pods are healthy"
    text = (
        f"PodDisruptionBudget {full.name} allows no disruption {why}; a trial with spec.rollout.maxSurge: 1 adds a pod "
        "instead of taking one"
    )
    return Block("DisruptionsNotAllowed", text)


def bounded(spec: TunerSpec, least_num_seqs: int | None) -> TunerSpec:
    """The spec with a search that proposes no max_num_seqs below this: an autoscaler could never add a pod with it."""
    if least_num_seqs is None:
        return spec
    search, found = spec.search, spec.search.max_num_seqs
    if found is not None and found.min < least_num_seqs:
        raised = IntegerRange(min=least_num_seqs, max=found.max) if found.max >= least_num_seqs else None
        search = search.model_copy(update={"max_num_seqs": raised})
    kept = tuple(c for c in search.candidates if not _below(c, least_num_seqs))
    return spec.model_copy(update={"search": search.model_copy(update={"candidates": kept})})


def below(spec: TunerSpec, least_num_seqs: int | None) -> list[str]:
    """Which of the person's own candidates `bounded` leaves out, and why."""
    if least_num_seqs is None:
        return []
    return [
        f"spec.search.candidates[{n}] is not tried: an autoscaler scales on running requests and could never add a pod "
        f"with maxNumSeqs below {least_num_seqs}"
        for n, candidate in enumerate(spec.search.candidates)
        if _below(candidate, least_num_seqs)
    ]


def _below(candidate: Mapping[str, object], least: int) -> bool:
    slots = candidate.get("maxNumSeqs")
    return isinstance(slots, int) and slots < least


def notes_of(scalers: Sequence[Autoscaler], max_num_seqs: int | None) -> list[Note]:
    """What autoscalers mean for trials. max_num_seqs: as it is now, None where not known."""
    out = []
    for scaler in scalers:
        if not scaler.scales:
            continue
        text = f"HorizontalPodAutoscaler {scaler.name} may change the replicas; a trial during which it does ends"
        if scaler.running is not None:
            least = int(scaler.running + 1e-9) + 1
            text += f"; it scales on running requests, so maxNumSeqs below {least} is not tried"
            if max_num_seqs is not None and max_num_seqs < least:
                text += f" (now {max_num_seqs}: it can never add a pod)"
        elif scaler.hidden:
            text += (
                "; KEDA made it, and what it scales on cannot be seen here: if that is running requests, keep "
                "spec.search.maxNumSeqs.min above its threshold"
            )
        out.append(Note("Autoscaled", text))
    return out
