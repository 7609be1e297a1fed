"""`Memory`: outcomes in an Optuna storage. It outlives the history kept in custom resources, and may be lost at any
time.

Every fault, whatever its kind, leaves here as `StorageError`. Hazards: a journal whose lock was left by a killed
process makes Optuna wait some 30 s before it takes the lock over, and a database that cannot be reached waits for its
driver's own time-out; call from a thread, never from an event loop.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import OptunaError
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from trimtab.engine.settings import Configuration
from trimtab.errors import StorageError, TrimtabError
from trimtab.search.candidate import Outcome
from trimtab.search.sampling import CONSTRAINT, coordinates, distributions
from trimtab.search.space import Space

_log = logging.getLogger(__name__)
#: what storages and their drivers raise, corrupt files included
_FAULTS = (
    OSError, OptunaError, SQLAlchemyError, TrimtabError, ValueError, LookupError, TypeError, AttributeError,
    RuntimeError, ImportError, EOFError, AssertionError,
)  # fmt: skip
_ATTRIBUTE, _TARGET = "trimtab:outcome", "trimtab:target"
#: journals read for what like targets taught
_MOST_KIN = 20
#: value stored for a crash: Optuna wants a number in a complete trial
_POOR = -10.0


class Memory:
    """`storage` is a path (journal file) or a database URL with `://`. Opened on first use.

    target: model, hardware and arguments in one word; studies of the same word in one place know of each other.
    """

    def __init__(self, storage: str, name: str, target: str = "") -> None:
        self._storage, self._name, self._target = storage, name, target
        self._study: optuna.Study | None = None

    def recall(self) -> list[Outcome]:
        """Outcomes in the order they were recorded."""
        try:
            return [o for t in self._open().get_trials(deepcopy=False) if (o := _outcome(t)) is not None]
        except _FAULTS as error:
            raise self._lost("read", error) from error

    def recorded(self) -> dict[str, datetime]:
        """When each outcome was recorded, by its name: at the end of its trial, in this machine's time."""
        try:
            found = [(_outcome(t), t.datetime_complete) for t in self._open().get_trials(deepcopy=False)]
        except _FAULTS as error:
            raise self._lost("read", error) from error
        return {outcome.name: at for outcome, at in found if outcome is not None and at is not None}

    def kin(self) -> list[Outcome]:
        """Outcomes of other studies of the same target word: in the same database, or in journals of the same folder.
        None of them is ours, so a fault in one is no fault of the search: it is passed over."""
        if not self._target:
            return []
        out: list[Outcome] = []
        for place in self._neighbours():
            try:
                out += self._outcomes_of_kin(place)
            except _FAULTS:
                _log.info("a study beside %r could not be read; it teaches nothing", self._name)
        return out

    def _neighbours(self) -> list[str]:
        if "://" in self._storage:
            return [self._storage]
        here = Path(self._storage)
        return [str(p) for p in sorted(here.parent.glob("*.journal")) if p != here][:_MOST_KIN]

    def _outcomes_of_kin(self, place: str) -> list[Outcome]:
        backend = _backend(place)
        out = []
        for study in backend.get_all_studies():
            ours = study.study_name == self._name or _room(study.study_name) != _room(self._name)
            if not ours and study.user_attrs.get(_TARGET) == self._target:
                found = (_outcome(t) for t in backend.get_all_trials(study._study_id, deepcopy=False))
                out += [replace(o, name=f"{study.study_name}/{o.name}") for o in found if o is not None]
        return out

    def record(self, outcomes: Sequence[Outcome], space: Space) -> None:
        """Add those that are missing (by name) and close trials left running by a process that died."""
        try:
            study = self._open()
            trials = study.get_trials(deepcopy=False)
            for trial in trials:
                if trial.state in (TrialState.RUNNING, TrialState.WAITING):
                    study.tell(trial.number, state=TrialState.FAIL)
            known = {o.name for t in trials if (o := _outcome(t)) is not None}
            for outcome in outcomes:
                if outcome.name not in known:
                    study.add_trial(_trial(outcome, space))
        except _FAULTS as error:
            raise self._lost("written", error) from error

    def _open(self) -> optuna.Study:
        if self._study is None:
            self._study = optuna.create_study(
                study_name=self._name, storage=_backend(self._storage), direction="maximize", load_if_exists=True
            )
            if self._target and self._study.user_attrs.get(_TARGET) != self._target:
                self._study.set_user_attr(_TARGET, self._target)
        return self._study

    def _lost(self, what: str, error: Exception) -> StorageError:
        """The URL is not repeated: it may hold a password."""
        self._study = None
        return StorageError(f"The study {self._name!r} could not be {what}: {type(error).__name__}.")


def _room(name: str) -> str:
    """The namespace of a study's name: what is learned in one stays there."""
    return name.rpartition("/")[0]


def _backend(storage: str) -> BaseStorage:
    if "://" in storage:
        return optuna.storages.get_storage(storage)
    path = Path(storage)
    path.parent.mkdir(parents=True, exist_ok=True)
    return JournalStorage(JournalFileBackend(str(path)))


def _trial(outcome: Outcome, space: Space) -> FrozenTrial:
    """A trial for the dashboard's eyes, with the whole outcome as attribute for ours."""
    params = coordinates(outcome.configuration, space)
    shape = distributions(space) if params is not None else {}
    value = outcome.score if outcome.measured else _POOR if outcome.infeasible else None
    return optuna.trial.create_trial(
        state=TrialState.FAIL if value is None else TrialState.COMPLETE,
        value=value,
        params=params or {},
        distributions=shape,
        user_attrs={"configuration": str(outcome.configuration), _ATTRIBUTE: json.dumps(_plain(outcome))},
        constraints=None if value is None else {CONSTRAINT: 1.0 if outcome.infeasible else -1.0},
    )


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.name,
        "configuration": dict(outcome.configuration),
        "score": outcome.score,
        "infeasible": outcome.infeasible,
        "inconclusive": outcome.inconclusive,
        "control": None if outcome.control is None else dict(outcome.control),
        "deviation": outcome.deviation,
        "again": outcome.again,
        "context": list(outcome.context),
        "breached": outcome.breached,
    }


def _outcome(trial: FrozenTrial) -> Outcome | None:
    """None for trials that Trimtab did not record."""
    text = trial.user_attrs.get(_ATTRIBUTE)
    if text is None:
        return None
    data = json.loads(text)
    control = data["control"]
    return Outcome(
        str(data["name"]), Configuration.of(data["configuration"]), data["score"], bool(data["infeasible"]),
        bool(data["inconclusive"]), None if control is None else Configuration.of(control),
        data.get("deviation"), bool(data.get("again")), tuple(float(v) for v in data.get("context", ())),
        bool(data.get("breached")),
    )  # fmt: skip
