"""The state file: what is written is what is read, and half a write is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.engine.settings import Configuration
from trimtab.errors import InputError
from trimtab.judge.verdict import Kind, Verdict
from trimtab.plan.record import Phase, TrialRecord
from trimtab.tune.argv import template_of
from trimtab.tune.process import Identity
from trimtab.tune.state import State, Store


def state() -> State:
    verdict = Verdict(Kind.BETTER, "GoodputBetter", "good", 0.5, 0.4, 0.6, 0.4, {"windows": 6.0, "x": None})
    record = TrialRecord(
        "trial-1", 1, Configuration.of(max_num_seqs=8, enable_prefix_caching=True), Configuration.of(),
        Phase.MEASURING, 5.0, 1.0, 2, "why", applied=True, measure_from=6.0, verdict=verdict,
    )  # fmt: skip
    command = ["vllm", "serve", "m"]
    return State(command, 2, template_of(command), [record], [Identity(7, "8")], {"a": 1.0})


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    store = Store(tmp_path / "new" / "tune.json")
    assert store.load() is None
    store.save(state())
    assert store.load() == state()


def test_a_trial_is_written_over_its_older_self() -> None:
    s = state()
    s.put(s.trials[0].to(Phase.ROLLED_BACK, 9.0, "back"))
    assert [t.phase for t in s.trials] == [Phase.ROLLED_BACK] and s.active is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"version": 1}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tune.json"
    path.write_text(text)
    with pytest.raises(InputError, match="--state"):
        Store(path).load()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--state"):
        Store(tmp_path / "file" / "tune.json").save(state())
