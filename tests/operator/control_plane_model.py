"""A small world for the model check: one Deployment, its controller, a kubelet and people who interfere.

`World` is immutable and small; `moves` lists what may happen next. The operator's own move is the product's code:
`advance`, `desired`, `next_patch` on a real Deployment object made from the world. Time is counted in units of
`UNIT` seconds and kept relative, so that the states are finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from builders import CRASHED, HEALTHY, NOW, STARTING, evidence, observation, record, spec

from trimtab.judge.windows import Pair
from trimtab.plan.record import (
    Desired,
    Evidence,
    Phase,
    PodView,
    Span,
    Strategy,
    TargetView,
    Template,
    TrialRecord,
    Wish,
)
from trimtab.plan.switchback import advance, desired
from trimtab_operator import rollout
from trimtab_operator.rollout import HOLD_ONE_REPLICA_SECONDS, TRIAL_ANNOTATION, Baseline, next_patch, settled, whose

Json = dict[str, Any]
UNIT: Final = 10.0
#: longer than any duration of the spec, so that older than this is the same as this
OLDEST: Final = 3
SPEC: Final = spec(
    rollout={
        "warmupSeconds": 10, "measurementSeconds": 10, "confirmationSeconds": 10, "maxMeasurementSeconds": 20,
        "verificationSeconds": 10, "progressDeadlineSeconds": 20,
    },
    guardrails={"maxMetricsGapSeconds": 20},
)  # fmt: skip
OWNERS_STRATEGY: Final[Json] = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
TEMPLATES: Final = {name: {"metadata": {}, "spec": {"v": name}} for name in "BCF"}
#: the owner's progressDeadlineSeconds
_DEADLINE: Final = 60
_OLD_AS_CAN_BE: Final = NOW - OLDEST * UNIT


def measured(gain: float | None, scatter: float = 0.02) -> Evidence:
    """What the metrics say at any time; None: nothing."""
    if gain is None:
        return Evidence(problem="the metrics source does not answer")
    wide = observation(seconds=10_000.0)
    steady = tuple(Pair(NOW + i, NOW + i + 1, wide, wide) for i in range(10))
    return replace(evidence(gain, start=NOW, windows=15, scatter=scatter), canary=wide, control=wide, drift=steady)


EVIDENCE: Final = {
    "none": measured(None), "better": measured(0.4), "worse": measured(-0.4), "same": measured(0.0),
    "unclear": measured(0.0, scatter=0.2),
}  # fmt: skip
#: kinds of evidence that make a difference: a switchback has one look, and all that is not better goes one way
KINDS: Final[Mapping[Strategy, tuple[str, ...]]] = {
    Strategy.CANARY: tuple(EVIDENCE), Strategy.SWITCHBACK: ("none", "better", "same"),
}  # fmt: skip


@dataclass(frozen=True)
class World:
    """template: B(aseline), C(andidate), F(oreign), "" for a deleted target. Pods are u(nschedulable), s(tarting),
    r(eady, not yet for long), a(vailable), x (crashed); old ones first. seen: the controller has seen the spec."""

    record: TrialRecord
    template: str = "B"
    paused: bool = False
    paused_by_other: bool = False
    marked: bool = False
    strategy: str = "owner"
    #: minReadySeconds
    hold: int = 0
    seen: bool = True
    replicas: int = 2
    old: str = "aa"
    new: str = ""
    foreign: str = ""
    stop: bool = False
    surge: int = 0
    #: interferences left
    trouble: int = 0

    def key(self) -> tuple[object, ...]:
        r = self.record
        last = r.spans[-1].start if r.spans else None
        times = (r.phase_since, r.measure_from, r.confirm_from, r.metrics_seen_at, last)
        memory = (
            r.phase,
            r.applied,
            r.held,
            r.evaluations,
            r.remeasured,
            tuple((s.pod, s.end is None) for s in r.spans),
            r.verdict and (r.verdict.kind, r.verdict.reason),
        )
        world = tuple(getattr(self, name) for name in self.__dataclass_fields__ if name != "record")
        return (world, memory, tuple(None if t is None else round((NOW - t) / UNIT) for t in times))


def start(*, surge: int, trouble: int, approve: bool = False, switchback: bool = False, replicas: int = 2) -> World:
    """Some replicas and a canary, or one and a switchback."""
    if switchback:
        first = Phase.AWAITING_APPROVAL if approve else Phase.MEASURING_BEFORE
        begun = record(first, replicas=1, strategy=Strategy.SWITCHBACK, max_surge=surge)
        return World(begun, surge=surge, trouble=trouble, replicas=1, old="a")
    first = Phase.AWAITING_APPROVAL if approve else Phase.STARTING
    begun = record(first, replicas=replicas, max_surge=surge)
    return World(begun, surge=surge, trouble=trouble, replicas=replicas, old="a" * replicas)


def baseline(world: World) -> Baseline:
    return Baseline("d", TEMPLATES["B"], TEMPLATES["C"], OWNERS_STRATEGY, None, _DEADLINE, world.surge)


def deployment(world: World) -> Json | None:
    """The Deployment as the API server has it."""
    if not world.template:
        return None
    strategies = {"owner": OWNERS_STRATEGY, "ours": rollout.narrowed(world.surge)}
    pods = {"B": world.old, "C": world.new, "F": world.foreign}
    everything, current = world.old + world.new + world.foreign, pods[world.template]
    holding = {"minReadySeconds": world.hold} if world.hold else {}
    return {
        "metadata": {
            "name": "llm", "uid": "d", "generation": 2,
            "annotations": {TRIAL_ANNOTATION: "llm-1"} if world.marked else {},
        },
        "spec": {
            "replicas": world.replicas, "template": TEMPLATES[world.template], "strategy": strategies[world.strategy],
            "progressDeadlineSeconds": max(_DEADLINE, world.hold + 1),
            **({"paused": True} if world.paused else {}), **holding,
        },
        "status": {
            "observedGeneration": 2 if world.seen else 1, "replicas": len(everything), "updatedReplicas": len(current),
            "readyReplicas": sum(p in "ra" for p in everything),
            "availableReplicas": everything.count("a") + (0 if world.hold else everything.count("r")),
        },
    }  # fmt: skip


def patched(world: World, operations: list[Json]) -> World:
    """The world after the operator's JSON patch. Fails on a path that a patch of the operator should not touch."""
    for operation in operations:
        path, value = operation["path"], operation.get("value")
        if path == "/spec/template":
            world = replace(world, template=value["spec"]["v"])
        elif path == "/spec/paused":
            world = replace(world, paused=operation["op"] != "remove", paused_by_other=False)
        elif path == "/spec/strategy":
            world = replace(world, strategy="owner" if value == OWNERS_STRATEGY else "ours")
        elif path == "/spec/minReadySeconds":
            world = replace(world, hold=0 if operation["op"] == "remove" else value)
        elif path == "/spec/progressDeadlineSeconds":
            assert value == _DEADLINE or value > HOLD_ONE_REPLICA_SECONDS
        else:
            assert path.startswith("/metadata/annotations/"), path
            world = replace(world, marked=operation["op"] != "remove")
    return replace(world, seen=False) if operations else world


