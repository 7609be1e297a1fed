"""Asks the search what to try next, without holding up the pass: it thinks in the background, a later pass takes the
answer. Gathers what it needs to simulate: a profile in a ConfigMap, or the target's own metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trimtab.errors import TrimtabError
from trimtab.plan.looks import undisturbed_since
from trimtab.plan.preconditions import Ground
from trimtab.plan.record import TrialRecord
from trimtab.plan.spec import TunerSpec
from trimtab.tune.apart import Answer, Question
from trimtab.tune.calibrated import AtRest, fetched
from trimtab_operator.cluster import Cluster
from trimtab_operator.evidence import refs
from trimtab_operator.recorder import Recorder
from trimtab_operator.sources import Sources
from trimtab_operator.target import Target

Json = dict[str, Any]
_FIELD = "spec.search.profileConfigMapRef"
#: an answer that is not taken for so long (no place was free) is asked for anew: the load has moved on
_STALE_SECONDS: Final = 300.0


@dataclass
class _Open:
    """What is known of one tuner. about: what was asked; answered: when that was found; last: the answer before."""

    uid: str
    about: Any = None
    answer: Future[Answer] | None = None
    answered: float = 0.0
    last: Answer | None = None


class Searching:
    """One question at a time, each in its turn: together they would want more memory than the container has.

    ask: blocks, raises `SearchFailed`. threads: where it blocks. clock: unix seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        sources: Sources,
        recorder: Recorder,
        ask: Callable[[Question], Answer],
        clock: Callable[[], float],
        data_dir: Path | None = None,
        threads: Executor | None = None,
    ) -> None:
        self._cluster, self._sources, self._recorder = cluster, sources, recorder
        self._ask, self._clock, self._data = ask, clock, data_dir
        self._threads = threads or ThreadPoolExecutor(1, "search")
        #: memory only: after a restart of the operator it is asked and calibrated anew
        self._open: dict[tuple[str, str], _Open] = {}

    def next(
        self, tuner: Json, spec: TunerSpec, target: Target, ground: Ground, earlier: Sequence[TrialRecord]
    ) -> Answer | None:
        """None: it is still thinking. `SearchFailed`: it cannot; ask again. spec: the ground's within what is allowed.
        earlier: of other loads. The target is at rest: nothing stands against a trial.
        """
        at = self._of(tuner["metadata"])
        names = [t.name for t in ground.history], [t.name for t in earlier]
        about = (spec, target.template, ground.fleet.configuration, names)
        stale = at.about != about or self._clock() - at.answered >= _STALE_SECONDS
        if at.answer is None or (stale and at.answer.done()):
            at.about = about
            at.answer = self._submit(at, self._question(tuner, spec, target, ground, earlier, at.last))
        if not at.answer.done():
            return None
        answer, at.answer = at.answer, None
        at.last = answer.result()
        for said in at.last.said:
            self._recorder.event(tuner, said.reason, said.text, warning=said.warning)
        return at.last

    def _submit(self, at: _Open, question: Question) -> Future[Answer]:
        def ask() -> Answer:
            try:
                return self._ask(question)
            finally:
                at.answered = self._clock()

        return self._threads.submit(ask)

    def forget(self, namespace: str, name: str) -> None:
        """The tuner is gone."""
        self._open.pop((namespace, name), None)

    def _of(self, meta: Json) -> _Open:
        key = meta["namespace"], meta["name"]
        if key not in self._open or self._open[key].uid != meta["uid"]:
            self._open[key] = _Open(meta["uid"])
        return self._open[key]

    def _question(
        self, tuner: Json, spec: TunerSpec, target: Target, ground: Ground, earlier: Sequence[TrialRecord],
        last: Answer | None,
    ) -> Question:  # fmt: skip
        meta, reference = tuner["metadata"], spec.search.profile_config_map_ref
        text, where, rest = None, "", None
        if reference is not None:
            where = f"{_FIELD}: {reference.name}/{reference.key}"
            text = self._text(tuner, reference.name, reference.key)
        elif spec.search.calibration == "Baseline" and (last is None or not ground.history):
            rest = self._at_rest(tuner, spec, target, ground)
        return Question(
            f"{meta['namespace']}/{meta['name']}", spec, target.template, ground.fleet, list(ground.history),
            list(earlier), self._data, text, where, rest, last.kept if last is not None else None,
        )  # fmt: skip

    def _text(self, tuner: Json, name: str, key: str) -> str | None:
        """None: it cannot be read; that is told, and stops nothing."""
        try:
            return self._cluster.config_map_value(tuner["metadata"]["namespace"], name, key, _FIELD)
        except TrimtabError as error:
            text = f"the search goes on without simulation: {error.told}"
            self._recorder.event(tuner, "ProfileUnreadable", text, warning=True)
            return None

    def _at_rest(self, tuner: Json, spec: TunerSpec, target: Target, ground: Ground) -> AtRest | None:
        """Once for each search, at its beginning or at the first question of this process."""
        fleet = ground.fleet
        assert fleet.configuration is not None  # no trial would begin
        ready = [(p.name, p.ip) for p in target.current_pods() if p.health.ready]
        pods = refs(ready, tuner["metadata"]["namespace"], target.read_engine(spec.target_ref.container)[2])
        since = undisturbed_since(spec, fleet.stable_seconds, ground.now)
        try:
            source = self._sources.of(tuner, spec)
        except TrimtabError as error:
            self._recorder.event(tuner, "NotCalibrated", f"not simulated: {error.told}")
            return None
        return fetched(source, pods, fleet.configuration, fleet.observation, since, ground.now)
