"""Text of others in statuses, events and logs: bounded, one line, without escapes; numbers that JSON has."""

from __future__ import annotations

import json
import logging
import math
from types import SimpleNamespace
from typing import Any

import pytest
from builders import NOW, record, spec

from trimtab.diagnose.finding import Finding, Severity
from trimtab.judge.verdict import Kind, Verdict
from trimtab.plan.block import Block, Note
from trimtab.plan.preconditions import FleetView
from trimtab.plan.record import Phase
from trimtab_operator import main
from trimtab_operator.recorder import Recorder
from trimtab_operator.records import MOST_TEXT, conditions, new_trial, record_of, status_of
from trimtab_operator.rollout import Baseline
from trimtab_operator.target import MOST_TEMPLATE, Target
from trimtab_operator.tuner_status import Situation, tuner_status

Json = dict[str, Any]
HOSTILE = "\x1b[2J\x1b]0;owned\x07line one\nforged\r\x00\u202e$(reboot) `id` <script>" + "x" * 2_000_000


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [t for part in value.values() for t in texts(part)]
    if isinstance(value, list):
        return [t for part in value for t in texts(part)]
    return [value] if isinstance(value, str) else []


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict | list):
        return [n for part in (value.values() if isinstance(value, dict) else value) for n in numbers(part)]
    return [value] if isinstance(value, float) else []


def test_a_trials_status_takes_no_escapes_no_end_and_no_infinity() -> None:
    verdict = Verdict(
        Kind.ERROR, "CrashedAtStart", HOSTILE, gain=math.inf, gain_low=-math.inf, gain_high=math.nan, score=math.inf,
        numbers={"windows": 5.0, "bad": math.nan, "worse": -math.inf},
    )  # fmt: skip
    ended = record(Phase.ROLLED_BACK, message=HOSTILE, verdict=verdict, finished_at=NOW)
    before: Json = {}
    for step in range(80):
        phase = Phase.MEASURING if step % 2 else Phase.WARMING_UP
        before = status_of(record(phase, NOW + step, message=HOSTILE), before, "pod", 1)
    status = status_of(ended, before, "pod", 1)
    assert all(t.isprintable() and len(t) <= MOST_TEXT for t in texts(status))
    assert status["verdict"]["numbers"] == {"windows": 5.0} and "gainPercent" not in status["verdict"]
    assert len(json.dumps(status, allow_nan=False)) < 100_000


def test_a_status_reads_back_to_what_it_writes() -> None:
    """Else each tick would find a difference and write again."""
    started = record(Phase.MEASURING, message=HOSTILE, verdict=Verdict(Kind.INCONCLUSIVE, "WithinNoise", HOSTILE))
    trial: Json = {
        "metadata": {"name": "llm-1", "creationTimestamp": "2027-01-15T08:00:00Z"},
        "spec": {"number": 1, "configuration": {}, "baseline": {"replicas": 3}},
        "status": status_of(started, {}, "pod", 1),
    }
    once = record_of(trial)
    trial["status"] = status_of(once, trial["status"], "pod", 1)
    assert record_of(trial) == once


def test_a_tuners_status_takes_no_escapes_and_no_infinity() -> None:
    finding = Finding("Hang", Severity.CRITICAL, 0.9, HOSTILE, HOSTILE, {"a": math.inf, "b": 1.0}, avoid=HOSTILE)
    fleet = FleetView(exists=True, findings=(finding,) * 80, observation=SimpleNamespace())  # type: ignore[arg-type]
    situation = Situation(Block("Hang", HOSTILE, hard=True), fleet, notes=[Note("NoRight", HOSTILE)] * 30)
    tuner: Json = {"metadata": {"generation": 1}, "spec": {}}
    status = tuner_status(tuner, spec(), [], None, situation, NOW)
    assert all(t.isprintable() and len(t) <= MOST_TEXT for t in texts(status))
    assert all(math.isfinite(n) for n in numbers(status)) and len(status["notes"]) == 10
    assert len(status["findings"]) <= 50 and len(json.dumps(status, allow_nan=False)) < 300_000


def test_events_and_conditions_are_one_line() -> None:
    posted: list[Json] = []
    cluster: Any = SimpleNamespace(create=lambda kind, namespace, body: posted.append(body))
    meta = {"name": "llm", "namespace": "ns", "uid": "u"}
    tuner = {"apiVersion": "trimtab.dev/v1alpha1", "kind": "VLLMTuner", "metadata": meta}
    Recorder(cluster, "me", lambda: NOW).event(tuner, "TrialRolledBack", HOSTILE, warning=True)
    (condition,) = conditions([("Ready", "False", "EngineUnreadable", HOSTILE)], [], 1, NOW)
    for text in (posted[0]["note"], condition["message"]):
        assert text.isprintable() and text.startswith("line one forged") and len(text) <= 1024


@pytest.mark.parametrize("style", ["json", "text"])
def test_a_log_line_stays_a_line(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        main._log_to_stderr(style)
        logging.getLogger("trimtab").warning("pod says %s", HOSTILE)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    written = capsys.readouterr().err
    assert written.count("\n") == 1 and "\x1b" not in written and "\u202e" not in written


def test_a_proposal_and_its_origin_fit_the_schema() -> None:
    tuner = {"apiVersion": "v", "kind": "VLLMTuner", "metadata": {"name": "llm", "namespace": "ns", "uid": "u"}}
    base = Baseline("d", {}, {}, None, None, None)
    one = record()
    body = new_trial(tuner, 1, base, 2, one.baseline, one.configuration, HOSTILE, approval=False, search="s",
                     change=HOSTILE)  # fmt: skip
    assert len(body["spec"]["origin"]) <= 4096 and len(body["spec"]["change"]) <= 256
    assert all(t.isprintable() for t in texts(body["spec"]))


def test_a_template_too_large_to_keep_is_refused_before_a_trial() -> None:
    def target(size: int) -> Target:
        container = {
            "name": "vllm",
            "image": "vllm/vllm-openai:v0.11.0",
            "args": ["--model=m", "--seed=1" + "0" * size],
        }
        return Target({"spec": {"template": {"spec": {"containers": [container]}}}})

    assert "240,1" in target(MOST_TEMPLATE).read_engine(None).problem
    assert "too long" not in target(1000).read_engine(None).problem
