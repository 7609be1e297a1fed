"""One sweep shared by many workers through Optuna's relational storage: each task is done once, whoever dies.

A worker claims a waiting trial (a row lock of the database lets one win), beats while it works, and a trial whose
beats have stopped is failed and queued again by whichever worker looks next. Times are the database's, so workers'
clocks do not matter. Hazard: this works on the storage and not on `Study.ask`, which would make a new trial of the
sampler's when nothing waits.
"""

from __future__ import annotations

import logging
import random
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import ExperimentalWarning, OptunaError, UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import ArgumentError, IntegrityError, ProgrammingError, SQLAlchemyError

from trimtab.errors import InputError, StorageError

_log = logging.getLogger(__name__)
_SWEEP, _TASK, _WORKER, _RESULT = "trimtab:sweep", "trimtab:task", "trimtab:worker", "trimtab:result"
#: a task that took this many workers down with it is left alone (the number in Optuna's own examples of retrying)
MAX_ATTEMPTS: Final = 3
_ALIVE: Final = (TrialState.WAITING, TrialState.RUNNING, TrialState.COMPLETE)
_HINT: Final = "Check that the database of --storage runs, can be reached from here and lets this user make tables."
_DRIVERS: Final = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg"}

Params = Mapping[str, bool | int | float | str | None]


@dataclass(frozen=True)
class Trial:
    """What the queue's rules look at. `task` None: a trial that is not of this sweep."""

    number: int
    state: TrialState
    task: int | None
    worker: str = ""


@dataclass(frozen=True)
class Progress:
    done: int
    running: int
    lost: int
    total: int


def owed(trials: Sequence[Trial], tasks: int) -> list[int]:
    """Tasks to queue: neither waiting, running nor done, and not failed `MAX_ATTEMPTS` times."""
    alive = {t.task for t in trials if t.state in _ALIVE}
    return [i for i in range(tasks) if i not in alive and _failures(trials, i) < MAX_ATTEMPTS]


def redundant(trial: Trial, trials: Sequence[Trial]) -> bool:
    """Whether an older trial of the same task stands: two workers that queue at the same time queue a task twice.

    A trial's number is given under a lock of the study, so whoever sees a trial also sees all older ones.
    """
    return any(t.task == trial.task and t.number < trial.number and t.state in _ALIVE for t in trials)


def progress(trials: Sequence[Trial], tasks: int) -> Progress:
    by_state = {s: {t.task for t in trials if t.state == s and t.task is not None} for s in _ALIVE}
    alive = set().union(*by_state.values())
    lost = sum(1 for i in range(tasks) if i not in alive and _failures(trials, i) >= MAX_ATTEMPTS)
    return Progress(len(by_state[TrialState.COMPLETE]), len(by_state[TrialState.RUNNING]), lost, tasks)


def _failures(trials: Sequence[Trial], task: int) -> int:
    return sum(1 for t in trials if t.task == task and t.state == TrialState.FAIL)


