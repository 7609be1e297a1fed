"""Whether the middleware is to be installed now, and what the condition `Middleware` says. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from trimtab.engine.install import removed
from trimtab.plan.record import NOT_TRIED, TrialRecord
from trimtab.plan.spec import TunerSpec

Status = Literal["True", "False"]
#: ends that say nothing about the middleware: it is tried again, within the restart budget
_OUTSIDE: Final = NOT_TRIED | {"ControlLost", "CanaryLost", "MetricsLost", "MetricsMissing"}


@dataclass(frozen=True)
class Installation:
    """What the shell found. present: the target's template has it; current: in this operator's version.

    refusal: why it cannot be put in, with the way out; "". version: what would be, or is, installed.
    attempts: ended trials that tried to install this version into this template, oldest first.
    """

    present: bool
    current: bool
    version: str
    refusal: str = ""
    attempts: Sequence[TrialRecord] = ()


@dataclass(frozen=True)
class Decision:
    """due: a trial may begin as far as this is concerned. reason: "" where there is nothing to say."""

    due: bool
    status: Status = "False"
    reason: str = ""
    message: str = ""


def decide(spec: TunerSpec, found: Installation) -> Decision:
    """The preconditions of a trial are asked by the caller: a block only delays."""
    if spec.token_policy.middleware == "Off":
        return _off(spec, found)
    if found.present and found.current:
        return Decision(False, "True", "Installed", f"version {found.version}")
    old = "an older version is installed; " if found.present else ""
    status: Status = "True" if found.present else "False"
    if found.refusal:
        return Decision(False, status, "Installed" if old else "Unsupported", old + found.refusal)
    failed = next((t for t in reversed(found.attempts) if _failed(t)), None)
    if failed is not None:
        why = failed.verdict.message if failed.verdict else failed.message
        text = f"{old}trial {failed.name} did not install {found.version}: {why}; delete that TuningTrial to try again"
        return Decision(False, status, "Installed" if old else "InstallFailed", text)
    if spec.mode == "Recommend":
        text = f"{old}mode Recommend writes nothing; modes Approve and Auto would try {found.version} on one pod first"
        return Decision(False, status, "Installed" if old else "NotInstalled", text)
    text = f"{old}{found.version} is tried on one pod first"
    return Decision(not spec.suspend, status, "Installed" if old else "NotInstalled", text)


def _off(spec: TunerSpec, found: Installation) -> Decision:
    if not found.present:
        return Decision(False)
    does = "as it is" if spec.mode == "Recommend" or spec.suspend else "and only counts"
    text = f"spec.tokenPolicy.middleware is Off: it stays in the pod template {does}"
    return Decision(False, "True", "Installed", text)


def _failed(trial: TrialRecord) -> bool:
    """Whether it ended by what the middleware did or what a person said, and not by something from outside."""
    if not trial.ended or trial.verdict is None:
        return False
    return trial.verdict.reason == "Rejected" or trial.verdict.reason not in _OUTSIDE


#: what a tuning trial changes: it does not make another attempt worth a restart
_TUNED: Final = ("command", "args")


def question(template: Mapping[str, Any], container: str | None, version: str) -> str:
    """Names one installation: this version into pods like these, whatever their flags."""
    plain = removed(template, container)
    for group in ("containers", "initContainers"):
        for body in plain["spec"].get(group) or ():
            for key in _TUNED:
                body.pop(key, None)
    return "install-" + hashlib.sha256(json.dumps([plain, version], sort_keys=True).encode()).hexdigest()[:12]
