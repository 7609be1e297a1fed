"""The search in a process of its own: model, simulator and Optuna want seconds of a core and some 200 MiB, and may have
a fault of their own. The process that watches trials shares none of that, so no guardrail waits for a proposal.

A `Question` goes to the child's standard input, an `Answer` comes back, both pickled by our own code. Hazard: what they
hold must be importable without Optuna and numba (`writing`), or the parent loads these after all.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import subprocess
import sys
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trimtab.errors import SearchFailed, TrimtabError
from trimtab.plan.preconditions import FleetView
from trimtab.plan.record import TrialRecord
from trimtab.plan.spec import TunerSpec
from trimtab.tune.calibrated import AtRest, baseline_profile
from trimtab.tune.writing import Proposed

if TYPE_CHECKING:
    from trimtab.simulate.profile import Profile

#: not `-m`: what is pickled must be found under the name by which the parent knows it
_CHILD: Final = "from trimtab.tune.apart import main; main()"
#: a busy node may take a minute for what takes seconds alone
MOST_SECONDS: Final = 600.0
#: the kernel ends the child first where memory is short, and runs whatever else wants the core
_OOM_SCORE: Final = 900
_NICE: Final = 10
#: lines of the child's standard error that are quoted when it fails
_QUOTED: Final = 3


@dataclass(frozen=True)
class Question:
    """What `Proposals.next` is given, and where a profile comes from: the first that is there of `text` (what a person
    calibrated), `rest` (metrics to calibrate by now) and `kept`."""

    key: str
    spec: TunerSpec
    template: Mapping[str, Any]
    fleet: FleetView
    trials: Sequence[TrialRecord]
    #: ended trials under other loads
    earlier: Sequence[TrialRecord] = ()
    data_dir: Path | None = None
    #: a profile as `trimtab calibrate` writes it, and what it is called in messages
    text: str | None = None
    where: str = ""
    rest: AtRest | None = None
    #: of the last answer: profile and what was simulated, some 20 KiB
    kept: bytes | None = None

    def without_simulation(self) -> Question:
        return replace(self, text=None, rest=None, kept=None)


@dataclass(frozen=True)
class Said:
    """For the person; `reason` is stable CamelCase."""

    reason: str
    text: str
    warning: bool = False


@dataclass(frozen=True)
class Answer:
    """`proposed` None: there is nothing to try, `stopped` says why."""

    proposed: Proposed | None
    stopped: str = ""
    said: tuple[Said, ...] = ()
    kept: bytes | None = None
    #: (level, logger, message): what was logged on the way
    log: tuple[tuple[int, str, str], ...] = field(default=(), compare=False)


def think(question: Question) -> Answer:
    """The answer, found in this process."""
    from trimtab.tune.proposals import Proposals  # with Optuna behind it

    source, profile, simulated = (
        pickle.loads(zlib.decompress(question.kept)) if question.kept is not None else (None, None, {})
    )
    said: list[Said] = []
    if question.text is not None and question.text != source:
        source, profile = question.text, _read(question.text, question.where, said)
    elif question.text is None and question.rest is not None:
        source = None
        profile, came_of_it = baseline_profile(question.rest)
        said.append(Said("NotCalibrated" if profile is None else "Calibrated", came_of_it))
    proposals = Proposals(question.data_dir, profile, simulated)
    proposed = proposals.next(
        question.key, question.spec, question.template, question.fleet, question.trials, earlier=question.earlier
    )
    kept = zlib.compress(pickle.dumps((source, profile, simulated))) if profile is not None else None
    return Answer(proposed, proposals.stopped, tuple(said), kept)


def _read(text: str, where: str, said: list[Said]) -> Profile | None:
    from trimtab.simulate.profile import parse_profile  # with numba behind it

    try:
        return parse_profile(text, where)
    except TrimtabError as error:
        said.append(Said("ProfileUnreadable", f"the search goes on without simulation: {error.told}", warning=True))
        return None


class Apart:
    """`think` in a child process for each question. Blocking: call from a thread. Safe to call from several."""

    def __init__(self, most_seconds: float = MOST_SECONDS) -> None:
        self._most_seconds = most_seconds
        self._lock = threading.Lock()
        self._children: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def __call__(self, question: Question) -> Answer:
        """Raises `SearchFailed` where the child gives no answer. Where one with the simulator does not, another
        without it is asked, and the person is told."""
        try:
            return self._ask(question)
        except SearchFailed as error:
            plain = question.without_simulation()
            if plain == question or self._closed:
                raise
            told = Said("NotSimulated", f"the search goes on without simulation. {error}", warning=True)
            answer = self._ask(plain)
            return replace(answer, said=(told, *answer.said))

    def close(self) -> None:
        """Ends the children; what waits for them gets `SearchFailed`."""
        with self._lock:
            self._closed = True
            for child in self._children:
                child.kill()

    def _ask(self, question: Question) -> Answer:
        with self._lock:
            if self._closed:
                raise SearchFailed("The operator is stopping.")
            child = subprocess.Popen(
                [sys.executable, "-c", _CHILD],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            self._children.add(child)
        try:
            out, err = child.communicate(pickle.dumps(question), self._most_seconds)
        except subprocess.TimeoutExpired as error:
            child.kill()
            child.communicate()
            raise SearchFailed(f"The search gave no answer within {self._most_seconds:.0f} s.") from error
        finally:
            with self._lock:
                self._children.discard(child)
        if child.returncode != 0:
            last = " / ".join(err.decode(errors="replace").strip().splitlines()[-_QUOTED:])
            how = f"by signal {-child.returncode}" if child.returncode < 0 else f"with code {child.returncode}"
            raise SearchFailed(f"The process of the search ended {how}: {last or 'it said nothing'}.")
        answer: Answer = pickle.loads(out)
        for level, name, text in answer.log:
            logging.getLogger(name).log(level, "%s", text)
        return answer


class _Kept(logging.Handler):
    """Keeps what is logged, for the parent to log in its own form."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[tuple[int, str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelno, record.name, record.getMessage()))


def main() -> None:
    """The child: one question, one answer."""
    os.nice(_NICE)
    with contextlib.suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints does not break the answer
    kept = _Kept()
    logging.basicConfig(level=logging.INFO, handlers=[kept])
    logging.getLogger("trimtab").setLevel(logging.INFO)
    answer = think(pickle.load(sys.stdin.buffer))
    with out:
        pickle.dump(replace(answer, log=tuple(line for line in kept.lines if line[1].startswith("trimtab"))), out)
