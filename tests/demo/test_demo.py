"""The demo's own parts, without a cluster: what it applies is valid, what it shows can be read."""

from __future__ import annotations

from typing import Any

import pytest
from hack.demo import scenario, screen
from hack.demo.__main__ import _image_values
from rich.console import Console

from trimtab.engine.command import parse_template
from trimtab.load.records import Record
from trimtab.load.summary import Slo, summarise
from trimtab.plan.spec import TunerSpec

Json = dict[str, Any]


def text_of(renderable: Any) -> str:
    console = Console(width=140, force_terminal=False, record=True)
    console.print(renderable)
    return console.export_text()


def test_the_tuner_and_the_target_are_what_the_operator_reads() -> None:
    for prometheus in (True, False):
        spec = TunerSpec.parse(scenario.tuner(prometheus=prometheus)["spec"])
        assert spec.mode == "Auto" and (spec.metrics.prometheus is not None) is prometheus
    deployment, service = scenario.target("localhost/trimtab:dev")
    command = parse_template(deployment["spec"]["template"])
    assert command.configuration()["max_num_seqs"] == scenario.SCENARIO.max_num_seqs and command.port == 8000
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]


@pytest.mark.parametrize(
    ("image", "values"),
    [
        ("localhost/trimtab:dev", ["image.repository=localhost/trimtab", "image.tag=dev"]),
        ("reg:5000/a/trimtab", ["image.repository=reg:5000/a/trimtab"]),
        ("reg:5000/a/trimtab:1", ["image.repository=reg:5000/a/trimtab", "image.tag=1"]),
        ("trimtab@sha256:ab", ["image.repository=trimtab", "image.digest=sha256:ab"]),
    ],
)
def test_any_image_name_becomes_chart_values(image: str, values: list[str]) -> None:
    assert _image_values(image) == values


def trial(number: int, phase: str, **status: Any) -> Json:
    return {"metadata": {"name": f"llm-{number}"}, "spec": {"number": number}, "status": {"phase": phase, **status}}


def test_the_live_screen_says_what_happens() -> None:
    trials = [
        trial(1, "Promoted", finishedAt="x", verdict={"kind": "Better"}, gain="+80.0%", settings="max_num_seqs=16"),
        trial(2, "Measuring", settings="max_num_seqs=24", restarts=1),
    ]
    tuner = {"status": {"phase": "Tuning", "finding": "Preemption", "bestGain": "+80.0%"}}
    shown = text_of(screen.live(tuner, trials, None, 61.0))
    for word in ("Tuning", "Preemption", "+80.0%", "Promoted", "Better", "Measuring", "max_num_seqs=24"):
        assert word in shown


def records(count: int, ttft: float) -> list[Record]:
    times = [(100.0 + i, 100.0 + i + ttft, 101.0 + i + ttft) for i in range(count)]
    return [Record(i, at, at, first, last, last, 10, 20, 20, 20, "ok") for i, (at, first, last) in enumerate(times)]


def test_the_last_table_compares_and_counts_failures() -> None:
    slo = Slo(5.0, 0.2)
    before = summarise(records(20, 4.0), (100.0, 160.0), slo)
    after = summarise(records(40, 0.2), (100.0, 160.0), slo)
    console = Console(width=140, force_terminal=False, record=True)
    screen.before_after(console, before, after, [1.5, 0.0], {"reset": 2})
    shown = console.export_text()
    for words in ("goodput", "TTFT p99", "preemptions/s", "1.50", "0.00", "-95%", "Failed requests", "2 (reset: 2)"):
        assert words in shown, words
