"""`trimtab dashboard`: what a browser is shown, and that nothing it does reaches a study."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import optuna
import pytest

from trimtab.cli.dashboard import REFRESH_SECONDS, Studies, copied
from trimtab.engine.settings import Configuration
from trimtab.search.candidate import Outcome
from trimtab.search.memory import Memory
from trimtab.search.space import Space

SPACE = Space({"max_num_seqs": (4, 512)})
FIRST = Configuration.of({"max_num_seqs": 256})
TRIALS = [
    Outcome("llm-1", Configuration.of({"max_num_seqs": 48, "enable_prefix_caching": True}), 0.4, control=FIRST),
    Outcome("llm-2", Configuration.of({"max_num_seqs": 512}), infeasible=True, control=FIRST),
    Outcome("llm-3", Configuration.of({"max_num_seqs": 64}), control=FIRST),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Memory(str(tmp_path / "ml.llm.journal"), "ml/llm").record(TRIALS, SPACE)
    return tmp_path


def ask(studies: Studies, path: str, method: str = "GET") -> tuple[str, bytes]:
    told: list[str] = []
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method, "PATH_INFO": path, "SERVER_NAME": "x", "SERVER_PORT": "1", "wsgi.input": io.BytesIO(),
        "wsgi.url_scheme": "http", "wsgi.errors": io.StringIO(), "QUERY_STRING": "",
    }  # fmt: skip
    body = b"".join(studies(environ, lambda status, headers, *more: told.append(status)))
    return told[0], body


def page(folder: Path, monotonic: Any = lambda: 0.0) -> Studies:
    dashboard = pytest.importorskip("optuna_dashboard")
    return Studies(folder, dashboard.wsgi, monotonic)


def test_trials_show_settings_as_people_write_them(folder: Path) -> None:
    storage = copied(folder)
    (study,) = storage.get_all_studies()
    won, crashed, unclear = storage.get_all_trials(study._study_id)
    assert study.study_name == "ml/llm"
    assert won.params == {"max_num_seqs": 48, "enable_prefix_caching": True}
    assert won.value == pytest.approx(49.18, abs=0.01)
    assert (crashed.state.name, unclear.state.name) == ("FAIL", "PRUNED")
    assert crashed.user_attrs["result"] == "did not start or serve" and "gain" not in crashed.user_attrs
    assert won.user_attrs["trial"] == "llm-1" and won.user_attrs["gain"].startswith("+49.2% (+")


def test_a_trial_that_broke_a_guardrail_is_infeasible_to_optuna(tmp_path: Path) -> None:
    broke = Outcome("llm-1", Configuration.of({"max_num_seqs": 8}), 3.0, control=FIRST, breached=True)
    Memory(str(tmp_path / "ml.llm.journal"), "ml/llm").record([broke, TRIALS[0]], SPACE)
    storage = copied(tmp_path)
    (frozen,) = storage.get_all_studies()
    study = optuna.load_study(study_name=frozen.study_name, storage=storage)
    assert study.trials[0].user_attrs["result"] == "broke a guardrail"
    assert study.best_trial.number == 1


def test_a_trial_ends_when_it_was_recorded(folder: Path) -> None:
    recorded = Memory(str(folder / "ml.llm.journal"), "ml/llm").recorded()
    storage = copied(folder)
    (study,) = storage.get_all_studies()
    shown = storage.get_all_trials(study._study_id)
    assert [t.datetime_complete for t in shown] == [recorded[o.name] for o in TRIALS]
    assert shown[1].datetime_start == shown[0].datetime_complete


def test_the_study_says_what_its_numbers_mean(folder: Path) -> None:
    pytest.importorskip("optuna_dashboard")
    status, body = ask(page(folder), "/api/studies/0")
    assert status.startswith("200") and "a guardrail ended it" in json.loads(body)["note"]["body"]


def test_a_browser_is_shown_the_studies(folder: Path) -> None:
    status, body = ask(page(folder), "/api/studies")
    assert status.startswith("200")
    assert [s["study_name"] for s in json.loads(body)["study_summaries"]] == ["ml/llm"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_what_would_write_is_refused(folder: Path, method: str) -> None:
    assert ask(page(folder), "/api/studies/0", method)[0].startswith("405")


def test_the_journal_is_not_touched(folder: Path) -> None:
    journal = folder / "ml.llm.journal"
    before = journal.read_bytes()
    journal.chmod(0o444)
    folder.chmod(0o555)
    ask(page(folder), "/api/studies")
    folder.chmod(0o755)
    assert journal.read_bytes() == before and [p.name for p in folder.iterdir()] == [journal.name]


def test_a_later_look_sees_later_trials(folder: Path) -> None:
    now = [0.0]
    studies = page(folder, lambda: now[0])
    ask(studies, "/api/studies")
    Memory(str(folder / "ml.other.journal"), "ml/other").record(TRIALS, SPACE)
    seen = [len(json.loads(ask(studies, "/api/studies")[1])["study_summaries"])]
    now[0] += REFRESH_SECONDS + 1
    seen.append(len(json.loads(ask(studies, "/api/studies")[1])["study_summaries"]))
    assert seen == [1, 2]


def test_a_journal_that_is_broken_says_so_beside_the_others(folder: Path) -> None:
    text = (folder / "ml.llm.journal").read_text()
    (folder / "ml.bad.journal").write_text("{not json\n" + text)
    names = [s.study_name for s in copied(folder).get_all_studies()]
    assert "ml/llm" in names and any(n.startswith("ml.bad cannot be read") for n in names)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from trimtab.cli.main import main

    with pytest.raises(SystemExit):
        main(["dashboard", str(tmp_path / "none")])
    assert "none does not exist" in capsys.readouterr().err
