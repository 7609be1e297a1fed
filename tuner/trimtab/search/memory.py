"""`Memory`: outcomes in an Optuna storage. It outlives the history kept in custom resources, and may be lost at any
time.

Every fault, whatever its kind, leaves here as `StorageError`. Hazards: a journal whose lock was left by a killed
process makes Optuna wait some 30 s before it takes the lock over, and a database that cannot be reached waits for its
driver's own time-out; call from a thread, never from an event loop.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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

#: what storages and their drivers raise, corrupt files included
_FAULTS = (
    OSError, OptunaError, SQLAlchemyError, TrimtabError, ValueError, LookupError, TypeError, AttributeError,
    RuntimeError, ImportError, EOFError, AssertionError,
)  # fmt: skip
_ATTRIBUTE = "trimtab:outcome"
#: value stored for a crash: Optuna wants a number in a complete trial
_POOR = -10.0


class Memory:
    """`storage` is a path (journal file) or a database URL with `://`. Opened on first use."""

    def __init__(self, storage: str, name: str) -> None:
        self._storage, self._name = storage, name
        self._study: optuna.Study | None = None

    def recall(self) -> list[Outcome]:
        """Outcomes in the order they were recorded."""
        try:
            return [o for t in self._open().get_trials(deepcopy=False) if (o := _outcome(t)) is not None]
        except _FAULTS as error:
            raise self._lost("read", error) from error

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
        return self._study

    def _lost(self, what: str, error: Exception) -> StorageError:
        """The URL is not repeated: it may hold a password."""
        self._study = None
        return StorageError(f"The study {self._name!r} could not be {what}: {type(error).__name__}.")


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
    )  # fmt: skip