def view(world: World) -> TargetView:
    body = deployment(world)
    template = whose(body, baseline(world))
    if body is None or template is Template.MISSING:
        return TargetView(Template.MISSING, paused=False, held=False, replicas=0, settled=False)
    canary, control = _pods(world.new, "new"), _pods(world.old, "old")
    return TargetView(template, world.paused, world.marked, world.replicas, settled(body), canary, control)


def _pods(states: str, name: str) -> tuple[PodView, ...]:
    health = {
        "u": replace(STARTING, scheduled=False), "s": STARTING, "r": HEALTHY, "a": HEALTHY, "x": CRASHED
    }  # fmt: skip
    return tuple(PodView(f"{name}-{i}", "10.0.0.1", health[s]) for i, s in enumerate(states))


# --- the operator -----------------------------------------------------------------------------------------------------
def look(world: World, gain: str) -> World:
    """The first half of a pass: the record is decided and saved."""
    wish = Wish(stop="suspended" if world.stop else "", approved=world.record.phase is Phase.AWAITING_APPROVAL)
    after = advance(SPEC, world.record, view(world), EVIDENCE[gain], wish, NOW)
    return replace(world, record=_relative(after, 0.0))


def write(world: World) -> World:
    """The second half: one step of the target."""
    body = deployment(world)
    wanted = desired(world.record, whose(body, baseline(world)))
    if wanted is Desired.KEEP or body is None:
        return world
    sets = [{"spec": {"template": TEMPLATES["C"], "replicas": len(world.new)}}] if world.new else []
    return patched(world, next_patch(wanted, body, sets, baseline(world), "llm-1"))


def remember(world: World) -> World:
    """After the candidate's template was written: that it was, is saved."""
    if world.record.phase in (Phase.STARTING, Phase.PROMOTING) and world.template == "C":
        return replace(world, record=replace(world.record, applied=True))
    return world


def _relative(record_: TrialRecord, seconds: float) -> TrialRecord:
    """`seconds` later, on a clock that stands still; without the texts and sums that make states infinite."""

    def older(at: float | None) -> float | None:
        return None if at is None else max(at - seconds, _OLD_AS_CAN_BE)

    return replace(
        record_,
        phase_since=max(record_.phase_since - seconds, _OLD_AS_CAN_BE), measure_from=older(record_.measure_from),
        confirm_from=older(record_.confirm_from), metrics_seen_at=older(record_.metrics_seen_at),
        started_at=NOW, finished_at=None, restarts=0, message="",
        spans=tuple(_aged(s, older(s.start) or NOW) for s in record_.spans),
    )  # fmt: skip


def _aged(span: Span, start: float) -> Span:
    """When a period that is over took place is nothing that the machine looks at."""
    return replace(span, start=start) if span.end is None else replace(span, start=NOW, end=NOW)


