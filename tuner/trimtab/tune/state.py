"""The state file of `trimtab tune`: what a killed run leaves for the next one. Written whole, before the target is
touched for what it says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from trimtab.engine.settings import Configuration
from trimtab.errors import InputError
from trimtab.judge.verdict import Kind, Verdict
from trimtab.plan.record import Peer, Phase, Span, Strategy, TrialKind, TrialRecord
from trimtab.tune.process import Identity

Json = dict[str, Any]
VERSION: Final = 1
#: trials of earlier runs that are kept
MOST_EARLIER: Final = 200


@dataclass
class State:
    """`command`: as the person gave it. `template`: what serves now. `processes`: of the run that wrote this.

    before, after: figures of the whole target without trials. done: the search had ended. earlier: ended trials of runs
    before this one, oldest first; the search weighs them by how alike the load is. findings: what the diagnosis said
    before the first trial. stopped: why the search ended. screened: what a calibration from the baseline came to.
    """

    command: list[str]
    replicas: int
    template: Json
    trials: list[TrialRecord] = field(default_factory=list)
    processes: list[Identity] = field(default_factory=list)
    before: Json | None = None
    after: Json | None = None
    done: bool = False
    earlier: list[TrialRecord] = field(default_factory=list)
    findings: list[Json] = field(default_factory=list)
    stopped: str = ""
    screened: str = ""

    @property
    def active(self) -> TrialRecord | None:
        """The trial in flight."""
        return next((t for t in self.trials if not t.ended), None)

    def anew(self, command: list[str], replicas: int, template: Json) -> State:
        """A new run's state that remembers what this one tried."""
        known = [*self.earlier, *(t for t in self.trials if t.ended)]
        return State(command, replicas, template, earlier=known[-MOST_EARLIER:])

    def put(self, record: TrialRecord) -> None:
        """Add the trial, or write it over its older self."""
        self.trials = [*(t for t in self.trials if t.name != record.name), record]
        self.trials.sort(key=lambda t: t.number)


class Store:
    """Reads and writes the file. A write is atomic: there is the old state or the new one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> State | None:
        """None where there is no file. InputError for a file that is not ours."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError("--state", f"{self.path} cannot be read ({error})", "Name another file.") from error
        try:
            return _state(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            text = f"{self.path} is not a state file of trimtab tune"
            raise InputError("--state", text, "Name another file, or remove it.") from error

    def save(self, state: State) -> None:
        """InputError where the folder cannot be written."""
        text = json.dumps(to_json(state), indent=1)
        half = self.path.with_name(self.path.name + ".new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with half.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            half.replace(self.path)
        except OSError as error:
            text = f"{self.path} cannot be written ({error.strerror})"
            raise InputError("--state", text, "Name another file.") from error


def to_json(state: State) -> Json:
    return {
        "version": VERSION,
        "command": state.command,
        "replicas": state.replicas,
        "template": state.template,
        "processes": [asdict(p) for p in state.processes],
        "trials": [record_json(t) for t in state.trials],
        "before": state.before,
        "after": state.after,
        "done": state.done,
        "earlier": [record_json(t) for t in state.earlier],
        "findings": state.findings,
        "stopped": state.stopped,
        "screened": state.screened,
    }


def record_json(record: TrialRecord) -> Json:
    """Plain JSON of a trial; times in unix seconds."""
    out: Json = {f.name: getattr(record, f.name) for f in fields(record)}
    out["configuration"], out["baseline"] = dict(record.configuration), dict(record.baseline)
    out["phase"] = record.phase.value
    out["peers"] = [asdict(p) for p in record.peers]
    out["spans"] = [asdict(s) for s in record.spans]
    out["verdict"] = None if record.verdict is None else {**asdict(record.verdict), "kind": record.verdict.kind.value}
    return out


def _state(data: Mapping[str, Any]) -> State:
    if data["version"] != VERSION:
        raise ValueError("version")
    return State(
        command=list(data["command"]),
        replicas=data["replicas"],
        template=data["template"],
        trials=[record_of(t) for t in data["trials"]],
        processes=[Identity(**p) for p in data["processes"]],
        before=data["before"],
        after=data["after"],
        done=data["done"],
        earlier=[record_of(t) for t in data.get("earlier", ())],
        findings=list(data.get("findings", ())),
        stopped=data.get("stopped", ""),
        screened=data.get("screened", ""),
    )


def record_of(data: Mapping[str, Any]) -> TrialRecord:
    verdict = data["verdict"]
    values = {
        **data,
        "configuration": Configuration.of(data["configuration"]),
        "baseline": Configuration.of(data["baseline"]),
        "kind": TrialKind(data.get("kind", TrialKind.TUNE)),  # only settings are tried here; older states do not say it
        "phase": Phase(data["phase"]),
        "peers": tuple(Peer(**p) for p in data.get("peers", ())),
        "spans": tuple(Span(**s) for s in data.get("spans", ())),
        "strategy": Strategy(data.get("strategy", Strategy.CANARY)),
        "verdict": None if verdict is None else Verdict(**{**verdict, "kind": Kind(verdict["kind"])}),
    }
    return TrialRecord(**values)