class SharedSweep:
    """The tasks of one sweep, numbered from 0, in the study `name` of the database at `url`.

    `fingerprint` says what is swept: a study of another sweep is refused. A worker that has not been heard of for
    `lease_seconds` (at least 2) has lost its task. Raises InputError for a url or a study that cannot be used, and
    StorageError where the database fails; the url is never repeated, it may hold a password.
    """

    def __init__(
        self,
        url: str,
        name: str,
        tasks: Sequence[Params],
        fingerprint: str,
        *,
        lease_seconds: int = 60,
        worker: str = "",
    ) -> None:
        if not tasks:
            raise InputError("tasks", "there are none", "Give at least one candidate.")
        if lease_seconds < 2:
            raise InputError("--lease", f"{lease_seconds} s is too short", "Use at least 2 seconds.")
        self._tasks, self._name, self._worker, self._fingerprint = list(tasks), name, worker, fingerprint
        names = {key for task in tasks for key in task}
        self._shape: dict[str, BaseDistribution] = {
            n: CategoricalDistribution(list(dict.fromkeys(t.get(n) for t in tasks))) for n in sorted(names)
        }
        self._beat_seconds = max(1, lease_seconds // 3)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with _storage_errors():
            self._storage = _opened(database_url(url), self._beat_seconds, lease_seconds)
            self._study = optuna.create_study(
                study_name=name, storage=self._storage, direction="maximize", load_if_exists=True
            )
            self._same_sweep()
            self._study_id = self._storage.get_study_id_from_name(name)

    def _same_sweep(self) -> None:
        if _SWEEP not in self._study.user_attrs and not self._study.get_trials(deepcopy=False):
            self._study.set_user_attr(_SWEEP, self._fingerprint)
        # read after that: another worker may have opened the study in the meantime
        if self._study.user_attrs.get(_SWEEP) != self._fingerprint:
            problem = f"{self._name!r} holds another sweep (other settings, load, limits or version of Trimtab)"
            raise InputError("--study", problem, "Give all workers the same options, or choose a new name.")

    def work(
        self,
        evaluate: Callable[[int], tuple[float, str]],
        *,
        wait: Callable[[float], None],
        rng: random.Random,
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> int:
        """Do tasks until none is left, those of workers that die included; returns how many were done here.

        `evaluate(task)` gives the value (more is better) and a result as text. `wait(seconds)` is called while only
        others work. `rng` spreads the workers over the queue; results do not depend on it.
        """
        done = 0
        while True:
            with _storage_errors():
                trials = self._look()
            now = progress(trials, len(self._tasks))
            on_progress(now)
            waiting = [t for t in trials if t.state == TrialState.WAITING and t.task is not None]
            if not waiting and now.done + now.lost == now.total:
                return done
            if not waiting:
                wait(self._beat_seconds)
            rng.shuffle(waiting)
            for trial in waiting:
                if self._claimed(trial) and self._done(trial, trials, evaluate):
                    done += 1
                    now = replace(now, done=now.done + 1)
                    on_progress(now)

    def results(self) -> dict[int, str]:
        """The text of each task that is done."""
        with _storage_errors():
            complete = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return {t.user_attrs[_TASK]: t.user_attrs[_RESULT] for t in complete if _TASK in t.user_attrs}

    def trials(self) -> list[Trial]:
        with _storage_errors():
            return [seen(t) for t in self._study.get_trials(deepcopy=False)]

    def _look(self) -> list[Trial]:
        """All trials, after the dead ones were failed and what is owed was queued."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            optuna.storages.fail_stale_trials(self._study)
        missing = owed(self.trials(), len(self._tasks))
        for task in missing:
            params = {name: self._tasks[task].get(name) for name in self._shape}
            self._study.add_trial(
                optuna.trial.create_trial(
                    state=TrialState.WAITING, params=params, distributions=self._shape, user_attrs={_TASK: task}
                )
            )
        return self.trials()

    def _id(self, trial: Trial) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study_id, trial.number)

    def _claimed(self, trial: Trial) -> bool:
        """The first beat comes before the claim: a worker killed in between leaves nothing that never goes stale."""
        with _storage_errors():
            trial_id = self._id(trial)
            if self._storage.get_trial(trial_id).state != TrialState.WAITING:
                return False
            self._storage.record_heartbeat(trial_id)
            try:
                return self._storage.set_trial_state_values(trial_id, TrialState.RUNNING)
            except UpdateFinishedTrialError:
                return False

    def _done(self, trial: Trial, trials: Sequence[Trial], evaluate: Callable[[int], tuple[float, str]]) -> bool:
        """Whether the claimed trial was done here; not if it is redundant, or was taken over meanwhile."""
        trial_id = self._id(trial)
        assert trial.task is not None
        if redundant(trial, trials):
            self._end(trial_id, TrialState.PRUNED)
            return False
        finished = False
        try:
            with self._beating(trial_id):
                with _storage_errors():
                    self._storage.set_trial_user_attr(trial_id, _WORKER, self._worker)
                value, text = evaluate(trial.task)
            finished = self._end(trial_id, TrialState.COMPLETE, value, text)
        finally:
            if not finished:  # an error or Ctrl-C: others need not wait for the lease to run out
                self._end(trial_id, TrialState.FAIL)
        return finished

    def _end(self, trial_id: int, state: TrialState, value: float | None = None, text: str | None = None) -> bool:
        """False if another worker has ended it: its lease ran out, and it is done again elsewhere."""
        with _storage_errors():
            try:
                if text is not None:
                    self._storage.set_trial_user_attr(trial_id, _RESULT, text)
                self._storage.set_trial_state_values(trial_id, state, None if value is None else [value])
            except UpdateFinishedTrialError:
                return False
        return True

    @contextmanager
    def _beating(self, trial_id: int) -> Iterator[None]:
        over = threading.Event()

        def beat() -> None:
            while not over.wait(self._beat_seconds):
                try:
                    self._storage.record_heartbeat(trial_id)
                except (SQLAlchemyError, OptunaError) as error:
                    # the lease bears missed beats; if the database stays away, the worker's own next write says so
                    _log.warning("No beat of the lease could be written: %s", type(error).__name__)
            self._storage.remove_session()

        thread = threading.Thread(target=beat, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _opened(url: str, beat_seconds: int, lease_seconds: int) -> RDBStorage:
    """Of workers that make the tables at the same time all but one fail, after that one has made them."""
    tries = 3
    while True:
        tries -= 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                return RDBStorage(
                    url, {"pool_pre_ping": True}, heartbeat_interval=beat_seconds, grace_period=lease_seconds
                )
        except (IntegrityError, ProgrammingError):
            if not tries:
                raise


def database_url(url: str) -> str:
    """With psycopg 3 as PostgreSQL's driver where the url names none. InputError for what is no database url."""
    scheme, mark, rest = url.partition("://")
    if not mark or not scheme:
        raise _no_url()
    return f"{_DRIVERS.get(scheme, scheme)}://{rest}"


def _no_url() -> InputError:
    return InputError("--storage", "is no database URL", "Write postgresql://USER:PASSWORD@HOST/DATABASE.")


def seen(trial: FrozenTrial) -> Trial:
    return Trial(trial.number, trial.state, trial.user_attrs.get(_TASK), trial.user_attrs.get(_WORKER, ""))


@contextmanager
def _storage_errors() -> Iterator[None]:
    """Without the driver's text, which may repeat the url."""
    try:
        yield
    except ImportError as error:
        fix = "For PostgreSQL: pip install 'trimtab[postgres]'."
        raise InputError("--storage", "the driver of this database is not installed", fix) from error
    except ArgumentError as error:
        raise _no_url() from error
    except (SQLAlchemyError, OptunaError, ValueError) as error:
        raise StorageError(f"The sweep's database failed: {type(error).__name__}.", hint=_HINT) from error