# --- the cluster ------------------------------------------------------------------------------------------------------
def controller(world: World) -> Iterator[tuple[str, World]]:
    """What the Deployment controller may do next."""
    if not world.template:
        return
    names = {"B": "old", "C": "new", "F": "foreign"}
    if not world.seen:
        name = names[world.template]
        young = (
            {name: _sorted(getattr(world, name).replace("a", "r"))} if world.hold >= HOLD_ONE_REPLICA_SECONDS else {}
        )
        yield "controller sees", replace(world, seen=True, **young)  # no pod is a month old
        return
    pods = {"B": world.old, "C": world.new, "F": world.foreign}
    current, everything = pods[world.template], "".join(pods.values())
    others = [other for other in "BCF" if other != world.template and pods[other]]
    if len(current) == world.replicas and all(_available(p, world) for p in current):
        for other in others:  # paused or not: the new ReplicaSet is complete
            yield "controller removes what is replaced", replace(world, **{names[other]: ""})
    if world.paused:
        return
    surge, unavailable = (world.surge, 1 - world.surge) if world.strategy == "ours" else (1, 0)
    if len(current) < world.replicas and len(everything) < world.replicas + surge:
        yield "controller creates", replace(world, **{names[world.template]: current + "s"})
    if len(current) > world.replicas:
        yield "controller scales in", replace(world, **{names[world.template]: _less(current)})
    available = sum(_available(p, world) for p in everything)
    for other in others:
        broken = any(p in "usx" for p in pods[other])
        if broken or available - 1 >= world.replicas - unavailable:
            yield "controller deletes", replace(world, **{names[other]: _less(pods[other])})


def _available(pod: str, world: World) -> bool:
    return pod == "a" or (pod == "r" and not world.hold)


def _less(pods: str) -> str:
    """One pod fewer: a broken one before a young one before an available one."""
    ordered = sorted(pods, key="uxsra".index)
    return "".join(sorted(ordered[1:]))


def kubelet(world: World) -> Iterator[tuple[str, World]]:
    for name in ("old", "new", "foreign"):
        pods = getattr(world, name)
        if "s" in pods:
            yield f"a pod of {name} is ready", replace(world, **{name: _sorted(pods.replace("s", "r", 1))})
        if "s" in pods and name == "new":
            yield "the candidate crashes at start", replace(world, new=_sorted(world.new.replace("s", "x", 1)))
            if world.surge:
                yield "no node has room", replace(world, new=_sorted(world.new.replace("s", "u", 1)))
        if "u" in pods:
            yield f"a node takes a pod of {name}", replace(world, **{name: _sorted(pods.replace("u", "s", 1))})


def _sorted(pods: str) -> str:
    return "".join(sorted(pods))


def time_passes(world: World) -> World:
    """One unit: what was ready counts as available when it has been for long enough. Only the ReplicaSet of the
    current template is held back by a new minReadySeconds."""
    aged = replace(world, record=_relative(world.record, UNIT))
    for template, name in (("B", "old"), ("C", "new"), ("F", "foreign")):
        if world.template != template or world.hold < HOLD_ONE_REPLICA_SECONDS:
            aged = replace(aged, **{name: _sorted(getattr(world, name).replace("r", "a"))})
    return aged


def interference(world: World) -> Iterator[tuple[str, World]]:
    """What people, other tools and nodes do, each at any time."""
    if not world.trouble or not world.template:
        return
    w = replace(world, trouble=world.trouble - 1)
    yield "suspended", replace(w, stop=True)
    yield "target deleted", replace(w, template="", old="", new="", foreign="")
    yield "owner puts the old template back", replace(w, template="B", seen=False)
    yield "someone writes another template", replace(w, template="F", seen=False)
    yield "someone pauses", replace(w, paused=True, paused_by_other=True)
    yield "someone resumes", replace(w, paused=False, paused_by_other=False, seen=False)
    yield "scaled to 3", replace(w, replicas=3, seen=False)
    if w.new:
        yield "a canary dies under load", replace(w, new=_sorted("x" + _less(w.new)))
        yield "a canary is evicted", replace(w, new=_less(w.new))
    if w.old:
        yield "a control pod is lost", replace(w, old=_less(w.old))


def moves(world: World, act: Callable[[World], World] = write) -> Iterator[tuple[str, World]]:
    """Every next state, with what led there. A pass of the operator may be killed after each of its writes."""
    if not world.record.ended:
        serving = world.record.phase not in (
            Phase.STARTING,
            Phase.PROMOTING,
            Phase.ROLLING_BACK,
            Phase.RETURNING,
            Phase.AWAITING_APPROVAL,
        )
        for gain in KINDS[world.record.strategy] if serving else ("none",):
            looked = look(world, gain)
            yield f"operator decides ({gain}), killed", looked
            acted = act(looked)
            yield f"operator acts ({gain}), killed", acted
            yield f"operator passes ({gain})", remember(acted)
    yield from controller(world)
    yield from kubelet(world)
    yield "time passes", time_passes(world)
    yield from interference(world)
