"""Writes the pictures of `kubectl trimtab` in docs/pictures from the states below, which tests use, too. Run
`python hack/docs/screens.py`; a test compares. `python hack/docs/screens.py STATE [WIDTH]` prints one in your terminal.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from trimtab_operator.plugin import show
from trimtab_operator.plugin.objects import Tuner, tuners
from trimtab_operator.plugin.terminal import LOOKS, Line, Part, shown

Json = dict[str, Any]
API: Final = "trimtab.dev/v1alpha1"
NOW: Final = 1_790_000_000.0
PICTURES: Final = Path(__file__).resolve().parents[2] / "docs/pictures"
_REPLICAS: Final = 12


# --- objects as the operator leaves them ------------------------------------------------------------------------------
def ago(seconds: float) -> str:
    return datetime.fromtimestamp(NOW - seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def tuner(name: str, phase: str, *, mode: str = "Auto", says: tuple[str, str], stalled: bool = False,
          **status: Any) -> Json:  # fmt: skip
    """says: reason and message of the condition Progressing, and of Stalled where stalled."""
    moving = "True" if "currentTrial" in status else "False"
    said = [("Ready", "True", "Watching", "target, engine and metrics can be read"), ("Progressing", moving, *says),
            ("Stalled", "True", *says) if stalled else ("Stalled", "False", "Working", "")]  # fmt: skip
    conditions = [
        {"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": ago(600)}
        for kind, value, reason, message in said
    ]
    spec = {"targetRef": {"name": name}, "mode": mode, "suspend": phase == "Suspended", "metrics": {"direct": {}},
            "rollout": {"maxRestartsPerDay": 24}, "search": {"maxTrials": 30},
            "guardrails": {"maxMetricsGapSeconds": 60}}  # fmt: skip
    return {"apiVersion": API, "kind": "VLLMTuner", "metadata": {"name": name, "namespace": "prod"}, "spec": spec,
            "status": {"phase": phase, "conditions": conditions, **status}}  # fmt: skip


def trial(of: str, number: int, phase: str, since: float, **status: Any) -> Json:
    """since: seconds since the phase began."""
    baseline = {"deploymentUid": "d", "templateJson": "{}", "candidateTemplateJson": "{}"}
    spec = {"tunerName": of, "number": number, "baselineConfiguration": {"maxNumSeqs": 256},
            "configuration": {"maxNumSeqs": 96}, "baseline": baseline}  # fmt: skip
    times = {"phaseSince": ago(since), "startedAt": ago(since + 600), "metricsSeenAt": ago(9)}
    body = {"phase": phase, "settings": "max_num_seqs=96", "restarts": 1, **times, **status}
    return {"apiVersion": API, "kind": "TuningTrial", "metadata": {"name": f"{of}-{number}", "namespace": "prod"},
            "spec": spec, "status": body}  # fmt: skip


def target(name: str, *, canary: str = "", bad: int = 0, paused: bool = False, updated: int = 0) -> list[Json]:
    """A Deployment with 12 pods, some of which are not ready."""
    deployment = {"kind": "Deployment", "metadata": {"name": name, "namespace": "prod"},
                  "spec": {"replicas": _REPLICAS, "paused": paused, "selector": {"matchLabels": {"app": name}}},
                  "status": {"readyReplicas": _REPLICAS - bad, "updatedReplicas": updated}}  # fmt: skip
    names = [canary] if canary else []
    names += [f"{name}-7c9d8f6b54-{'bcdfghjklmnp'[i]}2x{i % 9}q" for i in range(_REPLICAS - len(names))]
    return [deployment, *(_pod(n, name, ready=i >= bad) for i, n in enumerate(names))]


def _pod(name: str, app: str, *, ready: bool) -> Json:
    said = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "prod", "labels": {"app": app}},
            "status": {"phase": "Running", "conditions": said,
                       "containerStatuses": [{"restartCount": 0 if ready else 4}]}}  # fmt: skip


PREEMPTION: Final[Json] = {
    "finding": "Preemption",
    "findings": [
        {
            "name": "Preemption",
            "severity": "Critical",
            "confidence": 0.94,
            "message": "7.4 preemptions a minute in each pod: 256 sequences want more KV cache than there is, and 31% "
            "of all generated tokens are computed twice.",
            "advice": "Let fewer sequences run at once.",
        }
    ],
}
BETTER: Final[Json] = {
    "gain": "+18.3%",
    "verdict": {
        "kind": "Better",
        "reason": "GoodputBetter",
        "message": "Goodput +18.3%.",
        "gainLowPercent": 9.1,
        "gainHighPercent": 28.0,
    },
}
WORSE: Final[Json] = {
    "gain": "-22.6%",
    "verdict": {
        "kind": "Worse",
        "reason": "LatencyTooHigh",
        "message": "TTFT p99 too high.",
        "gainLowPercent": -31.0,
        "gainHighPercent": -13.2,
    },
}
FLIGHT: Final = ("Measuring", "chat-3: measuring canary against control")
ASKED: Final = ("AwaitingApproval", "chat-4: approve it or reject it")
CANARY: Final = "chat-5f4876bbb9-6hm6h"


def chat(phase: str, says: tuple[str, str], restarts: int, **status: Any) -> Json:
    """The tuner of most states: it has gained something, and preemption is left."""
    return tuner("chat", phase, says=says, **PREEMPTION, bestGain="+11.2%", restartsToday=restarts, **status)


def observing() -> list[Json]:
    """Healthy, between two trials."""
    says = ("CoolingDown", "pausing 600 s between trials")
    return [
        chat("Observing", says, 12, trials={"total": 1, "promoted": 1}),
        trial("chat", 1, "Promoted", 420, finishedAt=ago(420), **BETTER),
        *target("chat"),
    ]


def on_trial() -> list[Json]:
    """The canary is measured."""
    counts = {"total": 2, "promoted": 1, "rolledBack": 1}
    return [
        chat("Tuning", FLIGHT, 14, currentTrial="chat-3", trials=counts),
        trial("chat", 3, "Measuring", 250, canaryPod=CANARY, message="measuring canary against control", **BETTER),
        *target("chat", canary=CANARY, paused=True, updated=1),
    ]


def rolling_back() -> list[Json]:
    """The canary was worse than its guardrail."""
    text = "TTFT p99 of the canary is 4.1 s, of the control 0.9 s: more than 1.5 times (guardrails.maxLatencyRatio)"
    counts = {"total": 2, "promoted": 1, "rolledBack": 1}
    return [
        chat("Tuning", FLIGHT, 15, currentTrial="chat-3", trials=counts),
        trial("chat", 3, "RollingBack", 20, canaryPod=CANARY, message=text, **WORSE),
        *target("chat", bad=1, updated=1),
    ]


def unwatched() -> list[Json]:
    """The operator died while a canary serves."""
    found = on_trial()
    found[1]["status"]["metricsSeenAt"] = ago(900)
    found[1]["status"]["phaseSince"] = ago(1200)
    return found


def degraded() -> list[Json]:
    """Pods of the target are not ready, and no trial is the cause."""
    says = ("TargetNotSettled", "a rollout is under way or a pod is not available")
    return [
        chat("Observing", says, 12, trials={"total": 1, "promoted": 1}),
        trial("chat", 2, "RolledBack", 900, finishedAt=ago(900), **WORSE),
        *target("chat", bad=3),
    ]


def converged() -> list[Json]:
    """Nothing is left that is worth a restart."""
    says = ("Converged", "4 trials in a row brought no gain (spec.search.patience)")
    counts = {"total": 7, "promoted": 2, "rolledBack": 5, "inconclusive": 3}
    return [
        tuner("chat", "Converged", says=says, finding="None", trials=counts, bestGain="+31.5%", restartsToday=0),
        trial("chat", 3, "Promoted", 90_000, finishedAt=ago(90_000), **BETTER),
        trial("chat", 7, "RolledBack", 50_000, finishedAt=ago(50_000), **WORSE),
        *target("chat"),
    ]


def broken() -> list[Json]:
    """The engine hangs: a matter for people, not for settings."""
    seen = "2 of 12 pods finish no token for 140 s while requests run."
    hang = {"name": "Hang", "severity": "Critical", "confidence": 0.9, "message": seen, "advice": "Restart these pods."}
    says = ("Hang", f"{seen} Restart these pods after you have kept their logs; look for the engine's bug.")
    return [
        tuner("chat", "Pending", says=says, stalled=True, finding="Hang", findings=[hang], restartsToday=0),
        *target("chat"),
    ]


def cannot_help() -> list[Json]:
    """What holds the target back is no setting."""
    seen = "Prefill takes 94% of each step: the GPUs are busy with prompts of 11 000 tokens."
    bound = {
        "name": "PrefillBound",
        "severity": "Warning",
        "confidence": 0.9,
        "message": seen,
        "advice": "More GPUs.",
        "tunable": False,
    }
    says = (
        "TuningCannotHelp",
        "what holds the target back is PrefillBound, and no setting mends it: see kubectl trimtab explain chat",
    )
    return [
        tuner("chat", "Converged", says=says, finding="PrefillBound", findings=[bound], restartsToday=0),
        *target("chat"),
    ]


def asking() -> list[Json]:
    """Mode Approve: a person has to say yes or no."""
    made = trial("chat", 4, "AwaitingApproval", 5400, message="KV cache of 412 000 tokens fits about 96 requests")
    counts = {"total": 3, "promoted": 1, "rolledBack": 2}
    made["spec"]["origin"] = "KV cache of 412 000 tokens fits about 96 requests; expected +14% (+3% to +27%)"
    return [
        chat("AwaitingApproval", ASKED, 2, mode="Approve", currentTrial="chat-4", trials=counts),
        made,
        *target("chat"),
    ]


def recommended() -> list[Json]:
    """Mode Recommend."""
    advice = "Set max_num_seqs to 96 (now 256): about 96 requests fit the KV cache. Expected goodput +14% (+3% to +27%)"
    return [
        tuner(
            "chat",
            "Recommended",
            mode="Recommend",
            **PREEMPTION,
            recommendation={"message": advice, "configuration": {"maxNumSeqs": 96}},
            says=("RecommendOnly", "mode Recommend writes nothing to the target; see status.recommendation"),
            restartsToday=0,
        ),
        *target("chat"),
    ]


_ALL: Final = (
    observing,
    on_trial,
    rolling_back,
    unwatched,
    degraded,
    converged,
    broken,
    cannot_help,
    asking,
    recommended,
)
STATES: Final = {state.__name__.replace("_", "-"): state for state in _ALL}
#: of the fleet's picture: the names people would give such tuners
_FLEET: Final = {"chat": on_trial, "code": asking, "embed": converged, "rag": recommended, "search": broken,
                 "vision": degraded}  # fmt: skip


def fleet() -> list[Tuner]:
    """Every kind of state beside each other."""
    objects: list[Json] = []
    for name, state in _FLEET.items():
        objects += [_renamed(o, "chat", name) for o in state() if o["kind"] != "Pod"]
    return tuners(objects, [o for o in objects if o["kind"] == "Deployment"])


def _renamed(part: Any, old: str, new: str) -> Any:
    if isinstance(part, dict):
        return {k: _renamed(v, old, new) for k, v in part.items()}
    if isinstance(part, list):
        return [_renamed(v, old, new) for v in part]
    return re.sub(rf"^{old}\b", new, part) if isinstance(part, str) else part


def lines(state: str, width: int | None) -> list[Line]:
    """What the command shows in this state; `fleet` for the list."""
    if state == "fleet":
        return show.fleet(fleet(), NOW, width)
    objects = STATES[state]()
    (one,) = tuners(objects, [o for o in objects if o["kind"] in ("Deployment", "Pod")])
    return show.tree(one, NOW, width)


# --- as a picture -----------------------------------------------------------------------------------------------------
_CELL, _ROW, _EDGE = 8.4, 19.0, 14.0
_INK, _PAPER = "#d4d4d4", "#1e1e1e"
_LEVELS: Final = (0, 95, 135, 175, 215, 255)


def colour(index: int) -> str:
    """Of xterm's 256: a cube of 6 levels from 16 on, 24 greys from 232 on."""
    if index >= 232:
        return "#" + f"{8 + 10 * (index - 232):02x}" * 3
    red, green, blue = (_LEVELS[(index - 16) // n % 6] for n in (36, 6, 1))
    return f"#{red:02x}{green:02x}{blue:02x}"


def picture(command: str, page: Sequence[Line], columns: int) -> str:
    """An SVG of a dark terminal. Text stays text, so that it can be read aloud and searched."""
    rows = [[Part("$ ", "dim"), Part(command, "bold")], *page]
    wide, high = columns * _CELL + 2 * _EDGE, len(rows) * _ROW + 2 * _EDGE
    body = "\n".join(_row(row, _EDGE + (i + 0.75) * _ROW) for i, row in enumerate(rows))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" role="img" font-size="14" '
        f'font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace" fill="{_INK}">\n'
        f"<title>{_safe(command)}</title>\n"
        f'<rect width="100%" height="100%" rx="8" fill="{_PAPER}"/>\n{body}\n</svg>\n'
    )


def _row(row: Line, y: float) -> str:
    out, at = [], 0
    for part in row:
        ink, ground, bold = LOOKS[part.look]
        said = f" {part.text} " if ground is not None else part.text
        x, wide = _EDGE + at * _CELL, len(said) * _CELL
        if ground is not None:
            out.append(f'<rect x="{x:g}" y="{y - 14:g}" width="{wide:g}" height="18" rx="3" fill="{colour(ground)}"/>')
        if said.strip():
            style = f' fill="{colour(ink)}"' if ink is not None else ""
            style += ' font-weight="bold"' if bold else ""
            out.append(
                f'<text x="{x:g}" y="{y:g}" textLength="{wide:g}" xml:space="preserve"{style}>{_safe(said)}</text>'
            )
        at += len(said)
    return "".join(out)


def _safe(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def pictures() -> dict[str, str]:
    """File name -> its text."""
    return {
        "status-fleet.svg": picture("kubectl trimtab status -A", lines("fleet", 120), 120),
        "status-trial.svg": picture("kubectl trimtab status chat", lines("on-trial", 100), 100),
    }


def main(words: Sequence[str]) -> None:
    if words:
        print(shown(lines(words[0], int(words[1]) if len(words) > 1 else None), colour=sys.stdout.isatty()))
        return
    for name, text in pictures().items():
        (PICTURES / name).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
