from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from trimtab.engine.settings import Configuration
from trimtab.search.candidate import Outcome, Proposal, explicit
from trimtab.search.refuse import refusal
from trimtab.search.space import Space
from trimtab.search.study import Study

SPACE = Space({"max_num_seqs": (4, 512)})
BASE = Configuration.of(max_num_seqs=256, enable_prefix_caching=False)


def at(seqs: int, caching: bool = False) -> Configuration:
    return Configuration.of(max_num_seqs=seqs, enable_prefix_caching=caching)


def play(study: Study, trials: int, seeds: Sequence[Proposal] = ()) -> list[Outcome]:
    """Trials on a smooth surface that crashes above 300 sequences."""
    history: list[Outcome] = []
    for i in range(trials):
        proposal = study.propose(history, BASE, seeds)
        if proposal is None:
            break
        seqs = int(proposal.configuration["max_num_seqs"])
        crashed = seqs > 300
        score = None if crashed else -abs(math.log2(seqs / 48)) / 10
        history.append(Outcome(f"t{i}", proposal.configuration, score, crashed, control=BASE))
    return history


def test_the_users_candidates_come_first_then_priors_then_the_sampler() -> None:
    """With a plain sampler a guess is tried as it stands; the model weighs it."""
    seeds = [*explicit([Configuration.of(max_num_seqs=32)], BASE), Proposal(at(96, True), "KV arithmetic")]
    history: list[Outcome] = []
    origins = []
    for i in range(3):
        proposal = Study(None, "s", SPACE, sampler="TPE").propose(history, BASE, seeds)
        assert proposal is not None
        origins.append(proposal.origin)
        history.append(Outcome(f"t{i}", proposal.configuration, 0.0, control=BASE))
    assert origins == ["listed in spec.search.candidates", "KV arithmetic", "drawn by TPE after 2 trials"]
    assert history[0].configuration == at(32)


def test_seeds_that_are_refused_are_passed_over() -> None:
    bad = [Proposal(BASE, "now"), Proposal(at(384), "crashes"), Proposal(at(4096), "outside")]
    seeds = [replace(s, asked=True) for s in (*bad, Proposal(at(8), "fine"))]
    proposal = Study(None, "s", SPACE).propose([Outcome("c", at(300), infeasible=True)], BASE, seeds)
    assert proposal is not None and proposal.origin == "fine"


def test_equal_input_and_seed_give_equal_proposals(tmp_path: Path) -> None:
    first = [o.configuration for o in play(Study(None, "s", SPACE, sampler="TPE", seed=3), 8)]
    assert first == [
        o.configuration for o in play(Study(str(tmp_path / "j.log"), "s", SPACE, sampler="TPE", seed=3), 8)
    ]
    assert first != [o.configuration for o in play(Study(None, "s", SPACE, sampler="TPE", seed=4), 8)]


def test_the_space_is_exhausted_without_a_repeat_or_a_step_above_a_crash() -> None:
    history = play(Study(None, "s", SPACE, seed=1), 100)
    cells = [SPACE.cell(o.configuration) for o in history]
    assert len(cells) == len(set(cells)) < 30
    crashes = [o for o in history if o.infeasible]
    assert 1 <= len(crashes) <= 4, "384 and 512, with and without caching"
    for i, outcome in enumerate(history):
        assert refusal(outcome.configuration, history[:i], BASE, SPACE) is None


def test_nothing_to_tune_proposes_nothing() -> None:
    assert Study(None, "s", Space({}, tune_prefix_caching=False)).propose([], BASE) is None
    only = Space({"max_num_seqs": (256, 256)}, tune_prefix_caching=False)
    assert Study(None, "s", only).propose([], BASE) is None


def test_an_unset_baseline_is_searched_all_the_same() -> None:
    proposal = Study(None, "s", SPACE).propose([], Configuration.of())
    assert proposal is not None and "max_num_seqs" in proposal.configuration


def test_the_storage_remembers_what_the_history_has_dropped(tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "journal.log")
    history = play(Study(path, "s", SPACE), 4)
    seed = [Proposal(history[0].configuration, "again", asked=True)]
    proposal = Study(path, "s", SPACE).propose([], BASE, seed)
    assert proposal is not None and proposal.origin.endswith("after 3 trials"), "the last one was never reported back"
    stranger = Study(path, "another", SPACE).propose([], BASE, seed)
    assert stranger is not None and stranger.origin == "again"


def test_trials_left_running_by_a_crash_are_closed_and_nothing_is_added_twice(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    left = optuna.create_study(study_name="s", storage=url, direction="maximize")
    left.ask()
    history = play(Study(url, "s", SPACE), 3)
    Study(url, "s", SPACE).propose(history, BASE)
    states = [t.state for t in optuna.load_study(study_name="s", storage=url).trials]
    assert optuna.trial.TrialState.RUNNING not in states
    assert len(states) == 1 + 2 + 1, "one stale, two recorded while playing, the third on the next start"


@pytest.mark.parametrize(
    "content", [b"\x00\xff garbage\n", b'{"op_code": 99}\n', b'{"op_code": 4, "worker_id": "x"}\nx\n']
)
def test_a_corrupt_storage_is_a_warning_not_an_end(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal.log"
    path.write_bytes(content)
    study = Study(str(path), "s", SPACE)
    assert study.propose([], BASE) is not None
    assert study.warning is not None and study.warning.reason == "StorageError"


@pytest.mark.parametrize("storage", ["nosuchdialect://u:secret@h/db", "sqlite:////nonexistent/study.db", "/proc/no/j"])
def test_an_unreachable_storage_is_a_warning_without_the_password(storage: str) -> None:
    study = Study(storage, "s", SPACE)
    proposal = study.propose([], BASE)
    assert proposal == Study(None, "s", SPACE).propose([], BASE)
    assert study.warning is not None and "secret" not in str(study.warning)


def test_the_warning_goes_when_the_storage_is_back(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    path.write_bytes(b"garbage\n")
    study = Study(str(path), "s", SPACE)
    study.propose([], BASE)
    path.unlink()
    study.propose([], BASE)
    assert study.warning is None


def test_only_the_study_needs_optuna() -> None:
    code = (
        "import sys, trimtab.search.space, trimtab.search.priors, trimtab.search.refuse, trimtab.search.candidate;"
        "sys.exit('optuna' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
