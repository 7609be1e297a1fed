"""`trimtab dashboard`: optuna-dashboard over the operator's studies, read-only, with settings as people write them.

The studies are copied, and the copy is what people see: nothing that happens in a browser reaches a search. A crashed
trial is shown as Failed, one without evidence as Pruned; the value is the gain in percent over what ran at first.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Annotated, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import optuna
import typer
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from trimtab.cli.console import errors
from trimtab.errors import InputError, StorageError
from trimtab.search.candidate import Outcome, levels
from trimtab.search.memory import Memory
from trimtab.search.sampling import CONSTRAINT

#: what a study's note says, so that nobody has to read docs beside it
NOTE: Final = """Each trial ran one configuration on live traffic beside the others. Its value is the goodput gained
over what ran at first, in percent.

- **Complete**: measured. **Pruned**: no evidence either way. **Failed**: did not start or serve.
- **Infeasible**: a guardrail ended it; its value only says that it was bad.
- The attributes of a trial: its TuningTrial, all settings, what it was compared with, its own gain, how sure that is.
- A trial ends when it was recorded; that it starts when the one before ended is drawn so, as a study holds no starts.
"""
#: standard deviations of a 95% interval
_SURE: Final = 1.96
#: a page that is loaded later than this after the last look looks again
REFRESH_SECONDS: Final = 15.0
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def app(
    folder: Annotated[
        Path, typer.Argument(help="Where the studies are: the operator's --data-dir, or one .journal file.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on, 0 for a free one.", min=0, max=65535)] = 8081,
) -> None:
    """Show the searches in a browser: trials, settings, gains. Read-only; nothing is written to the studies."""
    with errors():
        if not folder.exists():
            raise InputError("FOLDER", f"{folder} does not exist", "Name the operator's data directory.")
        page = _page()
        with make_server(host, port, Studies(folder, page, time.monotonic), _Server, _Quiet) as server:
            typer.echo(f"http://{host}:{server.server_port}/  (Ctrl-C ends it)")
            server.serve_forever()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """No line per request."""


class Studies:
    """A WSGI application: `page` over a copy of the studies, made anew when it is old. Refuses what would write."""

    def __init__(self, folder: Path, page: Callable[[BaseStorage], App], monotonic: Callable[[], float]) -> None:
        self._folder, self._page, self._monotonic = folder, page, monotonic
        self._made: tuple[float, App] | None = None

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in _READS:
            start_response("405 Method Not Allowed", [("Content-Type", "text/plain"), ("Allow", "GET, HEAD")])
            return [b"This dashboard only shows. Change searches in the VLLMTuner.\n"]
        now = self._monotonic()
        if self._made is None or now - self._made[0] > REFRESH_SECONDS:
            self._made = (now, self._page(copied(self._folder)))
        return self._made[1](environ, start_response)


def _page() -> Callable[[BaseStorage], App]:
    try:
        import optuna_dashboard
    except ImportError as error:
        raise InputError(
            "dashboard", "optuna-dashboard is not installed", "pip install 'trimtab[dashboard]'"
        ) from error
    found: Callable[[BaseStorage], App] = optuna_dashboard.wsgi
    return found


def copied(folder: Path) -> BaseStorage:
    """All studies as people read them, in memory. A journal that cannot be read becomes a study that says so."""
    storage = InMemoryStorage()
    journals = [folder] if folder.is_file() else sorted(folder.glob("*.journal"))
    for journal in journals:
        try:
            for name, outcomes, times in _studies(journal):
                _add(storage, name, outcomes, times)
        except StorageError as error:
            _add(storage, f"{journal.stem} cannot be read: {error}", (), {})
    return storage


def _studies(journal: Path) -> Iterator[tuple[str, Sequence[Outcome], Mapping[str, datetime]]]:
    """(name, outcomes, when each was recorded) of each study; read from a copy, as reading a journal takes its lock."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / journal.name
        try:
            shutil.copyfile(journal, copy)
            names = [s.study_name for s in JournalStorage(JournalFileBackend(str(copy))).get_all_studies()]
        except (OSError, ValueError, LookupError) as error:
            raise StorageError(f"{journal.name}: {type(error).__name__}") from error
        for name in names:
            memory = Memory(str(copy), name)
            yield name, memory.recall(), memory.recorded()


def _add(storage: BaseStorage, name: str, outcomes: Sequence[Outcome], times: Mapping[str, datetime]) -> None:
    study = optuna.create_study(study_name=name, storage=storage, direction="maximize")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # the axis has its name or has not
        study.set_metric_names(["gain over what ran at first (%)"])
        _note(study)
    known = {level.configuration.key(): level.value for level in levels(outcomes)}
    before: datetime | None = None
    for outcome in outcomes:
        trial = _trial(outcome, known.get(outcome.configuration.key()), _spaces(outcomes))
        if (at := times.get(outcome.name)) is not None:
            trial.datetime_start, trial.datetime_complete = before or at, at
            before = at
        study.add_trial(trial)


def _note(study: optuna.Study) -> None:
    try:
        from optuna_dashboard import save_note
    except ImportError:  # the copy is made for other eyes than the dashboard's
        return
    save_note(study, NOTE)


def _trial(outcome: Outcome, level: float | None, spaces: dict[str, BaseDistribution]) -> FrozenTrial:
    params = {name: value for name, value in dict(outcome.configuration).items() if name in spaces}
    state = TrialState.COMPLETE
    if level is None or not outcome.measured:
        state = TrialState.FAIL if outcome.infeasible else TrialState.PRUNED
    against = "what ran at first" if outcome.control is None else str(outcome.control)
    return optuna.trial.create_trial(
        state=state,
        value=round(100 * math.expm1(level), 2) if state is TrialState.COMPLETE and level is not None else None,
        params=params,
        distributions={name: spaces[name] for name in params},
        user_attrs={
            "trial": outcome.name, "settings": str(outcome.configuration), "result": _result(outcome),
            "against": against, **_gain(outcome),
        },
        constraints={CONSTRAINT: 1.0 if outcome.breached or outcome.infeasible else -1.0}
        if state is TrialState.COMPLETE
        else None,
    )  # fmt: skip


def _result(outcome: Outcome) -> str:
    if outcome.infeasible:
        return "did not start or serve"
    if outcome.breached:
        return "broke a guardrail"
    return "within noise" if outcome.inconclusive else "measured" if outcome.measured else "not measured"


def _gain(outcome: Outcome) -> dict[str, str]:
    """Of this trial alone, with the ends of its 95% interval; nothing where it was not measured."""
    if not outcome.measured or outcome.score is None:
        return {}
    low, high = (math.expm1(outcome.score + side * _SURE * outcome.noise) for side in (-1, 1))
    return {"gain": f"{math.expm1(outcome.score):+.1%} ({low:+.0%} to {high:+.0%})"}


def _spaces(outcomes: Sequence[Outcome]) -> dict[str, BaseDistribution]:
    """Of each setting that a trial set: the range seen; numbers on a log scale, as they are searched."""
    seen: dict[str, list[Any]] = {}
    for outcome in outcomes:
        for name, value in dict(outcome.configuration).items():
            seen.setdefault(name, []).append(value)
    spaces: dict[str, BaseDistribution] = {}
    for name, values in seen.items():
        if all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in values):
            spaces[name] = IntDistribution(min(values), max(values), log=min(values) < max(values))
        else:
            spaces[name] = CategoricalDistribution(sorted(set(values), key=str))
    return spaces
